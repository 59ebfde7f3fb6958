import pytest

from calibre.data.augment import Normalization
from calibre.errors import UserError
from calibre.experiment import read
from calibre.models.preprocessing import chosen_normalization
from calibre.sections import NetworkSettings

HALF = "network.normalization={mean=[0.5], std=[0.2]}"


def chosen(channels, *changes):
    return chosen_normalization(read(None, changes).network, channels)


def test_nothing_said_is_nothing_chosen():
    assert chosen(3) is None


def test_imagenet_has_a_name():
    imagenet = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert chosen(3, "network.normalization=imagenet") == imagenet
    assert (
        chosen(3, "network.normalization={mean=[0.5], std=[1]}", "network.normalization=imagenet")
        == imagenet
    )


def test_gray_images_get_the_mean_over_the_colours():
    found = chosen(1, "network.normalization=imagenet")
    assert found.mean == pytest.approx((0.449,))
    assert found.std == pytest.approx((0.226,))
    assert chosen(1, HALF) == Normalization((0.5,), (0.2,))


def test_values_for_gray_do_not_do_for_colour():
    with pytest.raises(UserError, match="1 mean for images of 3 channels"):
        chosen(3, HALF)


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ("imagnet", "network.normalization = 'imagnet': write \"imagenet\", or"),
        ("{mean=[0.5, 0.5], std=[1, 1]}", "2 means and 2 standard deviations: give 1 of each"),
        ("{mean=[0.5], std=[1, 1, 1]}", "1 means and 3 standard deviations"),
        ("{mean=[0.5], std=[0]}", "greater than 0"),
        ("{mean=[0.5]}", "network.normalization.std: field required"),
    ],
)
def test_nonsense_is_said(value, match):
    with pytest.raises(UserError, match=match):
        read(None, [f"network.normalization={value}"])


def test_settings_survive_their_file(tmp_path):
    experiment = read(None, ["network.normalization=imagenet"])
    (tmp_path / "experiment.toml").write_text(experiment.to_toml())
    again = read(tmp_path / "experiment.toml")
    assert again == experiment
    assert again.network == NetworkSettings(normalization="imagenet")
