import numpy as np
import pytest
import torch
from scipy.spatial.distance import mahalanobis
from sklearn.covariance import ledoit_wolf as reference

from calibre.personal.outside import (
    fit_prototypes,
    ledoit_wolf,
    nearest,
    refused,
    threshold,
)


def cloud(n, d=12, classes=3, seed=0):
    """Features about class means, long in one direction."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    means = 5 * np.random.default_rng(99).normal(size=(classes, d))
    stretch = np.linspace(0.2, 3, d)
    features = means[labels] + rng.normal(size=(n, d)) * stretch
    return torch.from_numpy(features).float(), torch.from_numpy(labels)


@pytest.mark.parametrize(("n", "d"), [(5, 12), (40, 12), (300, 4)])
def test_shrinkage_is_that_of_ledoit_and_wolf(n, d):
    x = np.random.default_rng(n).normal(size=(n, d)) * np.linspace(0.1, 4, d)
    expected = reference(x, assume_centered=True)[0]
    np.testing.assert_allclose(ledoit_wolf(torch.from_numpy(x)).numpy(), expected, rtol=1e-9)


def test_the_distance_is_mahalanobis_to_the_nearest_mean():
    features, labels = cloud(60)
    found = fit_prototypes(features, labels)
    x, y = features.double().numpy(), labels.numpy()
    means = [x[y == k].mean(0) for k in range(3)]
    residuals = np.concatenate([x[y == k] - means[k] for k in range(3)]) * np.sqrt(60 / 57)
    covariance = reference(residuals, assume_centered=True)[0]
    covariance += 1e-3 * np.trace(covariance) / 12 * np.eye(12)
    inverse = np.linalg.inv(covariance)
    new, _ = cloud(10, seed=5)
    for image in new:
        expected = min(mahalanobis(image.numpy(), mean, inverse) for mean in means) / np.sqrt(12)
        assert found.distance(image[None]).item() == pytest.approx(expected, rel=1e-4)


def test_far_from_the_origin_nothing_is_lost_to_rounding():
    features, labels = cloud(60)
    near = fit_prototypes(features, labels).distance(features)
    far = fit_prototypes(features + 300, labels).distance(features + 300)
    torch.testing.assert_close(near, far, rtol=2e-3, atol=2e-3)


def test_own_images_are_about_1_away_and_strangers_farther():
    found = fit_prototypes(*cloud(300))
    own = found.distance(cloud(200, seed=1)[0])
    assert own.mean() == pytest.approx(1, abs=0.1)
    strangers, _ = cloud(200, classes=1, seed=2)
    assert found.distance(strangers + 20).min() > own.max()


def test_a_feature_that_never_varies_does_no_harm():
    features, labels = cloud(30)
    features[:, 3] = 0
    assert torch.isfinite(fit_prototypes(features, labels).distance(features)).all()
    same = fit_prototypes(torch.ones(6, 4), torch.arange(6) % 2)
    assert torch.isfinite(same.distance(torch.ones(1, 4))).all()


def test_without_two_images_of_a_class_there_is_no_spread():
    assert fit_prototypes(torch.randn(3, 4), torch.arange(3)) is None


def test_ties_and_exact_hits_are_no_less_than_zero():
    means = torch.tensor([[1e3, 1e3], [1e3, 1e3]])
    assert nearest(means[:1], means, torch.eye(2)).item() == 0


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_the_limit_keeps_its_promise_on_new_images(rate):
    """Over many clients of 40 held-out images, the mean share refused is at most the rate."""
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(400):
        seen, new = torch.from_numpy(rng.gamma(2, size=40)), torch.from_numpy(rng.gamma(2, size=50))
        shares.append(refused(new, threshold(seen, rate)))
    assert rate - 0.03 < np.mean(shares) < rate + 0.01


def test_too_few_images_for_a_rate_use_the_farthest():
    assert threshold(torch.tensor([3.0, 1.0, 2.0]), 0.05) == 3
    assert threshold(torch.arange(1.0, 20.0), 0.05) == 19  # 20 * 0.95 = 19: the last
    assert threshold(torch.arange(1.0, 101.0), 0.05) == 96  # ceil(101 * 0.95)
