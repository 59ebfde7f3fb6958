import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from PIL import Image

from calibre.report.figures.accuracies import accuracy_figure, compose
from calibre.report.metrics import ClientResult


def clients(
    training: int, novel: int, floors: tuple[str, ...] = ("untrained", "local")
) -> list[ClientResult]:
    draw = np.random.default_rng(0)
    return [
        ClientResult(
            id=i,
            name=f"{'novel' if i >= training else 'client'}-{i}",
            novel=i >= training,
            samples=20,
            unlabelled=0,
            test_samples=100,
            classes=2,
            accuracy=float(draw.uniform(0.4, 1)),
            floors={name: float(draw.uniform(0.2, 0.9)) for name in floors},
        )
        for i in range(training + novel)
    ]


def markers(panel: object) -> dict[str, np.ndarray]:
    """Heights of a panel's markers from left to right, by what the legend calls them."""
    handles, labels = panel.get_legend_handles_labels()  # type: ignore[attr-defined]
    return {
        label: np.asarray(handle.get_offsets())[:, 1]
        for label, handle in zip(labels, handles, strict=True)
        if hasattr(handle, "get_offsets")
    }


def test_every_client_is_drawn_once_above_its_own_floors() -> None:
    rows = clients(16, 8)
    figure = compose(rows, "")
    for panel, novel in zip(figure.axes, (False, True), strict=True):
        group = sorted((r for r in rows if r.novel == novel), key=lambda r: r.accuracy)
        drawn = markers(panel)
        np.testing.assert_array_equal(drawn["personal model"], [r.accuracy for r in group])
        for label, name in {"untrained encoder": "untrained", "local only": "local"}.items():
            np.testing.assert_array_equal(drawn[label], [r.floors[name] for r in group])
        assert [text.get_text() for text in panel.get_xticklabels()] == [str(r.id) for r in group]


def test_the_axis_calls_clients_by_their_names() -> None:
    names = ("hospital-2", "hospital-10", "$5 or $6")
    rows = [replace(row, name=name) for row, name in zip(clients(3, 0), names, strict=True)]
    (panel,) = compose(rows, "").axes
    by_accuracy = [row.name for row in sorted(rows, key=lambda row: row.accuracy)]
    assert [text.get_text() for text in panel.get_xticklabels()] == by_accuracy
    assert not any(text.get_parse_math() for text in panel.get_xticklabels())


def test_mean_and_worst_tenth_stand_where_they_are_said_to_be() -> None:
    rows = clients(25, 0)
    (panel,) = compose(rows, "").axes
    mean = np.mean([row.accuracy for row in rows])
    (line,) = [line for line in panel.lines if line.get_label() == "mean"]
    assert line.get_ydata() == pytest.approx([mean, mean])
    assert [text.get_text() for text in panel.texts] == [f"{100 * mean:.1f} %"]
    (shade,) = panel.patches
    assert shade.get_x() == panel.get_xlim()[0]
    assert shade.get_x() + shade.get_width() == pytest.approx(3.5)  # clients 1 to 3 of 25
    worst = np.sort([row.accuracy for row in rows])[:3].mean()
    assert panel.get_title(loc="left") == f"25 training clients\nworst tenth {100 * worst:.1f} %"


def test_panels_are_as_wide_as_they_have_clients() -> None:
    training, novel = compose(clients(100, 50), "").axes
    assert training.get_subplotspec().get_gridspec().get_width_ratios() == [100, 50]
    assert training.get_ylim() == novel.get_ylim()


SIZES = [(1, 0), (10, 0), (26, 4), (16, 8), (3, 27), (100, 5), (1500, 500), (10_000, 0), (0, 40)]


@pytest.mark.parametrize(("training", "novel"), SIZES)
def test_no_text_is_cut_off_or_covers_another(
    training: int, novel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = compose(clients(training, novel), "Calibre (SimCLR) on cifar10, $5 each")
    drawn: dict[Text, Bbox] = {}

    def record(text: Text, renderer: RendererBase) -> None:
        if text.get_visible() and text.get_text().strip():
            drawn[text] = text.get_window_extent(renderer)

    monkeypatch.setattr(Text, "draw", record)
    FigureCanvasAgg(figure).draw()
    assert len(drawn) > 10  # the test does see them
    page = figure.bbox
    for text, box in drawn.items():
        assert min(box.x0, box.y0) >= 0, text
        assert box.x1 <= page.x1, text
        assert box.y1 <= page.y1, text
    for (text, box), (other, another) in itertools.combinations(drawn.items(), 2):
        assert not box.overlaps(another), f"{text} covers {other}"


def test_the_files_are_images_and_the_same_each_time(tmp_path: Path) -> None:
    rows = clients(300, 20, floors=("local",))
    png, svg = accuracy_figure(rows, tmp_path / "run" / "figures", "R&D <1>")
    assert png == tmp_path / "run" / "figures" / "accuracies.png"
    assert Image.open(png).size == (1440, 720)
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert svg.stat().st_size < 500_000
    again = accuracy_figure(rows, tmp_path / "again", "R&D <1>")
    assert [path.read_bytes() for path in again] == [png.read_bytes(), svg.read_bytes()]


def test_without_floors_there_is_only_the_personal_model() -> None:
    (panel,) = compose(clients(5, 0, floors=()), "").axes
    assert list(markers(panel)) == ["personal model"]


def test_drawing_leaves_no_global_state_and_importing_no_matplotlib() -> None:
    code = "import sys, calibre.report.figures.accuracies; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert "matplotlib.pyplot" not in sys.modules
