"""Opening one image, whoever made it: as one of the kinds we read, and within limits.

Nothing but the kinds below is tried: Pillow knows many more, some of which start other programs.
Only the header is read; pixels come when they are asked for.
"""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Protocol

from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

from calibre.data.formats import EncodedImage, PixelArray, Shape, UnreadableError, dicom
from calibre.data.formats.effort import check_effort
from calibre.data.formats.rendering import Picture
from calibre.files import open_regular

logging.getLogger("PIL").addHandler(logging.NullHandler())  # what matters, we tell ourselves
# imported, so that Pillow finds them without loading all that it has
KINDS = tuple(
    plugin.format
    for plugin in (
        JpegImagePlugin.JpegImageFile,
        PngImagePlugin.PngImageFile,
        TiffImagePlugin.TiffImageFile,
        WebPImagePlugin.WebPImageFile,
        GifImagePlugin.GifImageFile,
        BmpImagePlugin.BmpImageFile,
        PpmImagePlugin.PpmImageFile,
    )
)
MOST_PIXELS = Image.MAX_IMAGE_PIXELS or 2**26  # a file of a few bytes can claim to hold any number


class Opened(Protocol):
    """An image whose header was read."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, upright."""

    @property
    def gray(self) -> bool: ...

    def pixels(self, shape: Shape) -> tuple[PixelArray, list[str]]:
        """Decoded to this height, width and number of channels; and what had to be done for it."""


@contextmanager
def opened(image: EncodedImage) -> Iterator[Opened]:
    """What is wrong, here or while pixels are read, is an UnreadableError."""
    try:
        with _file(image.content) as file:
            if dicom.is_dicom(file):
                yield dicom.opened(file)
                return
            with Image.open(file, formats=KINDS) as picture:
                wide, high = picture.size
                if wide * high > MOST_PIXELS:
                    raise Image.DecompressionBombError
                check_effort(picture, file)
                if picture.mode == "F":
                    raise UnreadableError("has floating-point pixels; save it with 8 bits")
                yield Picture(picture)
    except UnreadableError:
        raise
    except Image.DecompressionBombError:
        raise UnreadableError(
            f"has more than {MOST_PIXELS / 1e6:.0f} million pixels; make it smaller"
        ) from None
    except UnidentifiedImageError:
        raise UnreadableError("is no image of a kind that is known; take it away") from None
    except Exception as error:  # every one of Pillow's decoders fails in a way of its own
        raise UnreadableError(
            f"cannot be decoded: {error or type(error).__name__}; repair the file or take it away"
        ) from None


def _file(content: bytes | str) -> IO[bytes]:
    if isinstance(content, bytes):
        return io.BytesIO(content)
    try:
        return open_regular(content)
    except FileNotFoundError:
        raise UnreadableError("is not there: no such file") from None
    except OSError as error:
        raise UnreadableError(f"cannot be opened: {error.strerror}") from None
    except ValueError:  # a NUL in its name
        raise UnreadableError("is not there: no file can have this name") from None
