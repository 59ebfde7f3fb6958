import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from calibre.models.fixed import Components, Nothing, Pixels


def test_pixels_are_the_image_row_by_row():
    x = torch.randn(3, 2, 4, 4)
    assert torch.equal(Pixels(2, 4)(x), x.reshape(3, -1))


def test_larger_images_are_averaged_over_squares():
    x = torch.randn(2, 1, 8, 8)
    small = Pixels(1, 4)(x).view(2, 4, 4)
    for i in range(4):
        for j in range(4):
            block = x[:, 0, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
            assert torch.allclose(small[:, i, j], block.mean((1, 2)), atol=1e-6)


def test_components_are_those_of_scikit_learn_all_divided_by_one_number():
    torch.manual_seed(0)
    x = torch.randn(40, 1, 5, 5) * torch.linspace(0.1, 3, 25).view(1, 1, 5, 5)
    part = Components(1, 5, 6)
    part.fit(x)
    expected = PCA(6).fit_transform(x.reshape(40, -1).double().numpy())
    found = part(x).double().numpy()
    ratio = np.abs(found) / np.abs(expected)
    assert ratio == pytest.approx(np.full((40, 6), ratio[0, 0]), rel=1e-3)
    assert np.sqrt((found**2).mean()) == pytest.approx(1, rel=1e-3)


def test_the_same_images_give_the_same_bits_and_signs_are_fixed():
    x = torch.randn(20, 1, 4, 4)
    one, other = Components(1, 4, 5), Components(1, 4, 5)
    one.fit(x)
    other.fit(x)
    assert torch.equal(one.directions, other.directions)
    largest = one.directions.abs().argmax(0)
    assert (one.directions[largest, torch.arange(5)] > 0).all()


def test_directions_that_the_images_do_not_span_are_zero():
    part = Components(1, 4, 10)
    part.fit(torch.randn(3, 1, 4, 4))  # three images span two directions about their mean
    assert (part.directions.abs().sum(0) > 0).sum() == 2
    part.fit(torch.zeros(5, 1, 4, 4))  # blank images span none
    assert part.directions.abs().sum() == 0
    assert part(torch.randn(2, 1, 4, 4)).abs().sum() == 0


def test_nothing_is_the_same_for_every_image():
    assert torch.equal(Nothing()(torch.randn(4, 3, 8, 8)), torch.zeros(4, 1))
