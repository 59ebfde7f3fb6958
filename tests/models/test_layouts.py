import pytest
import torch

from calibre.models.layouts import matched, readings, recognised
from calibre.models.network import Problem, build_encoder
from calibre.registry import ENCODERS
from calibre.sections import NetworkSettings

PLACES = {"alone": "", "of a run": "encoder.", "of a bundle": "network.encoder.encoders.0."}


def shapes(encoder, size=96, place="", **settings):
    problem = Problem(size, 3, 10, NetworkSettings(encoder=encoder, **settings), seed=0)
    with torch.device("meta"):
        state = build_encoder(problem).state_dict()
    return {place + name: tuple(tensor.shape) for name, tensor in state.items()}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_encoder_is_known_by_its_tensors(encoder, place):
    found = recognised(shapes(encoder, place=PLACES[place], width=24, stem="cifar", patch=32))
    of_kind = {"cnn": {"width": 24}, "res": {"width": 24, "stem": "cifar"}, "vit": {"patch": 32}}
    assert found == {"encoder": encoder, **of_kind[encoder[:3]]}


def test_what_else_lies_beside_an_encoder_does_not_matter():
    beside = {"projector.0.weight": (8, 8), "head.weight": (10, 8), "layers": (2,)}
    assert recognised(shapes("cnn", place="encoder.") | beside)["encoder"] == "cnn"


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"conv1.0.weight": (32, 3, 3, 3), "layer1.0.conv1.weight": (64, 64, 3, 3)},  # ResNet-D
        {"conv1.weight": (64, 3, 5, 5)},
        {"patch_embed.proj.weight": (1024, 3, 16, 16), "blocks.23.norm1.weight": (1024,)},
        {"features.0.weight": (64, 3, 3, 3)},
    ],
)
def test_networks_that_are_not_ours_are_not_taken_for_them(other):
    assert recognised(other) == {}


def test_a_classifier_is_left_out_where_the_encoder_has_none_of_its_name():
    here = {"network.body.weight": (4, 4), "network.head.0.weight": (4, 4)}
    there = {"body.weight": (4, 4), "head.0.weight": (4, 4), "head.1.weight": (10, 4), "x": (1,)}
    assert matched(there, here) == {
        "network.body.weight": "body.weight", "network.head.0.weight": "head.0.weight",
        "network.x": "x",
    }  # fmt: skip


def test_no_reading_loses_a_tensor():
    """Two names of a file that became one name of ours would hide one of them."""
    for encoder in ENCODERS:
        names = shapes(encoder)
        assert all(len(reading) in (0, len(names)) for reading in readings(names))
