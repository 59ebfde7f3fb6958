"""Who is there: the nodes of a Flower grid, by what they say of themselves.

Flower's own numbers may change when a node starts anew.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from calibre import __version__
from calibre.deploy.admission import Admit
from calibre.deploy.records import Hello, Share, SiteReport, record_of, text_of
from calibre.engine.messages import LONGEST_TEXT

HELLO_SECONDS = 600.0  # for a node to say who it is: a busy one takes minutes to start Python
REFUSED_SECONDS = 60.0  # before a node that was refused is asked again
POLL = (0.02, 0.5)  # seconds between looks for replies: the shortest, and the longest
Warn = Callable[[str], None]


@dataclass
class Nodes:
    """Who is there: nodes by what they told."""

    grid: Grid
    warn: Warn
    admit: Admit = field(default=lambda node, hello: None)  # who may take part as what
    told: dict[int, Hello] = field(default_factory=dict)  # node id -> its hello
    asked: dict[str, tuple[int, float]] = field(default_factory=dict)  # message -> node, when
    refused: dict[int, float] = field(default_factory=dict)  # node id -> when

    def look(self) -> None:
        """Forget nodes that have gone, ask new ones who they are, and hear who has answered."""
        now, present = time.monotonic(), set(self.grid.get_node_ids())
        self.told = {node: hello for node, hello in self.told.items() if node in present}
        self.asked = {
            id_: (node, at)
            for id_, (node, at) in self.asked.items()
            if node in present and now - at < HELLO_SECONDS
        }
        lately = {node for node, at in self.refused.items() if now - at < REFUSED_SECONDS}
        new = present - self.told.keys() - lately - {node for node, _ in self.asked.values()}
        for node in sorted(new):
            hello = Message(RecordDict(), node, MessageType.QUERY, ttl=HELLO_SECONDS)
            for id_ in self.grid.push_messages([hello]):
                self.asked[id_] = node, now
        while self.asked and (replies := list(self.grid.pull_messages(list(self.asked)))):
            for reply in replies:
                node, _ = self.asked.pop(reply.metadata.reply_to_message_id)
                try:
                    self._accept(node, record_of(reply, Hello))
                except ValueError as problem:
                    self.refused[node] = now
                    self.warn(f"{_who(node, reply)} was refused: {problem}")

    def hear(self, seconds: float) -> None:
        """Look until all that are there have said who they are, or for some seconds."""
        end = time.monotonic() + seconds
        self.look()
        while self.asked and time.monotonic() < end:
            time.sleep(POLL[1])
            self.look()

    def _accept(self, node: int, hello: Hello) -> None:
        if hello.version != __version__:
            raise ValueError(f"it runs calibre {hello.version}, the coordinator {__version__}")
        if hello.site is None and hello.share is None:
            raise ValueError("it is neither a site nor a share of the experiment")
        self.admit(node, hello)
        for other in self.told.values():
            if hello.site and other.site and hello.site.name == other.site.name:
                raise ValueError(f"there is a site called '{hello.site.name}' already")
            if hello.share and hello.share == other.share:
                raise ValueError(f"share {hello.share[0]} of {hello.share[1]} is there already")
        self.told[node] = hello

    def sites(self) -> dict[str, tuple[int, SiteReport]]:
        return {h.site.name: (node, h.site) for node, h in self.told.items() if h.site}

    def shares(self) -> dict[Share, int]:
        return {h.share: node for node, h in self.told.items() if h.share}


def _who(node: int, reply: Message) -> str:
    """A refused node, by the name that it gives itself where there is one to read."""
    text = text_of(reply.content) if reply.has_content() else None
    said = text[:LONGEST_TEXT] if isinstance(text, str) else ""
    found = re.search(r'"name": "([^"\\\x00-\x1f\x7f]{1,200})"', said)
    return f"site '{found[1]}'" if found else f"node {node}"
