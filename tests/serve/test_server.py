import http.client
import io
import json
import socket
import threading
import time

import numpy as np
import pytest
from PIL import Image

from calibre.errors import UserError
from calibre.serve.server import Limits, Server
from tests.personal.made_bundle import COLOURS, STRANGER, make_bundle, square

SMALL = Limits(body=200_000, pixels=100_000, seconds=1.0, at_once=2)


@pytest.fixture(scope="module")
def bundle():
    return make_bundle()


@pytest.fixture(scope="module")
def server(bundle):
    made = Server(bundle, port=0, names=["Clinic.Example"], limits=SMALL)
    thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def ask(server, method="POST", path="/predict", body=None, **headers):
    """Status, headers and JSON (or text) of one request; header names with _ for -."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=20)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, names)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    is_json = answer.headers["Content-Type"] == "application/json"
    return answer.status, answer.headers, json.loads(text) if is_json else text


def png(pixels, mode=None) -> bytes:
    file = io.BytesIO()
    picture = Image.fromarray(pixels)
    (picture.convert(mode) if mode else picture).save(file, "PNG")
    return file.getvalue()


def test_an_image_gets_what_the_bundle_says(server, bundle):
    pixels = square(COLOURS["green"], 77)
    status, _, said = ask(server, body=png(pixels))
    (expected,) = bundle.predict(pixels)
    assert status == 200
    assert said["label"] == said["answer"] == "green"
    assert said["probability"] == expected.probability
    assert said["probabilities"] == expected.probabilities
    assert said["limit"] == bundle.limit
    _, _, stranger = ask(server, body=png(square(STRANGER, 3)))
    assert stranger["label"] is None
    assert stranger["answer"] == "none of your classes"


def test_the_page_and_the_card(server, bundle):
    status, headers, page = ask(server, "GET", "/?x=1")
    assert status == 200
    assert headers["Content-Type"].startswith("text/html")
    assert "script-src 'sha256-" in headers["Content-Security-Policy"]
    assert "Choose images" in page
    assert "://" not in page  # nothing from elsewhere
    assert ask(server, "GET", "/card")[2]["hash"] == bundle.card.hash


@pytest.mark.parametrize(
    "path", ["/../../etc/passwd", "/%2e%2e/etc/passwd", "/page.html", "/predict", "//x/card"]
)
def test_nothing_else_is_there(server, path):
    assert ask(server, "GET", path)[0] == 404


@pytest.mark.parametrize("method", ["PUT", "DELETE", 'GE"T'])
def test_other_methods_are_refused_in_json(server, method):
    status, _, said = ask(server, method)
    assert status == 501
    assert "Unsupported method" in said["error"]


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"", 415, "send an image file"),
        (b"%PDF-1.4", 415, "PNG, JPEG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 415, "send an image file"),
        (b"\x89PNG\r\n\x1a\n", 415, "send an image file"),
        (png(square((9, 9, 9), 1))[:-30], 422, "the image cannot be decoded"),
        (b"x" * 200_001, 413, "at most"),
    ],
    ids=["nothing", "pdf", "eps", "torn-head", "torn-tail", "large"],
)
def test_what_is_no_image_is_refused(server, body, status, why):
    found, _, said = ask(server, body=body)
    assert (found, why in said["error"]) == (status, True), said


def test_a_small_file_with_many_pixels_is_refused_unopened(server):
    bomb = png(np.zeros((400, 400), np.uint8), mode="1")
    assert len(bomb) < 1000
    status, _, said = ask(server, body=bomb)
    assert status == 413
    assert "million pixels" in said["error"]


@pytest.mark.parametrize(
    ("host", "status"),
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
        ("", 421),
        ("[::1", 421),
    ],
)
def test_a_caller_must_know_the_servers_name(server, host, status):
    assert ask(server, "GET", "/card", Host=host)[0] == status


def test_pages_of_other_sites_get_no_answer(server):
    body = png(square(COLOURS["red"], 1))
    host = f"127.0.0.1:{server.server_address[1]}"
    assert ask(server, body=body, Host=host, Origin=f"http://{host}")[0] == 200
    assert ask(server, body=body, Host=host, Origin="http://evil.example")[0] == 403
    assert ask(server, body=body, Host=host, Origin="null")[0] == 403


def raw(server, request: bytes, wait: float = 10) -> bytes:
    """What comes back for these very bytes."""
    with socket.create_connection(server.server_address[:2], timeout=wait) as line:
        line.sendall(request)
        parts = []
        while part := line.recv(65536):
            parts.append(part)
        return b"".join(parts)


def test_a_length_must_be_given_and_be_a_number(server):
    start = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"
    for more in (
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: x\r\n",
    ):
        assert b" 411 " in raw(server, start + more + b"\r\n").split(b"\r\n")[0]
    assert b" 413 " in raw(server, start + b"Content-Length: 99999999999\r\n\r\n").split(b"\r\n")[0]


def test_a_caller_that_falls_silent_is_let_go(server):
    began = time.monotonic()
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nfew"
    assert b" 408 " in raw(server, head).split(b"\r\n")[0]
    assert raw(server, b"GET / HT") == b""
    assert time.monotonic() - began < 15


def test_a_caller_that_trickles_is_let_go(server):
    with socket.create_connection(server.server_address[:2], timeout=10) as line:
        line.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n")
        began = time.monotonic()
        try:
            while time.monotonic() - began < 8:
                line.sendall(b"x")
                time.sleep(0.1)
        except OSError:
            pass
        assert time.monotonic() - began < 6


def test_many_callers_at_once_all_get_their_own_answer(server):
    names = list(COLOURS) * 6
    found: list[str | None] = [None] * len(names)

    def one(i: int) -> None:
        found[i] = ask(server, body=png(square(COLOURS[names[i]], 50 + i)))[2]["label"]

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(names))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sum(a == b for a, b in zip(found, names, strict=True)) >= len(names) - 2


def test_a_failure_of_ours_is_500_and_keeps_its_secrets(server, bundle, monkeypatch, capsys):
    def fail(body):
        raise RuntimeError("the password is swordfish")

    monkeypatch.setattr(bundle, "predict", fail)
    status, _, said = ask(server, body=png(square(COLOURS["red"], 1)))
    assert status == 500
    assert "swordfish" not in said["error"]
    assert "swordfish" in capsys.readouterr().err
    monkeypatch.undo()
    assert ask(server, body=png(square(COLOURS["red"], 1)))[0] == 200  # and it goes on


def test_loopback_unless_told_otherwise(server, bundle):
    assert server.server_address[0] == "127.0.0.1"
    assert server.url.startswith("http://127.0.0.1:")
    with pytest.raises(
        UserError, match=f"cannot listen on 127.0.0.1 port {server.server_address[1]}"
    ):
        Server(bundle, port=server.server_address[1])
    with pytest.raises(UserError, match=r"cannot listen on no\.such\.host\.invalid"):
        Server(bundle, host="no.such.host.invalid", port=0)
