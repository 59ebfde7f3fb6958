import pytest

from calibre.report.compare import compare
from calibre.report.inference import holm, signed_rank
from tests.report.in_memory import method, run

OURS = "Calibre (SimCLR) with labels"

A0, A1 = [0.9, 0.8, 0.7, 0.9], [0.8, 0.9, 0.9, 0.7]
B0, B1 = [0.6, 0.8, 0.6, 0.8], [0.7, 0.6, 0.9, 0.6]
C0, C1 = [0.5, 0.4, 0.6, 0.3], [0.4, 0.4, 0.5, 0.5]
NOVEL = {"A": [0.5, 0.5], "B": [0.7, 0.9], "C": [0.5, 0.6]}


def three_methods():
    return [
        run(trained, NOVEL[letter], method(name), seed=seed)
        for letter, name, by_seed in (
            ("A", "calibre", (A0, A1)), ("B", "fedavg", (B0, B1)), ("C", "fedrep", (C0, C1)),
        )
        for seed, trained in enumerate(by_seed)
    ]  # fmt: skip


def test_pairs_are_clients_of_a_seed_and_the_best_is_tested_against_the_rest():
    tests = compare(three_methods()).tests
    trained = [test for test in tests if test.group == "train"]
    assert [(t.one, t.other) for t in trained] == [
        (OURS, "FedAvg"), (OURS, "FedRep"),
    ]  # fmt: skip
    against_b = [a - b for a, b in zip(A0 + A1, B0 + B1, strict=True)]
    against_c = [a - c for a, c in zip(A0 + A1, C0 + C1, strict=True)]
    p = [signed_rank(against_b), signed_rank(against_c)]
    assert [test.p for test in trained] == pytest.approx(p)
    assert [test.adjusted for test in trained] == pytest.approx(holm(p))
    assert trained[0].pairs == 8
    per_seed = [sum(A0) / 4 - sum(B0) / 4, sum(A1) / 4 - sum(B1) / 4]
    assert trained[0].difference.value == pytest.approx(sum(per_seed) / 2)
    assert trained[0].difference.half == pytest.approx(
        12.7062 * abs(per_seed[0] - per_seed[1]) / 2, rel=1e-4
    )


def test_novel_clients_are_tested_apart_against_their_own_best():
    novel = [test for test in compare(three_methods()).tests if test.group == "novel"]
    assert {test.one for test in novel} == {"FedAvg"}
    assert [test.other for test in novel] == ["FedRep", OURS]
    assert {test.pairs for test in novel} == {4}


def test_all_pairs_are_corrected_together():
    tests = [t for t in compare(three_methods(), all_pairs=True).tests if t.group == "train"]
    assert len(tests) == 3
    assert [t.adjusted for t in tests] == pytest.approx(holm([t.p for t in tests]))
    assert all(test.difference.value >= 0 for test in tests)


def test_one_method_has_nothing_to_be_tested_against():
    comparison = compare([run(A0)])
    assert comparison.tests == ()
    assert comparison.groups == ["train"]
    assert not any("Wilcoxon" in note for note in comparison.notes)


def test_the_notes_say_how_it_was_done():
    notes = " ".join(compare(three_methods()).notes)
    for words in ("2 seeds", "95 %", "Student's t over seeds", "Wilcoxon", "exact", "Holm",
                  "2 tests of a group", "one client of one seed"):  # fmt: skip
        assert words in notes
    single = " ".join(compare([run(A0), run(B0, [], method("fedavg"))]).notes)
    assert "over its clients" in single
    assert "says nothing of how seeds vary" in single


def test_the_notes_say_what_went_wrong_and_what_is_not_equal():
    runs = [
        run(A0, failures=2, warnings=["the encoder has collapsed"]),
        run(B0, [], method("fedavg"), "training.rounds=99", "network.width=8"),
        run(C0, [], method("local"), "training.rounds=5", "network.width=8"),
    ]
    notes = compare(runs).notes
    assert f"{OURS}, seed 0: 2 client updates failed" in notes
    assert f"{OURS}, seed 0: the encoder has collapsed" in notes
    assert "all else is not equal: the runs differ in network.width, training.rounds" in notes
    assert not any("not equal" in note for note in compare(three_methods()).notes)


def test_the_notes_say_where_runs_disagree_on_a_floor():
    floors = {"untrained": [0.1, 0.2, 0.3, 0.4]}
    agree = [run(A0, floors=floors), run(B0, [], method("fedavg"), floors=floors)]
    assert not any("agree" in note for note in compare(agree).notes)
    other = {"untrained": [0.1, 0.2, 0.3, 0.5]}
    disagree = [run(A0, floors=floors), run(B0, [], method("fedavg"), floors=other)]
    (note,) = [note for note in compare(disagree).notes if "agree" in note]
    assert note.startswith("untrained encoder, seed 0: not all runs agree")
    wider = [run(A0, floors=floors), run(B0, [], "network.width=8", floors=other)]
    comparison = compare(wider)
    assert not any("agree" in note for note in comparison.notes)
    assert {row.label for row in comparison.rows} > {
        "untrained encoder, network.width=32", "untrained encoder, network.width=8",
    }  # fmt: skip
