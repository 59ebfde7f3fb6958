"""What Flower costs: a ResNet-18 sent to four sites on loopback and back, without any training.

Once as one packed block, as Calibre sends it, and once tensor by tensor, as Flower does by itself.
Both with Calibre's coordinator and nodes: TLS, keys, and a worker at each site that stays loaded.

    python -m benchmarks.flower
"""

import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from calibre.deploy import launch
from calibre.deploy.keys import make_keys
from calibre.deploy.records import KIND
from calibre.engine.messages import pack, room_for, unpack
from calibre.models.resnet import resnet18
from calibre.tensors import Tensors, take

SITES, ROUNDS = 4, 3
KINDS = ("packed", "packed, half", "tensor by tensor")
server = ServerApp()  # on lines of their own: Flower looks for them without importing
client = ClientApp()


def _record(tensors: Tensors, kind: str) -> ArrayRecord:
    if kind == "tensor by tensor":
        return ArrayRecord(tensors)
    return _block(pack(tensors, half=kind.endswith("half")))


def _block(data: bytes) -> ArrayRecord:
    return ArrayRecord({"block": Array("uint8", (len(data),), KIND, data)})


@client.train()
def echo(message: Message, context: Context) -> Message:
    """A site that reads the model and sends one of the same size back."""
    record = message.content.array_records["model"]
    if "block" in record:
        answer = _block(pack(unpack(record["block"].data, 2**30)))
    else:
        answer = ArrayRecord(record.to_torch_state_dict())
    return Message(RecordDict({"model": answer}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Time rounds of each kind in turn, so that a busy machine slows all."""
    tensors = take(resnet18(channels=3, width=64, stem="cifar"))
    while len(list(grid.get_node_ids())) < SITES:
        time.sleep(0.2)
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(ROUNDS):
        for kind in KINDS:
            began = time.monotonic()
            content = RecordDict({"model": _record(tensors, kind)})
            asked = [Message(content, node, "train") for node in grid.get_node_ids()]
            waiting = {id_ for message in asked for id_ in grid.push_messages([message])}
            while waiting:
                for reply in grid.pull_messages(list(waiting)):
                    waiting.discard(reply.metadata.reply_to_message_id)
                    assert reply.has_content(), reply.error
                time.sleep(0.05)
            seconds[kind].append(time.monotonic() - began)
    Path(str(context.run_config["out"])).write_text(json.dumps(seconds))


def measure() -> list[dict[str, Any]]:
    """Bytes of a block against its tensors', and seconds of a round against Flower's own way."""
    tensors = take(resnet18(channels=3, width=64, stem="cifar"))
    own = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    block = len(pack(tensors))
    assert block <= room_for(tensors)
    seconds = {kind: statistics.median(times) for kind, times in _on_loopback().items()}
    return [
        {
            "name": "bytes on the wire against the tensors' own, ResNet-18",
            "ratio": block / own,
            "target": "<= 1.02",
            "settings": {
                "tensors": len(tensors),
                "bytes": block,
                "half": len(pack(tensors, True)),
            },
        },
        {
            "name": f"seconds of a round on Flower, ResNet-18, {SITES} sites, packed against not",
            "ratio": seconds["packed"] / seconds["tensor by tensor"],
            "target": "<= 1",
            "settings": {kind: round(value, 2) for kind, value in seconds.items()},
        },
    ]


def _on_loopback() -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        place = Path(folder)
        keys, log, out = place / "keys", place / "superlink.log", place / "seconds.json"
        sites = [f"site-{i}" for i in range(SITES)]
        port = launch.free_port()
        make_keys(keys, "localhost", port, sites)
        python = [sys.executable, "-P", "-m"]
        command = [*python, "calibre.deploy.link", str(keys), "127.0.0.1"]
        link = stack.enter_context(launch.running(command, keys / "flwr", log))
        launch.wait_for_port(port, link, log)
        for site in sites:
            node = [
                *python, "calibre.deploy.node", f"localhost:{port}", str(keys / "ca.crt"),
                str(keys / "sites" / site), "{}", "benchmarks.flower:client",
            ]  # fmt: skip
            stack.enter_context(launch.running(node, place / site, place / f"{site}.log"))
        names = {"server": "benchmarks.flower:server", "client": "benchmarks.flower:client"}
        launch.write_app(place / "app", {"out": str(out)}, **names)
        launch.submit(place / "app", keys / "flwr", log)
        while not out.exists():
            assert link.poll() is None, launch.tail(log)
            time.sleep(0.5)
        time.sleep(0.5)
        seconds: dict[str, list[float]] = json.loads(out.read_text())
        return seconds


if __name__ == "__main__":
    for result in measure():
        print(f"{result['name']}: {result['ratio']:.3f} (promise {result['target']})")
        print("   ", result["settings"])
