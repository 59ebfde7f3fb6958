import numpy as np
import pytest
import torch

from calibre.personal import refusals
from calibre.personal.judge import problems, statistics
from calibre.personal.outside import fit_prototypes
from calibre.personal.refusals import far_away, held_out_distances, limit_at, show_made_up, usual_of
from tests.personal.made_bundle import COLOURS, making, square


def outside_of(made, prototypes, usual):
    return refusals.outside_of(made, prototypes, usual, show_made_up(made, prototypes, usual))


def test_both_looks_count_towards_the_rate():
    """100 own images, 3 of them odd: at 5 % (4 by the conformal rank) 1 more is too far."""
    distances = torch.arange(100.0)
    distances[:3] = torch.inf
    limit = limit_at(distances, 0.05)
    assert int((distances > limit).sum()) == 4
    assert limit_at(distances, 0.01) == 99  # pixels alone refuse more than that


def test_held_out_images_are_judged_by_the_others_alone():
    made = making(per_class=12)
    held = made.held_out
    spoiled = made.images.clone()
    spoiled[5] = 255 - spoiled[5]  # one odd image among its own
    found = held_out_distances(making(per_class=12, images=spoiled))
    place = int((held.rows == 5).nonzero())
    assert found[place].isinf()
    for other in (held.rows != 5).nonzero()[:, 0].tolist():
        without = np.delete(spoiled.numpy(), held.rows[held.folds == held.folds[other]], axis=0)
        usual = statistics(without)
        image = spoiled[held.rows[other]].numpy()
        refused = bool(problems(image[None], usual)[0])
        assert found[other] == (torch.inf if refused else held.distances[other])


def test_made_up_images_are_counted_as_a_bundle_would_answer():
    made = making(per_class=30)
    usual, prototypes = usual_of(made), fit_prototypes(*made.labelled)
    found = outside_of(made, prototypes, usual)
    assert len(found.kinds) == 10
    by_name = {kind.name: kind for kind in found.kinds}
    assert by_name["blank"].accepted == 0
    assert by_name["own images as negatives"].accepted == 0
    for kind in found.kinds:
        assert kind.low <= kind.accepted / kind.images <= kind.high
    # with neither a limit nor statistics everything would get a class: nothing is measured
    assert outside_of(made, None, None).kinds == ()
    by_pixels = outside_of(made, None, usual)
    assert by_pixels.limit is None
    assert sum(kind.accepted for kind in by_pixels.kinds) >= sum(k.accepted for k in found.kinds)


def test_test_images_count_as_refused_for_their_pixels_too():
    made = making(per_class=30)
    prototypes, usual = fit_prototypes(*made.labelled), usual_of(made)
    usual_share = outside_of(made, prototypes, usual).tradeoff[0].own
    half = made.test_images.clone()
    half[::2] = 255 - half[::2]
    shown = making(per_class=30, test_images=half)
    assert outside_of(shown, prototypes, usual).tradeoff[0].own >= 0.5 > usual_share


def test_distances_stay_where_nothing_is_known_of_pixels():
    distances = torch.tensor([1.0, 2.0])
    images = torch.zeros(2, 8, 8, 3, dtype=torch.uint8)
    assert torch.equal(far_away(distances, images, None), distances)
    assert usual_of(making(per_class=2, test=None)) is None
    few = making(per_class=2, test=None)
    assert outside_of(few, fit_prototypes(*few.labelled), None).tradeoff != ()


@pytest.mark.parametrize("colour", COLOURS.values(), ids=[*COLOURS])
def test_own_images_pass(colour):
    usual = usual_of(making(per_class=30))
    fresh = np.stack([square(colour, 5000 + i) for i in range(50)])
    assert sum(map(bool, problems(fresh, usual))) <= 3
