"""Part "seeds": several trainings side by side on one GPU, each on a stream and with a graph of its own."""

from __future__ import annotations

import hashlib
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from paperbench.bench.anatomy.context import Context
from paperbench.bench.anatomy.timing import free_memory, wait_for
from paperbench.catalogue import Net
from paperbench.training.snapshot import Snapshot
from paperbench.training.trainer import Trainer

COMPARED = 4
"""Seeds whose solo runs are kept to compare with."""


def measure(context: Context) -> None:
    """Measure the nets in order, in the most decisive precision."""
    precision = context.precisions[0]
    engine = "graph" if "graph" in context.engines else "eager"
    for name, net in context.nets.items():
        team = Team(context, net, precision, engine)
        for number in context.scale.seeds:
            what = {"model": name, "precision": precision, "engine": engine, "seeds": number}
            context.recorder.attempt(what, lambda t=team, n=number: t.measure(n))  # type: ignore[misc]
        del team
        free_memory(context.device)


class Team:
    """Trainers of seeds 0, 1, ... of one net, each with a stream; built when they are first needed."""

    def __init__(self, context: Context, net: Net, precision: str, engine: str) -> None:
        self._context, self._net, self._precision, self._engine = context, net, precision, engine
        self._trainers: list[Trainer] = []
        self._streams: list[torch.cuda.Stream | None] = []
        self._beginnings: list[Snapshot] = []
        self._solo: list[str] = []

    def measure(self, number: int) -> dict[str, Any]:
        """Step so many trainers in turn; their rate together, and whether each computes what it does alone."""
        while len(self._trainers) < number:
            self._build(len(self._trainers))
        device, steps = self._context.device, self._context.scale.seed_steps
        compared = range(min(number, COMPARED))
        for seed in range(number):
            self._trainers[seed].load_state_dict(self._beginnings[seed].state())
        wait_for(device)
        for _ in range(steps):
            self._turn(number)
        wait_for(device)
        equal = [digest(self._trainers[seed]) == self._solo[seed] for seed in compared]
        seconds = self._seconds_of_a_turn(number)
        return {
            "batch": self._context.scale.batch_size,
            "images_per_second": self._context.scale.batch_size * number / seconds,
            "ms_per_turn": 1000 * seconds,
            "compared_steps": steps,
            "equal_to_solo": equal,
        }

    def _build(self, seed: int) -> None:
        """A trainer; the first ones make their steps alone, and are put back to their beginning."""
        context = self._context
        trainer = context.trainer(self._net, self._precision, self._engine, seed)
        beginning = Snapshot(trainer)
        if seed < COMPARED:
            for _ in range(context.scale.seed_steps):
                trainer.step()
            wait_for(context.device)
            self._solo.append(digest(trainer))
        else:
            trainer.step()  # captures
        wait_for(context.device)
        self._trainers.append(trainer)
        self._beginnings.append(beginning)
        self._streams.append(torch.cuda.Stream(context.device) if context.device.type == "cuda" else None)

    def _seconds_of_a_turn(self, number: int) -> float:
        on_gpu = self._context.device.type == "cuda"
        at_once, least = (10, 0.7) if on_gpu else (1, 0.0)
        done, start = 0, time.perf_counter()
        while done == 0 or time.perf_counter() - start < least:
            for _ in range(at_once):
                self._turn(number)
            wait_for(self._context.device)
            done += at_once
        return (time.perf_counter() - start) / done

    def _turn(self, number: int) -> None:
        """A step of each trainer on its stream."""
        for trainer, stream in zip(self._trainers[:number], self._streams[:number], strict=True):
            on: AbstractContextManager[Any] = nullcontext() if stream is None else torch.cuda.stream(stream)
            with on:
                trainer.step()


def digest(trainer: Trainer) -> str:
    """sha256 of a net's parameters and buffers, as a run would save them: the net alone may lack BN's counts."""
    found = hashlib.sha256()
    for name, value in trainer.state_dict()["model"].items():
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
