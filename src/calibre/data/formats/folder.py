"""Image files in folders: ``class/a.png``, or ``client/class/a.png`` where clients own images.

``train/`` and ``test/`` may stand above either; without them a test part is split off.
"""

import os
from pathlib import Path

from calibre.data.formats import EncodedImage, Part, Raw, number_classes
from calibre.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
LAYOUT = (
    "one sub-folder per class (above them, if wanted, one per client; above all train/ and test/)"
)


def image_files(place: Path) -> list[Path]:
    """Every image below ``place``, in sorted order; hidden files and folders are none."""
    files = []
    for folder, inner, names in os.walk(place, followlinks=True):
        inner[:] = [name for name in inner if not name.startswith(".")]
        files += [
            Path(folder, name)
            for name in names
            if name.lower().endswith(SUFFIXES) and not name.startswith(".")
        ]
    return sorted(files)


def read(place: Path, files: list[Path]) -> Raw:
    if not files:
        raise UserError(f"{place} holds no images; put them in {LAYOUT}")
    folders = {file: file.relative_to(place).parts[:-1] for file in files}
    # a class may be called "train": it names a part only where nothing but parts is beside it
    in_parts = all(len(path) > 1 and path[0] in ("train", "test") for path in folders.values())
    below = {file: path[1:] if in_parts else path for file, path in folders.items()}
    depth = len(below[files[0]])
    odd = next((file for file in files if len(below[file]) not in (1, 2)), None)
    odd = odd or next((file for file in files if len(below[file]) != depth), None)
    if odd is not None:
        raise UserError(f"{odd} is not where the others suggest; {place} needs {LAYOUT}")

    train = [file for file in files if not in_parts or folders[file][0] == "train"]
    test = [file for file in files if in_parts and folders[file][0] == "test"]
    if not train:
        raise UserError(f"{place} has images in test/ but none in train/")
    classes, labels = number_classes(
        place, *([below[f][-1] for f in part] for part in (train, test))
    )
    parts = [
        Part(
            [EncodedImage(str(file), file) for file in part],
            part_labels,
            [below[file][0] for file in part] if depth == 2 else None,
        )
        for part, part_labels in zip((train, test), labels, strict=True)
    ]
    return Raw(classes, parts[0], parts[1] if test else None)
