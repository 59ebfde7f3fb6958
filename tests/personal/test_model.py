"""A personal model as encoders side by side and one linear head: what bundles hold."""

import pytest
import torch
import torch.nn.functional as F

from calibre.errors import UserError
from calibre.methods.fedavg import FedAvg
from calibre.personal.heads import Samples
from calibre.personal.model import as_classifier, count_right, count_right_by_head
from tests.methods.helpers import host


def after_a_round(home, clients=(0, 1)):
    state = home.initial_state()
    updates = [home.update(state, client) for client in clients]
    return home.load("method").method.aggregate(state, updates)


def answers(encoders, head, images):
    """Logits, written out."""
    with torch.no_grad():
        features = torch.cat([encoder.eval()(images) for encoder in encoders], dim=1)
        return features @ head.weight.T + head.bias


METHODS = {
    "calibre": 1, "fedavg": 1, "fedavg-ft": 1, "fedbn": 1, "fedper": 1, "lg-fedavg": 1,
    "scaffold-ft": 1, "perfedavg": 1, "ditto": 1, "fedproto": 1, "apfl": 2, "local": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_every_methods_personal_model_is_encoders_and_one_head(tiny, tmp_path, name):
    """What it says of the client's test images is what the run scored, client by client."""
    home = host(tiny(f"method.name={name}", "personal.epochs=1"), tmp_path)
    method = home.load("method").method
    state = after_a_round(home) if method.federated else home.initial_state()
    for client in (0, 6):
        (model,) = home.personalize(state, "method", [client])
        prepared = home.prepared("method", state, client)
        encoders, head = as_classifier(method, prepared.site.network, model.tensors)
        assert len(encoders) == METHODS[name]
        images = prepared.site.plain(prepared.test.images)
        predicted = answers(encoders, head, images).argmax(1)
        assert int((predicted == prepared.test.labels).sum()) == model.correct
        assert model.images == len(prepared.test.labels)


def test_the_one_head_of_apfl_is_its_mixture(tiny, tmp_path):
    """alpha v + (1 - alpha) w of logits, by the mixture's own forward pass."""
    home = host(tiny("method.name=apfl", "method.alpha=0.4", "personal.epochs=1"), tmp_path)
    state = after_a_round(home)
    (model,) = home.personalize(state, "method", [0])
    site, _, test, _ = home.prepared("method", state, 0)
    encoders, head = as_classifier(home.load("method").method, site.network, model.tensors)
    mixture = site.network.eval()
    assert encoders == [mixture.encoder, mixture.own.encoder]
    images = site.plain(test.images)
    with torch.no_grad():
        w, v = mixture.head(mixture.encoder(images)), mixture.own(images)
        mixed = mixture(images)
    assert not torch.allclose(w, v, atol=1e-3)
    torch.testing.assert_close(answers(encoders, head, images), mixed)
    alpha = mixture.alpha.item()
    assert alpha == model.tensors["alpha"].item()
    torch.testing.assert_close(mixed, alpha * v + (1 - alpha) * w)


def test_the_head_is_a_copy_that_later_training_leaves_alone(tiny, tmp_path):
    home = host(tiny("method.name=fedavg"), tmp_path)
    state = home.initial_state()
    _, head = as_classifier(home.load("method").method, home.site("method", state, 0).network, {})
    before = head.weight.clone()
    home.update(state, 0)
    assert torch.equal(head.weight, before)
    assert not head.weight.requires_grad


def test_a_network_without_a_linear_head_cannot_be_bundled():
    network = torch.nn.Module()
    network.encoder = torch.nn.Flatten()
    network.head = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    with pytest.raises(UserError, match=r"personal models of FedAvg cannot be bundled: .*linear"):
        as_classifier(FedAvg(), network, {})


def test_right_answers_are_counted_alike_by_networks_and_by_heads(tiny, tmp_path):
    home = host(tiny("method.name=fedavg"), tmp_path)
    site, _, test, _ = home.prepared("method", after_a_round(home), 0)
    encoders, head = as_classifier(home.load("method").method, site.network, {})
    with torch.no_grad():
        features = encoders[0].eval()(site.plain(test.images))
    predicted = F.linear(features, *head).argmax(1).tolist()
    right = sum(p == label for p, label in zip(predicted, test.labels.tolist(), strict=True))
    assert count_right(site.network, site, test) == right
    assert count_right_by_head(head, Samples(features, test.labels)) == right
