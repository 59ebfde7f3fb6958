import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch as st
import torch

from calibre.data.sources import load as load_pool
from calibre.engine import rounds
from calibre.errors import UserError
from calibre.experiment import read
from calibre.finished import run
from calibre.finished.run import FinishedRun
from calibre.methods.apfl import APFL, Mixture
from calibre.models.network import Problem, build_classifier
from calibre.personal import finetuned, published
from calibre.personal.bundle import load
from calibre.personal.card_text import markdown
from calibre.personal.model import as_classifier
from calibre.personal.predictor import SideBySide
from calibre.registry import METHODS
from calibre.run_folder import RunFolder
from calibre.sections import NetworkSettings
from calibre.tensors import take, to_file
from tests.conftest import TINY

QUICK = ("training.rounds=1", "personal.epochs=4", "federation.labels=4")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of Calibre on digits; tests that change it copy it."""
    folder = tmp_path_factory.mktemp("run") / "r"
    small = ("method.objective.hidden=8", "method.objective.projection=4")
    floors = ('personal.floors=["untrained"]', "network.width=8", *QUICK)
    rounds.run(read(None, [*TINY, *small, *floors]), folder)
    return folder


# local-convergent differs from local in how long it trains, and it trains long
@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"local-convergent"}))
def test_every_methods_bundle_answers_as_its_run_scored(tiny, tmp_path, name):
    """Trained and novel clients: the share right on the client's test images is clients.csv's."""
    experiment = _experiment(tiny, name)
    rounds.run(experiment, tmp_path / "r")
    delivery = FinishedRun(tmp_path / "r")
    pool = load_pool(experiment.data)
    for client in (0, 6):
        delivery.bundle(client).save(tmp_path / "b")
        model = load(tmp_path / "b")
        held = delivery.federation.client(client)
        answers = model.answers(pool.images[held.test])[0].argmax(1)
        right = int((answers == pool.labels[held.test]).sum())
        row = delivery.results[client]
        assert right == round(row.accuracy * len(held.test))
        assert model.card.accuracy.correct == right
        assert [held.labelled for held in model.card.classes] == np.bincount(
            pool.labels[held.labelled], minlength=10
        ).tolist()
        assert model.card.novel == (client == 6)


def _experiment(tiny, name):
    small = ["method.objective.hidden=8", "method.objective.projection=4"]
    return tiny(f"method.name={name}", *QUICK, *(small if name in ("fedema", "fedu") else []))


TWO = ("method.labels.weight=1", "method.labels.second=2")


@pytest.mark.parametrize("how", ["solved", "paper", "tuned"])
def test_a_model_on_two_networks_answers_as_its_run_scored(tiny, tmp_path, how, monkeypatch):
    head = "personal.head=paper" if how == "paper" else "personal.head=solved"
    tuned = f"personal.finetune_encoder={str(how == 'tuned').lower()}"
    monkeypatch.setattr(finetuned, "_less_surprised", lambda one, other: True)
    experiment = tiny("method.name=calibre", *TWO, head, tuned, *QUICK)
    rounds.run(experiment, tmp_path / "r")
    delivery = FinishedRun(tmp_path / "r")
    models = []
    for client in (0, 6):
        delivery.bundle(client).save(tmp_path / str(client))
        models.append(load(tmp_path / str(client)))
        row = delivery.results[client]
        assert models[-1].card.accuracy.correct == round(row.accuracy * row.test_samples)
    kinds = [part.kind for part in models[0].card.parts]
    assert kinds.count("encoder") == (1 if how == "paper" else 2)
    assert ("2 encoders" in markdown(models[0].card)) == (how != "paper")
    if how != "paper":
        second = "network.encoder.encoders.1.layers.0.weight"
        own, other = (model.predictor.state_dict()[second] for model in models)
        common = delivery.model["second.encoder.layers.0.weight"]
        assert torch.equal(own, common) == torch.equal(other, common) == (how == "solved")


def test_a_fine_tuned_encoder_travels_with_its_bundle(tiny, tmp_path):
    rounds.run(tiny("personal.finetune_encoder=true", *QUICK), tmp_path / "r")
    delivery = FinishedRun(tmp_path / "r")
    one, other = [delivery.bundle(client) for client in (0, 1)]
    first = "network.encoder.encoders.0.layers.0.weight"
    assert not torch.equal(one.predictor.state_dict()[first], other.predictor.state_dict()[first])


def test_what_was_measured_for_a_bundle_is_not_measured_again(tiny, tmp_path, monkeypatch):
    """A fine-tuned run has measured it; one by the paper's habit does so for its first bundle."""
    few = ("federation.clients=2", "federation.novel=1", "training.clients_per_round=1")
    tuned = ("personal.finetune_encoder=true", *QUICK, *few, "personal.epochs=1")
    for head, module, first in (("solved", finetuned, True), ("paper", published, False)):
        folder = tmp_path / head
        rounds.run(tiny(*tuned, f"personal.head={head}"), folder)
        before = None if first else FinishedRun(folder).bundle(0).card
        with monkeypatch.context() as idle:  # nothing trains any more
            idle.setattr(module, "finetune", None)
            idle.setattr(published.AsPublished, "train", None)
            after = FinishedRun(folder).bundle(0).card
        assert before in (None, after)
        assert after.outside.held_out > 0


@pytest.mark.parametrize(
    ("changes", "how"),
    [
        ((), "drawn evenly by class"),
        (("federation.label_draw=random",), "drawn at random"),
        (("personal.labels=4", "personal.label_choice=typical"), "the most typical images"),
    ],
)
def test_the_card_says_how_labels_were_chosen(tiny, tmp_path, changes, how):
    rounds.run(tiny("training.rounds=1", *changes), tmp_path)
    card = FinishedRun(tmp_path).bundle(0).card
    assert card.chosen.startswith(how)
    assert f"images have a label: {how}" in markdown(card)


def test_a_mixture_is_one_head_on_two_encoders():
    problem = Problem(8, 1, 4, NetworkSettings(width=8), seed=3)
    network = Mixture(build_classifier(problem), alpha=0.3).eval()
    torch.nn.init.normal_(network.own.head.weight)
    torch.nn.init.normal_(network.own.encoder.layers[0].weight)
    encoders, head = as_classifier(APFL(), network, take(network))
    x = torch.randn(5, 1, 8, 8)
    both = SideBySide(encoders)(x)
    torch.testing.assert_close(both @ head.weight.T + head.bias, network(x).detach())


def test_the_card_tells_of_the_run(finished):
    delivery = FinishedRun(finished)
    card = delivery.bundle(5).card
    metrics = json.loads((finished / "metrics.json").read_text())
    for group in ("train", "novel"):
        assert card.fairness[group].items() <= metrics[group].items()
        assert card.fairness[group]["worst_tenth"] == metrics[group]["worst_tenth"]
    assert card.run["federation"] == metrics["federation"]
    assert card.floors.keys() == {"untrained"}
    assert card.settings["network"]["width"] == 8
    assert "root" not in card.settings["data"]  # a path of the machine that trained
    pool = load_pool(delivery.run.experiment.data)
    held = {i for i, kept in enumerate(card.classes) if kept.labelled}
    strange = sum(int(pool.labels[row]) not in held for row in pool.test)
    assert card.outside.foreign_images == min(strange, card.outside.foreign_images) > 0


def test_bundles_do_not_depend_on_each_other(finished):
    together = FinishedRun(finished)
    together.bundle(0)
    one, alone = together.bundle(3), FinishedRun(finished).bundle(3)
    assert one.card == alone.card
    for name, tensor in take(one.predictor).items():
        assert torch.equal(tensor, take(alone.predictor)[name])


def test_clients_are_found_by_number_and_name(finished):
    delivery = FinishedRun(finished)
    assert delivery.find([]) == list(range(7))
    assert delivery.find(["novel-5", "2", "2"]) == [5, 2]
    with pytest.raises(UserError, match=r"no client 'novel-9': did you mean 'novel-"):
        delivery.find(["novel-9"])


def test_a_network_met_by_all_labels_is_not_given_a_temperature(tiny, tmp_path):
    """FedProto's clients keep whole networks of their own: trained ones hold nothing out."""
    rounds.run(tiny("method.name=fedproto", "federation.labels=8", "training.rounds=2",
                    "training.clients_per_round=5"), tmp_path / "r")  # fmt: skip
    delivery = FinishedRun(tmp_path / "r")
    trained, novel = delivery.bundle(0).card, delivery.bundle(6).card
    assert trained.calibration.temperature == 1
    assert "met all of its labels" in trained.calibration.fitted
    assert "without it" in novel.calibration.fitted
    assert novel.calibration.images > 0


def test_a_supervised_encoder_is_said_to_have_met_the_labels(tiny, tmp_path):
    rounds.run(tiny("method.name=fedavg-ft", *QUICK), tmp_path / "r")
    delivery = FinishedRun(tmp_path / "r")
    assert "met these labels" in delivery.bundle(0).card.calibration.fitted
    assert "met these labels" not in delivery.bundle(6).card.calibration.fitted


def test_images_are_prepared_as_the_run_noted(finished, monkeypatch):
    """Nothing but the small file is read."""
    noted = json.loads((finished / "preprocessing.json").read_text())
    monkeypatch.setattr(run, "load", lambda settings: pytest.fail("the images were read"))
    found = FinishedRun(finished).preprocessing
    assert found.shape == (8, 8, 1)
    assert (list(found.mean), list(found.std)) == (noted["mean"], noted["std"])


def test_of_a_run_that_noted_nothing_the_images_tell(finished, copy):
    (copy / "preprocessing.json").unlink()
    assert FinishedRun(copy).preprocessing == FinishedRun(finished).preprocessing


@pytest.mark.parametrize("text", ["{", '{"height": 8}', "\x00"])
def test_a_damaged_note_is_not_made_up_for(copy, text):
    (copy / "preprocessing.json").write_text(text)
    with pytest.raises(UserError, match=r"preprocessing.json is missing or damaged.*resume"):
        FinishedRun(copy).preprocessing  # noqa: B018


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "copy")


def test_a_model_other_than_the_scored_one_is_refused(copy):
    file = copy / "clients" / "000003" / "personal.safetensors"
    tensors = st.load(file.read_bytes())
    tensors["head.weight"] = tensors["head.weight"].flip(0)
    tensors["head.bias"] = tensors["head.bias"].flip(0)
    file.write_bytes(to_file(tensors))
    with pytest.raises(UserError, match=r"client-3: the run counted \d+ of 12 test images"):
        FinishedRun(copy).bundle(3)


def test_tensors_that_are_no_encoder_and_head_are_refused(copy):
    file = copy / "clients" / "000003" / "personal.safetensors"
    file.write_bytes(to_file({**st.load(file.read_bytes()), "gate.weight": torch.zeros(2)}))
    with pytest.raises(UserError, match=r"cannot be bundled.*gate.weight"):
        FinishedRun(copy).bundle(3)


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("metrics.json", "is not finished"),
        (
            "clients/000003/personal.safetensors",
            "personal.safetensors is missing or damaged.*resume",
        ),
        ("checkpoints/round-0001.json", "lacks the checkpoint"),
        ("federation.safetensors", "there is no saved federation"),
    ],
    ids=["metrics", "personal", "checkpoint", "federation"],
)
def test_a_run_folder_that_lost_a_file_says_so(copy, lost, message):
    (copy / lost).unlink()
    with pytest.raises(UserError, match=message):
        FinishedRun(copy).bundle(3)


def test_a_flipped_bit_of_a_personal_model_is_found(copy):
    file = copy / "clients" / "000003" / "personal.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match=r"damaged \(its checksum does not match\)"):
        FinishedRun(copy).bundle(3)


def test_a_run_of_sites_has_no_bundles_to_make(copy):
    there = RunFolder(copy)
    there.write_experiment(read(there.read_experiment(), ["engine.runtime=flower"]))
    with pytest.raises(UserError, match="each site's bundle is in its own state folder"):
        FinishedRun(copy).bundle(3)


def test_other_images_than_the_runs_are_refused(copy):
    run = FinishedRun(copy)
    other = replace(run.federation, fingerprint="0" * 16)
    run.federation = other  # as if the images had been others when it was made
    with pytest.raises(UserError, match="have changed since the run"):
        run.bundle(3)
