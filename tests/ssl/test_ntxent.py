"""NT-Xent against its closed forms and a plain loop over pairs."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibre import rng
from calibre.ssl.ntxent import find_image, ntxent


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=rng.stream(seed, "test"))


def naive(a, b, temperature):
    """SimCLR's equation 1, one vector at a time, in double precision."""
    rows = torch.cat([a, b]).double().tolist()
    n = len(rows) // 2

    def cos(u, v):
        return sum(x * y for x, y in zip(u, v, strict=True)) / math.hypot(*u) / math.hypot(*v)

    total = 0.0
    for i, row in enumerate(rows):
        partner = i + n if i < n else i - n
        others = [math.exp(cos(row, rows[k]) / temperature) for k in range(2 * n) if k != i]
        total -= math.log(math.exp(cos(row, rows[partner]) / temperature) / sum(others))
    return total / (2 * n)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 7), st.integers(1, 9), st.sampled_from([0.1, 0.2, 0.5, 1.0]))
def test_equals_the_plain_loop(n, d, temperature):
    a, b = draw(n, d, seed=1), draw(n, d, seed=2)
    loss = ntxent(a, b, temperature)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(naive(a, b, temperature), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("n", [1, 2, 5, 64])
def test_constant_vectors_can_only_guess(n):
    same = torch.ones(n, 3)
    assert ntxent(same, same, 0.2).item() == pytest.approx(math.log(2 * n - 1), abs=1e-5)


@pytest.mark.parametrize("n", [2, 5, 16])
@pytest.mark.parametrize("temperature", [0.2, 0.5])
def test_orthonormal_pairs(n, temperature):
    basis = torch.eye(n)
    best = math.log(1 + (2 * n - 2) * math.exp(-1 / temperature))
    assert ntxent(basis, basis, temperature).item() == pytest.approx(best, abs=1e-5)


def test_only_directions_count():
    a, b = draw(6, 4, seed=1), draw(6, 4, seed=2)
    assert torch.equal(ntxent(4 * a, 0.5 * b, 0.2), ntxent(a, b, 0.2))


def test_neither_the_order_of_the_pairs_nor_of_the_views_counts():
    a, b = draw(6, 4, seed=1), draw(6, 4, seed=2)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    torch.testing.assert_close(ntxent(a[order], b[order], 0.2), ntxent(a, b, 0.2))
    torch.testing.assert_close(ntxent(b, a, 0.2), ntxent(a, b, 0.2))
    assert not torch.isclose(ntxent(a[order], b, 0.2), ntxent(a, b, 0.2))


def test_gradient_is_that_of_the_plain_loop():
    a, b = draw(4, 3, seed=1).requires_grad_(), draw(4, 3, seed=2)
    ntxent(a, b, 0.5).backward()
    step = torch.zeros(4, 3)
    step[1, 2] = 1e-4
    slope = (naive(a.detach() + step, b, 0.5) - naive(a.detach() - step, b, 0.5)) / 2e-4
    assert a.grad[1, 2].item() == pytest.approx(slope, abs=1e-4)


def test_a_zero_vector_is_harmless():
    a = draw(4, 3).index_fill_(0, torch.tensor([0]), 0.0).requires_grad_()
    loss = ntxent(a, draw(4, 3, seed=1), 0.2)
    loss.backward()
    assert loss.isfinite()
    assert a.grad.isfinite().all()


def test_full_precision_under_autocast():
    a, b = draw(8, 16, seed=1), draw(8, 16, seed=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = ntxent(a, b, 0.2)
    assert torch.equal(inside, ntxent(a, b, 0.2))
    assert ntxent(a.bfloat16(), b.bfloat16(), 0.2).dtype == torch.float32


@pytest.mark.parametrize("n", [1, 3])
def test_small_views_find_both_views_of_their_image_by_a_plain_loop(n):
    images, tau = 4, 0.3
    a, b, small = draw(images, 3, seed=1), draw(images, 3, seed=2), draw(n * images, 3, seed=3)

    def weight(u, v):
        return math.exp(float(u @ v / u.norm() / v.norm()) / tau)

    total = 0.0
    for view in range(n):
        for i in range(images):
            s = small[view * images + i]
            others = [k for k in range(images) if k != i]
            wrong = sum(weight(s, a[k]) + weight(s, b[k]) for k in others)
            for partner in (a[i], b[i]):
                right = weight(s, partner)
                total -= math.log(right / (right + wrong))
    assert find_image(small, a, b, tau).item() == pytest.approx(total / (2 * n * images), rel=1e-5)


def test_a_small_view_of_a_lone_image_is_always_found():
    small = draw(2, 3).requires_grad_()
    loss = find_image(small, draw(1, 3, seed=1), draw(1, 3, seed=2), 0.2)
    loss.backward()
    assert loss.item() == 0
    assert small.grad.isfinite().all()
