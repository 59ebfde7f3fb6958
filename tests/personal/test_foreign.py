import numpy as np
import pytest

from calibre.personal.foreign import FEWEST, KINDS, MOST, made_up

RNG = np.random.default_rng(0)
GRAY = RNG.integers(0, 256, (30, 28, 28, 1), np.uint8)
COLOUR = RNG.integers(0, 256, (30, 32, 24, 3), np.uint8)


@pytest.mark.parametrize("own", [GRAY, COLOUR, GRAY[:3]], ids=["gray", "colour", "few"])
def test_there_are_ten_kinds_the_same_every_time(own):
    drawn, again = made_up(own), made_up(own.copy())
    assert len(drawn) == 10
    for name, images in drawn.items():
        assert images.shape == (MOST, *own.shape[1:3], 3)
        assert images.dtype == np.uint8
        assert np.array_equal(images, again[name])
        assert len({image.tobytes() for image in images}) > 2, name  # they differ
        gray = (images == images[..., :1]).all()
        assert gray == ((own.shape[3] == 1 and "colours" not in name) or name == "text"), name


def test_own_images_are_spoiled_as_their_kinds_say():
    drawn = made_up(GRAY)
    own = GRAY[np.arange(MOST) * len(GRAY) // MOST]
    assert np.array_equal(drawn["own images as negatives"], 255 - own.repeat(3, 3))
    shuffled = drawn["own images, pixels shuffled"][..., 0]
    assert np.array_equal(np.sort(shuffled.reshape(MOST, -1)), np.sort(own.reshape(MOST, -1)))
    assert not np.array_equal(shuffled, own[..., 0])
    exposed = drawn["own images, wrongly exposed"]
    assert exposed[::2].max() <= 39
    assert exposed[1::2].min() >= 216
    assert np.array_equal(made_up(COLOUR)["own images in wrong colours"][0, ..., 1],
                          COLOUR[0, ..., 0])  # fmt: skip


def test_large_images_are_few():
    """An encoder's time is bounded: at most 50 images of 224 x 224."""
    drawn = made_up(np.zeros((4, 224, 224, 3), np.uint8))
    assert {len(images) for images in drawn.values()} == {FEWEST}
    assert list(drawn) == list(KINDS)
