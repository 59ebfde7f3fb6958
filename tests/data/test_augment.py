"""Augmentation against naive implementations: Pillow, colorsys, grid_sample and plain loops."""

import colorsys
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from calibre.data import augment
from calibre.data.augment import Normalization, Views
from calibre.errors import UserError
from calibre.sections import ViewSettings

PLAIN = Normalization(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))  # views stay in [0, 1]
PLAIN_GRAY = Normalization(mean=(0.0,), std=(1.0,))
NOTHING = Views(
    crop=(1.0, 1.0), flip=0, jitter=0, brightness=0, contrast=0, saturation=0, hue=0, gray=0
)
FULL = Views(blur=0.5, solarize=0.2)
LUMA = np.array([0.299, 0.587, 0.114])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_images(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, shape, generator=generator(seed)).byte()


def draws(count: int, seed: int = 0, **fixed: Tensor) -> augment._Draws:
    return augment._draw(count, torch.device("cpu"), generator(seed))._replace(**fixed)


def both(images: Tensor, views: Views, norm: Normalization = PLAIN, seed: int = 0) -> Tensor:
    """[2N, C, H, W]"""
    return torch.cat(augment.two_views(images, views, norm, generator(seed)))


# --- what a view is made of ---------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 32, 32, 3), (4, 8, 8, 1), (3, 12, 20, 3)])
def test_a_view_without_any_operation_is_exactly_the_normalised_image(shape):
    images = random_images(*shape)
    norm = Normalization(mean=(0.4, 0.5, 0.6)[: shape[3]], std=(0.2, 0.3, 0.25)[: shape[3]])
    first, second = augment.two_views(images, NOTHING, norm, generator())
    plain = augment.plain(images, norm)
    assert torch.equal(first, plain)
    assert torch.equal(second, plain)
    expected = (images.double() / 255 - torch.tensor(norm.mean)) / torch.tensor(norm.std)
    torch.testing.assert_close(plain, expected.permute(0, 3, 1, 2).float(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", [(6, 32, 32, 3), (6, 28, 28, 1), (6, 10, 17, 3), (6, 21, 9, 1)])
def test_views_are_float32_channels_last_and_of_the_same_shape(shape):
    count, height, width, channels = shape
    norm = Normalization(mean=(0.5,) * channels, std=(0.25,) * channels)
    made = [
        *augment.two_views(random_images(*shape), FULL, norm, generator()),
        augment.weak(random_images(*shape), norm, generator(), flip=0.5),
        augment.plain(random_images(*shape), norm),
    ]
    for view in made:
        assert view.shape == (count, channels, height, width)
        assert view.dtype == torch.float32
        assert view.is_contiguous(memory_format=torch.channels_last)
        assert view.abs().max() <= 2 + 1e-5  # (0 or 1 - 0.5) / 0.25


def test_every_view_is_drawn_on_its_own():
    images = random_images(1, 16, 16, 3).expand(8, 16, 16, 3)  # one image, eight times
    views = both(images, Views())
    different = torch.cdist(views.flatten(1), views.flatten(1)) > 0.1
    assert different.sum() == 16 * 15


def test_switching_an_operation_off_leaves_the_other_draws_alone():
    images = random_images(8, 16, 16, 3)
    without = both(images, replace(Views(), jitter=0, gray=0))
    with_solarize = both(images, replace(Views(), jitter=0, gray=0, solarize=0.5))
    untouched = (without == with_solarize).flatten(1).all(1)
    assert 0 < untouched.sum() < 16


def test_the_generator_decides_every_bit():
    images = random_images(9, 16, 16, 3)
    assert torch.equal(both(images, FULL, seed=3), both(images, FULL, seed=3))
    assert not torch.equal(both(images, FULL, seed=3), both(images, FULL, seed=4))
    weak = [augment.weak(images, PLAIN, generator(seed), flip=0.5) for seed in (3, 3, 4)]
    assert torch.equal(weak[0], weak[1])
    assert not torch.equal(weak[0], weak[2])


def test_the_global_generator_is_neither_read_nor_moved():
    before = torch.get_rng_state()
    both(random_images(4, 16, 16, 3), FULL)
    augment.weak(random_images(4, 16, 16, 3), PLAIN, generator(), flip=0.5)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("shape", [(67, 32, 32, 3), (33, 28, 28, 1), (3, 96, 96, 3)])
def test_the_number_of_threads_changes_no_bit(shape):
    images = random_images(*shape)
    norm = Normalization(mean=(0.5,) * shape[3], std=(0.25,) * shape[3])
    before = torch.get_num_threads()
    try:
        made = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            made.append((both(images, FULL, norm), augment.weak(images, norm, generator(), 0.5)))
    finally:
        torch.set_num_threads(before)
    for views, weak in made[1:]:
        assert torch.equal(views, made[0][0])
        assert torch.equal(weak, made[0][1])


# --- crop and flip ------------------------------------------------------------------------------


def test_crops_are_uniform_in_area_and_in_the_logarithm_of_their_aspect():
    left, top, wide, high = augment._boxes(draws(40_000).box, (0.08, 0.7))
    area, aspect = wide * high, (wide / high).log() / math.log(4 / 3)
    # a uniform variable on [a, b]: its quantile q is a + q (b - a); 40,000 draws pin it to 0.25 %
    q = torch.linspace(0, 1, 11)
    torch.testing.assert_close(area.quantile(q), 0.08 + 0.62 * q, atol=0.01, rtol=0)
    torch.testing.assert_close(aspect.quantile(q), 2 * q - 1, atol=0.03, rtol=0)
    assert torch.corrcoef(torch.stack([area, aspect]))[0, 1].abs() < 0.02
    for start, extent in ((left, wide), (top, high)):
        torch.testing.assert_close(
            (start / (1 - extent)).quantile(q), q, atol=0.01, rtol=0
        )  # anywhere inside, equally


def test_large_crops_still_fit_and_keep_their_area_uniform():
    left, top, wide, high = augment._boxes(draws(40_000).box, (0.5, 1.0))
    for start, extent in ((left, wide), (top, high)):
        assert start.min() >= 0
        assert (start + extent).max() <= 1 + 1e-6
    q = torch.linspace(0, 1, 11)
    torch.testing.assert_close((wide * high).quantile(q), 0.5 + 0.5 * q, atol=0.01, rtol=0)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (8, 8), (13, 22)])
def test_a_crop_is_resampled_as_pillow_does(height, width):
    images = random_images(6, height, width, 3)
    views = both(images, replace(NOTHING, crop=(0.08, 1.0)))
    left, top, wide, high = augment._boxes(draws(12).box, (0.08, 1.0))
    for v in range(12):
        box = (left[v] * width, top[v] * height)
        box += ((left[v] + wide[v]) * width, (top[v] + high[v]) * height)
        for c in range(3):
            plane = Image.fromarray(images[v % 6, :, :, c].numpy().astype(np.float32))
            resized = plane.resize((width, height), Image.Resampling.BILINEAR, box=box)
            np.testing.assert_allclose(views[v, c], np.asarray(resized) / 255, atol=2e-5)


@pytest.mark.parametrize(("height", "width", "small"), [(32, 32, 16), (28, 28, 9), (12, 20, 5)])
def test_a_small_view_is_resampled_as_pillow_does(height, width, small):
    images = random_images(4, height, width, 3)
    views = replace(NOTHING, extra=3, extra_size=small, extra_crop=(0.05, 1.0), flip=0.5)
    made = augment.small_views(images, views, PLAIN, generator())
    wide_out = round(width * small / height)
    assert made.shape == (12, 3, small, wide_out)
    left, top, wide, high = augment._boxes(draws(12).box, (0.05, 1.0))
    flipped = draws(12).flip < 0.5
    assert flipped.any()
    assert not flipped.all()
    for v in range(12):
        box = (left[v] * width, top[v] * height)
        box += ((left[v] + wide[v]) * width, (top[v] + high[v]) * height)
        for c in range(3):
            plane = Image.fromarray(images[v % 4, :, :, c].numpy().astype(np.float32))
            resized = np.asarray(
                plane.resize((wide_out, small), Image.Resampling.BILINEAR, box=box)
            )
            expected = resized[:, ::-1] if flipped[v] else resized
            np.testing.assert_allclose(made[v, c], expected / 255, atol=2e-5)


def test_small_views_crop_as_the_two_do_unless_they_have_a_crop_of_their_own():
    images = random_images(3, 16, 16, 3)
    one = replace(NOTHING, crop=(0.3, 0.6), extra=2, extra_size=8)
    other = replace(NOTHING, extra=2, extra_size=8, extra_crop=(0.3, 0.6))
    made = [augment.small_views(images, views, PLAIN, generator()) for views in (one, other)]
    assert torch.equal(*made)


def test_the_blur_of_a_small_view_is_as_wide_in_the_image():
    views, drawn = replace(NOTHING, blur=1.0), draws(1, sigma=torch.tensor([0.9]))

    def spread(out):
        """Of what becomes of one row, in pixels of the image."""
        rows = augment._resampling(drawn, views, (64, out), (64, out))[1][0, :, 32]
        place = (torch.arange(out) + 0.5) * 64 / out - 32.5
        return float((rows * place**2).sum() / rows.sum()) ** 0.5

    assert spread(64) == pytest.approx(1.81, rel=0.02)  # 0.1 + 1.9 * 0.9 pixels
    assert spread(32) == pytest.approx(spread(64), rel=0.2)


def test_crop_and_flip_are_one_bilinear_sampling_grid():
    images = random_images(6, 16, 24, 3)
    views = both(images, replace(NOTHING, crop=(0.1, 0.9), flip=0.5))
    left, top, wide, high = augment._boxes(draws(12).box, (0.1, 0.9))
    sign = torch.where(draws(12).flip < 0.5, -1.0, 1.0)
    affine = torch.zeros(12, 2, 3)  # grid_sample's coordinates run from -1 to 1
    affine[:, 0, 0], affine[:, 0, 2] = sign * wide, 2 * left + wide - 1
    affine[:, 1, 1], affine[:, 1, 2] = high, 2 * top + high - 1
    planes = images.permute(0, 3, 1, 2).float().repeat(2, 1, 1, 1) / 255
    grid = F.affine_grid(affine, [12, 3, 16, 24], align_corners=False)
    expected = F.grid_sample(planes, grid, padding_mode="border", align_corners=False)
    torch.testing.assert_close(views, expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_flips_happen_as_often_as_asked(probability):
    images = random_images(1000, 4, 6, 1)
    views = both(images, replace(NOTHING, flip=probability), PLAIN_GRAY)
    planes = augment.plain(images, PLAIN_GRAY).repeat(2, 1, 1, 1)
    same, mirrored = ((views == p).flatten(1).all(1) for p in (planes, planes.flip(3)))
    assert (same | mirrored).all()
    # five standard deviations of a mean of 2,000 draws
    allowed = 5 * math.sqrt(probability * (1 - probability) / 2000)
    assert abs(mirrored.float().mean().item() - probability) <= allowed


# --- colour -------------------------------------------------------------------------------------


def sequential(image, brightness, contrast, saturation, turns, gray, order):
    """The usual chain on float64 [H, W, 3], one operation after the other, without clamping."""

    def blend(a, b, factor):
        return factor * a + (1 - factor) * b

    def luma(a):
        return (a @ LUMA)[..., None]

    def hue(a):
        y, i, q = np.moveaxis(a @ YIQ.T, -1, 0)
        turned = (i + 1j * q) * np.exp(-2j * np.pi * turns)
        return np.stack([y, turned.real, turned.imag], -1) @ np.linalg.inv(YIQ).T

    operations = {
        "brightness": lambda a: brightness * a,
        "contrast": lambda a: blend(a, luma(a).mean(), contrast),
        "saturation": lambda a: blend(a, luma(a), saturation),
        "hue": hue,
    }
    for name in order:
        image = operations[name](image)
    return np.repeat(luma(image), 3, axis=-1) if gray else image


YIQ = np.array([LUMA, [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
ORDERS = [
    ("brightness", "contrast", "saturation", "hue"),
    ("hue", "saturation", "contrast", "brightness"),
    ("contrast", "hue", "brightness", "saturation"),
]


@pytest.mark.parametrize("order", ORDERS)
def test_one_matrix_does_what_the_chain_does_in_any_order(order):
    views = replace(NOTHING, jitter=0.7, brightness=0.4, contrast=0.5, saturation=0.6, hue=0.1)
    views = replace(views, gray=0.3)
    images = random_images(20, 6, 5, 3) // 4 + 96  # mid-tones: most need no clamping
    made = both(images, views)
    numbers = draws(40)
    kinds = set()
    for v in range(40):
        jitter = numbers.jitter[v].item() < views.jitter
        gray = numbers.gray[v].item() < views.gray
        kinds.add((jitter, gray))
        b, c, s, h = (2 * numbers.colour[:, v].double().numpy() - 1) * jitter
        factors = (1 + 0.4 * b, 1 + 0.5 * c, 1 + 0.6 * s, 0.1 * h)
        chain = sequential(images[v % 20].double().numpy() / 255, *factors, gray, order)
        expected = np.moveaxis(chain.clip(0, 1), -1, 0)
        np.testing.assert_allclose(made[v].double(), expected, atol=1e-5)
    assert len(kinds) == 4  # each of jitter and gray was seen with and without the other


def test_contrast_turns_about_the_luma_of_the_crop_not_of_the_image():
    image = torch.zeros(1, 8, 8, 3, dtype=torch.uint8)
    image[:, :, 4:] = 200  # a crop from one half only is even, and contrast leaves it even
    view = both(image, replace(NOTHING, crop=(0.01, 0.02), jitter=1, contrast=0.9), seed=1)
    flat = (view.flatten(1).std(1) < 1e-3).nonzero()[:, 0]
    assert len(flat) > 0
    for v in flat:
        assert min(abs(view[v].mean() - level) for level in (0, 200 / 255)) < 1e-4


def test_jitter_covers_its_range_and_happens_as_often_as_asked():
    images = torch.full((2000, 1, 1, 3), 100, dtype=torch.uint8)
    views = both(images, replace(NOTHING, jitter=0.8, brightness=0.4))[:, 0, 0, 0] * 255 / 100
    changed = views[(views - 1).abs() > 1e-5]
    assert len(changed) / 4000 == pytest.approx(0.8, abs=5 * 0.4 / math.sqrt(4000))
    q = torch.linspace(0, 1, 11)
    torch.testing.assert_close(changed.quantile(q), 0.6 + 0.8 * q, atol=0.03, rtol=0)


def test_gray_is_luma_in_all_channels():
    images = random_images(5, 7, 7, 3)
    views = both(images, replace(NOTHING, gray=1.0))
    expected = torch.from_numpy(images.double().numpy() @ LUMA / 255).float().repeat(2, 1, 1)
    for channel in views.unbind(1):
        torch.testing.assert_close(channel, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("turns", [-0.02, 0.02, 0.05])
def test_a_small_turn_in_yiq_changes_the_hue_as_hsv_does(turns):
    """The same direction, and within 60 % the same size, for colours of every hue.

    HSV's circle is a hexagon and YIQ's an ellipse, so their angles run at different speeds; but
    once around is once around, so the slownesses, YIQ's turn per turn of HSV, average to 1.
    """
    hues = np.arange(0, 1, 1 / 48)
    colours = [colorsys.hsv_to_rgb(h, 0.2, 0.6) for h in hues]
    image = torch.tensor(colours).mul(255).round().byte().view(1, 1, 48, 3)
    wanted = torch.tensor([[0.5], [0.5], [0.5], [1.0 if turns > 0 else 0.0]])
    numbers = draws(1, colour=wanted, jitter=torch.zeros(1), gray=torch.ones(1))
    views = replace(NOTHING, jitter=1, hue=abs(turns))
    turned = augment._recolour(augment._planes(image), numbers, views)[0, :, 0].T / 255
    before = np.array([colorsys.rgb_to_hsv(*c)[0] for c in (image[0, 0] / 255).tolist()])
    after = np.array([colorsys.rgb_to_hsv(*c)[0] for c in turned.tolist()])
    ratio = ((after - before + 0.5) % 1 - 0.5) / turns
    assert ratio.min() > 0.6
    assert ratio.max() < 1.6
    assert (1 / ratio).mean() == pytest.approx(1, abs=0.01)
    torch.testing.assert_close(
        turned.double().numpy() @ LUMA, image[0, 0].double().numpy() / 255 @ LUMA, atol=1e-5, rtol=0
    )


def test_values_are_clamped_before_they_are_normalised():
    images = random_images(50, 8, 8, 3)
    norm = Normalization(mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.5))
    views = both(images, replace(NOTHING, jitter=1, brightness=1, contrast=1), norm)
    for c in range(3):
        low, high = (0 - norm.mean[c]) / norm.std[c], (1 - norm.mean[c]) / norm.std[c]
        assert views[:, c].min().item() == pytest.approx(low, abs=1e-5)
        assert views[:, c].max().item() == pytest.approx(high, abs=1e-5)


def test_one_channel_knows_brightness_and_contrast_only():
    images = random_images(10, 6, 6, 1)
    views = replace(NOTHING, jitter=1, brightness=0.3, contrast=0.3)
    made = both(images, views, PLAIN_GRAY)
    b, c = 1 + 0.3 * (2 * draws(20).colour[:2] - 1)
    planes = augment.plain(images, PLAIN_GRAY).repeat(2, 1, 1, 1)
    for v in range(20):
        expected = b[v] * (c[v] * planes[v] + (1 - c[v]) * planes[v].mean())
        torch.testing.assert_close(made[v], expected.clamp(0, 1), atol=1e-5, rtol=0)
    with_colour = both(images, replace(views, saturation=1, hue=0.5, gray=1), PLAIN_GRAY)
    assert torch.equal(with_colour, made)


# --- blur and solarize --------------------------------------------------------------------------


def test_blur_weights_sum_to_one_and_no_sigma_is_no_blur():
    weights = augment._gaussian(torch.tensor([0.0, 0.1, 0.7, 2.0]), 32)
    torch.testing.assert_close(weights.sum(2), torch.ones(4, 32))
    assert torch.equal(weights[0], torch.eye(32))


def test_blur_is_a_gaussian_convolution():
    images = random_images(2, 24, 26, 3)
    views = both(images, replace(NOTHING, blur=1.0))
    sigmas = (0.1 + 1.9 * draws(4).sigma.double()).tolist()
    for v, sigma in enumerate(sigmas):
        image = images[v % 2, :, :, 0].double().numpy() / 255
        for y, x in [(0, 0), (12, 13), (3, 25), (23, 7)]:  # corners and edges too
            total = weight = 0.0
            for j in range(24):
                for i in range(26):
                    w = math.exp(-((j - y) ** 2 + (i - x) ** 2) / (2 * sigma**2))
                    total, weight = total + w * image[j, i], weight + w
            assert views[v, 0, y, x].item() == pytest.approx(total / weight, abs=1e-5)


def test_the_view_is_blurred_after_it_is_cropped_and_flipped():
    images = random_images(5, 20, 14, 3)
    cropped = both(images, replace(NOTHING, crop=(0.08, 1.0), flip=0.5))
    made = both(images, replace(NOTHING, crop=(0.08, 1.0), flip=0.5, blur=0.5))
    numbers = draws(10)
    assert 0 < (numbers.blur < 0.5).sum() < 10
    for v in range(10):
        expected = cropped[v]
        if numbers.blur[v] < 0.5:
            sigma = 0.1 + 1.9 * numbers.sigma[v : v + 1]
            rows, columns = augment._gaussian(sigma, 20)[0], augment._gaussian(sigma, 14)[0]
            expected = torch.einsum("yj,xi,cji->cyx", rows, columns, cropped[v])
        torch.testing.assert_close(made[v], expected, atol=1e-5, rtol=0)


def test_solarize_inverts_the_bright_half():
    image = torch.arange(256).byte().view(1, 16, 16, 1).expand(500, 16, 16, 1)
    views = both(image, replace(NOTHING, solarize=0.25), PLAIN_GRAY).mul(255).round().flatten(1)
    level = torch.arange(256.0)
    inverted = torch.where(level < 128, level, 255 - level)
    chosen = (views == inverted).all(1)
    assert ((views == level).all(1) | chosen).all()
    assert chosen.float().mean().item() == pytest.approx(0.25, abs=5 * 0.433 / math.sqrt(1000))


# --- the weak augmentation ----------------------------------------------------------------------


@pytest.mark.parametrize(("height", "width"), [(32, 32), (16, 24), (8, 8)])
def test_weak_is_reflection_padding_a_random_crop_and_a_flip(height, width):
    images = random_images(200, height, width, 3)
    made = augment.weak(images, PLAIN, generator(), flip=0.3)
    dy, dx = height // 8, width // 8
    padded = F.pad(augment.plain(images, PLAIN), (dx, dx, dy, dy), mode="reflect")
    found = []  # (top, left, flipped) of every image
    for v in range(200):
        crops = {
            (top, left): padded[v, :, top : top + height, left : left + width]
            for top in range(2 * dy + 1)
            for left in range(2 * dx + 1)
        }
        found += [(*at, False) for at, crop in crops.items() if torch.equal(made[v], crop)]
        found += [(*at, True) for at, crop in crops.items() if torch.equal(made[v], crop.flip(2))]
    assert len(found) == 200
    assert {top for top, _, _ in found} == set(range(2 * dy + 1))
    assert {left for _, left, _ in found} == set(range(2 * dx + 1))
    share = sum(flipped for _, _, flipped in found) / 200
    assert share == pytest.approx(0.3, abs=5 * math.sqrt(0.3 * 0.7 / 200))


# --- statistics and defaults --------------------------------------------------------------------


def test_statistics_are_the_mean_and_deviation_of_every_channel():
    images = random_images(50, 9, 11, 3).numpy() // np.array([1, 2, 3], dtype=np.uint8)
    norm = augment.statistics(images)
    values = images.astype(np.float64).reshape(-1, 3) / 255
    np.testing.assert_allclose(norm.mean, values.mean(0), rtol=1e-12)
    np.testing.assert_allclose(norm.std, values.std(0), rtol=1e-12)
    plain = augment.plain(torch.from_numpy(images), norm).double()
    torch.testing.assert_close(plain.mean((0, 2, 3)), torch.zeros(3).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        plain.var((0, 2, 3), correction=0), torch.ones(3).double(), atol=1e-5, rtol=0
    )


def test_statistics_of_a_large_pool_come_from_images_spread_over_all_of_it():
    images = np.zeros((25_000, 1, 1, 1), dtype=np.uint8)
    images[12_500:] = 200
    norm = augment.statistics(images)
    assert norm.mean[0] == pytest.approx(100 / 255, rel=1e-3)
    assert norm.std[0] == pytest.approx(100 / 255, rel=1e-3)


def test_a_constant_channel_is_only_centred():
    images = random_images(5, 4, 4, 3)
    images[..., 1] = 77
    norm = augment.statistics(images.numpy())
    assert augment.plain(images, norm)[:, 1].abs().max() < 1e-6


def test_colour_photographs_get_the_set_of_simclr():
    assert augment.resolve(ViewSettings(), "cifar10", channels=3, size=32) == Views(
        crop=(0.08, 1.0), flip=0.5, jitter=0.8, brightness=0.4, contrast=0.4, saturation=0.4,
        hue=0.1, gray=0.2, blur=0.0, solarize=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(("size", "blur"), [(64, 0.0), (65, 0.5), (96, 0.5)])
def test_only_large_photographs_are_blurred(size, blur):
    assert augment.resolve(ViewSettings(), "stl10", channels=3, size=size).blur == blur


@pytest.mark.parametrize("name", ["digits", "mnist", "fashion-mnist", "x-rays"])
def test_one_channel_has_no_colour_and_digits_are_not_mirrored(name):
    views = augment.resolve(ViewSettings(), name, channels=1, size=28)
    assert (views.saturation, views.hue, views.gray) == (0, 0, 0)
    assert min(views.jitter, views.brightness, views.contrast) > 0
    written = name in ("digits", "mnist")
    assert views.flip == (0 if written else 0.5)
    assert views.crop == ((0.4, 1) if written else (0.08, 1))


def test_what_the_user_says_counts():
    chosen = {
        "crop": (0.3, 0.9), "flip": 0.1, "jitter": 0.2, "brightness": 0.3, "contrast": 0.5,
        "saturation": 0.6, "hue": 0.05, "gray": 0.7, "blur": 0.9, "solarize": 0.15,
    }  # fmt: skip
    views = augment.resolve(ViewSettings(**chosen), "digits", channels=1, size=8)
    assert views == Views(**chosen)
    zeros = augment.resolve(ViewSettings(flip=0, jitter=0), "cifar10", channels=3, size=32)
    assert (zeros.flip, zeros.jitter) == (0, 0)


def test_a_crop_the_wrong_way_round_is_explained():
    with pytest.raises(UserError, match=r"views\.crop = \[0\.9, 0\.2\].*\[0\.2, 0\.9\]"):
        augment.resolve(ViewSettings(crop=(0.9, 0.2)), "cifar10", channels=3, size=32)


def test_extra_views_are_half_as_large_unless_said_and_never_larger():
    def resolved(**settings):
        return augment.resolve(ViewSettings(**settings), "cifar10", channels=3, size=32)

    assert (resolved(extra=4).extra, resolved(extra=4).extra_size) == (4, 16)
    assert resolved(extra=4, extra_size=24).extra_size == 24
    with pytest.raises(UserError, match=r"views\.extra_size = 40: the images have 32 pixels"):
        resolved(extra=4, extra_size=40)
    with pytest.raises(UserError, match=r"views\.extra_crop = \[0\.9, 0\.2\]"):
        resolved(extra=4, extra_crop=(0.9, 0.2))
