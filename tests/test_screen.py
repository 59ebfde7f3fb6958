import io

from rich.console import Console

from calibre.errors import printable
from calibre.report.events import ClientFailed, Progressed, Warned
from calibre.screen import LiveView, result_table
from tests.report.in_memory import metrics


def test_what_others_say_never_rules_a_terminal():
    evil = "\x1b[2J\x1b]0;title\x07\x9b31m\r\x08gone\u202eevil\ud800 [red]brackets[/]\nnext\t"
    file = io.StringIO()
    with LiveView(Console(file=file, width=200)) as view:
        view(ClientFailed(round=1, client=3, cause=evil))
        view(Warned(text=evil))
        view(Progressed(stage=evil, done=1, of=1))
    told = file.getvalue()
    assert told.count("gone\ufffdevil\ufffd [red]brackets[/]\nnext") == 3
    for character in "\x1b\x07\x9b\r\x08\u202e":
        assert character not in told


def test_a_client_that_fails_is_called_by_its_name():
    file = io.StringIO()
    with LiveView(Console(file=file, width=200)) as view:
        view(ClientFailed(round=1, client=3, name="hospital-2", cause="no disk"))
        view(ClientFailed(round=1, client=3, cause="no disk"))  # of an older log
    assert file.getvalue().splitlines() == [
        "round 1: hospital-2 failed: no disk", "round 1: client 3 failed: no disk",
    ]  # fmt: skip


def test_a_method_of_any_name_is_shown_in_words():
    figures = {"clients": 1, "mean": 0.5, "variance": 0, "std": 0, "worst_tenth": 0}
    file = io.StringIO()
    Console(file=file, width=200).print(result_table(metrics(method="a\x1b[31mb", train=figures)))
    assert "a\ufffd[31mb" in file.getvalue()
    assert "\x1b" not in file.getvalue()


def test_no_figure_is_cut_off_by_a_long_name():
    figures = {
        "clients": 8, "mean": 0.9625, "variance": 0.0123, "std": 0, "worst_tenth": 0.9048,
        "interval": (0.923, 1.0),
    }  # fmt: skip
    file = io.StringIO()
    name = "Calibre (SimCLR) with labels, two networks"
    Console(file=file, width=80).print(result_table(metrics(method=name, train=figures)))
    for figure in ("96.25", "92.3–100.0", "0.0123", "90.48"):
        assert figure in file.getvalue()


def test_words_of_all_languages_stay():
    text = "größe 大 \u0646\u0645\u06cc\u200c\u062f\u0627\u0646\u0645 🙂\n\tx"
    assert printable(text) == text
