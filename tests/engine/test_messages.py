"""One text and one block: they come back as they went, and anything else is refused."""

import json
import math

import numpy as np
import pytest
import torch

from calibre.engine import messages
from calibre.engine.messages import (
    DEEPEST,
    LONGEST_TEXT,
    Failed,
    Job,
    Personalised,
    Score,
    Updated,
    pack,
    read,
    restored,
    room_for,
    unpack,
    write,
)
from calibre.methods.method import Update
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
    assert own < len(pack(tensors)) < 1.02 * own
    half = len(pack(tensors, half=True))
    assert half < 0.51 * own
    assert len(pack(tensors)) <= room_for(tensors)


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


@pytest.mark.parametrize(
    ("block", "cause"),
    [
        (b"", "cannot be read"),
        (pack(TENSORS)[:-5], "cannot be read"),
        (b"\xff" * 64, "cannot be read"),
        ((2**62).to_bytes(8, "little") + b"{}", "cannot be read"),
        (bytes(room_for(TENSORS) + 1), r"take [\d,]+ bytes, at most"),
    ],
    ids=["nothing", "cut", "noise", "endless", "large"],
)
def test_what_is_no_block_is_refused(block, cause):
    with pytest.raises(ValueError, match=cause):
        unpack(block, room_for(TENSORS))


RECORDS = [
    Job(kind="update", clients=(3,), kept=(2,)),
    Updated(samples=5, numbers={"loss": 1.5}, keeps=True, report={"loss": 0.1}, began=0, seconds=1),
    Personalised(scores={7: Score(correct=1, images=4)}, missing={8: "away"}),
    Failed(error="no space", detail="Traceback ..."),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_went(record):
    kinds = [type(one) for one in RECORDS]
    assert read(write(record), *kinds) == record


def test_an_update_comes_back_with_its_numbers_and_without_what_the_client_keeps():
    """NaN stands for a number that a client does not know: JSON has no word for it."""
    model = {"model": {"w": torch.ones(2)}}
    known, unknown = {"loss": 0.25}, {"loss": math.nan}
    for numbers in (known, unknown):
        sent = Update(4, 9, model, numbers, personal={"secret": torch.ones(1)}, report={"x": 2.0})
        text = write(Updated.of(sent, began=1.0, seconds=2.0))
        assert "secret" not in text
        json.loads(text, parse_constant=pytest.fail)
        told = read(text, Updated)
        assert told.keeps
        back = told.update(4, {"model/w": torch.ones(2)})
        assert (back.client, back.samples, back.report) == (4, 9, {"x": 2.0})
        assert back.personal is None
        assert torch.equal(back.shared["model"]["w"], torch.ones(2))
        np.testing.assert_array_equal(back.numbers["loss"], numbers["loss"])


def said(**fields):
    """The text of an update with other words."""
    return json.dumps(json.loads(write(RECORDS[1])) | fields)


def nested(depth):
    return '{"is": "Failed", "error": ' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (None, "it has no text"),
        (b"{}", "it has no text"),
        ("x" * (LONGEST_TEXT + 1), "too long"),
        (nested(DEEPEST + 1), "nested too deeply"),
        (nested(100_000), "nested too deeply"),
        ("", "Expecting value"),
        ("[]", "is not a table"),
        ("3", "is not a table"),
        ("{}", "is no Updated or Failed"),
        (write(RECORDS[0]), "is no Updated or Failed"),
        (said(**{"is": ["Updated"]}), "is no Updated or Failed"),
        (said(surprise=1), "surprise: Extra inputs are not permitted"),
        (said(samples=None), "samples: "),
        (said(samples=-1), "samples: "),
        (said(samples=1.5), "samples: "),
        (said(seconds=math.inf), "seconds: "),
        (said(seconds=10**400), "seconds: "),
        (said(numbers={"loss": math.nan}), "numbers.loss: "),
        (said(report={"": 1.0}), "report"),
        (said(report={"x" * 201: 1.0}), "report"),
        (said(samples=0).replace("0", "1" * 5000, 1), "digits"),
        (json.dumps({"is": "Failed", "error": "x" * 20_001}), "error: "),
        ('{"is": "Failed"}', "error: Field required"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_text_that_is_no_such_record_is_refused(text, cause):
    with pytest.raises(ValueError, match=cause) as refused:
        read(text, Updated, Failed)
    assert len(str(refused.value)) < 500  # whoever sends nonsense does not fill our log


def test_a_text_as_deep_and_as_long_as_may_be_is_looked_at():
    with pytest.raises(ValueError, match="error: "):  # read, and found to be no text
        read(nested(DEEPEST), Failed)
    with pytest.raises(ValueError, match="error: "):
        read(json.dumps({"is": "Failed", "error": "x" * (LONGEST_TEXT - 100)}), Failed)


def test_nobody_counts_brackets_of_a_text_that_is_too_long(monkeypatch):
    monkeypatch.setattr(messages, "_depth", lambda text: pytest.fail("it was looked at"))
    with pytest.raises(ValueError, match="too long"):
        read("[" * (LONGEST_TEXT + 1), Failed)
