"""Nets as modules: the paper's, and those that functions of the user's make, whose code runs here and nowhere else."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import FlopCounterMode

from paperbench import architecture
from paperbench.catalogue import AnyNet, Net, OwnNet
from paperbench.catalogue.own import MAX_CODE_BYTES, code_of
from paperbench.errors import PaperbenchError, RunError, nearest, summarize_error
from paperbench.files import read_at_most
from paperbench.models.residual_net import ResidualNet


def build(net: AnyNet) -> nn.Module:
    """Return a net as a new module, whose initial values are from torch's default generator."""
    if isinstance(net, Net):
        return ResidualNet(net)
    if code_of(net.file) != net.code:  # when the table was read
        raise RunError(f"{net.function} has changed since the command began. Repeat the command.")
    model = guarded(net, lambda: import_function(net.function, net.file)(num_classes=net.num_classes, **net.arguments))
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
        raise failure(net, error) from error


def failure(net: OwnNet, error: BaseException) -> RunError:
    """Return what to say of an error in a user's code, with the last line of the file that it came through."""
    trace, line = error.__traceback__, 0
    while trace:
        if trace.tb_frame.f_code.co_filename == str(net.file):
            line = trace.tb_lineno
        trace = trace.tb_next
    return RunError(f"{net.function} failed ({f'line {line}, ' * bool(line)}{summarize_error(error)}). Mend it.")


def import_function(function: str, file: Path) -> Callable[..., nn.Module]:
    """Import a function, named as in tables, from the file that `catalogue.find_file` finds for it."""
    where, _, name = function.rpartition(":")
    own = str(file.resolve().parent if where.endswith(".py") else Path.cwd())
    if own not in sys.path:
        sys.path.append(own)  # last, so that nothing there hides a library
    module = _module(f"{file.resolve()} {code_of(file)}", file) if where.endswith(".py") else import_module(where)
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
            exec(compile(read_at_most(file, MAX_CODE_BYTES), file, "exec"), vars(module))  # noqa: S102  (see SECURITY.md)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


@cache
def checked(net: OwnNet) -> bool:
    """Check that a net of the user's can be trained, resumed and compared; return whether training draws noise.

    Its parameters are float32 and all trained. A pass calls each BN layer once and changes no other buffer. What it
    returns depends on nothing but parameters, buffers, images and torch's random numbers.
    """

    def require(holds: bool, what: str) -> None:
        if not holds:
            raise RunError(f"{net.function}: {what}")

    def seeded(work: Callable[[], Any]) -> Any:
        torch.default_generator.manual_seed(0)
        return guarded(net, work)

    images = torch.linspace(-1, 1, 4 * 3 * net.size**2).view(4, 3, net.size, net.size)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        model, again = (seeded(lambda: build(net)) for _ in range(2))
        require(any(True for _ in model.parameters()), "the net has no parameters.")
        for name, parameter in model.named_parameters():
            require(not is_lazy(parameter), f"{name} is lazy. Give its size.")
            require(parameter.dtype == torch.float32, f"{name} is {parameter.dtype}. All parameters must be float32.")
            require(parameter.requires_grad, f"{name} is frozen. Make it a buffer.")
        values = zip(model.state_dict().values(), again.state_dict().values(), strict=True)
        require(all(torch.equal(*pair) for pair in values), "equal seeds of torch give other initial values.")
        calls = Counter[str]()
        for name, layer in model.named_modules():
            if isinstance(layer, _BatchNorm) and layer.running_mean is not None:
                calls[name] = 0
                layer.register_forward_hook(lambda own, *_, name=name: calls.update([name] * own.training))
        before = {name: one.clone() for name, one in model.named_buffers() if name.rpartition(".")[0] not in calls}
        tested, trained = seeded(lambda: model.eval()(images)), seeded(lambda: model.train()(images))
        draws = not torch.equal(torch.get_rng_state(), torch.default_generator.manual_seed(0).get_state())
        expected = [len(images), net.num_classes]
        for mode, logits in (("tests", tested), ("training", trained)):
            found = [*logits.shape] if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
            what = f"in {mode}, images of shape {[*images.shape]} must give logits of shape {expected}, not {found}."
            require(found == expected, what)
        for name, number in calls.items():
            require(number == 1, f"{name} is called {number} times in a pass in training mode. BN must be called once.")
        for name, one in model.named_buffers():
            is_kept = name not in before or torch.equal(one, before[name])
            require(is_kept, f"a pass changes the buffer {name}. Only the averages of BN may change.")
        repeats = torch.equal(trained, seeded(lambda: model(images)))
        require(repeats, "equal passes give other values: they depend on more than tensors and torch's random numbers.")
    return draws


@cache
def layout(net: AnyNet) -> nn.Module:
    """Return a net without values, on torch's meta device."""
    if isinstance(net, Net):
        with torch.device("meta"):
            return build(net)
    checked(net)
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
    checked(net)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), FlopCounterMode(display=False) as counter:
        guarded(net, lambda: build(net).eval()(torch.zeros(1, 3, side or net.size, side or net.size)))
    return int(max(counter.get_total_flops() // 2, 1))


def draws_noise(net: AnyNet) -> bool:
    """Whether a forward pass in training draws random numbers."""
    return net.has_dropout if isinstance(net, Net) else checked(net)


def imported_beside(net: OwnNet) -> dict[str, str]:
    """Return the sha256 of each file that has been imported from the directory of a net's file, by its name."""
    own = net.file.parent
    files = (Path(file) for one in [*sys.modules.values()] if (file := getattr(one, "__file__", None)))
    beside = {file for file in files if file.suffix == ".py" and file.is_relative_to(own) and file.is_file()}
    return {str(file.relative_to(own)): code_of(file) for file in sorted(beside)}
