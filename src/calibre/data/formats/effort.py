"""Small files that ask for hours of work are refused before anything is decoded.

A decoder goes through all pixels again for every scan of a JPEG, and through all that is left of a
text for every comment in it. What people and cameras save has a dozen of either at most.
"""

from typing import IO

from PIL import Image

from calibre.data.formats import UnreadableError

MOST = 200  # scans or comments
MARKS = {"JPEG": b"\xff\xda", "MPO": b"\xff\xda", "PPM": b"#"}  # how each of them begins
TEXTS = (b"P1", b"P2", b"P3")  # PBM, PGM and PPM in decimal numbers
CHUNK = 2**20  # bytes


def check_effort(picture: Image.Image, file: IO[bytes]) -> None:
    """UnreadableError of an opened image that would hold whoever decodes it."""
    place = file.tell()
    file.seek(0)
    mark = MARKS.get(picture.format or "")
    if mark and (picture.format != "PPM" or file.read(2) in TEXTS):
        found = 0
        while found <= MOST and (part := file.read(CHUNK)):
            found += part.count(mark)
        if found > MOST:
            raise UnreadableError(f"has more than {MOST} scans or comments; save it anew")
    file.seek(place)
