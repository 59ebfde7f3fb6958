import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from calibre.errors import UserError
from calibre.models.network import Head
from calibre.personal import blocks, regression
from calibre.personal.class_mix import corrected
from calibre.personal.holdout import stratified
from calibre.personal.solve import (
    FoldedProblem,
    HeadProblem,
    answer_folds,
    fold,
    scaling,
    solve_heads,
    standardise,
    unfold,
)
from calibre.rng import stream

CLASSES, D = 6, 12


def problem(
    n: int,
    held: list[int],
    strength: float = 1.0,
    apart: float = 1.0,
    twins: bool = False,
    key: int = 0,
    d: int = D,
) -> HeadProblem:
    """Clouds around class means; with ``twins``, every point twice, with labels of their own."""
    draw = stream(3, "test-solve", n, len(held), key)
    labels = torch.tensor(held)[torch.randint(len(held), (n,), generator=draw)]
    means = apart * torch.randn(CLASSES, d, generator=draw, dtype=torch.float64)
    features = means[labels] + torch.randn(n, d, generator=draw, dtype=torch.float64)
    if twins:
        features[n // 2 :] = features[: n - n // 2].clone()
    return HeadProblem(features, labels, strength)


def prior(key: int, scale: float = 0.5) -> Head:
    draw = stream(3, "test-prior", key)
    weight = scale * torch.randn(CLASSES, D, generator=draw, dtype=torch.float64)
    return Head(weight, torch.randn(CLASSES, generator=draw, dtype=torch.float64))


def objective(task: HeadProblem, weight: np.ndarray, bias: np.ndarray) -> float:
    """Sample by sample, over rows [K, d] and [K] of the classes that the task has."""
    held = sorted(set(task.labels.tolist()))
    start = np.zeros_like(weight)
    if task.prior is not None:
        rows = task.prior.weight[held].numpy()
        start = rows - rows.mean(0)
    total = ((weight - start) ** 2).sum() / (2 * task.strength)
    for x, label in zip(task.features.double().numpy(), task.labels.tolist(), strict=True):
        logits = weight @ x + bias
        peak = logits.max()
        total += peak + np.log(np.exp(logits - peak).sum()) - logits[held.index(label)]
    return float(total)


def reached(task: HeadProblem, head: Head) -> float:
    held = sorted(set(task.labels.tolist()))
    return objective(task, head.weight[held].numpy(), head.bias[held].numpy())


def least(task: HeadProblem) -> float:
    """By scikit-learn, whose two classes are the rows ±w/2 with twice the C."""
    held = sorted(set(task.labels.tolist()))
    if len(held) == 1:
        return 0.0
    factor = 2 if len(held) == 2 else 1
    model = LogisticRegression(C=factor * task.strength, tol=1e-8, max_iter=5000)
    model.fit(task.features.double().numpy(), task.labels.numpy())
    weight, bias = model.coef_, model.intercept_
    if len(held) == 2:
        weight, bias = np.stack([-weight[0], weight[0]]) / 2, np.array([-bias[0], bias[0]]) / 2
    return objective(task, weight, bias)


CASES = [
    problem(n, held, strength, apart, twins)
    for n in (1, 2, 5, 9, 30, 120)  # fewer and more than features
    for held in ([4], [1, 5], [0, 2, 3], list(range(CLASSES)))
    for strength in (1e-3, 0.1, 10.0, 1e4)
    for apart, twins in ((0.3, False), (5.0, False), (1.0, True))  # overlapping; separable
]


@pytest.fixture(scope="module")
def together() -> list[Head]:
    return solve_heads(CASES, CLASSES)


def test_every_objective_is_scikit_learns_least(together: list[Head]) -> None:
    for task, head in zip(CASES, together, strict=True):
        expected = least(task)
        assert reached(task, head) <= expected + 1e-4 * max(1, expected), (task, head)


def test_answers_are_scikit_learns() -> None:
    several, two = problem(60, [0, 1, 3, 4], 0.3), problem(40, [2, 5], 0.3)
    for task, factor in ((several, 1), (two, 2)):
        (head,) = solve_heads([task], CLASSES)
        model = LogisticRegression(C=factor * task.strength, tol=1e-9, max_iter=5000)
        model.fit(task.features.numpy(), task.labels.numpy())
        images = problem(50, [0], key=9).features
        expected = torch.tensor(model.predict_proba(images.numpy()))
        found = F.linear(images, *head).softmax(1)[:, sorted(set(task.labels.tolist()))]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_client_does_not_notice_the_others(together: list[Head]) -> None:
    for i in range(0, len(CASES), 5):
        (alone,) = solve_heads([CASES[i]], CLASSES)
        torch.testing.assert_close(alone.weight, together[i].weight, rtol=0, atol=1e-6)
        torch.testing.assert_close(alone.bias, together[i].bias, rtol=0, atol=1e-6)


def test_the_same_problems_give_the_same_bits(together: list[Head]) -> None:
    for first, second in zip(together, solve_heads(CASES, CLASSES), strict=True):
        assert torch.equal(first.weight, second.weight)
        assert torch.equal(first.bias, second.bias)


def test_padding_and_the_size_of_blocks_do_not_matter(
    together: list[Head], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "STEP", 10)  # few blocks, and much padding
    monkeypatch.setattr(blocks, "ELEMENTS", 10**9)
    some = range(0, len(CASES), 7)
    for i, head in zip(some, solve_heads([CASES[i] for i in some], CLASSES), strict=True):
        torch.testing.assert_close(head.weight, together[i].weight, rtol=0, atol=1e-6)


def test_both_preconditioners_lead_to_the_optimum(
    together: list[Head], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regression, "ITERATIONS", 4)
    monkeypatch.setattr(regression, "PHASES", 9)
    some = range(0, len(CASES), 5)
    for i, head in zip(some, solve_heads([CASES[i] for i in some], CLASSES), strict=True):
        torch.testing.assert_close(head.weight, together[i].weight, rtol=0, atol=2e-6)
    monkeypatch.setattr(regression, "NUMBERS", 0)  # nothing but the diagonal
    easy = [i for i, task in enumerate(CASES) if task.strength <= 0.1][::5]
    for i, head in zip(easy, solve_heads([CASES[i] for i in easy], CLASSES), strict=True):
        torch.testing.assert_close(head.weight, together[i].weight, rtol=0, atol=2e-6)


def test_one_class_always_wins() -> None:
    (head,) = solve_heads([problem(7, [3])], CLASSES)
    images = 100 * problem(30, [0], key=1).features
    assert F.linear(images, *head).argmax(1).eq(3).all()
    assert not head.weight.any()


@pytest.mark.parametrize("held", [[2], [1, 4], [0, 2, 5]])
@pytest.mark.parametrize("temperature", [0.05, 1.0, 20.0])
def test_classes_without_a_label_have_no_chance_however_strange_the_image(
    held: list[int], temperature: float
) -> None:
    task = problem(40, held, 1e3, apart=3)
    scale = scaling(task.features)
    (head,) = solve_heads([task._replace(prior=prior(1, scale=20))], CLASSES)
    labelled = torch.zeros(CLASSES, dtype=torch.float64)
    labelled[held] = 1 / len(held)
    mix = torch.zeros_like(labelled)
    mix[held] = torch.linspace(1, 0.001, len(held), dtype=torch.float64)
    raw = fold(corrected(head, mix / mix.sum(), labelled, temperature), scale)
    weight, bias = raw.weight.float(), raw.bias.float()
    for size in (0.0, 1.0, 1e3):
        images = size * problem(200, [0], key=2).features.float()
        chances = (F.linear(images, weight, bias) / temperature).softmax(1)
        absent = [k for k in range(CLASSES) if k not in held]
        assert chances.isfinite().all()
        assert not chances[:, absent].any()


def test_shrinks_towards_the_prior() -> None:
    """Against scipy on the objective written out, with a numerical gradient."""
    task = problem(9, [0, 2, 3], 0.2)._replace(prior=prior(2))
    (head,) = solve_heads([task], CLASSES)

    def f(flat: np.ndarray) -> float:
        return objective(task, flat[: 3 * D].reshape(3, D), flat[3 * D :])

    found = minimize(f, np.zeros(3 * D + 3), method="L-BFGS-B", options={"maxfun": 10**6})
    assert reached(task, head) <= found.fun + 1e-7
    assert found.fun - reached(task, head) < 1e-4


def test_limits_of_the_prior() -> None:
    task, belief = problem(30, [0, 1, 4]), prior(3)
    held = [0, 1, 4]
    strong, weak, none = solve_heads(
        [
            task._replace(strength=1e-8, prior=belief),
            task._replace(strength=1e4, prior=belief),
            task._replace(strength=1e4),
        ],
        CLASSES,
    )
    expected = belief.weight[held] - belief.weight[held].mean(0)
    torch.testing.assert_close(strong.weight[held], expected, rtol=0, atol=1e-6)
    objectives = [
        objective(task, h.weight[held].numpy(), h.bias[held].numpy()) for h in (weak, none)
    ]
    assert objectives[0] < 1.01 * objectives[1] + 0.05  # the prior is all but forgotten


def test_the_bias_of_a_prior_is_where_to_start_not_where_to_stay() -> None:
    task, belief = problem(30, [0, 1, 4], 0.1), prior(4)
    shifted = Head(belief.weight, belief.bias + torch.arange(CLASSES))
    one, other = solve_heads([task._replace(prior=p) for p in (belief, shifted)], CLASSES)
    torch.testing.assert_close(one.bias, other.bias, rtol=0, atol=2e-6)


def test_a_class_that_the_prior_rules_out_can_be_learnt() -> None:
    before, now = problem(40, [0, 1], apart=3), problem(60, [0, 1, 2], apart=3)
    (old,) = solve_heads([before], CLASSES)
    assert old.bias[2] == blocks.ABSENT
    task = now._replace(prior=old)
    (head,) = solve_heads([task], CLASSES)
    assert (F.linear(now.features, *head).argmax(1) == now.labels).double().mean() > 0.9
    assert head.bias[[0, 1, 2]].abs().max() < 20


def test_a_prior_that_is_sure_and_wrong_is_overcome() -> None:
    task = problem(50, [0, 1, 2, 3], 1.0)
    belief = Head(1e3 * prior(5).weight, 1e3 * prior(5).bias)
    (head,) = solve_heads([task._replace(prior=belief)], CLASSES)
    (repeated,) = solve_heads([task._replace(prior=belief), problem(50, [1, 2])], CLASSES)[:1]
    torch.testing.assert_close(head.weight, repeated.weight, rtol=0, atol=1e-6)
    flat = np.concatenate([head.weight[:4].numpy().ravel(), head.bias[:4].numpy()])

    def f(x: np.ndarray) -> float:
        return objective(task._replace(prior=belief), x[: 4 * D].reshape(4, D), x[4 * D :])

    for k in range(0, len(flat), 11):  # flat in every direction: nothing is left to gain
        nudge = np.zeros_like(flat)
        nudge[k] = 1e-3
        assert f(flat) <= min(f(flat + nudge), f(flat - nudge))


def test_standardised_by_all_images() -> None:
    images = problem(50, [0], key=6).features.float() * 3 + 7
    centre, spread = scaling(images)
    for j in range(D):
        column = [float(v) for v in images[:, j]]
        mean = sum(column) / len(column)
        assert centre[j].item() == pytest.approx(mean)
        square = sum((v - mean) ** 2 for v in column) / len(column)
        assert spread[j].item() == pytest.approx(square**0.5)
    x = standardise(images, scaling(images))
    torch.testing.assert_close(x.mean(0), torch.zeros(D, dtype=torch.float64))
    torch.testing.assert_close(x.square().mean(0), torch.ones(D, dtype=torch.float64))


def test_a_constant_feature_does_not_explode() -> None:
    images = problem(50, [0], key=6).features
    images[:, 3] = 0.1
    images[:, 4] = 1e-9 * images[:, 4]
    by = scaling(images)
    assert not standardise(images, by)[:, 3].any()
    stranger = images[:1] + 1
    assert standardise(stranger, by)[0, 3:5].abs().max() < 1000
    assert standardise(images[:1], scaling(images[:1])).eq(0).all()  # a client with one image


def test_the_scaling_folds_into_the_head_exactly() -> None:
    images = problem(50, [0], key=6).features * torch.logspace(-4, 4, D, dtype=torch.float64) + 50
    by, head = scaling(images), prior(7)
    raw = fold(head, by)
    expected = F.linear(standardise(images, by), *head)
    torch.testing.assert_close(F.linear(images, *raw), expected, rtol=1e-9, atol=1e-6)
    back = unfold(raw, by)
    torch.testing.assert_close(back.weight, head.weight)
    torch.testing.assert_close(back.bias, head.bias, rtol=1e-9, atol=1e-6)
    absent = Head(torch.zeros(CLASSES, D), torch.full((CLASSES,), blocks.ABSENT))
    assert fold(absent, by).bias.float().eq(blocks.ABSENT).all()


def folded(n: int, held: list[int], key: int, belief: Head | None = None) -> FoldedProblem:
    """A problem dealt into three folds; a class with one sample is in none."""
    task = problem(n, held, key=key)
    fold = stratified(task.labels, 3, stream(3, "test-folds", key))
    return FoldedProblem(task.features, task.labels, fold, (0.03, 0.1, 0.3), belief)


FOLDED = [
    folded(30, [0, 2, 3], 0),
    folded(31, [1, 5], 1, prior(8)),
    folded(9, [0, 1, 2, 3, 4, 5], 2),
    folded(2, [3], 3),
    folded(80, [0, 1, 2, 4], 4, prior(9)),
]


def test_folds_are_answered_by_the_heads_of_the_other_folds() -> None:
    """One head at a time, from nothing but the rows that it may see."""
    for task, answers in zip(FOLDED, answer_folds(FOLDED, CLASSES, 3), strict=True):
        for strength, logits in zip(task.strengths, answers, strict=True):
            assert logits[task.fold < 0].eq(0).all()
            for f in set(task.fold.tolist()) - {-1}:
                rows = task.fold != f
                seen = task.features[rows], task.labels[rows]
                (head,) = solve_heads([HeadProblem(*seen, strength, task.prior)], CLASSES)
                expected = F.linear(task.features[~rows], *head)
                torch.testing.assert_close(logits[~rows], expected, rtol=0, atol=2e-5)


def test_folds_of_a_client_do_not_notice_other_clients() -> None:
    together = answer_folds(FOLDED, CLASSES, 3, 1e-8, math.inf)
    again = answer_folds(FOLDED, CLASSES, 3, 1e-8, math.inf)
    for task, answers, same in zip(FOLDED, together, again, strict=True):
        (alone,) = answer_folds([task], CLASSES, 3, 1e-8, math.inf)
        assert torch.equal(answers, same)
        assert torch.equal(answers, alone)


@pytest.mark.parametrize("d", [D, 60, 128])
@pytest.mark.parametrize("n", [13, 40, 60])
def test_nobody_else_decides_how_a_clients_head_is_rounded(n: int, d: int) -> None:
    """Sites solve alone what one machine solves together: it must be the same to the last bit."""
    tasks = [problem(n + i, [0, 2, 3], 0.3, key=i, d=d) for i in range(5)]
    for task, head in zip(tasks, solve_heads(tasks, CLASSES), strict=True):
        (alone,) = solve_heads([task], CLASSES)
        assert torch.equal(alone.weight, head.weight)
        assert torch.equal(alone.bias, head.bias)


def bad(features: Tensor | None = None, **changes: object) -> HeadProblem:
    task = problem(10, [0, 1])
    return task._replace(**({"features": features} if features is not None else {}), **changes)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (
            HeadProblem(torch.zeros(0, D), torch.zeros(0, dtype=torch.int64), 1.0),
            "problem 1 has no label",
        ),
        (bad(torch.full((10, D), float("nan"))), "problem 1 has features that are NaN"),
        (bad(torch.zeros(9, D)), "one row for each"),
        (bad(labels=torch.full((10,), CLASSES)), "labels outside of 0..5"),
        (bad(strength=0.0), "C of 0"),
        (bad(strength=float("nan")), "C of nan"),
        (bad(prior=Head(torch.zeros(CLASSES, D + 1), torch.zeros(CLASSES))), "prior of problem 1"),
    ],
)
def test_what_cannot_be_solved_is_named(task: HeadProblem, words: str) -> None:
    with pytest.raises(UserError, match=words):
        solve_heads([problem(10, [0, 1]), task], CLASSES)
