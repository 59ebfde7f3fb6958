import ast
from pathlib import Path

import pytest
import torch

import calibre
from calibre.experiment import method_named
from calibre.local.features import encode
from calibre.personal.finetuned import FineTuned
from calibre.personal.frozen_head import FrozenHead
from calibre.personal.own import Own
from calibre.personal.published import AsPublished
from calibre.personal.received import AsReceived
from calibre.personal.solved_head import SolvedHead
from calibre.personal.ways import way_of
from calibre.sections import PersonalSettings
from calibre.tensors import take
from tests.methods.helpers import equal, host


def test_the_encoder_keeps_every_bit(tiny, tmp_path):
    home = host(tiny(), tmp_path)
    state = home.initial_state()
    trained = home.load("method").method.aggregate(state, [home.update(state, 0)])
    home.personalize(trained, "method", [0, 1, 5, 6])
    assert equal(take(home.load("method").network, ["encoder", "projector"]), trained.model)


def test_a_group_gives_what_clients_alone_give(tiny, tmp_path):
    home = host(tiny(), tmp_path)
    state = home.initial_state()
    together = home.personalize(state, "method", [0, 3, 6])
    for model in together:
        (alone,) = home.personalize(state, "method", [model.client])
        assert alone.accuracy == model.accuracy
        for name in ("head.weight", "head.bias"):
            assert torch.allclose(alone.tensors[name], model.tensors[name], atol=1e-5)


def test_accuracy_is_that_of_the_head_on_the_clients_own_test_images(tiny, tmp_path):
    home = host(tiny(), tmp_path)
    state = home.initial_state()
    (model,) = home.personalize(state, "method", [6])
    held = home.federation.client(6)
    images = torch.from_numpy(home.pool.images[held.test])
    z = encode(home.load("method").network.encoder, images, home.normalization)
    right = 0
    for features, label in zip(z, home.pool.labels[held.test], strict=True):
        scores = model.tensors["head.weight"] @ features + model.tensors["head.bias"]
        right += int(scores.argmax()) == label
    assert model.accuracy == right / len(held.test)


def test_untrained_and_local_start_from_the_same_encoder_as_the_method(tiny, tmp_path):
    home = host(tiny(), tmp_path)
    encoders = [
        take(home.load(role).network, ["encoder"]) for role in ("method", "untrained", "local")
    ]
    assert equal(encoders[0], encoders[1])
    assert equal(encoders[0], encoders[2])


def test_local_only_trains_everything_and_depends_on_nobody_else(tiny, tmp_path):
    home = host(tiny(), tmp_path)
    state = home.initial_state("local")
    assert state.groups == {"model": {}}
    (model,) = home.personalize(state, "local", [2])
    assert {name.split(".")[0] for name in model.tensors} == {"encoder", "head"}
    assert not equal(
        {k: v for k, v in model.tensors.items() if k in home.load("local").initial},
        home.load("local").initial,
    )
    home.personalize(state, "local", [0])
    (again,) = home.personalize(state, "local", [2])
    assert equal(again.tensors, model.tensors)


def test_finetuning_the_encoder_is_possible_but_never_the_default(tiny, tmp_path):
    home = host(tiny("personal.finetune_encoder=true"), tmp_path)
    state = home.initial_state()
    (model,) = home.personalize(state, "method", [0])
    assert not torch.equal(
        model.tensors["encoder.layers.0.weight"], state.model["encoder.layers.0.weight"]
    )


def test_personal_models_are_on_disk(tiny, tmp_path):
    from safetensors.torch import load_file

    home = host(tiny(), tmp_path)
    (model,) = home.personalize(home.initial_state(), "method", [4])
    saved = load_file(tmp_path / "clients" / "000004" / "personal.safetensors")
    assert equal(saved, model.tensors)


def test_a_single_labelled_image_is_enough(tiny, tmp_path):
    """Batch norm has no statistics of one image; local training must not fall over it."""
    home = host(tiny("federation.scheme=quantity", "federation.classes=1", "federation.labels=1"),
                tmp_path)  # fmt: skip
    assert len(home.federation.client(0).labelled) == 1
    for role in ("method", "local"):
        (model,) = home.personalize(home.initial_state(role), role, [0])
        assert 0 <= model.accuracy <= 1


@pytest.mark.parametrize(
    ("name", "settings", "way"),
    [
        ("fedavg", {}, AsReceived),
        ("fedavg", {"finetune_encoder": True}, AsReceived),
        ("fedavg-ft", {}, SolvedHead),
        ("fedavg-ft", {"head": "paper"}, FrozenHead),
        ("calibre", {"finetune_encoder": True}, FineTuned),
        ("calibre", {"head": "paper", "finetune_encoder": True}, AsPublished),
        ("ditto", {}, Own),
        ("apfl", {"head": "paper", "finetune_encoder": True}, Own),
        ("lg-fedavg", {}, SolvedHead),
        ("untrained", {}, SolvedHead),
    ],
)
def test_the_way_follows_from_the_method_and_the_settings(name, settings, way):
    assert type(way_of(method_named(name), PersonalSettings(**settings))) is way


def test_nothing_else_asks_a_method_for_its_way():
    root = Path(calibre.__file__).parent
    asking = {
        file.relative_to(root).as_posix()
        for file in root.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "way"
    }
    assert asking == {"personal/ways.py"}


def test_an_encoder_whose_fine_tuning_diverges_stays_as_it_is(tiny, tmp_path):
    """It is no better than a solved head, and no reason for a run to end."""
    plain = host(tiny("personal.head=solved"), tmp_path)
    tuned = "personal.finetune_encoder=true", "personal.lr=1e9", "personal.epochs=5"
    fine = host(tiny("personal.head=solved", *tuned), tmp_path)
    (model,) = fine.personalize(fine.initial_state(), "method", [0])
    (solved,) = plain.personalize(plain.initial_state(), "method", [0])
    assert model.accuracy == solved.accuracy
    assert equal(model.tensors, solved.tensors)
