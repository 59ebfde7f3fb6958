"""The foundation under every page, with an application of a few lines."""

import asyncio
import json
import socket
import ssl
import threading
import time
from contextlib import suppress
from http import HTTPStatus

import pytest

from calibre.errors import UserError
from calibre.pages.conversation import FAREWELL
from calibre.pages.guard import encrypted, read_token
from calibre.pages.log import RequestLog
from calibre.pages.server import Access, Answer, RefusedError, Request, Route, Server
from tests.pages.calls import QUICK, ask, dial, hear, is_closed, raw, self_signed, status, trusting

TOKEN = "correct-horse-battery-staple"
LARGE = 2**25  # bytes of an answer: more than a socket takes in


async def greet(request: Request) -> Answer:
    return Answer.of({"hello": request.query.get("name", "you")})


async def measure(request: Request) -> Answer:
    return Answer.of({"bytes": len(request.body), "sum": sum(request.body)})


async def idle(request: Request) -> Answer:
    await asyncio.sleep(float(request.query["seconds"]))
    return Answer.of("done")


async def fail(request: Request) -> Answer:
    raise OSError("the password is swordfish")


async def refuse(request: Request) -> Answer:
    raise RefusedError(HTTPStatus.CONFLICT, "somebody else was faster")


async def large(request: Request) -> Answer:
    return Answer(b"x" * LARGE, "text/plain")


ROUTES = (
    Route("/", greet), Route("/measure", measure, "POST", body=100_000), Route("/idle", idle),
    Route("/fail", fail), Route("/refuse", refuse), Route("/large", large),
)  # fmt: skip


@pytest.fixture(scope="module")
def server():
    with Server(
        ROUTES, port=0, access=Access(["Clinic.Example"]), limits=QUICK
    ).in_background() as s:
        yield s


def test_a_route_answers(server):
    assert ask(server, path="/?name=ann")[2] == {"hello": "ann"}
    body = bytes(range(256)) * 300
    assert ask(server, "POST", "/measure", body)[2] == {"bytes": len(body), "sum": sum(body)}
    assert ask(server, path="/refuse")[::2] == (409, {"error": "somebody else was faster"})


def test_many_requests_on_one_connection(server):
    ask_ = b"GET /?name=%d HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    heard = raw(server, b"".join(ask_ % number for number in range(50)) + last)
    assert heard.count(b"HTTP/1.1 200 OK") == 51
    assert [f'"{number}"'.encode() in heard for number in range(50)] == [True] * 50


def test_what_is_not_there_is_404_and_other_methods_are_405(server):
    for path in ("/x", "/../etc/passwd", "/%2e%2e/etc/passwd", "//x/card", "/measure/"):
        assert ask(server, path=path)[0] == 404, path
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH", "BREW"):
        found, headers, said = ask(server, method, "/", b"")
        assert (found, headers["Allow"]) == (405, "GET, HEAD"), method
        assert said == {"error": "/ knows GET, HEAD"}
    assert ask(server, "GET", "/measure")[1]["Allow"] == "POST"


def test_head_is_get_without_the_body(server):
    found, headers, text = ask(server, "HEAD", "/")
    assert (found, text) == (200, "")
    assert headers["Content-Length"] == str(len('{"hello": "you"}'))


def test_a_body_may_be_so_long_and_no_longer(server):
    assert ask(server, "POST", "/measure", b"x" * 100_000)[0] == 200
    found, _, said = ask(server, "POST", "/measure", b"x" * 100_001)
    assert found == 413
    assert "at most 0.1 MB" in said["error"]
    assert ask(server, "GET", "/", b"body")[0] == 413
    huge = b"POST /measure HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
    assert status(raw(server, huge)) == 413


def test_a_head_may_be_so_long_and_no_longer(server):
    long = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 3000
    assert status(raw(server, long + b"\r\n\r\n")) == 431
    assert status(raw(server, long)) == 431  # nor is its end awaited


def test_who_asks_whether_to_go_on_is_told(server):
    head = (
        b"POST /measure HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n"
        b"Expect: 100-Continue\r\nConnection: close\r\n\r\n"
    )
    with dial(server) as line:
        line.sendall(head)
        assert line.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        line.sendall(b"abc")
        assert b'"bytes": 3' in hear(line)
    assert status(raw(server, head.replace(b"/measure", b"/nowhere"))) == 404  # without sending it


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("192.168.1.5:8000", 200),  # an address cannot be made to point elsewhere
        ("clinic.example", 200),
        ("CLINIC.example.:80", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.nip.io", 421),
        ("", 400),
        ("[::1", 400),
        ("a b", 400),
        ("user@localhost", 400),
        ("localhost:99999999", 400),
        (".", 400),
    ],
)
def test_a_caller_must_know_the_servers_name(server, host, expected):
    assert ask(server, Host=host)[0] == expected


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://127.0.0.1:80", 200),
        ("https://127.0.0.1:80", 200),  # a proxy that encrypts may stand before it
        ("http://evil.example", 403),
        ("http://127.0.0.1:81", 403),
        ("null", 403),
        ("http://[", 400),
        ("http://[::1", 400),
        ("http://", 400),
        ("127.0.0.1:80", 400),
        ("http://127.0.0.1:80/", 400),
        ("", 400),
        ("://127.0.0.1:80", 400),
    ],
)
def test_pages_of_other_sites_get_no_answer(server, origin, expected):
    assert ask(server, Host="127.0.0.1:80", Origin=origin)[0] == expected


def test_every_answer_keeps_the_browser_safe(server):
    for path in ("/", "/nowhere"):
        headers = ask(server, path=path)[1]
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-store"


def test_a_caller_that_falls_silent_is_let_go(server):
    began = time.monotonic()
    head = b"POST /measure HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nfew"
    assert status(raw(server, head)) == 408
    assert status(raw(server, b"GET / HT")) == 408
    assert raw(server, b"") == b""
    assert time.monotonic() - began < 8


@pytest.mark.parametrize(
    ("start", "most"),
    [
        (b"", QUICK.head_seconds),
        (b"GET / HTTP/1.1\r\nX: ", QUICK.head_seconds),
        (
            b"POST /measure HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n",
            QUICK.seconds,
        ),
        (b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n", 0),
    ],
    ids=["first-byte", "head", "body", "refused"],
)
def test_a_caller_that_trickles_is_let_go(server, start, most):
    with dial(server) as line:
        line.sendall(start)
        began = time.monotonic()
        with suppress(OSError):
            while time.monotonic() - began < 8:
                line.sendall(b"x")
                time.sleep(0.1)
        assert time.monotonic() - began < most + FAREWELL + 0.9


def test_many_slow_senders_cannot_hold_the_service(server):
    """Five times as many as there is room for, all trickling: who asks properly is answered."""
    stop = threading.Event()
    body = b"POST /measure HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n"
    starts = (b"GET / HTTP/1.1\r\nX: ", body)

    def trickle(number: int) -> None:
        while not stop.is_set():
            with suppress(OSError), dial(server) as line:
                line.sendall(starts[number % 2])
                while not stop.wait(0.05):
                    line.sendall(b"x")

    threads = [threading.Thread(target=trickle, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(0.3)
        took = []
        for _ in range(20):
            began = time.monotonic()
            assert ask(server)[0] == 200
            took.append(time.monotonic() - began)
        assert sorted(took)[10] < 0.5
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_when_all_are_worked_for_a_newcomer_is_told_so(server):
    lines = [dial(server) for _ in range(QUICK.connections)]
    for line in lines:
        line.sendall(
            b"GET /idle?seconds=1.5 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
    time.sleep(0.3)
    assert status(raw(server, b"")) == 503
    assert [status(hear(line)) for line in lines] == [200] * len(lines)
    for line in lines:
        line.close()
    assert ask(server)[0] == 200


def test_bodies_of_many_callers_have_one_bound(server):
    """300 kB are allowed; five callers of 90 kB that never finish leave room for a sixth."""
    head = b"POST /measure HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90001\r\n\r\n"
    lines = [dial(server) for _ in range(5)]
    for line in lines:
        line.sendall(head + b"x" * 90_000)
    time.sleep(0.2)
    assert ask(server, "POST", "/measure", b"x" * 90_000)[0] == 200
    assert is_closed(lines[0], 0.2)  # long before its time is up
    for line in lines:
        line.close()


def test_who_does_not_take_the_answer_is_let_go(server):
    with dial(server) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert "\ncalibre_connections 2\n" in ask(server, path="/metrics")[2]
        time.sleep(QUICK.seconds + 0.2)
        assert "\ncalibre_connections 1\n" in ask(server, path="/metrics")[2]
    assert len(ask(server, path="/large")[2]) == LARGE


def test_work_that_takes_too_long_is_503(server):
    began = time.monotonic()
    assert ask(server, path="/idle?seconds=30")[0] == 503
    assert time.monotonic() - began < 5


def test_a_failure_of_ours_is_500_and_keeps_its_secrets(server, capsys):
    found, _, said = ask(server, path="/fail")
    assert found == 500
    assert "swordfish" not in said["error"]
    assert "swordfish" in capsys.readouterr().err
    assert ask(server)[0] == 200  # and it goes on


def test_health_and_metrics(server):
    assert ask(server, path="/health")[2] == {"status": "ok"}
    before = ask(server, path="/metrics")[2]
    ask(server, path="/secret-path?name=secret")
    headers, text = ask(server, path="/metrics")[1:]
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    series = 'calibre_requests_total{method="GET",path="other",status="404"} '

    def count(text: str) -> int:
        return int(next(line for line in text.splitlines() if line.startswith(series)).split()[-1])

    assert count(text) == (count(before) if series in before else 0) + 1
    assert "secret" not in text
    assert "calibre_request_seconds_count" in text
    assert "calibre_connections 1" in text


def test_the_log_has_no_contents(tmp_path):
    log = RequestLog(tmp_path / "log")
    with Server(ROUTES, port=0, log=log).in_background() as made:
        ask(made, "POST", "/measure", b"swordfish", X="swordfish")
        ask(made, path="/swordfish?swordfish")
        ask(made, path="/?name=swordfish", Host="swordfish")
        raw(made, b"SWORDFISH / HTTP/1.1\r\n\r\n")
    text = (tmp_path / "log").read_text()
    assert "swordfish" not in text.lower()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["status"] for line in lines] == [200, 404, 421, 400]
    assert [line["path"] for line in lines] == ["/measure", "other", "/", "other"]
    assert lines[0]["received"] == 9
    assert lines[0]["caller"] == "127.0.0.1"
    assert all(0 <= line["ms"] < 5000 for line in lines)


@pytest.fixture(scope="module")
def locked():
    with Server(ROUTES, port=0, access=Access(token=TOKEN)).in_background() as made:
        yield made


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 401),
        ({"Authorization": f"Bearer {TOKEN}"}, 200),
        ({"Authorization": f"bearer  {TOKEN} "}, 200),
        ({"Authorization": f"Bearer {TOKEN[:-1]}"}, 401),
        ({"Authorization": f"Basic {TOKEN}"}, 401),
        ({"Authorization": "Bearer \xe4"}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Cookie": "calibre-{port}=" + TOKEN}, 200),
        ({"Cookie": "a=b; calibre-{port}=" + TOKEN + "; c"}, 200),
        ({"Cookie": "calibre-1=" + TOKEN}, 401),
        ({"Cookie": "calibre-{port}=x"}, 401),
    ],
)
def test_a_token_must_be_known(locked, headers, expected):
    given = {name: value.replace("{port}", str(locked.port)) for name, value in headers.items()}
    found, told, said = ask(locked, **given)
    assert found == expected
    if expected == 401:
        assert told["WWW-Authenticate"] == "Bearer"
        assert TOKEN not in said["error"]


def test_without_the_token_there_is_health_and_nothing_else(locked):
    assert ask(locked, path="/health")[0] == 200
    for path in ("/metrics", "/", "/nowhere", "/measure"):
        assert ask(locked, path=path)[0] == 401, path
    assert ask(locked, "POST", "/measure", b"x")[0] == 401


def test_a_person_enters_the_token_once(locked):
    found, headers, page = ask(locked, Accept="text/html")
    assert found == 401
    assert "form-action 'self'" in headers["Content-Security-Policy"]
    assert "hidden>That is not the token" in page
    wrong = ask(locked, "POST", "/enter", "token=wrong")
    assert wrong[0] == 401
    assert "hidden>That is not" not in wrong[2]
    for nonsense in (b"", b"\xff", b"&" * 100, b"token=%ff"):
        assert ask(locked, "POST", "/enter", nonsense)[0] == 401
    found, headers, _ = ask(locked, "POST", "/enter", f"token={TOKEN}%0A")
    assert (found, headers["Location"]) == (303, "/")
    cookie, *attributes = headers["Set-Cookie"].split("; ")
    assert set(attributes) == {"HttpOnly", "SameSite=Strict", "Path=/"}
    assert ask(locked, Cookie=cookie)[0] == 200
    assert ask(locked, "POST", "/enter", f"token={TOKEN}", Origin="http://evil.example")[0] == 403


def test_tls(tmp_path):
    certificate, key = self_signed(tmp_path)
    access = Access(token=TOKEN, tls=encrypted(certificate, key))
    with Server(ROUTES, port=0, access=access, limits=QUICK).in_background() as made:
        assert made.url == f"https://127.0.0.1:{made.port}/"
        trust, known = trusting(certificate), {"Authorization": f"Bearer {TOKEN}"}
        assert ask(made, tls=trust, **known)[0] == 200
        assert (
            ask(made, "POST", "/measure", b"x" * 99_999, tls=trust, **known)[2]["bytes"] == 99_999
        )
        assert "Secure" in ask(made, "POST", "/enter", f"token={TOKEN}", tls=trust)[1]["Set-Cookie"]
        assert b"200" not in raw(made, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with dial(made) as line, pytest.raises(ssl.SSLError):
            old.wrap_socket(line)
        silent = [dial(made) for _ in range(3 * QUICK.connections)]  # none ever greets
        assert ask(made, tls=trust, **known)[0] == 200
        assert all(is_closed(line, QUICK.head_seconds + 2) for line in silent)
        assert ask(made, tls=trust, **known)[0] == 200


def test_others_are_let_in_only_by_token_and_tls(tmp_path):
    tls = encrypted(*self_signed(tmp_path))
    for access, lacking in (
        (Access(), "--token and --certificate and --key"),
        (Access(token=TOKEN), "give --certificate and --key"),
        (Access(tls=tls), "give --token"),
    ):
        for host in ("0.0.0.0", "::"):
            with pytest.raises(UserError, match=f"others than this machine.*{lacking}"):
                Server(ROUTES, host, 0, access)
    for access in (Access(token=TOKEN, tls=tls), Access(unprotected=True)):
        with Server(ROUTES, "0.0.0.0", 0, access).in_background() as made:
            assert made.url.partition(":")[2].startswith("//0.0.0.0:")


def test_loopback_unless_told_otherwise(server):
    assert server.url.startswith("http://127.0.0.1:")
    with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1 port {server.port}"):
        Server(ROUTES, port=server.port)
    with pytest.raises(UserError, match=r"cannot listen on no\.such\.host\.invalid"):
        Server(ROUTES, host="no.such.host.invalid", port=0)
    with pytest.raises(UserError, match="cannot listen on"):
        Server(ROUTES, host="a" * 70 + ".example", port=0)


def test_a_token_is_made_once_and_read_with_care(tmp_path):
    file = tmp_path / "token"
    made = read_token(file)
    assert len(made) >= 40
    assert read_token(file) == made
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    with pytest.raises(UserError, match="others can read the token"):
        read_token(file)
    file.chmod(0o600)
    for bad in ("short", "", "with space in the middle of it", "x" * 300, "ü" * 30):
        file.write_text(bad)
        with pytest.raises(UserError, match="holds no token"):
            read_token(file)
    with pytest.raises(UserError, match="is not a file"):
        read_token(tmp_path)
    with pytest.raises(UserError, match=r"cannot use .* for the token"):
        read_token(tmp_path / "nowhere" / "token")


def test_certificates_that_are_none_are_told(tmp_path):
    certificate, key = self_signed(tmp_path)
    (tmp_path / "junk").write_text("junk")
    for pair in ((certificate, tmp_path / "junk"), (tmp_path / "junk", key), (key, certificate)):
        with pytest.raises(UserError, match="are not a certificate and its unlocked key"):
            encrypted(*pair)
    with pytest.raises(UserError, match="no such file"):
        encrypted(tmp_path / "nowhere", key)
