"""What an update changed, client by client: who came, who left, what each holds and reaches now."""

from collections.abc import Sequence
from typing import NamedTuple

from calibre.report.metrics import ClientResult


class ClientChange(NamedTuple):
    """One client before and after; None where it was, or is, not there."""

    name: str
    before: ClientResult | None
    after: ClientResult | None

    @property
    def what(self) -> str:
        if self.before is None:
            return "new"
        return "left" if self.after is None else ""


def changes(before: Sequence[ClientResult], after: Sequence[ClientResult]) -> list[ClientChange]:
    """By name: clients as they are now, then those that left."""
    old = {row.name: row for row in before}
    now = [ClientChange(row.name, old.pop(row.name, None), row) for row in after]
    return [*now, *(ClientChange(name, row, None) for name, row in old.items())]


def counted(before: int | None, after: int | None) -> str:
    """``12 → 20``, or the one number where there is no other."""
    if before is None or after is None:
        return f"{after if before is None else before:,}"
    return f"{after:,}" if before == after else f"{before:,} → {after:,}"
