"""``--engine flower-sim``: an experiment on Flower's simulation runtime, which runs on Ray."""

from pathlib import Path

from calibre.cores import usable_cores
from calibre.deploy import launch
from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.files import write_atomic
from calibre.report import runs
from calibre.report.events import Emit
from calibre.report.metrics import Metrics
from calibre.run_files import RunFiles


def simulate(experiment: Experiment, folder: Path, emit: Emit) -> Metrics:
    """Start a SuperLink of its own on this machine, submit the experiment, follow it to its end.

    The nodes share the run folder, where clients keep what they keep: on several machines it must
    lie on storage that all of them see.
    """
    superlink = launch.program("flower-superlink")
    files = RunFiles(folder.resolve())
    work = files.flower
    home = work / "home"
    work.mkdir(parents=True, exist_ok=True)
    cores = usable_cores()
    nodes = experiment.engine.sites or cores
    engine = experiment.engine.model_copy(update={"runtime": "flower-sim", "sites": nodes})
    experiment = experiment.model_copy(update={"engine": engine})
    write_atomic(files.flower_experiment, experiment.to_toml())
    settings = {
        "experiment": str(files.flower_experiment), "out": str(files.path), "simulation": True,
        "patience": 600.0,
    }  # fmt: skip
    launch.write_app(work / "app", settings)
    port, log, outcome = launch.free_port(), work / "superlink.log", files.outcome
    launch.write_connection(home, f"127.0.0.1:{port}", None)
    outcome.unlink(missing_ok=True)
    before = launch.identity(files.events)
    command = [
        superlink, "--insecure", "--simulation", "--port", str(port),
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    with launch.running(command, home, log) as link:
        launch.wait_for_port(port, link, log)
        resources = (
            f"num-supernodes={nodes} client-resources-num-cpus=1 init-args-num-cpus={cores} "
            "init-args-log-to-driver=false"
        )
        run = launch.submit(work / "app", home, log, ["--federation-config", resources])
        ended = launch.follow(
            files.events, before, outcome, lambda: launch.is_running(run, home), emit
        )
    if ended["ended"] != "done":
        raise UserError(f"{ended['message']}\n(the log of Flower: {log})")
    return runs.read_metrics(files.path)
