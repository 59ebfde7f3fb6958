"""The command that takes a run back."""

from pathlib import Path
from typing import Annotated

import typer


def rewind(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.")],
    round_: Annotated[
        int | None, typer.Option("--round", min=0, help="The last round that is to count.")
    ] = None,
) -> None:
    """Take a run back to an earlier round; without --round: say which ones it can go back to."""
    from calibre.engine import rewind as taking_back
    from calibre.run_folder import RunFolder

    place = RunFolder(folder)
    if round_ is None:
        rounds = ", ".join(map(str, taking_back.possible_rounds(place)))
        print(f"{folder} can be taken back to rounds {rounds} (0: the start)")
        return
    taking_back.rewind(place, round_)
    print(f"all after round {round_} is forgotten; go on with  calibre-fl resume {folder}")
