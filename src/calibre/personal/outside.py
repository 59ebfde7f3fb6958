"""'None of your classes': how far an image lies from every class that the client knows.

The distance is Mahalanobis' to the nearest class mean, with one covariance for all classes
(K. Lee et al., NeurIPS 2018, arXiv:1807.03888) shrunk towards a sphere by Ledoit and Wolf's rule:
a client has fewer images than features. Divided by √d, it is about 1 for an image like the
client's own. (docs/models.md compares it with other scores.)

Shapes: n images, d features, P classes that the client holds.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

RATES = (0.01, 0.02, 0.05, 0.1, 0.2)  # of own images refused, in a card's table


class Prototypes(NamedTuple):
    """The mean of every class held, and the map that makes their common spread a unit sphere."""

    means: Tensor  # float32 [P, d]
    whitening: Tensor  # float32 [d, d]

    def distance(self, features: Tensor) -> Tensor:
        """To the nearest mean, [n]."""
        return nearest(features, self.means, self.whitening)


def nearest(features: Tensor, means: Tensor, whitening: Tensor) -> Tensor:
    """The distance [n] of features [n, d] to the nearest of the means [P, d]."""
    centre = means.mean(0)  # near it, a² + b² - 2ab loses nothing to rounding
    a, b = (features - centre) @ whitening, (means - centre) @ whitening
    squares = a.square().sum(1, keepdim=True) + b.square().sum(1) - 2 * a @ b.T
    return (squares.amin(1).clamp(min=0) / features.shape[1]).sqrt()


def fit_prototypes(features: Tensor, labels: Tensor) -> Prototypes | None:
    """From the client's own images; None where no class has two, so that nothing has a spread."""
    held, place = labels.unique(return_inverse=True)
    x = features.double()
    freedom = len(x) - len(held)
    if freedom < 1:
        return None
    sums = torch.zeros(len(held), x.shape[1], dtype=torch.float64).index_add_(0, place, x)
    means = sums / place.bincount()[:, None]
    # the spread about means of the same images is too small by n - P to n
    residuals = (x - means[place]) * math.sqrt(len(x) / freedom)
    covariance = ledoit_wolf(residuals)
    # features that never vary have no scale; a thousandth of the others' keeps all finite
    covariance.diagonal().add_(covariance.diagonal().mean().clamp(min=1e-12) * 1e-3)
    whitening = torch.linalg.cholesky(torch.linalg.inv(covariance))
    return Prototypes(means.float(), whitening.float())


def ledoit_wolf(x: Tensor) -> Tensor:
    """The covariance [d, d] of centred rows [n, d], shrunk towards a multiple of the identity.

    O. Ledoit and M. Wolf, Journal of Multivariate Analysis 88, 2004, lemma 3.1 and section 3.2.
    """
    n, d = x.shape
    sample = x.T @ x / n
    sphere = sample.diagonal().mean() * torch.eye(d, dtype=x.dtype)
    apart = (sample - sphere).square().sum()
    noise = (x.square().sum(1).square().sum() / n - sample.square().sum()) / n
    share = (noise / apart).clamp(0, 1) if apart > 0 else apart
    return share * sphere + (1 - share) * sample


def threshold(distances: Tensor, rate: float) -> float:
    """Beyond it lies at most a share ``rate`` of new images like those of ``distances``.

    The rank is that of conformal prediction, which holds for any number of images; where they are
    too few for the rate (fewer than 1 / rate - 1), the farthest of them decides.
    """
    rank = min(math.ceil((len(distances) + 1) * (1 - rate)), len(distances))
    return distances.sort().values[rank - 1].item()


def refused(distances: Tensor, limit: float) -> float:
    """The share of images beyond a limit."""
    return (distances > limit).double().mean().item()
