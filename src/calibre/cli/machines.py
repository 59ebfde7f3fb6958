"""Commands for real machines: ``deploy`` for the coordinator, ``site`` for each site."""

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from calibre.cli.common import INTERRUPTED, AsJson, Changes, ExperimentFile, errors
from calibre.errors import UserError
from calibre.run_files import RunFiles

deploy = typer.Typer(
    help="Coordinate a federation of real sites.", no_args_is_help=True, rich_markup_mode=None
)
site = typer.Typer(
    help="Take part in a federation as a site.", no_args_is_help=True, rich_markup_mode=None
)


@deploy.callback()
@site.callback()
def _installed() -> None:
    """Both need the extra; without it say so, instead of failing at some import."""
    if importlib.util.find_spec("flwr") is None:
        raise UserError("Flower is not installed: pip install calibre-fl[flower]")


Keys = Annotated[Path, typer.Argument(help="The folder of the coordinator's keys.")]
SiteFile = Annotated[Path, typer.Argument(help="The site's own TOML file.")]


@deploy.command("keys")
def deploy_keys(
    folder: Keys,
    sites: Annotated[list[str] | None, typer.Option("--site", help="A site; repeat it.")] = None,
    host: Annotated[str, typer.Option(help="By which name sites reach you.")] = "localhost",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
) -> None:
    """Make certificates, and a key pair for every site; what is there already stays."""
    from calibre.deploy.keys import make_keys

    made = make_keys(folder, host, port, sites or [])
    print(f"certificates for {host}:{port} are in {folder}; give every site {folder / 'ca.crt'}")
    for key in made:
        print(f"give site {key.name} its private key {key}, and nobody else")


@deploy.command("renew")
def deploy_renew(folder: Keys) -> None:
    """Make the server a new certificate, for another year; sites need nothing new."""
    from calibre.deploy.keys import renew

    print(f"the certificate is good until {renew(folder)}; a coordinator that runs takes it up")


@deploy.command("start")
def deploy_start(
    keys: Keys,
    bind: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Run the coordinator's SuperLink: TLS, and only sites whose keys are known. Ctrl-C ends it.

    Whatever the address, it offers others only what known sites need; runs are submitted from this
    machine, by the owner of the keys.
    """
    from calibre.deploy.superlink import serve

    try:
        serve(keys, bind, print)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


@deploy.command("run")
def deploy_run(
    experiment: ExperimentFile = None,
    keys: Annotated[Path, typer.Option(help="The folder of the coordinator's keys.")] = Path(
        "keys"
    ),
    set_: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/<name>.")] = None,
    patience: Annotated[float, typer.Option(help="Seconds to wait for engine.sites sites.")] = 600,
    shared: Annotated[
        bool, typer.Option("--shared", help="On nodes started with --share, not on sites.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run an experiment on the sites, or go on with it where it stopped; Ctrl-C stops it."""
    from calibre import experiment as experiments
    from calibre.deploy.superlink import missed, run_on_sites
    from calibre.screen import LiveView, result_table

    settings = experiments.read(experiment, [*(set_ or ()), "engine.runtime=flower"])
    folder = out or Path("runs") / settings.folder_name
    try:
        with LiveView(errors) as view:
            metrics = run_on_sites(settings, keys, folder, view, patience, shared)
    except KeyboardInterrupt:
        errors.print("stopped; the same command goes on")
        sys.exit(INTERRUPTED)
    if as_json:
        print(json.dumps({**metrics.model_dump(mode="json"), "missed": missed(folder)}, indent=2))
        return
    Console().print(result_table(metrics))
    if absent := missed(folder):
        table = Table("site", "rounds missed", "why, the last time")
        for name, row in absent.items():
            table.add_row(escape(name), ", ".join(map(str, row["rounds"])), escape(row["cause"]))
        Console().print(table)
    print(f"every client:  {RunFiles(folder).table}")


@site.command("check")
def site_check(
    file: SiteFile,
    experiment: Annotated[
        Path | None,
        typer.Option(help="The coordinator's experiment: shows which tensors it sends."),
    ] = None,
    set_: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Read a site's images and show everything that would leave it."""
    from calibre import experiment as experiments
    from calibre.deploy.site_data import leaves, own_data, read_site, report

    settings = read_site(file)
    told = report(settings, own_data(settings))
    asked = experiments.read(experiment, set_ or ()) if experiment or set_ else None
    sent = leaves(asked, told) if asked else []
    if as_json:
        print(json.dumps({"told": told.model_dump(mode="json"), "sent": sent}, indent=2))
        return
    facts = Table(title="told once, before training", show_header=False, title_justify="left")
    facts.add_row("name", told.name)
    facts.add_row("takes part", "personal model only (novel)" if told.novel else "trains")
    facts.add_row("an image", " x ".join(map(str, told.shape)))
    for name, count, tested in zip(told.classes, told.labelled, told.test, strict=True):
        facts.add_row(f"class {name}", f"{count} images to train on, {tested} to test")
    facts.add_row("unlabelled", f"{told.unlabelled} images")
    facts.add_row("pixels by channel", f"sums {told.total}, of squares {told.squares}")
    Console().print(facts)
    if asked:
        tensors = Table("tensors", "numbers", "bytes", title="sent in every round it trains in")
        for row in sent:
            tensors.add_row(row["part"], f"{row['numbers']:,}", f"{row['bytes']:,}")
        Console().print(tensors)
    print(
        "besides: losses and other monitors of training, and seconds; at the end the accuracy, and "
        "how heads did in cross-validation, summed up"
    )


@site.command("start")
def site_start(
    file: Annotated[Path | None, typer.Argument(help="The site's own TOML file.")] = None,
    share: Annotated[
        str | None, typer.Option(help="Instead: work for the experiment's own clients, e.g. 0/3.")
    ] = None,
    superlink: Annotated[str | None, typer.Option(help="host:port, with --share.")] = None,
    root_certificates: Annotated[Path | None, typer.Option(help="With --share.")] = None,
    private_key: Annotated[Path | None, typer.Option(help="With --share.")] = None,
    state: Annotated[Path, typer.Option(help="With --share: what clients keep.")] = Path("state"),
) -> None:
    """Join the coordinator, by TLS and with the site's own key, and work for it until Ctrl-C."""
    from calibre.deploy.supernode import share_command, site_command

    if (file is None) == (share is None):
        raise UserError("give the site's file, or --share i/n to work for the experiment's clients")
    if file is not None:
        command, environment = site_command(file)
    else:
        command, environment = share_command(
            str(share), superlink, root_certificates, private_key, state
        )
    os.execve(command[0], command, environment)  # noqa: S606
