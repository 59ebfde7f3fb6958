"""What cross-validation says of the ways to make a head, client by client and pooled over them.

With thirty labels a client's own choice among a dozen strengths is mostly chance. So clients tell
how each would have done on labels held out (sums of log losses, no image and no label), and the
curve of all together stands beside a client's own like so many more labels (``PSEUDO``).
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import Field

from calibre.sections import Count
from calibre.settings import Settings

# C of the regression, as in scikit-learn: the larger, the weaker the penalty
STRENGTHS = tuple(10 ** (step / 2) for step in range(-8, 3))
PSEUDO = 100.0  # labels that the curve of all clients counts as, beside a client's own
WORST = 1e4  # of a mean loss: what is larger is as bad

Features = Literal["encoder", "second", "patches", "pixels"]  # what an expert looks at
MeanLoss = Annotated[float, Field(ge=0)]


Means = Annotated[tuple[MeanLoss, ...], Field(min_length=len(STRENGTHS), max_length=len(STRENGTHS))]


class Curve(Settings):
    """Summed log losses of a client's held-out labels, for each of ``STRENGTHS``."""

    losses: Means
    images: Count

    def choose(self, common: tuple[float, ...]) -> float:
        """The strength of the least loss, ``common`` (mean losses of all) taken into account.

        Of equals the stronger penalty, which comes first.
        """
        total = [own + PSEUDO * mean for own, mean in zip(self.losses, common, strict=True)]
        return STRENGTHS[min(range(len(total)), key=lambda i: (round(total[i], 9), i))]


Curves = dict[Features, Curve]  # of a client's experts


class HeadChoice(Settings):
    """What all clients of a run go by."""

    # mean log loss of a held-out label by each expert, for each of ``STRENGTHS``
    common: dict[Features, Means]


def pooled(told: Iterable[Mapping[Features, Curve]]) -> HeadChoice | None:
    """The mean curves over all clients' held-out labels; None where nobody has any."""
    sums: dict[Features, list[float]] = {}
    images: dict[Features, int] = {}
    for curves in told:
        for features, curve in curves.items():
            held = sums.setdefault(features, [0.0] * len(STRENGTHS))
            for i, loss in enumerate(curve.losses):
                held[i] += min(loss, WORST * curve.images)
            images[features] = images.get(features, 0) + curve.images
    known = {
        features: tuple(loss / images[features] for loss in losses)
        for features, losses in sums.items()
        if images[features]
    }
    return HeadChoice(common=known) if known else None
