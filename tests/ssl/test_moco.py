import copy
import dataclasses
import math
from collections import deque

import pytest
import torch
from torch import nn

from calibre import rng
from calibre.ssl.moco import CHUNK, MoCo, Queue, info_nce
from calibre.ssl.objective import Sample
from tests.methods.helpers import equal, host
from tests.ssl.helpers import a_step, drawing
from tests.ssl.test_momentum import MOCO


def objective(**settings):
    with rng.isolated(0, "test"):
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.BatchNorm1d(6))
        network = MoCo(**{"hidden": 8, "projection": 4, **settings}).build(encoder, 6)
        with torch.no_grad():  # a copy that lags behind, as in the midst of training
            for parameter in network.target.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return network


def images(n, seed=0):
    return torch.randn(n, 3, 2, 2, generator=rng.stream(seed, "images"))


def unit(rows):
    return rows / rows.norm(dim=1, keepdim=True)


def draw_unit(n, d=4, seed=0):
    return unit(torch.randn(n, d, generator=rng.stream(seed, "unit")))


def naive(h, keys, negatives, temperature):
    """Equation 1 of the MoCo paper, one query at a time, in double precision."""
    total = 0.0
    for query, key in zip(unit(h.detach().double()), keys.double(), strict=True):
        positive = math.exp(float(query @ key) / temperature)
        others = sum(math.exp(float(query @ n.double()) / temperature) for n in negatives)
        total -= math.log(positive / (positive + others))
    return total / len(h)


NONE_EMPTY = torch.tensor(False)


def test_encoder_and_projector_travel():
    network = objective()
    assert network.shared == ("encoder", "projector")
    assert network.kept == ()
    parts = {name.split(".")[0] for name in network.state_dict()}
    assert parts == {"encoder", "projector", "target"}  # a passing queue is no state
    assert objective(target_init="average").shared == ("encoder", "projector", "target")
    assert objective(persist=True).kept == ("queue",)
    assert objective(persist=True, target_init="local").kept == ("target", "queue")
    assert objective(persist=True, target_init="local").shared == network.shared


def test_at_512_features_the_head_is_that_of_the_paper():
    head = MoCo().build(nn.Identity(), 512).projector
    assert [type(layer).__name__ for layer in head] == ["Linear", "ReLU", "Linear"]
    assert head[0].weight.shape == (2048, 512)
    assert head[2].weight.shape == (128, 2048)


@pytest.mark.parametrize("temperature", [0.07, 0.2, 1.0])
def test_contrast_by_a_plain_loop(temperature):
    h = 3 * torch.randn(5, 4, generator=rng.stream(0, "test"))
    keys, queue = draw_unit(5, seed=1), draw_unit(9, seed=2)
    loss = info_nce(h, keys, queue, NONE_EMPTY, temperature)
    assert loss.item() == pytest.approx(naive(h, keys, queue, temperature), rel=1e-5)


@pytest.mark.parametrize("length", [1, 7, 100])
def test_a_zero_query_can_only_guess(length):
    loss = info_nce(torch.zeros(3, 4), draw_unit(3), draw_unit(length), NONE_EMPTY, 0.2)
    assert loss.item() == pytest.approx(math.log(1 + length), rel=1e-5)


def test_a_found_key_among_orthogonal_ones():
    basis = torch.eye(6)
    loss = info_nce(basis[:2], basis[:2], basis[2:], NONE_EMPTY, 0.2)
    assert loss.item() == pytest.approx(math.log(1 + 4 * math.exp(-1 / 0.2)), rel=1e-4)


def test_empty_rows_do_not_count():
    h, keys, queue = draw_unit(5), draw_unit(5, seed=1), draw_unit(9, seed=2)
    empty = torch.arange(9) >= 3
    h.requires_grad_()
    loss = info_nce(h, keys, queue, empty, 0.2)
    assert loss.item() == pytest.approx(naive(h, keys, queue[:3], 0.2), rel=1e-5)
    loss.backward()
    assert h.grad.isfinite().all()
    assert info_nce(h, keys, queue, torch.full((9,), True), 0.2) == 0


def test_contrast_is_full_precision_under_autocast():
    h, keys, queue = draw_unit(5), draw_unit(5, seed=1), draw_unit(9, seed=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = info_nce(h, keys, queue, NONE_EMPTY, 0.2)
    assert torch.equal(inside, info_nce(h, keys, queue, NONE_EMPTY, 0.2))


@pytest.mark.parametrize("batches", [[3, 3, 3], [2, 5, 1, 4], [7], [9, 2], [5, 16, 3]])
def test_the_queue_holds_the_last_keys_that_came(batches):
    """Against a plain deque: wrapping around, and batches longer than the queue."""
    queue, expected = Queue(7, 1, persist=True), deque(maxlen=7)
    counter = 0
    for size in batches:
        rows = torch.arange(counter, counter + size)
        counter += size
        queue.push(rows.float().unsqueeze(1), rows)
        expected.extend(rows.tolist())
        held = queue.keys[~queue.empty()].flatten().tolist()
        assert sorted(held) == sorted(expected)
        assert queue.rows[~queue.empty()].tolist() == held  # each with its image


def test_the_oldest_key_leaves_first():
    queue = Queue(3, 1, persist=False)
    queue.fill(torch.tensor([[0.0], [1.0], [2.0], [3.0]]), torch.arange(4))  # of more images
    queue.fill(torch.tensor([[0.0], [1.0], [2.0]]), torch.arange(3))
    queue.push(torch.tensor([[3.0], [4.0]]), torch.tensor([3, 4]))
    assert queue.keys.flatten().tolist() == [3, 4, 2]
    queue.push(torch.tensor([[5.0], [6.0]]), torch.tensor([5, 6]))
    assert queue.rows.tolist() == [6, 4, 5]
    assert queue.keys.flatten().tolist() == [6, 4, 5]
    assert not queue.empty().any()


def test_a_round_begins_with_keys_of_the_clients_own_images():
    network = objective(queue=10).train()
    asked = []

    def sample(count):
        asked.append(count)
        return drawing(images(8))(count)

    network.begin_round(sample)
    assert asked == [10]
    assert network.queue.keys.shape == (8, 4)  # no longer than the client has images
    assert not network.queue.empty().any()
    assert network.queue.rows.tolist() == list(range(8))
    torch.testing.assert_close(
        network.queue.keys, unit(network.projector(network.encoder(images(8)))).detach()
    )  # the copy has just been reset: its keys are those of the received network
    assert not network.queue.keys.requires_grad


def test_a_long_queue_is_filled_in_chunks_of_even_size():
    network = objective().train()
    network.begin_round(drawing(images(CHUNK + 1)))
    halves = images(CHUNK + 1).split([CHUNK // 2 + 1, CHUNK // 2])
    expected = torch.cat([unit(network.projector(network.encoder(half))) for half in halves])
    torch.testing.assert_close(network.queue.keys, expected.detach())


def others(count):
    """A client whose queue starts with other images than those of the steps below."""
    return lambda _: Sample(100 + torch.arange(count), images(count, seed=9))


def test_a_query_is_not_told_apart_from_its_own_image():
    network = objective(temperature=0.3, momentum=1.0).train()
    network.begin_round(drawing(images(6, seed=9)))
    keys, rows = network.queue.keys.clone(), torch.tensor([2, 40, 0])
    a, b = images(3, seed=1), images(3, seed=2)
    h = [network.projector(network.encoder(x)) for x in (a, b)]
    k = [unit(network.target.projector(network.target.encoder(x))) for x in (a, b)]
    pair = network(a, b, a_step()._replace(rows=rows))
    total = 0.0
    for query, key in ((h[0], k[1]), (h[1], k[0])):
        for i, row in enumerate(rows.tolist()):
            left = keys[torch.arange(6) != row]
            assert len(left) == (6 if row == 40 else 5)
            total += naive(query[i : i + 1], key[i : i + 1], left, 0.3) / 6
    assert pair.loss.item() == pytest.approx(total, rel=1e-5)


def test_keys_that_joined_are_known_by_their_image():
    network = objective().train()
    network.begin_round(others(6))
    network(images(2, seed=1), images(2, seed=2), a_step(2))
    network.after_step(a_step(2))
    assert network.queue.rows.tolist() == [0, 1, 0, 1, 104, 105]
    same = network.queue.of_images(torch.tensor([1, 105, 7]))
    assert same.nonzero().tolist() == [[0, 1], [0, 3], [1, 5]]


def test_loss_and_queue_of_one_step():
    network = objective(temperature=0.3, momentum=1.0).train()
    network.begin_round(others(6))
    with torch.no_grad():
        for parameter in network.target.parameters():
            parameter.add_(0.2)
    before = network.queue.keys.clone()
    a, b = images(4, seed=1), images(4, seed=2)
    h = [network.projector(network.encoder(x)) for x in (a, b)]
    k = [unit(network.target.projector(network.target.encoder(x))) for x in (a, b)]
    expected = (naive(h[0], k[1], before, 0.3) + naive(h[1], k[0], before, 0.3)) / 2
    pair = network(a, b, a_step(4))
    assert pair.loss.item() == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(pair.h_a, h[0])
    torch.testing.assert_close(pair.h_b, h[1])
    assert torch.equal(network.queue.keys, before)  # a batch is not its own negative
    pair.loss.backward()
    network.after_step(a_step(4))
    latest = torch.cat([*k])[-6:]
    assert {tuple(row) for row in network.queue.keys.mul(1e4).round().tolist()} == {
        tuple(row) for row in latest.mul(1e4).round().tolist()
    }
    torch.testing.assert_close(network.queue.keys.norm(dim=1), torch.ones(6))


def test_keys_get_no_gradient_and_queries_of_both_views_do():
    network = objective().train()
    network.begin_round(drawing(images(6, seed=9)))
    pair = network(images(4, seed=1), images(4, seed=2), a_step(4))
    for tensor in (pair.z_a, pair.z_b, pair.h_a, pair.h_b):
        assert tensor.requires_grad
    pair.loss.backward()
    for name, parameter in network.named_parameters():
        if name.startswith("target."):
            assert parameter.grad is None
        elif name != "encoder.1.bias":  # batch norm takes it away again
            assert parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("m", [0.0, 0.75, 1.0])
def test_the_copy_moves_before_the_keys_are_made(m):
    network = objective(momentum=m)
    step = a_step(4, progress=0.5)  # no schedule
    before, online = copy.deepcopy(network.target), copy.deepcopy(network)
    pair = network(images(4, seed=1), images(4, seed=2), step)
    pair.loss.backward()
    torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=0.5).step()
    network.after_step(step)
    theta = dict(online.named_parameters())
    for name, old in before.named_parameters():
        expected = m * old + (1 - m) * theta[name].detach()
        torch.testing.assert_close(network.target.get_parameter(name).data, expected)


def test_a_lasting_queue_starts_empty_and_stays_with_its_client(tiny, tmp_path):
    lasting = ("method.objective.persist=true", "method.objective.queue=50")
    home = host(tiny("method.name=pfl-ssl", MOCO, *lasting), tmp_path)
    state = home.initial_state()
    assert not any(name.startswith("queue.") for name in state.model)
    first = home.update(state, 0)
    assert set(first.personal) == {"queue.keys", "queue.rows", "queue.pushed"}
    assert first.personal["queue.keys"].shape == (50, 4)
    # 40 images are batches of 14, 13 and 13: 28, 26 and 26 keys
    assert first.personal["queue.pushed"] == 80
    later = dataclasses.replace(state, round=1)
    assert home.update(later, 0).personal["queue.pushed"] == 160
    newcomer = home.update(later, 1)
    assert newcomer.personal["queue.pushed"] == 80
    assert equal(home.keep.clients.load(0, 1), first.personal)
    rows = newcomer.personal["queue.keys"].norm(dim=1)
    torch.testing.assert_close(rows, torch.ones(50))
