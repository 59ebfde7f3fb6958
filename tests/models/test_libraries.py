"""torchvision's published build cannot be imported beside a torch for CPUs alone, and timm imports
torchvision. Stand-ins show what both are asked for; the last test needs the real ones.
"""

import importlib
import sys
import types

import pytest
import safetensors.torch as st
import torch
from torch import nn

from calibre.errors import UserError
from calibre.experiment import read
from calibre.models.network import Problem, build_encoder, feature_count, is_own_code
from calibre.sections import NetworkSettings


def built(encoder, channels=3, size=8):
    return build_encoder(Problem(size, channels, 10, NetworkSettings(encoder=encoder), seed=0))


class Net(nn.Module):
    """Three parts, the last of them the classifier, under whatever name."""

    def __init__(self, classifier, module, channels=3):
        super().__init__()
        self.body = nn.Conv2d(channels, 6, 3)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier_name = classifier
        setattr(self, classifier, module)

    def forward(self, x):
        return getattr(self, self.classifier_name)(self.pool(self.body(x)))


@pytest.fixture
def timm(monkeypatch):
    asked = []

    def create_model(name, **options):
        asked.append((name, options))
        if name == "no_such_net":
            raise RuntimeError("Unknown model (no_such_net)")
        return Net("head", nn.Identity(), options["in_chans"])

    monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(create_model=create_model))
    return asked


@pytest.fixture
def torchvision(monkeypatch):
    ends = {
        "resnet": ("fc", lambda: nn.Linear(6, 10)),
        "vgg": ("classifier", lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 10))),
        "vit": ("heads", lambda: nn.Sequential(nn.Linear(6, 10))),
        "odd": ("pool2", nn.Identity),
    }

    def get_model(name, weights):
        assert weights is None
        if name not in ends:
            raise ValueError(f"Unknown model {name}")
        end, make = ends[name]
        return Net(end, make())

    package = types.ModuleType("torchvision")
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "torchvision", package)
    models = types.SimpleNamespace(get_model=get_model)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)


def test_timm_is_asked_for_a_network_without_classifier_and_without_download(timm):
    encoder = built("timm:some_net.a1", channels=1)
    assert timm == [("some_net.a1", {"pretrained": False, "num_classes": 0, "in_chans": 1})]
    assert feature_count(encoder) == 6
    assert not is_own_code("timm:some_net.a1")


def test_a_network_of_timm_starts_from_a_file_of_timms_names(timm, tmp_path):
    """Colour weights do for gray images, and their classifier is left out."""
    tensors = {
        "body.weight": torch.randn(6, 3, 3, 3), "body.bias": torch.randn(6),
        "head.weight": torch.randn(10, 6),
    }  # fmt: skip
    st.save_file(tensors, tmp_path / "w.safetensors")
    name = f"network.weights={tmp_path / 'w.safetensors'}"
    network = read(None, ["network.encoder=timm:some_net", name]).network
    state = build_encoder(Problem(8, 1, 10, network, seed=0)).state_dict()
    assert torch.equal(state["network.body.weight"][:, 0], tensors["body.weight"].sum(1))
    assert torch.equal(state["network.body.bias"], tensors["body.bias"])


def test_a_network_of_timm_can_be_built_without_memory(timm):
    """As bundles are, before their tensors are put in."""
    with torch.device("meta"):
        encoder = built("timm:some_net")
    assert feature_count(encoder) == 6
    assert all(parameter.is_meta for parameter in encoder.parameters())


@pytest.mark.parametrize(("name", "features"), [("resnet", 6), ("vgg", 5), ("vit", 6)])
def test_torchvisions_last_layer_is_taken_off(torchvision, name, features):
    assert feature_count(built(f"torchvision:{name}")) == features


@pytest.mark.parametrize(
    ("encoder", "match"),
    [
        ("timm:hf-hub:somebody/net", "give the name of a network of timm"),
        ("timm:", "give the name of a network of timm"),
        ("timm:no_such_net", r"timm builds no network 'no_such_net': Unknown model"),
        ("torchvision:no_such_net", "torchvision builds no network 'no_such_net'"),
        ("torchvision:odd", "ends with no linear layer to take off"),
    ],
)
def test_what_the_libraries_do_not_have_is_said(timm, torchvision, encoder, match):
    with pytest.raises(UserError, match=match):
        built(encoder)
    assert all(name == "no_such_net" for name, _ in timm)


def test_torchvision_takes_colour_images_alone(torchvision):
    with pytest.raises(UserError, match="takes colour images, these have 1 channel"):
        built("torchvision:resnet", channels=1)


@pytest.mark.parametrize("error", [ImportError("no module"), RuntimeError("operator nms is not")])
def test_a_library_that_cannot_be_imported_is_told_with_what_would_work(monkeypatch, error):
    def fail(name):
        raise error

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(UserError, match=rf"needs timm, .*{error}\): pip install 'calibre-fl\[pre"):
        built("timm:resnet18")


@pytest.mark.libraries
@pytest.mark.parametrize(
    ("encoder", "own", "size"),
    [
        ("timm:resnet18", "resnet18", 64),
        ("timm:vit_tiny_patch16_224", "vit_tiny", 224),
        ("torchvision:resnet18", "resnet18", 64),
        ("torchvision:resnet50", "resnet50", 64),
        ("torchvision:vit_b_16", "vit_base", 224),
    ],
)
def test_the_real_networks_compute_what_ours_do_with_their_weights(encoder, own, size, tmp_path):
    try:
        theirs = built(encoder, size=size).eval()
    except UserError as error:
        pytest.skip(str(error))
    st.save_file(theirs.network.state_dict(), tmp_path / "w.safetensors")
    network = read(None, [f"network.weights={tmp_path / 'w.safetensors'}"]).network
    assert network.encoder == own
    ours = build_encoder(Problem(size, 3, 10, network, seed=0)).eval()
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), rtol=1e-4, atol=1e-4)
