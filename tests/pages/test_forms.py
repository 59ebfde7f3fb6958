import http

import numpy as np
import pytest

from calibre.pages.forms import File, files, is_form
from calibre.pages.http import RefusedError, Request

EDGE = "----WebKitFormBoundary7MA4YWxkTrZu0gW"


def form(body: bytes, kind: str = f"multipart/form-data; boundary={EDGE}") -> Request:
    headers = {"host": "h", "content-type": kind, "content-length": str(len(body))}
    return Request("POST", "/", {}, headers, True, body)


def part(content: bytes, disposition: str = 'name="f"; filename="a.png"') -> bytes:
    return f"--{EDGE}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode() + content


def test_files_of_any_bytes_come_out_as_they_went_in():
    rng = np.random.default_rng(0)
    contents = [b"", b"\r\n", b"--" + EDGE[:-1].encode(), rng.bytes(5000), b"\r\n\r\n--\r\n"]
    body = b"\r\n".join(part(content) for content in contents) + f"\r\n--{EDGE}--\r\n".encode()
    assert files(form(body)) == [File("a.png", content) for content in contents]


def test_another_librarys_forms_are_understood():
    filepost = pytest.importorskip("urllib3.filepost")
    given = [("f", ("x.png", b"\x00\x01 bytes")), ("note", "text"), ("g", ("ä.png", b"\r\n"))]
    body, kind = filepost.encode_multipart_formdata(given, boundary="a'b-c")
    found = files(form(body, kind))
    assert found == [File("x.png", b"\x00\x01 bytes"), File("ä.png", b"\r\n")]
    quoted = kind.replace("a'b-c", '"a\'b-c"').replace("multipart", "Multipart")
    assert files(form(body, quoted)) == found


def test_fields_that_are_no_files_are_left_out():
    body = part(b"text", 'name="note"') + b"\r\n" + part(b"1", 'name="f"; filename="%22q%22.png"')
    assert files(form(body + f"\r\n--{EDGE}--".encode())) == [File('"q".png', b"1")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no boundary",
        part(b"cut short"),
        f"--{EDGE}--".encode()[:-1],
        f"--{EDGE}\r\nno empty line\r\n--{EDGE}--".encode(),
        f"--{EDGE}\r\nX: y\r\n\r\nno disposition\r\n--{EDGE}--".encode(),
        f"--{EDGE}\r\nX: {'y' * 5000}\r\n\r\nlong\r\n--{EDGE}--".encode(),
    ],
)
def test_a_form_that_is_none_is_400(body):
    with pytest.raises(RefusedError) as refused:
        files(form(body))
    assert refused.value.status == http.HTTPStatus.BAD_REQUEST


def test_a_form_without_a_boundary_or_with_too_many_parts_is_refused():
    with pytest.raises(RefusedError, match="names no boundary"):
        files(form(b"", "multipart/form-data"))
    many = b"\r\n".join([part(b"x")] * 65) + f"\r\n--{EDGE}--".encode()
    with pytest.raises(RefusedError, match="more than 64 parts"):
        files(form(many))
    assert not is_form(form(b"", "image/png"))
    assert is_form(form(b"", "MULTIPART/form-data ;x=y"))
