"""The command that makes a machine a node of the federation."""

from pathlib import Path

from calibre.deploy import launch
from calibre.errors import UserError


def site_command(file: Path) -> tuple[list[str], dict[str, str]]:
    """Flower's SuperNode for a site's file: the command and its environment."""
    from calibre.deploy.site import read_site

    settings = read_site(file)
    if settings.connection is None:
        raise UserError(f"{file} has no [connection]: superlink, root_certificates, private_key")
    link = settings.connection
    command = _command(link.superlink, link.root_certificates, link.private_key)
    command += ["--node-config", f'site="{file.resolve()}"']
    return command, launch.environment(settings.state / "flwr")


def share_command(
    share: str, superlink: str | None, certificates: Path | None, key: Path | None, state: Path
) -> tuple[list[str], dict[str, str]]:
    """The same for a node that works for clients of the experiment's own federation."""
    index, slash, count = share.partition("/")
    if not (slash and index.isdigit() and count.isdigit() and int(index) < int(count)):
        raise UserError(f"--share {share}: write i/n with i from 0 to n - 1, e.g. 0/3")
    if superlink is None or certificates is None or key is None:
        raise UserError("--share needs --superlink, --root-certificates and --private-key")
    command = _command(superlink, certificates, key)
    place = state.resolve()
    config = f'partition-id={index} num-partitions={count} state="{place}"'
    return [*command, "--node-config", config], launch.environment(place / "flwr")


def _command(superlink: str, certificates: Path, key: Path) -> list[str]:
    for file in (certificates, key):
        if not file.is_file():
            raise UserError(f"{file} is missing: the coordinator makes it with `deploy keys`")
    return [
        launch.program("flower-supernode"), "--superlink", superlink,
        "--root-certificates", str(certificates), "--auth-supernode-private-key", str(key),
        "--port", str(launch.free_port()),
    ]  # fmt: skip
