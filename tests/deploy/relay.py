"""A network between a site and its coordinator that can be cut: TCP passed on from port to port."""

import asyncio
import contextlib
import threading

from calibre.deploy import launch
from tests.deploy.machines import HOST


class Relay:
    """``cut`` drops every connection and refuses new ones, ``restore`` lets them through again."""

    def __init__(self, target):
        self.target = target
        self.port = launch.free_port()
        self.server = None
        self.writers = set()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        self.restore()
        return self

    def __exit__(self, *_):
        self.cut()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def restore(self):
        self._do(self._listen())

    def cut(self):
        self._do(self._drop())

    def _do(self, work):
        asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def _listen(self):
        self.server = await asyncio.start_server(self._pass_on, "127.0.0.1", self.port)

    async def _drop(self):
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()

    async def _pass_on(self, reader, writer):
        answers, questions = await asyncio.open_connection(HOST, self.target)
        both = {writer, questions}
        self.writers |= both
        await asyncio.gather(pump(reader, questions), pump(answers, writer))
        self.writers -= both


async def pump(source, sink):
    with contextlib.suppress(OSError):  # one side has gone
        while data := await source.read(2**16):
            sink.write(data)
            await sink.drain()
    sink.close()
