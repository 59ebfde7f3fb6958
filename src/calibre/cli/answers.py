"""How predictions and cards are shown: tables, CSV, a few lines."""

import csv
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from calibre.cli.common import errors
from calibre.wording import percent, rate

if TYPE_CHECKING:
    from calibre.personal.bundle import Bundle, Prediction
    from calibre.personal.card import Card

NAMED = 10  # unreadable images


def print_table(model: "Bundle", predictions: list["Prediction"]) -> None:
    """One row per image; what is wrong with unreadable ones goes to the screen for errors."""
    place = os.path.commonpath([os.path.dirname(row.image) for row in predictions])
    table = Table(title=escape(place) or None, title_justify="left")
    table.add_column("image", overflow="fold")
    limit = f" (limit {model.limit:.2f})" if model.limit is not None else ""
    for title in ("class", "probability", f"distance{limit}", "else"):
        table.add_column(title)
    for row in predictions:
        ranked = sorted(row.probabilities.items(), key=lambda item: -item[1])
        others = [f"{name} {certainty(share)}" for name, share in ranked]
        refused = row.label is None
        table.add_row(
            escape(os.path.relpath(row.image, place) if place else row.image),
            escape(row.answer),
            "–" if refused else certainty(row.probability),
            f"{row.distance:.2f}" if row.distance is not None else "–",
            escape("; ".join(row.reasons) or "".join(others[:1] if refused else others[1:2])),
            style="yellow" if refused else None,
        )
    Console().print(table)
    unread = [f"{row.image} {row.error}" for row in predictions if row.error is not None]
    for text in unread[:NAMED]:
        errors.print(text, markup=False, highlight=False, soft_wrap=True)


def print_csv(model: "Bundle", predictions: Iterator["Prediction"]) -> int:
    """Rows as they come; how many images could not be read."""
    table = csv.writer(sys.stdout, lineterminator="\n")
    head = ["image", "answer", "nearest", "probability", "distance", "reasons", "error"]
    table.writerow(head + [f"p({name})" for name in model.classes])
    unread = 0
    for row in predictions:
        unread += row.error is not None
        shares = [row.probabilities.get(name, "") for name in model.classes]
        told = [row.image, row.answer, row.nearest, row.probability, row.distance]
        table.writerow([*told, "; ".join(row.reasons), row.error, *shares])
    return unread


def show_card(card: "Card", folder: Path) -> None:
    """What a newcomer wants to know of its model."""
    from calibre.personal.card_text import accuracy_in_words, labels_in_words

    console = Console(highlight=False, soft_wrap=True)
    held = [f"{held.name} ({held.labelled})" for held in card.classes]
    console.print(f"{card.client}: {', '.join(held)}", markup=False)
    console.print(labels_in_words(card), markup=False)
    console.print(f"expected accuracy: {accuracy_in_words(card.accuracy)}", markup=False)
    found = card.calibration
    console.print(
        f"calibration error {percent(found.error_before)} → {percent(found.error_after)} at "
        f"temperature {found.temperature:.2f}"
    )
    if card.outside.limit is not None:
        console.print(
            f"none of your classes: beyond a distance of {card.outside.limit:.2f}, as at most "
            f"{rate(card.outside.rate)} of your own images are"
        )
    for text in card.warnings:
        console.print(f"[yellow]warning:[/] {escape(text)}")
    console.print(f"bundle:  {folder}  (more in card.md)", markup=False)


def certainty(probability: float | None) -> str:
    """No model is 100.0 % sure."""
    almost = probability is not None and 0.999 < probability < 1
    return "> 99.9 %" if almost else percent(probability)
