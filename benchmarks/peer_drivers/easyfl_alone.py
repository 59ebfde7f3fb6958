"""EasyFL, standalone: one process trains the clients one after the other; two need two GPUs."""

from benchmarks.peer_drivers import torchvision_part

torchvision_part.allow()

import easyfl  # noqa: E402
import torch  # noqa: E402
from easyfl.datasets import FederatedTensorDataset  # noqa: E402
from easyfl.server import BaseServer  # noqa: E402

from benchmarks.peer_drivers.job import (  # noqa: E402
    BATCH,
    CHOSEN,
    CLIENTS,
    RATE,
    ROUNDS,
    Network,
    Turns,
    client_data,
    folder,
)


class Paced(BaseServer):
    turns = Turns()

    def post_train(self) -> None:
        self.turns.wait()


def main() -> None:
    parts = {f"{client:02}": client_data(client) for client in range(CLIENTS)}
    data = FederatedTensorDataset(
        {name: {"x": images, "y": labels} for name, (images, labels) in parts.items()},
        process_x=torch.from_numpy, process_y=torch.from_numpy, simulated=True,
    )  # fmt: skip
    easyfl.register_dataset(data, data)
    easyfl.register_model(Network)
    easyfl.register_server(Paced)
    sgd = {"type": "SGD", "lr": RATE, "momentum": 0.9, "weight_decay": 5e-4}
    easyfl.init(
        {
            "server": {
                "rounds": ROUNDS, "clients_per_round": CHOSEN, "test_every": ROUNDS * 10,
                "save_model_every": ROUNDS * 10,
            },
            "client": {"batch_size": BATCH, "local_epoch": 1, "optimizer": sgd},
            "tracking": {"database": str(folder() / "easyfl.db")},
        }
    )  # fmt: skip
    easyfl.run()


if __name__ == "__main__":
    main()
