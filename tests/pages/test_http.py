import http.client
import io
import json

import pytest

from calibre.pages.http import Answer, RefusedError, read_head


def head(line: str, *fields: str) -> bytes:
    return "\r\n".join([line, *fields, "", ""]).encode("latin-1")


def test_a_request_is_read():
    fields = ["Host: h:1", "CONTENT-length:  12 ", "A: b", "a:c"]
    found = read_head(head("POST /a%20b?x=1&y=%C3%A4&z= HTTP/1.1", *fields))
    assert (found.method, found.path, found.length) == ("POST", "/a%20b", 12)
    assert found.query == {"x": "1", "y": "ä", "z": ""}
    assert found.headers == {"host": "h:1", "content-length": "12", "a": "b, c"}


@pytest.mark.parametrize(
    ("line", "fields", "lasting"),
    [
        ("GET / HTTP/1.1", [], True),
        ("GET / HTTP/1.1", ["Connection: Close"], False),
        ("GET / HTTP/1.1", ["Connection: upgrade, close"], False),
        ("GET / HTTP/1.0", [], False),
    ],
)
def test_whether_the_caller_stays(line, fields, lasting):
    assert read_head(head(line, "Host: h", *fields)).lasting is lasting


@pytest.mark.parametrize(
    "line",
    [
        "", "GET", "GET /", "GET / HTTP/1.1 ", " GET / HTTP/1.1", "GET  / HTTP/1.1",
        "GET\t/\tHTTP/1.1", 'GE"T / HTTP/1.1', "GET / http/1.1", "GET / HTTP/1.11", "GET / HTTP/1",
        "GET /\x00 HTTP/1.1", "GET /\xe4 HTTP/1.1", "GET /a b HTTP/1.1", "GET x HTTP/1.1",
        "GET * HTTP/1.1", "GET http://h/ HTTP/1.1", "CONNECT h:443 HTTP/1.1", "GET /#x HTTP/1.1",
        "GET /% HTTP/1.1", "GET /%g0 HTTP/1.1", "GET /?%ff HTTP/1.1", "GET /\n HTTP/1.1",
        "GET /?" + "&".join(f"a{i}=1" for i in range(17)) + " HTTP/1.1",
    ],
)  # fmt: skip
def test_first_lines_that_are_none_are_400(line):
    with pytest.raises(RefusedError) as refused:
        read_head(head(line, "Host: h"))
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "fields",
    [
        [], ["Host h"], ["Host: a", "Host: a"], ["Host : h"], ["Host: h", " folded"],
        ["Host: h", "A\x00: b"], ["Host: h", "A: b\x00"], ["Host: h\nX: y"], ["Host: h", ": b"],
        ["Host: h", "A: b\rC: d"], ["Host: h", "A: \x7f"], ["Host: h", "Origin: a", "Origin: a"],
        ["Host: h", "Content-Length: 1", "Content-Length: 1"], ["Host: h", "Content-Length: -1"],
        ["Host: h", "Content-Length: +1"], ["Host: h", "Content-Length: 1, 1"],
        ["Host: h", "Content-Length: 0x1"], ["Host: h", "Content-Length:"],
        ["Host: h", "Content-Length: \xb2"], ["Host: h", "Content-Length: " + "9" * 19],
        ["Host: h", "Content-Length: 1", "Transfer-Encoding: chunked"],
    ],
)  # fmt: skip
def test_headers_that_can_be_read_in_two_ways_are_400(fields):
    with pytest.raises(RefusedError) as refused:
        read_head(head("POST / HTTP/1.1", *fields))
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("line", "fields", "status"),
    [
        ("POST / HTTP/1.1", ["Host: h", "Transfer-Encoding: chunked"], 411),
        ("POST / HTTP/1.1", ["Host: h"], 411),
        ("GET / HTTP/2.0", ["Host: h"], 505),
        ("GET / HTTP/1.1", ["Host: h", *["A: b"] * 100], 431),
    ],
)
def test_what_is_refused_for_another_reason(line, fields, status):
    with pytest.raises(RefusedError) as refused:
        read_head(head(line, *fields))
    assert refused.value.status == status


class Wire(io.BytesIO):
    """Bytes as the standard library's client reads them."""

    def makefile(self, mode):
        return self


def test_an_answer_is_what_another_library_reads():
    said = {"answer": "größer", "surrogate": "\ud800"}
    answer = Answer.of(said, http.HTTPStatus.CREATED)
    found = http.client.HTTPResponse(Wire(answer.encoded(lasting=False)))
    found.begin()
    assert (found.status, found.reason) == (201, "Created")
    assert found.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert found.headers["X-Content-Type-Options"] == "nosniff"
    assert json.loads(found.read()) == {"answer": "größer", "surrogate": "?"}
    assert answer.encoded(True, with_body=False).endswith(b"\r\n\r\n")


def test_a_line_break_cannot_leave_a_header():
    with pytest.raises(AssertionError):
        Answer(b"", headers={"Location": "/\r\nSet-Cookie: a=b"}).encoded(True)
