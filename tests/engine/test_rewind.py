import pytest
from typer.testing import CliRunner

from calibre import cli
from calibre.engine import rounds
from calibre.engine.rewind import possible_rounds, rewind
from calibre.errors import UserError
from calibre.report import events
from calibre.run_folder import RunFolder
from tests.methods.helpers import results


def kept_rounds(folder):
    return sorted({file.stem for file in folder.glob("clients/*/[0-9]*.safetensors")})


@pytest.mark.parametrize("back", [0, 2, 4])
def test_a_run_taken_back_forgets_what_came_after_and_ends_the_same(tiny, tmp_path, back):
    """FedRep's clients keep their heads: those of later rounds must not be found again."""
    experiment = tiny("method.name=fedrep", "training.rounds=4", "engine.keep=9")
    folder = RunFolder(tmp_path)
    rounds.run(experiment, tmp_path)
    whole = results(tmp_path)
    assert possible_rounds(folder) == [0, 1, 2, 3, 4]
    rewind(folder, back)
    assert not folder.finished
    assert not folder.model.exists()
    assert not list(tmp_path.glob("clients/*/personal.safetensors"))
    assert possible_rounds(folder) == list(range(back + 1))
    assert all(int(version) <= back for version in kept_rounds(tmp_path))
    log = events.read(folder.events)
    assert [e.round for e in log if e.event == "round"] == list(range(1, back + 1))
    done = []
    rounds.run(experiment, tmp_path, lambda e: done.append(e) if e.event == "round" else None)
    assert [event.round for event in done] == list(range(back + 1, 5))
    assert results(tmp_path) == whole


def test_only_whole_rounds_can_be_gone_back_to(tiny, tmp_path):
    experiment = tiny("method.name=fedrep", "engine.keep=2")
    rounds.run(experiment, tmp_path)
    file = tmp_path / "checkpoints" / "round-0002.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"back to round 2: it has whole .* rounds 0, 3 \("):
        rewind(RunFolder(tmp_path), 2)
    assert RunFolder(tmp_path).finished
    for file in tmp_path.glob("clients/*/0003.safetensors"):
        file.unlink()
    assert possible_rounds(RunFolder(tmp_path)) == [0]


def test_a_run_whose_every_checkpoint_is_damaged_can_begin_anew(tiny, tmp_path):
    experiment = tiny("engine.keep=1")
    rounds.run(experiment, tmp_path)
    whole = results(tmp_path)
    (tmp_path / "checkpoints" / "round-0003.safetensors").unlink()
    with pytest.raises(UserError, match="cannot go on"):
        rounds.run(experiment, tmp_path)
    rewind(RunFolder(tmp_path), 0)
    rounds.run(experiment, tmp_path)
    assert results(tmp_path) == whole


def test_the_command_tells_and_takes_back(tiny, tmp_path):
    rounds.run(tiny("engine.keep=3"), tmp_path)

    def said(*arguments):
        return CliRunner().invoke(cli.app, ["rewind", str(tmp_path), *arguments])

    assert "back to rounds 0, 1, 2, 3" in said().output
    assert "calibre-fl resume" in said("--round", "2").output
    assert "back to rounds 0, 1, 2 " in said().output
    refused = said("--round", "7")
    assert isinstance(refused.exception, UserError)
