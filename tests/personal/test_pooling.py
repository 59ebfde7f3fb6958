import pytest
from pydantic import ValidationError

from calibre.personal.pooling import PSEUDO, STRENGTHS, Curve, pooled

N = len(STRENGTHS)


def curve(best: int, images: int, slope: float = 1.0) -> Curve:
    """Losses that grow to both sides of a strength."""
    return Curve(losses=tuple(images * slope * abs(i - best) for i in range(N)), images=images)


def test_few_labels_follow_all_clients_and_many_their_own():
    common = pooled([{"encoder": curve(2, 1000)}]).common["encoder"]
    assert curve(7, 20).choose(common) == STRENGTHS[2]
    assert curve(7, int(PSEUDO) * 10).choose(common) == STRENGTHS[7]


def test_of_equals_the_stronger_penalty_is_taken():
    flat = Curve(losses=(1.0,) * N, images=10)
    assert flat.choose((0.5,) * N) == STRENGTHS[0]


def test_pooling_is_the_mean_over_all_held_out_labels():
    found = pooled([{"encoder": curve(1, 10)}, {"encoder": curve(3, 30)}])
    for i, mean in enumerate(found.common["encoder"]):
        assert mean == pytest.approx((10 * abs(i - 1) + 30 * abs(i - 3)) / 40)


def test_every_expert_has_a_curve_of_its_own():
    found = pooled([{"encoder": curve(1, 10), "pixels": curve(4, 10)}, {"encoder": curve(1, 10)}])
    assert min(range(N), key=lambda i: found.common["encoder"][i]) == 1
    assert min(range(N), key=lambda i: found.common["pixels"][i]) == 4


def test_nobody_knows_nothing():
    assert pooled([]) is None
    assert pooled([{"encoder": Curve(losses=(0.0,) * N, images=0)}]) is None


@pytest.mark.parametrize("losses", [(1.0,), (-1.0,) * N, (float("nan"),) * N, (float("inf"),) * N])
def test_what_a_client_tells_is_checked(losses):
    with pytest.raises(ValidationError):
        Curve(losses=losses, images=3)
