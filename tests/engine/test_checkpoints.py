import json
import os

import pytest
import torch

from calibre.engine.checkpoints import Checkpoint, Checkpoints
from calibre.methods.method import ServerState


def held(round_, value=0.0):
    return Checkpoint(ServerState(round_, {"model": {"w": torch.full((3,), value)}}))


def newest(checkpoints, warn=pytest.fail):
    return next(checkpoints.whole(warn))


def test_the_newest_checkpoint_comes_back_bit_for_bit(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    value = torch.tensor([1 / 3, -0.0, 1e-45])
    state = ServerState(7, {"model": {"w": value}, "control": {"c": torch.ones(2)}}, clients=5)
    checkpoints.save(held(6), keep=2)
    checkpoints.save(Checkpoint(state, failures=2, kept={0: 7, 12: 3}), keep=2)
    found = newest(checkpoints)
    assert (found.state.round, found.state.clients) == (7, 5)
    assert found.state.model["w"].numpy().tobytes() == value.numpy().tobytes()
    assert found.state.groups.keys() == {"model", "control"}
    assert (found.failures, found.kept) == (2, {0: 7, 12: 3})


def test_only_the_last_ones_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for round_ in (9, 10, 11, 10000):
        checkpoints.save(held(round_), keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "round-0011.json", "round-0011.safetensors",
        "round-10000.json", "round-10000.safetensors",
    ]  # fmt: skip
    assert checkpoints.oldest_round() == 11


def test_without_any_a_resume_may_go_back_to_the_start(tmp_path):
    (tmp_path / "round-²³.json").write_text("{}")  # not one of ours
    assert Checkpoints(tmp_path).oldest_round() == 0
    assert list(Checkpoints(tmp_path).whole(pytest.fail)) == []


def cut(file):
    file.write_bytes(file.read_bytes()[:-1])


def flip(file):
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def no_json(file):
    file.with_suffix(".json").write_text('{"round": 2')


def no_text(file):
    file.with_suffix(".json").write_bytes(b"\xff\xfe")


def odd_fields(file):
    record = json.loads(file.with_suffix(".json").read_text())
    file.with_suffix(".json").write_text(json.dumps(record | {"round": -2}))


@pytest.mark.parametrize(
    "damage", [cut, flip, lambda file: file.unlink(), no_json, no_text, odd_fields]
)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path, damage):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(held(1, 1.0), keep=2)
    checkpoints.save(held(2, 2.0), keep=2)
    damage(tmp_path / "round-0002.safetensors")
    warnings = []
    found = newest(checkpoints, warnings.append)
    assert found.state.round == 1
    assert found.state.model["w"][0] == 1
    assert len(warnings) == 1
    assert "round-0002.json is damaged" in warnings[0]


def test_a_checkpoint_counts_only_once_its_record_is_written(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(held(1), keep=1)
    real = os.replace

    def stop_at_record(source, target):
        if str(target).endswith("round-0002.json"):
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", stop_at_record)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(held(2), keep=1)
    assert newest(checkpoints).state.round == 1  # and it has not been removed to keep one
