"""Run folders as a run would leave them, of any size, without the training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibre import __version__
from calibre.data.federation import Federation
from calibre.data.parts import Parts
from calibre.experiment import read
from calibre.report import events
from calibre.report.metrics import ClientResult, Metrics, write_clients_csv
from calibre.report.results import by_group


def make_run(
    folder: Path,
    trained: int,
    novel: int,
    *,
    seed: int = 0,
    names: Sequence[str] = (),
    classes: Sequence[str] = tuple("0123456789"),
    rounds: int = 6,
    changes: Sequence[str] = (),
    floors: Sequence[str] = ("untrained", "local"),
    better: float = 0.0,  # how much better this method does
    failing: Sequence[int] = (),  # clients that fail once
    warnings: Sequence[str] = (),
) -> Path:
    """A finished run with made-up accuracies; the federation depends on the sizes and the seed."""
    draw = np.random.default_rng(seed)
    federation = _federation(draw, trained, novel, tuple(names), tuple(classes))
    federation.save(folder)
    experiment = read(None, [f"seed={seed}", f"federation.novel={novel}", *changes])
    (folder / "experiment.toml").write_text(experiment.to_toml())
    rows = _clients(draw, federation, floors, better)
    write_clients_csv(rows, folder / "clients.csv")
    method = experiment.method.label  # type: ignore[attr-defined]
    reached = by_group(rows, [row.accuracy for row in rows])
    metrics = Metrics(
        method=method,
        rounds=rounds,
        seed=seed,
        federation=federation.hash,
        experiment=experiment.hash(),
        version=__version__,
        failures=len(failing),
        warnings=tuple(warnings),
        seconds=12.5,
        train=reached.train,
        novel=reached.novel,
        floors={name: by_group(rows, [row.floors[name] for row in rows]) for name in floors},
    )
    (folder / "metrics.json").write_text(metrics.model_dump_json())
    emit = events.to_file(folder / "events.jsonl", 0)
    emit(started(versions={"python": "3.11.2", "torch": "2.13.0"}))
    for number in range(1, rounds + 1):
        chosen = sorted(draw.choice(trained, min(100, trained), replace=False).tolist())
        reports = {client: _report(draw, number) for client in chosen}
        emit(events.RoundDone(round=number, clients=reports, seconds=1.0))
    for client in failing:
        emit(events.ClientFailed(round=1, client=client, cause="<b>ran out"))
    emit(events.Ended(metrics=metrics))
    return folder


def _report(draw: np.random.Generator, number: int) -> dict[str, float]:
    return {
        "loss": 5 / number + float(draw.normal(0, 0.1)),
        "divergence": float(draw.uniform(0.1, 0.4)),
        "spread": float(draw.uniform(0.9, 1)),
        "clusters": 10.0,
        "began": 1e9 + number,
        "seconds": float(draw.uniform(0.1, 0.2)),
    }


def _federation(
    draw: np.random.Generator,
    trained: int,
    novel: int,
    names: tuple[str, ...],
    classes: tuple[str, ...],
) -> Federation:
    clients = trained + novel
    mix = draw.dirichlet([0.3] * len(classes), clients)
    sizes = draw.integers(20, 200, clients)
    table = np.stack([draw.multinomial(n, p) for n, p in zip(sizes, mix, strict=True)])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    held = Parts(np.arange(offsets[-1], dtype=np.int32), offsets)
    tests = Parts(np.arange(clients * 50, dtype=np.int32), np.arange(clients + 1) * 50)
    return Federation(
        fingerprint="made",
        classes=classes,
        training=trained,
        names=names,
        labelled=held,
        unlabelled=held.where(np.zeros(offsets[-1], np.bool_)),
        test=tests,
        train_table=table,
        test_table=table,
        datasheet={"description": f"{clients} clients, made up."},
    )


def _clients(
    draw: np.random.Generator, federation: Federation, floors: Sequence[str], better: float
) -> list[ClientResult]:
    rows = []
    kinds = np.count_nonzero(federation.counts(), axis=1)
    for i in range(len(federation)):
        client = federation.client(i)
        personal = draw.beta(12, 4)
        levels = {"untrained": draw.beta(5, 8), "local": draw.beta(9, 6)}
        rows.append(
            ClientResult(
                id=i,
                name=client.name,
                novel=client.novel,
                samples=len(client.labelled),
                unlabelled=0,
                test_samples=len(client.test),
                classes=int(kinds[i]),
                accuracy=round(50 * min(1, personal + better)) / 50,
                floors={name: round(50 * levels[name]) / 50 for name in floors},
            )
        )
    return rows


def started(**said: Any) -> events.Started:
    """The start of a run, as far as a test does not care."""
    values: dict[str, Any] = {
        "version": __version__, "versions": {}, "experiment": "", "federation": "", "method": "",
        "rounds": 3, "done": 0, "clients": 1, "novel": 0, "views": {}, "seconds_to_start": 0.1,
    }  # fmt: skip
    return events.Started(**values | said)
