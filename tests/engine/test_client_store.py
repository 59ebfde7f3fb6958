import pytest
import torch

from calibre.engine.client_store import ClientStore


def value(number):
    return {"w": torch.tensor([float(number)])}


@pytest.fixture
def clients(tmp_path):
    return ClientStore(tmp_path / "clients")


def test_client_state_is_read_as_of_the_servers_round(clients):
    assert clients.load(17, 100) is None
    for round_ in (2, 5, 9):
        clients.save(17, round_, value(round_), oldest_needed=0)
    assert clients.load(17, 1) is None
    assert clients.load(17, 5)["w"].item() == 5
    assert clients.load(17, 8)["w"].item() == 5  # round 9 is not committed yet
    assert clients.load(17, 9)["w"].item() == 9
    clients.discard(17, 9)
    assert clients.load(17, 9)["w"].item() == 5


def test_client_state_comes_in_the_order_of_its_names(clients):
    names = [f"layer{i}.weight" for i in range(40)]
    clients.save(1, 1, {name: torch.zeros(1) for name in names}, oldest_needed=0)
    assert list(clients.load(1, 1)) == sorted(names)


def test_old_client_state_is_removed_once_no_resume_can_need_it(clients):
    for round_ in (2, 5, 9, 12):
        clients.save(17, round_, value(round_), oldest_needed=9)
    names = sorted(p.name for p in (clients.path / "000017").iterdir())
    assert names == ["0009.safetensors", "0012.safetensors"]


def test_a_personal_model_is_beside_what_is_kept_between_rounds(clients):
    assert clients.load_personal(3) is None
    clients.save(3, 1, value(1), oldest_needed=0)
    clients.save_personal(3, value(7))
    assert clients.load_personal(3)["w"].item() == 7
    assert clients.load(3, 5)["w"].item() == 1


def test_what_is_whole_is_no_problem(clients):
    clients.save(1, 2, value(2), oldest_needed=0)
    clients.save(4, 1, value(1), oldest_needed=0)
    assert clients.problem({}) is None
    assert clients.problem({1: 2, 4: 1}) is None


def test_a_missing_file_is_named_even_if_there_is_an_older_one(clients):
    """The older one would be read without a word, and give another result."""
    clients.save(1, 2, value(2), oldest_needed=0)
    clients.save(1, 3, value(3), oldest_needed=0)
    clients.personal_file(1).with_name("0003.safetensors").unlink()
    assert clients.problem({1: 3}) == "what client 1 kept after round 3 is missing"


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:-1] + b"\xff", lambda b: b""])
def test_a_damaged_file_is_named_and_not_read(clients, damage):
    clients.save(1, 2, value(2), oldest_needed=0)
    file = clients.path / "000001" / "0002.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    assert clients.problem({1: 2}).startswith("what client 1 kept after round 2 is damaged (")
    with pytest.raises(ValueError, match="what client 1 kept after round 2 is damaged"):
        clients.load(1, 2)
