import pytest
import torch

from calibre.local.memory import FORGETFUL, Memory


def asked(memory, *questions, add=0):
    """Sums of the questions' tensors, and which of them were worked out."""
    new = []

    def sums(questions, add):
        new.extend(questions)
        return [(x.sum() + (y or 0) + add).double() for x, y in questions]

    return memory.recall(sums, questions, add), len(new)


def question(*numbers, y=None, dtype=torch.float32):
    return torch.tensor(numbers, dtype=dtype), y


def test_the_same_content_is_worked_out_once():
    memory = Memory()
    assert asked(memory, question(1, 2), question(3)) == ([3, 3], 2)
    assert asked(memory, question(4), question(1, 2)) == ([4, 3], 1)


@pytest.mark.parametrize(
    "other", [question(1, 3), question(1, 2, y=5), question(1, 2, dtype=torch.int32),
              (torch.tensor([[1.0, 2.0]]), None)],
)  # fmt: skip
def test_whatever_differs_is_another_question(other):
    memory = Memory()
    asked(memory, question(1, 2))
    assert asked(memory, other)[1] == 1
    assert asked(memory, question(1, 2), add=1) == ([4], 1)
    assert asked(memory, question(1, 2)) == ([3], 0)


def test_a_full_memory_keeps_what_it_has():
    memory = Memory(room=16)  # two answers of eight bytes
    asked(memory, question(1), question(2), question(3))
    assert asked(memory, question(1), question(2)) == ([1, 2], 0)
    assert asked(memory, question(3)) == ([3], 1)
    assert asked(memory, question(3)) == ([3], 1)


def test_without_room_nothing_is_kept():
    assert asked(FORGETFUL, question(1)) == asked(FORGETFUL, question(1)) == ([1], 1)
