"""Fair and accurate personalized federated learning with self-supervised learning.

What is listed here is for everybody; docs/python.md shows how it is used. Names are loaded when
they are first asked for, so that ``import calibre`` takes no time.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibre.api import (
        choose,
        compare,
        draw,
        load,
        make_bundle,
        personalize,
        read_run,
        run,
        run_suite,
        write_report,
    )
    from calibre.errors import UserError
    from calibre.experiment import Experiment
    from calibre.experiment import read as read_experiment
    from calibre.methods.method import Method
    from calibre.personal.bundle import Bundle
    from calibre.report.runs import Run
    from calibre.ssl.objective import Objective

__version__ = "0.1.0"
__all__ = [
    "Bundle",
    "Experiment",
    "Method",
    "Objective",
    "Run",
    "UserError",
    "choose",
    "compare",
    "draw",
    "load",
    "make_bundle",
    "personalize",
    "read_experiment",
    "read_run",
    "run",
    "run_suite",
    "write_report",
]

_ELSEWHERE = {
    "Bundle": "calibre.personal.bundle:Bundle",
    "Experiment": "calibre.experiment:Experiment",
    "Method": "calibre.methods.method:Method",
    "Objective": "calibre.ssl.objective:Objective",
    "Run": "calibre.report.runs:Run",
    "UserError": "calibre.errors:UserError",
    "read_experiment": "calibre.experiment:read",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'calibre' has no attribute '{name}'")
    module, _, attribute = _ELSEWHERE.get(name, f"calibre.api:{name}").partition(":")
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
