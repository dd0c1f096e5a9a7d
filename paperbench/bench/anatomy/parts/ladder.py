"""Part "ladder": images per second of a net by every engine and precision, beside the plain loops."""

from __future__ import annotations

import time
from typing import Any

from paperbench.bench.anatomy.context import Context
from paperbench.bench.figures import NetFigures, VariantFigures
from paperbench.bench.throughput import measure_net
from paperbench.bench.trajectory import DEEP
from paperbench.catalogue import Net


def measure(context: Context) -> None:
    """Measure precision by precision, so that what is known of one is kept if the time is over in the next.

    Beside deep nets the plain loops, which take seconds a round then, are measured with the first precision only.
    """
    (name, net), *_ = context.nets.items()
    first_took = 0.0
    precisions = [*context.precisions, *([context.stream_precision] if context.stream_precision else [])]
    for number, precision in enumerate(precisions):
        what = {"model": name, "precision": precision}
        if context.recorder.seconds_left < 0.6 * first_took:
            context.recorder.leave_out(what, "no time left")
            continue
        with_plain = number == 0 or (net.depth < DEEP and precision != context.stream_precision)
        with_plain &= context.scale.name != "quick"  # the loaders' processes alone take ten seconds to start
        start = time.monotonic()
        found = measure_net(
            name,
            engines=context.engines,
            precisions=(precision,),
            device=context.device,
            batch_size=context.scale.batch_size,
            rounds=context.scale.rounds,
            seconds=context.scale.round_seconds,
            deadline=start + building_share(net) * context.recorder.seconds_left,
            baselines=with_plain,
            progress=lambda line: print(line, flush=True),
        )
        first_took = first_took or time.monotonic() - start
        _write(context, found)


def building_share(net: Net) -> float:
    """Share of the time after which no loop is built any more; a round of all of them follows in any case."""
    return 0.6 if net.depth >= DEEP else 0.8


def _write(context: Context, found: NetFigures) -> None:
    for variant in found.variants:
        what = {"model": found.net, "precision": variant.precision, "kind": variant.kind, "engine": variant.engine}
        if variant.images_per_second is None:
            why = variant.status + (f": {variant.detail}" if variant.detail else "")
            context.recorder.leave_out(what, why)
        else:
            context.recorder.add({**what, **figures(variant, found)})


def figures(variant: VariantFigures, found: NetFigures) -> dict[str, Any]:
    """The row of a variant that has a figure."""
    rate = variant.images_per_second
    assert rate is not None  # noqa: S101
    return {
        "label": variant.label,
        "batch": found.batch_size,
        "group": found.bn_group,
        "images_per_second": rate.median,
        "low_images_per_second": rate.low,
        "high_images_per_second": rate.high,
        "ms_per_step": 1000 * found.batch_size / rate.median,
        "over_plain": variant.over_plain.median if variant.over_plain else None,
        "over_plain_same_precision": (
            variant.over_plain_same_precision.median if variant.over_plain_same_precision else None
        ),
        "first_step_seconds": variant.first_step_seconds,
        "peak_allocated": variant.peak_allocated,
        "peak_reserved": variant.peak_reserved,
        "flags": variant.flags,
        "clocks": found.clocks,
        "rounds": len(variant.seconds),
        "noise": found.noise,
        "compared_steps": found.compared_steps,
        "displacement": variant.displacement,
    }
