"""One block for many tensors: whole, small, and refused when it is anything else."""

import numpy as np
import pytest
import torch
from calibre.deploy.codec import pack, restored, room_for, unpack
from flwr.app import Array

from calibre.models.resnet import resnet18
from calibre.tensors import take

TENSORS = {
    "b/float": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),
    "a/int": torch.tensor([2**40, -1]),
    "c/empty": torch.zeros(0, 5),
    "d/scalar": torch.tensor(1.5),
    "e/double": torch.tensor([1 / 3], dtype=torch.float64),
}


def test_what_is_packed_comes_back_bit_for_bit_and_in_order():
    back = unpack(pack(TENSORS), room_for(TENSORS))
    assert list(back) == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor)


def test_a_whole_resnet_costs_less_than_two_percent_more_than_its_tensors():
    tensors = take(resnet18(channels=3, width=64, stem="cifar"))
    own = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    assert own < len(pack(tensors).data) < 1.02 * own
    half = len(pack(tensors, half=True).data)
    assert half < 0.51 * own
    assert len(pack(tensors).data) <= room_for(tensors)


def test_half_precision_rounds_as_float16_does_and_leaves_integers_alone():
    back = restored(unpack(pack(TENSORS, half=True), room_for(TENSORS)), TENSORS)
    for name, tensor in TENSORS.items():
        expected = tensor.numpy()
        if tensor.is_floating_point():
            expected = expected.astype(np.float16).astype(expected.dtype)
        assert back[name].dtype == tensor.dtype
        assert np.array_equal(back[name].numpy(), expected)


def test_a_value_beyond_half_precision_is_named():
    with pytest.raises(ValueError, match="'big' exceeds float16"):
        pack({"big": torch.tensor([1e6])}, half=True)


def block(data, kind="safetensors"):
    return Array("uint8", (len(data),), kind, data)


@pytest.mark.parametrize(
    ("array", "cause"),
    [
        (block(b"\x80\x04K\x01.", "pickle"), "written as 'pickle'"),
        (block(b""), "cannot be read"),
        (block(pack(TENSORS).data[:-5]), "cannot be read"),
        (block(b"\xff" * 64), "cannot be read"),
        (block((2**62).to_bytes(8, "little") + b"{}"), "cannot be read"),
        (block(bytes(room_for(TENSORS) + 1)), r"take [\d,]+ bytes, at most"),
    ],
    ids=["pickle", "nothing", "cut", "noise", "endless", "large"],
)
def test_what_is_no_block_is_refused(array, cause):
    with pytest.raises(ValueError, match=cause):
        unpack(array, room_for(TENSORS))
