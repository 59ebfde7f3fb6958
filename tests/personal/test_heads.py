import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from calibre.local.batches import balanced_batches
from calibre.models.network import Head
from calibre.personal import heads as module
from calibre.personal.heads import Samples, accuracy, fresh_head, train_heads
from calibre.rng import stream
from calibre.sections import PersonalSettings

SEED, CLASSES, D = 7, 5, 12
COUNTS = [2, 33, 64, 40, 1, 97, 32, 65]  # one batch or many, full or not, at batch 32
CLIENTS = [3, 0, 14, 8, 21, 5, 6, 100]


@pytest.fixture
def samples() -> list[Samples]:
    """Unlike clients; the fourth has a single class."""
    draw = stream(SEED, "test-samples")
    clients = []
    for i, n in enumerate(COUNTS):
        features = 3 * torch.randn(n, D, generator=draw)
        labels = torch.randint(0, CLASSES, (n,), generator=draw)
        clients.append(Samples(features, torch.full_like(labels, 2) if i == 3 else labels))
    return clients


def initial(clients: list[int] = CLIENTS) -> list[Head]:
    return [fresh_head(SEED, client, CLASSES, D) for client in clients]


def one_by_one(client: int, samples: Samples, head: Head, settings: PersonalSettings) -> Head:
    """What the batched optimisation must equal: torch's own layer, loss and optimizer."""
    layer = nn.Linear(D, CLASSES)
    layer.load_state_dict(head._asdict())
    sgd = torch.optim.SGD(layer.parameters(), lr=settings.lr, momentum=settings.momentum)
    n = len(samples.labels)
    for epoch in range(settings.epochs):
        order = torch.randperm(n, generator=stream(SEED, "head-batches", client, epoch))
        for rows in order.split(balanced_batches(n, settings.batch)):
            sgd.zero_grad()
            F.cross_entropy(layer(samples.features[rows]), samples.labels[rows]).backward()
            sgd.step()
    return Head(layer.weight.detach(), layer.bias.detach())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("batch", [32, 7])
@pytest.mark.parametrize("group", [1, 3, 50])
def test_equals_the_loop_over_clients(
    samples: list[Samples], momentum: float, batch: int, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GROUP", group)
    settings = PersonalSettings(epochs=4, lr=0.05, batch=batch, momentum=momentum)
    trained = train_heads(CLIENTS, samples, initial(), settings, SEED)
    for i, client in enumerate(CLIENTS):
        expected = one_by_one(client, samples[i], initial()[i], settings)
        torch.testing.assert_close(trained.weight[i], expected.weight, rtol=0, atol=1e-5)
        torch.testing.assert_close(trained.bias[i], expected.bias, rtol=0, atol=1e-5)


def test_a_client_does_not_notice_the_others(samples: list[Samples]) -> None:
    settings = PersonalSettings(epochs=5, momentum=0.5)
    together = train_heads(CLIENTS, samples, initial(), settings, SEED)
    for i, client in enumerate(CLIENTS):
        alone = train_heads([client], [samples[i]], [initial()[i]], settings, SEED)
        torch.testing.assert_close(alone.weight[0], together.weight[i], rtol=0, atol=1e-5)
        torch.testing.assert_close(alone.bias[0], together.bias[i], rtol=0, atol=1e-5)


def test_a_client_whose_encoder_diverged_spoils_only_its_own_head(samples: list[Samples]) -> None:
    sick = COUNTS.index(max(COUNTS))
    samples[sick].features.fill_(float("nan"))
    trained = train_heads(CLIENTS, samples, initial(), PersonalSettings(epochs=2), SEED)
    assert [bool(weight.isfinite().all()) for weight in trained.weight] == [
        i != sick for i in range(len(CLIENTS))
    ]


def test_the_same_call_gives_the_same_bits_and_leaves_its_input_alone(
    samples: list[Samples],
) -> None:
    settings, start = PersonalSettings(epochs=2), initial()
    first = train_heads(CLIENTS, samples, start, settings, SEED)
    again = train_heads(CLIENTS, samples, start, settings, SEED)
    assert first.weight.equal(again.weight)
    assert first.bias.equal(again.bias)
    assert all(old.weight.equal(new.weight) for old, new in zip(start, initial(), strict=True))


def test_one_step_in_closed_form() -> None:
    """From zero, the softmax is uniform: the step is lr · mean((onehot - 1/K) xᵀ)."""
    features = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    zero = Head(torch.zeros(2, 2), torch.zeros(2))
    settings = PersonalSettings(epochs=1, lr=0.1)
    head = train_heads([0], [Samples(features, torch.tensor([0, 1]))], [zero], settings, SEED)
    step = 0.1 * 0.5 * (features[0] - features[1]) / 2  # for class 0; class 1 goes the other way
    torch.testing.assert_close(head.weight[0], torch.stack([step, -step]))
    torch.testing.assert_close(head.bias[0], torch.zeros(2))


def test_no_epochs_leave_the_heads_as_they_were(samples: list[Samples]) -> None:
    trained = train_heads(CLIENTS, samples, initial(), PersonalSettings(epochs=0), SEED)
    assert trained.weight.equal(torch.stack([head.weight for head in initial()]))
    assert trained.bias.equal(torch.stack([head.bias for head in initial()]))


def test_separable_clients_with_contrary_labels_are_all_learned() -> None:
    """Personal means personal: the same features, the labels swapped."""
    features = torch.randn(100, D, generator=stream(SEED, "test-separable"))
    labels = (features[:, 0] > 0).long()
    samples = [Samples(features, labels), Samples(features, 1 - labels)]
    heads = [fresh_head(SEED, client, 2, D) for client in (0, 1)]
    trained = train_heads([0, 1], samples, heads, PersonalSettings(epochs=100, lr=0.5), SEED)
    assert (accuracy(trained, samples) > 0.95).all()


def test_accuracy_counts_right_answers_by_hand() -> None:
    head = Head(torch.tensor([[1.0], [-1.0]]), torch.tensor([0.0, 1.0]))  # class 0 above x = 1/2
    heads = Head(torch.stack([head.weight] * 2), torch.stack([head.bias] * 2))
    three = Samples(torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([0, 0, 0]))
    one = Samples(torch.tensor([[0.4]]), torch.tensor([1]))
    assert accuracy(heads, [three, one]).tolist() == [2 / 3, 1.0]


def test_fresh_heads_are_keyed_uniform_and_within_bounds() -> None:
    head = fresh_head(SEED, 4, 100, 400)
    values = torch.cat([head.weight.flatten(), head.bias]) * math.sqrt(400)
    assert values.abs().max() <= 1
    assert abs(values.mean()) < 0.02
    assert abs(values.var() - 1 / 3) < 0.01  # of a uniform on [-1, 1]
    assert head.weight.equal(fresh_head(SEED, 4, 100, 400).weight)
    assert not head.weight.equal(fresh_head(SEED, 5, 100, 400).weight)
    assert not head.weight.equal(fresh_head(SEED + 1, 4, 100, 400).weight)
