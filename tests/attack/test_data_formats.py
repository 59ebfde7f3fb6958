"""A slice of the attack on data files; ``python -m tests.attack.data_formats`` runs more of it."""

import pytest

from tests.attack.data_formats import Case, attack, cases, run


def test_damaged_and_hostile_files_end_in_words():
    pytest.importorskip("pydicom", reason="pip install 'calibre-fl[medical]'")
    ended = attack(seed=0, count=90)
    assert set(ended) == {"refused", "left out", "read"}
    assert ended.total() == 90


def test_cases_are_the_same_for_the_same_seed():
    names = [case.name for case in cases(7, 50)]
    assert names == [case.name for case in cases(7, 50)]
    assert names != [case.name for case in cases(8, 50)]
    assert len(set(names)) > 20


def test_a_traceback_would_be_noticed(tmp_path):
    def write(folder):
        raise KeyError("a mistake of ours")

    with pytest.raises(KeyError):
        run(Case(0, "broken", write), tmp_path)
