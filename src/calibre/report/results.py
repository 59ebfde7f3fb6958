"""What a finished run leaves behind: the model, one row per client, the figures, the metrics."""

import json
from collections.abc import Mapping, Sequence

from calibre import __version__
from calibre.experiment import Experiment
from calibre.files import sealed, write_atomic
from calibre.methods.method import ServerState
from calibre.personal.pooling import HeadChoice
from calibre.report import payoff
from calibre.report.figures.accuracies import accuracy_figure
from calibre.report.metrics import (
    ByGroup,
    ClientResult,
    HeadFacts,
    Metrics,
    Promise,
    Summary,
    summary,
    write_clients_csv,
)
from calibre.run_folder import RunFolder
from calibre.tensors import Tensors, digest, to_file


def write_results(
    experiment: Experiment,
    state: ServerState,
    folder: RunFolder,
    federation_hash: str,
    rows: list[ClientResult],
    failures: int,
    warnings: list[str],
    seconds: float,
    images: int,
    promise: Promise | None,
    choice: HeadChoice | None,
) -> Metrics:
    method = experiment.method
    write_atomic(folder.model, to_file(state.groups.get("model", {})))
    write_clients_csv(rows, folder.table)
    reached = by_group(rows, [row.accuracy for row in rows])
    floors = {
        name: by_group(rows, [row.floors[name] for row in rows])
        for name in (rows[0].floors if rows else {})
    }
    paid_off = payoff.warnings(method, experiment.personal, rows)
    metrics = Metrics(
        method=method.label,
        objective=getattr(getattr(method, "objective", None), "name", None),
        rounds=state.round,
        seed=experiment.seed,
        federation=federation_hash,
        experiment=experiment.hash(),
        version=__version__,
        model=digest(state.groups.get("model", {})),
        failures=failures,
        warnings=(*warnings, *paid_off),
        seconds=seconds,
        images=images,
        privacy=promise,
        personal=HeadFacts(head=experiment.personal.head, choice=choice),
        bytes_up=_bytes(method.expected_update(state)) if method.federated else 0,
        bytes_down=_bytes(state.groups) if method.federated else 0,
        train=reached.train,
        novel=reached.novel,
        floors=floors,
    )
    accuracy_figure(rows, folder.figures, title=f"{method.label} on {experiment.data.title}")
    kept = sealed(metrics.model_dump(mode="json"))
    write_atomic(folder.metrics, json.dumps(kept, indent=2) + "\n")
    return metrics


def _bytes(sent: Mapping[str, Tensors]) -> int:
    return sum(t.numel() * t.element_size() for group in sent.values() for t in group.values())


def by_group(rows: Sequence[ClientResult], values: Sequence[float]) -> ByGroup:
    """One figure of each client, over those that trained and over the novel ones."""

    def over(novel: bool) -> Summary:
        own = [(v, row) for v, row in zip(values, rows, strict=True) if row.novel == novel]
        return summary([value for value, _ in own], [row.test_samples for _, row in own])

    return ByGroup(train=over(False), novel=over(True))
