import json
import shutil

import pytest

from calibre.errors import UserError
from calibre.report import runs
from tests.report.made_run import make_run


@pytest.fixture
def folder(tmp_path):
    return make_run(tmp_path / "a run", 5, 2, changes=["method.name=fedavg"])


def test_a_finished_run_is_read_as_it_was_written(folder):
    run = runs.read(folder)
    assert (run.label, run.seed, run.folder) == ("FedAvg", 0, folder)
    assert run.federation == json.loads((folder / "federation.json").read_text())["hash"]
    assert [client.id for client in run.clients] == list(range(7))
    assert sum(client.novel for client in run.clients) == 2
    assert run.experiment.method.name == "fedavg"
    assert [event.round for event in run.rounds] == [1, 2, 3, 4, 5, 6]


def test_clients_are_in_order_even_if_a_spreadsheet_sorted_them(folder):
    path = folder / "clients.csv"
    header, *rows = path.read_text().splitlines()
    before = runs.read(folder).clients
    path.write_text("\n".join([header, *sorted(rows, key=lambda row: row[::-1])]) + "\n")
    assert runs.read(folder).clients == before


def test_what_is_no_finished_run_is_told_in_words(folder, tmp_path):
    with pytest.raises(UserError, match="there is no such folder"):
        runs.read(tmp_path / "nowhere")
    with pytest.raises(
        UserError, match=r"no experiment.toml; the runs are inside it, such as .*a run"
    ):
        runs.read(tmp_path)
    (folder / "metrics.json").unlink()
    with pytest.raises(UserError, match=r"not finished; go on with  calibre-fl resume .*a run"):
        runs.read(folder)


def _edit(change):
    def harm(folder):
        path = folder / "metrics.json"
        metrics = json.loads(path.read_text())
        change(metrics)
        path.write_text(json.dumps(metrics))

    return harm


def _rewrite(name, change):
    def harm(folder):
        path = folder / name
        path.write_bytes(change(path.read_bytes()))

    return harm


def _both(*harms):
    def harm(folder):
        for each in harms:
            each(folder)

    return harm


DAMAGE = {
    "cut short": (_rewrite("metrics.json", lambda b: b[:50]), "metrics.json is damaged"),
    "a list": (_rewrite("metrics.json", lambda b: b"[]"), "metrics.json is damaged"),
    "not utf-8": (_rewrite("metrics.json", lambda b: b"\xff\xfe"), "metrics.json is damaged"),
    "no federation": (_edit(lambda m: m.pop("federation")), "federation: Field required"),
    "odd seconds": (_edit(lambda m: m.update(seconds="ten")), "seconds: .* valid number"),
    "no clients": (lambda folder: (folder / "clients.csv").unlink(), "clients.csv is damaged"),
    "a table of other things": (_rewrite("clients.csv", lambda b: b"a,b\n1,2\n"), "not a table of"),
    "binary": (_rewrite("clients.csv", lambda b: b"\xff" + b), "clients.csv is damaged"),
    "a client too few": (
        _rewrite("clients.csv", lambda b: b"\n".join(b.splitlines()[:-1]) + b"\n"),
        "lists 1 novel clients, metrics.json counts 2",
    ),
    "a client twice": (
        _rewrite("clients.csv", lambda b: b.replace(b"\n1,", b"\n2,")), "each once",
    ),
    "no accuracy": (
        _rewrite("clients.csv", lambda b: b.replace(b"0.", b"7.")), "not within 0 and 1",
    ),
    "a floor too many": (
        _edit(lambda m: m["floors"].update(other=m["floors"]["local"])), "it has no 'other', which",
    ),
    "no clients at all": (
        _both(
            _rewrite("clients.csv", lambda b: b.partition(b"\n")[0] + b"\n"),
            _edit(lambda m: m.update(train={"clients": 0}, novel={"clients": 0}, floors={})),
        ),
        "clients.csv is damaged .it lists no clients",
    ),
    "endless images": (
        _rewrite("clients.csv", lambda b: b.replace(b",50,", b",%d," % 10**400)), "beyond 1,000,",
    ),
    "endless failures": (_edit(lambda m: m.update(failures=10**400)), "metrics.json is damaged"),
    "half a character": (_edit(lambda m: m.update(method="\ud800")), "it holds half a character"),
    "no number": (_rewrite("clients.csv", lambda b: b.replace(b"0.", b"x.")), "line 2"),
    "bad settings": (_rewrite("experiment.toml", lambda b: b"seed = ["), "not a TOML file"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_named(folder, kind):
    harm, message = DAMAGE[kind]
    harm(folder)
    with pytest.raises(UserError, match=message):
        runs.read(folder)


def test_what_is_no_event_in_the_log_is_passed_over(folder):
    path = folder / "events.jsonl"
    path.write_text(path.read_text() + '{"event": "rou')
    assert len(runs.read(folder).rounds) == 6
    path.write_text('{"event": "round", "round": 1}\n[]\n')
    assert runs.read(folder).rounds == []
    path.unlink()
    assert runs.read(folder).events == []


def test_a_file_that_no_run_writes_is_not_read(folder, monkeypatch):
    monkeypatch.setattr(runs, "LARGEST", 100)
    with pytest.raises(UserError, match="more than 100 bytes"):
        runs.read(folder)


def test_several_are_read_in_the_order_given(folder, tmp_path):
    other = shutil.copytree(folder, tmp_path / "b")
    assert [run.folder for run in runs.read_all([other, folder])] == [other, folder]
