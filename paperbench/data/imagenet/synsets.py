"""The 1,000 synsets of ImageNet's classes."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from paperbench.errors import PaperbenchError


@cache
def synsets() -> tuple[str, ...]:
    """Return them in alphabetical order, in which labels count them.

    They are read from timm's files without importing timm, which would import torch.
    """
    spec = find_spec("timm")
    try:
        if spec is None or not spec.submodule_search_locations:
            raise FileNotFoundError("timm is not installed")
        text = Path(spec.submodule_search_locations[0], "data", "_info", "imagenet_synsets.txt").read_text()
    except OSError as error:
        raise PaperbenchError(f"The list of ImageNet's classes is missing ({error}). Install timm again.") from error
    return tuple(sorted(text.split()))
