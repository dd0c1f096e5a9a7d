"""Nets as modules: the paper's, and those that functions of the user's make, whose code runs here and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from paperbench import architecture
from paperbench.catalogue import AnyNet, Net, OwnNet
from paperbench.catalogue.own import code_of
from paperbench.errors import PaperbenchError, RunError, nearest, summarize_error
from paperbench.models.residual_net import ResidualNet


def build(net: AnyNet) -> nn.Module:
    """Return a net as a new module, whose initial values are from torch's default generator."""
    if isinstance(net, Net):
        return ResidualNet(net)
    model = guarded(net, lambda: _function(net)(num_classes=net.num_classes, **net.arguments))
    if not isinstance(model, nn.Module):
        raise RunError(f"{net.function} returned a {type(model).__name__}; it must return an nn.Module.")
    return model


def guarded(net: AnyNet, work: Callable[[], Any]) -> Any:
    """Return `work()`; what a user's code raises in it becomes a `RunError`, but for a lack of memory."""
    try:
        return work()
    except (PaperbenchError, MemoryError, torch.OutOfMemoryError):
        raise
    except (Exception, SystemExit) as error:
        if isinstance(net, Net):
            raise
        raise RunError(f"{net.function} failed ({_place(error, net)}{summarize_error(error)}). Mend it.") from error


def _place(error: BaseException, net: OwnNet) -> str:
    """Name the last line of the user's file that an error came through."""
    trace, line = error.__traceback__, 0
    while trace:
        if trace.tb_frame.f_code.co_filename == str(net.file):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"line {line}, " if line else ""


def _function(net: OwnNet) -> Callable[..., nn.Module]:
    """Return the function of a net, whose file must be as it was when the table was read."""
    if code_of(net.file) != net.code:
        raise RunError(f"{net.function} has changed since the command began. Repeat the command.")
    return import_function(net.function, net.file)


def import_function(function: str, file: Path) -> Callable[..., nn.Module]:
    """Import a function, named as in tables, from the file that `catalogue.find_file` finds for it."""
    where, _, name = function.rpartition(":")
    own = str(file.resolve().parent if where.endswith(".py") else Path.cwd())
    if own not in sys.path:
        sys.path.append(own)  # last, so that nothing there hides a library
    module = _module(f"own_{code_of(file)}", file) if where.endswith(".py") else import_module(where)
    functions = {name: one for name, one in vars(module).items() if callable(one)}
    if name not in functions:
        raise PaperbenchError(f"{where} has no function {name!r}. {nearest(name, functions)}")
    return cast(Callable[..., nn.Module], functions[name])


def _module(name: str, file: Path) -> ModuleType:
    """Import a file, once for each text of it."""
    if name not in sys.modules:
        sys.modules[name] = module = ModuleType(name)
        module.__file__ = str(file)
        try:
            exec(compile(file.read_bytes(), file, "exec"), vars(module))  # noqa: S102  (see SECURITY.md)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


@cache
def layout(net: AnyNet) -> nn.Module:
    """Return a net without values, on torch's meta device."""
    if isinstance(net, Net):
        with torch.device("meta"):
            return build(net)
    with torch.random.fork_rng(devices=[]):
        return build(net).to("meta")


@cache
def residual(net: AnyNet) -> Net | None:
    """Return the net of the catalogue that a module is, unchanged; None for other modules of the user's."""
    if isinstance(net, Net):
        return net
    model = layout(net)
    if type(model) is not ResidualNet or str(model) != str(layout(model.net)):
        return None
    return model.net


def parameters(net: AnyNet) -> int:
    """Return the number of trainable parameters."""
    if isinstance(net, Net):
        return architecture.parameters(net)
    return sum(parameter.numel() for parameter in layout(net).parameters())


@cache
def macs(net: AnyNet, side: int | None = None) -> int:
    """Return the multiply-accumulate operations on one image; of a net of the user's, those that torch counts."""
    if isinstance(net, Net):
        return architecture.macs(net, side)
    images = torch.empty(1, 3, side or net.size, side or net.size, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        guarded(net, lambda: layout(net).eval()(images))
    return int(max(counter.get_total_flops() // 2, 1))


def draws_noise(net: AnyNet) -> bool:
    """Whether a forward pass in training draws random numbers."""
    if isinstance(net, Net):
        return net.has_dropout
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        model, images = build(net).train(), torch.zeros(2, 3, net.size, net.size)
        before = torch.get_rng_state()
        guarded(net, lambda: model(images))
        return not torch.equal(before, torch.get_rng_state())
