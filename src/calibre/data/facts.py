"""The facts by which settings are chosen for somebody's own data."""

from dataclasses import dataclass

from calibre.data.parts import Ints


@dataclass(frozen=True)
class Facts:
    """What a source says of itself before anything is decoded."""

    name: str
    known: bool  # one of the data sets that Calibre knows by name
    # [C, K] labelled images by client and class, without test images that it has apart; one row
    # where nobody owns any
    table: Ints
    owned: bool  # the source says whose the images are
    tested: bool  # it has test images of its own
    unlabelled: int
    size: tuple[int, int] | None  # height and width of all images; None: they differ
    sizes: str  # in words
    common_size: int  # of a square that suits most
    channels: int
