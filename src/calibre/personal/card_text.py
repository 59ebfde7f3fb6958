"""A model card in words: ``card.md``."""

from typing import Any

from calibre.personal.card import Accuracy, Calibration, Card, Mistakes, Outside
from calibre.personal.feature_parts import in_words
from calibre.personal.judge import GRAY
from calibre.wording import difference, percent, span

MATRIX, PAIRS = 12, 10  # classes that a matrix shows; of more, pairs that are listed


def accuracy_in_words(found: Accuracy | None) -> str:
    """``87.5 % of 56 test images (95 % interval 76.4 to 93.8 %)``."""
    if found is None:
        return "unknown: no image could be set aside to measure it"
    interval = f"95 % interval {span(found.low, found.high)}"
    how = found.how if found.how == "test images" else "images, by cross-validation"
    return f"{percent(found.value)} of {found.images} {how} ({interval})"


def labels_in_words(card: Card) -> str:
    """How many images have a label and how these were chosen; how many have none."""
    labelled = sum(held.labelled for held in card.classes)
    chosen = f": {card.chosen}" if card.chosen else ""
    return f"{labelled} images have a label{chosen}; {card.unlabelled} have none"


def markdown(card: Card, pictured: bool = True) -> str:
    """``card.md``; ``pictured``: with the mistakes that are shown in ``mistakes.png``."""
    sections = [
        f"# Personal model of {_plain(card.client)}",
        _summary(card),
        *[f"**Warning:** {_plain(text)}" for text in card.warnings],
        "## Classes\n\n" + _table(
            ["class", "labelled", "test"],
            [[_plain(held.name), held.labelled, held.test] for held in card.classes],
        ) + f"\n\n{labels_in_words(card)}.",
        "## Are its probabilities right?\n\n" + _calibration(card.calibration),
        *(["## What it gets wrong\n\n" + _mistakes(card.mistakes, pictured)]
          if card.mistakes else []),
        "## None of your classes\n\n" + _outside(card),
        "## The run\n\n" + _run(card),
        "## Preprocessing\n\n" + _preprocessing(card),
        "## Contents\n\n"
        "`model.safetensors` (encoder, head, temperature, class means), `card.json` (this card for "
        "programs, with every setting and the SHA-256 of everything here). Class means and spread "
        "are statistics of the client's own images, and `mistakes.png` shows some of them: give "
        "the bundle to whom you would give those, or take that file away first.",
    ]  # fmt: skip
    return "\n\n".join(sections) + "\n"


def _summary(card: Card) -> str:
    who = "took no part in training the encoder" if card.novel else "took part in training"
    lines = [
        f"- accuracy: {accuracy_in_words(card.accuracy)}",
        f"- method: {_plain(card.method)}; this client {who}",
    ]
    lines += [
        f"- for comparison, {name}: {percent(value)}{_better(value, card.accuracy)}"
        for name, value in sorted(card.floors.items())
    ]
    return "\n".join(lines)


def _better(floor: float, own: Accuracy | None) -> str:
    """How much better a client does without the federation, if it does."""
    if own is None or own.how != "test images" or floor <= own.value:
        return ""
    return f", better by {difference([(floor, own.value, own.images)]).words}"


def _calibration(found: Calibration) -> str:
    text = f"Temperature {found.temperature:.3f}"
    text += f", fitted on {found.images} images" if found.images else ""
    text += f": {found.fitted}."
    if found.error_before is None:
        return text + " Nothing was left to measure the calibration error on."
    return f"{text}\n\nMeasured on {found.measured_images} images ({found.measured}):\n\n" + _table(
        ["", "before", "after"],
        [
            ["calibration error", percent(found.error_before), percent(found.error_after)],
            [
                "negative log-likelihood",
                f"{found.surprise_before:.3f}",
                f"{found.surprise_after:.3f}",
            ],
        ],
    )


def _outside(card: Card) -> str:
    return "\n\n".join([_pixels(card), _limits(card.outside), *_kinds(card.outside)])


def _pixels(card: Card) -> str:
    """What is looked at before the model."""
    if card.usual is None:
        return "Pixels are not looked at: too few images to tell what is usual."
    gray = card.usual.colour.high <= GRAY
    colour = "in colour" if gray else "far more colourful or of other colours"
    return (
        f"Before the model is asked, an image is refused that is blank, inverted, {colour}, or far "
        "darker, brighter, rougher or smoother than the training images."
    )


def _kinds(found: Outside) -> list[str]:
    if not found.kinds:
        return []
    rows = [
        [kind.name, kind.images, kind.accepted, span(kind.low, kind.high, 0)]
        for kind in found.kinds
    ]
    accepted = sum(kind.accepted for kind in found.kinds)
    images = sum(kind.images for kind in found.kinds)
    return [
        f"Of {images} made-up images of {len(found.kinds)} kinds that are none of the classes, "
        f"{accepted} ({percent(accepted / images)}) were given a class all the same, with at most "
        f"{percent(found.rate, 0)} of own images refused:",
        _table(["kind", "images", "given a class", "95 % interval"], rows),
    ]


def _limits(found: Outside) -> str:
    if found.limit is None:
        return "No limit of the distance: too few images to tell how far its own ones lie apart."
    rows = [
        [
            percent(row.rate, 0),
            f"{row.limit:.3f}" + (" (used)" if row.rate == found.rate else ""),
            percent(row.own),
            percent(row.foreign),
        ]
        for row in found.tradeoff
    ]
    others = (
        f"{found.foreign_images} images of classes that this client does not have"
        if found.foreign_images
        else "no images of other classes, for none were at hand"
    )
    return (
        f"An image farther than {found.limit:.3f} from every class is refused. Limits are set on "
        f"{found.held_out} held-out images of the client's own; the right-hand columns were "
        f"measured on {found.own_images} own test images and {others}.\n\n"
        + _table(["own images refused: aim", "limit", "measured", "others caught"], rows)
    )


def _mistakes(found: Mistakes, pictured: bool) -> str:
    """Recall by class, who is taken for whom, and what the pictures show."""
    how = found.how if found.how == "test images" else "images, by cross-validation"
    parts = [f"On {found.images} {how}:", _recalls(found), *_mixed_up(found)]
    if found.pictured and pictured:
        rows = [
            [
                number,
                each.kind,
                _plain(each.truth),
                "none of your classes" if each.answer is None else _plain(each.answer),
                percent(each.probability),
            ]
            for number, each in enumerate(found.pictured, start=1)
        ]
        parts += [
            "The surest mistakes, by their numbers in the picture: images given a wrong class, own "
            "images refused, made-up images that got a class.",
            "![the surest mistakes](mistakes.png)",
            _table(["", "mistake", "is", "taken for", "sure"], rows),
        ]
    return "\n\n".join(parts)


def _recalls(found: Mistakes) -> str:
    refusing = any(each.refused is not None for each in found.classes)
    recalls = [
        [
            _plain(each.name),
            each.images,
            percent(each.correct / each.images),
            span(each.low, each.high, 0),
            *([each.refused] if refusing else []),
        ]
        for each in found.classes
    ]
    head = [
        "class",
        "images",
        "right",
        "95 % interval",
        *(["refused"] if refusing else []),
    ]
    return _table(head, recalls)


def _mixed_up(found: Mistakes) -> list[str]:
    if not found.confused:
        return ["No image was taken for one of another class."]
    names = {each.name for each in found.classes} | {pair.answer for pair in found.confused}
    if len(names) <= MATRIX:
        return ["Rows are what an image is, columns what it is taken for:", _matrix(found)]
    pairs = [
        [_plain(pair.truth), _plain(pair.answer), pair.images] for pair in found.confused[:PAIRS]
    ]
    return ["Most often mixed up:", _table(["is", "taken for", "images"], pairs)]


def _matrix(found: Mistakes) -> str:
    names = list(
        dict.fromkeys(
            [*(each.name for each in found.classes), *(pair.answer for pair in found.confused)]
        )
    )
    counts = {(pair.truth, pair.answer): pair.images for pair in found.confused}
    counts |= {(each.name, each.name): each.correct for each in found.classes}
    rows = [
        [_plain(each.name), *(counts.get((each.name, name), "·") for name in names)]
        for each in found.classes
    ]
    return _table(["", *map(_plain, names)], rows)


def _run(card: Card) -> str:
    facts = ", ".join(f"{key} {value}" for key, value in card.run.items())
    columns = ("clients", "mean", "variance", "worst_tenth", "min")
    rows = [
        [
            {"train": "trained", "novel": "novel"}.get(group, group),
            figures["clients"],
            percent(figures["mean"]),
            "–" if figures["variance"] is None else f"{figures['variance']:.4f}",
            percent(figures["worst_tenth"]),
            percent(figures["min"]),
        ]
        for group, figures in card.fairness.items()
        if figures.get("clients")
    ]
    if not rows:
        return f"{facts}.\n\nHow it does for all its clients is known to its coordinator alone."
    heads = ["", *(name.replace("_", " ") for name in columns)]
    return f"{facts}.\n\nAccuracy over all its clients:\n\n" + _table(heads, rows)


def _preprocessing(card: Card) -> str:
    p = card.preprocessing
    kind = "gray" if p.channels == 1 else "RGB"
    return (
        f"Turned upright (EXIF), made {kind} with 8 bits, resized to {p.width} x {p.height} "
        f"(bilinear), then (value / 255 - mean) / std with mean "
        f"{', '.join(f'{value:.4f}' for value in p.mean)} and std "
        f"{', '.join(f'{value:.4f}' for value in p.std)}. "
        f"Encoder: {card.network.encoder} of width {card.network.width}"
        + f". The classifier sees {in_words(card.parts)}."
    )


def _table(head: list[str], rows: list[list[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _plain(text: str) -> str:
    """Names are the user's: they must not become markup, nor leave their cell."""
    text = " ".join(text.split())
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|!&" else c for c in text)
