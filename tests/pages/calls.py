"""How tests speak to a server: in good HTTP, and in bytes of their own."""

import http.client
import io
import json
import socket
import ssl
import time

import numpy as np
from PIL import Image

from calibre.pages.server import Limits, Server

QUICK = Limits(head=2000, head_seconds=1.0, seconds=3.0, patience=3, connections=8, memory=300_000)


def ask(server: Server, method="GET", path="/", body=None, tls=None, **headers):
    """Status, headers and JSON (or text) of one request; header names with _ for -."""
    connection = (
        http.client.HTTPSConnection("127.0.0.1", server.port, timeout=20, context=tls)
        if tls
        else http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    )
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, names)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    is_json = answer.headers["Content-Type"] == "application/json" and text
    return answer.status, answer.headers, json.loads(text) if is_json else text


def dial(server: Server, wait: float = 10) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=wait)


def hear(line: socket.socket) -> bytes:
    """All that comes until the server closes."""
    parts = []
    try:
        while part := line.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def raw(server: Server, request: bytes, wait: float = 10) -> bytes:
    """What comes back for these very bytes."""
    with dial(server, wait) as line:
        line.sendall(request)
        return hear(line)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def is_closed(line: socket.socket, wait: float) -> bool:
    """Whether the server hangs up within so many seconds."""
    end = time.monotonic() + wait
    while (left := end - time.monotonic()) > 0:
        line.settimeout(left)
        try:
            if not line.recv(65536):
                return True
        except TimeoutError:
            return False
        except OSError:
            return True
    return False


def png(pixels: np.ndarray, mode: str | None = None) -> bytes:
    file = io.BytesIO()
    picture = Image.fromarray(pixels)
    (picture.convert(mode) if mode else picture).save(file, "PNG")
    return file.getvalue()


def trusting(certificate) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


def self_signed(folder):
    """A certificate for 127.0.0.1 and its key, as PEM files."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "server.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder / "server.crt", folder / "server.key"
