"""How sure a difference is: Student's interval, Wilcoxon's signed-rank test, Holm's correction."""

from collections.abc import Sequence

import numpy as np

CONFIDENCE = 0.95
EXACT = 300  # pairs up to which the signed-rank test counts all signs; beyond, the normal curve
DECIMALS = 12  # accuracies are fractions: differences that agree so far are ties


def half_interval(values: Sequence[float]) -> float | None:
    """Half the width of Student's interval for the mean; None of a single value."""
    from scipy.stats import t

    n = len(values)
    if n < 2:
        return None
    return float(t.ppf((1 + CONFIDENCE) / 2, n - 1) * np.std(values, ddof=1) / n**0.5)


def signed_rank(differences: Sequence[float]) -> float:
    """The two-sided p-value of Wilcoxon's signed-rank test on paired differences.

    Zeros take part in the ranking and then drop out (Pratt). Up to ``EXACT`` pairs it is the share
    of all ways to put signs on the observed ranks that are as uneven as the observed one, so that
    ties, which small test sets bring in numbers, cost no exactness.
    """
    from scipy.stats import rankdata, wilcoxon

    d = np.round(differences, DECIMALS)
    if not d.any():
        return 1.0
    if len(d) > EXACT:
        return float(wilcoxon(d, zero_method="pratt", method="asymptotic").pvalue)
    doubled = np.rint(2 * rankdata(np.abs(d))).astype(np.int64)  # ranks of ties are halves
    positive = int(doubled[d > 0].sum())
    ranks = doubled[d != 0]
    chance = np.zeros(
        ranks.sum() + 1
    )  # that random signs make the positive ranks add up to so much
    chance[0] = 1
    for rank in ranks:
        chance /= 2
        chance[rank:] += chance[:-rank].copy()
    tail = min(positive, len(chance) - 1 - positive)
    return min(1.0, float(2 * chance[: tail + 1].sum()))


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected p-values: below 5 %, the chance of even one false alarm among all is below 5 %."""
    adjusted = [0.0] * len(p_values)
    worst = 0.0
    for done, i in enumerate(np.argsort(p_values, kind="stable")):
        worst = max(worst, min(1.0, (len(p_values) - done) * p_values[i]))
        adjusted[i] = worst
    return adjusted
