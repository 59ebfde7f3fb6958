"""L_p and L_n against the paper's formulas written as loops, their closed forms and edge cases."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, normalize

from calibre import rng
from calibre.calibration.kmeans import kmeans, membership
from calibre.calibration.regularizers import (
    Regularizers,
    calibration_terms,
    prototype_assignment,
    prototype_contrast,
    pseudo_labels,
)
from calibre.errors import UserError
from calibre.settings import validate
from calibre.ssl.ntxent import ntxent

DEFAULT = Regularizers()


def stream(seed=0):
    return rng.stream(seed, "regularizers")


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=rng.stream(seed, "tensors"))


def batch(n=24, d=6, h=5, groups=4, noise=0.3, seed=0):
    """Two views of n images around a few centres: z_a, z_b, h_a, h_b."""
    centres = 3 * draw(groups, d, seed=seed)[torch.arange(n) % groups]
    z_a, z_b = (centres + noise * draw(n, d, seed=seed + s) for s in (10, 20))
    return z_a, z_b, draw(n, h, seed=seed + 30), draw(n, h, seed=seed + 40)


def with_grad(tensors):
    return [tensor.clone().requires_grad_() for tensor in tensors]


# The paper's formulas, one sample at a time, in double precision


def mean_of(rows):
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def unit(row):
    return [x / math.hypot(*row) for x in row]


def naive_l_p(h_a, h_b, y_a, y_b, tau):
    h_a, h_b = h_a.double().tolist(), h_b.double().tolist()
    valid = sorted((set(y_a) & set(y_b)) - {-1})
    prototypes = [
        unit(mean_of([row for row, y in zip(h, ys, strict=True) if y == k]))
        for h, ys in ((h_a, y_a), (h_b, y_b))
        for k in valid
    ]
    n, total = len(valid), 0.0
    for i, row in enumerate(prototypes):
        score = [math.exp(sum(map(math.prod, zip(row, o, strict=True))) / tau) for o in prototypes]
        total -= math.log(score[(i + n) % (2 * n)] / (sum(score) - score[i]))
    return total / (2 * n)


def naive_l_n(settings, z_s, z_q, y_s, y_q):
    valid = sorted((set(y_s) & set(y_q)) - {-1})
    z_s, z_q = z_s.double().tolist(), z_q.double().tolist()
    averaged = [unit(row) for row in z_s] if settings.proto_of_unit else z_s
    prototype = {
        k: mean_of([row for row, y in zip(averaged, y_s, strict=True) if y == k]) for k in valid
    }
    queries = [
        (z, y)
        for z, y in zip(z_q, y_s if settings.query_label == "partner" else y_q, strict=True)
        if y in valid
    ]

    def logit(z, k):
        if settings.ln_metric == "cos":
            pairs = zip(unit(z), unit(prototype[k]), strict=True)
            return sum(map(math.prod, pairs)) / settings.tau_n
        distance = math.dist(z, prototype[k])
        return -(distance**2) if settings.ln_metric == "sqeuclid_raw" else -distance

    def cost(z, k):
        score = math.exp(logit(z, k))
        if settings.ln_form == "sample_contrast":
            return -math.log(score / sum(math.exp(logit(o, k)) for o, y in queries if y != k))
        probability = score / sum(math.exp(logit(z, other)) for other in valid)
        return -math.log(probability) if settings.ln_form == "proto_ce" else -probability

    if settings.ln_reduction == "sample_mean":
        return sum(cost(z, k) for z, k in queries) / len(queries)
    per_cluster = [
        sum(cost(z, k) for z, y in queries if y == k) / sum(y == k for _, y in queries)
        for k in valid
    ]
    return sum(per_cluster) / (len(valid) if settings.ln_reduction == "cluster_mean" else 1)


def naive(settings, z_a, z_b, h_a, h_b, labels=None):
    y_a, y_b = (y.tolist() for y in pseudo_labels(settings, z_a, z_b, stream(), labels))
    ways = {
        "a": [(z_a, z_b, y_a, y_b)],
        "b": [(z_b, z_a, y_b, y_a)],
        "sym": [(z_a, z_b, y_a, y_b), (z_b, z_a, y_b, y_a)],
    }[settings.support]
    l_n = [naive_l_n(settings, *way) for way in ways]
    return naive_l_p(h_a, h_b, y_a, y_b, settings.tau_p), sum(l_n) / len(l_n)


def check(settings, tensors, labels=None):
    terms = calibration_terms(settings, *tensors, stream(), labels)
    l_p, l_n = naive(settings, *tensors, labels)
    assert terms.l_p.item() == pytest.approx(l_p, rel=1e-4, abs=1e-5)
    assert terms.l_n.item() == pytest.approx(l_n, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("ln_form", ["proto_ce", "sample_contrast", "neg_prob"])
@pytest.mark.parametrize("ln_reduction", ["cluster_mean", "sample_mean", "cluster_sum"])
@pytest.mark.parametrize("ln_metric", ["cos", "sqeuclid_raw", "euclid_raw"])
def test_every_form_reduction_and_metric(ln_form, ln_reduction, ln_metric):
    for support, query_label in itertools.product(["a", "b", "sym"], ["own", "partner"]):
        settings = Regularizers(
            ln_form=ln_form,
            ln_reduction=ln_reduction,
            ln_metric=ln_metric,
            support=support,
            query_label=query_label,
            clusters=5,
        )
        check(settings, batch(noise=1.2))


@pytest.mark.parametrize("support", ["a", "b"])
@pytest.mark.parametrize("normalize_input", [False, True])
@pytest.mark.parametrize("scheme", ["joint", "support_then_assign"])
def test_every_clustering(support, normalize_input, scheme):
    settings = Regularizers(
        support=support, kmeans_normalize=normalize_input, kmeans=scheme, clusters=5
    )
    check(settings, batch(noise=1.2))


@pytest.mark.parametrize(
    "changes",
    [
        {"proto_of_unit": True},
        {"proto_of_unit": True, "support": "sym", "ln_form": "sample_contrast"},
        {"tau_n": 0.1},
        {"tau_p": 0.1},
        {"clusters": 2},
        {"detach_proto": True},
    ],
)
def test_other_options(changes):
    check(Regularizers(**{"clusters": 5, **changes}), batch(noise=1.2))


@pytest.mark.parametrize("metric", ["sqeuclid_raw", "euclid_raw"])
def test_raw_distances_are_exact_far_from_the_origin(metric):
    z_a, z_b, h_a, h_b = batch(noise=1.2)
    check(Regularizers(ln_metric=metric, clusters=5), (z_a + 512, z_b + 512, h_a, h_b))


@hypothesis_settings(max_examples=40, deadline=None, derandomize=True)
@given(
    n=st.integers(4, 20),
    d=st.integers(2, 8),
    h=st.integers(2, 8),
    clusters=st.integers(2, 12),
    seed=st.integers(0, 200),
)
def test_any_shape(n, d, h, clusters, seed):
    settings = Regularizers(clusters=clusters)
    tensors = [draw(n, size, seed=seed + i) for i, size in enumerate((d, d, h, h))]
    terms = calibration_terms(settings, *tensors, stream())
    assert terms.clusters_valid <= min(n, clusters)
    if terms.clusters_valid < 2:
        assert terms.l_p == terms.l_n == 0
    else:
        check(settings, tensors)


# Closed forms and ranges


def simplex(k):
    """k unit vectors, as far apart as they can be."""
    return normalize(torch.eye(k) - 1 / k, dim=1)


@pytest.mark.parametrize(("k", "value"), [(2, 0.018), (5, 0.284), (10, 0.681), (20, 1.198)])
def test_best_possible_l_n_is_the_simplex(k, value):
    z = simplex(k).repeat(3, 1)
    settings = Regularizers(clusters=k)
    terms = calibration_terms(settings, z, z, z, z, stream())
    assert terms.clusters_valid == k
    assert terms.l_n.item() == pytest.approx(value, abs=1e-3)
    closed = math.log(1 + (k - 1) * math.exp(-2 * k / (k - 1)))
    assert terms.l_n.item() == pytest.approx(closed, abs=1e-5)


@pytest.mark.parametrize("k", [2, 7])
def test_collapsed_encodings_can_only_guess(k):
    z = torch.ones(21, 4)
    members = membership(torch.arange(21) % k, torch.arange(k))
    l_n = prototype_assignment(DEFAULT, z, z, members, members)
    assert l_n.item() == pytest.approx(math.log(k), abs=1e-6)


@pytest.mark.parametrize("form", ["proto_ce", "sample_contrast", "neg_prob"])
def test_a_single_cluster_leaves_nothing_to_tell_apart(form):
    z = torch.ones(21, 4, requires_grad=True)
    terms = calibration_terms(Regularizers(ln_form=form), z, z, z, z, stream())
    assert (terms.clusters_valid, terms.l_p, terms.l_n) == (1, 0, 0)
    (terms.l_p + terms.l_n).backward()
    assert not z.grad.any()


@pytest.mark.parametrize("reduction", ["cluster_mean", "sample_mean"])
def test_cosine_is_the_squared_distance_of_unit_vectors(reduction):
    settings = Regularizers(ln_reduction=reduction)
    z_a, z_b = draw(30, 8, seed=1), draw(30, 8, seed=2)
    labels = torch.arange(30) % 5
    members = membership(labels, torch.arange(5))
    prototypes = torch.stack([z_a[labels == k].mean(0) for k in range(5)])
    squared = torch.cdist(normalize(z_b, dim=1), normalize(prototypes, dim=1)) ** 2
    expected = cross_entropy(-squared, labels)  # equal clusters: both reductions are this one
    l_n = prototype_assignment(settings, z_a, z_b, members, members)
    torch.testing.assert_close(l_n, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("tau", "value"), [(0.5, 7.3), (0.1, -32.7)])
def test_algorithm_1_is_unbounded_below(tau, value):
    settings = Regularizers(ln_form="sample_contrast", ln_reduction="cluster_sum", tau_n=tau)
    z = torch.eye(5).repeat(8, 1)  # five perfect clusters of eight
    members = membership(torch.arange(40) % 5, torch.arange(5))
    l_n = prototype_assignment(settings, z, z, members, members).item()
    assert l_n == pytest.approx(5 * (math.log(32) - 1 / tau), abs=1e-4)
    assert l_n == pytest.approx(value, abs=0.05)


def test_l_p_is_ntxent_of_hand_made_means():
    h_a = torch.tensor([[1.0, 0.0], [3.0, 2.0], [0.0, 5.0]])
    h_b = torch.tensor([[2.0, 2.0], [0.0, 4.0], [2.0, 4.0]])
    in_a = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    in_b = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    by_hand = ntxent(
        torch.tensor([[2.0, 1.0], [0.0, 5.0]]), torch.tensor([[2.0, 2.0], [1.0, 4.0]]), 0.5
    )
    torch.testing.assert_close(prototype_contrast(h_a, h_b, in_a, in_b, 0.5), by_hand)


@pytest.mark.parametrize("form", ["proto_ce", "sample_contrast", "neg_prob"])
@pytest.mark.parametrize("reduction", ["cluster_mean", "sample_mean", "cluster_sum"])
def test_neither_samples_nor_clusters_have_an_order(form, reduction):
    settings = Regularizers(ln_form=form, ln_reduction=reduction)
    z_a, z_b, h_a, h_b = batch(n=12)
    y_a, y_b = torch.tensor([0, 1, 2, 0] * 3), torch.tensor([0, 1, 2, 2] * 3)
    ids, swapped = torch.arange(3), torch.tensor([2, 0, 1])
    order = torch.tensor([7, 3, 11, 0, 5, 1, 9, 2, 10, 4, 8, 6])
    plain = (membership(y_a, ids), membership(y_b, ids))
    renamed = (membership(y_a, swapped), membership(y_b, swapped))
    moved = (membership(y_a[order], ids), membership(y_b[order], ids))
    l_n = prototype_assignment(settings, z_a, z_b, *plain)
    l_p = prototype_contrast(h_a, h_b, *plain, 0.5)
    torch.testing.assert_close(prototype_assignment(settings, z_a, z_b, *renamed), l_n)
    torch.testing.assert_close(prototype_contrast(h_a, h_b, *renamed, 0.5), l_p)
    torch.testing.assert_close(prototype_assignment(settings, z_a[order], z_b[order], *moved), l_n)
    torch.testing.assert_close(prototype_contrast(h_a[order], h_b[order], *moved, 0.5), l_p)


def test_whole_terms_do_not_depend_on_the_order_of_images():
    settings = Regularizers(clusters=4)
    tensors = batch(noise=0.1)
    order = torch.randperm(24, generator=stream(5))
    terms = calibration_terms(settings, *tensors, stream())
    moved = calibration_terms(settings, *(t[order] for t in tensors), stream(1))
    assert terms.clusters_valid == moved.clusters_valid == 4
    torch.testing.assert_close(moved.l_p, terms.l_p)
    torch.testing.assert_close(moved.l_n, terms.l_n)


# Edge cases


@pytest.mark.parametrize("form", ["proto_ce", "sample_contrast", "neg_prob"])
@pytest.mark.parametrize("reduction", ["cluster_mean", "sample_mean", "cluster_sum"])
@pytest.mark.parametrize("lonely_view", ["a", "b"])
def test_a_cluster_of_one_view_only_is_as_if_it_were_deleted(form, reduction, lonely_view):
    # Images 0..15 lie in clusters 0..3; three more have one view in cluster 4, far from the others
    settings = Regularizers(clusters=5, ln_form=form, ln_reduction=reduction)
    z_a, z_b, h_a, h_b = batch(n=19, noise=0.1)
    far = 50 + 0.1 * draw(3, 6, seed=9)
    lonely = z_a if lonely_view == "a" else z_b
    lonely[16:] = far
    tensors = with_grad([z_a, z_b, h_a, h_b])
    terms = calibration_terms(settings, *tensors, stream())
    assert terms.clusters_valid == 4
    assert terms.dropped.item() == pytest.approx(3 / 38)
    assert terms.agreement.item() == pytest.approx(16 / 19)

    # the same without the lonely encodings, the other views of those images still there
    keep = torch.arange(19) < 16
    ids = torch.arange(4)
    y = torch.arange(19) % 4
    y_a, y_b = (
        (torch.where(keep, y, -1), y) if lonely_view == "a" else (y, torch.where(keep, y, -1))
    )
    kept_a, kept_b = y_a >= 0, y_b >= 0
    in_a, in_b = membership(y_a[kept_a], ids), membership(y_b[kept_b], ids)
    l_p = prototype_contrast(h_a[kept_a], h_b[kept_b], in_a, in_b, 0.5)
    l_n = prototype_assignment(settings, z_a[kept_a], z_b[kept_b], in_a, in_b)
    torch.testing.assert_close(terms.l_p, l_p)
    torch.testing.assert_close(terms.l_n, l_n)

    (terms.l_p + terms.l_n).backward()
    assert all(tensor.grad.isfinite().all() for tensor in tensors)
    assert not tensors[0 if lonely_view == "a" else 1].grad[16:].any()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_too_few_images_give_a_zero_in_the_graph(n):
    z = 10 * torch.eye(4)[:n]  # each image a clear cluster of its own
    tensors = with_grad([z, z, z, z])
    terms = calibration_terms(DEFAULT, *tensors, stream())
    assert terms.l_p == terms.l_n == terms.clusters_valid == terms.agreement == 0
    assert terms.dropped == 1
    (terms.l_p + terms.l_n).backward()
    assert all(not tensor.grad.any() for tensor in tensors)


def test_views_without_a_common_cluster_give_a_zero_in_the_graph():
    z_a, z_b = draw(8, 4, seed=1), draw(8, 4, seed=2) + 100
    tensors = with_grad([z_a, z_b, draw(8, 3, seed=3), draw(8, 3, seed=4)])
    terms = calibration_terms(Regularizers(clusters=2), *tensors, stream())
    assert (terms.clusters_valid, terms.dropped, terms.agreement) == (0, 1, 0)
    assert terms.l_p == terms.l_n == 0
    (terms.l_p + terms.l_n).backward()
    assert all(not tensor.grad.any() for tensor in tensors)


def test_never_more_clusters_than_images():
    z = 10 * torch.eye(4)  # with the second view 8 distinct points, 4 images
    terms = calibration_terms(DEFAULT, z, z + 0.1 * draw(4, 4), draw(4, 3), draw(4, 3), stream())
    assert terms.clusters_valid == 4


def test_duplicates_are_one_cluster():
    z = draw(3, 4)[torch.arange(30) % 3]
    terms = calibration_terms(DEFAULT, z, z, draw(30, 5, seed=1), draw(30, 5, seed=2), stream())
    assert terms.clusters_valid == 3
    assert terms.agreement == 1
    assert terms.dropped == 0
    assert terms.l_n.isfinite()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("view", [0, 1])
@pytest.mark.parametrize("n", [2, 24])
def test_encodings_that_are_not_finite_stop_the_step(bad, view, n):
    tensors = [draw(n, 4, seed=i) for i in range(4)]
    tensors[view][1, 2] = bad
    with pytest.raises(FloatingPointError, match="NaN or infinity"):
        calibration_terms(DEFAULT, *tensors, stream())


@pytest.mark.parametrize("metric", ["cos", "sqeuclid_raw", "euclid_raw"])
def test_gradients_are_finite_at_distance_zero(metric):
    z = torch.eye(4).repeat(3, 1)
    z[:, 3] = 0  # one cluster at the origin
    tensors = with_grad([z, z, z, z])
    terms = calibration_terms(Regularizers(ln_metric=metric, clusters=4), *tensors, stream())
    assert terms.clusters_valid == 4
    (terms.l_p + terms.l_n).backward()
    assert all(tensor.grad.isfinite().all() for tensor in tensors)


def test_full_precision_under_autocast():
    tensors = batch()
    outside = calibration_terms(DEFAULT, *tensors, stream())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = calibration_terms(DEFAULT, *tensors, stream())
    assert torch.equal(inside.l_p, outside.l_p)
    assert torch.equal(inside.l_n, outside.l_n)
    half = calibration_terms(DEFAULT, *(t.bfloat16() for t in tensors), stream())
    assert half.l_p.dtype == half.l_n.dtype == torch.float32


def test_the_seed_decides_and_the_global_generator_is_left_alone():
    tensors = [draw(24, 6, seed=i) for i in range(4)]
    before = torch.get_rng_state()
    one, same, other = (calibration_terms(DEFAULT, *tensors, stream(seed)) for seed in (1, 1, 2))
    assert torch.equal(one.l_p, same.l_p)
    assert torch.equal(one.l_n, same.l_n)
    assert not torch.equal(one.l_n, other.l_n)
    assert torch.equal(torch.get_rng_state(), before)


# Gradients


def test_l_n_reaches_only_z_and_l_p_only_h():
    tensors = with_grad(batch())
    l_n = calibration_terms(DEFAULT, *tensors, stream()).l_n
    grads = torch.autograd.grad(l_n, tensors, allow_unused=True)
    assert grads[0].any()
    assert grads[1].any()
    assert grads[2] is grads[3] is None
    l_p = calibration_terms(DEFAULT, *tensors, stream()).l_p
    grads = torch.autograd.grad(l_p, tensors, allow_unused=True)
    assert grads[0] is grads[1] is None
    assert grads[2].any()
    assert grads[3].any()


def test_l_p_reaches_encoder_and_head():
    head = draw(6, 5, seed=3).requires_grad_()
    z_a, z_b = with_grad(batch()[:2])
    calibration_terms(DEFAULT, z_a, z_b, z_a @ head, z_b @ head, stream()).l_p.backward()
    assert all(tensor.grad.any() for tensor in (z_a, z_b, head))


@pytest.mark.parametrize(("support", "made_prototypes"), [("a", 0), ("b", 1)])
def test_detach_proto_stops_the_gradient_through_the_support_only(support, made_prototypes):
    settings = Regularizers(detach_proto=True, support=support)
    tensors = with_grad(batch())
    terms = calibration_terms(settings, *tensors, stream())
    free = calibration_terms(Regularizers(support=support), *tensors, stream())
    assert torch.equal(terms.l_n, free.l_n)
    (terms.l_p + terms.l_n).backward()
    assert tensors[made_prototypes].grad is None
    assert tensors[1 - made_prototypes].grad.any()
    assert tensors[2].grad.any()


@pytest.mark.parametrize("form", ["proto_ce", "sample_contrast", "neg_prob"])
@pytest.mark.parametrize("metric", ["cos", "sqeuclid_raw", "euclid_raw"])
def test_gradient_of_l_n_is_that_of_the_loops(form, metric):
    settings = Regularizers(ln_form=form, ln_metric=metric)
    z_a, z_b = draw(8, 3, seed=1).requires_grad_(), draw(8, 3, seed=2)
    y_a, y_b = [0, 1, 2, 0, 1, 2, 0, 1], [0, 1, 2, 2, 1, 0, 0, 2]
    members = [membership(torch.tensor(y), torch.arange(3)) for y in (y_a, y_b)]
    prototype_assignment(settings, z_a, z_b, *members).backward()
    step = torch.zeros(8, 3)
    step[4, 1] = 1e-4
    up, down = (naive_l_n(settings, z_a.detach() + s * step, z_b, y_a, y_b) for s in (1, -1))
    assert z_a.grad[4, 1].item() == pytest.approx((up - down) / 2e-4, rel=1e-2, abs=1e-4)


# Labels


def test_oracle_labels_take_the_place_of_clusters():
    settings = Regularizers(oracle_labels=True)
    tensors = batch()
    labels = torch.tensor([7, 3, -1, 90] * 6)
    check(settings, tensors, labels)
    terms = calibration_terms(settings, *tensors, stream(), labels)
    assert terms.clusters_valid == 3
    assert terms.dropped.item() == pytest.approx(0.25)
    labelled = labels >= 0
    alone = calibration_terms(settings, *(t[labelled] for t in tensors), stream(), labels[labelled])
    torch.testing.assert_close(alone.l_p, terms.l_p)
    torch.testing.assert_close(alone.l_n, terms.l_n)


def test_oracle_labels_without_any_label_give_zero():
    settings = Regularizers(oracle_labels=True)
    terms = calibration_terms(settings, *batch(), stream(), torch.full((24,), -1))
    assert (terms.clusters_valid, terms.dropped, terms.l_p, terms.l_n) == (0, 1, 0, 0)


def test_labels_are_not_looked_at_otherwise():
    tensors = batch()
    labels = torch.arange(24) % 2
    blind = calibration_terms(DEFAULT, *tensors, stream())
    assert torch.equal(calibration_terms(DEFAULT, *tensors, stream(), labels).l_n, blind.l_n)


def test_joint_clusters_are_those_of_both_views_together():
    z_a, z_b, _, _ = batch(noise=2.0)
    y_a, y_b = pseudo_labels(DEFAULT, z_a, z_b, stream(), None)
    together = kmeans(torch.cat([z_a, z_b]), 10, stream()).labels
    assert torch.equal(torch.cat([y_a, y_b]), together)


def test_kmeans_normalize_clusters_by_direction_alone():
    z = torch.eye(3)[torch.arange(12) % 3] * torch.linspace(1, 40, 12)[:, None]
    unlike = [Regularizers(kmeans_normalize=flag, clusters=3) for flag in (True, False)]
    by_direction, by_length = (pseudo_labels(s, z, z, stream(), None)[0] for s in unlike)
    assert all(len(by_direction[i::3].unique()) == 1 for i in range(3))
    assert len(by_direction.unique()) == 3
    assert any(len(by_length[i::3].unique()) > 1 for i in range(3))


def test_support_then_assign_clusters_the_support_view_alone():
    z_a, z_b, _, _ = batch(noise=2.0)
    for support, other in (("a", "b"), ("b", "a")):
        settings = Regularizers(kmeans="support_then_assign", support=support)
        z = {"a": z_a, "b": z_b}
        y = dict(zip("ab", pseudo_labels(settings, z_a, z_b, stream(), None), strict=True))
        found = kmeans(z[support], 10, stream())
        assert torch.equal(y[support], found.labels)
        for row, label in zip(z[other], y[other], strict=True):
            assert label == (found.centroids - row).norm(dim=1).argmin()


# Settings


def test_defaults_are_those_of_the_sheet():
    assert (DEFAULT.alpha_p, DEFAULT.alpha_n, DEFAULT.clusters) == (0.3, 0.3, 10)
    assert (DEFAULT.tau_p, DEFAULT.tau_n) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"kmeans": "support_then_assign", "support": "sym"}, "set support to 'a' or 'b'"),
        ({"proto_of_unit": True, "ln_metric": "euclid_raw"}, "set ln_metric to 'cos'"),
        ({"tau_n": 0}, "tau_n"),
        ({"alpha_p": -0.1}, "alpha_p"),
        ({"clusters": 1}, "clusters"),
        ({"ln_form": "log"}, "proto_ce"),
        ({"cluster": 5}, "did you mean 'clusters'"),
    ],
)
def test_mistakes_are_explained(values, words):
    with pytest.raises(UserError, match=words):
        validate(Regularizers, values)
