"""How soon the command answers, how soon the first client trains, and how much memory it takes."""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

COMMAND = [sys.executable, "-m", "calibre"]


def help_seconds() -> dict[str, Any]:
    """Of the processor: on a busy machine the clock tells of the others."""
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*COMMAND, "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return {
        "name": "processor seconds until calibre-fl --help has answered",
        "ratio": min(seconds),
        "target": "<= 0.25",
        "settings": {"of": len(seconds), "all": [round(s, 3) for s in seconds]},
    }


def first_client_seconds() -> dict[str, Any]:
    seconds = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as name:
            began = time.time()
            subprocess.run(
                [*COMMAND, "run", "--out", name, "--set", "training.rounds=1",
                 "--set", "personal.floors=[]"],
                check=True, capture_output=True,
            )  # fmt: skip
            events = [json.loads(line) for line in (Path(name) / "events.jsonl").open()]
            first = next(event for event in events if event["event"] == "round")
            starts = [report["began"] for report in first["clients"].values()]
            seconds.append(min(starts) - began)
    return {
        "name": "seconds from the command until the first client trains",
        "ratio": sorted(seconds)[1],
        "target": "<= 3",
        "settings": {"experiment": "the default one", "all": [round(s, 2) for s in seconds]},
    }


def memory(small: int = 500, large: int = 5_000) -> dict[str, Any]:
    """Of whole runs. (Below 256 clients, fewer heads are solved at once.)"""
    peaks = {clients: peak_memory(clients) for clients in (small, large)}
    return {
        "name": f"peak memory with {large:,} clients against {small}",
        "ratio": peaks[large] / peaks[small],
        "target": "<= 1.10",
        "settings": {"MiB": {str(k): round(v / 2**20) for k, v in peaks.items()}, "rounds": 3},
    }


def peak_memory(clients: int) -> int:
    """The largest sum over all processes of what each holds alone (shared pages in parts)."""
    with tempfile.TemporaryDirectory() as name:
        changes = [
            f"federation.clients={clients}", "federation.novel=0", "federation.samples=20",
            "federation.test_samples=10", "federation.overlap=independent", "training.rounds=3",
            "training.clients_per_round=10", "personal.floors=[]",
        ]  # fmt: skip
        sets = [part for change in changes for part in ("--set", change)]
        process = psutil.Popen(
            [*COMMAND, "run", "--out", name, *sets],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        peak = 0
        while process.poll() is None:
            total = 0
            for member in [process, *process.children(recursive=True)]:
                try:
                    total += member.memory_full_info().pss
                except psutil.Error:
                    continue
            peak = max(peak, total)
            time.sleep(0.1)
        assert process.returncode == 0, "the run failed"
        return peak
