"""Arithmetic of a training: `fp32`, `tf32` and `bf16`."""

from __future__ import annotations

from typing import Any, get_args

import torch

from paperbench.errors import PaperbenchError, nearest
from paperbench.specs.run_spec import Precision
from paperbench.training.device import OTHER_MACHINES_GPU

_REMOVED = "bf16-fp32-stream"
PRECISIONS: tuple[Precision, ...] = tuple(name for name in get_args(Precision) if name != _REMOVED)


def choose_precision(wanted: str | None, device: torch.device) -> Precision:
    """Return the precision by name. None is tf32 on a GPU that has it, as in public re-implementations, else fp32.

    GPUs before Ampere have neither TF32 nor bfloat16: torch accepts bfloat16 there, but computes it image by image.
    """
    on_gpu = device.type == "cuda"
    is_ampere = on_gpu and (device == OTHER_MACHINES_GPU or torch.cuda.get_device_capability(device) >= (8, 0))
    if wanted is None:
        return "tf32" if is_ampere else "fp32"
    if wanted == _REMOVED:
        raise PaperbenchError(f"Precision {wanted} was removed, and its results stay readable. Use bf16.")
    if wanted not in PRECISIONS:
        raise PaperbenchError(f"Unknown precision {wanted!r}. {nearest(wanted, PRECISIONS)}")
    if not is_ampere and (wanted == "tf32" or (on_gpu and wanted == "bf16")):
        use = "Use fp32." if on_gpu else "Use fp32 or bf16."
        raise PaperbenchError(f"Precision {wanted} needs an NVIDIA GPU of the Ampere generation or later. {use}")
    return wanted


def set_arithmetic(precision: str) -> None:
    """Set torch's arithmetic for this process.

    `tf32` applies to convolutions only, which is torch's default and so what public re-implementations use; the
    classifier's matrix product stays in full float32. All switches are always set, and through the same interface,
    since torch refuses to mix it with the older one; the call before them undoes an environment variable that sets the
    older one (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, as in NVIDIA's images). CPUs with bfloat16 have such switches, too.
    cuDNN must use deterministic algorithms and must not choose them by timing: otherwise a resumed run would differ
    from an uninterrupted one.
    """
    backends: Any = torch.backends
    torch.set_float32_matmul_precision("highest")
    backends.cudnn.conv.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    for part in (backends.cuda.matmul, backends.mkldnn.conv, backends.mkldnn.matmul):
        part.fp32_precision = "ieee"
    backends.cudnn.deterministic = True
    backends.cudnn.benchmark = False


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Return a context for forward passes: bfloat16 convolutions and activations under `bf16`, else no effect.

    Parameters, gradients, momentum, BN statistics and the loss stay in float32.
    """
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)
