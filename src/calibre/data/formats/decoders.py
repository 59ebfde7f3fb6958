"""Decoding many images: in this process where they are few, else in one process per core.

Processes, not threads: Pillow releases Python's lock while it decodes, but what surrounds the
decoding of a small image takes as long as the decoding. A process is spoken to over a socket: a
list of images in; problems, changes, prints and pixels out. ``python -m ...decoders SOCKET FILE``
is one.

Images are taken a block at a time, so that those of a stream are not all in memory at once.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, count
from multiprocessing.connection import Connection, wait

import numpy as np

from calibre.cores import usable_cores
from calibre.data.formats import EncodedImage, Shape, turns
from calibre.data.formats.images import PRINT, DecodedBlock, decode_block
from calibre.errors import UserError

BLOCK = 512  # images that are decoded together, at most
BLOCK_BYTES = 2**24  # of a block at most, decoded or not; one image may have more
AHEAD = 3  # blocks per process that may wait for an earlier one
WORTH_PROCESSES = 1.0  # seconds that decoding must take in one process
PER_IMAGE, PER_BYTE = 2e-4, 3e-8  # seconds, about: to open an image, to decode a compressed byte


def decode(images: Iterable[EncodedImage], shape: Shape) -> Iterator[DecodedBlock]:
    """Blocks of decoded images, in order."""
    blocks = _blocks(images, block_size(shape))
    first: list[list[EncodedImage]] = []
    seconds = 0.0
    for block in blocks:
        first.append(block)
        seconds += _seconds(block)
        if seconds >= WORTH_PROCESSES and len(first) > 1:
            break
    blocks = chain(first, blocks)
    if usable_cores() < 2 or len(first) < 2 or seconds < WORTH_PROCESSES:
        yield from (decode_block(block, shape) for block in blocks)
    else:
        yield from _decode_in_processes(blocks, shape, usable_cores())


def block_size(shape: Shape) -> int:
    """How many images of a shape are held in memory together."""
    return max(1, min(BLOCK, BLOCK_BYTES // int(np.prod(shape))))


def _blocks(images: Iterable[EncodedImage], size: int) -> Iterator[list[EncodedImage]]:
    """Up to ``size`` images each, and not too many bytes: photographs take their time."""
    block: list[EncodedImage] = []
    room = BLOCK_BYTES
    for image in images:
        content = _bytes(image)
        if block and (len(block) == size or content > room):
            yield block
            block, room = [], BLOCK_BYTES
        block.append(image)
        room -= content
    if block:
        yield block


def _decode_in_processes(
    blocks: Iterator[list[EncodedImage]], shape: Shape, processes: int
) -> Iterator[DecodedBlock]:
    helpers: list[_Helper] = []
    try:
        helpers += [_Helper() for _ in range(processes)]
        idle = list(helpers)
        busy: dict[object, tuple[_Helper, int, list[EncodedImage]]] = {}
        done: dict[int, DecodedBlock] = {}
        waiting = enumerate(blocks)
        upcoming = next(waiting, None)
        for number in count():
            while True:
                # one block at a time: were two on their way, both sides could wait to be heard
                while idle and upcoming and upcoming[0] < number + AHEAD * processes:
                    helper = idle.pop()
                    helper.send(upcoming[1], shape)
                    busy[helper.connection] = helper, *upcoming
                    upcoming = next(waiting, None)
                if number in done or not busy:
                    break
                for connection in wait([helper.connection for helper, *_ in busy.values()]):
                    helper, place, block = busy.pop(connection)
                    done[place] = helper.receive(block, shape)
                    idle.append(helper)
            if number not in done:
                return
            yield done.pop(number)
    finally:
        for helper in helpers:
            helper.stop()


class _Helper:
    """A process that decodes; it ends when its socket is closed."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        handles = [theirs.fileno(), turns.shared_file().fileno()]
        path = os.pathsep.join(place or os.getcwd() for place in sys.path)
        self.process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-m", __name__, *map(str, handles)],
            pass_fds=handles,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stderr=(log := tempfile.TemporaryFile()),  # noqa: SIM115, closed with the helper
        )
        theirs.close()
        self.log = log
        self.connection = Connection(ours.detach())

    def send(self, images: Sequence[EncodedImage], shape: Shape) -> None:
        contents = [image.content for image in images]
        paths = [content if isinstance(content, str) else None for content in contents]
        loads = [content for content in contents if isinstance(content, bytes)]
        with suppress(BrokenPipeError, ConnectionResetError):  # why, `receive` finds out
            self.connection.send_bytes(
                json.dumps({"shape": shape, "paths": paths, "bytes": [*map(len, loads)]}).encode()
            )
            self.connection.send_bytes(b"".join(loads))

    def receive(self, images: Sequence[EncodedImage], shape: Shape) -> DecodedBlock:
        pixels = np.empty((len(images), *shape), np.uint8)
        try:
            said = json.loads(self.connection.recv_bytes())
            prints = np.frombuffer(self.connection.recv_bytes(), PRINT)
            self.connection.recv_bytes_into(pixels.reshape(-1).data)
        except (EOFError, ConnectionResetError):
            raise UserError(
                f"one of the images from {images[0].name} to {images[-1].name} ended the process "
                f"that decodes them ({self._end()}); find it by moving half of them away"
            ) from None
        problems = {int(place): text for place, text in said["problems"].items()}
        return DecodedBlock(pixels, prints, problems, Counter(said["changes"]))

    def _end(self) -> str:
        code = self.process.wait()
        if code < 0:
            return signal.Signals(-code).name
        self.log.seek(0)
        last = self.log.read().decode(errors="replace").strip().splitlines()[-1:]
        return f"code {code}: {''.join(last)}"

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()
        self.log.close()


def _seconds(images: Sequence[EncodedImage]) -> float:
    """About how long one process would take."""
    return len(images) * PER_IMAGE + sum(map(_bytes, images)) * PER_BYTE


def _bytes(image: EncodedImage) -> int:
    if isinstance(image.content, bytes):
        return len(image.content)
    try:
        return os.stat(image.content).st_size
    except (OSError, ValueError):  # why, the decoder finds out
        return 0


def _serve(connection: Connection) -> None:
    while True:
        asked = json.loads(connection.recv_bytes())
        loads, start = connection.recv_bytes(), 0
        lengths = iter(asked["bytes"])
        images = []
        for path in asked["paths"]:
            content: bytes | str = path
            if path is None:
                end = start + next(lengths)
                content, start = loads[start:end], end
            images.append(EncodedImage("", content))
        block = decode_block(images, tuple(asked["shape"]))
        about = {"problems": block.problems, "changes": block.changes}
        connection.send_bytes(json.dumps(about).encode())
        connection.send_bytes(block.prints.tobytes())
        connection.send_bytes(block.pixels.reshape(-1).data)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is done
        turns.share(int(sys.argv[2]))
        _serve(Connection(int(sys.argv[1])))
