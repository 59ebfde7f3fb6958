import subprocess
import sys

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from calibre.errors import UserError
from calibre.registry import FIGURES
from calibre.report import figures
from calibre.report.figures.style import COLOURS, mark, save
from calibre.report.runs import read_all
from tests.report.figures.pictures import check, texts
from tests.report.in_memory import method, run
from tests.report.made_run import make_run

METHODS = ("calibre", "fedavg", "fedrep", "fedbn-ft")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    return read_all(
        [
            make_run(place / f"{name}-{seed}", 12, 5, seed=seed, better=0.03 * i,
                     changes=[f"method.name={name}"])
            for i, name in enumerate(METHODS)
            for seed in (0, 1)
        ]
    )  # fmt: skip


def given(name, runs):
    return [r for r in runs if r.seed == 0] if name == "federation" else runs


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_can_be_read(name, runs):
    check(figures.compose(name, given(name, runs)))


@pytest.mark.parametrize("name", ["mean-variance", "sorted"])
def test_the_same_picture_is_the_same_file(name, runs, tmp_path):
    png, svg = save(figures.compose(name, runs), tmp_path / name)
    assert (png.name, svg.name) == (f"{name}.png", f"{name}.svg")
    assert Image.open(png).width == 1440
    again = save(figures.compose(name, runs), tmp_path / "again" / name)
    assert [path.read_bytes() for path in again] == [png.read_bytes(), svg.read_bytes()]


@pytest.mark.parametrize("name", FIGURES)
def test_one_run_without_novel_clients_is_enough(name, tmp_path):
    (alone,) = read_all([make_run(tmp_path / "r", 4, 0, floors=())])
    check(figures.compose(name, [alone]))


def words(figure):
    return {text.get_text() for text in texts(figure)}


def test_mean_and_variance_are_where_the_markers_are():
    accuracies = {0: [0.5, 0.7], 1: [0.8, 1.0]}
    runs = [run(a, [0.4, 0.6], method("fedavg"), seed=s) for s, a in accuracies.items()]
    trained, novel = figures.compose("mean-variance", runs).axes
    *_, seeds, marker = trained.collections
    np.testing.assert_allclose(marker.get_offsets(), [[0.75, 0.01]])
    np.testing.assert_allclose(seeds.get_offsets(), [[0.6, 0.01], [0.9, 0.01]])
    np.testing.assert_allclose(novel.collections[-1].get_offsets(), [[0.5, 0.01]])
    assert "FedAvg" in words(trained.figure)


def test_of_many_methods_no_seeds_are_drawn():
    def panel(methods):
        runs = [
            run([0.5 + 0.01 * i, 0.7], [], method("fedprox"), f"method.mu={0.001 * i}", seed=s,
                method=f"M{i}")
            for i in range(methods) for s in (0, 1)
        ]  # fmt: skip
        return figures.compose("mean-variance", runs).axes[0]

    assert len(panel(8).collections) == 16  # seeds, and their mean
    assert len(panel(9).collections) == 9


@pytest.mark.parametrize("crowd", ["apart", "close"])
def test_labels_of_many_methods_do_not_cover_each_other(crowd):
    """Nineteen methods, as many as the paper's main figure has."""
    draw = np.random.default_rng(0)
    width = 0.3 if crowd == "apart" else 0.08
    runs = [
        run(
            np.clip(draw.uniform(0.6, 0.6 + width) + draw.normal(0, 0.1, 20), 0, 1).tolist(),
            [],
            method("fedprox"),
            f"method.mu={0.001 * i}",
            method=f"Method number {i}",
        )
        for i in range(19)
    ]
    figure = figures.compose("mean-variance", runs)
    shown = check(figure)
    assert sum("Method number" in text.get_text() for text in shown) == 19


def test_sorted_lines_rise_through_all_accuracies():
    figure = figures.compose("sorted", [run([0.9, 0.2, 0.5, 0.4])])
    (line,) = figure.axes[0].lines
    np.testing.assert_allclose(line.get_ydata(), [0.2, 0.4, 0.5, 0.9])
    np.testing.assert_allclose(line.get_xdata(), [0.125, 0.375, 0.625, 0.875])


def test_distributions_show_every_client_and_the_right_mean():
    figure = figures.compose("distributions", [run([0.9, 0.2, 0.5, 0.4])])
    panel = figure.axes[0]
    (dots,) = panel.collections
    assert sorted(np.asarray(dots.get_offsets())[:, 0]) == [0.2, 0.4, 0.5, 0.9]
    (mean,) = [line for line in panel.lines if line.get_marker() == "D"]
    assert mean.get_xdata() == pytest.approx([0.5])


def test_against_what_a_client_holds():
    """Clients hold 1, 2, 3, 1 classes and 15, 16, 17, 18 images."""
    alone = [run([0.9, 0.2, 0.5, 0.4])]
    (line,) = figures.compose("by-classes", alone).axes[0].lines
    np.testing.assert_allclose(line.get_xdata(), [1, 2, 3])
    np.testing.assert_allclose(line.get_ydata(), [0.65, 0.2, 0.5])
    (line,) = figures.compose("by-size", alone).axes[0].lines
    np.testing.assert_allclose(line.get_xdata(), [15, 16, 17, 18])


def test_many_sizes_are_grouped_into_equal_parts():
    accuracies = np.linspace(0, 1, 80).tolist()  # as are sizes: 15 to 94
    (line,) = figures.compose("by-size", [run(accuracies)]).axes[0].lines
    np.testing.assert_allclose(line.get_xdata(), 19.5 + 10 * np.arange(8))
    np.testing.assert_allclose(line.get_ydata(), (4.5 + 10 * np.arange(8)) / 79)


def test_curves_are_means_of_a_rounds_clients_and_seeds(runs):
    figure = figures.compose("curves", [r for r in runs if r.label == "FedAvg"])
    titles = [panel.get_title(loc="left") for panel in figure.axes if panel.get_visible()]
    assert titles == ["loss", "divergence", "spread", "clusters"]
    (line,) = figure.axes[0].lines
    expected = [
        np.mean([
            np.mean([report["loss"] for report in r.rounds[i].clients.values()])
            for r in runs if r.label == "FedAvg"
        ])
        for i in range(6)
    ]  # fmt: skip
    np.testing.assert_allclose(line.get_ydata(), expected)


def test_curves_need_no_common_federation_but_rounds(tmp_path):
    unlike = [
        make_run(tmp_path / str(n), n, 0, changes=[f"federation.clients={n}"]) for n in (4, 5)
    ]
    assert {"Calibre (SimCLR) with labels, federation.clients=4"} < words(
        figures.compose("curves", read_all(unlike))
    )
    still = make_run(tmp_path / "still", 4, 0, rounds=0)
    with pytest.raises(UserError, match="no rounds"):
        figures.compose("curves", read_all([still]))


def test_other_figures_refuse_unlike_federations(tmp_path):
    unlike = read_all([make_run(tmp_path / str(n), n, 0) for n in (4, 5)])
    for name in ("mean-variance", "sorted", "federation"):
        with pytest.raises(UserError):
            figures.compose(name, unlike)


def test_floors_can_be_left_out(runs):
    shown = words(figures.compose("distributions", runs))
    assert {"local only", "untrained encoder"} < shown
    shown = words(figures.compose("distributions", runs, floors=False))
    assert not {"local only", "untrained encoder"} & shown


def test_no_two_of_ninety_things_look_alike():
    assert len({mark(i) for i in range(99)}) == 99
    assert mark(0) != mark(10)


def test_the_first_colours_differ_in_every_kind_of_colour_vision():
    """Machado et al. 2009, full deficiency; neighbours in the list must stay apart."""
    kinds = {
        "protan": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
        "deutan": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
        "tritan": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
    }
    rgb = np.array([[int(to_hex(c)[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in COLOURS[:7]])
    for matrix in kinds.values():
        seen = np.clip(rgb**2.2 @ np.array(matrix).T, 0, 1) ** (1 / 2.2)
        away = np.linalg.norm(seen[:, None] - seen[None], axis=2)[np.triu_indices(7, 1)]
        assert away.min() > 0.1


def test_importing_loads_no_matplotlib():
    code = "import sys, calibre.report.figures.clients; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_unknown_figure_is_named():
    with pytest.raises(UserError, match="did you mean 'curves'"):
        figures.compose("curve", [])
