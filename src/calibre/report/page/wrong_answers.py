"""What each client's model gets wrong, from the cards of bundles that lie in the run's folder.

A coordinator of sites has no such bundles: what their models get wrong stays with them. Pictures
are never read.
"""

from typing import Any

from calibre.errors import UserError, printable
from calibre.report.runs import Run
from calibre.run_files import RunFiles

MOST = 500  # clients, so that a page stays small


def wrong_answers(run: Run) -> list[dict[str, Any]]:
    """Recall by class and what was mixed up, of every client with a bundle of this run."""
    cards = sorted(RunFiles(run.folder).bundles.glob("*/card.json"))
    if not cards:
        return []
    from calibre.personal.bundle_folder import read_card  # torch, which nothing else here needs

    ids = {client.name: client.id for client in run.clients}
    found: dict[int, dict[str, Any]] = {}
    for path in cards:
        try:
            card = read_card(path.parent)
        except UserError:
            continue  # of another version, or damaged: `predict` tells
        ours = card.run.get("experiment") == run.metrics.experiment and card.client in ids
        if not ours or card.mistakes is None or len(found) == MOST:
            continue
        found.setdefault(
            ids[card.client],
            {
                "client": printable(card.client),
                "how": card.mistakes.how,
                "images": card.mistakes.images,
                "classes": [
                    [each.name, each.images, each.correct, each.low, each.high, each.refused]
                    for each in card.mistakes.classes
                ],
                "confused": [
                    [pair.truth, pair.answer, pair.images] for pair in card.mistakes.confused
                ],
            },
        )
    return [told for _, told in sorted(found.items())]


def where_to_find(run: Run) -> str:
    """What to do to see it, where there is no bundle."""
    if run.experiment.engine.runtime == "flower":
        return "What each model gets wrong is known at its site alone: it is in its bundle's card."
    return (
        "To see here what each client's model gets wrong, make their bundles (calibre-fl bundle "
        "RUN), then this report again."
    )
