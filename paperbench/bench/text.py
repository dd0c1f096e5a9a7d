"""A benchmark as a table for people, at most 120 columns wide."""

from __future__ import annotations

from tabulate import tabulate

from paperbench.bench.figures import NetFigures, Ratio, VariantFigures

_HEADINGS = [
    "loop, precision",
    "images/s",
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
Ours is measured only if its first losses and updates are eager fp32's.
"""

_PEAK = "peak: what torch's allocator gave out, at most, until the rounds."
_ON_A_CPU = (
    "On a CPU only the ratios say something: rates are those of this machine at this moment. Memory: not measured."
)


def render_net(net: NetFigures) -> str:
    """The table of one net, with what went wrong below it."""
    noise = "unknown" if net.noise is None else f"{net.noise:.1%}"
    return "\n".join(
        [
            f"{net.net}: {net.parameters:,} parameters, batches of {net.batch_size}, batch norm over {net.bn_group} in "
            f"ours; noise {noise}",
            "",
            tabulate(
                [_row(figures) for figures in net.variants],
                _HEADINGS,
                disable_numparse=True,
                colalign=("left", *["right"] * 6),
            ),
            *(f"{v.variant.label}: {v.status}: {v.detail}" for v in net.variants if v.status != "measured"),
        ]
    )


def notes(device: str, shipped: str, workers: int) -> str:
    """What the columns mean.

    Args:
        device: "cpu" or "cuda".
        shipped: Precision of the plain loop as shipped.
        workers: Of its DataLoader.
    """
    return _NOTES.format(workers=workers, shipped=shipped) + (_ON_A_CPU if device == "cpu" else _PEAK)


def _row(found: VariantFigures) -> list[str]:
    speed = found.images_per_second
    if speed is None:
        return [found.variant.label, found.status, *["-"] * 5]
    return [
        found.variant.label,
        f"{speed:,.0f}" if speed >= 100 else f"{speed:.1f}",
        *(_ratio(r) for r in (found.over_plain, found.over_plain_same_precision, found.over_on_device)),
        f"{found.first_step_seconds:.1f}",
        "-" if found.peak_memory is None else f"{found.peak_memory / 1e9:.2f}",
    ]


def _ratio(ratio: Ratio | None) -> str:
    return f"{'' if ratio.is_difference else '~'}{ratio.median:.2f}" if ratio else "-"
