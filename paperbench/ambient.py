"""What surrounds a computation and must not change it: torch's global state, variables, import paths."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from paperbench.errors import PaperbenchError

OVERRIDES = ("NVIDIA_TF32_OVERRIDE", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")
"""Variables by which the libraries below torch compute in another precision than they are told to."""


def prepare_for_torch() -> None:
    """Set variables for the libraries below torch. Call this before torch is imported.

    By default the waiting threads of GNU OpenMP, which torch uses on CPUs, spin for milliseconds, which made training
    up to twenty times slower beside another busy process on the same cores. The user's own settings have priority.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    for name in OVERRIDES:
        if name in os.environ and "torch" in sys.modules:
            raise PaperbenchError(f"{name} is set, so torch may compute in another precision. Start again without it.")
        os.environ.pop(name, None)


def same_imports() -> dict[str, str]:
    """Return variables with which another interpreter imports what this one does, in whatever directory it starts."""
    paths = [os.path.abspath(path) for path in sys.path]  # noqa: PTH100  ("" is the working directory)
    paths = [os.path.relpath(path) if os.pathsep in path else path for path in paths]  # else it would be two paths
    return {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


def variables_without(prefix: str, *kept: str) -> dict[str, str]:
    """Return this process's variables for a command, without those by which its caller would set it."""
    return {name: value for name, value in os.environ.items() if name in kept or not name.startswith(prefix)}


@contextmanager
def neutral() -> Iterator[None]:
    """Compute as a new process would, whatever has been set in torch or Pillow, and leave their settings as they were.

    Also a decorator. Imports neither of them: before that they have their defaults.
    """
    prepare_for_torch()
    with ExitStack() as settings:
        image_file: Any = sys.modules.get("PIL.ImageFile")
        if image_file:  # otherwise the missing part of an image could be grey
            settings.callback(setattr, image_file, "LOAD_TRUNCATED_IMAGES", image_file.LOAD_TRUNCATED_IMAGES)
            image_file.LOAD_TRUNCATED_IMAGES = False
        if "torch" in sys.modules:
            _reset_torch(settings)
        yield


def _reset_torch(settings: ExitStack) -> None:
    """Give torch the state of a new process until the end of a context, which also restores its random numbers."""
    import torch

    backends: Any = torch.backends
    functions: Sequence[tuple[Callable[[], Any], Callable[[Any], Any], Any]] = (
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, "default"),
        (torch.is_anomaly_enabled, torch.set_anomaly_enabled, False),
        (torch.get_default_dtype, torch.set_default_dtype, torch.float32),
    )
    attributes = (
        (backends.cudnn.conv, "fp32_precision", "tf32"),
        *((part, "fp32_precision", "none") for part in (backends, backends.cudnn, backends.mkldnn)),
        *((part, "fp32_precision", "none") for part in (backends.cuda.matmul, backends.mkldnn.matmul)),
        (backends.mkldnn.conv, "fp32_precision", "none"),
        (backends.cudnn, "deterministic", False),
        (backends.cudnn, "benchmark", False),
        (backends.cudnn, "enabled", True),
        (backends.mkldnn, "enabled", True),
        (backends.cuda.matmul, "allow_fp16_accumulation", False),
        (backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", True),
    )
    for holder, name, value in attributes:  # general precisions before those that would inherit them
        settings.callback(setattr, holder, name, getattr(holder, name))
        setattr(holder, name, value)
    for get, set_to, value in functions:  # restored before the precisions, which they change
        settings.callback(set_to, get())
        set_to(value)
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    for context in (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
        torch.random.fork_rng(gpus),
    ):
        settings.enter_context(context)
    if torch.get_default_device().type != "cpu":
        settings.enter_context(torch.device("cpu"))
    if _flushes_denormals():  # a setting of each thread; those of OpenMP inherit it when the first one starts them
        settings.callback(torch.set_flush_denormal, True)
        torch.set_flush_denormal(False)
        if _flushes_denormals():
            raise PaperbenchError("torch.set_flush_denormal(True) cannot be undone. Start again without it.")


def _flushes_denormals() -> bool:
    import torch

    smallest = torch.full((2**20,), torch.finfo(torch.float32).smallest_normal)  # enough to divide among all threads
    return not bool((smallest / 2).all())
