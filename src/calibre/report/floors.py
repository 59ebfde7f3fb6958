"""What clients reach without a federation: how sentences call these methods, and figures draw them.

They are methods like any other; tables call them by their titles.
"""

from typing import NamedTuple

from calibre.experiment import method_named


class Floor(NamedTuple):
    phrase: str  # in a sentence: "... is better by 2 points"
    marker: str
    # unlike in lightness and in shape, not only in hue: told apart in print and by every eye
    colour: str


FLOORS = {
    "majority": Floor("always answering a client's most frequent class", "v", "#787878"),
    "pixels": Floor("a linear classifier on each client's own pixels", "D", "#c05a8c"),
    "untrained": Floor("an encoder that was never trained", "^", "#b4b4b4"),
    "local": Floor("training alone", "s", "#f0a860"),
}


def title_of(name: str) -> str:
    """As tables call a floor."""
    return method_named(name).label
