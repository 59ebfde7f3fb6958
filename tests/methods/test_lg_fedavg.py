import torch

from calibre.local.features import encode
from calibre.methods.supervised import SUPERVISED_SGD, train_classifier
from calibre.rng import stream
from calibre.tensors import check_like, take
from tests.methods.helpers import close, equal, host, parts, stopped_and_whole

LG = "method.name=calibre.methods.lg_fedavg:LGFedAvg"
WARM = (LG, "method.warmup=1")


def part_of(tensors, part):
    return {name: tensor for name, tensor in tensors.items() if parts([name]) == {part}}


def after_a_round(home, clients=(0, 1)):
    state = home.initial_state()
    updates = [home.update(state, client) for client in clients]
    return home.load("method").method.aggregate(state, updates), updates


def test_the_head_travels_and_the_encoder_stays(tiny, tmp_path):
    home = host(tiny(LG), tmp_path)
    state, (one, other) = after_a_round(home)
    assert one.shared.keys() == {"model"}
    assert one.shared["model"].keys() == state.model.keys() == {"head.weight", "head.bias"}
    assert one.personal.keys() == part_of(home.load("method").initial, "encoder").keys()
    assert any("running_mean" in name for name in one.personal)  # batch norm is the client's own
    assert not close(one.personal, other.personal)


def test_encoder_and_head_are_trained_together_from_own_encoder_and_global_head(tiny, tmp_path):
    experiment = tiny(LG)
    home = host(experiment, tmp_path / "a")
    state, (first, _) = after_a_round(home)
    fedavg = host(tiny("method.name=fedavg"), tmp_path / "b")
    joint = fedavg.update(fedavg.initial_state(), 0).shared["model"]
    assert equal({**first.personal, **first.shared["model"]}, joint)

    second = home.update(state, 0)
    site = fedavg.site("method", state, 0)
    site.load({**first.personal, **state.model})
    train_classifier(site, experiment.method.sgd, experiment.training.epochs)
    trained = take(site.network, ["encoder", "head"])
    assert equal({**second.personal, **second.shared["model"]}, trained)


def test_who_has_no_encoder_trains_one_by_itself_as_local_training_does(tiny, tmp_path):
    """From the common start, before any round: the encoder that local training alone makes."""
    sgd = [f"method.sgd.{key}={value}" for key, value in SUPERVISED_SGD.model_dump().items()]
    alone = host(tiny("method.name=local", *sgd, "personal.epochs=3"), tmp_path / "a")
    home = host(tiny(LG, "personal.epochs=3"), tmp_path / "b")
    for client in (0, 6):
        (local,) = alone.personalize(alone.initial_state(), "method", [client])
        prepared = home.prepared("method", home.initial_state(), client)
        assert equal(prepared.kept, part_of(local.tensors, "encoder"))
        assert equal(take(prepared.site.network, ["encoder"]), prepared.kept)


def test_a_client_tunes_the_global_head_on_its_own_frozen_encoder(tiny, tmp_path):
    """By hand: plain SGD of lr .05 in batches of 32 on cached features, from the global head."""
    home = host(tiny(LG, "personal.epochs=2"), tmp_path)
    state, (update, _) = after_a_round(home)
    (model,) = home.personalize(state, "method", [0])
    assert equal(part_of(model.tensors, "encoder"), update.personal)
    head = head_by_hand(home.site("method", state, 0), state)
    assert close(model.tensors, {**update.personal, **head})


def head_by_hand(site, state):
    features = encode(site.network.encoder, site.images[: site.labelled], site.normalization)
    head = torch.nn.Linear(features.shape[1], 10)
    head.load_state_dict({name.removeprefix("head."): t for name, t in state.model.items()})
    optimizer = torch.optim.SGD(head.parameters(), 0.05)
    for epoch in range(2):
        order = torch.randperm(
            site.labelled, generator=stream(site.seed, "head-batches", site.client, epoch)
        )
        for rows in torch.tensor_split(order, -(-site.labelled // 32)):
            optimizer.zero_grad()
            logits = head(features[rows])
            torch.nn.functional.cross_entropy(logits, site.labels[rows]).backward()
            optimizer.step()
    return {f"head.{name}": tensor for name, tensor in head.state_dict().items()}


def test_who_trained_an_encoder_only_now_then_gets_a_head_like_everybody(tiny, tmp_path):
    home = host(tiny(LG, "personal.epochs=2"), tmp_path)
    state, _ = after_a_round(home)
    for client in (3, 6):  # one that was never drawn, and a novel one
        prepared = home.prepared("method", state, client)
        head = head_by_hand(prepared.site, state)  # from the global one, not from the newcomer's
        (model,) = home.personalize(state, "method", [client])
        assert equal(part_of(model.tensors, "encoder"), prepared.kept)
        assert close(model.tensors, {**prepared.kept, **head})


def test_an_encoder_is_trained_jointly_with_the_global_head_on_a_schedule_of_its_own(
    tiny, tmp_path
):
    untouched = host(tiny(LG, "personal.epochs=0"), tmp_path / "a")
    state, (update, _) = after_a_round(untouched)
    assert equal(untouched.prepared("method", state, 0).kept, update.personal)
    start = part_of(untouched.load("method").initial, "encoder")
    assert equal(untouched.prepared("method", state, 6).kept, start)  # before its first epoch
    cosine = ("personal.epochs=1", "method.sgd.schedule=cosine", "training.rounds=1")
    later = host(tiny(LG, *cosine), tmp_path / "b")  # a schedule that ended must not stop it
    for name, tensor in later.prepared("method", state, 6).kept.items():
        assert not torch.equal(tensor, start[name]), name


def test_warm_up_is_fedavg_and_then_only_heads_travel(tiny, tmp_path):
    fedavg = host(tiny("method.name=fedavg"), tmp_path / "a")
    home = host(tiny(*WARM), tmp_path / "b")
    method = home.load("method").method
    expected, _ = after_a_round(fedavg)
    check_like(home.update(home.initial_state(), 0).shared["model"], expected.model)
    warm, updates = after_a_round(home)
    assert equal(warm.model, expected.model)
    assert all(update.personal is None for update in updates)

    later = home.update(warm, 0)
    assert equal(
        {**later.personal, **later.shared["model"]}, fedavg.update(expected, 0).shared["model"]
    )
    assert later.shared["model"].keys() == {"head.weight", "head.bias"}
    check_like(later.shared["model"], method.expected_update(warm)["model"])
    state = method.aggregate(warm, [later])
    assert state.round == 2
    assert equal(part_of(state.model, "encoder"), part_of(warm.model, "encoder"))
    assert equal(part_of(state.model, "head"), later.shared["model"])


def test_after_a_warm_up_a_new_client_uses_its_encoder(tiny, tmp_path):
    home = host(tiny(*WARM), tmp_path)
    state, _ = after_a_round(home)
    (model,) = home.personalize(state, "method", [6])
    assert model.tensors.keys() == {"head.weight", "head.bias"}
    assert equal(take(home.load("method").network, ["encoder"]), part_of(state.model, "encoder"))


def test_an_update_is_a_function_of_its_inputs(tiny, tmp_path):
    home = host(tiny(LG), tmp_path)
    state = home.initial_state()
    first = home.update(state, 0)
    home.update(state, 3)
    again = home.update(state, 0)
    assert equal(first.shared["model"], again.shared["model"])
    assert equal(first.personal, again.personal)


def test_a_stopped_run_goes_on_with_the_same_bits(tiny, tmp_path):
    stopped, whole = stopped_and_whole(tiny(LG, "personal.epochs=2"), tmp_path / "cold")
    assert stopped == whole
    stopped, whole = stopped_and_whole(tiny(*WARM), tmp_path / "warm")
    assert stopped == whole
