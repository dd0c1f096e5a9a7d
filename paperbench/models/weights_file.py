"""Files of trained nets: whether they are of the net that is to be filled with them.

Many of these nets have parameters of the same names and shapes, whatever their placement, factors or strides. What a
finished run leaves says in its metadata which net it is of; see `runs/weights.py`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError, safe_open

from paperbench.catalogue import Net, resolve
from paperbench.errors import PaperbenchError


def check_holds(file: Path, net: Net) -> None:
    """Make sure that a file holds values of a net, if it says what it holds. Classes and channels may differ.

    Raises:
        PaperbenchError: It holds those of another net, or cannot be read.
    """
    try:
        with safe_open(file, "pt") as opened:
            told = opened.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise PaperbenchError(
            f"{file} cannot be read as weights ({error}). Name a file that a run has left."
        ) from error
    if "architecture" not in told:
        return
    try:
        arguments = dict(json.loads(told.get("arguments", "{}")))
        held = resolve(told["architecture"], **arguments)
    except (ValueError, TypeError, PaperbenchError) as error:
        raise PaperbenchError(f"{file} holds a net that paperbench does not know: {error}") from error
    if replace(held, num_classes=net.num_classes, in_chans=net.in_chans) != net:
        listed = "".join(f", {key}={value!r}" for key, value in arguments.items())
        raise PaperbenchError(
            f"{file} holds another net than the one asked for. Ask for {told['architecture']!r}{listed}, or name "
            "another file."
        )
