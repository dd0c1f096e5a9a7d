"""What a checkpoint file holds: tensors and plain values, read back without running code from it."""

from __future__ import annotations

import io
from typing import Any

import torch

from paperbench.errors import PaperbenchError
from paperbench.training.memory import is_out_of_memory

FORMAT = 3


class CheckpointError(PaperbenchError):
    """Bytes that are no checkpoint of this format."""


class ForeignFormatError(CheckpointError):
    """A checkpoint that another version of paperbench wrote."""


def checkpoint_bytes(run_id: str, contents: dict[str, Any]) -> bytes:
    """A run's state as the bytes of a file, with the version of torch that made it."""
    stream = io.BytesIO()
    torch.save({"format": FORMAT, "run": run_id, "torch": str(torch.__version__), "contents": contents}, stream)
    return stream.getvalue()


def read_checkpoint(data: bytes, run_id: str) -> tuple[dict[str, Any], str]:
    """The contents, on the CPU, and the version of torch that wrote them.

    Raises:
        ForeignFormatError: They are of another format.
        CheckpointError: The bytes are damaged or of another run.
        MemoryError, RuntimeError: There is too little memory.
    """
    try:
        payload = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        found, run, version, contents = (payload[key] for key in ("format", "run", "torch", "contents"))
    except Exception as error:  # a damaged archive can raise nearly anything, with advice that fits no checkpoint
        if is_out_of_memory(error):
            raise
        raise CheckpointError(f"cannot be read ({type(error).__name__})") from error
    if found != FORMAT:
        raise ForeignFormatError(f"has format {found}, and this version of paperbench reads {FORMAT}")
    if not isinstance(contents, dict) or not isinstance(version, str):
        raise CheckpointError("holds other things than a checkpoint does")
    if run != run_id:
        raise CheckpointError(f"belongs to run {run}")
    return contents, version
