"""Tables that say of every image where it is, what it shows and, if they know, whose it is.

What CSV and parquet share: which column is which, and how rows become parts. A row without a label
is an unlabelled image; a column ``split`` says ``train`` or ``test``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibre.data.class_names import one_spelling
from calibre.data.formats import EncodedImage, EncodedImages, Part, Raw, number_classes, pick
from calibre.data.pool import UNLABELLED
from calibre.errors import UserError

IMAGE_NAMES = ("image", "img", "path", "file", "file_name", "filename", "image_path", "filepath")
LABEL_NAMES = ("label", "labels", "fine_label", "class", "target")
CLIENT_NAMES = ("client", "client_id", "owner", "site", "user")
SPLIT = "split"
PARTS = ("train", "test")


@dataclass(frozen=True)
class Columns:
    """The columns that matter, by name."""

    image: str
    label: str
    client: str | None
    split: str | None

    @property
    def about(self) -> list[str]:
        """All but the images."""
        return [name for name in (self.label, self.client, self.split) if name]


@dataclass(frozen=True, slots=True)
class TableRow:
    """What a table says of an image."""

    label: Any  # None: unlabelled
    client: str | None
    part: str = "train"


def choose_columns(
    path: Path,
    names: Sequence[str],
    wanted: tuple[str | None, str | None, str | None],
    images: Sequence[str],
    labels: Sequence[str],
) -> Columns:
    """The columns that the settings want; else the only likely one, or the one with a usual name.

    ``images`` and ``labels`` are the columns that could be those by their type.
    """
    if not names:
        raise UserError(
            f"{path} has no columns: it needs one that says where an image is, such as path, and "
            "one called label"
        )
    image_wish, label_wish, client_wish = wanted
    image = _choose(path, "image", image_wish, images, names)
    usual = [name for name in CLIENT_NAMES if name in names and name not in (image, label_wish)]
    client = _choose(path, "client", client_wish or next(iter(usual), None), [], names, must=False)
    split = SPLIT if SPLIT in names and SPLIT not in (image, label_wish, client) else None
    taken = {image, client, split}
    usual = [name for name in LABEL_NAMES if name in names and name not in taken]
    likely = usual[:1] or [name for name in labels if name not in taken]
    label = _choose(path, "label", label_wish, likely, names)
    return Columns(image=str(image), label=str(label), client=client, split=split)


def _choose(
    path: Path,
    what: str,
    wanted: str | None,
    likely: Sequence[str],
    names: Sequence[str],
    must: bool = True,
) -> str | None:
    if wanted is not None and wanted not in names:
        raise UserError(
            f"data.{what}_column = '{wanted}': {path} has no such column, only {_some(names)}"
        )
    if wanted is None and must and len(likely) != 1:
        raise UserError(
            f"{path}: which column holds the {what}? Set data.{what}_column to one of "
            f"{_some(likely or names)}"
        )
    return wanted or (likely[0] if likely else None)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")


def read_row(
    path: Path, number: int, columns: Columns, row: Mapping[str, Any], part: str = "train"
) -> TableRow:
    """A row by column, its image not looked at; number it as the user's editor does."""
    for name in (columns.client, columns.split):
        if name:
            _check_filled(path, number, name, row[name])
    if columns.split:
        part = str(row[columns.split]).strip().lower()
        if part not in PARTS:
            raise UserError(
                f"{path}: row {number} has '{row[columns.split]}' in column '{columns.split}': "
                "it must be train or test"
            )
    try:
        label = _label(row[columns.label])
    except ValueError as error:
        raise UserError(
            f"{path}: row {number} has {error} in column '{columns.label}': labels are whole "
            "numbers or names"
        ) from None
    if label is None and part == "test":
        raise UserError(
            f"{path}: row {number} is a test image with nothing in column '{columns.label}': "
            "nothing can be scored on it; fill it in or take the row away"
        )
    client = one_spelling(str(row[columns.client])) if columns.client else None
    return TableRow(label, client, part)


def read_image(path: Path, number: int, column: str, value: Any) -> EncodedImage:
    """What a row holds in its image column: bytes, the path of a file, or a struct of both."""
    _check_filled(path, number, column, value)
    content = (value.get("bytes") or value.get("path")) if isinstance(value, dict) else value
    if content is None:
        raise UserError(f"{path}: row {number} has neither image bytes nor a path")
    if isinstance(content, str):
        return EncodedImage(f"{path} row {number}: {content}", str(path.parent / content))
    if not isinstance(content, bytes):
        raise UserError(
            f"{path}: row {number} has {type(content).__name__} in column '{column}': an image is "
            "bytes or the path of a file"
        )
    return EncodedImage(f"{path} row {number}", content)


def _check_filled(path: Path, number: int, column: str, value: Any) -> None:
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        raise UserError(
            f"{path}: row {number} has nothing in column '{column}'; fill it in or take the row "
            "away"
        )


def _label(value: Any) -> Any:
    """None where there is none; pandas writes numbers with gaps among them as 1.0, 2.0, nan."""
    if isinstance(value, float) and (value.is_integer() or math.isnan(value)):
        return None if math.isnan(value) else int(value)
    if isinstance(value, float):
        raise ValueError(f"{value:g}")
    return None if value == "" else value


def assemble(
    place: Path,
    rows: Sequence[TableRow],
    images: EncodedImages,
    classes: tuple[str, ...] | None = None,
) -> Raw:
    """The parts of a table; ``images`` has one for each row, and is not read.

    ``classes`` names integer labels; without it the labels name themselves.
    """
    places: dict[str, list[int]] = {"train": [], "test": [], "unlabelled": []}
    for number, row in enumerate(rows):
        places["unlabelled" if row.label is None else row.part].append(number)
    if not places["train"]:
        raise UserError(f"{place} holds no training images with a label")
    known = [[rows[i].label for i in places[part]] for part in PARTS]
    classes, labels = number_classes(place, *known, classes=classes)
    nothing = np.full(len(places["unlabelled"]), UNLABELLED, np.int64)
    owned = rows[0].client is not None
    train, test, unlabelled = (
        Part(
            pick(images, np.array(part, np.intp)),
            part_labels,
            [str(rows[i].client) for i in part] if owned else None,
        )
        for part, part_labels in zip(places.values(), [*labels, nothing], strict=True)
    )
    return Raw(
        classes,
        train,
        test if places["test"] else None,
        unlabelled if places["unlabelled"] else None,
    )
