"""K-means against scikit-learn, and its promises about seeds, empty clusters and duplicates."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

from calibre import rng
from calibre.calibration import kmeans as module
from calibre.calibration.kmeans import assign, kmeans, means, membership


def stream(seed=0):
    return rng.stream(seed, "kmeans")


def blobs(n=128, d=16, centers=10, spread=1.0, seed=0):
    points, labels = make_blobs(
        n, d, centers=centers, cluster_std=spread, center_box=(-5, 5), random_state=seed
    )
    return torch.tensor(points, dtype=torch.float32), labels


def inertia(points, labels):
    """Sum of squared distances from the mean of each label's points, in double precision."""
    groups = [points[labels == k].double() for k in labels.unique()]
    return sum(((group - group.mean(0)) ** 2).sum().item() for group in groups)


@pytest.mark.parametrize("d", [2, 16, 128])
@pytest.mark.parametrize("spread", [0.5, 4.0])
def test_as_good_as_scikit_learn(d, spread):
    ours = theirs = 0.0
    for seed in range(20):  # both miss a blob now and then: only their sums compare
        points, _ = blobs(d=d, spread=spread, seed=seed)
        model = KMeans(10, n_init=1, random_state=seed).fit(points.numpy())
        ours += inertia(points, kmeans(points, 10, stream(seed)).labels)
        theirs += inertia(points, torch.tensor(model.labels_))
    assert 0.9 * theirs < ours < 1.04 * theirs


@pytest.mark.parametrize("seed", range(10))
def test_finds_well_separated_blobs_exactly(seed):
    points, truth = blobs(d=64, spread=0.3, seed=seed)
    found = kmeans(points, 10, stream(seed))
    theirs = KMeans(10, n_init=1, random_state=seed).fit(points.numpy())
    assert adjusted_rand_score(truth, found.labels) == 1
    ours = found.centroids[found.centroids[:, 0].argsort()]
    expected = torch.tensor(theirs.cluster_centers_)
    torch.testing.assert_close(ours, expected[expected[:, 0].argsort()], atol=1e-4, rtol=1e-4)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 40), d=st.integers(1, 8), clusters=st.integers(1, 12), seed=st.integers(0, 99)
)
def test_shapes_and_fixed_point(n, d, clusters, seed):
    points = torch.randn(n, d, generator=stream(seed))
    found = kmeans(points, clusters, stream(seed), iterations=100)
    k = len(found.centroids)
    assert found.labels.dtype == torch.int64
    assert found.labels.shape == (n,)
    assert found.centroids.shape == (k, d)
    assert found.labels.unique().tolist() == list(range(k))
    assert k <= min(n, clusters)
    # Lloyd's fixed point: every centroid is its points' mean, every point is with its nearest
    for i in range(k):
        torch.testing.assert_close(
            found.centroids[i], points[found.labels == i].mean(0), atol=1e-5, rtol=1e-4
        )
    squared = ((points[:, None] - found.centroids) ** 2).sum(2)  # [n, k]
    own = squared.gather(1, found.labels[:, None])[:, 0]
    torch.testing.assert_close(own, squared.min(1).values, atol=1e-5, rtol=1e-4)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    distinct=st.integers(1, 9),
    d=st.integers(4, 200),
    n=st.integers(9, 140),
    seed=st.integers(0, 99),
)
def test_fewer_distinct_points_than_clusters(distinct, d, n, seed):
    values = torch.randn(distinct, d, generator=stream(seed)) + seed / 10
    copies = torch.randint(distinct, (n,), generator=stream(seed))
    which = copies.unique(return_inverse=True)[1]
    found = kmeans(values[which], 10, stream(seed))
    assert len(found.centroids) == which.max() + 1
    torch.testing.assert_close(found.centroids[found.labels], values[which], atol=1e-5, rtol=1e-5)


def test_a_centroid_without_points_is_no_cluster(monkeypatch):
    points = torch.tensor([[-2.0], [-1.0], [3.0]])
    monkeypatch.setattr(module, "_plus_plus", lambda *_: torch.tensor([[-1.5], [90.0], [3.0]]))
    found = kmeans(points, 3, stream(), iterations=0)
    assert found.labels.tolist() == [0, 0, 1]
    assert found.centroids.tolist() == [[-1.5], [3.0]]


def test_a_far_offset_costs_no_precision():
    points, truth = blobs(d=8, spread=0.3)
    assert adjusted_rand_score(truth, kmeans(points + 1000, 10, stream()).labels) == 1


def test_an_empty_centroid_restarts_at_the_farthest_point():
    points = torch.tensor([[0.0], [1.0], [2.0], [9.0]])
    labels = torch.tensor([0, 0, 0, 0])
    restarted = module._update(points, labels, torch.arange(2))
    assert restarted.tolist() == [[3.0], [9.0]]
    two = module._update(points, labels, torch.arange(3))
    assert two.tolist() == [[3.0], [9.0], [0.0]]


def test_large_sets_seed_from_a_part_but_cluster_all(monkeypatch):
    points, truth = blobs(n=300, d=16, centers=4, spread=0.2)
    monkeypatch.setattr(module, "SEEDS", 60)
    found = kmeans(points, 4, stream())
    assert adjusted_rand_score(truth, found.labels) == 1


def test_the_seed_decides_and_the_global_generator_is_left_alone():
    points = torch.randn(50, 4, generator=stream())
    before = torch.get_rng_state()
    one, same, other = (kmeans(points, 6, stream(seed)) for seed in (1, 1, 2))
    assert torch.equal(one.labels, same.labels)
    assert torch.equal(one.centroids, same.centroids)
    assert not torch.equal(one.centroids, other.centroids)
    assert torch.equal(torch.get_rng_state(), before)


def test_outside_the_graph_and_in_full_precision():
    points = torch.randn(50, 4, generator=stream()).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = kmeans(points, 6, stream())
        nearest = assign(points, inside.centroids)
    outside = kmeans(points, 6, stream())
    assert not inside.centroids.requires_grad
    assert inside.centroids.dtype == torch.float32
    assert torch.equal(inside.centroids, outside.centroids)
    assert torch.equal(nearest, outside.labels)
    assert kmeans(points.bfloat16(), 6, stream()).centroids.dtype == torch.float32


def test_the_given_points_are_not_changed():
    points = torch.randn(20, 3, generator=stream())
    copy = points.clone()
    kmeans(points, 4, stream())
    assert torch.equal(points, copy)


def test_assign_takes_the_nearest():
    points = torch.randn(30, 5, generator=stream(1)) + 500
    centroids = torch.randn(7, 5, generator=stream(2)) + 500
    for point, label in zip(points, assign(points, centroids), strict=True):
        assert label == min(range(7), key=lambda k: ((point - centroids[k]) ** 2).sum())


def test_means_of_members_let_the_gradient_through():
    points = torch.tensor([[1.0, 0.0], [3.0, 2.0], [8.0, 8.0]], requires_grad=True)
    members = membership(torch.tensor([4, 4, -1]), torch.tensor([4]))
    assert members.tolist() == [[1, 1, 0]]
    average = means(points, members)
    assert average.tolist() == [[2, 1]]
    average.sum().backward()
    assert points.grad.tolist() == [[0.5, 0.5], [0.5, 0.5], [0, 0]]
