"""How far a personal model's answers can be trusted: intervals, temperature, calibration error."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from calibre.wording import Z95

BINS = 15  # of the calibration error, as in Guo et al.
TEMPERATURES = [0.05 * 1.01**step for step in range(603)]  # up to 20
SPREAD = 0.5  # of log T about 0, before any image is seen


def wilson(correct: int, images: int) -> tuple[float, float]:
    """The 95 % interval of a share (E. B. Wilson, 1927): sound for few images too."""
    share, square = correct / images, Z95**2 / images
    centre = (share + square / 2) / (1 + square)
    reach = Z95 / (1 + square) * math.sqrt(share * (1 - share) / images + square / images / 4)
    return max(0.0, centre - reach), min(1.0, centre + reach)


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The most probable T of ``softmax(logits / T)`` (Guo et al., ICML 2017, arXiv:1706.04599).

    Log T is taken to be normal about 0 beforehand. With hundreds of images that says nothing; with
    a few, all of them right, likelihood alone would make every answer certain.
    """
    logits = logits.double()

    def implausibility(t: float) -> float:
        prior = (math.log(t) / SPREAD) ** 2 / 2
        return len(labels) * F.cross_entropy(logits / t, labels).item() + prior

    return min(TEMPERATURES, key=implausibility)


def calibration_error(probabilities: Tensor, labels: Tensor) -> float:
    """ECE: how far confidence is from accuracy, on average over answers in bins of confidence."""
    confidence, answer = probabilities.double().max(dim=1)
    right = (answer == labels).double()
    place = (confidence * BINS).ceil().long().clamp(1, BINS) - 1  # bins (0, 1/15], (1/15, 2/15] ...
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, place, confidence - right)
    return gaps.abs().sum().item() / len(labels)


def surprise(probabilities: Tensor, labels: Tensor) -> float:
    """The mean negative log-likelihood of the true classes."""
    return F.nll_loss(probabilities.double().clamp(min=1e-12).log(), labels).item()
