from pathlib import Path

import numpy as np
import pytest

from calibre.recipes import embeddings
from calibre.report.metrics import ClientResult
from calibre.report.representations import Representations
from calibre.report.runs import Run
from tests.report.in_memory import metrics


def a_client(i):
    return ClientResult(i, "", False, 9, 0, 9, 3, 0.5, {})


@pytest.fixture
def made_up(monkeypatch):
    """Three classes, well apart under Calibre (SimCLR), in one heap under any other method."""

    def encode(run, clients):
        random = np.random.default_rng(run.seed)
        classes = np.arange(60) % 3
        gap = 20.0 if run.label == "Calibre (SimCLR)" else 0.0
        features = random.normal(size=(60, 5)) + gap * np.eye(3, 5)[classes]
        owners = np.asarray(clients)[np.arange(60) % len(clients)]
        return Representations(
            run.label, features.astype(np.float32), classes, owners, ("a", "b", "c")
        )

    monkeypatch.setattr(embeddings, "encode_clients", encode)


def runs(recipe, seeds):
    return [
        Run(Path(), e, metrics(method=e.method.label, seed=e.seed), tuple(map(a_client, range(20))))
        for e in recipe.experiments("cpu", seeds)
    ]


def test_clearer_clusters_are_a_matter_of_numbers(made_up):
    (figure,) = [r for r in embeddings.RECIPES if r.name == "figure-6"]
    found = figure.conclude(runs(figure, [0, 1]), "cpu")
    lines = found.text.splitlines()
    (ours,) = [line for line in lines if line.startswith("| Calibre (SimCLR) |")]
    silhouette, nmi, neighbours = map(float, ours.split("|")[2:5])
    assert silhouette > 0.8
    assert nmi == neighbours == 1
    verdicts = [line for line in lines if line.startswith("- q8")]
    assert "Calibre (SimCLR) are clearer than those of pFL-SimCLR: **reproduced**" in verdicts[0]
    assert "**not reproduced**" in verdicts[1]  # two heaps, neither clearer by all measures
    titles = [panel.get_title() for panel in found.pictures["tsne"]().axes]
    assert sum("by class" in title for title in titles) == 4


def test_single_clients_are_shown_with_their_accuracy(made_up):
    (figure,) = [r for r in embeddings.RECIPES if r.name == "figure-2"]
    text = figure.conclude(runs(figure, [0]), "cpu").text
    assert "| pFL-BYOL, client 2 (50 %) |" in text


def test_every_label_of_a_claim_is_that_of_a_method():
    for embedding in embeddings.EMBEDDINGS:
        labels = {e.method.label for e in embedding.experiments("cpu", [0])}
        assert {label for pair in embedding.clearer for label in pair} <= labels
