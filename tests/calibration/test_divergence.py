"""The divergence rate against its definition, and the weights that follow from it."""

import math

import pytest
import torch

from calibre import rng
from calibre.calibration.divergence import DivergenceSettings, divergence, weight
from calibre.calibration.kmeans import kmeans


def stream(seed=0):
    return rng.stream(seed, "divergence")


def draw(n, d, seed=0):
    return torch.randn(n, d, generator=rng.stream(seed, "features"))


def naive(features, kind, mean, clusters):
    """The formula sample by sample, in double precision, with the same clusters."""
    rows = features.double()
    if kind == "unit":
        rows = torch.stack([row / row.norm() for row in rows])
    labels = kmeans(rows.float(), clusters, stream()).labels.tolist()
    groups = {k: [row for row, y in zip(rows, labels, strict=True) if y == k] for k in set(labels)}
    per_cluster = []
    for group in groups.values():
        centre = sum(group) / len(group)
        if kind == "ref":
            centre = centre / centre.norm()
        per_cluster.append([math.dist(row.tolist(), centre.tolist()) for row in group])
    if mean == "cluster":
        return sum(sum(c) / len(c) for c in per_cluster) / len(per_cluster)
    return sum(map(sum, per_cluster)) / len(features)


@pytest.mark.parametrize("kind", ["unit", "raw", "ref"])
@pytest.mark.parametrize("mean", ["sample", "cluster"])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 60])
def test_equals_the_definition(kind, mean, n):
    features = draw(n, 6) + 1
    settings = DivergenceSettings(divergence=kind, div_mean=mean)
    expected = naive(features, kind, mean, clusters=max(1, min(10, n // 2)))
    assert divergence(features, settings, stream()) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_points_on_their_prototypes_do_not_diverge():
    features = torch.eye(5).repeat(8, 1)
    assert divergence(features, DivergenceSettings(), stream()) == pytest.approx(0, abs=1e-6)


def test_only_unit_is_independent_of_scale():
    features = draw(80, 16)
    for kind in ("unit", "raw", "ref"):
        settings = DivergenceSettings(divergence=kind)
        small, large = (divergence(s * features, settings, stream()) for s in (1, 16))
        if kind == "unit":
            assert large == small
        elif kind == "raw":
            assert large == pytest.approx(16 * small, rel=1e-5)
        else:  # what is wrong with the released code: it measures the length of the features
            assert large > 10 * small
    unit = DivergenceSettings()
    assert divergence(10 * features, unit, stream()) == pytest.approx(
        divergence(features, unit, stream()), rel=1e-4
    )


def test_unit_is_at_most_two_and_grows_with_the_spread():
    centres = torch.eye(8).repeat(10, 1)
    noise = draw(80, 8)
    found = [
        divergence(centres + s * noise, DivergenceSettings(), stream()) for s in (0, 0.1, 0.3, 3)
    ]
    assert found == sorted(found)
    assert found[-1] <= 2


def test_at_most_one_cluster_per_two_samples():
    features = torch.eye(6)[:5]  # five orthonormal points, two clusters
    split = divergence(features, DivergenceSettings(divergence="raw"), stream())
    whole = divergence(features, DivergenceSettings(divergence="raw", div_clusters=1), stream())
    assert whole == pytest.approx(math.sqrt(0.8))
    assert 0 < split < whole
    assert divergence(features[:1], DivergenceSettings(), stream()) == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_features_that_are_not_finite_give_nan(bad):
    features = draw(20, 4)
    features[3, 1] = bad
    assert math.isnan(divergence(features, DivergenceSettings(), stream()))


def test_full_precision_and_no_global_randomness():
    features = draw(40, 8)
    before = torch.get_rng_state()
    outside = divergence(features, DivergenceSettings(), stream())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert divergence(features, DivergenceSettings(), stream()) == outside
    assert torch.equal(torch.get_rng_state(), before)


def test_equal_divergence_weighs_by_samples():
    weights = [weight(n, 0.4, gamma=1) for n in (100, 300)]
    assert weights[1] / weights[0] == pytest.approx(3)


def test_doubling_every_divergence_changes_no_share():
    clients = [(100, 0.2), (50, 0.7), (210, 0.05)]
    once = [weight(n, delta, gamma=1) for n, delta in clients]
    twice = [weight(n, 2 * delta, gamma=1) for n, delta in clients]
    shares = [[w / sum(ws) for w in ws] for ws in (once, twice)]
    assert shares[0] == pytest.approx(shares[1])
    assert sum(shares[0]) == pytest.approx(1)


@pytest.mark.parametrize(("gamma", "factor"), [(1, 2), (2, 4), (-1, 0.5)])
def test_halving_a_divergence(gamma, factor):
    assert weight(80, 0.2, gamma) == pytest.approx(factor * weight(80, 0.4, gamma))


@pytest.mark.parametrize("delta", [0.0, 1e-9, 0.3, 2.0, math.inf, math.nan])
def test_gamma_zero_is_exactly_fedavg(delta):
    assert weight(333, delta, gamma=0) == 333


def test_a_client_without_any_spread_has_a_bounded_weight():
    assert weight(10, 0.0, gamma=1) == weight(10, 1e-3, gamma=1) == pytest.approx(10_000)
    assert weight(10, 0.0, gamma=1, eps=0.1) == pytest.approx(100)


@pytest.mark.parametrize("delta", [math.nan, math.inf])
@pytest.mark.parametrize("gamma", [1, -1])
def test_an_unusable_divergence_is_left_to_the_server(delta, gamma):
    assert math.isnan(weight(10, delta, gamma))
