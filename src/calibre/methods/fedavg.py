"""FedAvg: Communication-Efficient Learning of Deep Networks from Decentralized Data.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, AISTATS 2017, arXiv:1602.05629,
Algorithm 1. Batch norm's buffers are part of the model and averaged like its parameters.

FedAvg is scored with the global model as it is; FedAvg-FT lets each client first fine-tune the
global head on its own labels, the encoder frozen (a baseline of the Calibre paper, section V).
"""

from typing import ClassVar

from calibre.methods.supervised import OneModel


class FedAvg(OneModel):
    title: ClassVar[str] = "FedAvg"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017, arXiv:1602.05629"

    name: str = "fedavg"
