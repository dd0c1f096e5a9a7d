"""Errors that mean too little memory."""

from __future__ import annotations

import torch

_WORDS = ("out of memory", "can't allocate memory", "ALLOC_FAILED")
"""What CUDA, torch on CPUs, and cuDNN or cuBLAS say where they raise a plain RuntimeError."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was lacking, on a GPU or in the machine."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)
