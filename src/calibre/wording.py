"""Figures as people read them: the same everywhere."""


def percent(share: float | None, digits: int = 1) -> str:
    """``87.5 %``; a dash where it is not known."""
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def span(low: float, high: float, digits: int = 1) -> str:
    """``76.4 to 93.8 %``."""
    return f"{100 * low:.{digits}f} to {percent(high, digits)}"


def rate(share: float) -> str:
    """``2.5 %``, of a share that somebody set: all its digits."""
    return f"{100 * share:g} %"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, whichever reads best."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
