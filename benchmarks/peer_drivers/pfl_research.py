"""pfl-research: two processes of torchrun, its FederatedAveraging."""

from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import distributed
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor

from benchmarks.peer_drivers.job import (
    BATCH,
    CHOSEN,
    CLIENTS,
    RATE,
    ROUNDS,
    Network,
    Turns,
    client_data,
    sgd,
)


class WithLoss(Network):
    """As pfl wants a network: with a loss and metrics."""

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        self.train(not eval)
        return F.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {}


class Paced(TrainingProcessCallback):
    turns = Turns(leads=distributed.global_rank == 0)

    def after_central_iteration(self, *given: Any, **named: Any) -> tuple[bool, Metrics]:
        self.turns.wait()
        return False, Metrics()


def main() -> None:
    network = WithLoss()
    model = PyTorchModel(network, sgd, torch.optim.SGD(network.parameters(), 1.0))
    data = FederatedDataset(
        lambda user: Dataset(client_data(user), user_id=str(user)),
        get_user_sampler("random", list(range(CLIENTS))),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ROUNDS,
            evaluation_frequency=ROUNDS,
            train_cohort_size=CHOSEN,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=None),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH),
        callbacks=[Paced()],
    )


if __name__ == "__main__":
    main()
