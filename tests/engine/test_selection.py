import numpy as np

from calibre.engine.selection import select


def test_selection_is_fair_repeatable_and_without_repeats():
    chosen = [select(0, round_, 20, 5) for round_ in range(400)]
    assert chosen == [select(0, round_, 20, 5) for round_ in range(400)]
    assert all(len(set(clients)) == 5 and clients == sorted(clients) for clients in chosen)
    counts = np.bincount(np.concatenate(chosen), minlength=20)
    # each is Binomial(400, 1/4): mean 100, standard deviation 8.7
    assert counts.min() > 60
    assert counts.max() < 140
    assert select(1, 0, 20, 5) != chosen[0]
