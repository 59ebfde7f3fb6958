"""Small views beside the two: "multi-crop" (Caron et al., NeurIPS 2020, arXiv:2006.09882).

With n small views s beside the views a and b, each of them has a and b for targets, as a has b and
b has a, and all count alike:

    l_s = 1/2 [ (l(b, a) + sum_s l(s, a)) / (1 + n)  +  (l(a, b) + sum_s l(s, b)) / (1 + n) ]

No small view is a target, and none is in the sums, queues, codes or groups that views are compared
with. Calibre's terms see a and b only.
"""

from collections.abc import Callable

from torch import Tensor, nn

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
Distance = Callable[[Tensor, Tensor], Tensor]  # of rows from their targets, on average


def with_small(loss: Tensor, of_small: Tensor, n: int) -> Tensor:
    """l_s, from its mean over the two views and its mean over n small views and their targets."""
    return (loss + n * of_small) / (1 + n)


def with_small_of_both(
    loss: Tensor, small: Tensor, t_a: Tensor, t_b: Tensor, distance: Distance
) -> Tensor:
    """l_s, where rows of ``small`` [n N, D] have the targets of both views, [N, D] each."""
    n = len(small) // len(t_a)
    of_small = (distance(small, t_a.repeat(n, 1)) + distance(small, t_b.repeat(n, 1))) / 2
    return with_small(loss, of_small, n)


def pass_small(network: nn.Module, x: Tensor) -> Tensor:
    """``network(x)``, without a trace in batch norm's running statistics.

    Those are of whole images, which the encoder is used on.
    """
    norms = [part for part in network.modules() if isinstance(part, NORMS) and part.training]
    tracking = [part.track_running_stats for part in norms]
    for part in norms:
        part.track_running_stats = False
    try:
        passed: Tensor = network(x)
    finally:
        for part, tracked in zip(norms, tracking, strict=True):
            part.track_running_stats = tracked
    return passed
