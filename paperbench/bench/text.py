"""Tables of `paperbench bench`, at most 80 columns wide. Does not import torch."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Sequence

from paperbench.bench.figures import LoaderReport, LoaderRow, NetFigures, Ratio, ScalingFigures, VariantFigures
from paperbench.errors import count

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
{last}"""
_LAST = {
    "cpu": "On a CPU compare the speedups, not the images/s.",
    "cuda": "Peak: memory that torch takes before the rounds.",
}

_LOADER_HEADER = [["", "images", "over", "over", "over"], ["", "per s", "decoding", "plain loop", "1 thread"]]
_LOADER_LEGEND = """\
decode: files in memory, with one thread. plain loop: decode and crop files in
memory, with one thread. Threads: the stream that feeds a training; it also
reads the files, checks their sha256 and fills batches. Over: times as fast as
decoding with Pillow, as the recipe's plain loop, and as one thread of the
stream; median of rounds, and the largest distance of a round from it."""
_STEP_IMAGES, _STEP_MS = 256, (50, 100, 200, 400)

_SCALING_HEADER = [
    ["", "images", "over", "", "over one with"],
    ["step by", "per s", "one", "efficiency", "all threads"],
]
_PARTS_HEADER = [["part of a step by all", "ms", "share"]]
SCALING_LEGEND = """\
Over: times as fast; median of rounds, and the largest distance of a round from
it. Efficiency: over one, divided by the number of processes. Parts are timed
alone, so the rest includes waiting for slower processes. all_reduce: torch's
sum of as many numbers, for comparison; its order depends on the processes."""


def format_scaling(found: ScalingFigures) -> str:
    """Return the tables of one net: steps by one process and by all, and the parts of the latter."""

    def cells(name: str, seconds: Sequence[float], processes: int = 0) -> list[str]:
        over = _ratios(found.alone, seconds) if seconds is not found.alone else []
        return [
            name,
            f"{found.batch_size / statistics.median(seconds):,.1f}",
            _format_rounds(over),
            f"{statistics.median(over) / processes:.0%}" if processes else "",
            _format_rounds(_ratios(found.alone_all_threads, seconds) if processes else []),
        ]

    one, threads = count(1, "process"), count(found.threads * found.processes, "thread")
    rows = [cells(one, found.alone)]
    if found.alone_all_threads:
        rows.append(cells(f"{one}, {threads}", found.alone_all_threads))
    rows.append(cells(f"{found.processes} processes", found.together, found.processes))
    used = {
        "sum of gradients": found.gradients,
        "statistics and losses": found.statistics,
        "agreement": found.agreement,
    }
    rest = tuple(whole - sum(parts) for whole, *parts in zip(found.together, *used.values(), strict=True))
    shares = {**used, "the rest": rest, "all_reduce instead": found.all_reduce}
    parts = [
        [name, f"{1000 * statistics.median(own):.2f}", f"{statistics.median(_ratios(own, found.together)):.1%}"]
        for name, own in shares.items()
    ]
    equal = {
        True: ["Parameters as by one process, bit for bit."],
        False: ["WRONG: parameters differ from one process's."],
    }
    groups = count(found.batch_size // found.bn_group, "group")
    return "\n".join(
        [
            f"{found.net}: {found.parameters:,} parameters, engine {found.engine}, {found.precision}",
            f"Batch size {found.batch_size} in {groups}; {count(found.threads, 'CPU thread')} per process.",
            *(equal[found.is_equal] if found.is_equal is not None else []),
            "",
            _format_table(_SCALING_HEADER, rows),
            "",
            _format_table(_PARTS_HEADER, parts),
        ]
    )


def format_loader(found: LoaderReport) -> str:
    """Return the table of decoders and recipes, and the cores that would feed training steps of some lengths."""
    pillow = found.decoding[0]
    rows = [_loader_cells(row, pillow) for row in found.decoding]
    feeding = []
    for recipe, (plain, one, *more) in found.recipes.items():
        rows += [_loader_cells(plain, pillow), *(_loader_cells(row, pillow, plain, one) for row in (one, *more))]
        seconds = _STEP_IMAGES * statistics.median(one.image_seconds)
        feeding.append([recipe, *(f"{math.ceil(1000 * seconds / step):,}" for step in _STEP_MS)])
    return "\n".join(
        [
            _wrap(f"Images: {found.images}, {found.pixels:,.0f} pixels and {found.bytes:,.0f} bytes on average."),
            "",
            _format_table(_LOADER_HEADER, rows),
            "",
            _format_table([[f"cores for {_STEP_IMAGES} images per", *(f"{step} ms" for step in _STEP_MS)]], feeding),
            "",
            _LOADER_LEGEND,
        ]
    )


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


def _loader_cells(row: LoaderRow, *others: LoaderRow) -> list[str]:
    over = (_ratios(other.image_seconds, row.image_seconds) if row != other else [] for other in others)
    speed = f"{1 / statistics.median(row.image_seconds):,.0f}"
    return [row.name, speed, *map(_format_rounds, over), *[""] * (3 - len(others))]


def _ratios(seconds: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the ratios of two measurements within each round."""
    return [one / other for one, other in zip(seconds, others, strict=True)] if seconds else []


def _format_rounds(ratios: Sequence[float]) -> str:
    if not ratios:
        return ""
    median = statistics.median(ratios)
    return f"{median:.2f} ±{max(abs(ratio - median) for ratio in ratios):.2f}"


def _format_ratio(ratio: Ratio | None) -> str:
    return f"{'' if ratio.is_difference else '~'}{ratio.median:.2f}" if ratio else "-"
