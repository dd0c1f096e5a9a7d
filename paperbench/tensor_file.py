"""Files of tensors in the safetensors format: equal contents give equal bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping

import safetensors.torch
from torch import Tensor


def tensor_file_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The bytes of a file with these tensors, whatever device and memory layout they have, and this metadata.

    The library writes its header's keys in another order each time; here they are sorted.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    data = safetensors.torch.save(plain, dict(metadata))
    values = _start_of_values(data)
    header = json.dumps(json.loads(data[8:values]), sort_keys=True).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[values:]


def read_tensor_file(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors, on the CPU, and the metadata.

    Raises:
        safetensors.SafetensorError: The bytes are no such file.
    """
    tensors = safetensors.torch.load(data)  # checks the header
    return tensors, json.loads(data[8 : _start_of_values(data)]).get("__metadata__", {})


def _start_of_values(data: bytes) -> int:
    """Where the values begin: behind 8 bytes with the length of the header, and the header in JSON."""
    return 8 + int.from_bytes(data[:8], "little")
