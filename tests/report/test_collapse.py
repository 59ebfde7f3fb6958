import math
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from calibre.engine import rounds
from calibre.report import events
from calibre.report.collapse import warnings
from calibre.report.events import RoundDone, Warned
from calibre.ssl.objective import Objective, ObjectiveSettings, Pair, Step

HEALTHY = {"loss": 3.0, "l_s": 3.0, "spread": 0.98, "similarity": 0.4}


def run_of(*figures, clients=4, others=HEALTHY):
    """Events of a run, a round for every dict of figures; every client reports the same."""
    return [
        RoundDone(
            round=i + 1,
            clients={client: {**others, **change} for client in range(clients)},
            seconds=1.0,
        )
        for i, change in enumerate(figures)
    ]


def test_a_healthy_run_is_not_spoken_of():
    assert warnings(run_of(*[{}] * 10)) == []


def test_nor_is_a_run_without_monitors_or_without_rounds():
    assert warnings([]) == []
    assert warnings([Warned(text="a word")]) == []
    assert warnings(run_of({}, {}, others={"loss": 2.0})) == []


@pytest.mark.parametrize(
    ("figure", "value", "said"),
    [
        ("spread", 0.04, "has collapsed"),
        ("spread", 0.1, "about to collapse"),
        ("spread", 0.25, None),
        ("similarity", 0.995, "has collapsed"),
        ("similarity", 0.96, "about to collapse"),
        ("similarity", 0.9, None),
    ],
)
def test_both_monitors_have_two_marks(figure, value, said):
    found = warnings(run_of({}, {}, {}, *[{figure: value}] * 3))
    if said is None:
        assert found == []
    else:
        (text,) = found
        assert said in text
        assert f"{figure} is {value:.3f}, it was {HEALTHY[figure]:.3f}" in text
        assert "method.sgd.lr" in text


def test_two_signs_of_one_collapse_are_one_warning():
    (text,) = warnings(run_of({}, *[{"spread": 0.01, "similarity": 0.97}] * 3))
    assert "has collapsed" in text
    assert "spread is 0.010" in text
    assert "similarity is 0.970" in text


def test_a_poor_start_that_gets_better_is_no_danger():
    """An untrained encoder finds all images alike: only what gets worse is close to collapse."""
    assert warnings(run_of({"similarity": 0.98}, *[{"similarity": 0.96}] * 5)) == []
    assert warnings(run_of({"similarity": 0.96})) == []
    (text,) = warnings(run_of({"similarity": 0.96}, *[{"similarity": 0.97}] * 5))
    assert "about to collapse" in text


def test_only_the_last_rounds_count():
    assert warnings(run_of(*[{"spread": 0.01}] * 4, {}, {}, {})) == []
    assert warnings(run_of(*[{}] * 4, {"spread": 0.01})) != []  # at single clients


def test_single_clients_are_named_when_the_others_are_well():
    recorded = run_of({}, {}, {})
    recorded[-1].clients[10] = {**HEALTHY, "spread": 0.002}
    recorded[-1].clients[2] = {**HEALTHY, "similarity": 0.999}
    (text,) = warnings(recorded, lambda client: {2: "north"}.get(client, f"site-{client}"))
    assert "2 of the last 5 clients" in text
    assert "north (similarity 0.999), site-10 (spread 0.002)" in text
    recorded.append(RoundDone(round=4, clients={2: HEALTHY, 10: HEALTHY}, seconds=1.0))
    assert warnings(recorded) == []  # their newest report is well


def test_a_crowd_of_clients_is_counted():
    recorded = run_of({}, {}, {}, clients=20)
    for event in recorded:
        event.clients.update({c: {**HEALTHY, "spread": 0.01} for c in range(8)})
    (text,) = warnings(recorded)
    assert "8 of the last 20 clients" in text
    assert "and 3 more" in text


def test_prototypes_that_only_guess():
    ten = {"clusters": 10.0, "l_p": 1.0}
    assert warnings(run_of(*[{**ten, "l_n": 1.6}] * 3)) == []
    (text,) = warnings(run_of(*[{**ten, "l_n": math.log(10) - 0.01}] * 3))
    assert "L_n is 2.293" in text
    assert "ln(10.0) = 2.303" in text
    assert warnings(run_of(*[{**ten, "l_n": -0.1}] * 3)) == []  # another form of the loss


def test_terms_that_are_idle():
    (text,) = warnings(run_of(*[{"clusters": 1.2, "l_n": 0.0}] * 3))
    assert "idle" in text
    assert "1.2 clusters" in text


class ToAPoint(ObjectiveSettings):
    """An objective that is content when every image is encoded as the same point."""

    title: ClassVar[str] = "to a point"
    paper: ClassVar[str] = "none"
    name: str = "point"
    hidden: int = 8
    projection: int = 4

    def build(self, encoder: nn.Module, features: int) -> Objective:
        return ToAPointObjective(encoder, features, self.projection)


class ToAPointObjective(Objective):
    shared = ("encoder", "projector")

    def __init__(self, encoder: nn.Module, features: int, projection: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.projector = nn.Linear(features, projection)

    def forward(self, a: Tensor, b: Tensor, step: Step) -> Pair:
        z_a, z_b = self.encoder(a), self.encoder(b)
        h_a, h_b = self.projector(z_a), self.projector(z_b)
        loss = sum((v - 1).square().mean() for v in (z_a, z_b, h_a, h_b))
        return Pair(torch.as_tensor(loss), z_a, z_b, h_a, h_b)


def test_a_run_that_really_collapses_is_told_so_and_a_good_one_is_not(tiny, tmp_path):
    objective = "method.objective.name=tests.report.test_collapse:ToAPoint"
    faster = ("training.epochs=5", "method.sgd.lr=0.2", "method.sgd.schedule=constant")
    rounds.run(tiny("method.name=pfl-ssl", *faster, objective), tmp_path / "bad")
    assert "the encoder has collapsed" in warnings(events.read(tmp_path / "bad/events.jsonl"))[0]
    rounds.run(tiny("method.name=calibre"), tmp_path / "good")
    assert warnings(events.read(tmp_path / "good/events.jsonl")) == []
