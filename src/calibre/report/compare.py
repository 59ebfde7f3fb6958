"""Methods beside each other: estimates with intervals, paired tests, and what to know of them.

Clients of unlike seeds are unlike clients, so a pair of a paired test is one client of one seed
under two methods. Trained and novel clients are tested apart.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from calibre.report.comparison_tables import Comparison, PairedTest
from calibre.report.inference import CONFIDENCE, EXACT, half_interval, holm, signed_rank
from calibre.report.metrics import Group
from calibre.report.rows import (
    OF_ROUNDS,
    Entry,
    Estimate,
    Row,
    arrange,
    differing,
    floor_identity,
    mean_of,
)
from calibre.report.runs import Run
from calibre.wording import percent


def compare(runs: Sequence[Run], floors: bool = True, all_pairs: bool = False) -> Comparison:
    """Every method of these runs; the best one tested against the others, or all against all."""
    comparison = Comparison(tuple(arrange(runs, floors)), (), ())
    tests = [
        test
        for group in comparison.groups
        for test in paired_tests(comparison.rows, group, all_pairs)
    ]
    notes = [*_how(comparison, tests, all_pairs), *_unlike(comparison.rows)]
    notes += [*_disagreements(comparison.rows, runs), *_troubles(runs)]
    return replace(comparison, tests=tuple(tests), notes=tuple(notes))


def paired_tests(rows: Sequence[Row], group: Group, all_pairs: bool) -> list[PairedTest]:
    """Of one group of clients, corrected over all of them."""
    ranked = sorted(rows, key=lambda row: -mean_of(row, group))
    against = ranked if all_pairs else ranked[:1]
    tests = [
        paired_test(group, one, other)
        for one, other in itertools.combinations(ranked, 2)
        if one in against
    ]
    corrected = holm([test.p for test in tests])
    return [replace(test, adjusted=p) for test, p in zip(tests, corrected, strict=True)]


def paired_test(group: Group, one: Row, other: Row) -> PairedTest:
    """Of two methods on the same clients, not corrected."""
    by_seed = [
        [a - b for a, b in zip(x.accuracies(group), y.accuracies(group), strict=True)]
        for x, y in zip(one.entries, other.entries, strict=True)
    ]
    means = [sum(differences) / len(differences) for differences in by_seed]
    pooled = list(itertools.chain(*by_seed))
    interval = half_interval(means if len(means) > 1 else pooled)
    p = signed_rank(pooled)
    return PairedTest(
        group,
        one.label,
        other.label,
        len(pooled),
        len(means),
        Estimate(sum(means) / len(means), interval),
        p,
        p,
    )


def _how(comparison: Comparison, tests: Sequence[PairedTest], all_pairs: bool) -> list[str]:
    """How the figures were made."""
    seeds, sure = comparison.seeds, percent(CONFIDENCE, 0)
    if len(seeds) > 1:
        notes = [
            f"the mean over {len(seeds)} seeds, ± half its {sure} interval (Student's t over seeds)"
        ]
    else:
        notes = [
            f"one seed: ± is half the {sure} interval of the mean over its clients "
            "(Student's t), and says nothing of how seeds vary"
        ]
    notes.append(
        "variance, std, worst tenth and min are over clients, each with its own model; kB sent is "
        "what one client sends the server in a round"
    )
    if tests:
        against = "every two methods" if all_pairs else "the method of the best mean against each"
        exact = "exact" if max(test.pairs for test in tests) <= EXACT else "normal approximation"
        notes.append(
            f"tests: {against}, Wilcoxon's signed-rank on per-client accuracy ({exact}, zeros by "
            "Pratt); a pair is one client of one seed; p corrected by Holm over the "
            f"{sum(test.group == tests[0].group for test in tests)} tests of a group"
        )
    return notes


def _unlike(rows: Sequence[Row]) -> list[str]:
    """Settings beyond the method itself in which rows differ: all else is not equal."""
    beyond = [
        {key: value for key, value in row.identity.items() if not key.startswith("method.")}
        for row in rows
        if row.measured
    ]
    with_rounds = [table for table in beyond if OF_ROUNDS[0] in table]
    without = [{k: v for k, v in table.items() if k not in OF_ROUNDS} for table in beyond]
    keys = sorted({*differing(with_rounds), *differing(without)})
    return [f"all else is not equal: the runs differ in {', '.join(keys)}"] if keys else []


def _disagreements(rows: Sequence[Row], runs: Sequence[Run]) -> list[str]:
    """Floors on which runs of the same seed do not agree: other versions made them otherwise."""
    notes = []
    for row in rows:
        for entry in row.entries:
            if (name := entry.floor) is None:
                continue
            others = [
                Entry(run, name)
                for run in runs
                if run.seed == entry.run.seed
                and name in run.clients[0].floors
                and floor_identity(run, name) == row.identity
            ]
            if any(other.scores() != entry.scores() for other in others):
                notes.append(
                    f"{row.label}, seed {entry.run.seed}: not all runs agree on it; shown as in "
                    f"{entry.run.folder}"
                )
    return notes


def _troubles(runs: Sequence[Run]) -> list[str]:
    """What went wrong in the runs themselves."""
    notes = []
    for run in runs:
        who = f"{run.label}, seed {run.seed}"
        if run.metrics.failures:
            notes.append(f"{who}: {run.metrics.failures} client updates failed")
        notes += [f"{who}: {warning}" for warning in run.metrics.warnings]
    return notes
