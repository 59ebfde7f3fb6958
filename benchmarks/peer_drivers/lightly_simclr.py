"""lightly: a plain loop of SimCLR with its views, its head and its loss, on all images at once.

It has no clients. A round is as many pairs as a round of the clients has; two threads train and two
processes make the views.
"""

from benchmarks.peer_drivers import torchvision_part

torchvision_part.allow()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from lightly.loss import NTXentLoss  # noqa: E402
from lightly.models.modules import SimCLRProjectionHead  # noqa: E402
from lightly.transforms import SimCLRTransform  # noqa: E402
from PIL import Image  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from benchmarks.peer_drivers.job import CHOSEN, IMAGES, PAIRS, ROUNDS, Network, Turns, sgd  # noqa: E402


class Views(Dataset[list[torch.Tensor]]):
    def __init__(self) -> None:
        shape = (CHOSEN * IMAGES, 32, 32, 3)
        pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        self.images = [Image.fromarray(each) for each in pixels]
        self.transform = SimCLRTransform(input_size=32, gaussian_blur=0.0)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> list[torch.Tensor]:
        views: list[torch.Tensor] = self.transform(self.images[row])
        return views


def main() -> None:
    torch.set_num_threads(2)
    network = Network()
    features = network.head.in_features
    network.head = nn.Identity()  # type: ignore[assignment]
    projector = SimCLRProjectionHead(features, 4 * features, features // 2)
    optimizer = sgd([*network.parameters(), *projector.parameters()])
    loss = NTXentLoss(temperature=0.2)
    loader = DataLoader(Views(), PAIRS, shuffle=True, num_workers=2, persistent_workers=True)
    turns = Turns()
    for _ in range(ROUNDS):
        for a, b in loader:
            optimizer.zero_grad()
            loss(projector(network(a)), projector(network(b))).backward()
            optimizer.step()
        turns.wait()


if __name__ == "__main__":
    main()
