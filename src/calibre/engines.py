"""Where a run is carried out: in this process and its workers, or through Flower."""

from collections.abc import Iterable
from pathlib import Path

from calibre.data.federation import SharedImages
from calibre.engine.child import Worker, in_worker
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.report.events import Emit
from calibre.report.metrics import Metrics
from calibre.run_files import RunFiles
from calibre.wording import quoted


def run(
    experiment: Experiment,
    folder: Path,
    emit: Emit,
    prepared: Iterable[Worker] = (),
    shared: SharedImages | None = None,
) -> Metrics:
    """Carry out what is left of an experiment in a run folder; return its metrics.

    ``prepared`` are worker processes that were started early, ``shared`` images that were read
    already; only the embedded engine has any.
    """
    if in_worker():
        raise UserError(
            "this script starts a run while one of its own workers imports it: put what it does "
            'under  if __name__ == "__main__":'
        )
    if experiment.engine.runtime == "flower":
        raise UserError(
            "engine.runtime = 'flower': sites train this run, through their coordinator; go on "
            f"with  calibre-fl deploy run {quoted(RunFiles(folder).experiment)} "
            f"--out {quoted(folder)} --keys KEYS"
        )
    if experiment.engine.runtime == "flower-sim":
        from calibre.deploy.simulation import simulate

        return simulate(experiment, folder, emit)
    from calibre.engine import rounds

    return rounds.run(experiment, folder, emit, prepared, shared)
