"""DICOM: single frames, shown as the file says they are to be seen. Needs the extra ``medical``.

Of all that a file says of its image, the elements below are read and no others: whose it is never
gets into memory, nor into a message. For that reason what pydicom says of damage is not repeated.
"""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from calibre.data.formats import PixelArray, Shape, UnreadableError
from calibre.data.formats.effort import check_effort
from calibre.data.formats.rendering import Picture
from calibre.data.formats.turns import turn
from calibre.data.formats.window import HIGHEST, LOWEST, Table, by_table, in_strips, own_window

if TYPE_CHECKING:
    from pydicom import Dataset

MOST_BYTES = 2**28  # of a file
ELEMENTS = (
    "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "NumberOfFrames", "Rows",
    "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "RescaleSlope",
    "RescaleIntercept", "WindowCenter", "WindowWidth", "VOILUTFunction", "ModalityLUTSequence",
    "PixelData",
)  # fmt: skip
GRAY = ("MONOCHROME1", "MONOCHROME2")
COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
BITS = (1, 8, 16)  # that a value takes in the file
TRANSFER_SYNTAX = 0x00020010
DEFLATED = "1.2.840.10008.1.2.1.99"

# What had to be done to an image; a datasheet counts these.
WINDOWED, STRETCHED, INVERTED = "DICOM, its own window", "DICOM, no window", "MONOCHROME1"


@dataclass(frozen=True)
class DicomImage:
    """A DICOM file whose elements were read, all but the pixels."""

    file: IO[bytes]
    size: tuple[int, int]
    gray: bool
    table: Table | None  # what each stored value becomes; None: the file names no window
    inverted: bool  # the lowest value is the brightest

    def pixels(self, shape: Shape) -> tuple[PixelArray, list[str]]:
        count = self.size[0] * self.size[1]
        with turn(count * (8 if self.gray else 12), count):  # as stored, decoded and shown
            stored = self._stored()
            shown, changed = self._shown(stored) if self.gray else (stored, [])
            picture = Image.fromarray(shown)
        array, more = Picture(picture).pixels(shape)
        return array, changed + more

    def _stored(self) -> npt.NDArray[Any]:
        """Integers [H, W], or uint8 [H, W, 3]."""
        from pydicom.pixels import get_decoder

        with _discreet():
            whole = _read(self.file)
            syntax = whole.file_meta.TransferSyntaxUID
            decoder = get_decoder(syntax)
            if not decoder.is_available:
                raise UnreadableError(
                    f"is DICOM compressed as {syntax.name}, which is not read; save it uncompressed"
                )
            if decoder.is_encapsulated:
                _check_inside(whole, self.size)
            stored: npt.NDArray[Any] = decoder.as_array(whole, index=0)[0]
        expected = self.size if self.gray else (*self.size, 3)
        if stored.shape != expected or not (self.gray or stored.dtype == np.uint8):
            raise UnreadableError("is DICOM whose pixels are not as its header says; take it away")
        return stored

    def _shown(self, stored: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint8], list[str]]:
        table = own_window(in_strips(stored)) if self.table is None else self.table
        changed = [STRETCHED if self.table is None else WINDOWED]
        shown = by_table(255 - table if self.inverted else table, stored)
        return shown, [*changed, INVERTED] if self.inverted else changed


def is_dicom(file: IO[bytes]) -> bool:
    """By the four letters behind the preamble; the file is left at its start."""
    start = file.read(132)
    file.seek(0)
    return start[128:] == b"DICM"


def opened(file: IO[bytes]) -> DicomImage:
    """Raises UnreadableError for what is no single frame of a kind we show."""
    try:
        import pydicom  # noqa: F401
    except ImportError:
        raise UnreadableError(
            "is DICOM: install what reads it with  pip install 'calibre-fl[medical]'"
        ) from None
    with _discreet():
        about = _read(file, with_pixels=False)
        frames = int(about.get("NumberOfFrames") or 1)
        seen_as, samples = str(about.PhotometricInterpretation), int(about.SamplesPerPixel)
        size = int(about.Rows), int(about.Columns)
        gray = seen_as in GRAY
        if frames != 1:
            raise UnreadableError(
                f"is DICOM with {frames:,} frames: save those that matter as files of their own"
            )
        if samples != (1 if gray else 3) or not (gray or seen_as in COLOUR):
            raise UnreadableError("is DICOM that is neither MONOCHROME1, MONOCHROME2 nor RGB")
        if about.BitsAllocated not in BITS or 0 in size:
            raise UnreadableError("is DICOM without pixels of 8 or 16 bits")
        if "ModalityLUTSequence" in about:
            raise UnreadableError("is DICOM with a modality look-up table, which is not read")
        slope = _number(about, "RescaleSlope", 1)
        table = _window(about, slope, _number(about, "RescaleIntercept", 0)) if gray else None
    # without a window, values are stretched as they are stored: a negative slope turns them round
    inverted = (seen_as == "MONOCHROME1") != (table is None and slope < 0)
    return DicomImage(file, size, gray, table, inverted)


def _window(about: "Dataset", slope: float, intercept: float) -> Table | None:
    """What each stored value becomes on a radiologist's screen (PS3.3 C.11.1 and C.11.2.1.2)."""
    centre, width = _number(about, "WindowCenter", np.nan), _number(about, "WindowWidth", np.nan)
    function = str(about.get("VOILUTFunction") or "LINEAR")
    if not (np.isfinite([centre, width]).all() and width >= 1):
        return None
    values = np.arange(LOWEST, HIGHEST + 1) * slope + intercept
    if function == "SIGMOID":
        share = 0.5 + 0.5 * np.tanh(2 * (values - centre) / width)
    elif function == "LINEAR_EXACT":
        share = (values - centre) / width + 0.5
    elif width == 1:
        share = np.where(values > centre - 0.5, 1.0, 0.0)
    else:
        share = (values - (centre - 0.5)) / (width - 1) + 0.5
    table: Table = np.floor(np.clip(share, 0, 1) * 255 + 0.5).astype(np.uint8)
    return table


def _number(about: "Dataset", name: str, default: float) -> float:
    """An element's value, the first where there are several."""
    value = about.get(name)
    several = getattr(value, "__iter__", None) is not None and not isinstance(value, str)
    if several:
        value = next(iter(value), None)
    number = default if value in (None, "") else float(value)
    return number if np.isfinite(number) or np.isnan(default) else default


def _read(file: IO[bytes], with_pixels: bool = True) -> "Dataset":
    from pydicom import dcmread
    from pydicom.filereader import read_dataset

    if file.seek(0, io.SEEK_END) > MOST_BYTES:
        raise UnreadableError(f"is DICOM of more than {MOST_BYTES / 1e6:.0f} MB; take it away")
    file.seek(132)
    meta = read_dataset(
        file, False, True, stop_when=lambda tag, *_: tag.group != 2,
        specific_tags=[TRANSFER_SYNTAX],
    )  # fmt: skip
    if str(meta[TRANSFER_SYNTAX].value) == DEFLATED:  # could unpack to any size
        raise UnreadableError("is DICOM that was deflated, which is not read; save it uncompressed")
    file.seek(0)
    return dcmread(file, specific_tags=[*ELEMENTS], stop_before_pixels=not with_pixels)


def _check_inside(whole: "Dataset", size: tuple[int, int]) -> None:
    """A JPEG inside must have the size that the file says, before it is decoded."""
    from pydicom.encaps import get_frame
    from pydicom.uid import JPEG2000TransferSyntaxes, JPEGTransferSyntaxes

    if whole.file_meta.TransferSyntaxUID in (*JPEGTransferSyntaxes, *JPEG2000TransferSyntaxes):
        frame = io.BytesIO(get_frame(whole.PixelData, 0, number_of_frames=1))
        with Image.open(frame, formats=("JPEG", "JPEG2000")) as inside:
            check_effort(inside, frame)
            if inside.size != size[::-1]:
                raise UnreadableError("is DICOM around a JPEG of another size; take it away")


@contextmanager
def _discreet() -> Iterator[None]:
    """Nothing that the file says reaches a log or a message."""
    log = logging.getLogger("pydicom")
    before, log.disabled = log.disabled, True
    try:
        yield
    except UnreadableError:
        raise
    except Exception:  # it may quote the file
        raise UnreadableError("is DICOM that is damaged, or of a kind that is not read") from None
    finally:
        log.disabled = before
