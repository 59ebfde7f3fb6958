"""FedPer: Federated Learning with Personalization Layers.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary, 2019, arXiv:1912.00818, Algorithms 1
and 2. Every client trains the base layers (here the encoder) together with personalisation layers
of its own (here the head); the server averages the base layers alone, and heads never leave.

In the end each client tunes its own head on the global encoder; one that never trained starts from
the common first head.
"""

from typing import ClassVar

from calibre.methods.supervised import Supervised


class FedPer(Supervised):
    title: ClassVar[str] = "FedPer"
    paper: ClassVar[str] = "Arivazhagan et al., 2019, arXiv:1912.00818"
    shares: ClassVar[tuple[str, ...]] = ("encoder",)
    keeps: ClassVar[tuple[str, ...]] = ("head",)

    name: str = "fedper"
