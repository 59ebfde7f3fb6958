"""What a reader can rely on, in short: which method is best where, and what the paper claimed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from calibre.recipes import table1
from calibre.recipes.campaign import (
    SCHEMES,
    by_method,
    in_short,
    panel_of,
    tests_of_calibration,
)
from calibre.recipes.claims import LABELLED, NOT_RUN, TWO
from calibre.recipes.gathered import Gathered
from calibre.recipes.label_budget import TYPICAL, has_curve, series_of
from calibre.recipes.recipe import Conclusion
from calibre.recipes.unseen_classes import row_of, runs_by_label
from calibre.recipes.wide_table import SURE, by_the_paper
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
HEADER = ("labels per client", "clients, images, encoder, methods", "best where it trained",
          "best at novel clients")  # fmt: skip
DRAWN_AGAINST = "FedAvg-FT"  # in the picture, of these
DRAWN = (TWO, LABELLED, f"pFL-SimCLR{TYPICAL}", DRAWN_AGAINST, "FedPer", "local only", "own pixels")
MOST_NAMED = 3  # methods that are level with the best
FORMS = ("", " with labels")
HEADS = {"paper": "the paper's heads", "solved": "solved heads"}


def summary(found: Mapping[str, Gathered]) -> Conclusion:
    """A table, a picture and the claims; of what was not run, the command."""
    lines = [*_by_labels(found["label-budget"].runs), *_with_all(found)]
    parts, pictures = [], {}
    if lines:
        rows = [HEADER, ["---"] * len(HEADER), *lines]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
        parts.append(
            "Best: the highest mean accuracy of clients, each with its own model, and whoever "
            "paired tests over clients do not tell apart from it (corrected for their number)."
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
    if calibration := tests_of_calibration(found["objectives"].runs):
        parts.append(in_short(calibration))
    if claims := _claims(found):
        parts.append(
            "What the paper's claims came to at this scale, by its method without labels in "
            "training and with them (of Table I, q1 to q3, by both kinds of heads):"
        )
        parts.append("\n".join(f"- {said}" for said in claims))
    begun = [f"`{one.command}`, {one.missing:,} runs" for one in found.values()
             if one.entries and one.missing]  # fmt: skip
    if begun:
        parts.append(f"Still missing, and not ranked above: {'; '.join(begun)}.")
    missing = [one.command for one in found.values() if not one.entries]
    if missing:
        parts.append("Not run yet: " + ", ".join(f"`{command}`" for command in missing) + ".")
    return Conclusion("\n\n".join(parts), pictures)


def _by_labels(runs: Sequence[Run]) -> list[list[str]]:
    """Of each number of labels, the best."""
    series = series_of(runs)
    lines = []
    for budget in sorted({b for by_budget in series.values() for b in by_budget}):
        rows = [by_budget[budget] for by_budget in series.values() if budget in by_budget]
        rows = _distinct(rows)
        lines.append([str(budget), _setting(runs[0], rows), *_best_of_both(rows)])
    return lines


def _distinct(rows: Sequence[Row]) -> list[Row]:
    """Rows of unlike runs: with all labels there is nothing to choose, and two series are one."""
    found: dict[tuple[Path, ...], Row] = {}
    for row in rows:
        found.setdefault(tuple(entry.run.folder for entry in row.entries), row)
    return list(found.values())


def _with_all(found: Mapping[str, Gathered]) -> list[list[str]]:
    """The other federation, more compute, and classes that nobody trained on."""
    lines = []
    quantity = [
        run
        for run in found["main-comparison"].runs
        if run.experiment.federation.scheme == "quantity" and not by_the_paper(run)
    ]
    for runs in (quantity, found["larger-scale"].runs):
        if runs:
            rows = arrange(runs, floors=False)
            lines.append(["all", _setting(runs[0], rows), *_best_of_both(rows)])
    if unseen := found["novel-classes"].runs:
        rows = _over_triples(unseen)
        setting = f"{_setting(unseen[0], rows)}, new classes"
        lines.append(["all", setting, "", _best(rows, "novel")])
    return lines


def _over_triples(runs: Sequence[Run]) -> list[Row]:
    rows = [row_of(label, own) for label, own in runs_by_label(runs).items()]
    most = max(len(row.entries) for row in rows)
    return [row for row in rows if len(row.entries) == most]


def _setting(run: Run, rows: Sequence[Row]) -> str:
    """Of a run, and how many methods stand beside each other."""
    e = run.experiment
    mix = f"Dir({e.federation.alpha:g})"
    if e.federation.scheme == "quantity":
        mix = f"{e.federation.classes} classes each"
    encoder = f"{e.network.encoder} of width {e.network.width}"
    clients = f"{e.federation.clients} of {e.federation.samples}"
    return f"{clients}, {mix}, {encoder}; {len(rows)} methods"


def _best_of_both(rows: Sequence[Row]) -> list[str]:
    return [_best(rows, "train"), _best(rows, "novel")]


def _best(rows: Sequence[Row], group: Group) -> str:
    """The best mean, and those that are not told apart from it."""
    ranked = sorted(rows, key=lambda row: -mean_of(row, group))
    if not ranked or ranked[0].estimate(group, "mean") is None:
        return ""
    best, others = ranked[0], ranked[1:]
    adjusted = holm([paired_test(group, best, other).p for other in others])
    level = [row.label for row, p in zip(others, adjusted, strict=True) if p >= SURE]
    said = f"**{best.label}**, {percent(mean_of(best, group))}"
    if level:
        more = len(level) - MOST_NAMED
        named = "; ".join(level[:MOST_NAMED])  # some names have commas
        said += f". Level: {named}{f'; and {more} more' if more > 0 else ''}"
    return said


def _claims(found: Mapping[str, Gathered]) -> list[str]:
    """Each claim in words, with its verdicts."""
    said = []
    for scheme in SCHEMES:
        runs = [
            run
            for run in found["main-comparison"].runs
            if run.experiment.federation.scheme == scheme and not by_the_paper(run)
        ]
        if not runs:
            continue
        for claim in panel_of(scheme).claims:
            forms = [replace(claim, of=claim.of + form) for form in FORMS]
            verdicts = [form.judge(by_method(runs)) for form in forms]
            if all(verdict == NOT_RUN for verdict in verdicts):
                continue
            words = " and ".join(f"{verdict} ({how})" for verdict, how in verdicts)
            where = SCHEMES[scheme][0].lower() + SCHEMES[scheme][1:]
            said.append(f"{claim.text}, {where}: {words}.")
    return [*said, *_claims_of_table_1(found["table-1"].runs)]


def _claims_of_table_1(runs: Sequence[Run]) -> list[str]:
    """Without labels in training, by both kinds of heads."""
    judged = [
        [
            (claim, f"{verdict} with {heads} ({how})")
            for claim, verdict, how in table1.claims_of(own)
        ]
        for kind, heads in HEADS.items()
        if (own := [run for run in runs if table1.form(run.experiment) == kind])
    ]
    return [
        f"{same[0][0]}: {', '.join(words for _, words in same)}."
        for same in zip(*judged, strict=True)
    ]


BLOCKS = {"summary": summary}
