import pytest
import safetensors.torch as st
import torch

from calibre.errors import UserError
from calibre.experiment import read
from calibre.models.network import Problem, build_encoder, feature_count
from calibre.models.weights import resampled
from calibre.sections import NetworkSettings
from tests.models import theirs

SIZE, PATCH, D = 32, 16, 192
LAYOUTS = {"timm": theirs.TIMM, "torchvision": theirs.TORCHVISION}


def images(count=2, channels=3, size=SIZE):
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(1))


def started(folder, tensors, *changes, size=SIZE, channels=3):
    st.save_file(tensors, folder / "theirs.safetensors")
    network = read(None, [f"network.weights={folder / 'theirs.safetensors'}", *changes]).network
    assert (network.encoder, network.patch) == ("vit_tiny", PATCH)
    return build_encoder(Problem(size, channels, 10, network, seed=0)).eval()


@pytest.mark.parametrize("library", LAYOUTS)
@pytest.mark.parametrize("pooling", ["token", "mean"])
def test_weights_of_timm_and_torchvision_give_their_features(library, pooling, tmp_path):
    names = LAYOUTS[library]
    tensors = theirs.values(theirs.vit_layout(names, D, PATCH, SIZE))
    encoder = started(tmp_path, tensors, f"network.pooling={pooling}")
    with torch.no_grad():
        tokens = theirs.vit(tensors, names, images())
        expected = tokens[:, 0] if pooling == "token" else tokens[:, 1:].mean(1)
        torch.testing.assert_close(encoder(images()), expected, rtol=1e-4, atol=1e-4)


# timm's documentation counts them with a classifier of 1000 classes, D * 1000 + 1000 parameters
@pytest.mark.parametrize(
    ("name", "length", "parameters"),
    [
        ("vit_tiny", 192, 5_717_416),
        ("vit_small", 384, 22_050_664),
        ("vit_base", 768, 86_567_656),
    ],
)
def test_the_sizes_are_those_of_timm(name, length, parameters):
    with torch.device("meta"):
        encoder = build_encoder(Problem(224, 3, 10, NetworkSettings(encoder=name), seed=0))
    assert feature_count(encoder) == length
    assert sum(p.numel() for p in encoder.parameters()) == parameters - 1000 * (length + 1)


def test_gray_images_are_read_as_three_equal_channels(tmp_path):
    tensors = theirs.values(theirs.vit_layout(theirs.TIMM, D, PATCH, SIZE))
    encoder = started(tmp_path, tensors, channels=1)
    gray = images(channels=1)
    with torch.no_grad():
        expected = theirs.vit(tensors, theirs.TIMM, gray.repeat(1, 3, 1, 1))[:, 0]
        torch.testing.assert_close(encoder(gray), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("old", "new"), [(24, 6), (6, 24)])
def test_positions_that_grow_along_the_image_still_do_at_another_size(old, new):
    """Away from the border: a filter that averages neighbours keeps a straight line straight."""
    down, right = torch.meshgrid(torch.arange(old) + 0.5, torch.arange(old) + 0.5, indexing="ij")
    ramps = torch.stack([down, right, torch.full_like(down, 7)], dim=-1).reshape(1, old**2, 3)
    token = torch.tensor([[[1.0, 2.0, 3.0]]])
    found = resampled(torch.cat([token, ramps], 1), new)
    assert torch.equal(found[:, :1], token)
    grid = found[0, 1:].reshape(new, new, 3)
    inside = slice(2 * new // 6, 4 * new // 6)
    line = (torch.arange(new) + 0.5) * old / new
    torch.testing.assert_close(grid[inside, 0, 0], line[inside])
    torch.testing.assert_close(grid[0, inside, 1], line[inside])
    torch.testing.assert_close(grid[..., 2], torch.full((new, new), 7.0))


def test_weights_for_another_image_size_are_taken(tmp_path):
    tensors = theirs.values(theirs.vit_layout(theirs.TORCHVISION, D, PATCH, 64))
    encoder = started(tmp_path, tensors)
    positions = tensors["encoder.pos_embedding"]
    assert torch.equal(encoder.pos_embed, resampled(positions, SIZE // PATCH))
    assert torch.equal(started(tmp_path, tensors, size=64).pos_embed, positions)


def test_every_parameter_learns():
    problem = Problem(16, 1, 10, NetworkSettings(encoder="vit_tiny", patch=8), seed=0)
    encoder = build_encoder(problem)
    encoder(images(channels=1, size=16)).square().mean().backward()
    still = [n for n, p in encoder.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []


def test_images_that_cannot_be_cut_into_patches_are_refused():
    settings = NetworkSettings(encoder="vit_tiny")
    with pytest.raises(UserError, match=r"28 pixels.*patches of 16: set data.size=32, or network"):
        build_encoder(Problem(28, 1, 10, settings, seed=0))
    encoder = build_encoder(Problem(32, 1, 10, settings, seed=0))
    with pytest.raises(UserError, match=r"32 x 32 pixels was given 32 x 48: set data.size"):
        encoder(torch.zeros(1, 1, 32, 48))


def test_an_exported_graph_takes_any_number_of_images():
    problem = Problem(16, 1, 10, NetworkSettings(encoder="vit_tiny", patch=8), seed=0)
    encoder = build_encoder(problem).eval()
    batch = {"x": {0: torch.export.Dim("batch")}}
    exported = torch.export.export(encoder, (images(2, 1, 16),), dynamic_shapes=batch)
    five = images(5, 1, 16)
    with torch.no_grad():
        torch.testing.assert_close(exported.module()(five), encoder(five))
