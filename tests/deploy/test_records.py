"""What travels in Flower's messages: one text, one block, and nothing that has to be opened."""

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from calibre.deploy.records import Hello, block_of, envelope, text_of
from calibre.engine.messages import pack, read, unpack

HELLO = Hello(version="0.1.0", share=(1, 3))


def test_a_record_and_its_tensors_come_back_from_a_message():
    tensors = {"model/w": torch.tensor([1 / 3, -0.0])}
    content = envelope(HELLO, pack(tensors))
    assert read(text_of(content), Hello) == HELLO
    assert torch.equal(unpack(block_of(content))["model/w"], tensors["model/w"])
    assert [name for record in content.array_records.values() for name in record] == ["block"]


def test_without_tensors_there_is_no_block():
    with pytest.raises(ValueError, match="it has no tensors"):
        block_of(envelope(HELLO))


def test_a_message_without_a_text_has_none():
    assert text_of(RecordDict()) is None
    assert text_of(RecordDict({"text": ConfigRecord({})})) is None


def test_a_block_of_another_kind_is_not_opened():
    pickled = Array("uint8", (5,), "pickle" * 50, b"\x80\x04K\x01.")
    content = RecordDict({"tensors": ArrayRecord({"block": pickled})})
    with pytest.raises(ValueError, match="written as 'pickle") as refused:
        block_of(content)
    assert len(str(refused.value)) < 120
