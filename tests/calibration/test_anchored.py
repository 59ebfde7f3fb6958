"""Terms anchored by labels, against loops over single images and classes."""

import math

import pytest
import torch

from calibre import rng
from calibre.calibration.anchored import anchored_terms, targets
from calibre.calibration.regularizers import Regularizers
from calibre.errors import UserError
from calibre.experiment import read
from calibre.ssl.ntxent import ntxent

LABELS = torch.tensor([4, 4, 4, 7, 7, 9])


def tensors(n=10, seed=0):
    generator = rng.stream(seed, "anchored")
    return [torch.randn(n, 5, generator=generator, dtype=torch.float64).float() for _ in range(4)]


def anchors():
    return torch.randn(6, 5, generator=rng.stream(1, "anchors"))


def naive(z_a, z_b, anchors, tau):
    """L_n and each image's class, by loops in double precision."""
    classes = sorted(set(LABELS.tolist()))

    def p_of(z):
        scores = []
        for k in classes:
            own = [
                v.double() / v.double().norm()
                for v, y in zip(anchors, LABELS, strict=True)
                if y == k
            ]
            mean = sum(own) / len(own)
            scores.append(float(z.double() @ mean / z.double().norm() / mean.norm()) / tau)
        total = sum(math.exp(s) for s in scores)
        return [math.exp(s) / total for s in scores]

    def sharp(rows):
        q = [[x**4 for x in row] for row in rows]
        q = [[x / sum(row) for x in row] for row in q]
        mix = [3 / 6, 2 / 6, 1 / 6]
        for _ in range(3):
            column = [sum(row[k] for row in q) / len(q) for k in range(3)]
            q = [[row[k] * mix[k] / column[k] for k in range(3)] for row in q]
            q = [[x / sum(row) for x in row] for row in q]
        return q

    p_a, p_b = [p_of(z) for z in z_a], [p_of(z) for z in z_b]
    q_a, q_b = sharp(p_a), sharp(p_b)
    total = 0.0
    for i in range(len(z_a)):
        for k in range(3):
            total -= q_b[i][k] * math.log(p_a[i][k]) + q_a[i][k] * math.log(p_b[i][k])
    image = [max(range(3), key=lambda k: q_a[i][k] + q_b[i][k]) for i in range(len(z_a))]
    return total / len(z_a) / 2, image


@pytest.mark.parametrize("tau", [0.5, 0.2])
def test_the_terms_are_those_of_loops(tau):
    z_a, z_b, h_a, h_b = tensors()
    settings = Regularizers(kmeans="labels", tau_n=tau)
    terms = anchored_terms(settings, z_a, z_b, h_a, h_b, anchors(), LABELS)
    l_n, image = naive(z_a, z_b, anchors(), tau)
    assert terms.l_n.item() == pytest.approx(l_n, rel=1e-4)
    found = sorted(set(image))
    assert len(found) > 1
    rows = [[i for i, k in enumerate(image) if k == own] for own in found]
    nu_a, nu_b = (torch.stack([h[own].mean(0) for own in rows]) for h in (h_a, h_b))
    assert terms.l_p.item() == pytest.approx(ntxent(nu_a, nu_b, 0.5).item(), rel=1e-5)
    assert terms.clusters_valid == len(found)


def test_the_mean_of_targets_is_the_clients_mix():
    p = torch.rand(400, 3, generator=rng.stream(0, "p")).softmax(1)
    mix = torch.tensor([0.7, 0.2, 0.1])
    q = targets(p, mix)
    torch.testing.assert_close(q.sum(1), torch.ones(400))
    assert (q.mean(0) - mix).abs().max() < 0.02
    sharper = targets(p, q.new_tensor([1, 1, 1]) / 3)
    assert sharper.max(1).values.mean() > p.max(1).values.mean()


def test_gradients_reach_views_and_anchors_unless_prototypes_are_fixed():
    z_a, z_b, h_a, h_b = (t.requires_grad_() for t in tensors())
    for detach in (False, True):
        support = anchors().requires_grad_()
        settings = Regularizers(kmeans="labels", detach_proto=detach)
        terms = anchored_terms(settings, z_a, z_b, h_a, h_b, support, LABELS)
        (gradient,) = torch.autograd.grad(terms.l_n, support, allow_unused=True, retain_graph=True)
        assert (gradient is None) == detach
        assert torch.autograd.grad(terms.l_n, z_a, retain_graph=True)[0].abs().sum() > 0
        assert torch.autograd.grad(terms.l_p, h_b)[0].abs().sum() > 0


@pytest.mark.parametrize(
    ("support", "labels", "images"),
    [(None, None, 10), (anchors(), torch.full((6,), 3), 10), (anchors(), LABELS, 3)],
    ids=["no labels", "one class", "a batch too small"],
)
def test_where_there_is_nothing_to_tell_apart_nothing_is_added(support, labels, images):
    z_a, z_b, h_a, h_b = (t[:images].requires_grad_() for t in tensors())
    terms = anchored_terms(Regularizers(kmeans="labels"), z_a, z_b, h_a, h_b, support, labels)
    assert (terms.l_n.item(), terms.l_p.item()) == (0, 0)
    (terms.l_n + terms.l_p).backward()  # still in the graph


def test_diverged_encodings_say_so():
    z_a, z_b, h_a, h_b = tensors()
    with pytest.raises(FloatingPointError, match="training diverged"):
        anchored_terms(
            Regularizers(kmeans="labels"), z_a * math.nan, z_b, h_a, h_b, anchors(), LABELS
        )


def test_other_forms_of_l_n_are_refused():
    other = ["method.prototypes.kmeans=labels", "method.prototypes.ln_form=neg_prob"]
    with pytest.raises(UserError, match="kmeans = 'labels' compares cosines"):
        read(None, other)
