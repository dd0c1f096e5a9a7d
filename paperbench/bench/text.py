"""A benchmark as a table for people, at most 120 columns wide."""

from __future__ import annotations

from tabulate import tabulate

from paperbench.bench.figures import Breakdown, Floors, NetFigures, Ratio, VariantFigures

_HEADINGS = [
    "loop, precision",
    "images/s",
    "least to most",
    "x plain\nshipped",
    "x plain\nequal",
    "x on-dev.\nequal",
    "first\nstep, s",
    "peak\nGB",
]

_NOTES = """\
plain loop: as public repositories ship it: eager, default layout, DataLoader with {workers} workers and PIL images,
    cudnn.benchmark, the loss read after every step, batch norm over the whole batch; shipped, it computes in {shipped}.
on-device: the same step on batches that are on the device already. equal: at equal precision.
images/s: median of the rounds. x: median of the ratios within each round; ~ marks ratios within the noise, which is the
    greatest difference between two measurements of the same variant in a round.
first step: construction, compilation and capture included; the images are in memory already.
"""

_PEAK = "peak: what torch's allocator gave out, at most, until the end of the warm-up."
_ON_A_CPU = (
    "On a CPU only the ratios say something: rates are those of this machine at this moment. Memory: not measured."
)


def render_net(net: NetFigures, batch_size: int) -> str:
    """The table of one net, with what went wrong below it."""
    noise = "unknown" if net.noise is None else f"{net.noise:.1%}"
    lines = [
        f"{net.net}: {net.parameters:,} parameters, batches of {batch_size}, batch norm over {net.bn_group} in "
        f"ours; noise {noise}",
        f"first {net.compared_steps} losses of ours compared with eager fp32's",
        "",
        tabulate(
            [_row(variant) for variant in net.variants],
            _HEADINGS,
            disable_numparse=True,
            colalign=("left", *["right"] * 7),
        ),
    ]
    lines += [f"{v.variant.label}: {v.status}: {v.detail}" for v in net.variants if v.status != "measured"]
    return "\n".join(lines)


def notes(device: str, shipped: str, workers: int) -> str:
    """What the columns mean.

    Args:
        device: "cpu" or "cuda".
        shipped: Precision of the plain loop as shipped.
        workers: Of its DataLoader.
    """
    return _NOTES.format(workers=workers, shipped=shipped) + (_ON_A_CPU if device == "cpu" else _PEAK)


def _row(variant: VariantFigures) -> list[str]:
    speed = variant.images_per_second
    if speed is None:
        return [variant.variant.label, variant.status, *["-"] * 6]
    start = (variant.construction_seconds or 0.0) + (variant.first_step_seconds or 0.0)
    return [
        variant.variant.label,
        _rate(speed.median),
        f"{_rate(speed.low)} to {_rate(speed.high)}",
        *(_ratio(r) for r in (variant.over_plain, variant.over_plain_same_precision, variant.over_on_device)),
        f"{start:.1f}",
        "-" if variant.peak_memory is None else f"{variant.peak_memory / 1e9:.2f}",
    ]


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    return f"{'' if ratio.is_difference else '~'}{ratio.median:.2f}"


_BREAKDOWN_NOTES = """\
step: median of whole steps without the profiler, and their range. Kinds: as profiled; share: of all kernels' time.
floors: the least ms for the counted bytes, arithmetic and launches at the measured ceilings, each by itself. Bytes are
    counted without caches, so small tensors may take less. -: not measured or not counted."""

_BREAKDOWN_ON_A_CPU = """
On a CPU there is no cuDNN, so no row without determinism; operators take the place of kernels, profiling slows them
    down, and the backward pass of a convolution is one operator."""


def render_breakdown(found: Breakdown) -> str:
    """The table of a breakdown."""
    on_gpu = found.machine.environment.cuda is not None
    total = sum(kind.milliseconds for kind in found.kinds)
    rows = [
        [k.kind, f"{k.milliseconds:.2f}", f"{k.milliseconds / total:.1%}", f"{k.number:,.0f}", *_floors(k.floors)]
        for k in found.kinds
    ]
    step = found.steps[0].milliseconds
    if on_gpu and step and rows:
        rows.append(["no kernel running", f"{max(0.0, step.median - total):.2f}"])
    for number, row in enumerate(found.steps):
        ms, how = row.milliseconds, {True: ", deterministic", False: ", not deterministic", None: ""}[row.deterministic]
        label = f"step, {row.layout}{how}" + (f" ({ms.low:.2f} to {ms.high:.2f})" if ms else "")
        floors = _floors(found.floors) if number == 0 else []
        rows.append([label, f"{ms.median:.2f}" if ms else "-", "", "", *floors])
    ceilings = found.ceilings
    headings = ["kind", "ms", "share", "number", "floor:\nbytes", "arith-\nmetic", "launches"]
    lines = [
        f"{found.net}: engine {found.engine}, {found.precision}, batches of {found.batch_size}, batch norm over "
        f"{found.bn_group}",
        f"ceilings: copies {ceilings.bytes_per_second / 1e9:,.0f} GB/s, products "
        f"{ceilings.flops_per_second / 1e12:.2f} TFLOP/s, smallest kernel {1e6 * ceilings.launch_seconds:.2f} us"
        + (" in a graph" if ceilings.in_graph else ""),
        "",
        tabulate(rows, headings, disable_numparse=True, colalign=("left", *["right"] * 6)),
    ]
    lines += [f"step, {row.layout}: {row.problem}" for row in found.steps if row.problem]
    lines += [f"not recognised: {name[:100]}" for name in found.unknown]
    return "\n".join([*lines, "", _BREAKDOWN_NOTES + ("" if on_gpu else _BREAKDOWN_ON_A_CPU)])


def _floors(floors: Floors | None) -> list[str]:
    return [f"{floors.bytes:.2f}", f"{floors.arithmetic:.2f}", f"{floors.launches:.2f}"] if floors else ["-"] * 3
