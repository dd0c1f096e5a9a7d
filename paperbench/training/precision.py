"""Device and arithmetic of a training: `fp32`, `tf32`, `bf16` and `bf16-fp32-stream`."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor, nn

from paperbench.errors import PaperbenchError, nearest
from paperbench.models import ResidualNet
from paperbench.models.residual_unit import ResidualUnit
from paperbench.models.shortcuts import Projection
from paperbench.specs.run_spec import Precision

PRECISIONS: tuple[Precision, ...] = get_args(Precision)


def choose_device(wanted: str) -> torch.device:
    """Return the device by name. "auto" is the first GPU if torch sees one, else the CPU.

    Raises:
        PaperbenchError: The device does not exist.
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise PaperbenchError(f"Unknown device {wanted!r}. Use auto, cpu, cuda or cuda:N.") from error
    if device.type not in ("cpu", "cuda"):
        raise PaperbenchError(f"paperbench runs on cpu and cuda, not on {wanted!r}.")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if count == 0:
            raise PaperbenchError(f"Device {wanted!r}: torch {torch.__version__} sees no GPU here. Use `--device cpu`.")
        if (device.index or 0) >= count:
            raise PaperbenchError(f"Device {wanted!r}: the GPUs here are cuda:0 to cuda:{count - 1}.")
    return device


def choose_precision(wanted: str | None, device: torch.device) -> Precision:
    """Return the precision by name. None is tf32 on a GPU that has it, as in public re-implementations, else fp32.

    Raises:
        PaperbenchError: The name is unknown, or the device does not have the precision.
    """
    has_tf32 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    if wanted is None:
        return "tf32" if has_tf32 else "fp32"
    if wanted not in PRECISIONS:
        raise PaperbenchError(f"Unknown precision {wanted!r}. {nearest(wanted, PRECISIONS)}")
    if wanted == "tf32" and not has_tf32:
        raise PaperbenchError("Precision tf32 needs an NVIDIA GPU of the Ampere generation or later. Use fp32 or bf16.")
    return wanted


def set_arithmetic(precision: str) -> None:
    """Set torch's arithmetic on GPUs for this process.

    `tf32` applies to convolutions only, which is torch's default and so what public re-implementations use; the
    classifier's matrix product stays in full float32. Both switches are always set, and through the same interface,
    since torch refuses to mix it with the older one. cuDNN must use deterministic algorithms and must not choose them
    by timing: otherwise a resumed run would differ from an uninterrupted one.
    """
    torch.backends.cudnn.conv.fp32_precision = "tf32" if precision == "tf32" else "ieee"  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Return a context for forward passes: bfloat16 convolutions and activations under `bf16`, else no effect.

    Parameters, gradients, momentum, BN statistics and the loss stay in float32.
    """
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=has_bf16(precision), cache_enabled=False)


def has_bf16(precision: str) -> bool:
    """Whether convolutions compute in bfloat16."""
    return precision in ("bf16", "bf16-fp32-stream")


class _ToFloat32(nn.Module):
    """Casts to float32."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float()


def keep_stream_in_fp32(model: ResidualNet) -> None:
    """Keep the residual stream in float32, with bfloat16 inside the residual branches.

    The stream sums up to a thousand rounded summands; here the sum itself is not rounded. Adding bfloat16 to float32
    gives float32, so only the outputs of convolutions on the stream need a cast: those of the stem and of projections.
    """
    model.stem.add_module("widened", _ToFloat32())
    for unit in model.modules():
        if isinstance(unit, ResidualUnit) and isinstance(unit.shortcut, Projection):
            unit.shortcut.add_module("widened", _ToFloat32())
