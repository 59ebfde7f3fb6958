import pytest
import torch
import torch.nn.functional as F

from calibre.models.network import Head
from calibre.personal.heads import Samples, fresh_head, train_heads
from calibre.personal.holdout import as_it_is, cross_validate, refit_heads, stratified
from calibre.personal.trust import fit_temperature
from calibre.sections import PersonalSettings

LABELS = torch.tensor([0] * 11 + [1] * 4 + [2] * 2 + [3])


def generator():
    return torch.Generator().manual_seed(0)


def test_folds_are_even_and_every_class_is_spread():
    fold = stratified(LABELS, 5, generator())
    assert fold[LABELS == 3].tolist() == [-1]  # nothing else would know its class
    sizes = fold[fold >= 0].bincount(minlength=5)
    assert sizes.max() - sizes.min() <= 1
    for label, count in ((0, 11), (1, 4), (2, 2)):
        spread = fold[label == LABELS].bincount(minlength=5)
        assert spread.max() <= -(-count // 5)


def test_no_model_answers_for_an_image_it_was_fitted_to():
    features = torch.randn(len(LABELS), 3, generator=generator())
    seen = []

    def refit(trained):
        for rows in trained:
            seen.append(set(rows.tolist()))
            logits = torch.zeros(len(LABELS), 4)
            logits[rows, LABELS[rows]] = 100  # knows by heart what it has seen, and nothing else
            yield features, logits

    held = cross_validate(LABELS, refit, generator())
    assert len(held.labels) == 17
    assert held.logits.abs().max() == 0
    assert len(held.distances) == 17
    assert all(17 in rows for rows in seen)  # the single image of its class, always


def test_heads_of_all_folds_are_those_trained_one_by_one():
    features = torch.randn(len(LABELS), 6, generator=generator())
    samples, start = Samples(features, LABELS), fresh_head(0, 0, 4, 6)
    settings = PersonalSettings(epochs=3, batch=4)
    rows = [torch.arange(10), torch.arange(5, 17)]
    found = list(refit_heads(samples, start, settings, 0)(rows))
    for fold, part in enumerate(rows):
        weight, bias = train_heads(
            [fold], [Samples(features[part], LABELS[part])], [start], settings, 0
        )
        expected = F.linear(features, weight[0], bias[0])
        torch.testing.assert_close(found[fold][1], expected)


def test_accuracy_of_pure_chance_is_not_flattered():
    """Labels that say nothing of the features: a model that peeked would do better."""
    labels = torch.arange(60) % 2
    features = torch.randn(60, 200, generator=generator())
    samples = Samples(features, labels)
    refit = refit_heads(samples, fresh_head(0, 0, 2, 200), PersonalSettings(epochs=50), 0)
    assert cross_validate(labels, refit, generator()).correct / 60 < 0.7
    weight, bias = train_heads(
        [0], [samples], [fresh_head(0, 0, 2, 200)], PersonalSettings(epochs=50), 0
    )
    assert (F.linear(features, weight[0], bias[0]).argmax(1) == labels).float().mean() == 1


def test_each_fold_is_calibrated_by_the_others():
    features, logits = torch.randn(40, 3), 9 * torch.randn(40, 2, generator=generator())
    labels = torch.arange(40) % 2
    held = cross_validate(labels, as_it_is(features, logits), generator())
    p = held.calibrated()
    for fold in range(5):
        here = held.folds == fold
        t = fit_temperature(held.logits[~here], held.labels[~here])
        torch.testing.assert_close(p[here], (held.logits[here] / t).softmax(1))


def test_images_of_all_unlike_classes_hold_nothing_out():
    refit = refit_heads(
        Samples(torch.randn(3, 2), torch.arange(3)),
        Head(torch.zeros(3, 2), torch.zeros(3)),
        PersonalSettings(),
        0,
    )
    held = cross_validate(torch.arange(3), refit, generator())
    assert len(held.labels) == len(held.distances) == held.correct == 0


@pytest.mark.parametrize("count", [2, 3])
def test_two_images_of_a_class_are_enough_to_hold_one_out(count):
    held = cross_validate(
        torch.zeros(count, dtype=torch.int64),
        as_it_is(torch.randn(count, 4), torch.zeros(count, 1)),
        generator(),
    )
    assert len(held.labels) == count
