import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from calibre.engine import rounds
from calibre.engine.tensorboard import to_tensorboard
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.report import events
from calibre.report.events import ClientFailed, Event, Progressed, RoundDone
from tests.report.made_run import started

pytest.importorskip("tensorboard", reason="install the extra track")


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    """A curve as TensorBoard shows it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder))
    board.Reload()
    return [(event.step, event.value) for event in board.Scalars(name)]


def round_of(number: int, *losses: float) -> Event:
    clients = {i: {"loss": loss, "began": 1e9} for i, loss in enumerate(losses)}
    return RoundDone(round=number, clients=clients, seconds=0.5)


def start(done: int = 0) -> Event:
    return started(done=done)


def test_a_run_writes_its_curves_and_its_results(
    tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    with to_tensorboard(tmp_path / "board") as sink:
        metrics = rounds.run(tiny(), tmp_path / "run", sink)
    expected = []
    for event in events.read(tmp_path / "run" / "events.jsonl"):
        if isinstance(event, RoundDone):
            losses = [report["loss"] for report in event.clients.values()]
            expected.append((event.round, pytest.approx(sum(losses) / len(losses))))
    assert len(expected) == 3
    assert scalars(tmp_path / "board", "clients/loss") == expected
    (worst,) = scalars(tmp_path / "board", "accuracy of novel clients/worst_tenth")
    assert worst == (3, pytest.approx(metrics.novel.worst_tenth))


def test_curves_can_be_seen_while_the_run_goes_on(tmp_path: Path) -> None:
    with to_tensorboard(tmp_path) as sink:
        sink(start())
        sink(Progressed(stage="train"))
        sink(ClientFailed(round=1, client=2, cause=""))
        sink(round_of(1, 1.0, 3.0))
        assert scalars(tmp_path, "clients/loss") == [(1, 2.0)]
        sink(round_of(2, 4.0))
        assert scalars(tmp_path, "clients/loss") == [(1, 2.0), (2, 4.0)]
        assert scalars(tmp_path, "rounds/failures") == [(1, 1.0), (2, 0.0)]
        with pytest.raises(KeyError):
            scalars(tmp_path, "clients/began")


def test_rounds_that_are_done_again_are_shown_once(tmp_path: Path) -> None:
    with to_tensorboard(tmp_path) as sink:
        for event in (start(), round_of(1, 1.0), round_of(2, 2.0), round_of(3, 3.0)):
            sink(event)
    with to_tensorboard(tmp_path) as sink:
        for event in (start(done=1), round_of(2, 20.0), round_of(3, 30.0)):
            sink(event)
    assert scalars(tmp_path, "clients/loss") == [(1, 1.0), (2, 20.0), (3, 30.0)]


def test_what_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with to_tensorboard(tmp_path / "file") as sink, pytest.raises(UserError, match="--tensorboard"):
        sink(start())


def test_without_tensorboard_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"calibre-fl\[track\]"), to_tensorboard(tmp_path):
        pass
