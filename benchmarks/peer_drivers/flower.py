"""Flower's simulation engine: clients in two actors of Ray, its strategy FedAvg."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peer_drivers.job import (
    BATCH,
    CHOSEN,
    CLIENTS,
    IMAGES,
    ROUNDS,
    Network,
    Turns,
    client_data,
    sgd,
)

server = ServerApp()
client = ClientApp()


class Paced(FedAvg):
    turns = Turns()

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        assert len(replies) == CHOSEN
        assert not any(reply.has_error() for reply in replies)
        result = super().aggregate_train(server_round, replies)
        self.turns.wait()
        return result


@client.train()
def train(message: Message, context: Context) -> Message:
    network = Network()
    network.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    images, labels = client_data(int(context.node_config["partition-id"]))
    optimizer = sgd(network.parameters())
    for rows in torch.randperm(IMAGES).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(network(images[rows]), labels[rows]).backward()
        optimizer.step()
    trained = ArrayRecord(network.state_dict())
    metrics = MetricRecord({"num-examples": IMAGES})
    return Message(RecordDict({"arrays": trained, "metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = Paced(CHOSEN / CLIENTS, 0.0, min_train_nodes=CHOSEN, min_available_nodes=CLIENTS)
    strategy.start(grid, ArrayRecord(Network().state_dict()), ROUNDS)


if __name__ == "__main__":
    run_simulation(
        server,
        client,
        num_supernodes=CLIENTS,
        backend_config={"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 1}},
    )
