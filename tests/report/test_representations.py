import warnings

import numpy as np
import pytest

from calibre.report.representations import Separation, clusters, flatten, neighbour_accuracy, unit


def blobs(spread: float, groups: int = 3, each: int = 12, d: int = 16, seed: int = 0):
    """Images around as many directions, and the direction of each."""
    draw = np.random.default_rng(seed)
    centres = np.eye(d)[:groups]
    labels = np.repeat(np.arange(groups), each)
    return (centres[labels] + spread * draw.normal(size=(len(labels), d))).astype("f4"), labels


def test_clear_clusters_have_figures_near_one_and_noise_has_none():
    clear = clusters(*blobs(0.01))
    assert clear.silhouette == pytest.approx(1, abs=0.05)
    assert (clear.nmi, clear.neighbours) == (pytest.approx(1), 1)
    noise = clusters(*blobs(100))
    assert abs(noise.silhouette) < 0.05
    assert noise.nmi < 0.3
    assert noise.neighbours < 0.6


def test_the_length_of_representations_does_not_count():
    features, labels = blobs(0.3)
    scaled = features * np.random.default_rng(1).uniform(1, 50, (len(features), 1)).astype("f4")
    assert clusters(scaled, labels).silhouette == pytest.approx(
        clusters(features, labels).silhouette, abs=1e-5
    )
    np.testing.assert_allclose(np.linalg.norm(unit(scaled), axis=1), 1, rtol=1e-6)
    assert not unit(np.zeros((2, 3), "f4")).any()


def naive_silhouette(points, labels):
    values = []
    for i in range(len(points)):
        away = np.linalg.norm(points - points[i], axis=1)
        own = [away[j] for j in range(len(points)) if labels[j] == labels[i] and j != i]
        others = [away[labels == k].mean() for k in set(labels) - {labels[i]}]
        a, b = np.mean(own), min(others)
        values.append((b - a) / max(a, b))
    return np.mean(values)


def naive_neighbours(points, labels, k=5):
    right = 0
    for i in range(len(points)):
        away = np.linalg.norm(points - points[i], axis=1)
        away[i] = np.inf
        nearest = [labels[j] for j in np.argsort(away)[:k]]
        most = max(nearest.count(label) for label in nearest)
        first = next(label for label in nearest if nearest.count(label) == most)
        right += first == labels[i]
    return right / len(points)


@pytest.mark.parametrize("seed", range(3))
def test_silhouette_and_neighbours_are_those_of_a_plain_loop(seed):
    features, labels = blobs(0.6, seed=seed)
    found = clusters(features, labels)
    assert found.silhouette == pytest.approx(naive_silhouette(unit(features), labels), abs=1e-5)
    assert found.neighbours == pytest.approx(naive_neighbours(unit(features), labels))


def test_they_are_measured_on_the_representations_not_on_the_picture():
    """Two rings in four dimensions that any flat picture must tear."""
    angle = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    zero = np.zeros_like(angle)
    ring = np.stack([np.cos(angle), np.sin(angle), zero, zero], 1)
    other = np.stack([zero, zero, np.cos(angle), np.sin(angle)], 1)
    features, labels = np.concatenate([ring, other]).astype("f4"), np.repeat([0, 1], 40)
    found = clusters(features, labels)
    assert found.silhouette == pytest.approx(naive_silhouette(features, labels), abs=1e-5)
    on_picture = naive_silhouette(flatten(features), labels)
    assert abs(on_picture - found.silhouette) > 0.1


def test_too_few_images_or_groups_are_not_measured():
    features, labels = blobs(0.1, each=4)
    one_group = clusters(features[:4], labels[:4])
    assert one_group == Separation(None, None, None)
    assert clusters(features[:3], np.arange(3)).silhouette is None
    assert neighbour_accuracy(features[:5], labels[:5]) is None


def test_a_collapsed_encoder_is_no_crash():
    alike = np.ones((20, 8), "f4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert clusters(alike, np.arange(20) % 2).silhouette == 0
        assert not flatten(alike).any()


def test_the_picture_is_the_same_every_time_and_keeps_clusters_together():
    features, labels = blobs(0.05)
    picture = flatten(features)
    assert picture.shape == (36, 2)
    np.testing.assert_array_equal(picture, flatten(features))
    assert naive_neighbours(picture, labels) == 1
