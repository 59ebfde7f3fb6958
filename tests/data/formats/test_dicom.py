"""DICOM, written with pydicom and compared with pydicom's own idea of how it is to be seen."""

import io
import json
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from calibre.data.formats import EncodedImage
from calibre.data.formats.images import decode_block, survey
from calibre.data.sources import facts, load
from calibre.errors import UserError
from calibre.sections import DataSettings

pydicom = pytest.importorskip("pydicom", reason="pip install 'calibre-fl[medical]'")

from pydicom.dataset import Dataset, FileMetaDataset  # noqa: E402
from pydicom.encaps import encapsulate  # noqa: E402
from pydicom.pixels import apply_rescale, apply_windowing  # noqa: E402
from pydicom.uid import (  # noqa: E402
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEGBaseline8Bit,
    JPEGLSLossless,
    RLELossless,
)

SECRETS = ("Doe^Jane", "PID-4711", "19481216", "Mercy Hospital")


@pytest.fixture(autouse=True)
def pools(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBRE_CACHE", str(tmp_path / "pools"))
    return tmp_path / "pools"


def image(values, syntax=ExplicitVRLittleEndian, **elements):
    """A data set of one frame; ``values`` are [H, W] or uint8 [H, W, 3]."""
    values = np.asarray(values)
    made = Dataset()
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = syntax
    made.SOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    made.SOPInstanceUID = "1.2.3.4"
    made.PatientName, made.PatientID, made.PatientBirthDate, made.InstitutionName = SECRETS
    made.Rows, made.Columns = values.shape[:2]
    made.SamplesPerPixel = 1 if values.ndim == 2 else 3
    made.PhotometricInterpretation = "MONOCHROME2" if values.ndim == 2 else "RGB"
    if values.ndim == 3:
        made.PlanarConfiguration = 0
    made.BitsAllocated = made.BitsStored = 8 * values.dtype.itemsize
    made.HighBit = made.BitsStored - 1
    made.PixelRepresentation = int(values.dtype.kind == "i")
    order = ">" if syntax == ExplicitVRBigEndian else "<"
    made.PixelData = values.astype(values.dtype.newbyteorder(order)).tobytes()
    for name, value in elements.items():
        setattr(made, name, value)
    return made


def written(made):
    file = io.BytesIO()
    made.save_as(file, enforce_file_format=True)
    return file.getvalue()


def decoded(content, shape):
    return decode_block([EncodedImage("x", content)], shape)


RAMP = np.arange(-1000, 1048, 8, dtype=np.int16).reshape(16, 16)
WINDOWS = [
    {"WindowCenter": 40, "WindowWidth": 400, "RescaleSlope": 1, "RescaleIntercept": 0},
    {"WindowCenter": 50, "WindowWidth": 350, "RescaleSlope": 2, "RescaleIntercept": -1024},
    {"WindowCenter": -600, "WindowWidth": 1, "RescaleSlope": 1, "RescaleIntercept": 0.5},
    {"WindowCenter": 0, "WindowWidth": 600, "VOILUTFunction": "LINEAR_EXACT"},
    {"WindowCenter": 100, "WindowWidth": 300, "VOILUTFunction": "SIGMOID"},
    {"WindowCenter": [300, 40], "WindowWidth": [1500, 400]},
]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", ["MONOCHROME1", "MONOCHROME2"])
def test_gray_is_shown_as_pydicom_would(window, kind):
    made = image(RAMP, PhotometricInterpretation=kind, **window)
    block = decoded(written(made), (16, 16, 1))
    assert not block.problems
    assert block.changes["DICOM, its own window"] == 1
    assert block.changes["MONOCHROME1"] == (kind == "MONOCHROME1")
    values = apply_windowing(apply_rescale(RAMP, made), made)
    slope, intercept = made.get("RescaleSlope", 1), made.get("RescaleIntercept", 0)
    lowest, highest = (v * slope + intercept for v in (-(2**15), 2**15 - 1))
    expected = (values - lowest) / (highest - lowest) * 255
    if kind == "MONOCHROME1":
        expected = 255 - expected
    np.testing.assert_allclose(block.pixels[0, ..., 0], expected, atol=0.51)


def test_without_a_window_the_own_percentiles_count():
    values = np.random.default_rng(0).integers(0, 4096, (40, 40)).astype(np.uint16)
    block = decoded(written(image(values, BitsStored=12, HighBit=11)), (40, 40, 1))
    assert block.changes == {"DICOM, no window": 1}
    low, high = np.percentile(values, [0.5, 99.5])
    expected = np.clip((values - low) / (high - low), 0, 1) * 255
    np.testing.assert_allclose(block.pixels[0, ..., 0], expected, atol=1)
    turned = written(image(values, BitsStored=12, HighBit=11, RescaleSlope=-1, RescaleIntercept=0))
    np.testing.assert_array_equal(decoded(turned, (40, 40, 1)).pixels, 255 - block.pixels)


@pytest.mark.parametrize(
    "syntax", [ExplicitVRLittleEndian, ImplicitVRLittleEndian, ExplicitVRBigEndian, RLELossless]
)
def test_colour_and_transfer_syntaxes(syntax):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 10, 3), dtype=np.uint8)
    made = image(pixels, ExplicitVRLittleEndian if syntax == RLELossless else syntax)
    if syntax == RLELossless:
        made.compress(RLELossless)
    block = decoded(written(made), (12, 10, 3))
    np.testing.assert_array_equal(block.pixels[0], pixels)
    found = survey([EncodedImage("x", written(made))], 1)
    assert (dict(found.sizes), found.colour) == ({(12, 10): 1}, True)


def with_jpeg(size, rows=16, columns=16):
    file = io.BytesIO()
    Image.new("L", size, 200).save(file, "JPEG")
    made = image(np.zeros((rows, columns), np.uint8), JPEGBaseline8Bit)
    made.PixelData = encapsulate([file.getvalue()])
    made["PixelData"].is_undefined_length = True
    return written(made)


def test_a_jpeg_inside_must_have_the_size_that_the_file_says():
    window = decoded(with_jpeg((16, 16)), (16, 16, 1))
    assert not window.problems
    assert "a JPEG of another size" in decoded(with_jpeg((3000, 3000)), (16, 16, 1)).problems[0]


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        ({"NumberOfFrames": 30}, "with 30 frames"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "neither MONOCHROME1"),
        ({"SamplesPerPixel": 3}, "neither MONOCHROME1"),
        ({"Rows": 60_000, "Columns": 60_000}, "million pixels"),
        ({"Rows": 17}, "damaged"),
        ({"BitsAllocated": 32, "BitsStored": 32, "HighBit": 31}, "without pixels of 8 or 16"),
        ({"ModalityLUTSequence": [Dataset()]}, "modality look-up table"),
        ({"PixelData": b""}, "damaged"),
    ],
)
def test_what_is_not_shown_is_named(elements, message):
    content = written(image(RAMP, **elements))
    assert message in decoded(content, (16, 16, 1)).problems[0]


def test_what_was_deflated_or_needs_another_library_is_named():
    assert (
        "deflated"
        in decoded(written(image(RAMP, DeflatedExplicitVRLittleEndian)), (16, 16, 1)).problems[0]
    )
    made = image(RAMP, JPEGLSLossless)
    made.PixelData = encapsulate([b"\0\0"])
    made["PixelData"].is_undefined_length = True
    (problem,) = decoded(written(made), (16, 16, 1)).problems.values()
    assert "JPEG-LS" in problem
    assert "save it uncompressed" in problem


def fill(place, count=24):
    rng = np.random.default_rng(0)
    for i in range(count):
        folder = place / f"ward-{i % 2}" / ("ill" if i // 2 % 2 else "well")
        folder.mkdir(parents=True, exist_ok=True)
        values = rng.integers(0, 4096, (16, 16)).astype(np.uint16)
        window = {"WindowCenter": 2000, "WindowWidth": 3000} if i % 3 else {}
        (folder / f"IM{i:06}").write_bytes(
            written(image(values, BitsStored=12, HighBit=11, **window))
        )


def test_a_folder_of_dicom_needs_no_suffixes_and_says_what_was_done(tmp_path):
    fill(tmp_path / "x")
    (tmp_path / "x/ward-0/ill/DICOMDIR").write_bytes(bytes(128) + b"DICM")
    (tmp_path / "x/ward-0/ill/notes").write_text("no image")
    pool = load(DataSettings(source=str(tmp_path / "x")))
    assert (pool.shape, len(pool.labels), pool.classes) == ((16, 16, 1), 24, ("ill", "well"))
    notes = " ".join(pool.report["notes"])
    assert "DICOM images shown in the window that their file names: 16" in notes
    assert "DICOM images without a window, each stretched" in notes
    assert "files of other kinds, not read: 2 (2 no suffix)" in notes
    assert facts(DataSettings(source=str(tmp_path / "x"))).size == (16, 16)


def damaged(content, rng):
    """Some bytes of the header changed: values end up where they do not belong."""
    content = bytearray(content)
    for _ in range(4):
        content[rng.integers(132, 700)] = rng.integers(256)
    return bytes(content)


def test_patients_are_in_no_cache_log_or_message(tmp_path, pools, caplog, capfd, recwarn):
    """Names in elements, also of files whose damage moves them to where a number should be."""
    fill(tmp_path / "x", 60)
    rng = np.random.default_rng(1)
    whole = written(image(RAMP))
    (tmp_path / "x/ward-0/ill/bad.dcm").write_bytes(
        whole.replace(b"\x28\x00\x10\x00US\x02\x00", b"\x28\x00\x10\x00PN\x02\x00")
    )
    with caplog.at_level(logging.DEBUG):
        pool = load(DataSettings(source=str(tmp_path / "x")))
        messages = [str(decoded(damaged(whole, rng), (16, 16, 1)).problems) for _ in range(300)]
        named = written(image(RAMP, WindowCenter=40, WindowWidth=400)).replace(b"400.0", b"Doe^J")
        messages.append(str(decoded(named, (16, 16, 1)).problems))
    assert sum(message != "{}" for message in messages) > 20
    kept = b"".join(file.read_bytes() for file in pools.rglob("*") if file.is_file())
    said = " ".join([*messages, json.dumps(dict(pool.report)), caplog.text, *capfd.readouterr()])
    said += " ".join(str(warning.message) for warning in recwarn.list)
    for secret in (*SECRETS, "Doe^"):
        assert secret.encode() not in kept
        assert secret not in said


def test_without_the_extra_the_way_to_get_it_is_told(tmp_path, monkeypatch):
    fill(tmp_path / "x")
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(UserError, match=r"pip install 'calibre-fl\[medical\]'"):
        load(DataSettings(source=str(tmp_path / "x")))


def test_large_files_are_refused(tmp_path: Path):
    content = written(image(RAMP))
    place = tmp_path / "x.dcm"
    place.write_bytes(content)
    with place.open("rb+") as file:
        file.truncate(2**28 + 1)  # a hole: it takes no room
    assert "more than 268 MB" in decoded(str(place), (16, 16, 1)).problems[0]
