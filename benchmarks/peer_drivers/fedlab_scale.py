"""FedLab: a server and two processes of ten clients each, over torch.distributed."""

import multiprocessing

from benchmarks.peer_drivers import torchvision_part

torchvision_part.allow()

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.core.client.manager import PassiveClientManager  # noqa: E402
from fedlab.core.network import DistNetwork  # noqa: E402
from fedlab.core.server.manager import SynchronousServerManager  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from benchmarks.peer_drivers.job import (  # noqa: E402
    BATCH,
    CHOSEN,
    CLIENTS,
    RATE,
    ROUNDS,
    Network,
    Turns,
    client_data,
    free_port,
    sgd,
)

WORKERS = 2


class Paced(SyncServerHandler):
    turns = Turns()

    def load(self, payload: list[Tensor]) -> bool:
        whole: bool = super().load(payload)
        if whole:
            self.turns.wait()
        return whole


class Data:
    def get_dataloader(self, client: int, batch: int) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(TensorDataset(*client_data(client)), batch, shuffle=True)


def client(rank: int, port: int) -> None:
    trainer = SGDSerialClientTrainer(Network(), CLIENTS // WORKERS)
    trainer.setup_dataset(Data())
    trainer.setup_optim(1, BATCH, RATE)
    trainer.optimizer = sgd(trainer.model.parameters())
    network = DistNetwork(("127.0.0.1", str(port)), WORKERS + 1, rank)
    PassiveClientManager(network, trainer).run()


def main() -> None:
    port = free_port()
    start = multiprocessing.get_context("spawn")
    for rank in range(1, WORKERS + 1):
        start.Process(target=client, args=(rank, port), daemon=True).start()
    handler = Paced(Network(), ROUNDS, CHOSEN / CLIENTS)
    network = DistNetwork(("127.0.0.1", str(port)), WORKERS + 1, 0)
    SynchronousServerManager(network, handler).run()


if __name__ == "__main__":
    main()
