import pytest

from calibre.errors import UserError
from calibre.run_folder import RunFolder


def opened(tmp_path, experiment):
    folder = RunFolder(tmp_path)
    folder.open(experiment)
    return folder


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


def test_the_experiment_of_a_folder_comes_back(tmp_path, tiny):
    folder = opened(tmp_path / "run", tiny("training.rounds=7"))
    assert folder.begun
    assert not folder.finished
    assert folder.read_experiment() == tiny("training.rounds=7")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("nowhere", "there is no such folder"),
        ("runs", r"it has no experiment.toml; the runs are inside it, such as .*runs/one"),
        ("runs/two", "it has no experiment.toml$"),
    ],
)
def test_what_is_no_run_folder_is_told_with_what_is_near(tmp_path, tiny, asked, said):
    opened(tmp_path / "runs" / "one", tiny()).close()
    (tmp_path / "runs" / "two").mkdir()
    with pytest.raises(UserError, match=rf"is not a run folder: {said}"):
        RunFolder(tmp_path / asked).read_experiment()
