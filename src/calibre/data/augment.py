"""Two random views of every image, in a handful of batched tensor operations.

The augmentation family of SimCLR (Chen et al., ICML 2020, https://arxiv.org/abs/2002.05709, A and
B.9), computed as two linear maps instead of a chain of filters:

* crop, resize, flip and blur act on rows and on columns: ``view = rows @ plane @ columns^T``;
* brightness, contrast, saturation, hue and gray act on a pixel: ``matrix @ pixel + offset``.
  Brightness and contrast treat all channels alike; saturation, hue and gray leave luma alone. So
  they commute, and the random order of the usual chain makes no difference.

What differs from the usual chain of Pillow or torchvision transforms:

* values are clamped once, at the end, not between the colour operations;
* hue is a rotation in YIQ, which keeps luma (HSV keeps the largest channel);
* a crop is a real-valued box, resampled like Pillow's ``resize(box=...)``, not rounded to pixels;
* the aspect ratio is drawn among those that fit into the image and is relative to the image's own;
  boxes that do not fit are not drawn and rejected, so the area is exactly uniform;
* contrast turns about the mean luma of the view after its blur; the blur's kernel is normalised
  inside the image, not cut at a tenth of its size, and nothing is padded.

Small views beside the two (``views.extra``; "multi-crop", Caron et al., NeurIPS 2020,
arXiv:2006.09882) are made the same way, of fewer pixels: cheap to encode.

Shapes: N images, V views of them, C channels (1 or 3), H and W as they come, h and w of a view.
Values run from 0 to 255 until they are normalised.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibre.data.parts import Floats
from calibre.errors import UserError
from calibre.sections import ViewSettings

STATISTICS_SAMPLE = 10_000  # images; a larger pool is sampled evenly
LONGEST_ASPECT = 4 / 3
SIGMA = (0.1, 2.0)  # pixels, of the Gaussian blur
BLUR_ABOVE = 64  # pixels; SimCLR leaves small images sharp


@dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation of each channel, of values in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Views:
    """How a view is made: :class:`calibre.experiment.ViewSettings` with nothing left open."""

    crop: tuple[float, float] = (0.08, 1.0)
    flip: float = 0.5
    jitter: float = 0.8
    brightness: float = 0.4  # 0.5 * (0.8, 0.8, 0.8, 0.2): SimCLR's strength 0.5 for CIFAR
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    gray: float = 0.2
    blur: float = 0.0
    solarize: float = 0.0
    extra: int = 0  # small views of an image
    extra_size: int = 0  # pixels of their height
    extra_crop: tuple[float, float] | None = None  # None: as crop


def statistics(images: npt.NDArray[np.uint8]) -> Normalization:
    """Of the training images [N, H, W, C]; of at most 10,000, spread evenly over them."""
    return normalization(*moments(images))


def moments(images: npt.NDArray[np.uint8]) -> tuple[Floats, Floats, int]:
    """Per channel: the sum of a sample's pixels, of their squares, and how many they are.

    Whole numbers, so sites may add theirs up in any order without rounding.
    """
    sample = images[:: math.ceil(len(images) / STATISTICS_SAMPLE)]
    total = np.einsum("nhwc->c", sample, dtype=np.float64)
    squares = np.einsum("nhwc,nhwc->c", sample, sample, dtype=np.float64)
    return total, squares, sample[..., 0].size


def normalization(total: Floats, squares: Floats, values: int) -> Normalization:
    """From :func:`moments`, or sums of them."""
    mean = total / values
    std = np.sqrt(squares / values - mean**2)
    std[std == 0] = 255  # a channel that is the same everywhere is only centred
    return Normalization(mean=tuple((mean / 255).tolist()), std=tuple((std / 255).tolist()))


def resolve(settings: ViewSettings, pool_name: str, channels: int, size: int) -> Views:
    """The user's choices, completed with what suits the data set."""
    defaults = Views(blur=0.5 if size > BLUR_ABOVE else 0.0)
    if settings.extra:
        defaults = replace(defaults, extra_size=max(1, size // 2))
    if channels == 1:
        defaults = replace(defaults, saturation=0.0, hue=0.0, gray=0.0)
    if pool_name in ("digits", "mnist"):  # a mirrored 2 is no 2, and a scrap of a 7 may be a 1
        defaults = replace(defaults, flip=0.0, crop=(0.4, 1.0))
    views = replace(defaults, **settings.model_dump(exclude_none=True))
    for name, crop in (("crop", views.crop), ("extra_crop", views.extra_crop)):
        if crop and crop[0] > crop[1]:
            raise UserError(
                f"views.{name} = {list(crop)}: the smallest area comes first, e.g. {sorted(crop)}"
            )
    if views.extra_size > size:
        raise UserError(
            f"views.extra_size = {views.extra_size}: the images have {size} pixels, and extra "
            "views are the smaller ones"
        )
    return views


def two_views(
    images: Tensor, views: Views, norm: Normalization, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Two independent views of uint8 ``images`` [N, H, W, C]: float32 [N, C, H, W], channels last.

    The generator lives on the images' device.
    """
    first, second = _views(images, 2, views, norm, generator, images.shape[1]).chunk(2)
    return first, second


def small_views(
    images: Tensor, views: Views, norm: Normalization, generator: torch.Generator
) -> Tensor:
    """The extra views of uint8 ``images`` [N, H, W, C], one of each image after the other: float32
    [extra N, C, h, w]."""
    small = replace(views, crop=views.extra_crop or views.crop)
    return _views(images, views.extra, small, norm, generator, views.extra_size)


def _views(
    images: Tensor,
    each: int,
    views: Views,
    norm: Normalization,
    generator: torch.Generator,
    high: int,
) -> Tensor:
    """``each`` views [V, C, h, w] of every image, ``high`` pixels high."""
    count, height, width, _ = images.shape
    wide = max(1, round(width * high / height))
    draws = _draw(each * count, images.device, generator)
    columns, rows = _resampling(draws, views, (height, high), (width, wide))
    planes = _planes(images).repeat(each, 1, 1, 1)  # [V, C, H, W]
    planes = (planes.flatten(1, 2) @ columns.mT).unflatten(1, planes.shape[1:3])  # [V, C, H, w]
    planes = rows[:, None] @ planes  # [V, C, h, w]
    if views.jitter or views.gray:
        planes = _recolour(planes, draws, views)
    if views.solarize:
        chosen = (draws.solarize < views.solarize)[:, None, None, None]
        planes = torch.where(chosen & (planes >= 128), 255 - planes, planes)
    return _normalise(planes, norm)


def weak(images: Tensor, norm: Normalization, generator: torch.Generator, flip: float) -> Tensor:
    """The augmentation of supervised training: a shift by up to an eighth, and a flip.

    The same as padding by reflection and cropping at random.
    """
    count, height, width, _ = images.shape
    uniform = torch.rand(3, count, 1, generator=generator, device=images.device)
    rows = _shifted(height, uniform[0])
    columns = _shifted(width, uniform[1])
    columns = torch.where(uniform[2] < flip, columns.flip(1), columns)
    image = torch.arange(count, device=images.device)[:, None, None]
    return plain(images[image, rows[:, :, None], columns[:, None, :]], norm)


def plain(images: Tensor, norm: Normalization) -> Tensor:
    """The images [N, H, W, C] as they are, normalised: float32 [N, C, H, W], channels last."""
    return _normalise(_planes(images), norm)


class _Draws(NamedTuple):
    """Uniform numbers in [0, 1), one of each per view.

    All are drawn whatever the settings: switching one operation off leaves the others as they are.
    """

    box: Tensor  # [4, V]: area, aspect, left, top
    colour: Tensor  # [4, V]: brightness, contrast, saturation, hue
    flip: Tensor  # [V]
    jitter: Tensor
    gray: Tensor
    blur: Tensor
    sigma: Tensor
    solarize: Tensor


def _draw(count: int, device: torch.device, generator: torch.Generator) -> _Draws:
    uniform = torch.rand(14, count, generator=generator, device=device)
    return _Draws(uniform[:4], uniform[4:8], *uniform[8:])


def _planes(images: Tensor) -> Tensor:
    """uint8 [N, H, W, C] to float32 [N, C, H, W], a plane per channel in memory."""
    return images.permute(0, 3, 1, 2).contiguous().float()  # transposing bytes is the cheaper order


def _normalise(planes: Tensor, norm: Normalization) -> Tensor:
    mean, std = planes.new_tensor([norm.mean, norm.std])[:, :, None, None]
    planes = planes.mul_(1 / (255 * std)).sub_(mean / std)
    return planes.contiguous(memory_format=torch.channels_last)


def _shifted(length: int, uniform: Tensor) -> Tensor:
    """Indices [N, length] of a line moved by up to an eighth of it, reflected at its ends."""
    most = length // 8
    shift = (uniform * (2 * most + 1)).long() - most  # [N, 1]
    index = (torch.arange(length, device=uniform.device) + shift).abs()
    return length - 1 - (length - 1 - index).abs()


def _resampling(
    draws: _Draws, views: Views, height: tuple[int, int], width: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Crop, resize, flip and blur as weights of columns [V, w, W] and of rows [V, h, H].

    ``height`` and ``width`` are the image's and the view's.
    """
    left, top, wide, high = _boxes(draws.box, views.crop)
    flip = draws.flip < views.flip  # a flipped box starts at its right edge and runs backwards
    left, wide = torch.where(flip, left + wide, left), torch.where(flip, -wide, wide)
    columns = _bilinear(left, wide, *width)
    rows = _bilinear(top, high, *height)
    if views.blur:
        sigma = SIGMA[0] + (SIGMA[1] - SIGMA[0]) * draws.sigma
        sigma = torch.where(draws.blur < views.blur, sigma, 0)
        sigma = sigma * (height[1] / height[0])  # of pixels as large as the image's own
        columns = _gaussian(sigma, width[1]) @ columns
        rows = _gaussian(sigma, height[1]) @ rows
    return columns, rows


def _boxes(uniform: Tensor, crop: tuple[float, float]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Left, top, width and height [V] of the crops, as fractions of the image's sides."""
    area = crop[0] + (crop[1] - crop[0]) * uniform[0]
    # sqrt(area * aspect) <= 1 and sqrt(area / aspect) <= 1: the box fits into the image
    longest = area.reciprocal().clamp(max=LONGEST_ASPECT).log()
    aspect = torch.exp((2 * uniform[1] - 1) * longest)
    wide, high = (area * aspect).sqrt(), (area / aspect).sqrt()
    return uniform[2] * (1 - wide), uniform[3] * (1 - high), wide, high


def _bilinear(start: Tensor, extent: Tensor, length: int, out: int) -> Tensor:
    """Weights [V, out, length] that stretch ``start .. start + extent`` of a line over another.

    Where that shrinks it, a pixel is a mean over all that it covers, so that nothing flickers.
    """
    pixel = torch.arange(length, dtype=start.dtype, device=start.device)
    if out == length:  # a crop is at most the whole: nothing shrinks
        centre = (start * length)[:, None] + (pixel + 0.5) * extent[:, None] - 0.5  # [V, length]
        distance = centre.clamp(0, length - 1)[:, :, None] - pixel
        return (1 - distance.abs_()).clamp_(min=0)
    place = torch.arange(out, dtype=start.dtype, device=start.device)
    scale = (extent * length / out)[:, None]  # old pixels to a new one; negative where flipped
    centre = (start * length)[:, None] + (place + 0.5) * scale - 0.5  # [V, out]
    distance = centre.clamp(0, length - 1)[:, :, None] - pixel
    weights = (1 - distance.abs_() / scale.abs().clamp(min=1)[:, :, None]).clamp_(min=0)
    return weights / weights.sum(dim=2, keepdim=True)


def _gaussian(sigma: Tensor, length: int) -> Tensor:
    """Weights [V, length, length] of a Gaussian blur; a sigma of 0 leaves the line alone."""
    pixel = torch.arange(length, dtype=sigma.dtype, device=sigma.device)
    distance = (pixel[:, None] - pixel) / sigma.clamp(min=1e-3)[:, None, None]
    return torch.softmax(-0.5 * distance**2, dim=-1)


def _colour_basis() -> Tensor:
    """The maps on RGB that give luma, the rest, and the rest turned by a right angle: [3, 3, 3]."""
    yiq = torch.tensor(
        [[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]],
        dtype=torch.float64,
    )
    luma = torch.tensor([[1.0, 0, 0], [0, 0, 0], [0, 0, 0]], dtype=torch.float64)
    rest = torch.tensor([[0.0, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=torch.float64)
    turned = torch.tensor([[0.0, 0, 0], [0, 0, 1], [0, -1, 0]], dtype=torch.float64)
    return (yiq.inverse() @ torch.stack([luma, rest, turned]) @ yiq).float()


_COLOUR_BASIS = {1: torch.tensor([1.0, 0, 0])[:, None, None], 3: _colour_basis()}


def _recolour(planes: Tensor, draws: _Draws, views: Views) -> Tensor:
    """Colour jitter and gray on planes [V, C, H, W], clamped to [0, 255]."""
    basis = _COLOUR_BASIS[planes.shape[1]].to(planes.device)
    strength = basis.new_tensor([views.brightness, views.contrast, views.saturation, views.hue])
    jitter = draws.jitter < views.jitter
    change = strength[:, None] * (2 * draws.colour - 1) * jitter  # [4, V]
    brightness, contrast, saturation = 1 + change[:3]
    saturation = saturation * (draws.gray >= views.gray)  # gray: no saturation left
    turn = 2 * math.pi * change[3]  # the way HSV goes: red, yellow, green

    parts = torch.stack([torch.ones_like(turn), saturation * turn.cos(), saturation * turn.sin()])
    matrix = torch.einsum("kv,kcd->vcd", brightness * contrast * parts, basis)
    pixels = planes.flatten(2)  # [V, C, HW]
    mean_luma = pixels.mean(2) @ basis[0, 0]
    offset = brightness * (1 - contrast) * mean_luma
    recoloured = torch.baddbmm(offset[:, None, None], matrix, pixels)
    return recoloured.clamp_(0, 255).view(planes.shape)
