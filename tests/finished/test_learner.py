import pytest
import torch
from sklearn.linear_model import LogisticRegression

from calibre import rng
from calibre.finished.collection import of_folder
from calibre.finished.learner import learner_of
from calibre.finished.run import FinishedRun
from calibre.personal.holdout import FOLDS, stratified
from tests.finished.made_labels import digits, run_of
from tests.finished.made_learner import learner_of_features


@pytest.fixture(scope="module")
def features():
    centres = torch.randn(3, 6, generator=rng.stream(0, "centres"))
    noise = torch.randn(60, 6, generator=rng.stream(1, "noise"))
    return centres.repeat(20, 1) + noise


def names(rows):
    return {row: "abc"[row % 3] for row in rows}


def test_the_estimate_is_scikit_learns_on_the_same_folds(features):
    learner = learner_of_features(features)
    found = learner.estimate(names(range(45)))
    (strength,) = learner._strengths[2]
    x = ((features - features.mean(0)) / features.std(0, correction=0)).double().numpy()[:45]
    y = torch.tensor([row % 3 for row in range(45)])
    fold = stratified(y, FOLDS, rng.stream(0, "folds of labels"))
    right = 0
    for f in range(FOLDS):
        model = LogisticRegression(C=strength, tol=1e-8, max_iter=10_000)
        model.fit(x[fold != f], y[fold != f])
        right += int((model.predict(x[fold == f]) == y[fold == f].numpy()).sum())
    assert (found.labels, found.images) == (45, 45)
    assert found.correct == right


def test_one_label_of_each_class_says_nothing_yet(features):
    learner = learner_of_features(features)
    assert learner.estimate(names([0, 1, 2])) is None
    assert learner.estimate(names([0, 1, 2, 3])).images == 2  # the others are alone of their class
    assert learner.estimate({0: "a", 3: "a"}).correct == 2  # one class: nothing to tell apart


def test_the_same_labels_give_the_same_estimate_in_whatever_order_they_came(features):
    one, other = (learner_of_features(features) for _ in range(2))
    forwards, backwards = names(range(30)), names(reversed(range(30)))
    assert one.estimate(forwards) == other.estimate(backwards)


def test_a_runs_encoder_learns_digits_that_it_never_saw(tmp_path):
    finished = FinishedRun(run_of(None, tmp_path / "r"))
    digits(tmp_path / "new", {3: 20, 4: 20})
    found = of_folder(tmp_path / "new").decoded(finished.preprocessing.shape)
    learner = learner_of(finished, found.pixels)
    truth = {i: image.path.rpartition("/")[2][0] for i, image in enumerate(found.images)}
    estimate = learner.estimate(truth)
    assert estimate.correct / estimate.images > 0.8
    assert {truth[row.index] for row in learner.suggest([], 4)} == {"3", "4"}
    guess = learner.guess({i: truth[i] for i in range(5, 35)}, 0)
    assert guess[0][0] == truth[0]
