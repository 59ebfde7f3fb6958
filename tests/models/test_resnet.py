import pytest
import safetensors.torch as st
import torch

from calibre.experiment import read
from calibre.models.network import Problem, build_encoder, feature_count
from tests.models import theirs

RESNETS = {
    "resnet18": ((2, 2, 2, 2), False, 11_689_512),
    "resnet34": ((3, 4, 6, 3), False, 21_797_672),
    "resnet50": ((3, 4, 6, 3), True, 25_557_032),
}


@pytest.mark.parametrize("name", RESNETS)
def test_weights_of_torchvision_and_timm_give_their_features(name, tmp_path):
    blocks, bottleneck, parameters = RESNETS[name]
    layout = theirs.resnet_layout(blocks, bottleneck)
    tensors = theirs.values(layout)
    # the layout is the published one: torchvision's documentation counts its parameters
    trained = [t for n, t in tensors.items() if "running" not in n and "tracked" not in n]
    assert sum(t.numel() for t in trained) == parameters
    st.save_file(tensors, tmp_path / "theirs.safetensors")
    network = read(None, [f"network.weights={tmp_path / 'theirs.safetensors'}"]).network
    assert (network.encoder, network.width, network.stem) == (name, 64, "imagenet")
    encoder = build_encoder(Problem(48, 3, 10, network, seed=0)).eval()
    images = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs.resnet(tensors, blocks, bottleneck, images)
        found = encoder(images)
    assert feature_count(encoder) == expected.shape[1]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
