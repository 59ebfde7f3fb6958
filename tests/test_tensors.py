import pytest
import safetensors.torch as st
import torch
from torch import nn

from calibre.tensors import (
    WeightedMean,
    belongs,
    check_like,
    digest,
    grouped,
    prefixed,
    put,
    read_file,
    step_towards,
    take,
    to_file,
)


def network() -> nn.Module:
    module = nn.Module()
    module.encoder = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    module.encoder_old = nn.Linear(2, 2)
    return module


def test_parts_are_whole_names():
    assert belongs("encoder.0.weight", ["encoder"])
    assert not belongs("encoder_old.weight", ["encoder"])
    assert set(take(network(), ["encoder"])) == {
        "encoder.0.weight", "encoder.0.bias", "encoder.1.weight", "encoder.1.bias",
        "encoder.1.running_mean", "encoder.1.running_var", "encoder.1.num_batches_tracked",
    }  # fmt: skip


def test_take_copies_and_put_writes_in_place():
    module = network()
    weight = module.encoder[0].weight
    taken = take(module, ["encoder"])
    with torch.no_grad():
        weight.zero_()
    assert taken["encoder.0.weight"].abs().sum() > 0
    put(module, taken)
    assert module.encoder[0].weight is weight
    assert torch.equal(weight, taken["encoder.0.weight"])


def test_weighted_mean_is_the_convex_combination_buffers_included():
    mean = WeightedMean()
    mean.add({"w": torch.tensor([0.0, 4.0]), "n": torch.tensor(7)}, 1)
    mean.add({"w": torch.tensor([4.0, 0.0]), "n": torch.tensor(3)}, 3)
    result = mean.result()
    assert result["w"].tolist() == [3.0, 1.0]
    assert result["n"].item() == 7
    assert result["n"].dtype == torch.int64


def test_weighted_mean_sums_in_float64():
    # in float32 the small addend would vanish: 2^24 + 1 is not a float32
    mean = WeightedMean()
    for value in (2.0**24, 1.0, 1.0):
        mean.add({"w": torch.tensor([value])}, 1)
    assert mean.result()["w"].item() == torch.tensor((2**24 + 2) / 3, dtype=torch.float64).float()


def test_mean_of_equal_tensors_is_the_tensor_itself():
    tensor = torch.randn(50, generator=torch.Generator().manual_seed(0))
    mean = WeightedMean()
    for weight in (0.1, 0.7, 3.0):
        mean.add({"w": tensor}, weight)
    assert torch.equal(mean.result()["w"], tensor)


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.0])
def test_weights_that_are_none_are_refused(weight):
    with pytest.raises(ValueError, match="weight"):
        WeightedMean().add({"w": torch.ones(1)}, weight)


def test_step_towards():
    start, goal = {"w": torch.tensor([0.0]), "n": torch.tensor(1)}, {"w": torch.tensor([10.0])}
    goal["n"] = torch.tensor(5)
    assert step_towards(start, goal, 0.1)["w"].item() == pytest.approx(1.0)
    assert step_towards(start, goal, 0.1)["n"].item() == 5
    assert step_towards(start, goal, 1)["w"] is goal["w"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": torch.ones(3)}, r"'a' is torch.float32 \[3\], expected torch.float32 \[2\]"),
        ({"a": torch.ones(2).double()}, "float64"),
        ({"a": torch.tensor([1.0, float("nan")])}, "NaN"),
        ({"b": torch.ones(2)}, "'b' was not asked for"),
        ({"a": None}, "'a' is missing"),
    ],
)
def test_unlike_tensors_are_named(change, message):
    tensors = {k: v for k, v in {"a": torch.ones(2), **change}.items() if v is not None}
    with pytest.raises(ValueError, match=message):
        check_like(tensors, {"a": torch.zeros(2)})


def test_tensors_come_in_the_order_of_their_names_whatever_a_file_or_pipe_did():
    """Sums over them round by their order: it must be the same before and after a resume."""
    assert list(take(network())) == sorted(take(network()))
    shuffled = {f"model/{name}": torch.zeros(1) for name in ("b", "c", "a")}
    assert list(grouped(shuffled)["model"]) == ["a", "b", "c"]


def test_groups_survive_the_flat_table():
    groups = {"model": {"encoder.w": torch.ones(1)}, "control": {"encoder.w": torch.zeros(1)}}
    assert grouped(prefixed(groups)) == groups


FILED = {
    "b.weight": torch.tensor([[1 / 3, -0.0], [1e-45, 2.0]]),
    "a.count": torch.tensor([2**40, -1]),
    "c.none": torch.zeros(0, 3),
    "d.one": torch.tensor(0.1, dtype=torch.float64),
}


def test_a_file_comes_back_bit_for_bit_and_in_the_order_of_its_names(tmp_path):
    (tmp_path / "f").write_bytes(to_file(FILED))
    back = read_file(tmp_path / "f")
    assert list(back) == sorted(FILED)
    for name, tensor in FILED.items():
        assert (back[name].dtype, back[name].shape) == (tensor.dtype, tensor.shape)
        assert back[name].numpy().tobytes() == tensor.numpy().tobytes()
    assert to_file(back) == to_file(FILED)  # whatever order they were given in


def test_a_file_is_read_by_anybody_who_knows_safetensors(tmp_path):
    (tmp_path / "f").write_bytes(to_file(FILED))
    assert torch.equal(st.load_file(tmp_path / "f")["b.weight"], FILED["b.weight"])


def test_no_bit_can_change_unnoticed(tmp_path):
    """Each bit of the file in turn: of the checksum, the layout, the padding, the values."""
    content = to_file({"w": torch.tensor([1.5, -2.0])})
    for position in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[position // 8] ^= 1 << position % 8
        (tmp_path / "f").write_bytes(flipped)
        with pytest.raises(ValueError, match=r"."):
            read_file(tmp_path / "f")


@pytest.mark.parametrize(
    "content",
    [b"", to_file(FILED)[:-1], to_file(FILED) + b"x", st.save(FILED), b"\xff" * 100],
    ids=["empty", "cut", "longer", "no checksum", "noise"],
)
def test_what_is_no_whole_file_is_refused(tmp_path, content):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(ValueError, match=r"."):
        read_file(tmp_path / "f")


def test_a_file_that_is_not_there_is_told_from_a_damaged_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"."):
        read_file(tmp_path)  # a folder


@pytest.mark.parametrize(
    "other",
    [
        {"w": torch.tensor([1.0, 3.0])},
        {"v": torch.tensor([1.0, 2.0])},
        {"w": torch.tensor([[1.0, 2.0]])},
        {"w": torch.tensor([1.0, 2.0]).view(torch.int32)},
        {"w": torch.tensor([1.0]), "x": torch.tensor([2.0])},
    ],
    ids=["value", "name", "shape", "kind", "split"],
)
def test_a_digest_knows_names_kinds_shapes_and_values(other):
    assert digest({"w": torch.tensor([1.0, 2.0])}) != digest(other)
