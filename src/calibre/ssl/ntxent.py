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


def find_image(small: Tensor, a: Tensor, b: Tensor, temperature: float) -> Tensor:
    """Mean cross entropy of finding, for small views, each of the two views of the same image.

    For row i of a small view s and each of its two partners t = a_i, b_i, by cosine:

        l(s_i, t) = -log e^(s_i.t/tau) / (e^(s_i.t/tau) + sum over k != i of
                                          e^(s_i.a_k/tau) + e^(s_i.b_k/tau))

    One partner is no wrong answer where the other is asked for. ``a`` and ``b`` are [N, d],
    ``small`` [n N, d], view by view. In fp32.
    """
    with torch.autocast(a.device.type, enabled=False):
        s, a, b = (normalize(x.float(), dim=1, eps=1e-12) for x in (small, a, b))
        to_a, to_b = s @ a.T / temperature, s @ b.T / temperature  # [n N, N]
        own = torch.arange(len(a), device=a.device).repeat(len(s) // len(a))  # [n N]
        row = torch.arange(len(s), device=a.device)
        first = torch.zeros_like(row)
        others = torch.cat([to_a, to_b], dim=1)
        others[row, own] = others[row, own + len(a)] = -torch.inf
        both = (to[row, own] for to in (to_a, to_b))
        asked = [torch.cat([partner[:, None], others], dim=1) for partner in both]
        return torch.stack([cross_entropy(logits, first) for logits in asked]).mean()
