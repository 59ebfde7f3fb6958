"""What small patches of an image look like, by patterns found in a client's own images.

A. Coates and A. Y. Ng, *Learning feature representations with k-means* (2012): patches are brought
to mean 0 and a common contrast, and whitened; k-means on the sphere finds patterns among them. An
image is then how much of each pattern, and of its negative, is in each of its quarters:

    s_k = d_k . Z (p - mean(p)) / contrast(p),    features  max(0, s_k - 1/2), max(0, -s_k - 1/2)

averaged over the patches of a quarter. No label and no gradient is needed, so that a client has
these features from its first image on. Whitening and patterns are one convolution: 1 is taken out
of its filters, because that takes the mean out of a patch.

Deviation: no random draws. Patches lie on a grid, and k-means starts from every so many-th of them,
so that the same images give the same bits.

Shapes: N images of C channels, P = C size² numbers in a patch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibre.models.fixed import MOST_IMAGES

SIZE = 6  # pixels of a patch's side; less in very small images
GRID = 2  # quarters: so many parts of the height, and of the width
THRESHOLD = 0.5  # of what counts as some of a pattern
MOST_PATCHES = 10_000  # that patterns are found from
CONTRAST = 0.05  # added to a patch's variance: what is nearly flat is not blown up
WHITEN = 0.1  # added to the variances that whitening makes equal
ITERATIONS = 10  # of k-means


class Patches(nn.Module):
    """Images [N, C, H, W] to their patterns by quarter [N, 2 count GRID²]."""

    filters: Tensor  # [count, C, size, size]
    offset: Tensor  # [count]

    def __init__(self, channels: int, side: int, count: int) -> None:
        super().__init__()
        self.side = side
        self.size = min(SIZE, max(1, side // 2))
        across = side - self.size + 1  # patches of a row
        self.grid = min(GRID, across)
        self.window = -(-across // self.grid)  # windows overlap by a patch where they do not fit
        self.stride = (across - self.window) // max(1, self.grid - 1) or 1
        self.features = 2 * count * self.grid**2
        # in the layout that encoders have: sums are rounded by it
        filters = torch.zeros(count, channels, self.size, self.size)
        self.register_buffer("filters", filters.to(memory_format=torch.channels_last))
        self.register_buffer("offset", torch.zeros(count))

    def forward(self, x: Tensor) -> Tensor:
        x = self._picture(x)
        mean, square = (self._window(part.mean(1, keepdim=True)) for part in (x, x.square()))
        contrast = ((square - mean.square()).clamp(min=0) + CONTRAST).sqrt()
        found = F.conv2d(x, self.filters) / contrast - self.offset[:, None, None]
        signs = torch.cat([found - THRESHOLD, -found - THRESHOLD], dim=1).relu()
        return F.avg_pool2d(signs, self.window, self.stride).flatten(1)

    def _picture(self, x: Tensor) -> Tensor:
        if x.shape[-2:] != (self.side, self.side):
            x = F.adaptive_avg_pool2d(x, self.side)
        return x

    def _window(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, self.size, 1)

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        """To images [n, C, H, W]. Patterns beyond the number of their patches are zero."""
        patches = self._some_patches(x).double()  # [m, P]
        patches -= patches.mean(1, keepdim=True)
        patches /= (patches.square().mean(1, keepdim=True) + CONTRAST).sqrt()
        centre = patches.mean(0)
        patches -= centre
        values, axes = torch.linalg.eigh(patches.T @ patches / len(patches))
        whitening = axes / (values.clamp(min=0) + WHITEN).sqrt() @ axes.T  # [P, P]
        patterns = _patterns(patches @ whitening, len(self.offset)) @ whitening
        offset = patterns @ centre
        patterns -= patterns.mean(1, keepdim=True)
        self.filters.zero_()
        self.offset.zero_()
        self.filters[: len(patterns)] = patterns.view(len(patterns), *self.filters.shape[1:])
        self.offset[: len(patterns)] = offset

    def _some_patches(self, x: Tensor) -> Tensor:
        """[m, P], at most ``MOST_PATCHES`` or one of each image."""
        x = self._picture(x[:: -(-len(x) // MOST_IMAGES)])
        across, step = self.side - self.size + 1, 1
        while len(x) * (-(-across // step)) ** 2 > MOST_PATCHES and step < across:
            step += 1
        return F.unfold(x.contiguous(), self.size, stride=step).transpose(1, 2).flatten(0, 1)


def _patterns(points: Tensor, count: int) -> Tensor:
    """Unit vectors [k, P], k <= count, to one of which, or its negative, each point is nearest."""
    found = F.normalize(points[:: max(1, len(points) // count)][:count], dim=1)
    for _ in range(ITERATIONS):
        along = points @ found.T  # [m, k]
        best = along.abs().argmax(1, keepdim=True)
        shares = torch.zeros_like(along).scatter_(1, best, along.gather(1, best))
        # a pattern that no point is nearest to stays
        found = F.normalize(shares.T @ points + 1e-9 * found, dim=1)
    return found
