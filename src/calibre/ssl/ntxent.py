"""NT-Xent, the contrastive loss of SimCLR (Chen et al., ICML 2020, https://arxiv.org/abs/2002.05709).

Calibre uses it twice: on the two views of every image (SimCLR's own loss) and on the two views of
every prototype (its regulariser L_p).
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize


def ntxent(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    """Mean cross entropy of finding each vector's partner among the other 2n - 1, by cosine.

    ``a`` and ``b`` are [n, d]; row i of one is the partner of row i of the other. Always in fp32.
    """
    with torch.autocast(a.device.type, enabled=False):
        unit = normalize(torch.cat([a, b]).float(), dim=1, eps=1e-12)  # [2n, d]
        logits = unit @ unit.T / temperature  # [2n, 2n]
        logits.fill_diagonal_(-torch.inf)  # a vector is no candidate for itself
        partner = torch.arange(len(unit), device=unit.device).roll(len(a))  # [2n]
        return cross_entropy(logits, partner)
