"""How a run is begun or gone on with: sound settings, a folder of its own, the same federation."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from calibre.data import federation as federations
from calibre.data.federation import Federation
from calibre.engine import privacy, robust
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.files import in_words
from calibre.run_folder import RunFolder


def check(experiment: Experiment) -> None:
    """Refuse settings that do not go together with the method, before anything is run."""
    privacy.check(experiment)
    robust.check(experiment)


@contextmanager
def opened(experiment: Experiment, folder: Path) -> Iterator[RunFolder]:
    """A run folder, claimed for a sound experiment; what the machine lacks is told in words."""
    check(experiment)  # first: what a user may have got wrong leaves no folder behind
    store = RunFolder(folder)
    with in_words(
        "nothing is lost but the time since the last checkpoint: put it right, then continue with  "
        f"calibre-fl resume {folder}"
    ):
        store.open(experiment)
        try:
            yield store
        finally:
            store.close()


def keep(federation: Federation, experiment: Experiment, store: RunFolder) -> Federation:
    """Save the federation and the experiment with the run, and go on with what lies there.

    A folder that holds another federation is refused, and stays as it was.
    """
    if not store.federation.exists():
        federation.save(store.path)
    kept = federations.load(store.path)
    if kept.hash != federation.hash:
        raise UserError(
            f"{store.path} holds a run on other data: the images of '{experiment.data.source}' "
            "have changed since; a finished run goes on with them by  calibre-fl update "
            f"{store.path}; a new one needs a folder of its own, given with --out"
        )
    store.write_experiment(experiment)
    return kept
