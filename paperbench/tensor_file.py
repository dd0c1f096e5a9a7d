"""Tensor files in the safetensors format; equal contents give equal bytes. Imports torch only where it is needed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError, safe_open

from paperbench.errors import PaperbenchError, listing

if TYPE_CHECKING:
    from torch import Tensor


class TensorFileError(PaperbenchError):
    """Bytes that are not a safetensors file; the message completes a sentence about the file."""


def tensor_file_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a file with these tensors, on any device and in any memory layout, and this metadata.

    The library writes the keys of its header in a random order; here they are sorted.

    Raises:
        MemoryError: The memory is not sufficient.
    """
    import safetensors.torch

    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    _require_memory(2 * sum(tensor.nbytes for tensor in on_cpu.values()))
    data = safetensors.torch.save(on_cpu, dict(metadata))
    del on_cpu
    values = _values_offset(data)
    header = json.dumps(json.loads(data[8:values]), sort_keys=True).encode()
    header += b" " * (-len(header) % 8)
    return b"".join((len(header).to_bytes(8, "little"), header, memoryview(data)[values:]))


def read_tensor_file(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors, on the CPU, and the metadata, if the memory suffices; else raise a MemoryError."""
    import safetensors.torch

    _require_memory(len(data))
    try:
        tensors = safetensors.torch.load(data)
        return tensors, json.loads(data[8 : _values_offset(data)]).get("__metadata__") or {}  # texts, as it has checked
    except (SafetensorError, KeyError, ValueError) as error:  # KeyError: a type of number that torch lacks
        raise TensorFileError(f"is not a safetensors file ({error})") from error


def read_header(path: Path, prefix: str) -> tuple[object, int]:
    """Return the run that a file names, and its number of float32 values but for running averages.

    Args:
        path: A regular file.
        prefix: That of the names of the tensors that count.

    Raises:
        OSError: The file cannot be read.
    """
    try:
        with safe_open(path, "np") as file:
            metadata = file.metadata()
            run = metadata.get("run") or json.loads(metadata["paperbench"])["run"]  # of weights, or of a checkpoint
            names = file.keys()
            kept = [file.get_slice(name) for name in names if name.startswith(prefix) and ".running_" not in name]
            return run, sum(math.prod(one.get_shape()) for one in kept if one.get_dtype() == "F32")
    except (SafetensorError, ValueError, AttributeError, LookupError, TypeError, RecursionError) as error:
        raise TensorFileError("is not a safetensors file") from error


def check_fit(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise a ValueError unless tensors have the names, shapes and types of others."""
    kinds = [{name: (tensor.shape, tensor.dtype) for name, tensor in found.items()} for found in (tensors, expected)]
    if wrong := {name for name, _ in kinds[0].items() ^ kinds[1].items()}:
        raise ValueError(f"missing, unknown or of another shape or type: {listing(sorted(wrong))}")


def _values_offset(data: bytes) -> int:
    """Return the offset of the tensor values: after 8 bytes with the header's length, and the header in JSON."""
    return 8 + int.from_bytes(data[:8], "little")


def _require_memory(size: int) -> None:
    """Raise a MemoryError, where the library would panic or abort, unless so many bytes can be allocated."""
    np.empty(size, np.uint8)  # touches none of them
