"""Sources that are whole files, but whose contents make no sense: types, sizes, names, nesting."""

import io
import json
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calibre.sections import DataSettings
from tests.attack.sound import COUNT, encoded, put, shades

Rng = np.random.Generator


def _pick(rng: Rng, choices: list[Any]) -> Any:
    return choices[rng.integers(len(choices))]


LABELS = [
    np.arange(COUNT), np.arange(COUNT) % 2, ["a", "b"] * 6, np.zeros((COUNT, 1), int), np.zeros(0),
    np.linspace(0, 1, COUNT), np.full(COUNT, np.nan), np.ones(COUNT, complex), np.ones(COUNT, bool),
    np.array(["x" * 5000, "y"] * 6), np.array([b"\xff", b"a"] * 6), np.array(3), [-1] * COUNT,
    np.array([2**63 - 1] * COUNT), np.zeros(COUNT, "datetime64[s]"), np.zeros(COUNT, "V3"),
    np.zeros(COUNT, [("a", "i4")]), [[0, 1]] * COUNT, [""] * COUNT, ["a\0b", "\n"] * 6,
]  # fmt: skip
PIXELS = [
    shades(), shades()[..., :1], shades()[..., 0], shades()[..., :2], shades().astype(float),
    np.zeros((COUNT, 0, 0), np.uint8), np.zeros((0, 6, 6), np.uint8), np.zeros((9, 6), np.uint8),
    np.zeros((COUNT, 6, 6, 3, 1), np.uint8), np.zeros((COUNT, 1, 60_000), np.uint8),
    np.array(7, np.uint8), shades() > 9, np.array(["a"]), np.zeros((COUNT, 6, 6), np.int16),
    shades()[:1], np.zeros((COUNT, 6, 6, 3), np.uint8),
]  # fmt: skip
HEADERS = [
    "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000,)}",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 4)}",
    "{'descr': '<U100000000', 'fortran_order': True, 'shape': (12,)}",
    "{'descr': '|O', 'fortran_order': False, 'shape': (12,)}",
    "{'descr': '|u1', 'fortran_order': False, 'shape': 12}",
    "{'descr': '|V0', 'fortran_order': False, 'shape': (12,)}",
    "[" * 3000, "{", "", "1" * 9000, "{'shape': (0,)}",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (" + "9" * 200 + ",)}",
]  # fmt: skip


def npz(folder: Path, rng: Rng) -> DataSettings:
    arrays = {"images": _pick(rng, PIXELS), "labels": _pick(rng, LABELS)}
    if rng.random() < 0.3:
        arrays = {
            "x_train": shades(), "y_train": _pick(rng, LABELS), "x_test": _pick(rng, PIXELS),
            "y_test": _pick(rng, LABELS),
        }  # fmt: skip
    for key in ("clients", "classes", "unlabelled", "clients_unlabelled", "clients_train"):
        if rng.random() < 0.15:
            arrays[key] = _pick(rng, PIXELS if key == "unlabelled" else LABELS)
    np.savez(folder / "x.npz", **{key: np.asarray(value) for key, value in arrays.items()})
    return DataSettings(source=str(folder / "x.npz"), size=_pick(rng, [None, None, 4, 10**9]))


def npz_headers(folder: Path, rng: Rng) -> DataSettings:
    """Arrays that claim to be what they are not."""
    header = _pick(rng, HEADERS).encode() + b"\n"
    version = bytes(_pick(rng, [(1, 0), (2, 0), (3, 0), (9, 9)]))
    length = len(header).to_bytes(2 if version[0] == 1 else 4, "little")
    member = b"\x93NUMPY" + version + length + header + bytes(int(rng.integers(100)))
    method = _pick(rng, [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
    with zipfile.ZipFile(folder / "x.npz", "w", method) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the name that comes twice
        archive.writestr("images.npy", member)
        for name in ("labels.npy", "../../clients.npy", "labels.npy"):
            archive.writestr(name, _pick(rng, [member, b"", b"\x93NUMPY"]))
    return DataSettings(source=str(folder / "x.npz"))


def npz_bomb(folder: Path, rng: Rng) -> DataSettings:
    """A megabyte that unpacks to a thousand times as much than it says."""
    with zipfile.ZipFile(folder / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        header = io.BytesIO()
        shape = (int(_pick(rng, [3, 3000])), 64, 64)
        np.lib.format.write_array_header_1_0(
            header, {"descr": "|u1", "fortran_order": False, "shape": shape}
        )
        archive.writestr("images.npy", header.getvalue() + bytes(20_000_000))
        archive.writestr("labels.npy", header.getvalue())
    return DataSettings(source=str(folder / "x.npz"))


CELLS = [
    "0.png", "", " ", "../0.png", "/etc/passwd", "/dev/zero", "a\0b.png", "x" * 300_000, "~", ".",
    "9" * 5000, "-", "nan", "NaN", "1e5", "²", "\u202e", '"', '"a', "a\nb", "train", "test",
    "TRAIN", "=1+1", "\ufeff", "None", "x" * 4000, "📷" * 300,
]  # fmt: skip


def table(folder: Path, rng: Rng) -> DataSettings:
    """A csv file whose cells are anything."""
    for i in range(COUNT):
        put(folder / f"{i}.png", encoded(i, "PNG"))
    names = [_pick(rng, ["path", "label", "client", "split", "image", "", "x", "path "])]
    names += ["path", "label"] * (rng.random() < 0.8) + ["client"] * (rng.random() < 0.3)
    comma = _pick(rng, [",", ";", "\t", "|", ", "])
    lines = [comma.join(names)]
    for i in range(COUNT):
        cells = [f"{i}.png" if "path" in name else "ab"[i % 2] for name in names]
        if rng.random() < 0.2:
            cells[rng.integers(len(cells))] = _pick(rng, CELLS)
        if rng.random() < 0.05:
            cells.append("more")
        lines.append(comma.join(cells))
    text = _pick(rng, ["\n", "\r\n", "\r", "\n\n"]).join(lines)
    encoding = _pick(rng, ["utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-32"])
    put(folder / "x.csv", text.encode(encoding, "surrogatepass"))
    column = _pick(rng, [None, None, None, "label", "path", "nothing"])
    return DataSettings(source=str(folder / "x.csv"), label_column=column)


def _nested(depth: int) -> pa.Array:
    array = pa.array([1] * COUNT)
    for _ in range(depth):
        array = pa.StructArray.from_arrays([array], ["a"])
    return array


def parquet(folder: Path, rng: Rng) -> DataSettings:
    """Columns of any type."""
    images = [encoded(i, "PNG") for i in range(COUNT)]
    struct = [{"bytes": image, "path": None} for image in images]
    kinds: list[Any] = [
        struct, images, [None] * COUNT, [1] * COUNT, [[image] for image in images],
        [{"path": "0.png"}] * COUNT, [{"bytes": None, "path": "/dev/zero"}] * COUNT,
        ["0.png"] * COUNT, [b""] * COUNT, [b"x" * 100_000] * COUNT, [""] * COUNT,
        _nested(int(_pick(rng, [3, 50, 90, 150]))), pa.array(images).dictionary_encode(),
    ]  # fmt: skip
    labels: list[Any] = [
        [i % 2 for i in range(COUNT)], ["a", "b"] * 6, ["x" * 100_000] * COUNT, [1.5] * COUNT,
        [float("nan")] * COUNT, [None] * COUNT, [[1]] * COUNT, [{"a": 1}] * COUNT, [True] * COUNT,
        [b"a"] * COUNT, pa.array([0] * COUNT, pa.timestamp("s")), [2**63 - 1] * COUNT,
        pa.array(["a", "b"] * 6).dictionary_encode(), _nested(3), [1.0, None] * 6,
        pa.Array.from_buffers(
            pa.string(), COUNT,
            [None, pa.py_buffer(np.arange(COUNT + 1, dtype=np.int32).tobytes()),
             pa.py_buffer(b"\xff" * COUNT)],
        ),
    ]  # fmt: skip
    columns: dict[str, Any] = {"image": _pick(rng, kinds), "label": _pick(rng, labels)}
    for name in ("client", "split", "deep", "image2"):
        if rng.random() < 0.2:
            columns[name] = _pick(rng, labels + kinds[:3])
    about = _pick(
        rng,
        [b"", b"{", b"[" * 100_000, b"[]", b"{}", b"\xff", b'{"info": 3}',
         json.dumps({"info": {"features": {"label": {"names": ["a", "a"]}}}}).encode(),
         json.dumps({"info": {"features": {"label": {"names": [1, None]}}}}).encode(),
         json.dumps({"info": {"features": {"label": {"names": "ab"}}}}).encode()],
    )  # fmt: skip
    made = pa.table(columns)
    if about:
        made = made.replace_schema_metadata({b"huggingface": about})
    codec = _pick(rng, ["snappy", "zstd", "none"])
    pq.write_table(made, folder / "x.parquet", compression=codec, row_group_size=4)
    return DataSettings(
        source=str(folder / "x.parquet"),
        label_column=_pick(rng, [None, None, "label", "image"]),
        client_column=_pick(rng, [None, None, "label", "client"]),
    )


def parquet_repeats(folder: Path, rng: Rng) -> DataSettings:
    """A value of megabytes, stored once and used in every row."""
    size, count = 1_000_000, 120
    value = rng.bytes(size) if rng.random() < 0.5 else bytes(size)
    images = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([value]))
    words = pa.DictionaryArray.from_arrays(
        pa.array([0] * count, pa.int32()), pa.array(["x" * size])
    )
    labels = words if rng.random() < 0.3 else pa.array([i % 2 for i in range(count)])
    made = pa.table({"image": images, "label": labels})
    codec = _pick(rng, ["snappy", "zstd", "none"])
    pq.write_table(made, folder / "x.parquet", store_schema=False, compression=codec)
    return DataSettings(source=str(folder / "x.parquet"))


NAMES = [
    "cat", "dog", "train", "test", "unlabelled", "a,b", 'q"q', "line\nbreak", "-", "..x", "x" * 200,
    " ", "é", "e\u0301", "labels.csv", "\x1b[31m", "con", "0", "1",
]  # fmt: skip


def folders(folder: Path, rng: Rng) -> DataSettings:
    """Names, depths and things that are no files."""
    place = folder / "x"
    place.mkdir()
    for i in range(COUNT):
        inside = place
        for _ in range(int(_pick(rng, [0, 1, 1, 2, 2, 2, 3]))):
            inside = inside / _pick(rng, NAMES[: int(_pick(rng, [3, len(NAMES)]))])
        if not inside.is_file():
            try:
                put(inside / f"{i}.png", encoded(i, "PNG"))
            except OSError:
                continue
    strange = bytes(place) + b"/\xff\xfe" + _pick(rng, [b".png", b".txt", b".\xff"])
    if rng.random() < 0.2:
        with open(strange, "wb"):
            pass
    if rng.random() < 0.3:
        os.mkfifo(place / _pick(rng, ["pipe.png", "pipe", "pipe.dcm"]))
    if rng.random() < 0.2:
        (place / "link.png").symlink_to(_pick(rng, ["/dev/zero", "nowhere", "link.png", "."]))
    if rng.random() < 0.2:
        (place / "empty").mkdir(exist_ok=True)
    return DataSettings(source=str(place), size=_pick(rng, [None, 4]))


def labels(folder: Path, rng: Rng) -> DataSettings:
    """A labels.csv whose rows are anything."""
    where = folder / "x" / _pick(rng, ["", "anna", "anna/unlabelled"])
    for i in range(COUNT):
        put(where / f"{i}.png", encoded(i, "PNG"))
    for i in range(4):
        put(folder / f"x/{_pick(rng, ['anna/', ''])}cat/{i}.png", encoded(i, "PNG"))
    lines = [
        _pick(rng, ["path,label,time", "path,label", "label;path", "", "a,b", "path,path,label"])
    ]
    for i in range(COUNT):
        cells = [f"{i}.png", _pick(rng, ["cat", "dog"]), ""]
        if rng.random() < 0.3:
            cells[rng.integers(3)] = _pick(rng, CELLS)
        lines.append(",".join(cells))
    text = "\n".join(lines).encode(_pick(rng, ["utf-8", "utf-8", "utf-16"]))
    put(
        folder / "x" / _pick(rng, ["labels.csv", "anna/labels.csv", "anna/unlabelled/labels.csv"]),
        text,
    )
    return DataSettings(source=str(folder / "x"))


def pickles(folder: Path, rng: Rng) -> DataSettings:
    """Pickles that would run something, ask for much, or are no batch."""
    evil = [
        pickle.dumps({b"data": [1, 2], b"labels": [1]}),
        pickle.dumps({b"data": np.zeros((3, 3072), np.uint8), b"labels": [[0]] * 3}),
        pickle.dumps({b"data": np.zeros((3, 3072)), b"labels": [0] * 3}, 2),
        pickle.dumps([1]),
        pickle.dumps(None),
        pickle.dumps(os.system),
        b"\x80\x02}r\xff\xff\xff\x7f.",
        b"\x80\x02cnumpy\nndarray\n(\x8a\x05\0\0\0\0\x04\x85tR.",
        b"(" * 100_000,
        b"\x80\x04\x95" + b"\xff" * 8,
        b"I" + b"9" * 5000 + b"\n.",
        pickle.dumps({b"data": "x", b"labels": 3}, 0),
    ]
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        put(folder / "cifar10" / name, _pick(rng, evil))
    return DataSettings(source="cifar10")


def images(folder: Path, rng: Rng) -> DataSettings:
    """Headers that claim too much, among sound images."""
    from PIL import Image

    for i in range(COUNT):
        put(folder / f"x/{'ab'[i % 2]}/{i}.png", encoded(i, "PNG"))
    kind = _pick(rng, ["PNG", "GIF", "BMP", "TIFF", "WEBP"])
    side = {"WEBP": 16_000}.get(kind, int(_pick(rng, [8_000, 20_000, 60_000])))
    small = io.BytesIO()
    Image.new("L" if kind != "WEBP" else "RGB", (300, 300)).save(small, kind)
    content = small.getvalue()
    number = (300).to_bytes(2, "big" if kind == "PNG" else "little")
    put(
        folder / f"x/a/bomb.{kind.lower()}",
        content.replace(number, side.to_bytes(2, "big" if kind == "PNG" else "little"), 2),
    )
    return DataSettings(source=str(folder / "x"), size=8)


def places(folder: Path, rng: Rng) -> DataSettings:
    """Sources that are no sources."""
    names = [
        "", "~nobody/x", "a\0b", "x" * 5000, "/dev/null", "/dev/zero", str(folder / "pipe.npz"),
        str(folder / "loop.npz"), "no_module:function", "os:getcwd", "os:sep", "os:_exit_", ":",
        "json:loads", "fashoin", str(folder / "dir.npz"), "\udcff", "builtins:dict",
    ]  # fmt: skip
    os.mkfifo(folder / "pipe.npz")
    (folder / "loop.npz").symlink_to("loop.npz")
    (folder / "dir.npz").mkdir()
    return DataSettings(source=_pick(rng, names), root=folder)


WRONG: dict[str, Callable[[Path, Rng], DataSettings]] = {
    made.__name__: made
    for made in (
        npz, npz_headers, npz_bomb, table, parquet, parquet_repeats, folders, labels, pickles,
        images, places,
    )
}  # fmt: skip
