"""Check that a weights file belongs to the net that loads it.

Many of these nets have parameters of the same names and shapes, whatever their placement, scales or strides. So the
weights that a finished run exports name their net in the metadata; see `runs/weights.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from paperbench.catalogue import Net, resolve
from paperbench.errors import PaperbenchError
from paperbench.files import MAX_TENSOR_FILE_BYTES, open_regular


def check_weights(file: Path, net: Net) -> None:
    """Check that a file holds the weights of `net`, if its metadata name a net.

    The numbers of classes and input channels may differ: timm adapts both layers. So may dropout in the residual
    branch, which has no weights and changes no test.
    """
    try:
        open_regular(file, MAX_TENSOR_FILE_BYTES).close()  # safe_open would wait for a pipe
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise PaperbenchError(
            f"{file} cannot be read as weights ({error}). Give the weights file of a finished run."
        ) from error
    if "architecture" not in metadata:
        return
    stored, arguments = net_of(metadata, file)
    like = replace(stored, num_classes=net.num_classes, in_chans=net.in_chans, residual_dropout=net.residual_dropout)
    if like != net:
        listed = "".join(f", {key}={value!r}" for key, value in arguments.items())
        raise PaperbenchError(
            f"{file} holds a different net from the one requested. Ask for {metadata['architecture']!r}{listed}, or "
            "give another file."
        )


def net_of(metadata: Mapping[str, str], file: Path) -> tuple[Net, dict[str, Any]]:
    """Return the net that the metadata of a weights file name, and its arguments."""
    try:
        arguments = dict(json.loads(metadata.get("arguments", "{}")))
        return resolve(metadata["architecture"], **arguments), arguments
    except (ValueError, TypeError, RecursionError, PaperbenchError) as error:
        raise PaperbenchError(f"{file} holds a net that paperbench does not know: {error}") from error
