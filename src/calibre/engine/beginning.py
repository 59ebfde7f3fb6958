"""How a run is begun or gone on with: sound settings, a folder of its own, the same federation."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from calibre.data import federation as federations
from calibre.data.federation import Federation, SharedImages
from calibre.data.pool import Pool
from calibre.data.purposes import purposes_of
from calibre.engine import privacy, robust
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.files import in_words
from calibre.registry import DATA_SETS
from calibre.run_files import RunFiles
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


def shared_in(folder: Path, experiment: Experiment, pool: Pool) -> SharedImages:
    """The images of an experiment, and who holds them in its run folder.

    A run that goes on from another one was given its federation: what is a test image there does
    not follow from the images alone.
    """
    if experiment.parent is None or not RunFiles(folder).federation.exists():
        return SharedImages.of(pool, experiment.federation, experiment.seed)
    kept = federations.load(folder)
    if kept.fingerprint != pool.fingerprint:
        raise _other_data(experiment, folder)
    return SharedImages(pool, kept)


def keep(federation: Federation, experiment: Experiment, store: RunFolder) -> Federation:
    """Save the federation and the experiment with the run, and go on with what lies there.

    A folder that holds another federation is refused, and stays as it was.
    """
    if not store.federation.exists():
        federation.save(store.path)
    kept = federations.load(store.path)
    if kept.hash != federation.hash:
        raise _other_data(experiment, store.path)
    store.write_experiment(experiment)
    return kept


def note_purposes(
    pool: Pool, federation: Federation, experiment: Experiment, store: RunFolder
) -> None:
    """Note what each image is for, so that a run that goes on from this one tests on no other.

    Images of known data sets do not change, and can be looked at again.
    """
    known = experiment.data.source in DATA_SETS
    if known or experiment.parent is not None or store.purposes.exists():
        return
    validated = experiment.federation.score_on == "validation"
    purposes_of(pool, federation, validated=validated).save(store.path, federation.hash)


def _other_data(experiment: Experiment, folder: Path) -> UserError:
    return UserError(
        f"{folder} holds a run on other data: the images of '{experiment.data.source}' "
        "have changed since; a finished run goes on with them by  calibre-fl update "
        f"{folder}; a new one needs a folder of its own, given with --out"
    )
