import os

import pytest
import torch
from calibre.engine.store import RunFolder

from calibre.errors import UserError
from calibre.methods.method import ServerState


def state(round_, value=0.0):
    return ServerState(round_, {"model": {"w": torch.full((3,), value)}})


def opened(tmp_path, experiment):
    store = RunFolder(tmp_path)
    store.open(experiment)
    return store


def test_the_newest_checkpoint_comes_back_bit_for_bit(tmp_path, tiny):
    store = opened(tmp_path, tiny())
    value = torch.tensor([1 / 3, -0.0, 1e-45])
    store.save_checkpoint(ServerState(7, {"model": {"w": value}}), {"failures": 2}, keep=2)
    found, record = store.load_checkpoint(pytest.fail)
    assert found.round == 7
    assert found.model["w"].numpy().tobytes() == value.numpy().tobytes()
    assert record["failures"] == 2


def test_only_the_last_ones_are_kept(tmp_path, tiny):
    store = opened(tmp_path, tiny())
    for round_ in (9, 10, 11, 10000):
        store.save_checkpoint(state(round_), {}, keep=2)
    assert sorted(p.name for p in store.checkpoints.iterdir()) == [
        "round-0011.json", "round-0011.safetensors",
        "round-10000.json", "round-10000.safetensors",
    ]  # fmt: skip
    assert store.oldest_round() == 11


@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "json"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path, tiny, damage):
    store = opened(tmp_path, tiny())
    store.save_checkpoint(state(1, 1.0), {}, keep=2)
    store.save_checkpoint(state(2, 2.0), {}, keep=2)
    file = store.checkpoints / "round-0002.safetensors"
    content = file.read_bytes()
    if damage == "cut":
        file.write_bytes(content[:-1])
    elif damage == "flip":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "gone":
        file.unlink()
    else:
        file.with_suffix(".json").write_text('{"round": 2')
    warnings = []
    found, _ = store.load_checkpoint(warnings.append)
    assert found.round == 1
    assert found.model["w"][0] == 1
    assert "round-0002" in warnings[0]


def test_a_checkpoint_counts_only_once_its_record_is_written(tmp_path, tiny, monkeypatch):
    store = opened(tmp_path, tiny())
    store.save_checkpoint(state(1), {}, keep=2)
    real = os.replace

    def stop_at_record(source, target):
        if str(target).endswith("round-0002.json"):
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", stop_at_record)
    with pytest.raises(KeyboardInterrupt):
        store.save_checkpoint(state(2), {}, keep=2)
    assert store.load_checkpoint(pytest.fail)[0].round == 1


def test_a_folder_belongs_to_one_experiment(tmp_path, tiny):
    opened(tmp_path, tiny()).close()
    opened(tmp_path, tiny("engine.keep=5")).close()  # where it runs may change
    with pytest.raises(UserError, match=r"training.rounds is 3 there, 4 here.*--out"):
        opened(tmp_path, tiny("training.rounds=4"))


def test_a_folder_belongs_to_one_process_at_a_time(tmp_path, tiny):
    first = opened(tmp_path, tiny())
    with pytest.raises(UserError, match="another process is running"):
        opened(tmp_path, tiny())
    first.close()
    opened(tmp_path, tiny()).close()


def test_a_place_that_cannot_be_a_folder_is_named(tmp_path, tiny):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot use .*file"):
        RunFolder(tmp_path / "file").open(tiny())


def test_client_state_is_read_as_of_the_servers_round(tmp_path):
    clients = RunFolder(tmp_path).clients
    assert clients.load(17, 100) is None
    for round_ in (2, 5, 9):
        clients.save(17, round_, {"w": torch.tensor([float(round_)])}, oldest_needed=0)
    assert clients.load(17, 1) is None
    assert clients.load(17, 5)["w"].item() == 5
    assert clients.load(17, 8)["w"].item() == 5  # round 9 is not committed yet
    assert clients.load(17, 9)["w"].item() == 9
    clients.discard(17, 9)
    assert clients.load(17, 9)["w"].item() == 5


def test_client_state_comes_in_the_order_of_its_names(tmp_path):
    clients = RunFolder(tmp_path).clients
    names = [f"layer{i}.weight" for i in range(40)]
    clients.save(1, 1, {name: torch.zeros(1) for name in names}, oldest_needed=0)
    assert list(clients.load(1, 1)) == sorted(names)


def test_old_client_state_is_removed_once_no_resume_can_need_it(tmp_path):
    clients = RunFolder(tmp_path).clients
    for round_ in (2, 5, 9, 12):
        clients.save(17, round_, {"w": torch.zeros(1)}, oldest_needed=9)
    names = sorted(p.name for p in (tmp_path / "clients" / "000017").iterdir())
    assert names == ["0009.safetensors", "0012.safetensors"]
