"""Compilation of nets, unit by unit.

Compiling a net of 1001 layers as a whole would take many minutes. Its units are of about six kinds, and each kind is
compiled once. Stem and classifier are not compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch import nn

from paperbench.data.loader import BatchIndices
from paperbench.errors import RunError
from paperbench.models.residual_unit import ResidualUnit
from paperbench.training.memory import is_out_of_memory

MAX_KINDS = 64
"""Maximum number of kinds of units per net. A net has two or three per stage; torch's default limit is eight."""

_MAX_REASON_LENGTH = 200


def compile_units(module: nn.Module, backend: str = "inductor") -> None:
    """Compile the residual units of a net, each on its first call.

    From then on, in this process, a unit that torch cannot compile is an error; by default torch would silently fall
    back to eager.

    Args:
        module: The net, changed in place.
        backend: The backend of torch.compile.
    """
    # torch counts the kinds of all nets in a process together. Resetting the count would also unload the Triton
    # kernels of earlier nets, which their captured graphs still launch.
    config = torch._dynamo.config
    config.recompile_limit += MAX_KINDS
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, config.recompile_limit)
    config.fail_on_recompile_limit_hit = True
    # Otherwise Inductor chooses among kernels by timing them, in each process again, and they round differently.
    options: dict[str, Any] | None = {"deterministic": True} if backend == "inductor" else None
    for unit in module.modules():
        if isinstance(unit, ResidualUnit):
            unit.compile(backend=backend, dynamic=False, options=options)


def with_clear_compile_errors(step: Callable[[BatchIndices], None]) -> Callable[[BatchIndices], None]:
    """Wrap a step so that compiler failures raise a `RunError`. Out-of-memory errors are re-raised as such."""

    def wrapped(choices: BatchIndices) -> None:
        try:
            step(choices)
        except (torch._dynamo.exc.TorchDynamoException, torch._dynamo.exc.FailOnRecompileLimitHit) as error:
            cause = getattr(error, "inner_exception", error)
            if is_out_of_memory(cause):
                raise cause from error
            raise RunError(
                f"torch.compile failed ({type(error).__name__}: {_reason(str(error))}). Use `--engine eager`, or on a "
                "GPU `--engine graph`."
            ) from error

    return wrapped


def _reason(message: str) -> str:
    """Return the essential line of a long compiler message, at most 200 characters."""
    first, _, rest = message.strip().partition("\n\n")
    complaints = [line for line in rest.splitlines() if "error:" in line.lower()]  # of a C++ compiler
    reason = " ".join((complaints or [first])[0].split()) or "no reason given"
    return reason if len(reason) <= _MAX_REASON_LENGTH else reason[: _MAX_REASON_LENGTH - 3] + "..."
