"""Did training together pay off? Where a floor does better, a run says so, and what to try."""

from collections.abc import Mapping
from typing import Any

from calibre.methods.method import Method

NOISE = 0.01  # a smaller difference of mean accuracies is not worth a word
TITLES = {"local": "training alone", "untrained": "an encoder that was never trained"}


def warnings(
    method: Method, finetuned: bool, reached: Mapping[str, Any], floors: Mapping[str, Any]
) -> list[str]:
    """For the clients that trained: ``reached`` and each of ``floors`` are summaries of groups."""
    mean = reached["train"]["mean"]
    if mean is None or not method.federated:
        return []  # every client is novel, or each trained alone anyway
    gaps = {name: floor["train"]["mean"] - mean for name, floor in floors.items()}
    better = {name: gap for name, gap in gaps.items() if gap > NOISE}
    if not better:
        return []
    tries = ["more rounds (training.rounds)"]
    if method.way == "head" and not finetuned:
        tries.append("personal.finetune_encoder=true, if clients have labels enough")
    if not method.supervised:
        tries.append("method.name=fedavg-ft, which learns from all labels together")
    found = " and ".join(
        f"{TITLES[name]} is better by {100 * gap:.1f} points" for name, gap in better.items()
    )
    return [f"Training together has not paid off: on average {found}. Try {'; or '.join(tries)}."]
