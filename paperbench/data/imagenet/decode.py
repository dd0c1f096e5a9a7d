"""Decoders of image files."""

from __future__ import annotations

import io
import re
import warnings
from contextlib import nullcontext, suppress
from threading import Lock
from typing import TYPE_CHECKING, cast

import numpy as np
from PIL import Image, UnidentifiedImageError

from paperbench.errors import PaperbenchError, summarize_error
from paperbench.specs.recipe import Decoder

if TYPE_CHECKING:
    from torch import Tensor

MAX_PIXELS = 150_000_000
"""Maximum number of pixels of an image; a small file can claim any number."""
LARGE_PIXELS = 2**24
"""Number of pixels above which one image is decoded at a time, whatever the number of threads."""
_MAX_SIDE = 65_535
"""Maximum side, which is that of JPEG. Pillow needs 20 bytes of memory for each row of a PNG file."""
_MAX_SCANNED_PIXELS = 20 * MAX_PIXELS
"""Maximum of pixels times scans, which take some seconds. Usual progressive files have ten scans. One of no
pixels takes as long as one of 4,096."""
_SCAN = re.compile(rb"\xff\xda\0(\x08\x01|\x0a\x02|\x0c\x03|\x0e\x04)")
"""Marker, length and number of components, with which every scan begins."""
_MAX_EXIF_BLOCKS = 100
"""Maximum number of blocks of EXIF data, which Pillow joins in time that is quadratic in it. Usual files have one."""
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr")
"""Pillow's modes with 8 bits per channel. Pillow turns modes of more bits white, without an error."""

# About damaged EXIF data, and many pixels, which `decode` checks. `warnings.catch_warnings` is not safe in threads.
warnings.filterwarnings("ignore", module=r"PIL\.")
LARGE = Lock()
"""Held while a large image is decoded."""


class ImageError(PaperbenchError):
    """Bytes that are no complete image; the message says why."""


def decode(data: bytes, decoder: Decoder = "pillow") -> Image.Image:
    """Return a JPEG or PNG file's pixels as Pillow's `convert("RGB")` has them.

    So a rotation in its EXIF data is ignored, and so is transparency.

    Args:
        decoder: "torchcodec" decodes the grey and RGB JPEG files without EXIF data, according to which TorchCodec would
            rotate them. The others, and those that TorchCodec refuses, are left to Pillow.
    """
    try:
        if (blocks := data.count(b"Exif\0\0")) > _MAX_EXIF_BLOCKS:
            raise ImageError(f"has {blocks:,} blocks of EXIF data, more than the {_MAX_EXIF_BLOCKS} allowed")
        image = Image.open(io.BytesIO(data), formats=("JPEG", "PNG"))
        pixels = image.width * image.height
        if pixels > MAX_PIXELS:
            raise ImageError(f"has {image.width} x {image.height} pixels, more than the {MAX_PIXELS:,} allowed")
        if max(image.size) > _MAX_SIDE:
            raise ImageError(f"has {image.width} x {image.height} pixels, more than {_MAX_SIDE:,} on a side")
        most_scans = _MAX_SCANNED_PIXELS // max(pixels, 4_096)
        if len(data) > 10 * most_scans and (scans := len(_SCAN.findall(data))) > most_scans:  # a scan has ten bytes
            raise ImageError(f"has {scans:,} scans, which would take too long to decode")
        if image.mode not in _MODES:
            raise ImageError("has pixels of 16 bits, which Pillow would turn white")
        is_plain = image.format == "JPEG" and image.mode in ("L", "RGB") and b"Exif" not in data
        with LARGE if pixels > LARGE_PIXELS else nullcontext():
            if decoder == "torchcodec" and is_plain:
                with suppress(RuntimeError):
                    return Image.fromarray(_decode_with_torchcodec(data))
            image.load()
            return image if image.mode == "RGB" else image.convert("RGB")  # which would copy it
    except PaperbenchError:
        raise
    except UnidentifiedImageError as error:
        raise ImageError("is no JPEG or PNG image") from error
    except Exception as error:  # a damaged image can raise nearly anything
        raise ImageError(f"is not a complete JPEG or PNG image ({summarize_error(error)})") from error


def _decode_with_torchcodec(data: bytes) -> np.ndarray:
    try:
        from torchcodec.decoders import decode_jpeg  # type: ignore[attr-defined]
    except (ImportError, OSError, RuntimeError) as error:
        raise PaperbenchError(
            f"The recipe decodes with TorchCodec, which cannot be used here ({summarize_error(error)}). Install it: "
            "`pip install torchcodec`; or choose the decoder pillow, which makes another run."
        ) from error
    pixels = cast("Tensor", decode_jpeg(data))
    return np.ascontiguousarray(pixels.permute(1, 2, 0))
