"""Of which commit and machine a figure is."""

import platform
import subprocess

from calibre.cores import usable_cores


def commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "none"


def machine() -> str:
    return f"{platform.machine()}, {usable_cores()} cores"
