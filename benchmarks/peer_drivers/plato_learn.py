"""Plato: a server, client processes, and for each client's training a process of its own.

With the argument ``all-at-once`` the ten clients of a round are ten processes that train
themselves: the other way that Plato has.
"""

import json
import os
import sys
from typing import Any

from benchmarks.peer_drivers import torchvision_part
from benchmarks.peer_drivers.job import (
    BATCH,
    CHOSEN,
    CLIENTS,
    IMAGES,
    RATE,
    ROUNDS,
    Network,
    Turns,
    client_data,
    folder,
    free_port,
)


def configure() -> None:
    """Write the file that Plato reads while it is imported, in this process and its children."""
    at_once = {} if "all-at-once" in sys.argv else {"max_concurrency": 2}
    settings = {
        "clients": {"type": "simple", "total_clients": CLIENTS, "per_round": CHOSEN,
                    "do_test": False},
        "server": {"address": "127.0.0.1", "port": free_port(), "do_test": False},
        "data": {"datasource": "noise", "partition_size": IMAGES, "sampler": "iid",
                 "random_seed": 1},
        "trainer": {"type": "basic", "rounds": ROUNDS, "epochs": 1, "batch_size": BATCH,
                    "optimizer": "SGD", "model_name": "cnn", **at_once},
        "algorithm": {"type": "fedavg"},
        "parameters": {"optimizer": {"lr": RATE, "momentum": 0.9, "weight_decay": 5e-4}},
        "general": {"base_path": str(folder())},
    }  # fmt: skip
    (folder() / "config.yml").write_text(json.dumps(settings))  # JSON is YAML
    os.environ["config_file"] = str(folder() / "config.yml")  # noqa: SIM112, Plato's own name


if "config_file" not in os.environ:
    configure()
sys.argv = sys.argv[:1]  # Plato reads these too
torchvision_part.allow()

import torch  # noqa: E402
from plato.clients import simple  # noqa: E402
from plato.datasources import base  # noqa: E402
from plato.servers import fedavg  # noqa: E402
from plato.trainers import basic  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402


class Paced(fedavg.Server):
    turns = Turns()

    def weights_aggregated(self, updates: list[Any]) -> None:
        assert len(updates) == CHOSEN
        self.turns.wait()


class Trainer(basic.Trainer):
    def get_loss_criterion(self) -> nn.Module:
        return nn.CrossEntropyLoss()  # its own list of losses asks lightly for one that is gone


class Noise(base.DataSource):
    def __init__(self) -> None:
        super().__init__()
        images, labels = zip(*(client_data(client) for client in range(CLIENTS)), strict=True)
        self.trainset = self.testset = TensorDataset(torch.cat(images), torch.cat(labels))

    def num_train_examples(self) -> int:
        return CLIENTS * IMAGES


if __name__ == "__main__":
    client = simple.Client(model=Network, datasource=Noise, trainer=Trainer)
    Paced(model=Network, datasource=Noise, trainer=Trainer).run(client)
