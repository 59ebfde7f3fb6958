import json

import pytest
import safetensors.torch as st
import torch

from calibre.engine import rounds
from calibre.errors import UserError
from calibre.experiment import Experiment, read
from calibre.finished.run import FinishedRun
from calibre.models.network import Problem, build_encoder
from calibre.models.tensorfile import sha256_of
from calibre.report import runs
from calibre.sections import NetworkSettings
from tests.conftest import TINY
from tests.models import theirs
from tests.personal.made_bundle import NORMALIZATION, make_bundle

SMALL = ("method.objective.hidden=8", "method.objective.projection=4")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of a ResNet on images of 8 pixels, at whose size it has the small stem."""
    folder = tmp_path_factory.mktemp("run") / "r"
    changes = ["network.encoder=resnet8", "network.width=8", "training.rounds=1"]
    rounds.run(read(None, [*TINY, *SMALL, *changes]), folder)
    return folder


def saved(file, seed=0, **network):
    settings = NetworkSettings(**{"encoder": "cnn", "width": 4, **network})
    st.save_file(build_encoder(Problem(8, 1, 10, settings, seed)).state_dict(), file)
    return file


def started(place, *changes):
    return read(None, [f"network.weights={place}", *changes])


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_brings_its_network_its_size_and_its_normalisation(finished):
    experiment = started(finished)
    network = experiment.network
    assert (network.encoder, network.width, network.stem) == ("resnet8", 8, "cifar")
    assert experiment.data.size == 8
    noted = json.loads((finished / "preprocessing.json").read_text())
    assert list(network.normalization.mean) == noted["mean"]
    assert list(network.normalization.std) == noted["std"]
    held = st.load_file(finished / "model.safetensors")
    encoder = build_encoder(Problem(96, 1, 10, network, seed=3))  # "auto" would be the large stem
    assert same(
        {f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()},
        {name: tensor for name, tensor in held.items() if name.startswith("encoder.")},
    )


def test_what_the_user_set_stays(finished):
    normal = "network.normalization={mean=[0.5], std=[0.5]}"
    experiment = started(finished, "data.size=12", normal, "network.stem=imagenet")
    assert experiment.data.size == 12
    assert experiment.network.normalization.mean == (0.5,)
    assert experiment.network.stem == "imagenet"
    with pytest.raises(UserError, match=r"what would work: network.stem=cifar$"):
        build_encoder(Problem(12, 1, 10, experiment.network, seed=0))


def test_a_bundle_brings_the_same(tmp_path):
    bundle = make_bundle().save(tmp_path / "b")
    experiment = started(tmp_path / "b")
    network = experiment.network
    assert (network.encoder, network.width, experiment.data.size) == ("cnn", 8, 12)
    assert network.normalization.mean == NORMALIZATION.mean
    assert network.normalization.std == NORMALIZATION.std
    encoder = build_encoder(Problem(12, 3, 10, network, seed=3))
    assert same(encoder.state_dict(), bundle.predictor.network.encoder.encoders[0].state_dict())


def test_a_bundle_of_a_run_brings_its_encoder_and_leaves_patches_and_pixels(tiny, tmp_path):
    rounds.run(tiny("personal.head=solved", "training.rounds=1"), tmp_path / "r")
    bundle = FinishedRun(tmp_path / "r").bundle(0)
    bundle.save(tmp_path / "b")
    assert [part.kind for part in bundle.card.parts] == ["encoder", "patches", "components"]
    network = started(tmp_path / "b").network
    encoder = build_encoder(Problem(8, 1, 10, network, seed=3))
    assert same(encoder.state_dict(), bundle.predictor.network.encoder.encoders[0].state_dict())


def test_a_bundle_that_was_changed_or_has_two_encoders_is_refused(tmp_path):
    make_bundle().save(tmp_path / "b")
    saved(tmp_path / "b" / "model.safetensors")
    with pytest.raises(UserError, match=r"model.safetensors is damaged or was changed"):
        started(tmp_path / "b")
    make_bundle(parts=2).save(tmp_path / "two")
    with pytest.raises(UserError, match="stands on two encoders: start from the folder of the run"):
        started(tmp_path / "two")


CONFIG = {
    "architecture": "resnet18",
    "num_classes": 1000,
    "pretrained_cfg": {
        "input_size": [3, 288, 288], "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.1],
        "crop_pct": 0.95, "first_conv": "conv1",
    },
}  # fmt: skip


def test_a_model_as_timm_publishes_it_brings_its_preprocessing(tmp_path):
    layout = theirs.resnet_layout((2, 2, 2, 2), bottleneck=False)
    st.save_file(theirs.values(layout), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    experiment = started(tmp_path)
    assert experiment.network.encoder == "resnet18"
    assert experiment.data.size == 288
    assert experiment.network.normalization.mean == (0.5, 0.4, 0.3)
    assert experiment.network.normalization.std == (0.2, 0.2, 0.1)


def test_a_model_of_timm_that_is_not_ours_is_timms(tmp_path):
    st.save_file({"stem.0.weight": torch.ones(4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"architecture": "convnext_tiny"}))
    assert started(tmp_path).network.encoder == "timm:convnext_tiny"
    (tmp_path / "config.json").write_text('{"pretrained_cfg": {"input_size": 3}}')
    with pytest.raises(UserError, match=r"tensors such as stem.0.weight\): say which it is"):
        started(tmp_path)
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(UserError, match=r"config.json cannot be read"):
        started(tmp_path)


def test_the_content_of_the_file_is_part_of_the_experiment_and_its_place_is_not(tmp_path):
    here = started(saved(tmp_path / "a.safetensors", seed=1))
    elsewhere = started(saved(tmp_path / "b.safetensors", seed=1))
    assert here.hash() == elsewhere.hash()
    assert here.network.weights.sha256 == sha256_of(tmp_path / "a.safetensors")
    other = started(saved(tmp_path / "a.safetensors", seed=2))
    assert other.hash() != here.hash()
    assert here.hash() != read(None, ["network.width=4"]).hash()


def test_an_experiment_once_read_needs_no_file_to_be_read_again(tmp_path):
    file = saved(tmp_path / "a.safetensors")
    experiment = started(file)
    file.unlink()
    (tmp_path / "experiment.toml").write_text(experiment.to_toml())
    assert read(tmp_path / "experiment.toml") == experiment
    assert read(experiment, ["training.rounds=7"]).network == experiment.network


def test_another_file_takes_the_place_of_the_first(tmp_path):
    first = started(saved(tmp_path / "a.safetensors", seed=1))
    again = read(first, [f"network.weights={saved(tmp_path / 'b.safetensors', seed=2)}"])
    assert again.network.weights.sha256 == sha256_of(tmp_path / "b.safetensors")
    as_table = read(first, network={"weights": tmp_path / "b.safetensors"})
    assert as_table == again
    given = Experiment(network=NetworkSettings(weights=tmp_path / "b.safetensors"))
    assert given.network == again.network


@pytest.mark.parametrize("weights", ["7", "{sha256='00'}", "[]"])
def test_nonsense_is_said(weights):
    with pytest.raises(UserError, match=r"network\.weights"):
        read(None, [f"network.weights={weights}"])


def test_a_frozen_encoder_trains_for_no_round():
    frozen = read(None, ["network.frozen=true"])
    assert frozen.training.rounds == 0
    assert not frozen.personal.finetune_encoder
    with pytest.raises(UserError, match=r"network.frozen and training.rounds = 3: .*rounds = 0"):
        read(None, ["network.frozen=true", "training.rounds=3"])
    with pytest.raises(UserError, match=r"network.frozen and personal.finetune_encoder"):
        read(None, ["network.frozen=true", "personal.finetune_encoder=true"])


def test_heads_on_a_frozen_encoder_are_what_the_encoder_alone_gives(tmp_path):
    """The floor without training stands on the same tensors: file, model and floor agree."""
    changes = [change for change in TINY if not change.startswith(("training.rounds", "network"))]
    start = saved(tmp_path / "a.safetensors", seed=9, width=8)
    frozen = ["network.frozen=true", "personal.floors=['untrained']"]
    experiment = started(start, *changes, *SMALL, *frozen, "personal.head=solved")
    rounds.run(experiment, tmp_path / "run")
    run = runs.read(tmp_path / "run")
    assert run.metrics.rounds == 0
    assert [client.accuracy for client in run.clients] == [
        client.floors["untrained"] for client in run.clients
    ]
    model = st.load_file(tmp_path / "run" / "model.safetensors")
    held = {n: t for n, t in model.items() if n.startswith("encoder.")}
    assert same(held, {f"encoder.{n}": t for n, t in st.load_file(start).items()})
    trained = rounds.run(started(start, *changes, *SMALL, "training.rounds=1"), tmp_path / "on")
    assert trained.rounds == 1
    assert not same(model, st.load_file(tmp_path / "on" / "model.safetensors"))
