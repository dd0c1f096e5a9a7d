"""The engines, and the choice of one for a run.

| engine  | how it runs a step                                                                              |
|---------|-------------------------------------------------------------------------------------------------|
| `eager` | one operation after another, on CPUs and GPUs; the reference for the other                      |
| `graph` | the same operations, captured once as a CUDA graph, with CIFAR's batch-norm groups side by side |

All give the same numbers, bit for bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import NamedTuple

import torch

from paperbench.catalogue import AnyNet
from paperbench.data.share import Share
from paperbench.errors import PaperbenchError, RunError, nearest
from paperbench.models.building import residual
from paperbench.options import is_bit_equal
from paperbench.specs.recipe import Recipe
from paperbench.specs.run_spec import Precision
from paperbench.training import graph
from paperbench.training.engine import EagerEngine, Engine, Parts
from paperbench.training.memory import memory_needed
from paperbench.typed import Natural, typed


class EngineKind(NamedTuple):
    """What is known of an engine before it is built.

    Attributes:
        build: Makes it.
        why_not: Returns why it does not work on a device; None if it does.
        groups_at_once: Returns how many of a process's batch-norm groups run side by side.
    """

    build: Callable[[Parts], Engine]
    why_not: Callable[[torch.device], str | None]
    groups_at_once: Callable[[Recipe, Share], int]


ENGINES: dict[str, EngineKind] = {
    "eager": EngineKind(EagerEngine, lambda _: None, lambda *_: 1),
    "graph": EngineKind(graph.GraphEngine, graph.why_not, graph.groups_at_once),
}
"""All engines, the slowest first."""

REFERENCE = next(iter(ENGINES))
"""The engine that works everywhere, and with whose first steps those of the others are compared."""

_REMOVED = {"streams": "it is now called graph", "compile": "it rounded differently"}
"""Engines of older records, and why they are gone."""


def engine_candidates(wanted: str, device: torch.device, earlier: str | None = None) -> list[str]:
    """Return the engines to try for a run, best first. Only "auto" on a GPU gives more than one.

    Args:
        wanted: "auto" or the name of an engine.
        earlier: The engine of the last session, if the run is resumed.
    """
    if wanted != "auto":
        if wanted in _REMOVED:
            raise PaperbenchError(f"Engine {wanted} was removed: {_REMOVED[wanted]}. Use `--engine auto`.")
        if wanted not in ENGINES:
            raise PaperbenchError(f"Unknown engine {wanted!r}. {nearest(wanted, ['auto', *ENGINES])}")
        if why_not := ENGINES[wanted].why_not(device):
            raise PaperbenchError(f"Engine {wanted}: {why_not}. Use `--engine auto`.")
        return [wanted]
    if earlier is not None and not is_bit_equal(earlier):
        raise RunError(
            f"The run was last trained with engine {earlier}, which this version does not have: others round "
            f"differently. To continue it with another engine, name one, such as `--engine {REFERENCE}`; the record "
            "will list both."
        )
    return [name for name, kind in reversed(ENGINES.items()) if not kind.why_not(device)]


def why_best(wanted: str, device: torch.device) -> str:
    """Return why the first of the candidates is the first."""
    return "as requested" if wanted != "auto" else f"the fastest on a {'GPU' if device.type == 'cuda' else 'CPU'}"


@typed
class Way:
    """A way to train: with an engine, and with or without recomputing the residual units in the backward pass.

    Attributes:
        needed: About how many bytes a training step needs.
    """

    engine: str
    recompute: bool
    needed: Natural


def ways_to_train(
    net: AnyNet, recipe: Recipe, precision: Precision, side: int | None, engines: Iterable[str], share: Share
) -> Iterator[Way]:
    """Yield the ways to train, the fastest first, each with less memory than the one before. Numbers are the same."""
    least = sys.maxsize
    for engine, recompute in product(engines, (False, True) if residual(net) else (False,)):
        at_once = ENGINES[engine].groups_at_once(recipe, share)
        needed = memory_needed(net, recipe, precision, side, at_once, recompute=recompute)
        if needed < least:
            least = needed
            yield Way(engine, recompute, needed)
