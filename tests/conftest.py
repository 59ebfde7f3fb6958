import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calibre.experiment import Experiment, read
from calibre.report.figures.accuracies import accuracy_figure

TINY = (
    "federation.clients=5", "federation.novel=2", "federation.samples=40",
    "federation.test_samples=12", "federation.labels=3", "network.width=2",
    "method.sgd.batch=16", "training.rounds=3", "training.clients_per_round=3",
    "training.epochs=1", "personal.head=paper", "personal.epochs=2", "personal.floors=[]",
    "engine.workers=0",
)  # fmt: skip
WITHOUT_SETTINGS = ("majority", "pixels", "untrained")  # methods that train no network


@pytest.fixture(scope="session", autouse=True)
def one_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Decoded images of the whole test session, away from the user's own."""
    old = os.environ.get("CALIBRE_CACHE")
    os.environ["CALIBRE_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    if old is None:
        del os.environ["CALIBRE_CACHE"]
    else:
        os.environ["CALIBRE_CACHE"] = old


@pytest.fixture(scope="session", autouse=True)
def no_pictures() -> Iterator[None]:
    """To draw a run's picture takes longer than a tiny run: tests ask for it (``pictures``)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("calibre.report.results.accuracy_figure", lambda *_, **__: [])
        yield


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process draw their pictures, as they do for users."""
    monkeypatch.setattr("calibre.report.results.accuracy_figure", accuracy_figure)


@pytest.fixture
def tiny() -> Callable[..., Experiment]:
    """A whole experiment of about a second; more ``section.key=value`` change it."""

    def make(*changes: str) -> Experiment:
        method = [change for change in changes if change.startswith("method.name=")]
        self_supervised = method in ([], ["method.name=calibre"], ["method.name=pfl-ssl"])
        heads = ["method.objective.hidden=8", "method.objective.projection=4"]
        calibre = method in ([], ["method.name=calibre"])
        small = [
            *(heads if self_supervised else []),
            *(["method.labels.weight=0"] if calibre else []),
        ]
        rest = [change for change in changes if change not in method]
        if method and method[0].partition("=")[2] in WITHOUT_SETTINGS:
            return read(None, [*method, *(c for c in TINY if not c.startswith("method.")), *rest])
        return read(None, [*method, *TINY, *small, *rest])

    return make


@pytest.fixture(scope="session")
def cifar10() -> Path:
    """The folder that holds real CIFAR-10, for the few tests that want it."""
    places = [os.environ.get("CALIBRE_DATA"), Path(__file__).parents[2] / "shared" / "data"]
    for place in places:
        if place and (Path(place) / "cifar10").is_dir():
            return Path(place)
    pytest.skip("real CIFAR-10 is neither in $CALIBRE_DATA nor in ../shared/data")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real Chromium without a window, for the tests of a module."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no browser: install chromium and chromium-driver, as .ci/run does")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-background-networking",
                 "disable-dev-shm-usage", "window-size=1200,900"):  # fmt: skip
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield made
    made.quit()
