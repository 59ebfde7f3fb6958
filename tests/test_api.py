"""The public names: each has an example that works, and takes what is not the library's own."""

import doctest
import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import calibre
from calibre.data.sources import load
from calibre.errors import UserError
from calibre.experiment import read
from calibre.methods.fedavg import FedAvg
from calibre.models.network import build_encoder
from calibre.sections import DataSettings
from calibre.settings import import_name
from tests.methods.helpers import host

ROOT = Path(__file__).parents[1]
FUNCTIONS = [name for name in calibre.__all__ if inspect.isfunction(getattr(calibre, name))]


@pytest.fixture(scope="module")
def after_the_first(tmp_path_factory) -> Path:
    """A folder in which the example of ``run`` has been followed; the others build on it."""
    folder = tmp_path_factory.mktemp("api")
    follow("run", folder)
    return folder


def follow(name: str, folder: Path) -> doctest.TestResults:
    here = Path.cwd()
    os.chdir(folder)
    try:
        (example,) = doctest.DocTestFinder(recurse=False).find(getattr(calibre, name), name)
        assert example.examples, f"calibre.{name} has no example"
        return doctest.DocTestRunner().run(example)
    finally:
        os.chdir(here)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_of_every_function_is_true(name, after_the_first):
    assert follow(name, after_the_first).failed == 0


def test_every_name_is_there_documented_and_typed():
    assert len(calibre.__all__) == len(set(calibre.__all__)) == 17
    for name in calibre.__all__:
        thing = getattr(calibre, name)
        assert inspect.getdoc(thing), name
    for name in FUNCTIONS:
        signature = inspect.signature(getattr(calibre, name))
        assert signature.return_annotation is not inspect.Signature.empty, name
        for parameter in signature.parameters.values():
            assert parameter.annotation is not inspect.Parameter.empty, (name, parameter.name)


def test_importing_calibre_imports_no_torch():
    code = "import sys, calibre; sys.exit('torch' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_guide_lists_every_public_name():
    guide = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    assert [name for name in calibre.__all__ if f"`{name}`" not in guide] == []


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = calibre.nothing


class Halfway(FedAvg):
    name: str = ""
    eta: float = 0.5


def test_settings_of_a_class_of_ones_own_are_found_again_by_its_name():
    experiment = read(method=Halfway(eta=0.25))
    assert experiment.method.name == "tests.test_api:Halfway"
    again = read(method=experiment.method.model_dump())
    assert type(again.method) is Halfway
    assert again == experiment
    assert again.hash() == experiment.hash()
    assert read(method=Halfway).method == Halfway(name="tests.test_api:Halfway")


def test_settings_of_a_known_class_keep_their_name():
    assert read(method=FedAvg(finetune=True)).method.name == "fedavg"
    assert (
        read(method=FedAvg(name="fedavg-ft", finetune=True)).method
        == read(None, ["method=fedavg-ft"]).method
    )


def test_sections_change_only_their_keys():
    base = read(None, ["method.sgd.lr=0.5", "training.rounds=9"])
    changed = read(base, method={"sgd": {"batch": 7}}, training={"epochs": 2})
    assert changed.method.sgd.lr == 0.5
    assert changed.method.sgd.batch == 7
    assert (changed.training.rounds, changed.training.epochs) == (9, 2)
    other = read(base, method={"name": "fedrep"})
    assert other.method == read(None, ["method.name=fedrep"]).method


@pytest.mark.parametrize("sections", [{"training": {"round": 3}}, {"method": {"name": "fedrap"}}])
def test_a_wrong_section_is_told_as_on_the_command_line(sections):
    with pytest.raises(UserError, match="did you mean"):
        read(**sections)


def test_what_workers_cannot_import_is_refused():
    def inside(channels: int, width: int, stem: str) -> nn.Module:
        return nn.Flatten()

    with pytest.raises(UserError, match="inside another function"):
        read(network={"encoder": inside})
    with pytest.raises(UserError, match="move it to the top"):
        read(network={"encoder": lambda channels, width, stem: nn.Flatten()})


def test_what_a_notebook_defines_is_refused(monkeypatch):
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    kind = type("Cell", (), {"__module__": "__main__", "__qualname__": "Cell"})
    with pytest.raises(UserError, match="%%writefile"):
        import_name(kind)


class Backbone(nn.Module):
    """As other libraries write them: ``features`` is a module, and nothing says how long."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(1, 5, 3)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        return self.pool(self.features(x)).flatten(1)


def backbone(channels: int, width: int, stem: str) -> nn.Module:
    return Backbone()


def unpooled(channels: int, width: int, stem: str) -> nn.Module:
    return nn.Conv2d(channels, 5, 3)


def too_deep(channels: int, width: int, stem: str) -> nn.Module:
    return nn.Conv2d(channels, 5, 64)


def no_module(channels: int, width: int, stem: str) -> str:
    return "resnet"


def problem_of(encoder, tmp_path):
    return host(read(network={"encoder": encoder}, engine={"workers": 0}), tmp_path)


def test_the_length_of_an_encoding_is_found_by_trying(tmp_path):
    home = problem_of(backbone, tmp_path)
    encoder = home.load("method").network.encoder
    assert encoder.features == 5
    assert encoder.training
    assert encoder(torch.rand(3, 1, 8, 8)).shape == (3, 5)


@pytest.mark.parametrize(
    ("encoder", "said"),
    [
        (unpooled, r"not into \[1, 5, 6, 6\]: take its classifier off"),
        (too_deep, r"fails on images \[1, 1, 8, 8\]"),
        (no_module, "returns no nn.Module: 'resnet'"),
    ],
)
def test_an_encoder_that_does_not_fit_is_told_in_words(encoder, said, tmp_path):
    with pytest.raises(UserError, match=said):
        problem_of(encoder, tmp_path).load("method")


def test_measuring_an_encoder_draws_no_random_number_of_its_start(tmp_path):
    home = problem_of(backbone, tmp_path)
    state = home.initial_state()
    told = build_encoder(home.problem)
    assert all(
        torch.equal(state.model[f"encoder.{name}"], tensor)
        for name, tensor in told.state_dict().items()
    )


SIZE = {"count": 30}


def squares() -> dict[str, object]:
    draw = np.random.default_rng(1)
    count = SIZE["count"]
    return {
        "images": draw.integers(0, 256, (count, 6, 6), np.uint8),
        "labels": [["a", "b"][i % 2] for i in range(count)],
        "clients": [f"site {i % 3}" for i in range(count)],
    }


def numbers() -> list[int]:
    return [1, 2]


def ragged() -> dict[str, object]:
    return {"images": np.zeros((2, 6, 6), np.uint8), "labels": np.array(["a", 1], object)}


def test_a_function_of_arrays_is_a_data_set_and_never_stale(monkeypatch):
    settings = DataSettings(source=squares)
    assert settings.source == "tests.test_api:squares"
    pool = load(settings)
    assert pool.classes == ("a", "b")
    assert pool.owner_names == ("site 0", "site 1", "site 2")
    assert len(pool.images) == 30
    assert load(settings).fingerprint == pool.fingerprint
    monkeypatch.setitem(SIZE, "count", 60)
    assert len(load(settings).images) == 60


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (numbers, "returns list: return a dict of arrays"),
        (ragged, "'labels' is not an array of one type"),
        ("tests.test_api:absent", "cannot be loaded"),
    ],
)
def test_a_function_that_returns_something_else(source, said):
    with pytest.raises(UserError, match=said):
        load(DataSettings(source=source))


def test_the_tour(tmp_path):
    """As the guide says to start it; its worker processes import what it defines."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "tour.py"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for words in ("Calibre (SimCLR)", "Cautious FedAvg", "Calibre (Barlow Twins)", "it is "):
        assert words in done.stdout
    for file in ("report.html", "mean-variance.png", "bundle/card.md"):
        assert (tmp_path / "tour" / file).stat().st_size > 0


def test_a_script_without_a_guard_is_told_to_have_one(tmp_path):
    """Its workers import it: it must not start another run in each of them."""
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from torch import nn\nimport calibre\n\n"
        "def flat(channels, width, stem):\n    return nn.Flatten()\n\n"
        "calibre.run(calibre.read_experiment(network={'encoder': flat}), 'run')\n"
    )
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode != 0
    assert 'if __name__ == "__main__"' in done.stderr
