"""How much is measured: everything on a GPU, less on a CPU, next to nothing to see that it works."""

from __future__ import annotations

from dataclasses import dataclass

from paperbench.catalogue import Net, resolve
from paperbench.errors import PaperbenchError


@dataclass(frozen=True)
class Scale:
    """Sizes of a measurement.

    Attributes:
        name: What reports call it.
        note: What is less than on a GPU, in words; None if nothing is.
        models: Nets that are looked at unless others are named.
        batch_size, group: Images a step, and images that share batch-norm statistics.
        images: Training images to draw batches from.
        precisions: Most decisive first.
        copy_bytes: Size of the tensor that is copied.
        matmul: Side of the square matrices that are multiplied.
        graph_nodes: Kernels of the graph that times an empty one.
        sample_seconds: Length of a timed sample.
        samples: Timed samples, of which the median counts.
        round_seconds, rounds: Of the ladder.
        exactness_steps, seed_steps: Steps that are compared.
        seeds: Numbers of trainings side by side.
        layouts: "NHWC" or "NCHW", most decisive first.
    """

    name: str
    note: str | None
    models: tuple[str, ...]
    batch_size: int
    group: int
    images: int
    precisions: tuple[str, ...]
    copy_bytes: int
    matmul: int
    graph_nodes: int
    sample_seconds: float
    samples: int
    round_seconds: float
    rounds: int
    exactness_steps: int
    seed_steps: int
    seeds: tuple[int, ...]
    layouts: tuple[str, ...]


FULL = Scale(
    name="full",
    note=None,
    models=("preact_resnet110", "preact_resnet164", "preact_resnet1001"),
    batch_size=128,
    group=64,
    images=50_000,
    precisions=("bf16", "tf32", "fp32"),
    copy_bytes=2**32,
    matmul=8192,
    graph_nodes=1000,
    sample_seconds=0.003,
    samples=7,
    round_seconds=0.7,
    rounds=3,
    exactness_steps=50,
    seed_steps=20,
    seeds=(1, 2, 4, 8),
    layouts=("NHWC", "NCHW"),
)

SMALL = Scale(
    name="small",
    note="on a CPU: batches of 32 instead of 128 images, no ResNet-1001 unless it is named, smaller copies and "
    "products, fewer repetitions, no cuDNN and no CUDA graphs",
    models=("preact_resnet110", "preact_resnet164"),
    batch_size=32,
    group=16,
    images=2_000,
    precisions=("bf16", "fp32"),
    copy_bytes=2**28,
    matmul=1024,
    graph_nodes=1000,
    sample_seconds=0.05,
    samples=3,
    round_seconds=1.0,
    rounds=3,
    exactness_steps=8,
    seed_steps=4,
    seeds=(1, 2),
    layouts=("NHWC", "NCHW"),
)

QUICK = Scale(
    name="quick",
    note="`--quick`: one small net, batches of 8 images, one precision, no plain loop, and so little time for each "
    "figure that it only shows that the measurement works",
    models=("preact_resnet20",),
    batch_size=8,
    group=4,
    images=64,
    precisions=("fp32",),
    copy_bytes=2**22,
    matmul=128,
    graph_nodes=100,
    sample_seconds=0.002,
    samples=2,
    round_seconds=0.05,
    rounds=2,
    exactness_steps=2,
    seed_steps=2,
    seeds=(1, 2),
    layouts=("NHWC",),
)

SCALES = {scale.name: scale for scale in (FULL, SMALL, QUICK)}


def choose_scale(device_type: str, *, quick: bool) -> Scale:
    """The scale for a device."""
    return QUICK if quick else FULL if device_type == "cuda" else SMALL


def checked_models(names: tuple[str, ...]) -> dict[str, Net]:
    """The nets by name.

    Raises:
        PaperbenchError: A name is unknown, named twice, or of a net for large images.
    """
    nets: dict[str, Net] = {}
    for name in names:
        net = resolve(name)
        if name in nets:
            raise PaperbenchError(f"--models names {name} twice. Name it once.")
        if len(net.units) > 3:
            raise PaperbenchError(
                f"{name} reads large images, and training reads 32-pixel images alone. ResNet-200 has a part of its "
                "own, imagenet. Choose another net."
            )
        nets[name] = net
    return nets
