"""Tables of `paperbench bench`, at most 80 columns wide. Does not import torch."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from paperbench.bench.breakdown import Breakdown, Row
from paperbench.bench.figures import NetFigures, Ratio, VariantFigures

WIDTH = 80

_BENCH_HEADER = [
    ["", "images", "speedup", "speedup", "speedup", "first", "peak"],
    ["loop, precision", "per s", "shipped", "plain", "on-device", "step, s", "GB"],
]
_BENCH_LEGEND = """\
plain loop: as public repositories ship it (eager, DataLoader, {workers} workers; {precision}).
on-device loop: the same with batches already on the device. Speedup: over the
plain loop as shipped, then over both at the same precision; median of rounds.
~: within noise, the largest change between two timings of a variant in a round.
First step: with compilation. {last}"""
_LAST = {
    "cpu": "On a CPU compare the speedups, not the images/s.",
    "cuda": "Peak: memory allocated by torch before the rounds.",
}

_BREAKDOWN_HEADER = [
    ["", "", "", "", "floor", "floor", "floor"],
    ["kind", "ms", "share", "count", "bytes", "arith", "launch"],
]
_BREAKDOWN_LEGEND = """\
ms: per step, as profiled; whole steps: median without the profiler.
floor: minimum ms at the machine's limits for the counted bytes, arithmetic or
launches, each alone. Bytes are counted without caches, so small tensors may
take less."""
_BREAKDOWN_ON_CPU = """
CPU rows are operators, which the profiler slows down; cuDNN does not apply."""


def format_net(net: NetFigures) -> str:
    """Return the table of one net, followed by the variants without figures."""
    noise = "unknown" if net.noise is None else f"{net.noise:.1%}"
    return "\n".join(
        [
            f"{net.net}: {net.parameters:,} parameters, batch size {net.batch_size}",
            f"batch norm over {net.bn_group} images in ours, {net.batch_size} in plain loops; noise {noise}",
            "",
            _format_table(_BENCH_HEADER, [_variant_cells(figures) for figures in net.variants]),
            *(_wrap(f"{v.variant.label}: {v.status}: {v.detail}") for v in net.variants if v.status != "measured"),
        ]
    )


def format_legend(device: str, shipped: str, workers: int) -> str:
    """Explain the columns for a device type, given the shipped plain loop's precision and number of workers."""
    return _BENCH_LEGEND.format(workers=workers, precision=shipped, last=_LAST[device])


def format_breakdown(found: Breakdown) -> str:
    """Return the table of kinds and the times of whole steps."""
    on_gpu = found.machine.environment.cuda is not None
    total, as_trained = sum(kind.milliseconds or 0 for kind in found.kinds), found.steps[0].milliseconds
    idle = [Row("no kernel running", max(0.0, as_trained - total))] if on_gpu and as_trained else []
    rows = [*found.kinds, *idle, Row("whole step", as_trained, floors=found.steps[0].floors)]
    ceilings = found.ceilings
    return "\n".join(
        [
            f"{found.net}: engine {found.engine}, {found.precision}",
            f"Batch size {found.batch_size}, batch norm over {found.bn_group} images.",
            f"Limits: copy {ceilings.bytes_per_second / 1e9:,.0f} GB/s, multiply "
            f"{ceilings.flops_per_second / 1e12:.2f} TFLOP/s, launch {1e6 / ceilings.launches_per_second:.2f} us",
            "",
            _format_table(_BREAKDOWN_HEADER, [_kind_cells(row, total) for row in rows]),
            "",
            _format_table([["whole step in each setting", "ms"]], [[s.name, _format_ms(s)] for s in found.steps]),
            *(_wrap(f"{step.name}: {step.problem}") for step in found.steps if step.problem),
            "",
            _BREAKDOWN_LEGEND + ("" if on_gpu else _BREAKDOWN_ON_CPU),
        ]
    )


def _format_table(header: Sequence[Sequence[str]], rows: Sequence[Sequence[str]]) -> str:
    """Align the first column left and the others right."""
    widths = [max(map(len, column)) for column in zip(*header, *rows, strict=True)]
    lines = [
        "  ".join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])]).rstrip()
        for cells in (*header, ["-" * width for width in widths], *rows)
    ]
    return "\n".join(lines)


def _wrap(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="    ")


def _variant_cells(found: VariantFigures) -> list[str]:
    speed = found.images_per_second
    if speed is None:
        return [found.variant.label, *["-"] * 6]
    return [
        found.variant.label,
        f"{speed:,.0f}" if speed >= 100 else f"{speed:.1f}",
        *map(_format_ratio, (found.over_plain, found.over_plain_same_precision, found.over_on_device)),
        f"{found.first_step_seconds:.1f}",
        "-" if found.peak_memory is None else f"{found.peak_memory / 1e9:.2f}",
    ]


def _format_ratio(ratio: Ratio | None) -> str:
    return f"{'' if ratio.is_difference else '~'}{ratio.median:.2f}" if ratio else "-"


def _kind_cells(row: Row, total: float) -> list[str]:
    return [
        row.name[:31],  # kernels may have longer names
        _format_ms(row),
        "" if row.number is None else f"{(row.milliseconds or 0) / total:.1%}",
        "" if row.number is None else f"{row.number:,.0f}",
        *([f"{value:.2f}" for value in vars(row.floors).values()] if row.floors else [""] * 3),
    ]


def _format_ms(row: Row) -> str:
    return "-" if row.milliseconds is None else f"{row.milliseconds:.2f}"
