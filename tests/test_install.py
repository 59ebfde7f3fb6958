"""How Calibre comes to a machine: as a wheel, from a lock, in a container, into a shell."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = ("core", "flower", "dev")
LINE = re.compile(r"([a-z0-9-]+)==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)")


def locked(name):
    """Package -> version; every line is pinned and has hashes."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text().replace(" \\\n   ", "")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return dict(LINE.fullmatch(line).groups()[:2] for line in lines)


def constraints():
    pins = [line.split("==") for line in (ROOT / "constraints.txt").read_text().split()]
    return {canonicalize_name(name): version for name, version in pins}


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_package_has_hashes_and_the_version_of_constraints(name):
    found = locked(name)
    assert found
    assert found.items() <= constraints().items()


def test_the_locks_hold_all_that_the_project_asks_for_but_torch():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core, flower = locked("core"), locked("flower")
    asked = {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}
    assert asked - {"torch"} <= core.keys()
    assert "torch" not in {**core, **flower, **locked("dev")}
    extras = project["optional-dependencies"]
    asked = {Requirement(text).name for text in (*extras["flower"], *extras["privacy"])}
    assert asked <= flower.keys() | core.keys()
    assert not core.keys() & flower.keys()


def test_a_lock_is_whole():
    """Nothing that a locked package needs is left to be found without a hash."""
    spec = importlib.util.spec_from_file_location("lock", ROOT / ".ci" / "lock.py")
    lock = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lock)
    pinned = constraints().keys()
    assert lock.closure(frozenset()) & pinned <= locked("core").keys()
    everything = {**locked("core"), **locked("flower"), **locked("dev")}
    assert lock.closure(frozenset({"dev"})) & pinned <= everything.keys()


def test_pipx_finds_the_command():
    """``pipx run`` starts the script that has the project's name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] in project["scripts"]


def test_make_installs_from_the_locks():
    text = (ROOT / "Makefile").read_text()
    assert "--require-hashes --no-deps -r" in text
    for name in LOCKS:
        assert f"requirements/{name}.txt" in text


KNOWN = {"FROM", "ENV", "COPY", "RUN", "ARG", "USER", "WORKDIR", "VOLUME", "EXPOSE", "ENTRYPOINT",
         "CMD"}  # fmt: skip


def test_the_container_file_names_what_is_there():
    lines = (ROOT / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    assert {word for word, _ in steps} <= KNOWN
    assert steps[0][0] == "FROM"
    for word, said in steps:
        if word == "COPY":
            *sources, goal = said.split()
            assert all((ROOT / source).exists() for source in sources)
            assert goal.startswith("/src/")
    copied = " ".join(said for word, said in steps if word == "COPY")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for file in (project["project"]["readme"], *project["project"]["license-files"]):
        assert file in copied  # the build asks for them
    by_word = dict(steps)
    assert by_word["USER"] == "calibre"
    (command,) = json.loads(by_word["ENTRYPOINT"])
    assert command in project["project"]["scripts"]
    assert json.loads(by_word["CMD"]) == ["run"]


def test_shells_complete_commands():
    """By typer's protocol: what a shell asks, and what it is told."""
    asked = {"_CALIBRE_FL_COMPLETE": "complete_bash", "COMP_WORDS": "calibre-fl per",
             "COMP_CWORD": "1"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", "from calibre.cli import app; app(prog_name='calibre-fl')"],
        env={**os.environ, **asked}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.split() == ["personalize"]
    assert "--install-completion" in (ROOT / "docs" / "running.md").read_text()


RUN_CELLS = """
import json, sys
notebook = json.load(open(sys.argv[1]))
names = {"__name__": "__main__"}
for cell in notebook["cells"]:
    if cell["cell_type"] == "code":
        exec("".join(cell["source"]), names)
"""


def test_the_notebook_from_top_to_bottom(tmp_path):
    for file in ("tour.ipynb", "tour.py", "barlow_twins.py"):
        shutil.copy(ROOT / "examples" / file, tmp_path)
    cells = json.loads((tmp_path / "tour.ipynb").read_text())["cells"]
    for cell in cells:  # what is shown was printed by nobody yet
        assert cell["cell_type"] == "markdown" or cell["outputs"] == []
    done = subprocess.run(
        [sys.executable, "-c", RUN_CELLS, "tour.ipynb"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for words in ("Calibre (SimCLR)", "Cautious FedAvg", "it is "):
        assert words in done.stdout
    for file in ("report.html", "mean-variance.png", "bundle/card.md"):
        assert (tmp_path / "notebook-tour" / file).stat().st_size > 0


QUICK = ("training.rounds=1", "federation.clients=4", "federation.novel=1", "network.width=4",
         "training.clients_per_round=2", "training.epochs=1")  # fmt: skip


@pytest.mark.minutes
def test_a_wheel_works_away_from_the_repository(tmp_path):
    """Built, installed into a fresh environment, run as a user would; the page opens."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    subprocess.run([*pip, "wheel", *offline, "-w", tmp_path, source], check=True)
    (wheel,) = tmp_path.glob("calibre_fl-*.whl")

    place = tmp_path / "env"
    venv.create(place)
    python = place / "bin" / "python"
    subprocess.run(
        [*pip, "--python", python, "install", "--no-deps", "--no-index", "--quiet", wheel],
        check=True,
    )
    shared = sysconfig.get_paths()["purelib"]  # the heavy packages; not its link to this source
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "shared.pth").write_text(f"{shared}\n")

    home = tmp_path / "home"
    home.mkdir()
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
    command = place / "bin" / "calibre-fl"

    def call(*words):
        return subprocess.run(
            [command, *words], cwd=home, env=clean, check=True, capture_output=True, text=True
        ).stdout

    found = subprocess.run(
        [python, "-c", "import calibre; print(calibre.__file__)"],
        cwd=home, env=clean, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert found.strip().startswith(str(place))
    changes = [word for change in QUICK for word in ("--set", change)]
    assert "own pixels" in call("run", "--out", "run", *changes)
    call("report", "run", "--out", "page.html")
    assert "<html" in (home / "page.html").read_text()
    if chromium := shutil.which("chromium"):
        shown = subprocess.run(
            [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
             f"file://{home / 'page.html'}"],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        assert "Calibre (SimCLR)" in shown
