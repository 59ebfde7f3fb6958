"""How common each class is: by a naive loop, a case with a known answer, and limits."""

import math

import pytest
import torch

from calibre.models.network import Head
from calibre.personal.class_mix import class_mix, corrected, label_mix


def naive(probabilities, labelled, prior=1.0, rounds=2000):
    held = [k for k in range(len(labelled)) if labelled[k] > 0]
    mix = {k: 1 / len(held) for k in held}
    for _ in range(rounds):
        total = dict.fromkeys(held, prior / len(held))
        for row in probabilities:
            share = {k: row[k] / labelled[k] * mix[k] for k in held}
            whole = sum(share.values())
            for k in held:
                total[k] += share[k] / whole
        mix = {k: total[k] / (prior + len(probabilities)) for k in held}
    return [mix.get(k, 0.0) for k in range(len(labelled))]


def test_by_a_naive_loop():
    torch.manual_seed(0)
    probabilities = torch.rand(25, 4).softmax(1).double()
    labelled = torch.tensor([0.5, 0.3, 0.0, 0.2], dtype=torch.float64)
    found = class_mix(probabilities, labelled)
    assert found.tolist() == pytest.approx(
        naive(probabilities.tolist(), labelled.tolist()), abs=1e-6
    )


def test_sure_answers_are_counted():
    sure = torch.eye(2, dtype=torch.float64)[[0] * 90 + [1] * 10]
    found = class_mix(sure, torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert found.tolist() == pytest.approx([90.5 / 101, 10.5 / 101], abs=1e-6)


def test_without_images_nothing_changes_and_a_strong_prior_is_even():
    labelled = torch.tensor([0.7, 0.3], dtype=torch.float64)
    assert torch.equal(class_mix(torch.zeros(0, 2), labelled), labelled)
    sure = torch.eye(2, dtype=torch.float64)[[0] * 5]
    assert class_mix(sure, labelled, prior=1e9).tolist() == pytest.approx([0.5, 0.5], abs=1e-6)


def test_a_head_is_corrected_by_the_ratio_at_its_temperature():
    head = Head(torch.zeros(3, 2), torch.tensor([0.0, 0.0, -1e4]))
    labelled = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    mix = torch.tensor([0.8, 0.2, 0.0], dtype=torch.float64)
    new = corrected(head, mix, labelled, temperature=2.0)
    probabilities = (new.bias / 2.0).softmax(0)
    assert probabilities.tolist() == pytest.approx([0.8, 0.2, 0.0], abs=1e-6)
    assert new.bias[2] == -1e4
    assert math.isclose(label_mix(torch.tensor([0, 0, 1]), 3)[0].item(), 2 / 3)
