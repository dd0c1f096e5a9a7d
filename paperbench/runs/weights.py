"""The trained net of a run as a safetensors file that timm loads: parameters and BN statistics.

The metadata are strings: `architecture` and `tag` (joined by a dot, the name that timm knows; or a function, which
makes the net, and nothing) and `arguments` (JSON);
`mean` and `std` (JSON, channels first): the net's input is (pixels - mean) / std for pixels in [0, 1], but for
photographs whose recipe subtracts a mean image, `mean` is that image's mean; `data`, `data_fingerprint`, `precision`,
`run`, `seed` and `paperbench`; and `result`, the record's result as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import paperbench
from paperbench.catalogue import Net, tags
from paperbench.errors import PaperbenchError
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Result
from paperbench.specs.run_spec import RunSpec
from paperbench.tensor_file import tensor_file_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from paperbench.training.trainer import Trainer


def weights_bytes(run: PlannedRun, trainer: Trainer, result: Result) -> bytes:
    """Return the bytes of the file.

    Args:
        trainer: Holds the net in the state that `result` was measured with.
    """
    architecture, dataset = run.reference.name, run.dataset.key
    metadata = {
        "format": "pt",
        "paperbench": paperbench.__version__,
        "architecture": architecture,
        "tag": dataset if isinstance(run.net, Net) and dataset in tags(architecture) else "",
        "arguments": json.dumps(dict(run.reference.kwargs)),
        "mean": json.dumps(_shortest_decimals(trainer.feed.mean)),
        "std": json.dumps(_shortest_decimals(trainer.feed.std)),
        "data": run.dataset.name,
        **recorded_metadata(run.spec, run.seed, result),
    }
    return tensor_file_bytes(trainer.model.state_dict(), metadata)


def input_of(metadata: Mapping[str, str], file: Path) -> tuple[Tensor, Tensor]:
    """Return the mean and std of a net's input that the metadata of its weights name, each (3, 1, 1) or (3, H, W)."""
    import torch

    try:
        mean, std = (torch.tensor(json.loads(metadata[one]), dtype=torch.float32) for one in ("mean", "std"))
        if mean.dim() > 3 or std.dim() > 3 or not (mean.numel() and std.numel()):
            raise ValueError("neither has the shape of an image")
        mean, std = (one.expand(torch.broadcast_shapes(one.shape, (3, 1, 1))) for one in (mean, std))
    except (KeyError, ValueError, TypeError, RuntimeError, RecursionError) as error:
        raise PaperbenchError(
            f"{file} does not say which input its net expects, as files of paperbench do. Name another."
        ) from error
    return mean, std


def recorded_metadata(spec: RunSpec, seed: int, result: Result) -> dict[str, str]:
    """Return the metadata that the run's record holds, too."""
    return {
        "data_fingerprint": spec.data,
        "precision": spec.precision,
        "run": spec.run_id(seed),
        "seed": str(seed),
        "result": json.dumps({name: value for name, value in asdict(result).items() if value != ()}),
    }


def _shortest_decimals(values: Tensor) -> object:
    """Return nested lists of floats with few digits that still round to the same float32 values."""
    if values.dim():
        return [_shortest_decimals(value) for value in values]
    return float(f"{values.item():.9g}")
