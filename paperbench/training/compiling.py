"""Compilation of nets, unit by unit.

Compiling a net of 1001 layers as a whole would take many minutes. Its units are of about six kinds, and each kind is
compiled once. Stem and classifier are not compiled.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from types import MethodType
from typing import Any

import torch
import torch._dynamo
from torch import Tensor, nn

from paperbench.data.loader import Choices
from paperbench.errors import shorten
from paperbench.models.residual_unit import ResidualUnit
from paperbench.training.engine import EngineError, Step
from paperbench.training.memory import is_out_of_memory

MAX_KINDS = 64
"""Maximum number of kinds of units per net. A net has two or three per stage; torch's default limit is eight."""


def compile_units(module: nn.Module, backend: str = "inductor") -> None:
    """Compile the residual units of a net, each on its first call.

    From then on, a unit that torch cannot compile as a whole is an error; by default torch would silently fall back to
    eager.

    Args:
        module: The net, changed in place.
        backend: The backend of torch.compile.
    """
    # torch counts the kinds of all nets in a process together. Resetting the count would also unload the Triton
    # kernels of earlier nets, which their captured graphs still launch.
    config = torch._dynamo.config
    config.recompile_limit += MAX_KINDS
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, config.recompile_limit)
    # Otherwise Inductor chooses among kernels by timing them, in each process again, and they round differently.
    options: dict[str, Any] | None = {"deterministic": True} if backend == "inductor" else None
    with _children_in_own_sessions():  # importing Inductor starts its workers
        for unit in module.modules():
            if isinstance(unit, ResidualUnit):
                unit.forward = MethodType(_compiled_forward, unit)  # type: ignore[method-assign]
                unit.compile(backend=backend, fullgraph=True, dynamic=False, options=options)


def _compiled_forward(unit: ResidualUnit, x: Tensor) -> Tensor:
    """Compute a unit, which raises if torch runs this uncompiled. No hook could: torch compiles hooks separately."""
    if not torch.compiler.is_compiling():
        raise RuntimeError("torch skipped a residual unit")
    return ResidualUnit.forward(unit, x)


class CompiledStep:
    """A step whose failures raise an `EngineError` until it has succeeded once, since the first call compiles it.

    Backends may raise anything, and backward passes are compiled when autograd first calls them. Out-of-memory errors
    are raised as such.
    """

    def __init__(self, step: Step) -> None:
        self._step, self._is_compiled = step, False
        self.update, self.clear_gradients = step.update, step.clear_gradients

    def compute(self, choices: Choices, images: int | None = None) -> None:
        if self._is_compiled:
            self._step.compute(choices, images)
            return
        try:
            with _children_in_own_sessions():
                self._step.compute(choices, images)
        except Exception as error:
            cause = getattr(error, "inner_exception", error)
            if is_out_of_memory(cause):
                raise cause  # noqa: B904
            raise EngineError(f"torch.compile failed ({type(error).__name__}: {_reason(str(error))})") from error
        self._is_compiled = True


@contextmanager
def _children_in_own_sessions() -> Iterator[None]:
    """Keep signals to this process's group from processes started in this context.

    Ctrl-C, `timeout` and Slurm signal the group. A run stops after its iteration then, for which the compilers must
    finish. Blocking the signals here would block a second Ctrl-C, too, and Inductor stops its workers with SIGTERM.
    """
    start = subprocess.Popen.__init__
    subprocess.Popen.__init__ = partialmethod(start, start_new_session=True)  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        subprocess.Popen.__init__ = start  # type: ignore[method-assign]


def _reason(message: str) -> str:
    """Return the essential line of a long compiler message."""
    first, _, rest = message.strip().partition("\n\n")
    complaints = [line for line in rest.splitlines() if "error:" in line.lower()]  # of a C++ compiler
    return shorten(" ".join((complaints or [first])[0].split()), 500) or "no reason given"
