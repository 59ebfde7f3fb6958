import math
import statistics as by_hand

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from calibre.personal.judge import (
    BLOCK,
    FEWEST,
    Statistics,
    as_trained,
    problems,
    statistics,
)
from calibre.settings import validate

BLANK, INVERTED = "it is blank, or nearly so", "it looks inverted"
DIGITS = (load_digits().images * 15.9).astype(np.uint8)[..., None]  # bright strokes on black
SHUFFLED = DIGITS[np.random.default_rng(0).permutation(len(DIGITS))]
OWN, OTHERS = SHUFFLED[:200], SHUFFLED[1000:1300]


@pytest.fixture(scope="module")
def usual() -> Statistics:
    found = statistics(OWN)
    assert found is not None
    return found


def shares(images, usual: Statistics, word: str = "") -> float:
    """Of images with a problem that says so."""
    found = problems(images, usual)
    return sum(any(word in text for text in each) for each in found) / len(images)


def test_images_of_the_same_kind_are_let_through(usual):
    assert shares(OTHERS, usual) <= 0.03
    few = statistics(OWN[:24])
    assert few is not None
    assert shares(OTHERS, few) <= 0.05


def test_blank_images_are_called_so(usual):
    rng = np.random.default_rng(0)
    for level in (0, 17, 128, 255):
        flat = np.full((20, 8, 8, 1), level)
        rough = (flat + rng.normal(0, 2, flat.shape)).clip(0, 255)
        for images in (flat, rough):
            assert shares(images.astype(np.uint8), usual, BLANK) == 1


def test_negatives_are_called_so(usual):
    assert shares(255 - OTHERS, usual, INVERTED) >= 0.95
    turned = statistics(255 - OWN)
    assert turned is not None
    assert shares(OTHERS, turned, INVERTED) >= 0.95
    assert shares(255 - OTHERS, turned) <= 0.03


def test_colour_is_told_where_gray_was_trained(usual):
    """Whether the gray training images had one channel, or three alike."""
    coloured = np.concatenate([OTHERS, np.roll(OTHERS, 2, 1), np.roll(OTHERS, 2, 2)], -1)
    gray = OTHERS.repeat(3, -1)
    three = statistics(OWN.repeat(3, -1))
    assert three is not None
    for learned in (usual, three):
        assert shares(coloured, learned, "trained on gray images") >= 0.99
        assert shares(gray, learned) <= 0.03
    rich = statistics(coloured[:100])
    assert rich is not None
    assert shares(coloured[100:], rich) <= 0.05


def test_brightness_far_off_is_told():
    rng = np.random.default_rng(1)
    images = rng.normal(110, 30, (500, 16, 16, 3)) + rng.normal(0, 8, (500, 1, 1, 1))
    ours = images.clip(0, 255).astype(np.uint8)
    usual = statistics(ours[:250])
    assert usual is not None
    assert shares(ours[250:], usual) <= 0.03
    assert (
        shares((images[250:] * 0.9 + 110).clip(0, 255).astype(np.uint8), usual, "brighter") >= 0.95
    )
    assert shares((images[250:] - 60).clip(0, 255).astype(np.uint8), usual, "darker") >= 0.95


def test_every_measure_is_what_its_definition_says(usual):
    """By loops over pixels, of the range that 200 images give each."""
    rows: dict[str, list[float]] = {"brightness": [], "contrast": [], "asymmetry": []}
    grays = [[float(value) / 255 for value in image.reshape(-1)] for image in OWN]
    for gray in grays:
        mean, spread = by_hand.fmean(gray), by_hand.pstdev(gray)
        rows["brightness"].append(mean)
        rows["contrast"].append(math.log(spread))
        rows["asymmetry"].append(by_hand.fmean(((v - mean) / spread) ** 3 for v in gray))
    mean_image = [by_hand.fmean(values) for values in zip(*grays, strict=True)]
    assert usual.mean_image == pytest.approx(mean_image, abs=1e-5)  # 8 x 8 pixels: a cell each
    rows["likeness"] = [by_hand.correlation(gray, mean_image) for gray in grays]
    rows["roughness"] = [steps(gray) / by_hand.pstdev(gray) for gray in grays]
    for name, values in rows.items():
        low, high = np.quantile(values, [0.001, 0.999])
        reach = 7 * by_hand.pstdev(values) / math.sqrt(200)
        found = getattr(usual, name)
        assert (found.low, found.high) == pytest.approx((low - reach, high + reach), abs=1e-4)
    assert (usual.colour.low, usual.colour.high) == (0, 0)


def test_cells_of_the_mean_image_are_means_over_their_pixels():
    rng = np.random.default_rng(2)
    images = rng.integers(0, 256, (9, 20, 11, 1), np.uint8)
    usual = statistics(images)
    assert usual is not None
    whole = images.mean(0)[..., 0] / 255
    rows, columns = ([i * side // 8 for i in range(9)] for side in (20, 11))
    naive = [
        whole[rows[i] : rows[i + 1], columns[j] : columns[j + 1]].mean()
        for i in range(8)
        for j in range(8)
    ]
    assert usual.mean_image == pytest.approx(naive, abs=1e-5)


def test_any_size_will_do_and_too_few_images_say_nothing(usual):
    assert statistics(OWN[: FEWEST - 1]) is None
    assert statistics(OWN[:FEWEST]) is not None
    for size in ((1, 1), (3, 5), (1, 40), (64, 9)):
        image = np.arange(np.prod(size), dtype=np.uint8).reshape(*size, 1) * 3
        assert len(problems(image[None], usual)) == 1
    same = statistics(np.zeros((10, 8, 8, 1), np.uint8))
    assert same is not None
    assert problems(np.zeros((1, 8, 8, 1), np.uint8), same) == [(BLANK,)]


def test_it_can_be_kept_in_a_card(usual):
    assert validate(Statistics, usual.model_dump(mode="json")) == usual


def steps(gray: list[float]) -> float:
    """The root mean square over all pairs of neighbours of an image of 8 x 8, by loops."""
    across = [(8 * i + j, 8 * i + j + 1) for i in range(8) for j in range(7)]
    down = [(8 * i + j, 8 * i + j + 8) for i in range(7) for j in range(8)]
    return math.sqrt(by_hand.fmean((gray[a] - gray[b]) ** 2 for a, b in across + down))


def test_noise_and_blur_are_told(usual):
    rng = np.random.default_rng(3)
    shuffled = np.stack([rng.permutation(image.reshape(-1)) for image in OTHERS])
    assert shares(shuffled.reshape(OTHERS.shape), usual, "rougher") >= 0.95
    wide = OWN.repeat(4, 1).repeat(4, 2) // 2 + rng.integers(0, 99, (200, 32, 32, 1))
    learned = statistics(wide.astype(np.uint8))
    assert learned is not None
    smooth = [Image.fromarray(image[..., 0]).resize((32, 32)) for image in OTHERS]
    assert shares(np.stack(smooth)[..., None] // 2 + 50, learned, "smoother") >= 0.95
    assert shares(wide.astype(np.uint8), learned) <= 0.03


def test_each_image_is_judged_alone(usual):
    """However many come together, and wherever a block of them ends."""
    mixed = np.stack([OTHERS, 255 - OTHERS], 1).reshape(-1, 8, 8, 1)[: BLOCK + 9]
    alone = [problems(image[None], usual)[0] for image in mixed]
    assert problems(mixed, usual) == alone
    assert len({*alone}) > 1
    assert problems(mixed[:0], usual) == []


def test_gray_is_made_as_pillow_makes_it():
    pixels = np.random.default_rng(4).integers(0, 256, (3, 20, 20, 3), np.uint8)
    expected = [np.asarray(Image.fromarray(image).convert("L")) for image in pixels]
    assert np.array_equal(as_trained(pixels, 1)[..., 0], expected)
    assert as_trained(pixels, 3) is pixels


def test_other_colours_are_told_where_all_were_alike():
    """Brown stripes were trained on; the same in blue, with red and blue swapped, are others."""
    rng = np.random.default_rng(0)
    stripes = np.sin(np.arange(16) / 2 + rng.uniform(0, 6, (60, 1)))[:, None, :, None]
    brown = (120 + 80 * stripes) * np.array([1, 0.8, 0.6]) + rng.normal(0, 9, (60, 16, 16, 3))
    brown = brown.clip(0, 255).astype(np.uint8)
    usual = statistics(brown[:30])
    assert usual is not None
    assert shares(brown[30:], usual) <= 0.05
    assert shares(brown[30:, ..., ::-1], usual, "its colours are not those") == 1
    assert shares(255 - brown[30:], usual, "its colours are not those") == 1


def test_what_older_bundles_say_is_usual_lets_any_tint_through(usual):
    older = usual.model_dump(exclude={"warmth", "greenness"})
    found = validate(Statistics, older)
    assert (found.warmth.low, found.greenness.high) == (-1, 1)
