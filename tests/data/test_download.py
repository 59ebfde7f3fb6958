"""Downloads from a server on this machine that breaks off, lies, and serves traps."""

import gzip
import hashlib
import io
import re
import tarfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from calibre.data import download as module
from calibre.data.download import RECIPES, Download, Remote, download
from calibre.data.formats.known import KNOWN
from calibre.data.sources import load
from calibre.errors import UserError
from calibre.sections import DataSettings

NAMES = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
FOLDER = "cifar-10-batches-bin"


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def regular(name: str, content: bytes = b"x") -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), content


def link(name: str, target: str, kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def cifar10() -> bytes:
    """The archive as published, with two images a file. Noise, so that it stays some 36 kB."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 2, 3073), dtype=np.uint8)
    images[..., 0] %= 10
    return tar(*(regular(f"{FOLDER}/{n}", x.tobytes()) for n, x in zip(NAMES, images, strict=True)))


ARCHIVE = cifar10()


@dataclass
class Server:
    """Answers each request by the next behaviour, the last one for ever."""

    files: dict[str, bytes] = field(default_factory=dict)
    behaviours: list[Callable] = field(default_factory=list)
    ranges: list[str | None] = field(default_factory=list)  # what was asked for
    base: str = ""

    def recipe(self, content: bytes, folder: str = FOLDER, **published) -> dict[str, Download]:
        """Serve ``content`` and publish what it is, or what we claim it is."""
        self.files["/a.tar.gz"] = content
        about = {"size": len(content), "md5": hashlib.md5(content).hexdigest()} | published
        return {"cifar10": Download((Remote(f"{self.base}/a.tar.gz", **about),), folder, 100_000)}


@pytest.fixture
def server():
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            state.ranges.append(self.headers.get("Range"))
            step = min(len(state.ranges), len(state.behaviours)) - 1
            state.behaviours[step](self, state.files[self.path])

        def log_message(self, *_):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.base = f"http://127.0.0.1:{httpd.server_port}"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "PAUSE", 0.0)
    monkeypatch.setenv("CALIBRE_CACHE", str(tmp_path / "pools"))


def answer(handler, status, body, **headers):
    handler.send_response(status)
    for name, value in {"Content_Length": len(body), **headers}.items():
        handler.send_header(name.replace("_", "-"), str(value))
    handler.end_headers()
    handler.wfile.write(body)


def honest(handler, content, stop=None):
    """The whole file or the range asked for; ``stop`` breaks off there, but promises all."""
    asked = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
    if not asked:
        answer(handler, 200, content[:stop], Content_Length=len(content))
    else:
        start = int(asked[1])
        answer(
            handler,
            206,
            content[start:stop],
            Content_Length=len(content) - start,
            Content_Range=f"bytes {start}-{len(content) - 1}/{len(content)}",
        )


def breaks_off_at(stop):
    return lambda handler, content: honest(handler, content, stop)


def ignores_range(handler, content):
    answer(handler, 200, content)


def fails(status):
    return lambda handler, content: answer(handler, status, b"sorry")


def hangs_up(handler, content):
    handler.connection.close()


def chunked(handler, content):
    """Without a length, as servers do that compress on the fly."""
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(content)


def test_what_is_downloaded_is_found_and_read(server, tmp_path):
    server.behaviours = [honest]
    seen = []
    place = download("cifar10", tmp_path, lambda *at: seen.append(at), server.recipe(ARCHIVE))
    assert place == tmp_path / "cifar10" / FOLDER
    assert sorted(path.name for path in place.iterdir()) == sorted(NAMES)
    assert [path.name for path in tmp_path.iterdir()] == ["cifar10"], "nothing else is left"
    assert seen[0] == (0, len(ARCHIVE))
    assert seen[-1] == (len(ARCHIVE), len(ARCHIVE))
    assert load(DataSettings(source="cifar10", root=tmp_path)).images.shape == (12, 32, 32, 3)

    assert download("cifar10", tmp_path, recipes=server.recipe(ARCHIVE)) == place
    assert len(server.ranges) == 1, "what is there is not fetched again"


def test_a_broken_download_goes_on_where_it_broke_off(server, tmp_path):
    server.behaviours = [breaks_off_at(5000), breaks_off_at(5000), fails(503), hangs_up, honest]
    seen = []
    download("cifar10", tmp_path, lambda done, total: seen.append(done), server.recipe(ARCHIVE))
    assert server.ranges == [None, *4 * ["bytes=5000-"]]
    assert seen == sorted(seen)


def test_a_later_run_goes_on_where_an_earlier_gave_up(server, tmp_path):
    recipe = server.recipe(ARCHIVE)
    server.behaviours = [breaks_off_at(7000), hangs_up]
    with pytest.raises(UserError, match="What came so far is kept"):
        download("cifar10", tmp_path, recipes=recipe)
    assert not (tmp_path / "cifar10").exists()
    server.ranges.clear()
    server.behaviours = [honest]
    download("cifar10", tmp_path, recipes=recipe)
    assert server.ranges == ["bytes=7000-"]


def test_many_breaks_are_no_failure_while_each_brings_something(server, tmp_path):
    server.behaviours = [breaks_off_at(1000 * i) for i in range(1, 21)] + [honest]
    download("cifar10", tmp_path, recipes=server.recipe(ARCHIVE))
    assert server.ranges[-1] == "bytes=20000-"


def test_a_server_that_ignores_ranges_starts_again(server, tmp_path):
    server.behaviours = [breaks_off_at(9000), ignores_range]
    download("cifar10", tmp_path, recipes=server.recipe(ARCHIVE))
    assert server.ranges == [None, "bytes=9000-"]


def test_a_server_that_says_no_length(server, tmp_path):
    server.behaviours = [chunked]
    download("cifar10", tmp_path, recipes=server.recipe(ARCHIVE))
    assert (tmp_path / "cifar10").exists()


def test_a_part_longer_than_the_file_starts_again(server, tmp_path):
    (tmp_path / ".cifar10.download").mkdir()
    (tmp_path / ".cifar10.download" / "a.tar.gz.part").write_bytes(b"x" * (len(ARCHIVE) + 1))
    server.behaviours = [honest]
    download("cifar10", tmp_path, recipes=server.recipe(ARCHIVE))
    assert server.ranges == [None]


@pytest.mark.parametrize(
    "lie",
    [
        lambda handler, content: answer(handler, 200, content, Content_Length=len(content) + 100),
        lambda handler, content: answer(handler, 200, content, Content_Length=len(content) - 100),
        lambda handler, content: answer(handler, 200, b"<html>please log in</html>"),
    ],
)
def test_another_length_than_published(server, tmp_path, lie):
    server.behaviours = [lie]
    with pytest.raises(UserError, match=rf"bytes where {len(ARCHIVE):,} were published"):
        download("cifar10", tmp_path, recipes=server.recipe(ARCHIVE))
    assert len(server.ranges) == 1


def test_a_promised_length_that_never_comes(server, tmp_path):
    server.behaviours = [
        lambda handler, content: answer(handler, 200, content[:99], Content_Length=len(content))
    ]
    with pytest.raises(UserError, match=rf"broke off after 99 of {len(ARCHIVE):,} bytes"):
        download("cifar10", tmp_path, recipes=server.recipe(ARCHIVE))
    assert len(server.ranges) == module.ATTEMPTS


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (403, 1), (500, 5), (429, 5)])
def test_servers_that_refuse(server, tmp_path, status, requests):
    server.behaviours = [fails(status)]
    with pytest.raises(UserError, match=f"the server answers {status}"):
        download("cifar10", tmp_path, recipes=server.recipe(ARCHIVE))
    assert len(server.ranges) == requests


def test_nobody_there(tmp_path):
    recipe = {"cifar10": Download((Remote("http://127.0.0.1:9/a.tar.gz", 1, ""),), FOLDER, 1)}
    with pytest.raises(UserError, match=r"no connection: .*refused"):
        download("cifar10", tmp_path, recipes=recipe)


def test_a_corrupted_file_is_thrown_away(server, tmp_path):
    corrupted = bytearray(ARCHIVE)
    corrupted[len(ARCHIVE) // 2] ^= 1
    recipe = server.recipe(bytes(corrupted), md5=hashlib.md5(ARCHIVE).hexdigest())
    server.behaviours = [honest]
    with pytest.raises(UserError, match=r"checksum .* instead of the published"):
        download("cifar10", tmp_path, recipes=recipe)
    assert not (tmp_path / "cifar10").exists()
    server.files["/a.tar.gz"] = ARCHIVE
    download("cifar10", tmp_path, recipes=recipe)
    assert server.ranges == [None, None], "the second run starts afresh"


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([regular("../escaped")], "outside its folder"),
        ([regular(f"{FOLDER}/../../escaped")], "outside its folder"),
        ([regular("ABSOLUTE/escaped")], "outside its folder"),
        ([link("out", "../..", tarfile.SYMTYPE), regular("out/escaped")], "is a link"),
        ([link(f"{FOLDER}/out", "/etc/passwd", tarfile.LNKTYPE)], "is a link"),
        ([link(f"{FOLDER}/out", "", tarfile.FIFOTYPE)], "is a link or device"),
        ([link(f"{FOLDER}/out", "", tarfile.CHRTYPE)], "is a link or device"),
        ([regular(f"{FOLDER}/bomb", bytes(10_000_000))], "more than the data set can have"),
        ([regular(f"{FOLDER}/{i}", bytes(30_000)) for i in range(4)], "more than the data set can"),
        ([regular(f"{FOLDER}/{i}", b"") for i in range(101)], "more than the data set can have"),
        ([regular("other/file")], f"holds no folder {FOLDER}"),
    ],
)  # fmt: skip
def test_malicious_archives(server, tmp_path, members, message):
    for info, _ in members:
        info.name = info.name.replace("ABSOLUTE", str(tmp_path))
    root = tmp_path / "a" / "root"
    server.behaviours = [honest]
    with pytest.raises(UserError, match=message):
        download("cifar10", root, recipes=server.recipe(tar(*members)))
    assert not list(tmp_path.rglob("escaped"))
    assert not (root / "cifar10").exists()
    assert [path.name for path in root.rglob("*") if path.is_file()] == ["a.tar.gz.part"]


@pytest.mark.parametrize(
    "content",
    [b"no archive", gzip.compress(b"no tar"), ARCHIVE[:-5000]],
    ids=["text", "no tar", "cut short"],  # not the bytes: gzip writes the time into them
)
def test_an_archive_that_is_none(server, tmp_path, content):
    server.behaviours = [honest]
    with pytest.raises(UserError, match="cannot be unpacked"):
        download("cifar10", tmp_path, recipes=server.recipe(content))
    assert not (tmp_path / "cifar10").exists()


def test_several_files_make_one_folder(server, tmp_path):
    """MNIST comes as four gzipped files that stay as they are."""

    def idx(array):
        head = bytes([0, 0, 8, array.ndim])
        return gzip.compress(
            head + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()
        )

    images, labels = (
        np.arange(2 * 784, dtype=np.uint8).reshape(2, 28, 28),
        np.array([3, 4], np.uint8),
    )
    remotes = []
    for remote in RECIPES["mnist"].files:
        content = idx(images if "images" in remote.name else labels)
        server.files[f"/{remote.name}"] = content
        about = len(content), hashlib.md5(content).hexdigest()
        remotes.append(Remote(f"{server.base}/{remote.name}", *about))
    server.behaviours = [breaks_off_at(30), honest]
    total = sum(remote.size for remote in remotes)
    seen = []
    download(
        "mnist",
        tmp_path,
        lambda *at: seen.append(at),
        {"mnist": Download(tuple(remotes), "raw", 0)},
    )
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    pool = load(DataSettings(source="mnist", root=tmp_path))
    assert pool.labels.tolist() == [3, 4, 3, 4]
    np.testing.assert_array_equal(pool.images[:2, ..., 0], images)


def test_an_incomplete_folder_in_the_way(server, tmp_path):
    (tmp_path / "cifar10" / FOLDER).mkdir(parents=True)
    with pytest.raises(UserError, match="there but not complete"):
        download("cifar10", tmp_path, recipes=server.recipe(ARCHIVE))


def test_a_root_that_cannot_be_written(server, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot store cifar10 in"):
        download("cifar10", tmp_path / "file", recipes=server.recipe(ARCHIVE))


def test_names_that_cannot_be_downloaded(tmp_path):
    with pytest.raises(UserError, match="part of scikit-learn"):
        download("digits", tmp_path)
    with pytest.raises(UserError, match="did you mean 'cifar10'"):
        download("cifar-10", tmp_path)


def test_the_table_covers_every_known_data_set_and_is_well_formed():
    assert set(RECIPES) == set(KNOWN) - {"digits"}
    for name, recipe in RECIPES.items():
        assert any(f"{name}/{recipe.folder}" in layout.folders for layout in KNOWN[name].layouts)
        for remote in recipe.files:
            assert re.fullmatch(r"[0-9a-f]{32}", remote.md5)
            assert re.match(r"https?://", remote.url)
    # what the publishers' files unpack to: records of 3,073 and 3,074 bytes, and 96 x 96 x 3
    assert RECIPES["cifar10"].unpacked > 60_000 * 3073
    assert RECIPES["cifar100"].unpacked > 60_000 * 3074
    assert RECIPES["stl10"].unpacked > 113_000 * 96 * 96 * 3
