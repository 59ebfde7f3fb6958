import subprocess
import sys

import pytest
import safetensors.torch as st
import torch

from calibre.errors import UserError
from calibre.experiment import read
from calibre.models.network import Problem, build_classifier, build_encoder, is_own_code
from calibre.models.tensorfile import sha256_of
from calibre.sections import NetworkSettings, WeightsSettings
from tests.models import theirs

RESNET18 = theirs.resnet_layout((2, 2, 2, 2), bottleneck=False)
CNN = NetworkSettings(encoder="cnn", width=8)


def problem(network, size=32, channels=3, seed=0):
    return Problem(size, channels, 10, network, seed)


def saved(folder, tensors):
    st.save_file(tensors, folder / "start.safetensors")
    return folder / "start.safetensors"


def from_file(file, network=CNN):
    weights = WeightsSettings(name=str(file), sha256=sha256_of(file))
    return network.model_copy(update={"weights": weights})


def cnn_tensors(seed=5):
    return build_encoder(problem(CNN, seed=seed)).state_dict()


def same(encoder, tensors):
    state = encoder.state_dict()
    return state.keys() == tensors.keys() and all(torch.equal(state[n], tensors[n]) for n in state)


def refused(network, match, **other):
    with pytest.raises(UserError, match=match) as caught:
        build_encoder(problem(network, **other))
    return str(caught.value)


@pytest.mark.parametrize("place", ["", "encoder.", "network.encoder.encoders.0."])
def test_an_encoder_of_ours_starts_where_the_file_is(tmp_path, place):
    tensors = cnn_tensors()
    beside = {"head.weight": torch.ones(2, 32), "projector.0.weight": torch.ones(2)}
    file = saved(tmp_path, {place + n: t for n, t in tensors.items()} | (beside if place else {}))
    for seed in (0, 1):
        encoder = build_encoder(problem(from_file(file), seed=seed))
        assert same(encoder, tensors)
    assert all(parameter.requires_grad for parameter in encoder.parameters())
    head = build_classifier(problem(from_file(file), seed=1)).head
    assert torch.equal(head.weight, build_classifier(problem(CNN, seed=1)).head.weight)


def test_the_encoder_is_a_copy_of_its_own(tmp_path):
    """It does not change with its file, nor its file with it."""
    tensors = cnn_tensors()
    file = saved(tmp_path, tensors)
    content = file.read_bytes()
    encoder = build_encoder(problem(from_file(file)))
    with open(file, "r+b") as opened:
        opened.write(bytes(len(content)))
    assert same(encoder, tensors)
    file.write_bytes(content)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.zero_()
    assert file.read_bytes() == content


def test_a_mismatch_is_said_by_tensor_with_what_would_work(tmp_path):
    file = saved(tmp_path, theirs.values(RESNET18))
    narrow = from_file(file, NetworkSettings(encoder="resnet18", width=32))
    said = refused(
        narrow, r"start.safetensors does not fit the network \(encoder resnet18, width 32"
    )
    assert "tensor 'conv1.weight' is [64, 3, 7, 7] there, [32, 3, 3, 3] here" in said
    assert said.endswith("and 97 more; what would work: network.width=64 network.stem=imagenet")
    deep = from_file(file, NetworkSettings(encoder="resnet34", width=64, stem="imagenet"))
    said = refused(deep, "does not fit")
    assert "tensor 'stages.0.2.conv1.weight' is missing there, [64, 64, 3, 3] here" in said
    assert said.endswith("what would work: network.encoder=resnet18")
    other = refused(from_file(file, CNN), "none of its tensors, such as 'bn1.bias', is one of them")
    assert other.endswith(
        "what would work: network.encoder=resnet18 network.width=64 network.stem=imagenet"
    )


def test_a_tensor_without_a_place_is_named(tmp_path):
    file = saved(tmp_path, theirs.values(RESNET18 | {"layer1.0.se.fc1.weight": (4, 64, 1, 1)}))
    network = NetworkSettings(encoder="resnet18", width=64, stem="imagenet")
    said = refused(from_file(file, network), "'layer1.0.se.fc1.weight' is .* has no place here")
    assert said.endswith("no encoder of Calibre's is built so")


def test_a_run_that_shared_no_encoder_has_none_to_give(tmp_path):
    refused(from_file(saved(tmp_path, {})), "it has no tensors: the run's method shares no encoder")


def test_colour_is_not_made_of_gray(tmp_path):
    gray = build_encoder(problem(CNN, channels=1)).state_dict()
    refused(from_file(saved(tmp_path, gray)), r"'layers.0.weight' is \[8, 1, 3, 3\] there, \[8, 3")


def test_counters_may_be_missing_and_numbers_half_as_long(tmp_path):
    tensors = cnn_tensors()
    half = {n: t.half() for n, t in tensors.items() if not n.endswith("tracked")}
    state = build_encoder(problem(from_file(saved(tmp_path, half)))).state_dict()
    for name, tensor in tensors.items():
        assert state[name].dtype == tensor.dtype
        assert torch.equal(state[name], half[name].float() if name in half else torch.tensor(0))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_no_numbers_are_refused(tmp_path, value):
    tensors = cnn_tensors()
    tensors["layers.4.weight"][0, 0, 0, 0] = value
    refused(from_file(saved(tmp_path, tensors)), "'layers.4.weight' holds NaN or infinity")


def test_whole_numbers_are_no_weights(tmp_path):
    tensors = {name: tensor.long() for name, tensor in cnn_tensors().items()}
    refused(
        from_file(saved(tmp_path, tensors)), r"'layers.*' has torch.int64 there and torch.float"
    )


def test_another_content_under_the_same_name_is_refused(tmp_path):
    network = from_file(saved(tmp_path, cnn_tensors(seed=5)))
    saved(tmp_path, cnn_tensors(seed=6))
    refused(network, r"is not what the experiment started from: its SHA-256 begins with \w{8}, not")
    unknown = network.model_copy(update={"weights": WeightsSettings(name=network.weights.name)})
    refused(unknown, "network.weights has no sha256")


GIANT = """
import resource, sys
from calibre.experiment import read
from calibre.models.network import Problem, build_encoder
resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))
network = read(None, ["network.weights=" + sys.argv[1]]).network
assert (network.encoder, network.width) == ("resnet18", 4096)
try:
    build_encoder(Problem(32, 3, 10, network, 0))
except ValueError as error:
    print(error)
"""


def test_a_file_that_promises_a_giant_costs_no_memory(tmp_path):
    """Its first layer is that of a ResNet-18 of 45 billion parameters, which is in no memory."""
    small = {n: torch.ones(1) for n in RESNET18 if n.startswith("layer") and "weight" in n}
    file = saved(tmp_path, {"conv1.weight": torch.zeros(4096, 3, 3, 3)} | small)
    ran = subprocess.run([sys.executable, "-c", GIANT, file], capture_output=True, text=True)
    assert "tensor 'bn1.weight' is missing there, [4096] here" in ran.stdout


def test_no_file_is_needed_for_an_encoder_whose_tensors_are_at_hand(tmp_path):
    network = from_file(saved(tmp_path, cnn_tensors()))
    (tmp_path / "start.safetensors").unlink()
    refused(network, "there is no such file or folder")
    bare = problem(network, seed=3).without_weights()
    assert same(build_encoder(bare), build_encoder(problem(CNN, seed=3)).state_dict())


def test_an_encoder_of_ones_own_starts_from_its_own_names(tmp_path):
    """With or without the name of the module that Calibre wraps it in."""
    own = NetworkSettings(encoder=f"{__name__}:flat_layer")
    assert is_own_code(own.encoder)
    tensors = {"1.weight": torch.randn(4, 3072), "1.bias": torch.randn(4)}
    for start in (tensors, {f"encoder.network.{n}": t for n, t in tensors.items()}):
        encoder = build_encoder(problem(from_file(saved(tmp_path, start), own)))
        assert same(encoder.network, tensors)


def flat_layer(channels, width, stem):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 4))


def test_a_function_that_asks_for_the_image_size_is_told():
    encoder = build_encoder(problem(NetworkSettings(encoder=f"{__name__}:sized"), size=20))
    assert encoder.features == 20


def sized(channels, width, stem, size):
    module = torch.nn.Flatten()
    module.features = size
    return module


def test_what_is_read_from_a_file_is_filled_in_by_name_alone(tmp_path):
    file = saved(tmp_path, cnn_tensors())
    network = read(None, [f"network.weights={file}"]).network
    assert (network.encoder, network.width) == ("cnn", 8)
    assert network == read(None, network={"weights": file}).network
    assert same(build_encoder(problem(network)), cnn_tensors())
