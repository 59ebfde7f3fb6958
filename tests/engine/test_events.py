from calibre.engine import events


def test_later_rounds_of_an_earlier_attempt_are_dropped(tmp_path):
    file = tmp_path / "events.jsonl"
    emit = events.to_file(file, up_to_round=0)
    emit({"event": "start"})
    for round_ in (1, 2, 3):
        emit({"event": "round", "round": round_, "seconds": 1.0, "clients": {}})
    emit({"event": "progress"})  # only for the screen
    emit({"event": "end"})
    with open(file, "a") as handle:
        handle.write('{"event": "rou')  # cut short by a kill
    events.to_file(file, up_to_round=2)
    assert [(e["event"], e.get("round")) for e in events.read(file)] == [
        ("start", None), ("round", 1), ("round", 2),
    ]  # fmt: skip
