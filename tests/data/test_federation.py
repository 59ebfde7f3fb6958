import json
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibre.data.federation import build, load
from calibre.data.made_up import CLIENTS
from calibre.data.pool import UNLABELLED, Pool
from calibre.errors import UserError
from calibre.sections import FederationSettings

quick = settings(max_examples=60, deadline=None)


def make_pool(train, test, unlabelled=0, seed=0) -> Pool:
    """So many images per class to train on and to test on."""
    rng = np.random.default_rng(seed)
    parts = [rng.permutation(np.repeat(np.arange(len(sizes)), sizes)) for sizes in (train, test)]
    labels = np.concatenate([*parts, np.full(unlabelled, UNLABELLED)])
    first, second = sum(train), sum(train) + sum(test)
    return Pool(
        name="toy",
        images=np.zeros((len(labels), 1, 1, 1), np.uint8),
        labels=labels,
        classes=tuple(f"class {k}" for k in range(len(train))),
        train=range(first),
        test=range(first, second),
        unlabelled=range(second, len(labels)),
        fingerprint="f00d",
    )


def owned(pool: Pool, owners) -> Pool:
    names = tuple(f"owner {k}" for k in range(max(owners) + 1))
    return replace(pool, owners=np.array(owners, np.int32), owner_names=names)


DIGITS = make_pool([144] * 10, [36] * 10)


def histogram(pool: Pool, indices: np.ndarray) -> np.ndarray:
    return np.bincount(pool.labels[indices], minlength=len(pool.classes))


def held(federation, client: int) -> np.ndarray:
    """All images that a client may train on."""
    one = federation.client(client)
    return np.concatenate([one.labelled, one.unlabelled])


@st.composite
def pools(draw) -> Pool:
    classes = draw(st.integers(2, 6))
    sizes = st.lists(st.integers(10, 60), min_size=classes, max_size=classes)
    return make_pool(draw(sizes), draw(sizes), draw(st.integers(0, 50)), draw(st.integers(0, 9)))


requests = st.builds(
    FederationSettings,
    scheme=st.sampled_from(["iid", "quantity", "dirichlet"]),
    clients=st.none() | st.integers(1, 12),
    novel=st.integers(0, 4),
    samples=st.none() | st.integers(1, 30),
    test_samples=st.none() | st.integers(1, 10),
    classes=st.integers(1, 4),
    alpha=st.floats(0.01, 10),
    overlap=st.sampled_from(["disjoint", "independent"]),
    labels=st.none() | st.integers(1, 8),
    unlabelled=st.none() | st.integers(0, 4),
)


@given(pools(), requests, st.integers(0, 99))
@quick
def test_every_federation_that_is_built_is_sound(pool, request, seed):
    try:
        federation = build(pool, request, seed)
    except UserError:
        return
    training = request.clients or 16
    assert list(federation.train_ids) == list(range(training))
    assert list(federation.novel_ids) == list(range(training, len(federation)))
    assert len(federation) == training + request.novel
    assert federation.classes == pool.classes

    seen_train: list[int] = []
    seen_test: list[int] = []
    seen_foreign: list[int] = []
    for number in range(len(federation)):
        client = federation.client(number)
        assert (client.id, client.novel) == (number, number >= training)
        own = [i for i in held(federation, number) if i in pool.train]
        foreign = [i for i in held(federation, number) if i not in pool.train]
        assert len(own) >= 2
        assert len(client.test) >= 1
        assert set(client.labelled) <= set(own)
        assert all(i in pool.test for i in client.test)
        assert all(i in pool.unlabelled for i in foreign)
        assert len(set(own)) == len(own)
        assert len(set(client.test.tolist())) == len(client.test)
        seen_train += own
        seen_test += client.test.tolist()
        seen_foreign += foreign

        train, test = histogram(pool, own), histogram(pool, client.test)
        assert (federation.counts()[number] == train).all()
        assert (federation.counts("test")[number] == test).all()
        away = 0.5 * np.abs(train / train.sum() - test / test.sum()).sum()
        assert away <= len(pool.classes) / (2 * len(client.test)) + 1e-12
        assert (train[test > 0] > 0).all()
        if request.samples:
            assert len(own) == request.samples
        if request.test_samples:
            assert len(client.test) == request.test_samples
        if request.scheme == "quantity":
            assert np.count_nonzero(train) == request.classes
        labels = histogram(pool, client.labelled)
        assert (labels == (train.clip(max=request.labels) if request.labels else train)).all()
        if client.novel:
            assert not foreign
        elif request.unlabelled is not None:
            assert len(foreign) == request.unlabelled

    assert len(set(seen_foreign)) == len(seen_foreign)
    if request.unlabelled is None:
        assert len(seen_foreign) == len(pool.unlabelled)
    if request.overlap == "disjoint":
        assert len(set(seen_train)) == len(seen_train)
        if request.scheme == "quantity":
            assert len(set(seen_test)) == len(seen_test)
            if not request.samples and len(federation) * request.classes >= len(pool.classes):
                assert len(seen_train) == len(pool.train)
        elif not request.samples:
            assert len(pool.train) - len(seen_train) < len(federation)


@pytest.mark.parametrize("scheme", ["iid", "quantity", "dirichlet"])
@pytest.mark.parametrize("overlap", ["disjoint", "independent"])
def test_the_seed_decides(scheme, overlap):
    request = FederationSettings(scheme=scheme, overlap=overlap, labels=3)
    one, same, other = (build(DIGITS, request, seed) for seed in (0, 0, 1))
    assert one.hash == same.hash
    assert one.hash != other.hash
    assert not np.array_equal(one.labelled.indices, other.labelled.indices)
    assert not np.array_equal(one.test.indices, other.test.indices)


def test_the_hash_covers_the_pool_and_every_array():
    federation = build(DIGITS, FederationSettings(), 0)
    assert replace(federation, fingerprint="cafe").hash != federation.hash
    assert replace(federation, training=15).hash != federation.hash
    assert replace(federation, test=federation.labelled).hash != federation.hash
    assert replace(federation, classes=("x", *federation.classes[1:])).hash != federation.hash


def test_an_independent_client_does_not_depend_on_how_many_there_are():
    make = lambda clients: build(
        DIGITS, FederationSettings(clients=clients, samples=50, overlap="independent"), 0
    )
    few, many = make(3), make(30)
    for client in range(3):
        assert (few.client(client).labelled == many.client(client).labelled).all()


def test_independent_clients_do_not_nest_their_picks():
    federation = build(
        make_pool([1000], [100]),
        FederationSettings(scheme="iid", clients=40, novel=0, samples=100, overlap="independent"),
        0,
    )
    common = [
        len(np.intersect1d(federation.client(a).labelled, federation.client(b).labelled))
        for a in range(40)
        for b in range(a)
    ]
    assert np.mean(common) == pytest.approx(10, abs=0.5)  # 100 * 100 / 1000


def test_the_paper_s_quantity_federation():
    pool = make_pool([5000] * 10, [1000] * 10)
    federation = build(pool, FederationSettings(scheme="quantity", clients=100, novel=0), 0)
    assert set(np.unique(federation.counts())) == {0, 250}
    assert set(np.unique(federation.counts("test"))) == {0, 50}
    assert ((federation.counts() > 0).sum(1) == 2).all()
    assert len(np.unique(federation.labelled.indices)) == 50_000
    assert len(np.unique(federation.test.indices)) == 10_000


def test_too_many_clients_for_the_test_images_are_told_how_many_would_do():
    make = lambda clients: build(
        DIGITS, FederationSettings(scheme="quantity", clients=clients, novel=0), 0
    )
    with pytest.raises(UserError, match=r"at most 180 clients \(novel ones included\)"):
        make(400)
    assert (make(180).test.sizes >= 1).all()


def test_clients_are_views_of_flat_arrays():
    federation = build(DIGITS, FederationSettings(labels=2), 0)
    client = federation.client(20)
    assert client.name == "novel-20"
    assert federation.client(3).name == "client-3"
    for part in ("labelled", "unlabelled", "test"):
        assert getattr(client, part).dtype == np.int32
        assert np.shares_memory(getattr(client, part), getattr(federation, part).indices)


def test_ten_thousand_clients_take_seconds_and_little_memory():
    request = FederationSettings(
        clients=9_000, novel=1_000, alpha=0.05, samples=20, test_samples=10, overlap="independent"
    )
    pool = make_pool([5000] * 10, [1000] * 10)
    start = time.process_time()
    federation = build(pool, request, 0)
    assert time.process_time() - start < 10  # one or two on a quiet machine
    arrays = federation._arrays().values()
    assert sum(array.nbytes for array in arrays) < 4 * (20 + 10) * 10_000 + 10_000 * (3 + 20) * 9


def test_every_client_keeps_labels_of_its_own_choice():
    pool = make_pool([200], [20])
    federation = build(pool, FederationSettings(scheme="iid", clients=5, novel=0, labels=4), 0)
    places = {
        tuple(np.searchsorted(np.sort(held(federation, c)), federation.client(c).labelled))
        for c in range(5)
    }
    assert len(places) == 5


# Unlabelled images --------------------------------------------------------------------------------


def test_unlabelled_images_go_evenly_to_the_clients_that_train():
    federation = build(make_pool([90] * 3, [30] * 3, 103), FederationSettings(clients=10), 0)
    sizes = [len(federation.client(c).unlabelled) for c in range(len(federation))]
    assert sorted(sizes[:10]) == [10] * 7 + [11] * 3
    assert sizes[10:] == [0] * 8


def test_too_many_unlabelled_images():
    with pytest.raises(UserError, match=r"federation.unlabelled = 11: .* at most 10 per client"):
        build(make_pool([90] * 3, [30] * 3, 103), FederationSettings(clients=10, unlabelled=11), 0)


# Owners -------------------------------------------------------------------------------------------

OWNED = owned(make_pool([60, 60], [30, 30]), np.arange(180) % 12)


def test_natural_clients_are_the_owners():
    federation = build(OWNED, FederationSettings(scheme="natural", novel=4), 0)
    assert (len(federation.train_ids), len(federation.novel_ids)) == (8, 4)
    names = [federation.client(c).name for c in range(12)]
    assert sorted(names) == sorted(OWNED.owner_names)
    assert names != list(OWNED.owner_names)  # which are novel is drawn
    for number in range(12):
        client = federation.client(number)
        owner = OWNED.owner_names.index(client.name)
        own = np.flatnonzero(OWNED.owners == owner)
        assert (client.labelled == own[own < 120]).all()
        assert (client.test == own[own >= 120]).all()


def test_owners_keep_their_images_unless_another_scheme_is_named():
    federation = build(OWNED, FederationSettings(novel=4), 0)
    assert federation.hash == build(OWNED, FederationSettings(scheme="natural", novel=4), 0).hash
    assert federation.datasheet["settings"]["scheme"] == "natural"
    dealt = build(OWNED, FederationSettings(scheme="iid", clients=3, novel=0), 0)
    assert dealt.names == ()
    assert "toy says whose the images are, but" in dealt.datasheet["notes"][0]
    assert not build(DIGITS, FederationSettings(scheme="iid"), 0).datasheet["notes"]


def test_clients_are_made_up_where_nobody_owns_an_image():
    federation = build(DIGITS, FederationSettings(), 0)
    assert federation.hash == build(DIGITS, FederationSettings(scheme="dirichlet"), 0).hash
    assert federation.datasheet["settings"]["scheme"] == "dirichlet"


def test_natural_clients_without_test_images_hold_some_out():
    pool = make_pool([60, 60], [3, 3])
    pool = owned(pool, [*(np.arange(120) % 6), *[0] * 6])  # only owner 0 has test images
    federation = build(pool, FederationSettings(scheme="natural", novel=2, labels=3), 0)
    again = build(pool, FederationSettings(scheme="natural", novel=2, labels=3), 0)
    assert federation.hash == again.hash
    for number in range(6):
        client, train = federation.client(number), held(federation, number)
        assert not set(train) & set(client.test)
        if client.name == "owner 0":
            assert (client.test == np.arange(120, 126)).all()
            continue
        assert len(client.test) == 4  # a fifth of 20
        everything = histogram(pool, np.concatenate([train, client.test]))
        away = histogram(pool, client.test) - everything / 5
        assert np.abs(away).max() < 1
        assert (pool.owners[client.test] == pool.owner_names.index(client.name)).all()


def test_validation_images_are_training_images_set_aside():
    request = {"scheme": "quantity", "clients": 8, "novel": 4, "samples": 40}
    tested = build(DIGITS, FederationSettings(**request), 3)
    validated = build(DIGITS, FederationSettings(**request, score_on="validation"), 3)
    assert tested.hash != validated.hash
    for number in range(12):
        before, after = tested.client(number), validated.client(number)
        assert set(before.labelled) == set(after.labelled) | set(after.test)  # no test image
        assert not set(after.labelled) & set(after.test)
        assert (histogram(DIGITS, before.labelled) == 5 * histogram(DIGITS, after.test)).all()


def test_a_client_that_can_hold_nothing_out_is_named():
    request = FederationSettings(clients=2, novel=0, samples=2, score_on="validation", alpha=1000.0)
    with pytest.raises(UserError, match=r"client \d has 2 training images, no two of one class"):
        build(DIGITS, request, 0)


@pytest.mark.parametrize(
    ("pool", "request_", "message"),
    [
        (DIGITS, {}, "toy does not say who owns an image; give data.client_column"),
        (OWNED, {"clients": 9, "novel": 4}, "there are 12 owners in toy"),
        (OWNED, {"novel": 12}, "set novel below 12"),
        (OWNED, {"samples": 5}, "leave them out"),
        (
            owned(make_pool([2, 2], [0, 0]), [0, 0, 1, 2]),
            {"novel": 0},
            "no owner in toy has images enough: 'owner 0' has 2 labelled images to train on and 0",
        ),
        (
            owned(make_pool([1, 1, 1, 9], [0, 0, 0, 1]), [0] * 13),
            {"novel": 0},
            None,
        ),
    ],
)
def test_natural_requests(pool, request_, message):
    make = lambda: build(pool, FederationSettings(scheme="natural", **request_), 0)
    if message is None:
        assert len(make()) == 1
        return
    with pytest.raises(UserError, match=message):
        make()


def test_owners_with_too_few_images_are_left_out_and_named():
    pool = owned(make_pool([9, 9], [2, 2]), [0] * 8 + [1] * 9 + [2] + [0, 1, 1, 2])
    federation = build(pool, FederationSettings(scheme="natural", novel=0), 0)
    assert federation.names == ("owner 0", "owner 1")
    assert list(federation.datasheet["left_out"]) == ["owner 2"]
    assert "clients left out: 'owner 2'" in federation.datasheet["notes"][0]
    with pytest.raises(UserError, match="there are 2 owners in toy with images enough"):
        build(pool, FederationSettings(scheme="natural", novel=2), 0)


def test_clients_of_one_class_are_named():
    pool = make_pool([4, 8], [2, 2])
    federation = build(
        owned(pool, pool.labels.tolist()), FederationSettings(scheme="natural", novel=0), 0
    )
    (note,) = federation.datasheet["notes"]
    assert "one class only: 'owner 0', 'owner 1'; they score 100 %" in note


def test_owners_keep_their_own_unlabelled_images():
    pool = owned(make_pool([20, 20], [5, 5], 30), [*(np.arange(50) % 2), *[0] * 20, *[1] * 10])
    federation = build(pool, FederationSettings(scheme="natural", novel=1), 0)
    assert (federation.unlabelled.sizes == [[20, 10], [10, 20]]).all(1).any()
    some = build(pool, FederationSettings(scheme="natural", novel=1, unlabelled=12), 0)
    assert sorted(some.unlabelled.sizes) == [10, 12]
    for one in (federation, some):
        for number in range(2):
            client = one.client(number)
            owner = pool.owner_names.index(client.name)
            assert (pool.owners[client.unlabelled] == owner).all()
            assert (client.unlabelled >= 50).all()


# Saved --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pool", "request_"),
    [(DIGITS, FederationSettings(labels=2)), (OWNED, FederationSettings(scheme="natural"))],
)
def test_saved_and_loaded(tmp_path, pool, request_):
    federation = build(pool, request_, 0)
    federation.save(tmp_path / "run")
    loaded = load(tmp_path / "run")
    assert loaded.hash == federation.hash
    assert loaded.datasheet == federation.datasheet
    assert (loaded.counts() == federation.counts()).all()
    for number in range(len(federation)):
        one, two = federation.client(number), loaded.client(number)
        assert (one.id, one.name, one.novel) == (two.id, two.name, two.novel)
        for part in ("labelled", "unlabelled", "test"):
            assert np.array_equal(getattr(one, part), getattr(two, part))
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "federation.json",
        "federation.safetensors",
    ]
    once = (tmp_path / "run" / "federation.safetensors").read_bytes()
    federation.save(tmp_path / "run")
    assert (tmp_path / "run" / "federation.safetensors").read_bytes() == once


def test_the_datasheet_speaks(tmp_path):
    build(make_pool([100] * 4, [50] * 4, 30), FederationSettings(clients=7, labels=2), 5).save(
        tmp_path
    )
    sheet = json.loads((tmp_path / "federation.json").read_text())
    assert sheet["description"].startswith("15 clients of toy: 7 train, 8 are novel")
    assert "Dir(0.3)" in sheet["description"]
    assert sheet["unused"]["train"] == 400 - 15 * (400 // 15)
    assert sheet["unused"]["unlabelled"] == 0
    assert sheet["shared"] == 0
    assert sheet["per_client"]["labelled"]["max"] <= 8
    assert sheet["seed"] == 5
    assert len(sheet["hash"]) == 16


def test_any_damage_is_noticed(tmp_path):
    federation = build(make_pool([20, 20], [9, 9]), FederationSettings(clients=3, novel=1), 0)
    federation.save(tmp_path)
    path = tmp_path / "federation.safetensors"
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.choice(len(whole), 150, replace=False):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"federation\.safetensors is damaged"):
            load(tmp_path)
    path.write_bytes(whole.replace(b"I32", b"F32"))  # the same bytes, read as something else
    with pytest.raises(UserError, match=r"federation\.safetensors is damaged"):
        load(tmp_path)
    for length in (0, 7, 100, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"federation\.safetensors is damaged"):
            load(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match=r"federation\.safetensors is missing"):
        load(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "[" * 99_999, "\ud800".encode("utf-8", "surrogatepass")]
)
def test_a_damaged_datasheet_is_named(tmp_path, text):
    build(DIGITS, FederationSettings(), 0).save(tmp_path)
    (tmp_path / "federation.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=r"federation\.json is damaged"):
        load(tmp_path)


def test_the_defaults_are_sixteen_clients_and_eight_novel_ones():
    federation = build(DIGITS, FederationSettings(), 0)
    assert (CLIENTS, len(federation)) == (16, 24)
    assert (federation.counts().sum(1) == 1440 // 24).all()


@pytest.mark.parametrize("scheme", ["iid", "quantity", "dirichlet"])
def test_novel_classes_are_held_by_novel_clients_alone(scheme):
    unseen = ("class 3", "class 5", "class 8")
    request = FederationSettings(
        scheme=scheme, clients=6, novel=4, samples=40, test_samples=10, novel_classes=unseen
    )
    federation = build(DIGITS, request, 0)
    for part in ("train", "test"):
        counts = federation.counts(part)
        assert counts[:6, [3, 5, 8]].sum() == 0
        assert counts[6:].sum() == counts[6:, [3, 5, 8]].sum() > 0
    for client in range(10):  # the tables tell of the images that clients really hold
        images = held(federation, client)
        assert histogram(DIGITS, images).tolist() == federation.counts()[client].tolist()
        assert set(federation.client(client).test) <= set(DIGITS.test)
    every = np.concatenate([held(federation, client) for client in range(10)])
    assert len(np.unique(every)) == len(every)
    assert build(DIGITS, request, 1).hash != federation.hash


def test_the_groups_of_novel_classes_draw_apart():
    """Who trains does not change with how many clients come later."""
    few, many = (
        build(
            DIGITS,
            FederationSettings(
                scheme="dirichlet",
                clients=5,
                novel=n,
                samples=30,
                novel_classes=("class 1", "class 2"),
            ),
            0,
        )
        for n in (1, 4)
    )
    for client in range(5):
        assert held(few, client).tolist() == held(many, client).tolist()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"novel_classes": ["class 10"], "novel": 2}, "no class 'class 10': did you mean"),
        ({"novel_classes": [f"class {k}" for k in range(9)], "novel": 2}, "names 9 of 10 classes"),
        ({"novel_classes": ["class 1"], "novel": 0}, "held by novel clients alone"),
        ({"novel_classes": ["class 1"], "scheme": "natural"}, "where the data has owners"),
    ],
)
def test_novel_classes_that_cannot_be(request_, message):
    with pytest.raises((UserError, ValueError), match=message):
        build(DIGITS, FederationSettings(clients=3, **request_), 0)
