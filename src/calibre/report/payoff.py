"""Did training together pay off? Where a floor does better, a run says so, and what to try."""

from collections.abc import Sequence

from calibre.methods.method import Method
from calibre.personal.ways import way_of
from calibre.report.floors import FLOORS
from calibre.report.metrics import ClientResult
from calibre.sections import PersonalSettings
from calibre.wording import difference

NOISE = 0.01  # a smaller difference of mean accuracies is not worth a word


def warnings(method: Method, personal: PersonalSettings, rows: Sequence[ClientResult]) -> list[str]:
    """For the clients that trained; the best floor is the one that counts."""
    trained = [row for row in rows if not row.novel]
    if not trained or not method.federated or not trained[0].floors:
        return []  # every client is novel, each trained alone anyway, or nothing to compare with
    gaps = {
        name: difference([(row.floors[name], row.accuracy, row.test_samples) for row in trained])
        for name in trained[0].floors
    }
    best = max(gaps, key=lambda name: gaps[name].value)
    gap = gaps[best]
    if gap.value <= NOISE:
        return []
    tries = ["more rounds (training.rounds)"]
    if way_of(method, personal).head_alone:
        tries.append("personal.finetune_encoder=true")
    if not (method.supervised or method.met_labels(trained=True)):
        tries.append("method.labels.weight=1, so that labels take part in training")
    sure = "has not" if gap.established else "may not have"
    return [
        f"Training together {sure} paid off: on average {FLOORS[best].phrase} is better by "
        f"{gap.words}. Try {'; or '.join(tries)}."
    ]
