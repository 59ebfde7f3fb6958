"""The log of a run: what is written comes back, and what cannot be read is passed over."""

import json
import math

from calibre.report import events
from calibre.report.events import ClientFailed, Ended, Progressed, RoundDone, Warned
from calibre.report.metrics import Metrics, summary
from tests.report.made_run import started

METRICS = Metrics(
    method="Some", rounds=3, seed=0, federation="f", failures=1, seconds=2.5,
    train=summary([0.1 + 0.2, 1.0], [3, 7]), novel=summary([]),
)  # fmt: skip


def round_(number):
    return RoundDone(round=number, clients={7: {"loss": 0.1 + 0.2}}, seconds=1.0)


def test_later_rounds_of_an_earlier_attempt_are_dropped(tmp_path):
    file = tmp_path / "events.jsonl"
    emit = events.to_file(file, up_to_round=0)
    emit(started())
    for number in (1, 2, 3):
        emit(round_(number))
    emit(Progressed(stage="train"))  # only for the screen
    emit(Ended(metrics=METRICS))
    with open(file, "a") as handle:
        handle.write('{"event": "rou')  # cut short by a kill
    events.to_file(file, up_to_round=2)
    assert events.read(file) == [started(), round_(1), round_(2)]


def test_every_event_comes_back_bit_for_bit(tmp_path):
    file = tmp_path / "events.jsonl"
    told = [
        started(), round_(1), Warned(text="line\nbreak"), Ended(metrics=METRICS),
        ClientFailed(round=2, client=3, cause="x", detail="y"),
    ]  # fmt: skip
    emit = events.to_file(file, up_to_round=0)
    for event in told:
        emit(event)
    assert events.read(file) == told
    assert [json.loads(line)["event"] for line in file.read_text().splitlines()] == [
        "start", "round", "warning", "end", "failure",
    ]  # fmt: skip


def test_a_loss_that_is_no_number_is_told_as_it_is(tmp_path):
    file = tmp_path / "events.jsonl"
    events.to_file(file, 0)(RoundDone(round=1, clients={0: {"loss": math.nan}}, seconds=1))
    (event,) = events.read(file)
    assert math.isnan(event.clients[0]["loss"])


def test_lines_that_are_no_events_are_passed_over(tmp_path):
    file = tmp_path / "events.jsonl"
    lines = ["[]", "{}", '{"event": "round"}', '{"event": "of tomorrow"}', "1" * 9999, "[" * 10**5]
    file.write_bytes("\n".join([*lines, '{"event": "warning", "text": "a"}']).encode() + b"\xff")
    assert events.read(file) == []
    file.write_text("\n".join([*lines, '{"event": "warning", "text": "a", "more": 1}', ""]))
    assert events.read(file) == [Warned(text="a")]


def test_words_of_others_cannot_steer_a_terminal():
    event = events.parse(json.dumps({"event": "warning", "text": "\x1b[2Jgone"}))
    assert event == Warned(text="\N{REPLACEMENT CHARACTER}[2Jgone")
