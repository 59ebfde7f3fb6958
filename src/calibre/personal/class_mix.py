"""How common each class is among a client's images, when its labels do not say.

Labels drawn by class (so many of each) teach a head that all classes are equally common. The
client's unlabelled images show how common they are: expectation and maximisation on the head's own
probabilities (M. Saerens et al., Neural Computation 14, 2002), with a prior that keeps a few images
from ruling a class out. Where labels are drawn at random there is nothing to
correct.

Shapes: m unlabelled images, K classes.
"""

import torch
from torch import Tensor

from calibre.models.network import Head

PRIOR = 1.0  # images, spread evenly over the classes, that are added to the client's
ROUNDS = 10_000  # at most, until no share changes by more than SETTLED
SETTLED = 1e-9


def label_mix(labels: Tensor, classes: int) -> Tensor:
    """The share of each class among the labels, float64 [K]; 0 for classes without a label."""
    return labels.bincount(minlength=classes).double() / len(labels)


def class_mix(probabilities: Tensor, labelled: Tensor, prior: float = PRIOR) -> Tensor:
    """The share of each class among the images that ``probabilities`` [m, K] speak of, [K].

    They must be calibrated, by a head that learnt from labels in the mix ``labelled``. The shares
    are the most probable ones: each round makes their likelihood times ``prod pi_k^(prior / K)``
    no smaller, and there is one maximum. Classes without a label have no share. Without images the
    mix is that of the labels: there is nothing to correct by.
    """
    held = labelled > 0
    if not len(probabilities):
        return labelled
    ratio = probabilities.double()[:, held] / labelled[held]  # [m, K]
    count = ratio.shape[1]
    mix = ratio.new_full((count,), 1 / count)
    for _ in range(ROUNDS):
        share = ratio * mix
        share /= share.sum(1, keepdim=True)
        new = (prior / count + share.sum(0)) / (prior + len(ratio))
        settled = (new - mix).abs().max() < SETTLED
        mix = new
        if settled:
            break
    return torch.zeros_like(labelled).masked_scatter(held, mix)


def corrected(head: Head, mix: Tensor, labelled: Tensor, temperature: float = 1.0) -> Head:
    """The head for a client whose classes come in ``mix``: log p + log(mix / labelled).

    Its logits will be divided by ``temperature``, as they were for the mix: the correction is
    multiplied by it here, and arrives whole. Classes without a label stay as they are.
    """
    held = labelled > 0
    shift = torch.zeros_like(labelled)
    shift[held] = temperature * (mix[held] / labelled[held]).log()
    return Head(head.weight, head.bias + shift.to(head.bias.dtype))
