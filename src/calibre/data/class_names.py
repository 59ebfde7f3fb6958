"""Names of classes and clients as people read them."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence

NO_LABEL = ("nan", "na", "n/a", "null", "none", "-1")  # what programs write where there is none


def one_spelling(name: str) -> str:
    """The same letters in one form: some machines write an ü as u and two dots."""
    return unicodedata.normalize("NFC", name)


def odd_names(classes: Sequence[str]) -> Iterator[str]:
    """What a person should know of classes that may be mistakes."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in classes:
        alike[re.sub(r"(?<![0-9])0+(?=[0-9])", "", name.casefold())].append(name)
    if pairs := [" and ".join(map(repr, names)) for names in alike.values() if len(names) > 1]:
        more = f" (and {len(pairs) - 1:,} more)" if len(pairs) > 1 else ""
        yield (
            f"classes whose names differ only in capitals or leading zeros: {pairs[0]}{more}; "
            "rename them if they are one"
        )
    for name in classes:
        if name.lower() in NO_LABEL:
            yield (
                f"one of the classes is called {name!r}: if that stands for images without a "
                "label, leave their label empty, or put them in a folder unlabelled/"
            )
