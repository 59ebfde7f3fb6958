"""The contract itself: what hooks find, what clients may send, what the server weighs."""

import math

import pytest
import torch

from calibre.methods.fedper import FedPer
from calibre.methods.method import Number, ServerState, Update
from calibre.tensors import take
from tests.methods.helpers import equal, host

SEEN = {}  # client -> what each hook found


class Watching(FedPer):
    """Keeps its head, as FedPer does; every hook notes what the network holds before it acts."""

    @property
    def way(self):
        return "own"

    def local_update(self, server, personal, site):
        SEEN.setdefault(site.client, {})["local_update"] = take(site.network), personal
        return super().local_update(server, personal, site)

    def newcomer(self, server, site):
        SEEN.setdefault(site.client, {})["newcomer"] = take(site.network)
        return {name: torch.ones_like(t) for name, t in take(site.network, self.keeps).items()}

    def personalize(self, server, personal, site):
        SEEN.setdefault(site.client, {})["personalize"] = take(site.network), personal
        return site.network


def test_before_every_hook_the_network_is_loaded(tiny, tmp_path):
    SEEN.clear()
    home = host(tiny("method.name=tests.methods.test_method:Watching"), tmp_path)
    start, initial = home.initial_state(), home.load("method").initial
    update = home.update(start, 0)
    assert equal(SEEN[0]["local_update"][0], initial)
    assert SEEN[0]["local_update"][1] is None

    state = home.load("method").method.aggregate(start, [update])
    loaded = {**initial, **state.model, **update.personal}
    home.update(state, 3)  # another client uses the same network in between
    assert equal(SEEN[3]["local_update"][0], {**initial, **state.model})
    home.update(state, 0)
    assert equal(SEEN[0]["local_update"][0], loaded)
    assert equal(SEEN[0]["local_update"][1], update.personal)

    home.personalize(state, "method", [6, 0])
    assert "newcomer" not in SEEN[0]  # it has what it kept
    assert equal(SEEN[0]["personalize"][0], loaded)
    assert equal(SEEN[0]["personalize"][1], update.personal)
    assert equal(SEEN[6]["newcomer"], {**initial, **state.model})
    found, kept = SEEN[6]["personalize"]
    assert kept.keys() == {"head.weight", "head.bias"}
    assert all((tensor == 1).all() for tensor in kept.values())
    assert equal(found, {**initial, **state.model, **kept})


def test_a_state_is_a_value():
    first = ServerState(3, {"model": {"w": torch.ones(1)}, "other": {"m": torch.zeros(1)}}, 7)
    later = first.next(model={"w": torch.zeros(1)}, third={})
    assert (later.round, later.clients) == (4, 7)
    assert later.groups.keys() == {"model", "other", "third"}
    assert later.groups["other"] is first.groups["other"]
    assert (first.round, first.model["w"].item(), later.model["w"].item()) == (3, 1, 0)


@pytest.mark.parametrize(
    ("number", "inside", "outside", "said"),
    [
        (Number(), [0, 1e300], [-1e-9, math.inf, math.nan], "a number from 0 on"),
        (Number(-1, 2), [-1, 2], [-1.1, 2.1, -math.inf, math.nan], "a number from -1 to 2"),
        (Number(0, 1, unknown=True), [0.5, math.nan], [2, math.inf], "from 0 to 1, or unknown"),
    ],
)
def test_a_number_says_what_it_may_be(number, inside, outside, said):
    assert all(number.accepts(value) for value in inside)
    assert not any(number.accepts(value) for value in outside)
    assert said in str(number)


@pytest.mark.parametrize(
    ("name", "weight"),
    [("fedavg", 30), ("calibre", 30), ("scaffold", 1), ("perfedavg", 1), ("qffl", 0.25)],
)
def test_the_server_weighs_and_clients_do_not(tiny, name, weight):
    update = Update(0, 30, {}, {"risk": 0.5, "divergence": 0.1}, report={"weight": 1e9})
    changes = ["method.q=2"] if name == "qffl" else []
    assert tiny(f"method.name={name}", *changes).method.weight(update) == weight
