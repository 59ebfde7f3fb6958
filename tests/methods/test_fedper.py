from tests.methods.helpers import equal, host, parts, stopped_and_whole

FEDPER = "method.name=calibre.methods.fedper:FedPer"


def test_the_encoder_travels_and_the_head_stays(tiny, tmp_path):
    home = host(tiny(FEDPER), tmp_path)
    state = home.initial_state()
    update = home.update(state, 0)
    assert update.shared.keys() == {"model"}
    assert update.shared["model"].keys() == state.model.keys()
    assert parts(update.shared["model"]) == {"encoder"}
    assert update.personal.keys() == {"head.weight", "head.bias"}
    assert update.samples == len(home.federation.client(0).labelled)


def test_a_federation_of_equal_clients_is_fedavg(tiny, tmp_path):
    """With one client, which all equal ones are like, the head goes on as if it had travelled."""
    fedavg = host(tiny("method.name=fedavg"), tmp_path / "a")
    fedper = host(tiny(FEDPER), tmp_path / "b")
    one, other = fedavg.initial_state(), fedper.initial_state()
    for _ in range(2):
        whole, split = fedavg.update(one, 0), fedper.update(other, 0)
        assert equal(whole.shared["model"], {**split.shared["model"], **split.personal})
        one = fedavg.load("method").method.aggregate(one, [whole])
        other = fedper.load("method").method.aggregate(other, [split])


def test_each_client_tunes_its_own_head_and_a_new_one_the_common_head(tiny, tmp_path):
    home = host(tiny(FEDPER, "personal.epochs=0"), tmp_path)
    method, state = home.load("method").method, home.initial_state()
    update = home.update(state, 0)
    state = method.aggregate(state, [update])
    trained, idle, novel = home.personalize(state, "method", [0, 1, 6])
    assert equal(trained.tensors, update.personal)
    first = {name: home.load("method").initial[name] for name in update.personal}
    assert not equal(first, update.personal)
    assert equal(idle.tensors, first)
    assert equal(novel.tensors, first)


def test_an_update_is_a_function_of_its_inputs(tiny, tmp_path):
    home = host(tiny(FEDPER), tmp_path)
    state = home.initial_state()
    first = home.update(state, 0)
    home.update(state, 3)  # another client uses the same network in between
    again = home.update(state, 0)
    assert equal(first.shared["model"], again.shared["model"])
    assert equal(first.personal, again.personal)


def test_a_stopped_run_goes_on_with_the_same_bits(tiny, tmp_path):
    stopped, whole = stopped_and_whole(tiny(FEDPER), tmp_path)
    assert stopped == whole
    for novel in (5, 6):  # a novel client takes no part in any round, and so keeps nothing
        kept = (tmp_path / "whole" / "clients" / f"{novel:06d}").iterdir()
        assert [file.name for file in kept] == ["personal.safetensors"]
