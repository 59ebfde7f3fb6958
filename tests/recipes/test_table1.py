from pathlib import Path

import pytest

from calibre.recipes import table1
from calibre.report.runs import Run
from tests.report.in_memory import metrics


def results(values, seeds=2, wobble=0.0):
    """Runs that came out as ``values``: cell -> (mean, std), in percent."""
    made = []
    for experiment in table1.experiments("cpu", range(seeds)):
        mean, std = values[table1.cell(experiment)]
        shift = wobble * (-1) ** experiment.seed
        group = {"clients": 20, "mean": (mean + shift) / 100, "std": std / 100}
        made.append(Run(Path(), experiment, metrics(train=group), ()))
    return made


def test_twelve_cells_a_seed_that_differ_in_the_two_terms_alone():
    for scale in ("cpu", "paper"):
        made = table1.experiments(scale, [0, 1])
        assert len({e.hash() for e in made}) == 24
        assert {table1.cell(e) for e in made} == set(table1.PAPER)
        assert {(e.method.prototypes.alpha_n, e.method.prototypes.alpha_p) for e in made} == {
            (0.0, 0.0), (0.0, 0.3), (0.3, 0.0), (0.3, 0.3),
        }  # fmt: skip
        plain = [e.model_dump(exclude={"method", "seed"}) for e in made]
        assert all(e == plain[0] for e in plain)
        assert len({str(e.method.aggregation) for e in made}) == 1


def test_the_paper_s_own_numbers_bear_its_claims_out():
    text = table1.conclude(results(table1.PAPER, wobble=0.5), Path(), "cpu")
    assert text.count("**reproduced**") == 3
    assert "| both | 89.16 ± 10.58 | 89.16 ± 10.58 | 81.42 ± 11.93 | 81.42 ± 11.93 |" in text
    assert "12 of 12 seed by seed" in text  # q2: 3 objectives x 2 pairs x 2 seeds


@pytest.mark.parametrize(
    ("changed", "claim"),
    [
        ({("simclr", "L_n"): (60.0, 12.92)}, "q1"),  # below L_p
        ({("swav", "L_p"): (84.76, 15.2)}, "q2"),  # above none
        ({("smog", "L_n"): (86.2, 13.24)}, "q3"),  # above none
    ],
)
def test_one_sign_that_differs_is_noticed(changed, claim):
    text = table1.conclude(results({**table1.PAPER, **changed}), Path(), "cpu")
    (line,) = [line for line in text.splitlines() if "**not reproduced**" in line]
    assert line.startswith(f"- {claim},")
