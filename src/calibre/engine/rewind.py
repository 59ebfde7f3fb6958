"""Taking a run back to an earlier round, such as one before a client's damage got in."""

import shutil

from calibre.engine.checkpoints import Checkpoints
from calibre.engine.client_store import ClientStore
from calibre.errors import UserError
from calibre.report import events
from calibre.run_folder import RunFolder


def possible_rounds(folder: RunFolder) -> list[int]:
    """Those with a whole checkpoint and all that clients kept by then; 0 is always possible."""
    experiment = folder.read_experiment()
    at_sites = experiment.engine.runtime == "flower"  # each looks after its own
    clients = ClientStore(folder.clients, experiment.training_hash())
    checkpoints = Checkpoints(folder.checkpoints, experiment.training_hash())
    held = checkpoints.whole(lambda problem: None)
    return [0, *sorted(c.state.round for c in held if at_sites or not clients.problem(c.kept))]


def rewind(folder: RunFolder, round_: int) -> None:
    """Forget all that came after a round; a resume then makes it anew.

    Checkpoints go last: when this is interrupted, the run goes on from a state that is whole.
    """
    folder.open(folder.read_experiment())
    try:
        possible = possible_rounds(folder)
        if round_ not in possible:
            raise UserError(
                f"{folder.path} cannot be taken back to round {round_}: it has whole checkpoints "
                f"of rounds {', '.join(map(str, possible))} (0: the start); engine.keep says how "
                "many a run keeps"
            )
        for file in (folder.metrics, folder.table, folder.model, folder.page, folder.outcome):
            file.unlink(missing_ok=True)
        shutil.rmtree(folder.figures, ignore_errors=True)
        ClientStore(folder.clients).drop_after(round_)
        emit = events.to_file(folder.events, round_)
        Checkpoints(folder.checkpoints).drop_after(round_)
        emit(events.Warned(text=f"taken back to round {round_}"))
    finally:
        folder.close()
