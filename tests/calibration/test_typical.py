import math

import numpy as np
import pytest
import torch

from calibre import rng
from calibre.calibration import typical
from calibre.calibration.kmeans import kmeans
from calibre.calibration.typical import Suggestion, prepared, suggest, typicality


def generator():
    return rng.stream(0, "suggest")


def blobs(sizes, seed=0, d=6, spread=0.1):
    """Far apart, the first ones first."""
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(len(sizes), d)) * 10
    parts = [
        centre + spread * draw.normal(size=(n, d)) for centre, n in zip(centres, sizes, strict=True)
    ]
    owner = np.repeat(np.arange(len(sizes)), sizes)
    return torch.from_numpy(np.concatenate(parts)).float(), owner


def naive_mean_distance(points, i, members):
    others = sorted(math.dist(points[i].tolist(), points[j].tolist()) for j in members if j != i)[
        :20
    ]
    return sum(others) / len(others)


def test_each_blob_gives_its_most_typical_image_the_largest_first():
    encodings, owner = blobs([12, 40, 25])
    x = (encodings - encodings.mean(0)) / encodings.std(0, correction=0)
    x = x / x.norm(dim=1, keepdim=True)
    expected = []
    for blob in (1, 2, 0):
        members = np.flatnonzero(owner == blob).tolist()
        expected.append(min(members, key=lambda i: naive_mean_distance(x, i, members)))
    found = suggest(encodings, [], 3, generator())
    assert [row.index for row in found] == expected
    assert [row.size for row in found] == [40, 25, 12]
    assert [row.cluster for row in found] == [0, 1, 2]
    for row, blob in zip(found, (1, 2, 0), strict=True):
        members = np.flatnonzero(owner == blob).tolist()
        expected_typicality = 1 - naive_mean_distance(x, row.index, members) / 2
        assert row.typicality == pytest.approx(expected_typicality, abs=1e-3)


def test_a_blob_with_a_label_is_passed_over():
    encodings, owner = blobs([30, 20, 10])
    labelled = [int(np.flatnonzero(owner == 0)[3])]
    found = suggest(encodings, labelled, 2, generator())
    assert [owner[row.index] for row in found] == [1, 2]


def test_no_suggested_cluster_holds_a_label():
    """By the same clusters, found here anew: labels and suggestions never share one."""
    encodings = torch.randn(200, 8, generator=rng.stream(1, "points"))
    labelled = [3, 50, 51, 120]
    found = suggest(encodings, labelled, 10, generator())
    groups = kmeans(prepared(encodings), 14, generator()).labels
    taken = [int(groups[row.index]) for row in found]
    assert len(set(taken)) == 10
    assert not {int(groups[i]) for i in labelled} & set(taken)


def test_the_same_every_time():
    encodings = torch.randn(300, 16, generator=rng.stream(2, "points"))
    assert suggest(encodings, [5], 20, generator()) == suggest(encodings, [5], 20, generator())


def test_scale_and_place_of_a_feature_do_not_matter():
    encodings, _ = blobs([12, 40, 25])
    moved = encodings * torch.tensor([1, 10, 0.1, 5, 1, 2.0]) + 7
    first, second = (suggest(x, [], 3, generator()) for x in (encodings, moved))
    assert [row.index for row in first] == [row.index for row in second]


@pytest.mark.parametrize("count", [0, 5, 50])
def test_fewer_images_than_asked_for_gives_them_all(count):
    encodings = torch.randn(5, 4, generator=rng.stream(3, "points"))
    found = suggest(encodings, [], count, generator())
    assert sorted(row.index for row in found) == list(range(min(count, 5)))


def test_labelled_images_are_never_suggested_and_all_others_can_be():
    encodings = torch.randn(6, 4, generator=rng.stream(3, "points"))
    found = suggest(encodings, [0, 4], 50, generator())
    assert sorted(row.index for row in found) == [1, 2, 3, 5]


def test_nothing_is_left_where_everything_is_labelled():
    assert suggest(torch.randn(4, 3, generator=generator()), range(4), 2, generator()) == []
    assert suggest(torch.zeros(0, 3), [], 2, generator()) == []


def test_one_image_alone_has_no_neighbours():
    (only,) = suggest(torch.ones(1, 3), [], 5, generator())
    assert only == Suggestion(0, 0, 1, 0.0)


def test_copies_are_one_cluster():
    copies = torch.randn(2, 5, generator=generator()).repeat_interleave(10, 0)
    found = suggest(copies, [], 6, generator())
    assert len(found) == 2
    assert [row.size for row in found] == [10, 10]
    assert all(row.typicality == pytest.approx(1, abs=1e-3) for row in found)
    assert suggest(torch.ones(7, 3), [2], 3, generator()) == []  # a copy of it has a label


def test_beyond_the_most_clusters_those_with_the_fewest_labels_come_first(monkeypatch):
    monkeypatch.setattr(typical, "MOST_CLUSTERS", 3)
    encodings, owner = blobs([9, 7, 5])
    labelled = [0, 1, 2, 9, 16]  # three of the first, one of each other
    found = suggest(encodings, labelled, 2, generator())
    assert [owner[row.index] for row in found] == [1, 2]
    assert not {row.index for row in found} & set(labelled)


def test_chunks_change_nothing(monkeypatch):
    x = prepared(torch.randn(50, 4, generator=generator()))
    whole = typicality(x)
    monkeypatch.setattr(typical, "CHUNK", 7)
    assert torch.allclose(typicality(x), whole, atol=1e-5)
