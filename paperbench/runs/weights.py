"""The trained net of a run as a file that timm loads: parameters, BN statistics, and what it takes to use them.

The metadata, all text: `architecture` and `tag` (the name to ask timm for, with a dot between them) and `arguments`
(JSON); `mean` and `std` (JSON, channels first), which make what the net reads of pixels in [0, 1] by (pixels - mean) /
std; `data`, `data_fingerprint`, `precision`, `run`, `seed`, `paperbench`; and `result`, the record's, as JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from torch import Tensor

import paperbench
from paperbench.catalogue import tags
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Result
from paperbench.tensor_file import tensor_file_bytes
from paperbench.training.trainer import Trainer


def weights_bytes(run: PlannedRun, trainer: Trainer, result: Result) -> bytes:
    """The bytes of the file, in the safetensors format.

    Args:
        run: What was trained.
        trainer: With the net as it was tested for `result`.
    """
    architecture, dataset = run.reference.name, run.dataset.key
    metadata = {
        "format": "pt",
        "paperbench": paperbench.__version__,
        "architecture": architecture,
        "tag": dataset if dataset in tags(architecture) else "",
        "arguments": json.dumps(dict(run.reference.kwargs)),
        "mean": json.dumps(_shortest(trainer.input_transform.mean)),
        "std": json.dumps(_shortest(trainer.input_transform.std)),
        "data": run.dataset.name,
        "data_fingerprint": run.dataset.fingerprint,
        "precision": run.spec.precision,
        "run": run.id,
        "seed": str(run.seed),
        "result": json.dumps(asdict(result)),
    }
    return tensor_file_bytes(trainer.model.state_dict(), metadata)


def _shortest(values: Tensor) -> object:
    """As nested lists of the shortest decimals that give the same single-precision numbers again."""
    if values.dim():
        return [_shortest(value) for value in values]
    return float(f"{values.item():.9g}")
