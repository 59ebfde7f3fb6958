"""The client's model, made anew from the labels that were given on the page."""

from pathlib import Path
from typing import Any

from calibre.finished.collection import Collection
from calibre.finished.newcomer import personalize_newcomer
from calibre.personal.bundle_folder import BundleThereError, check_place, older_name
from calibre.personal.card_text import accuracy_in_words, markdown


def make_model(run: Path, held: Collection, place: Path, replace: bool) -> dict[str, Any]:
    """Save the bundle in ``place``; what a page tells of it."""
    try:
        check_place(place, "keep" if replace else "refuse")
    except BundleThereError:
        raise BundleThereError(f"There is a model in {place} already.") from None
    older = older_name(place) if place.exists() else None
    made = personalize_newcomer(run, held.place, held.client, novel=held.novel, test=held.test)
    saved = made.save(place, "keep")
    card = saved.card
    return {
        "bundle": str(place),
        "older": str(older) if older and older.exists() else None,
        "labels": sum(each.labelled for each in card.classes),
        "accuracy": accuracy_in_words(card.accuracy),
        "card": markdown(card, pictured=saved.pictures is not None),
    }
