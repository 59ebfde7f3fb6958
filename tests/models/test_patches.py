import math
from itertools import product

import pytest
import torch
from torch.nn import functional as F

from calibre.models.patches import CONTRAST, THRESHOLD, WHITEN, Patches, _patterns


def drawn(*shape, key=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(key))


def fitted(images, count=5):
    part = Patches(images.shape[1], images.shape[2], count)
    part.fit(images)
    return part


def every_patch(image, size):
    """Of one image [C, H, W], with the row and the column where each begins."""
    across = image.shape[1] - size + 1
    for top in range(across):
        for left in range(across):
            yield top, left, image[:, top : top + size, left : left + size].flatten().double()


def halves(place):
    """In which halves of 7 the place is: the one in the middle is in both."""
    return [half for half, holds in enumerate((place <= 3, place >= 3)) if holds]


def test_features_are_means_over_quarters_of_what_each_patch_has_of_a_pattern():
    images = drawn(12, 3, 12, 12)
    part = fitted(images)  # 7 x 7 patches of 6 x 6: rows 0 to 3 above, and 3 to 6 below
    found = part(images[:2]).view(2, 2, 5, 2, 2)
    for image, features in zip(images, found, strict=False):
        sums = torch.zeros(2, 5, 2, 2, dtype=torch.float64)
        for top, left, patch in every_patch(image, 6):
            flat = patch - patch.mean()
            flat = flat / math.sqrt(float(flat.square().mean()) + CONTRAST)
            for k in range(5):
                s = float(part.filters[k].double().flatten() @ flat) - float(part.offset[k])
                for sign, value in enumerate((s, -s)):
                    for row, column in product(halves(top), halves(left)):
                        sums[sign, k, row, column] += max(0.0, value - THRESHOLD)
        torch.testing.assert_close(features.double(), sums / 16, rtol=0, atol=1e-5)


def test_filters_are_patterns_of_whitened_patches():
    """By the symmetric root of a matrix, found by iteration, and patch by patch."""
    images = drawn(30, 1, 9, 9, key=1).cumsum(3)  # neighbours are alike, as in pictures
    part = fitted(images, count=4)
    patches = torch.stack([p for image in images for _, _, p in every_patch(image, part.size)])
    patches = patches - patches.mean(1, keepdim=True)
    patches = patches / (patches.square().mean(1, keepdim=True) + CONTRAST).sqrt()
    centre = patches.mean(0)
    spread = torch.cov((patches - centre).T, correction=0) + WHITEN * torch.eye(part.size**2)
    root, inverse = spread, torch.eye(part.size**2, dtype=torch.float64)
    for _ in range(60):  # Denman and Beavers
        root, inverse = (root + inverse.inverse()) / 2, (inverse + root.inverse()) / 2
    whitened = (patches - centre) @ inverse
    expected = whitened @ _patterns(whitened, 4).T
    found = patches @ part.filters.double().flatten(1).T - part.offset.double()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_two_patterns_are_found_and_told_apart():
    """Stripes up and down, and across, of any sign and strength."""
    up = torch.tensor([1.0, -1.0]).repeat(4).expand(8, 8)
    kinds = [up, up.T]
    pick = torch.randint(2, (40,), generator=torch.Generator().manual_seed(2)).tolist()
    strength = 1 + drawn(40, key=3).abs()
    images = torch.stack([s * kinds[k] for k, s in zip(pick, strength, strict=True)])[:, None]
    part = fitted(images + 0.05 * drawn(40, 1, 8, 8, key=4), count=2)
    seen = part(images).view(40, 2, 2, -1).sum((1, 3))  # of each pattern, of either sign
    most = seen.argmax(1)
    same = [int(m == k) for m, k in zip(most.tolist(), pick, strict=True)]
    assert sum(same) in (0, 40)


def test_patterns_are_those_of_k_means_on_the_sphere_point_by_point():
    points = drawn(60, 4, key=5).double()
    found = points[::20][:3].clone()
    found = found / found.norm(dim=1, keepdim=True)
    for _ in range(10):
        sums = torch.zeros(3, 4, dtype=torch.float64)
        for point in points:
            along = [float(point @ pattern) for pattern in found]
            nearest = max(range(3), key=lambda k: abs(along[k]))
            sums[nearest] += along[nearest] * point
        found = sums / sums.norm(dim=1, keepdim=True)
    torch.testing.assert_close(_patterns(points, 3), found, rtol=0, atol=1e-6)


def test_the_same_images_give_the_same_bits():
    images = drawn(20, 3, 8, 8)
    one, other = fitted(images), fitted(images.clone())
    assert torch.equal(one.filters, other.filters)
    assert torch.equal(one.offset, other.offset)


def test_contrast_and_brightness_of_an_image_hardly_count():
    images = 3 * drawn(10, 1, 12, 12)
    part = fitted(images)
    torch.testing.assert_close(part(images), part(5 * images + 7), rtol=0, atol=0.02)


@pytest.mark.parametrize("side", [1, 2, 3, 5, 8, 33])
@pytest.mark.parametrize("images", [1, 7])
def test_any_size_and_number_of_images(side, images):
    part = fitted(drawn(images, 3, side, side), count=9)
    features = part(drawn(4, 3, side, side, key=1))
    assert features.shape == (4, part.features)
    assert features.isfinite().all()


def test_blank_images_have_no_pattern():
    part = fitted(torch.zeros(5, 1, 8, 8))
    assert part(torch.zeros(2, 1, 8, 8)).abs().sum() == 0


def test_larger_images_are_looked_at_as_small_ones():
    images = drawn(6, 1, 12, 12)
    part = fitted(images)
    torch.testing.assert_close(part(F.interpolate(images, scale_factor=2)), part(images))
