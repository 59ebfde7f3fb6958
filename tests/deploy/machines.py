"""Real programs of a federation on loopback, with logs in files, all of them ended at the end."""

import contextlib
import os
import re
import shlex
import subprocess
import sysconfig
import time
from pathlib import Path

from calibre.deploy import launch
from tests.deploy.folders import write_folders, write_site

OWNERS = ("anna", "bert", "carl")
DOCUMENT = Path(__file__).parents[2] / "docs" / "deployment.md"
HOST = "127.0.0.2"  # an address of this machine, but not the one where it looks for itself
START = f"calibre-fl deploy start keys --bind {HOST}"
LASTING = ("calibre-fl deploy start", "calibre-fl site start")
PATIENCE = 600  # seconds; on a quiet machine a tenth of it is enough


def documented():
    """The commands of the walk-through, block by block."""
    return re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


class Machines:
    """``say`` runs a command to its end; ``start`` leaves it running."""

    def __init__(self, place):
        self.place = place
        self.running = {}
        scripts = sysconfig.get_path("scripts")
        path = os.pathsep.join([scripts, os.environ["PATH"]])
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "NO_COLOR": "1"}
        root = Path(__file__).parents[2]
        modules = os.pathsep.join([str(root / "src"), str(root)])
        self.environment = {**os.environ, **quiet, "PATH": path, "PYTHONPATH": modules}

    def say(self, command, fails=False):
        done = subprocess.run(
            ["bash", "-e", "-c", command], cwd=self.place, env=self.environment,
            capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert (done.returncode != 0) == fails, (command, done.stdout, done.stderr, self.logs())
        return done.stdout + done.stderr

    def start(self, name, command):
        with open(self.place / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen(
                shlex.split(command), cwd=self.place, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def federation(self, experiment, port, ports=None):
        """A coordinator and the sites of ``OWNERS``, started; some may reach it by other ports."""
        write_folders(self.place, OWNERS)
        (self.place / "experiment.toml").write_text(experiment.to_toml())
        self.coordinator(port)
        for owner in OWNERS:
            near = (ports or {}).get(owner)  # a port on this machine that leads there
            where = {"port": near} if near else {"port": port, "host": HOST}
            write_site(self.place, owner, keys=self.place / "keys", **where)
            self.start(owner, f"calibre-fl site start {owner}/site.toml")

    def coordinator(self, port):
        names = " ".join(f"--site {owner}" for owner in OWNERS)
        self.say(f"calibre-fl deploy keys keys --host {HOST} --port {port} {names}")
        self.start("keys", START)
        self.wait("listening", lambda: "listening" in self.log("keys"))

    def log(self, name):
        return (self.place / f"{name}.log").read_text()

    def logs(self):
        return {log.name: log.read_text()[-3000:] for log in self.place.glob("**/*.log")}

    def wait(self, what, until):
        end = time.monotonic() + PATIENCE
        while not until():
            assert time.monotonic() < end, (what, self.logs())
            time.sleep(0.2)

    def stop(self, name):
        launch.stop(self.running.pop(name))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in reversed(list(self.running)):
            with contextlib.suppress(ProcessLookupError):
                self.stop(name)
