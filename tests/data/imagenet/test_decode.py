from __future__ import annotations

import importlib.util
import io
import struct
import subprocess
import sys
import threading
import warnings
import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from paperbench.data.imagenet.decode import LARGE, LARGE_PIXELS, ImageError, decode
from paperbench.errors import PaperbenchError
from paperbench.specs.recipe import Decoder

HAS_TORCHCODEC = importlib.util.find_spec("torchcodec") is not None
NEEDS_TORCHCODEC = pytest.mark.skipif(not HAS_TORCHCODEC, reason="needs TorchCodec")
DECODERS = ["pillow", pytest.param("torchcodec", marks=NEEDS_TORCHCODEC)]
PHOTOGRAPHS: list[npt.NDArray[np.uint8]] = load_sample_images().images
KEPT, SIDEWAYS, UPSIDE_DOWN = 1, 6, 3
"""Rotations in EXIF data."""


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def photograph(mode: str = "RGB", width: int = 97, height: int = 61) -> Image.Image:
    return Image.fromarray(PHOTOGRAPHS[0][100 : 100 + height, 150 : 150 + width]).convert(mode)


def rotated(rotation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = rotation
    return encoded(photograph(), exif=exif)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def claiming(width: int, height: int) -> bytes:
    """A small PNG file with a huge size in its header."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def inverted(image: Image.Image) -> bytes:
    """As Photoshop writes CMYK: Pillow inverts the colours of files with Adobe's marker, which it writes itself."""
    data = encoded(image)
    assert b"Adobe" in data
    return data


def with_scans(number: int, side: int = 1_000) -> bytes:
    """A progressive file of side x side pixels, which all scans but some at the beginning leave as they are."""
    data = encoded(Image.new("RGB", (side, side)), progressive=True)
    last = data[data.rfind(b"\xff\xda") : -2]
    return data[:-2] + last * (number - data.count(b"\xff\xda")) + data[-2:]


def with_empty_scans(number: int) -> bytes:
    """A baseline file of 12,000 x 12,000 pixels, of which no scan has any."""
    header = encoded(Image.new("RGB", (8, 8))).partition(b"\xff\xda")[0]
    size = header.index(b"\xff\xc0") + 5
    header = header[:size] + struct.pack(">HH", 12_000, 12_000) + header[size + 4 :]
    return header + b"\xff\xda\0\x08\x01\x01\0\0\x3f\0" * number + b"\xff\xd9"


IMAGES = {
    "photograph": encoded(photograph()),
    "grey": encoded(photograph("L")),
    "CMYK of Adobe": inverted(photograph("CMYK")),
    "CMYK without Adobe's marker": encoded(photograph("CMYK")).replace(b"Adobe", b"Abode"),
    "red, green and blue as they are": encoded(photograph(), keep_rgb=True),
    "4:4:4": encoded(photograph(), subsampling=0),
    "4:2:2": encoded(photograph(), subsampling=1),
    "progressive": encoded(photograph(), progressive=True),
    "restart markers": encoded(photograph(), restart_marker_blocks=3),
    "not rotated": rotated(KEPT),
    "sideways": rotated(SIDEWAYS),
    "upside down": rotated(UPSIDE_DOWN),
    "junk at the end": encoded(photograph()) + b"junk",
    "what looks like scans at the end": encoded(photograph()) + b"\xff\xda\xff" * 10**6,
    "PNG": encoded(photograph(), "PNG"),
    "grey PNG": encoded(photograph("L"), "PNG"),
    "black and white PNG": encoded(photograph("1"), "PNG"),
    "PNG with a palette": encoded(photograph().quantize(17), "PNG"),
    "transparent PNG": encoded(photograph("RGBA"), "PNG"),
    "PNG with a transparent colour": encoded(photograph(), "PNG", transparency=(1, 2, 3)),
}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("name", list(IMAGES))
def test_pixels_are_those_of_pillow(name: str, decoder: Decoder) -> None:
    found = decode(IMAGES[name], decoder)
    assert (found.mode, found.size) == ("RGB", (97, 61)), "no rotation"
    assert np.array_equal(found, Image.open(io.BytesIO(IMAGES[name])).convert("RGB"))


@NEEDS_TORCHCODEC
def test_torchcodec_equals_pillow_for_any_size_and_sampling(full: bool) -> None:
    sides = (1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 255) if full else (1, 7, 16, 33)
    for number, pixels in enumerate(PHOTOGRAPHS):
        for width in sides:
            for height in sides:
                for sampling in (0, 1, 2):
                    for progressive in (False, True):
                        crop = Image.fromarray(pixels[-height:, :width])
                        data = encoded(crop, quality=88, subsampling=sampling, progressive=progressive)
                        same = np.array_equal(decode(data, "torchcodec"), decode(data))
                        assert same, (number, width, height, sampling, progressive)


def test_torchcodec_decodes_plain_jpeg_files_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[bytes] = []

    def refuse(data: bytes) -> None:
        used.append(data)
        raise RuntimeError("refused")

    monkeypatch.setitem(sys.modules, "torchcodec.decoders", SimpleNamespace(decode_jpeg=refuse))
    for data in IMAGES.values():
        assert np.array_equal(decode(data, "torchcodec"), decode(data)), "what TorchCodec refuses is left to Pillow"
    left = {name for name, data in IMAGES.items() if data not in used}
    rotations = {"not rotated", "sideways", "upside down"}
    assert left == {name for name in IMAGES if "PNG" in name or "CMYK" in name} | rotations


SIXTEEN_BIT = Image.fromarray((np.arange(12, dtype=np.uint16) * 5000).reshape(3, 4))
DAMAGED = {
    "nothing": (b"", "is no JPEG or PNG image"),
    "zeros": (bytes(1000), "is no JPEG or PNG image"),
    "GIF": (encoded(photograph("P"), "GIF"), "is no JPEG or PNG image"),
    "truncated": (IMAGES["photograph"][:-400], "is not a complete JPEG or PNG image (OSError: image file is truncated"),
    "truncated PNG": (IMAGES["PNG"][:-400], "is not a complete JPEG or PNG image ("),
    "header only": (IMAGES["photograph"][:200], "is n"),
    "16 bits": (encoded(SIXTEEN_BIT, "PNG"), "has pixels of 16 bits, which Pillow would turn white"),
    "large": (claiming(15_000, 10_001), "has 15000 x 10001 pixels, more than the 150,000,000 allowed"),
    "long": (claiming(1, 65_536), "has 1 x 65536 pixels, more than 65,535 on a side"),
    "scanned for minutes": (
        with_scans(5_000),
        "has 5,000 scans, which would take too long to decode",
    ),
    "baseline, scanned for minutes": (with_empty_scans(20_000), "has 20,000 scans, which would take too long"),
    "EXIF data in many blocks": (
        IMAGES["photograph"][:2] + b"\xff\xe1\0\x09Exif\0\0x" * 1_000_000 + IMAGES["photograph"][2:],
        "has 1,000,000 blocks of EXIF data, more than the 100 allowed",
    ),
    "tiny, scanned for minutes": (with_scans(1_000_000, side=8), "has 1,000,000 scans, which would take too long"),
    "huge": (claiming(30_000, 30_000), "is not a complete JPEG or PNG image (DecompressionBombError"),
}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("name", list(DAMAGED))
def test_damaged_image_is_an_error(name: str, decoder: Decoder) -> None:
    data, message = DAMAGED[name]
    with pytest.raises(ImageError) as caught:
        decode(data, decoder)
    assert str(caught.value).startswith(message)


def test_missing_torchcodec_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)
    with pytest.raises(PaperbenchError, match=r"decodes with TorchCodec, which cannot be used here .*pip install"):
        decode(IMAGES["photograph"], "torchcodec")


def test_warnings_of_pillow_are_not_shown() -> None:
    corrupt = encoded(photograph(), exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x05" + b"\x01\x1a\0\x05\0\0\0\x01\0\0\xff\0" * 5)
    script = f"""
from paperbench.data.imagenet.decode import decode
decode({corrupt!r})
try:
    decode({claiming(9_500, 9_500)!r})
except Exception:
    pass
"""
    done = subprocess.run([sys.executable, "-W", "always", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_threads_leave_the_filters_of_warnings_alone() -> None:
    """`warnings.catch_warnings` in two threads at once can leave the filters of one of them."""
    before = list(warnings.filters)
    threads = [threading.Thread(target=lambda: [decode(IMAGES["grey"]) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
        assert warnings.filters == before
    for thread in threads:
        thread.join()
    assert warnings.filters == before


def test_large_images_are_decoded_one_at_a_time_and_others_meanwhile() -> None:
    large, done = encoded(Image.new("1", (LARGE_PIXELS // 4_000, 4_001)), "PNG"), threading.Event()
    thread = threading.Thread(target=lambda: (decode(large), done.set()))
    with LARGE:
        thread.start()
        assert not done.wait(0.1)
        decode(IMAGES["photograph"])
    thread.join()
    assert done.is_set()
