"""Decoders of image files."""

from __future__ import annotations

import io
import warnings
from typing import cast

import numpy as np
from PIL import Image

from paperbench.errors import PaperbenchError, summarize_error
from paperbench.specs.recipe import Decoder

MAX_PIXELS = 150_000_000
"""Maximum number of pixels of an image; a small file can claim any number."""
_MODES = ("L", "RGB")
"""Pillow's modes of the JPEG files that TorchCodec decodes; the others are left to Pillow."""


class ImageError(PaperbenchError):
    """Bytes that are no complete image; the message says why."""


def decode(data: bytes, decoder: Decoder = "pillow") -> Image.Image:
    """Return a JPEG or PNG file's pixels as Pillow's `convert("RGB")` has them. A rotation in its EXIF data is ignored.

    Args:
        decoder: "torchcodec" decodes grey and RGB JPEG files with TorchCodec, and the others with Pillow.

    Raises:
        ImageError: The bytes are damaged, truncated, of another format, or too large.
        PaperbenchError: TorchCodec is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # damaged EXIF data, and many pixels, which are checked below
            image = Image.open(io.BytesIO(data), formats=("JPEG", "PNG"))
        if image.width * image.height > MAX_PIXELS:
            raise ImageError(f"has {image.width} x {image.height} pixels, more than the {MAX_PIXELS:,} allowed")
        if decoder == "torchcodec" and image.format == "JPEG" and image.mode in _MODES:
            return Image.fromarray(_decode_with_torchcodec(data))
        image.load()
        return image if image.mode == "RGB" else image.convert("RGB")  # which would copy it
    except PaperbenchError:
        raise
    except Exception as error:  # a damaged image can raise nearly anything
        raise ImageError(f"is not a complete JPEG or PNG image ({summarize_error(error)})") from error


def _decode_with_torchcodec(data: bytes) -> np.ndarray:
    try:
        import torch
        from torchcodec.decoders import decode_jpeg  # type: ignore[attr-defined]
    except (ImportError, OSError, RuntimeError) as error:
        raise PaperbenchError(
            f"The recipe decodes with TorchCodec, which cannot be used here ({summarize_error(error)}). Install it "
            "with `pip install torchcodec`, or choose the decoder pillow, which gives a run of its own."
        ) from error
    pixels = cast(torch.Tensor, decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode="RGB"))
    return np.ascontiguousarray(pixels.permute(1, 2, 0).numpy())
