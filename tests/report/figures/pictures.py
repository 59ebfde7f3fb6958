"""What tests ask of every picture: nothing cut off, nothing covered, nothing too small."""

import itertools
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from matplotlib.transforms import Bbox


def texts(figure: Any) -> dict[Text, Bbox]:
    """Every text that is drawn, and where."""
    drawn: dict[Text, Bbox] = {}

    def record(text: Text, renderer: Any) -> None:
        if text.get_visible() and text.get_text().strip():
            drawn[text] = Text.get_window_extent(text, renderer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", record)
        patch.setattr("matplotlib.text.Annotation.draw", record)
        FigureCanvasAgg(figure).draw()
    return drawn


def check(figure: Any) -> dict[Text, Bbox]:
    """Fail unless every text is whole, free of the others, and can be read in print."""
    drawn = texts(figure)
    assert len(drawn) > 5  # it does see them
    assert figure.get_figwidth() <= 7.2  # so that points are points in print
    for text, box in drawn.items():
        assert text.get_fontsize() >= 7, text
        assert min(box.x0, box.y0) >= -1, text
        assert box.x1 <= figure.bbox.x1 + 1, text
        assert box.y1 <= figure.bbox.y1 + 1, text
    for (text, box), (other, another) in itertools.combinations(drawn.items(), 2):
        smaller = Bbox.from_extents(box.x0 + 1, box.y0 + 1, box.x1 - 1, box.y1 - 1)
        assert not smaller.overlaps(another), f"{text} covers {other}"
    return drawn
