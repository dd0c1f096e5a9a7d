"""Tensor files in the safetensors format; equal contents give equal bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping

import safetensors.torch
from torch import Tensor


def tensor_file_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a file with these tensors, on any device and in any memory layout, and this metadata.

    The library writes the keys of its header in a random order; here they are sorted.

    Raises:
        MemoryError: The memory is not sufficient.
    """
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    _require_memory(2 * sum(tensor.nbytes for tensor in on_cpu.values()))
    data = safetensors.torch.save(on_cpu, dict(metadata))
    values = _values_offset(data)
    header = json.dumps(json.loads(data[8:values]), sort_keys=True).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[values:]


def read_tensor_file(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors, on the CPU, and the metadata.

    Raises:
        safetensors.SafetensorError: The bytes are not a safetensors file.
        MemoryError: The memory is not sufficient.
    """
    _require_memory(len(data))
    tensors = safetensors.torch.load(data)  # checks the header
    return tensors, json.loads(data[8 : _values_offset(data)]).get("__metadata__", {})


def _values_offset(data: bytes) -> int:
    """Return the offset of the tensor values: after 8 bytes with the header's length, and the header in JSON."""
    return 8 + int.from_bytes(data[:8], "little")


def _require_memory(size: int) -> None:
    """Raise a MemoryError, where the library would panic or abort, unless so many bytes can be allocated."""
    bytearray(size)
