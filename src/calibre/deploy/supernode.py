"""The command that makes a machine a node of the federation."""

import json
import sys
from pathlib import Path

from calibre.deploy import launch
from calibre.deploy.keys import private_key
from calibre.deploy.site_file import read_site
from calibre.errors import UserError
from calibre.files import private_folder

Config = dict[str, str | int]
Command = tuple[list[str], dict[str, str]]  # a program with its arguments, and its environment


def site_command(file: Path) -> Command:
    """The node of a site's file."""
    settings = read_site(file)
    if settings.connection is None:
        raise UserError(f"{file} has no [connection]: superlink, root_certificates, private_key")
    link = settings.connection
    config: Config = {"site": str(file.resolve())}
    return _command(
        link.superlink, link.root_certificates, link.private_key, config, settings.state
    )


def share_command(
    share: str, superlink: str | None, certificates: Path | None, key: Path | None, state: Path
) -> Command:
    """The same for a node that works for clients of the experiment's own federation."""
    index, slash, count = share.partition("/")
    if not (slash and index.isdigit() and count.isdigit() and int(index) < int(count)):
        raise UserError(f"--share {share}: write i/n with i from 0 to n - 1, e.g. 0/3")
    if superlink is None or certificates is None or key is None:
        raise UserError("--share needs --superlink, --root-certificates and --private-key")
    place = state.resolve()
    config: Config = {"partition-id": int(index), "num-partitions": int(count), "state": str(place)}
    return _command(superlink, certificates, key, config, place)


def _command(superlink: str, certificates: Path, key: Path, config: Config, state: Path) -> Command:
    for file in (certificates, key):
        if not file.is_file():
            raise UserError(f"{file} is missing: the coordinator makes it with `deploy keys`")
    private_key(key)
    home = private_folder(private_folder(state) / "flwr")
    command = [
        sys.executable, "-P", "-m", "calibre.deploy.node", superlink, str(certificates), str(key),
        json.dumps(config),
    ]  # fmt: skip
    return command, launch.environment(home)
