"""Compiling a net unit by unit.

A net of 1001 layers compiled as one would take many minutes. Its units are of some six kinds, and each kind is compiled
once; what lies between them (stem, classifier) stays as it is.
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
"""Kinds of units that may be compiled for a net. It has two or three a stage; torch gives up after eight by default."""

_LONGEST_REASON = 200


def compile_units(module: nn.Module, backend: str = "inductor") -> None:
    """Have the residual units compiled when they are first called.

    From then on torch takes it for an error, in this process, if it cannot compile a unit: by default it would go on
    eagerly without saying so.

    Args:
        module: The net, changed in place.
        backend: torch.compile's.
    """
    # torch counts the kinds of all nets of a process together. To forget those before would be wrong: with its code
    # Triton unloads its kernels, which graphs that were captured with them still launch.
    config = torch._dynamo.config
    config.recompile_limit += MAX_KINDS
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, config.recompile_limit)
    config.fail_on_recompile_limit_hit = True
    # Else Inductor chooses among kernels that round differently by timing them, in each process anew.
    options: dict[str, Any] | None = {"deterministic": True} if backend == "inductor" else None
    for unit in module.modules():
        if isinstance(unit, ResidualUnit):
            unit.compile(backend=backend, dynamic=False, options=options)


def with_clear_compile_errors(step: Callable[[BatchIndices], None]) -> Callable[[BatchIndices], None]:
    """The same step; if the compiler fails in it, a `RunError` says so, but a lack of memory stays one."""

    def told(choices: BatchIndices) -> None:
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

    return told


def _reason(message: str) -> str:
    """What a compiler's message of many lines says is wrong, in one."""
    first, _, rest = message.strip().partition("\n\n")
    complaints = [line for line in rest.splitlines() if "error:" in line.lower()]  # a C++ compiler's, quoted
    reason = " ".join((complaints or [first])[0].split()) or "no reason given"
    return reason if len(reason) <= _LONGEST_REASON else reason[: _LONGEST_REASON - 3] + "..."
