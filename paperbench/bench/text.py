"""A benchmark as a table for people, at most 120 columns wide."""

from __future__ import annotations

from tabulate import tabulate

from paperbench.bench.figures import NetFigures, Ratio, VariantFigures

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
    cudnn.benchmark, the loss read after every step, batch norm over the whole batch; shipped it computes in {shipped}.
on-device: the same step on batches that lie on the device already. equal: at equal precision.
images/s: median of the rounds. x: median of the ratios within each round; ~ marks those nearer to 1 than a variant was
    to itself when it was measured twice: no difference.
first step: from nothing to its end, with construction, compilation and capture; only the images are in memory before.
"""

_PEAK = (
    "peak: greatest memory that torch's allocator gave out until the end of the warm-up, beyond what was there before."
)
_ON_A_CPU = (
    "On a CPU only the ratios say something: rates are those of this machine at this moment. Memory: not measured."
)


def render_net(net: NetFigures) -> str:
    """The table of one net, with what went wrong below it."""
    several = max((v.subset for v in net.variants), default=0) > 0
    rows = [_row(variant, several) for variant in net.variants]
    noise = "not known" if net.noise is None else f"{net.noise:.1%}"
    lines = [
        f"{net.net}: {net.parameters:,} parameters, batches of {net.batch_size}, batch norm over {net.bn_group} in "
        f"ours; noise {noise}",
        f"first {net.compared_steps} losses of ours compared with eager fp32's",
        "",
        tabulate(rows, _HEADINGS, disable_numparse=True, colalign=("left", *["right"] * 7)),
    ]
    lines += [f"{v.label}: {v.status}: {v.detail}" for v in net.variants if v.status != "measured"]
    if several:
        lines.append("[n]: not all fit into memory together, so they were measured in subsets; ratios are within one.")
    return "\n".join(lines)


def notes(device: str, shipped: str, workers: int) -> str:
    """What the columns mean.

    Args:
        device: "cpu" or "cuda".
        shipped: Precision of the plain loop as shipped.
        workers: Of its DataLoader.
    """
    return _NOTES.format(workers=workers, shipped=shipped) + (_ON_A_CPU if device == "cpu" else _PEAK)


def _row(variant: VariantFigures, several: bool) -> list[str]:
    name = f"{variant.label} [{variant.subset + 1}]" if several else variant.label
    speed = variant.images_per_second
    if speed is None:
        return [name, variant.status, *["-"] * 6]
    start = (variant.construction_seconds or 0.0) + (variant.first_step_seconds or 0.0)
    memory = variant.peak_allocated
    return [
        name,
        _rate(speed.median),
        f"{_rate(speed.low)} to {_rate(speed.high)}",
        *(_ratio(r) for r in (variant.over_plain, variant.over_plain_same_precision, variant.over_on_device)),
        f"{start:.1f}",
        "-" if memory is None else f"{memory / 1e9:.2f}",
    ]


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    return f"{'' if ratio.is_difference else '~'}{ratio.median:.2f}"
