"""Part "exactness": whether the engines compute the same step, and whether a run can be gone on with."""

from __future__ import annotations

from typing import Any

from paperbench.bench.anatomy.context import Context
from paperbench.bench.anatomy.parts.seeds import digest
from paperbench.bench.anatomy.timing import free_memory, wait_for
from paperbench.catalogue import Net
from paperbench.training.snapshot import Snapshot
from paperbench.training.trainer import Trainer


def measure(context: Context) -> None:
    """Check the nets in order, every precision."""
    for name, net in context.nets.items():
        for precision in context.precisions:
            _check(context, name, net, precision)


def _check(context: Context, name: str, net: Net, precision: str) -> None:
    steps = context.scale.exactness_steps
    about = {"model": name, "precision": precision, "steps": steps}
    reference: dict[str, Any] = {}

    def eager() -> dict[str, Any]:
        trainer, losses = _trained(context, net, precision, "eager", steps)
        again, _ = _trained(context, net, precision, "eager", steps)
        reference.update(digest=digest(trainer), losses=losses)
        return {"equal": digest(again) == reference["digest"], "loss": losses[-1]}

    if not context.recorder.attempt({**about, "check": "eager repeats itself"}, eager):
        return
    for engine in context.engines:
        if engine != "eager":

            def other(engine: str = engine) -> dict[str, Any]:
                trainer, losses = _trained(context, net, precision, engine, steps)
                worst = max(abs(a - b) / abs(b) for a, b in zip(losses, reference["losses"], strict=True))
                return {"equal": digest(trainer) == reference["digest"], "greatest_relative_difference_of_loss": worst}

            context.recorder.attempt({**about, "check": f"{engine} is as eager"}, other)
            free_memory(context.device)
    engine = "graph" if "graph" in context.engines else "eager"

    def resumed() -> dict[str, Any]:
        first, _ = _trained(context, net, precision, engine, steps // 2)
        state = Snapshot(first).state()
        second = context.trainer(net, precision, engine)
        second.load_state_dict(state)
        _step(context, second, steps - steps // 2)
        return {"equal": digest(second) == reference["digest"]}

    context.recorder.attempt({**about, "check": f"{engine}, stopped half-way and gone on with"}, resumed)
    free_memory(context.device)


def _trained(context: Context, net: Net, precision: str, engine: str, steps: int) -> tuple[Trainer, list[float]]:
    trainer = context.trainer(net, precision, engine)
    return trainer, _step(context, trainer, steps)


def _step(context: Context, trainer: Trainer, steps: int) -> list[float]:
    """Step so often; the training loss of each step."""
    losses = []
    for _ in range(steps):
        trainer.begin_window()
        trainer.step()
        losses.append(trainer.window_metrics().loss)
    wait_for(context.device)
    return losses
