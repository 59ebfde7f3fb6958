import pytest
import torch

from calibre.errors import UserError
from calibre.models.network import Problem, build_classifier, build_encoder, feature_count
from calibre.sections import NetworkSettings

ENCODERS = ["resnet18", "resnet10", "resnet8", "cnn"]


def problem(encoder="cnn", size=32, channels=3, width=8, seed=0, stem="auto", classes=10):
    settings = NetworkSettings(encoder=encoder, width=width, stem=stem)
    return Problem(size, channels, classes, settings, seed)


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [5, 8, 28, 32, 96])
def test_any_size_and_channels(encoder, channels, size):
    network = build_encoder(problem(encoder, size, channels)).eval()
    output = network(torch.zeros(2, channels, size, size))
    assert output.shape == (2, feature_count(network))


def test_resnet18_is_the_papers_encoder():
    network = build_encoder(problem("resnet18", width=64))
    assert feature_count(network) == 512
    count = sum(p.numel() for p in network.parameters())
    # He et al.'s ResNet-18 without its classifier has 11,176,512 parameters; the CIFAR stem's
    # 3x3 convolution saves 64 * 3 * (49 - 9) of them
    assert count == 11_176_512 - 7680
    maps = network.stages(network.bn1(network.conv1(torch.zeros(1, 3, 32, 32))))
    assert maps.shape == (1, 512, 4, 4)


def test_large_images_get_the_imagenet_stem():
    small, large = build_encoder(problem("resnet8", 32)), build_encoder(problem("resnet8", 96))
    assert small.conv1.kernel_size == (3, 3)
    assert large.conv1.kernel_size == (7, 7)
    assert build_encoder(problem("resnet8", 96, stem="cifar")).conv1.kernel_size == (3, 3)


def test_the_common_start_depends_on_the_seed_alone():
    first, second = build_classifier(problem(seed=3)), build_classifier(problem(seed=3))
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
    # with other classes the encoder is still the same: methods differ in heads, not in encoders
    other = build_classifier(problem(seed=3, classes=2))
    assert torch.equal(first.encoder.layers[0].weight, other.encoder.layers[0].weight)
    third = build_classifier(problem(seed=4))
    assert not torch.equal(first.encoder.layers[0].weight, third.encoder.layers[0].weight)


def test_resnets_too_narrow_for_the_libraries_are_refused():
    with pytest.raises(UserError, match=r"network.width = 4: a ResNet needs 8 or more"):
        build_encoder(problem("resnet8", width=4))


def test_an_unknown_encoder_is_named():
    with pytest.raises(UserError, match=r"no network.encoder called 'resnet19'.*did you mean"):
        build_encoder(problem("resnet19"))


def test_an_encoder_of_ones_own_may_say_how_long_its_vectors_are():
    """Where it does not, a blank image tells: one of 3 x 32 x 32 numbers is as long, flattened."""
    measured = build_encoder(problem(f"{__name__}:without_features"))
    assert feature_count(measured) == measured(torch.zeros(2, 3, 32, 32)).shape[1] == 3 * 32 * 32
    assert feature_count(build_encoder(problem(f"{__name__}:with_features"))) == 7


def without_features(channels, width, stem):
    return torch.nn.Flatten()


def with_features(channels, width, stem):
    module = torch.nn.Flatten()
    module.features = 7
    return module
