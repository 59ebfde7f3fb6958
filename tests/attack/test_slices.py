"""A short slice of each fuzzer; ``make attack`` runs them at length."""

from tests.attack import replies, run_folders, settings


def test_odd_experiments_are_refused_in_words_or_run():
    ended = settings.attack(seed=1, count=121)
    assert sum(ended.values()) == 121
    assert {"refused", "read"} <= set(ended)


def test_damaged_runs_are_refused_in_words_or_give_the_same_result():
    ended = run_folders.attack(seed=1, count=15)
    assert sum(ended.values()) == 15
    assert any("refused" in ending for ending in ended)
    assert any("the same" in ending for ending in ended)


def test_odd_replies_and_hellos_are_one_nodes_failure():
    ended = replies.attack(seed=1, count=150)
    assert {"update: refused", "assess: refused", "personalize: refused"} <= set(ended)
    assert any(ending.startswith("hello") for ending in ended)


def test_cases_can_be_repeated():
    assert settings.made(3, 1) == settings.made(3, 1)
    assert settings.made(3, 1) != settings.made(4, 1)
