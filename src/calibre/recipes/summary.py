"""What a reader can rely on, in short: which method is best where, and what the paper claimed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from calibre.evidence.kept import Evidence
from calibre.recipes import all_recipes, calibration_forms, equal_images, table1
from calibre.recipes.campaign import (
    CALIBRATION,
    PROBES,
    SCHEMES,
    in_short,
    panel_of,
    tests_of_calibration,
    verdicts_of,
)
from calibre.recipes.claims import LABELLED, NOT_RUN, TWO
from calibre.recipes.gathered import Gathered, Passage, gather
from calibre.recipes.label_budget import (
    BUDGETS,
    TYPICAL,
    Lead,
    budget_of,
    has_curve,
    leads,
    series_of,
)
from calibre.recipes.recipe import Conclusion, Verdict
from calibre.recipes.scales import Scheme
from calibre.recipes.unseen_classes import complete_rows
from calibre.recipes.wide_table import Head, of_head, told_apart
from calibre.report.compare import paired_tests
from calibre.report.figures.label_budgets import lead_over
from calibre.report.metrics import Group
from calibre.report.rows import Row, arrange, mean_of
from calibre.report.runs import Run
from calibre.wording import percent

RESTS_ON = (
    "label-budget", "main-comparison", "larger-scale", "novel-classes", "equal-images",
    "objectives", "calibration-forms", "table-1",
)  # fmt: skip
AGAINST = "FedAvg-FT"  # stands beside the best everywhere
HEADER = (
    "labels per client", "best where it trained", AGAINST, "level with the best",
    "best at novel clients", AGAINST, "level with the best",
    f"thousand images looked at: best, {AGAINST}",
)  # fmt: skip
DRAWN = (TWO, LABELLED, f"pFL-SimCLR{TYPICAL}", AGAINST, "FedPer", "local only", "own pixels")
OF_HEADS: dict[Head, str] = {"solved": "", "paper": ", the paper's head"}


def passage(evidence: Evidence) -> Passage:
    found = {name: gather(all_recipes.find(name), evidence) for name in RESTS_ON}
    shown = [entry for one in found.values() for entry in one.entries]
    held = [entry for one in found.values() for entry in one.held]
    return Passage(summary(found), tuple(shown), tuple(held))


def summary(found: Mapping[str, Gathered]) -> Conclusion:
    """A table, a picture, who is ahead, and the claims; of what was not run, the command."""
    parts, pictures = [], {}
    if lines := [*_by_labels(found["label-budget"].runs), *_with_all(found)]:
        parts += [_table([HEADER, *lines]), _caption(found)]
    series = series_of(found["label-budget"].runs)
    drawn = {name: series[name] for name in DRAWN if name in series}
    if has_curve(drawn) and AGAINST in drawn:
        pictures["curve"] = lambda: lead_over(AGAINST, drawn)
        parts.append("![accuracy and fairness against labels per client](picture:curve)")
        parts.append(
            f"Mean of clients; its difference from {AGAINST}'s, with its 95 % interval over seeds; "
            "and the worst tenth of clients."
        )
    if ahead := _ahead(found):
        parts += ["Who is ahead of whom on the same clients:"]
        parts += ["\n".join(f"- {lead.sentence}." for lead in ahead)]
    if calibration := _calibration(found):
        parts += ["What calibration adds to self-supervision:"]
        parts += ["\n".join(f"- {words}" for words in calibration)]
    if claims := _claims(found):
        parts.append(
            "What the paper's claims came to at this scale, as the paper measures (its heads, no "
            "label in training) and as suits it better here (solved heads, labels in training), "
            "with differences and 95 % intervals over seeds, which are not corrected for the "
            "number of claims. Open is what an interval leaves open:"
        )
        parts.append(_table(claims))
    begun = [
        f"`{one.command}`, {one.missing:,} run{'s' * (one.missing > 1)}"
        for one in found.values()
        if one.entries and one.missing
    ]
    if begun:
        parts.append(f"Still missing, and not ranked above: {'; '.join(begun)}.")
    missing = [one.command for one in found.values() if not one.entries]
    if missing:
        parts.append("Not run yet: " + ", ".join(f"`{command}`" for command in missing) + ".")
    return Conclusion("\n\n".join(parts), pictures)


def _table(lines: Sequence[Sequence[str]]) -> str:
    header, *rest = lines
    rows = [header, ["---"] * len(header), *rest]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _caption(found: Mapping[str, Gathered]) -> str:
    """What holds of all lines that do not say otherwise, and what the columns mean."""
    runs = found["label-budget"].runs or found["main-comparison"].runs
    setting = f"{_setting(runs[0])}. " if runs else ""
    return (
        f"Mean accuracy of clients, each with its own model. {setting}*Level with the best* are as "
        "many of the other ways as are not told apart from it, by paired tests over clients "
        "(corrected over all pairs of a cell) and by the interval over seeds; one seed tells "
        "nothing apart. The best is picked on the test images that it is shown on, so a little of "
        "its lead is luck. Heads are solved unless another is named, labels drawn at random unless "
        "they are called typical: those that the encoder would ask for."
    )


def _setting(run: Run) -> str:
    e = run.experiment
    return (
        f"{e.federation.clients} clients train on {e.federation.samples} images each, in class "
        f"mixes from Dir({e.federation.alpha:g}), and {e.federation.novel} are novel; the encoder "
        f"is a {e.network.encoder} of width {e.network.width}"
    )


def _by_labels(runs: Sequence[Run]) -> list[list[str]]:
    """Of each number of labels, the best. With all labels, more methods were run: see below."""
    series = series_of(runs)
    few = [
        run
        for run in runs
        if run.experiment.personal.labels or run.experiment.federation.label_count
    ]
    return [
        _line(str(budget), [series[name][budget] for name in series if budget in series[name]])
        for budget in sorted({budget_of(run) for run in few})
    ]


def _with_all(found: Mapping[str, Gathered]) -> list[list[str]]:
    """Both federations with all labels, more compute, and classes that nobody trained on."""
    settings: dict[str, list[Row]] = {}
    for scheme, runs in _by_scheme(found).items():
        settings["all" + ", two classes each" * (scheme == "quantity")] = _of_both_heads(runs)
    if larger := found["larger-scale"].runs:
        e, rows = larger[0].experiment, _of_both_heads(larger)
        one = ", one seed" * (len(rows[0].entries) == 1)
        encoder = f"{e.network.encoder} of width {e.network.width}"
        settings[f"all {e.federation.samples}, {encoder}{one}"] = rows
    if unseen := found["novel-classes"].runs:
        samples = unseen[0].experiment.federation.samples
        settings[f"all {samples}, classes that nobody trained on"] = complete_rows(unseen)
    return [_line(name, rows) for name, rows in settings.items() if rows]


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


def _line(name: str, rows: Sequence[Row]) -> list[str]:
    looks = ""
    if (best := _best(rows, "train") or _best(rows, "novel")) and (against := _against(rows)):
        seen = [row.cost("images") for row in (best, against)]
        looks = ", ".join("" if count is None else f"{count / 1000:,.0f}" for count in seen)
    return [name, *_cells(rows, "train"), *_cells(rows, "novel"), looks]


def _cells(rows: Sequence[Row], group: Group) -> list[str]:
    """The best mean, the one that stands beside it, and how many are not told apart from it."""
    best = _best(rows, group)
    if best is None:
        return ["", "", ""]
    tests = [t for t in paired_tests(rows, group, all_pairs=True) if t.one == best.label]
    level = sum(not told_apart(test, test.adjusted) for test in tests)
    against = max((mean_of(row, group) for row in _all_against(rows)), default=None)
    shown = f"**{best.label}**, {percent(mean_of(best, group))}"
    return [shown, "" if against is None else percent(against), f"{level} of {len(tests)}"]


def _best(rows: Sequence[Row], group: Group) -> Row | None:
    measured = [row for row in rows if row.estimate(group, "mean") is not None]
    return max(measured, key=lambda row: mean_of(row, group), default=None)


def _all_against(rows: Sequence[Row]) -> list[Row]:
    """By each kind of head."""
    return [row for row in rows if row.label in {AGAINST + head for head in OF_HEADS.values()}]


def _against(rows: Sequence[Row]) -> Row | None:
    return next(iter(_all_against(rows)), None)


def _ahead(found: Mapping[str, Gathered]) -> list[Lead]:
    """By labels, and beside those that look at as many images."""
    by_labels = _leads(found, [(TWO, AGAINST), (TWO, "FedPer")])
    return [*by_labels, *equal_images.leads_of_ours(found["equal-images"].runs)]


def _leads(found: Mapping[str, Gathered], pairs: Sequence[tuple[str, str]]) -> list[Lead]:
    """Some of those on the results page, corrected as they are there."""
    series = series_of(found["label-budget"].runs)
    every = leads(series, BUDGETS[0].pairs, ["train", "novel"]) if has_curve(series) else []
    return [lead for lead in every if (lead.one, lead.other) in pairs]


def _calibration(found: Mapping[str, Gathered]) -> list[str]:
    """In how many comparisons it gains and loses."""
    said = []
    for head, title in PROBES.items():
        if tests := tests_of_calibration(of_head(head, found["objectives"].runs)):
            said.append(in_short(tests, title))
    said += [f"{lead.sentence}." for lead in _leads(found, CALIBRATION)]
    _, forms = calibration_forms.rows_and_tests(found["calibration-forms"].runs, "cpu")
    if forms:
        said.append(f"On validation images: {_lower(calibration_forms.in_short(forms))}")
    return said


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _claims(found: Mapping[str, Gathered]) -> list[list[str]]:
    """A table: each claim, with its verdicts in two ways of four."""
    lines = []
    for scheme, runs in _by_scheme(found).items():
        for claim in panel_of(scheme).claims if runs else ():
            _, solved_with, paper_without, _ = verdicts_of(claim, runs)
            if paper_without != NOT_RUN or solved_with != NOT_RUN:
                where = _lower(SCHEMES[scheme])
                text = f"{_unnumbered(claim.text)}, {where}"
                lines.append([text, _told(paper_without), _told(solved_with)])
    lines += _claims_of_table_1(found["table-1"].runs)
    header = ["the paper says", "measured as there", "as suits it better"]
    return [header, *lines] if lines else []


def _told(verdict: tuple[Verdict, str]) -> str:
    return f"{verdict[0]} ({verdict[1]})" if verdict != NOT_RUN else ""


def _unnumbered(claim: str) -> str:
    """Without what docs/results.md calls it: q1, or C10, q5."""
    return claim.partition(": ")[2]


def _claims_of_table_1(runs: Sequence[Run]) -> list[list[str]]:
    judged = [
        table1.claims_of([run for run in runs if table1.form(run.experiment) == form])
        for form in ("paper", "labels")
    ]
    if not runs:
        return []
    return [
        [_unnumbered(name), *(_told((verdict, said.partition(";")[0])) for verdict, said in ways)]
        for name, *ways in (
            (paper[0], paper[1:], labels[1:]) for paper, labels in zip(*judged, strict=True)
        )
    ]
