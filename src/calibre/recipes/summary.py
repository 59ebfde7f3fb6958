"""What a reader can rely on, in short: which method is best where, and what the paper claimed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from calibre.evidence.kept import Evidence
from calibre.recipes import all_recipes, table1
from calibre.recipes.campaign import (
    PROBES,
    SCHEMES,
    in_short,
    panel_of,
    tests_of_calibration,
    verdicts_of,
)
from calibre.recipes.claims import LABELLED, NOT_RUN, TWO
from calibre.recipes.gathered import Gathered, Passage, gather
from calibre.recipes.label_budget import TYPICAL, budget_of, has_curve, series_of
from calibre.recipes.recipe import Conclusion, Verdict
from calibre.recipes.scales import Scheme
from calibre.recipes.unseen_classes import row_of, runs_by_label
from calibre.recipes.wide_table import Head, of_head, told_apart
from calibre.report.compare import paired_test
from calibre.report.figures.label_budgets import lead_over
from calibre.report.inference import holm
from calibre.report.metrics import Group
from calibre.report.rows import Row, arrange, mean_of
from calibre.report.runs import Run
from calibre.wording import percent

RESTS_ON = (
    "label-budget", "main-comparison", "larger-scale", "novel-classes", "objectives", "table-1",
)  # fmt: skip
HEADER = ("labels per client", "clients × images, classes, encoder", "ways compared",
          "best where it trained", "best at novel clients")  # fmt: skip
DRAWN_AGAINST = "FedAvg-FT"  # in the picture, of these
DRAWN = (TWO, LABELLED, f"pFL-SimCLR{TYPICAL}", DRAWN_AGAINST, "FedPer", "local only", "own pixels")
MOST_NAMED = 3  # ways that are not told apart from the best
OF_HEADS: dict[Head, str] = {"solved": "", "paper": ", the paper's head"}


def passage(evidence: Evidence) -> Passage:
    found = {name: gather(all_recipes.find(name), evidence) for name in RESTS_ON}
    shown = [entry for one in found.values() for entry in one.entries]
    held = [entry for one in found.values() for entry in one.held]
    return Passage(summary(found), tuple(shown), tuple(held))


def summary(found: Mapping[str, Gathered]) -> Conclusion:
    """A table, a picture and the claims; of what was not run, the command."""
    lines = [*_by_labels(found["label-budget"].runs), *_with_all(found)]
    parts, pictures = [], {}
    if lines:
        rows = [HEADER, ["---"] * len(HEADER), *lines]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
        parts.append(
            "Best: the highest mean of clients, each with its own model. Two ways are told apart "
            "where paired tests over clients do it (corrected over the tests of a line) and the "
            "interval over seeds does, too. Heads are solved unless another is named, labels "
            "drawn at random unless they are called typical."
        )
    series = series_of(found["label-budget"].runs)
    drawn = {name: series[name] for name in DRAWN if name in series}
    if has_curve(drawn) and DRAWN_AGAINST in drawn:
        pictures["curve"] = lambda: lead_over(DRAWN_AGAINST, drawn)
        parts.append("![accuracy and fairness against labels per client](picture:curve)")
        parts.append(
            f"Mean of clients; its difference from {DRAWN_AGAINST}'s, with its 95 % interval over "
            "seeds; and the worst tenth of clients."
        )
    for head, title in PROBES.items():
        if calibration := tests_of_calibration(of_head(head, found["objectives"].runs)):
            parts.append(in_short(calibration, title))
    if claims := _claims(found):
        parts.append(
            "What the paper's claims came to at this scale, measured by solved and by the paper's "
            "heads, without and with labels in training; open is what the interval over seeds "
            "leaves open ([differences and intervals](docs/results.md#the-main-comparison)):"
        )
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in claims))
    begun = [f"`{one.command}`, {one.missing:,} runs" for one in found.values()
             if one.entries and one.missing]  # fmt: skip
    if begun:
        parts.append(f"Still missing, and not ranked above: {'; '.join(begun)}.")
    missing = [one.command for one in found.values() if not one.entries]
    if missing:
        parts.append("Not run yet: " + ", ".join(f"`{command}`" for command in missing) + ".")
    return Conclusion("\n\n".join(parts), pictures)


def _by_labels(runs: Sequence[Run]) -> list[list[str]]:
    """Of each number of labels, the best. With all labels, more methods were run: see below."""
    series = series_of(runs)
    few = [
        run
        for run in runs
        if run.experiment.personal.labels or run.experiment.federation.label_count
    ]
    lines = []
    for budget in sorted({budget_of(run) for run in few}):
        rows = [by_budget[budget] for by_budget in series.values() if budget in by_budget]
        lines.append([str(budget), *_setting(runs[0], rows), *_best_of_both(rows)])
    return lines


def _with_all(found: Mapping[str, Gathered]) -> list[list[str]]:
    """Both federations with all labels, more compute, and classes that nobody trained on."""
    lines = []
    for runs in (*_by_scheme(found).values(), found["larger-scale"].runs):
        if runs:
            rows = _of_both_heads(runs)
            lines.append(["all", *_setting(runs[0], rows), *_best_of_both(rows)])
    if unseen := found["novel-classes"].runs:
        rows = _over_triples(unseen)
        setting, ways = _setting(unseen[0], rows)
        lines.append(["all", f"{setting}, new classes", ways, "", _best(rows, "novel")])
    return lines


def _by_scheme(found: Mapping[str, Gathered]) -> dict[Scheme, list[Run]]:
    runs = found["main-comparison"].runs
    return {
        scheme: [run for run in runs if run.experiment.federation.scheme == scheme]
        for scheme in SCHEMES
    }


def _of_both_heads(runs: Sequence[Run]) -> list[Row]:
    """A row for every method and kind of head: no method is ranked by one that ill suits it."""
    rows = []
    for head, name in OF_HEADS.items():
        if own := of_head(head, runs):
            rows += [replace(row, label=row.label + name) for row in arrange(own, floors=False)]
    return rows


def _over_triples(runs: Sequence[Run]) -> list[Row]:
    rows = [row_of(label, own) for label, own in runs_by_label(runs).items()]
    most = max(len(row.entries) for row in rows)
    return [row for row in rows if len(row.entries) == most]


def _setting(run: Run, rows: Sequence[Row]) -> tuple[str, str]:
    """Of a run, and how many ways stand beside each other."""
    e = run.experiment
    mix = f"Dir({e.federation.alpha:g})"
    if e.federation.scheme == "quantity":
        mix = f"{e.federation.classes} classes each"
    encoder = f"{e.network.encoder} of width {e.network.width}"
    clients = f"{e.federation.clients} × {e.federation.samples}"
    seeds = ", one seed" if len(rows[0].entries) == 1 else ""
    return f"{clients}, {mix}, {encoder}{seeds}", str(len(rows))


def _best_of_both(rows: Sequence[Row]) -> list[str]:
    return [_best(rows, "train"), _best(rows, "novel")]


def _best(rows: Sequence[Row], group: Group) -> str:
    """The best mean, and those that are not told apart from it."""
    ranked = sorted(rows, key=lambda row: -mean_of(row, group))
    if not ranked or ranked[0].estimate(group, "mean") is None:
        return ""
    best, others = ranked[0], ranked[1:]
    tests = [paired_test(group, best, other) for other in others]
    adjusted = holm([test.p for test in tests])
    level = [
        row.label
        for row, test, p in zip(others, tests, adjusted, strict=True)
        if not told_apart(test, p)
    ]
    said = f"**{best.label}**, {percent(mean_of(best, group))}"
    if level:
        more = len(level) - MOST_NAMED
        named = "; ".join(level[:MOST_NAMED])  # some names have commas
        said += f". Not told apart: {named}{f'; and {more} more' if more > 0 else ''}"
    return said


def _claims(found: Mapping[str, Gathered]) -> list[list[str]]:
    """A table: each claim, and by how many ways of measuring it came out how."""
    lines = []
    for scheme, runs in _by_scheme(found).items():
        for claim in panel_of(scheme).claims if runs else ():
            if said := in_all([verdict for verdict, _ in verdicts_of(claim, runs)]):
                where = SCHEMES[scheme][0].lower() + SCHEMES[scheme][1:]
                lines.append([f"{_unnumbered(claim.text)}, {where}", said])
    lines += _claims_of_table_1(found["table-1"].runs)
    return (
        [["the paper says", "here, by how many ways of measuring"], ["---"] * 2, *lines]
        if lines
        else []
    )


def _unnumbered(claim: str) -> str:
    """Without what docs/results.md calls it: q1, or C10, q5."""
    return claim.partition(": ")[2]


def in_all(verdicts: Sequence[Verdict]) -> str:
    """How often each verdict was reached, the most frequent first; nothing where none was."""
    counts = Counter(verdict for verdict in verdicts if verdict != NOT_RUN[0])
    ways = counts.total()
    return ", ".join(f"{verdict} in {count} of {ways}" for verdict, count in counts.most_common())


def _claims_of_table_1(runs: Sequence[Run]) -> list[list[str]]:
    """Of its three forms: the paper's heads were not asked for with labels in training."""
    judged = [
        table1.claims_of(own)
        for form in table1.FORMS
        if (own := [run for run in runs if table1.form(run.experiment) == form])
    ]
    if len(judged) < len(table1.FORMS):
        return []
    return [
        [_unnumbered(same[0][0]), in_all([verdict for _, verdict, _ in same])]
        for same in zip(*judged, strict=True)
    ]
