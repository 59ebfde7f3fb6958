import json
import os
from pathlib import Path

import pytest

from calibre.errors import UserError
from calibre.report import events
from calibre.report.live import DRAWN, Follower, LiveRun
from calibre.report.page.plotted import curves
from tests.report.made_run import make_run, started


def beginning(folder: Path, rounds: int, **options) -> Path:
    """A run of 20 rounds, so many of which are done."""
    make_run(folder, 4, 2, rounds=rounds, names=("a", "b", "c", "d", "e", "f"), **options)
    (folder / "metrics.json").unlink()
    log = folder / "events.jsonl"
    kept = [event for event in events.read(log) if not isinstance(event, events.Ended)]
    kept[0] = started(rounds=20)
    log.unlink()
    for event in kept:
        events.append(log, event)
    return folder


def live(folder: Path, later: float = 0.0) -> LiveRun:
    """Watched so many seconds after its last word."""
    return LiveRun(folder, clock=lambda: (folder / "events.jsonl").stat().st_mtime + later)


def test_a_run_under_way_tells_how_far_it_is(tmp_path):
    found = live(beginning(tmp_path / "run", 6, failing=[1]), later=0.25).state()
    assert (found["round"], found["rounds"], found["finished"]) == (6, 20, False)
    assert found["said"] == "Training: 6 of 20 rounds are done."
    assert found["elapsed"] == pytest.approx(6.0)  # rounds of 1 s
    assert found["left"] == pytest.approx(14 - 0.25)
    assert found["failures"]["clients"] == [{"name": "b", "times": 1}]
    assert found["failures"]["last"] == [{"round": 1, "name": "b", "cause": "<b>ran out"}]
    assert found["results"] == []
    assert {curve["name"] for curve in found["curves"]} >= {"loss", "divergence", "spread"}
    json.dumps(found, allow_nan=False)


def test_the_time_left_goes_by_recent_rounds(tmp_path):
    folder = beginning(tmp_path / "run", 6)
    for number in range(7, 17):
        done = events.RoundDone(round=number, clients={0: {"loss": 1.0}}, seconds=3.0)
        events.append(folder / "events.jsonl", done)
    assert live(folder).state()["left"] == pytest.approx(4 * 3.0)
    assert live(folder, later=50).state()["left"] == pytest.approx(3 * 3.0)  # at most one round


def test_silence_is_told_with_what_to_do(tmp_path):
    folder = beginning(tmp_path / "run", 6)
    assert "resume" not in live(folder, later=59).state()["said"]
    assert f"calibre-fl resume {folder}" in live(folder, later=61).state()["said"]
    slow = events.RoundDone(round=7, clients={}, seconds=100.0)
    events.append(folder / "events.jsonl", slow)
    assert "resume" not in live(folder, later=499).state()["said"]
    assert "resume" in live(folder, later=501).state()["said"]
    sites = beginning(tmp_path / "sites", 6, changes=["engine.runtime=flower"])
    assert "coordinator's screen" in live(sites, later=61).state()["said"]


def test_personal_models_come_after_the_last_round(tmp_path):
    folder = beginning(tmp_path / "run", 20)
    assert "personal models are being made" in live(folder, later=300).state()["said"]
    assert live(folder, later=300).state()["left"] == 0


def test_a_run_that_ended_tells_its_results(tmp_path):
    folder = make_run(tmp_path / "run", 4, 2, rounds=6, warnings=["it collapsed"])
    found = live(folder, later=9999).state()
    assert found["finished"]
    assert found["left"] is None
    assert found["warnings"] == ["it collapsed"]
    metrics = json.loads((folder / "metrics.json").read_text())
    first = found["results"][0]
    assert (first["clients"], first["mean"]) == ("trained", metrics["train"]["mean"])
    assert len(found["results"]) == 2 * 3  # the method and two floors, for both kinds


def test_a_run_that_has_not_begun_is_waited_for(tmp_path):
    folder = beginning(tmp_path / "run", 6)
    (folder / "events.jsonl").unlink()
    found = LiveRun(folder).state()
    assert found["said"] == "Waiting for the run to begin."
    assert not found["begun"]
    with pytest.raises(UserError, match="not a run folder"):
        LiveRun(tmp_path)


def test_events_are_read_once_and_whole(tmp_path):
    log = tmp_path / "events.jsonl"
    follower = Follower(log)
    follower.read_on()
    assert follower.events == []
    lines = [started(rounds=3).model_dump_json(), events.Warned(text="one").model_dump_json()]
    log.write_text(lines[0] + "\n" + lines[1][:9])
    follower.read_on()
    assert [event.event for event in follower.events] == ["start"]
    first = follower.events[0]
    with log.open("a") as file:
        file.write(lines[1][9:] + "\nnonsense\n")
    follower.read_on()
    assert [event.event for event in follower.events] == ["start", "warning"]
    assert follower.events[0] is first  # not read again


def test_a_log_that_was_rewritten_is_read_anew(tmp_path):
    """As a resume does: it puts a new file in the old one's place."""
    log = tmp_path / "events.jsonl"
    follower = Follower(log)
    for text in ("one", "two"):
        events.append(log, events.Warned(text=text))
    follower.read_on()
    events.append(tmp_path / "other", events.Warned(text="three, and longer than both of them"))
    os.replace(tmp_path / "other", log)
    follower.read_on()
    assert [event.text for event in follower.events] == ["three, and longer than both of them"]


def test_curves_of_very_many_rounds_are_thinned(tmp_path):
    folder = beginning(tmp_path / "run", 6)
    log = [*range(7, 1001)]
    lines = [
        events.RoundDone(round=n, clients={0: {"loss": 1 / n}}, seconds=1.0).model_dump_json()
        for n in log
    ]
    with (folder / "events.jsonl").open("a") as file:
        file.write("\n".join(lines) + "\n")
    run = live(folder)
    drawn = run.state()["curves"][0]
    assert len(drawn["rounds"]) <= DRAWN
    assert drawn["rounds"][-1] == 1000
    assert run.state()["curves"][0] is drawn  # nothing new, nothing drawn anew
    few = beginning(tmp_path / "few", 6)
    every = [event for event in events.read(few / "events.jsonl") if event.event == "round"]
    assert live(few).state()["curves"] == curves(every)
