import pytest


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """Pictures are tested where they are drawn; here they would take most of the time."""
    monkeypatch.setattr("calibre.report.results.accuracy_figure", lambda *_, **__: None)
