"""Pages made of the files in ``assets``: whole in one answer, with nothing from elsewhere.

Charts are those of the report: ``{{report/plots.js}}`` is a file of its page.
"""

import base64
import hashlib
import re
from importlib.resources import files

from calibre.pages.http import HTML, Answer


def assemble(name: str) -> str:
    """An HTML file, with the styles and scripts that it names as ``{{file}}`` in their places."""
    assets, report = files("calibre.pages").joinpath("assets"), files("calibre.report.page")

    def content(file: str) -> str:
        own = file.removeprefix("report/")
        place = assets if own == file else report
        return place.joinpath(own).read_text(encoding="utf-8")

    return re.sub(r"\{\{([a-z./]+)\}\}", lambda found: content(found[1]), content(name))


def policy(page: str) -> str:
    """Only the page's own scripts and styles may run; it may ask this server and show images."""

    def hashes(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = (hashlib.sha256(text.encode()).digest() for text in found)
        each = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
        return " ".join(each) or "'none'"

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; "
        "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def page(name: str) -> Answer:
    """The answer that shows a page."""
    text = assemble(name)
    return Answer(text.encode(), HTML, policy=policy(text))
