"""Checkpoints: tensors and plain values in one file, written atomically and loaded without running code from it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

from paperbench.atomic import write_atomically
from paperbench.errors import PaperbenchError

FORMAT = 1


def save_checkpoint(path: Path, run_id: str, contents: dict[str, Any]) -> None:
    """Replace the checkpoint of a run.

    Raises:
        PaperbenchError: It cannot be written; the one before is untouched.
    """
    payload = {"format": FORMAT, "run": run_id, "contents": contents}
    write_atomically(path, lambda stream: torch.save(payload, stream))


def load_checkpoint(path: Path, run_id: str) -> dict[str, Any]:
    """The contents of a checkpoint, on the CPU.

    Raises:
        PaperbenchError: It cannot be read, is damaged, of another format, or of another run.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PaperbenchError(
            f"{path} cannot be read: {error.strerror or error}. Mend that, and give the same command again."
        ) from error
    try:
        payload = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        found, run, contents = payload["format"], payload["run"], payload["contents"]
    except Exception as error:  # a damaged archive can raise nearly anything, with advice that fits no checkpoint
        raise PaperbenchError(
            f"{path} is damaged ({type(error).__name__}). Restore it, or delete its folder to start this run anew."
        ) from error
    if found != FORMAT or run != run_id:
        raise PaperbenchError(
            f"{path} is a checkpoint of format {found} for run {run}; format {FORMAT} for {run_id} was expected. "
            "Restore the right one, or delete its folder to start this run anew."
        )
    restored: dict[str, Any] = contents
    return restored
