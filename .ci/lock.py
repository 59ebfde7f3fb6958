"""Write requirements/{core,flower,dev}.txt: every package with the hashes of its files.

    python .ci/lock.py      where the project is installed with all its extras

Versions are those of constraints.txt; which packages belong to which file follows from what is
installed. The hashes are those that the package index tells of all its files for Python 3.11 and
newer, on the usual systems. torch is left out: which of its builds suits a machine (for a CPU, for
some CUDA) is not for a lock to say, and they have unlike hashes and unlike dependencies. It is
pinned in constraints.txt alone.
"""

import os
import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pip._internal.models.index import PyPI

ROOT = Path(__file__).resolve().parents[1]
INDEX = os.environ.get("PIP_INDEX_URL", PyPI.simple_url).rstrip("/")  # where pip looks
OURS = "calibre-fl"
BUILD = {"setuptools"}  # the project itself is built with it
LEFT_OUT = {"torch", "torchvision"}
FILE = re.compile(r'<a href="[^"#]*#sha256=([0-9a-f]{64})"[^>]*>\s*([^<\s]+)\s*</a>')
WHEELS = re.compile(
    r"-(py3|py2\.py3|cp3\d+|cp31[1-4])-(none|abi3|cp31[1-4])-"
    r"(any|manylinux.*_(x86_64|aarch64)|macosx_.*|win_amd64)\.whl$"
)


def closure(extras: frozenset[str]) -> set[str]:
    """The packages that the project needs with these extras, and what those need in turn."""
    found: dict[str, frozenset[str]] = {}
    waiting = [(OURS, extras)]
    while waiting:
        name, asked = waiting.pop()
        known = found.get(name)
        if known is not None and asked <= known:
            continue
        found[name] = asked | (known or frozenset())
        try:
            needed = [Requirement(text) for text in requires(name) or ()]
        except PackageNotFoundError:
            continue  # for another system or Python
        for one in needed:
            places = [{"extra": extra} for extra in (*found[name], "")]
            if one.marker is None or any(one.marker.evaluate(place) for place in places):
                waiting.append((canonicalize_name(one.name), frozenset(one.extras)))
    return set(found) - {OURS} - LEFT_OUT


def hashes(name: str, version: str) -> list[str]:
    """Of all files of a version that might be installed."""
    with urllib.request.urlopen(f"{INDEX}/{name}/", timeout=60) as answer:  # noqa: S310  # https
        page = answer.read().decode()
    start = re.compile(rf"{re.sub(r'[-_.]+', '[-_.]+', name)}-{re.escape(version)}[-.]", re.I)
    files = [(file, code) for code, file in FILE.findall(page) if start.match(file)]
    wheels = [code for file, code in files if WHEELS.search(file)]
    return sorted(wheels or [code for file, code in files if file.endswith((".tar.gz", ".zip"))])


def lines(name: str, version: str) -> str:
    found = hashes(name, version)
    if not found:
        raise SystemExit(f"{name} {version}: the index lists no file that could be installed")
    return " \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{code}" for code in found)])


def main() -> None:
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line
    )
    versions = {canonicalize_name(name): version for name, version in pins.items()}
    core = closure(frozenset()) | BUILD
    flower = closure(frozenset({"flower", "privacy"})) - core
    everything = closure(frozenset({"dev"}))
    for file, names in (("core", core), ("flower", flower), ("dev", everything - flower - core)):
        wanted = sorted(name for name in names if name in versions)
        if missing := sorted(names - set(wanted)):
            print(f"{file}: not in constraints.txt, left out: {', '.join(missing)}")
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda name: lines(name, versions[name]), wanted))
        place = ROOT / "requirements" / f"{file}.txt"
        place.parent.mkdir(exist_ok=True)
        place.write_text(f"{HEAD}{chr(10).join(found)}\n")
        print(f"{place.name}: {len(found)} packages")


HEAD = (
    "# Made by .ci/lock.py: do not edit. Every package with the hashes of its files, for\n"
    "#     pip install --require-hashes --no-deps -r ...\n"
    "# torch is not in it: its builds for CPUs and GPUs have unlike hashes and dependencies.\n"
    "# It is pinned in constraints.txt.\n"
)

if __name__ == "__main__":
    main()
