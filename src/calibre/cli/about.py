"""Commands that tell what there is: methods, doctor."""

import json

from rich.console import Console
from rich.table import Table

from calibre.cli.choosing import DataPlace, read_or_choose
from calibre.cli.common import AsJson, Changes, ExperimentFile


def methods(as_json: AsJson = False) -> None:
    """List the methods and objectives, where each comes from, and what it sends."""
    from calibre.report.catalogue import catalogue

    listed = catalogue()
    if as_json:
        print(json.dumps(listed, indent=2))
        return
    table = Table("method", "objective", "what", "sends")
    table.add_column("from", overflow="fold")
    for row in listed:
        table.add_row(
            row["method"], row["objective"] or "", row["label"],
            ", ".join(row["sends"]) or "nothing", row["paper"],
        )  # fmt: skip
    Console().print(table)


def doctor(
    experiment: ExperimentFile = None,
    set_: Changes = None,
    data: DataPlace = None,
    as_json: AsJson = False,
) -> None:
    """What is installed, what this machine has, and what an experiment would cost."""
    from calibre.estimate import examine

    found = examine(read_or_choose(experiment, set_ or (), data))
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for section, facts in found.items():
        table = Table(title=section, show_header=False, title_justify="left")
        for name, value in facts.items():
            table.add_row(name, str(value))
        Console().print(table)
