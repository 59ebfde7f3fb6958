import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.stats import binomtest
from sklearn.metrics import log_loss

from calibre.personal.trust import calibration_error, fit_temperature, surprise, wilson


@pytest.mark.parametrize(("correct", "images"), [(0, 7), (7, 7), (3, 10), (173, 200), (1, 1)])
def test_the_interval_is_wilsons(correct, images):
    expected = binomtest(correct, images).proportion_ci(method="wilson")
    assert wilson(correct, images) == pytest.approx((expected.low, expected.high))


def answers(n, scale, seed=0):
    """Logits of a model whose honest ones are ``logits / scale``, and labels drawn from those."""
    generator = torch.Generator().manual_seed(seed)
    honest = 2 * torch.randn(n, 5, generator=generator)
    labels = torch.multinomial(honest.softmax(1), 1, generator=generator)[:, 0]
    return scale * honest, labels


@pytest.mark.parametrize("scale", [0.4, 1.0, 3.0])
def test_the_temperature_undoes_a_models_over_or_underconfidence(scale):
    logits, labels = answers(4000, scale)
    assert fit_temperature(logits, labels) == pytest.approx(scale, rel=0.08)
    before = calibration_error(logits.softmax(1), labels)
    after = calibration_error((logits / fit_temperature(logits, labels)).softmax(1), labels)
    assert after < 0.03
    assert scale == 1 or before > 3 * after


@pytest.mark.parametrize("n", [12, 200])
def test_the_temperature_is_the_most_probable_one(n):
    logits, labels = answers(n, 2.0, seed=n)
    z, y = logits.double().numpy(), labels.numpy()

    def minus_log_posterior(log_t):
        scaled = z / math.exp(log_t)
        log_p = scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)
        return -log_p[np.arange(n), y].sum() + log_t**2 / (2 * 0.5**2)

    best = minimize_scalar(minus_log_posterior, bounds=(-3, 3), method="bounded")
    assert fit_temperature(logits, labels) == pytest.approx(math.exp(best.x), rel=0.011)


def test_a_few_right_answers_do_not_make_certain():
    """Likelihood alone would take T to 0: every one of these is right."""
    logits = torch.tensor([[2.0, 0, 0], [0, 2, 0], [0, 0, 2]]).repeat(4, 1)
    labels = torch.arange(3).repeat(4)
    sure = (logits / fit_temperature(logits, labels)).softmax(1).max()
    assert 0.8 < sure < 0.99


def test_calibration_error_against_a_loop_over_bins():
    logits, labels = answers(500, 1.0)  # honest: which bins are too sure is chance
    p = logits.softmax(1)
    error = 0.0
    for b in range(15):
        inside = [i for i in range(500) if b / 15 < float(p[i].max().double()) <= (b + 1) / 15]
        if inside:
            sure = sum(float(p[i].max()) for i in inside) / len(inside)
            right = sum(int(p[i].argmax()) == int(labels[i]) for i in inside) / len(inside)
            error += len(inside) / 500 * abs(sure - right)
    assert calibration_error(p, labels) == pytest.approx(error, abs=1e-6)


def test_calibration_error_of_the_certain():
    sure = torch.eye(3)
    assert calibration_error(sure, torch.tensor([0, 1, 2])) == 0
    assert calibration_error(sure, torch.tensor([1, 2, 0])) == 1


def test_surprise_is_the_log_loss():
    logits, labels = answers(100, 1.0)
    p = logits.double().softmax(1)
    assert surprise(p, labels) == pytest.approx(log_loss(labels, p.numpy(), labels=range(5)))
