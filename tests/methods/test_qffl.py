import pytest
import torch

from calibre.engine import rounds
from calibre.methods.method import ServerState, Update
from calibre.methods.qffl import QFFL
from calibre.tensors import WeightedMean
from tests.methods.helpers import close, equal, host

PLAIN = ("method.name=qffl", "method.sgd.momentum=0", "method.sgd.weight_decay=0")


def test_with_q_of_0_it_is_the_plain_mean_of_fedavgs_clients(tiny, tmp_path):
    fair = host(tiny("method.name=qffl", "method.q=0"), tmp_path / "a")
    fedavg = host(tiny("method.name=fedavg"), tmp_path / "b")
    state, mean = fair.initial_state(), WeightedMean()
    for client in (0, 1, 4):
        mean.add(fedavg.update(state, client).shared["model"], 1)
    updates = (fair.update(state, client) for client in (0, 1, 4))
    assert close(fair.load("method").method.aggregate(state, updates).model, mean.result())


@pytest.mark.parametrize("q", [0.5, 1, 3])
def test_a_round_is_algorithm_2(tiny, tmp_path, q):
    """Delta_k and h_k written out for every client, the server's step as a ratio of their sums."""
    home = host(tiny(*PLAIN, f"method.q={q}", "method.sgd.lr=0.05"), tmp_path)
    method, state, clients = home.load("method").method, home.initial_state(), (0, 1, 4)
    updates = [home.update(state, client) for client in clients]
    after = method.aggregate(state, iter(updates))

    L = 1 / 0.05
    network = home.load("method").network
    names = [name for name, _ in network.named_parameters()]
    top, bottom = dict.fromkeys(names, 0.0), 0.0
    for client, update in zip(clients, updates, strict=True):
        site = home.site("method", state, client)
        network.eval()
        losses = []
        for image, label in zip(site.images[: site.labelled], site.labels, strict=False):
            with torch.no_grad():
                logits = network(site.plain(image[None]))[0].double()
            losses.append((logits.logsumexp(0) - logits[label]).item())
        risk = sum(losses) / len(losses)
        assert update.numbers == {"risk": pytest.approx(risk, rel=1e-5)}
        assert update.report["risk"] == update.numbers["risk"]
        w_k = update.shared["model"]
        delta = {n: L * (state.model[n].double() - w_k[n].double()) for n in names}
        norm = sum(d.square().sum() for d in delta.values())
        bottom += q * risk ** (q - 1) * norm + L * risk**q
        for n in names:
            top[n] += risk**q * delta[n]
    for n in names:
        expected = state.model[n].double() - top[n] / bottom
        assert torch.allclose(after.model[n].double(), expected, atol=1e-6)


def test_momentum_counts_as_a_longer_step():
    method = QFFL(sgd={"lr": 0.1, "momentum": 0.75})
    assert pytest.approx(2.5) == method.L
    assert pytest.approx(10) == QFFL(sgd={"lr": 0.1, "momentum": 0}).L


def fake(client, risk, **tensors):
    model = {name: torch.tensor([value], dtype=torch.float64) for name, value in tensors.items()}
    return Update(client, 10, {"model": model}, {"risk": risk})


def test_the_server_moves_towards_clients_of_a_high_loss():
    """F = 1 and 3, q = 2, L = 4, w = 0 -> 1 and -1: by hand."""
    method = QFFL(q=2, sgd={"lr": 0.25, "momentum": 0})
    state = ServerState(0, {"model": {"w": torch.zeros(1, dtype=torch.float64)}})
    h = [2 * 1 * 16 + 4 * 1, 2 * 3 * 16 + 4 * 9]  # q F^(q-1) ||L (w - w_k)||^2 + L F^q
    after = method.aggregate(state, iter([fake(0, 1.0, w=1.0), fake(1, 3.0, w=-1.0)]))
    assert after.model["w"].item() == pytest.approx(-(1 * -4 + 9 * 4) / sum(h))
    assert after.round == 1


@pytest.mark.parametrize("risk", [1e-10, 1e10])
@pytest.mark.parametrize("q", [0, 0.5, 20])
def test_no_risk_that_is_let_in_makes_a_step_that_is_no_number(q, risk):
    method = QFFL(q=q)
    assert method.numbers["risk"].accepts(risk)
    assert not method.numbers["risk"].accepts(1.1e10)
    state = ServerState(0, fake(0, 1.0, w=0.0).shared)
    after = method.aggregate(state, iter([fake(0, risk, w=1.0), fake(1, 1.0, w=1.0)]))
    assert 0 < after.model["w"].item() <= 1


def test_statistics_take_the_mean_however_small_the_step():
    """h = F^0 L^2 + L F: so small a loss makes it large beside L F, and the step short."""
    state = ServerState(0, fake(0, 1.0, **{"w": 0.0, "bn.running_var": 1.0}).shared)
    update = fake(0, 1e-4, **{"w": 1.0, "bn.running_var": 5.0})
    after = QFFL(sgd={"lr": 0.1, "momentum": 0}).aggregate(state, iter([update]))
    assert after.model["w"].item() == pytest.approx(10 * 1e-4 / (10**2 + 10 * 1e-4))
    assert after.model["bn.running_var"].item() == 5


def test_a_client_that_is_always_right_does_no_harm(tiny, tmp_path):
    home = host(tiny(*PLAIN, "method.q=0.5", "federation.scheme=quantity", "federation.classes=1"),
                tmp_path)  # fmt: skip
    state = home.initial_state()
    label = int(home.site("method", state, 0).labels[0])
    state.model["head.weight"].zero_()
    state.model["head.bias"].fill_(-1e4)[label] = 1e4
    method, update = home.load("method").method, home.update(state, 0)
    assert method.weight(update) == pytest.approx(1e-5)
    assert method.numbers["risk"].accepts(update.numbers["risk"])
    after = method.aggregate(state, [update])
    assert all(torch.isfinite(t).all() for t in after.model.values())


def test_what_travels(tiny, tmp_path):
    home = host(tiny("method.name=qffl"), tmp_path)
    state = home.initial_state()
    update = home.update(state, 2)
    assert set(update.shared) == {"model"}
    assert set(update.shared["model"]) == set(home.load("method").network.state_dict())
    assert update.personal is None
    home.update(state, 3)
    again = home.update(state, 2)
    assert equal(again.shared["model"], update.shared["model"])
    assert again.report == update.report


def test_ft_tunes_the_head(tiny, tmp_path):
    as_is = host(tiny("method.name=qffl"), tmp_path / "a")
    tuned = host(tiny("method.name=qffl-ft"), tmp_path / "b")
    state = as_is.initial_state()
    assert all(model.tensors == {} for model in as_is.personalize(state, "method", [0, 6]))
    for model in tuned.personalize(state, "method", [0, 6]):
        assert set(model.tensors) == {"head.weight", "head.bias"}


@pytest.mark.parametrize(("name", "label"), [("qffl", "q-FFL"), ("qffl-ft", "q-FFL-FT")])
def test_whole_runs(tiny, tmp_path, name, label):
    metrics = rounds.run(tiny(f"method.name={name}"), tmp_path)
    assert metrics.method == label
    assert metrics.failures == 0
