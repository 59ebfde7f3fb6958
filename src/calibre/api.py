"""What a researcher calls from Python; the same things that the command line does.

Every example is run by the tests, in a folder of its own.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibre.errors import UserError
from calibre.experiment import Experiment
from calibre.report.comparison_tables import Comparison
from calibre.report.events import Emit, silent
from calibre.report.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from calibre.autopilot import Chosen
    from calibre.personal.bundle import Bundle

RUNS = Path("runs")


def run(
    experiment: Experiment | None = None, folder: Path | str | None = None, emit: Emit = silent
) -> Run:
    """Run an experiment in a folder, or go on with it where it stopped.

    Of one that has finished, only the personal models are made again, with the same result.
    The folder is ``runs/<name>`` unless given. ``emit`` gets every event as it happens.

    >>> import calibre
    >>> experiment = calibre.read_experiment(
    ...     federation={"clients": 3, "novel": 1, "samples": 60, "labels": 4},
    ...     network={"width": 4},
    ...     training={"rounds": 2, "clients_per_round": 2, "epochs": 1},
    ...     engine={"workers": 0},  # in this process: worth it for small runs alone
    ... )
    >>> run = calibre.run(experiment, "runs/first")
    >>> run.label, len(run.clients), run.metrics.train.clients
    ('Calibre (SimCLR) with labels', 4, 3)
    >>> 0 <= run.metrics.train.worst_tenth <= run.metrics.train.mean <= 1
    True
    """
    from calibre import engines

    chosen = experiment or Experiment()
    place = Path(folder) if folder else RUNS / chosen.folder_name
    engines.run(chosen, place, emit)
    return read_run(place)


def choose(data: Path | str, changes: Iterable[str] = (), **sections: Any) -> "Chosen":
    """The experiment that suits somebody's own images, and the reasons for its settings.

    ``data`` is a folder, or a .csv, .parquet or .npz file. What you decide yourself goes before
    what is chosen: ``changes`` and ``sections`` are those of :func:`read_experiment`.

    >>> import numpy as np, calibre
    >>> draw = np.random.default_rng(0)
    >>> images, labels = draw.integers(0, 256, (240, 16, 16), np.uint8), ["cat", "dog"] * 120
    >>> np.savez("pets.npz", images=images, labels=labels)
    >>> experiment, reasons = calibre.choose("pets.npz", training={"rounds": 3})
    >>> experiment.federation.clients, experiment.training.rounds
    (4, 3)
    >>> [reason.why for reason in reasons if reason.key == "network.encoder"]
    ['small: trains without a GPU']
    """
    from calibre import autopilot
    from calibre.tables import gather, overlay

    return autopilot.for_data(overlay(gather(None, changes), sections), str(data))


def run_suite(
    methods: Sequence[str],
    experiment: Experiment | None = None,
    seeds: int = 1,
    folder: Path | str = RUNS,
    emit: Emit = silent,
) -> list[Run]:
    """Run methods, written ``name`` or ``name/objective``, on the same federations.

    What is finished is not run again.

    >>> import calibre
    >>> first = calibre.read_run("runs/first").experiment
    >>> experiment = calibre.read_experiment(first, personal={"floors": []})
    >>> runs = calibre.run_suite(["calibre/simclr", "fedrep"], experiment, seeds=2)
    >>> [(run.experiment.method.title, run.seed) for run in runs]
    [('Calibre', 0), ('Calibre', 1), ('FedRep', 0), ('FedRep', 1)]
    """
    from calibre import suite

    base = experiment or Experiment()
    experiments = suite.variants(base, methods, range(base.seed, base.seed + seeds))
    suite.run(experiments, Path(folder), emit)
    return [read_run(Path(folder) / each.folder_name) for each in experiments]


def read_run(folder: Path | str) -> Run:
    """The finished run of a folder: its experiment, metrics, clients and events.

    >>> import calibre
    >>> run = calibre.read_run("runs/first")
    >>> worst = min(run.clients, key=lambda client: client.accuracy)
    >>> worst.accuracy == min(client.accuracy for client in run.clients)
    True
    >>> [event.round for event in run.rounds]
    [1, 2]
    """
    from calibre.report import runs

    return runs.read(Path(folder))


def compare(runs: Sequence[Run], floors: bool = True, all_pairs: bool = False) -> Comparison:
    """Methods beside each other, with intervals over seeds and paired tests between them.

    The best method is tested against the others, or, with ``all_pairs``, each against each.
    ``floors`` are what clients reach without a federation. The result prints as Markdown.

    >>> import calibre
    >>> comparison = calibre.compare([calibre.read_run("runs/first")])
    >>> sorted(row.label for row in comparison.rows if "Calibre" not in row.label)
    ['local only', 'majority class', 'own pixels', 'untrained encoder']
    >>> comparison.rows[0].estimate("train", "mean").value >= 0
    True
    """
    from calibre.report import compare as comparisons

    return comparisons.compare(runs, floors, all_pairs)


def draw(
    name: str, runs: Sequence[Run], floors: bool = True, clients: Sequence[int] | None = None
) -> "Figure":
    """A picture of finished runs, as matplotlib's Figure: ``calibre-fl figure`` lists the names.

    ``clients`` are those whose test images "tsne" shows; by default the first six.

    >>> import calibre
    >>> figure = calibre.draw("sorted", [calibre.read_run("runs/first")])
    >>> figure.savefig("sorted.png")
    >>> calibre.draw("tsne", [calibre.read_run("runs/first")], clients=[0, 1]).savefig("tsne.svg")
    """
    from calibre.registry import TSNE
    from calibre.report import figures

    if name == TSNE:
        from calibre.finished.encodings import views_of
        from calibre.report.figures.tsne import tsne

        picture: Figure = tsne(views_of(runs, clients))
        return picture
    if clients is not None:
        raise UserError(f"clients are chosen for the figure {TSNE}, not for {name}")
    drawn: Figure = figures.compose(name, runs, floors)
    return drawn


def write_report(runs: Sequence[Run], page: Path | str) -> Path:
    """One self-contained HTML page about runs: whom the models serve, and whom badly.

    >>> import calibre
    >>> page = calibre.write_report([calibre.read_run("runs/first")], "report.html")
    >>> page.name
    'report.html'
    """
    from calibre.report.page import write_page

    place = Path(page)
    write_page(runs, place)
    return place


def make_bundle(run: Run, client: int | str) -> "Bundle":
    """A client's personal model, ready to be used and to be taken away; by its number or name.

    It needs the images that the run was made with.

    >>> import calibre
    >>> bundle = calibre.make_bundle(calibre.read_run("runs/first"), 0).save("bundle")
    >>> 0 <= bundle.card.accuracy.value <= 1
    True
    """
    from calibre.finished.run import FinishedRun

    finished = FinishedRun(run)
    (number,) = finished.find([str(client)])
    return finished.bundle(number)


def personalize(run: Run, data: Path | str, name: str | None = None) -> "Bundle":
    """A personal model for a client that the run has never seen, from a few labelled images.

    ``data`` is a folder with one sub-folder of images per class, or any other source of images.

    >>> import numpy as np, calibre
    >>> draw = np.random.default_rng(0)
    >>> bright = draw.integers(120, 256, (12, 8, 8), np.uint8)
    >>> images, labels = np.concatenate([bright, bright // 4]), ["day"] * 12 + ["night"] * 12
    >>> np.savez("newcomer.npz", images=images, labels=labels)
    >>> bundle = calibre.personalize(calibre.read_run("runs/first"), "newcomer.npz")
    >>> bundle.predict(images[0])[0].nearest in ("day", "night")
    True
    """
    from calibre.finished.newcomer import personalize_newcomer

    return personalize_newcomer(run.folder, Path(data), name)


def load(bundle: Path | str, own_code: bool = False) -> "Bundle":
    """A client's personal model from its bundle.

    ``own_code`` allows one whose encoder is a function of somebody's own module: to load it is to
    run that code.

    >>> import numpy as np, calibre
    >>> bundle = calibre.make_bundle(calibre.read_run("runs/first"), 1).save("bundles/1")
    >>> (answer,) = calibre.load("bundles/1").predict(np.zeros((8, 8), np.uint8))
    >>> 0 < answer.probability <= 1
    True
    """
    from calibre.personal import bundle as bundles

    return bundles.load(bundle, own_code)
