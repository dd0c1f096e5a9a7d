"""The measurement as one JSON document; anatomy.schema.json beside this file says what it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from paperbench.bench import json_text
from paperbench.bench.anatomy.conclusion import conclude
from paperbench.bench.anatomy.floors import BYTES_OF, LEVELS, Floors, placed_convolutions
from paperbench.bench.anatomy.recorder import finite
from paperbench.bench.anatomy.scale import Scale
from paperbench.bench.anatomy.schedule import Outcome
from paperbench.catalogue import Net

SCHEMA = 1


def document(
    outcomes: Sequence[Outcome],
    nets: Mapping[str, Net],
    scale: Scale,
    device: str,
    minutes: float,
    seconds: float,
    code: Mapping[str, Any],
    signal: int | None = None,
) -> dict[str, Any]:
    """Plain values that the schema allows.

    Args:
        outcomes: Of the parts so far.
        nets: That were looked at, by name.
        minutes: That it might take; `seconds` is what it took.
        code: Version and commit of paperbench.
        signal: What has ended the command early.
    """
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "paperbench": dict(code),
        "device": device,
        "scale": scale.name,
        "scale_note": scale.note,
        "batch_size": scale.batch_size,
        "group": scale.group,
        "minutes": minutes,
        "seconds": seconds,
        "signal": signal,
        "counted": {name: counted(net, scale) for name, net in nets.items()},
        "parts": [
            {
                "part": outcome.task.part.name,
                "title": outcome.task.part.title,
                "model": outcome.task.model,
                "status": outcome.status,
                "why": outcome.why,
                "seconds": outcome.seconds,
                "limit_seconds": outcome.limit_seconds,
                "rows": outcome.rows,
                "left_out": outcome.left_out,
            }
            for outcome in outcomes
        ],
    }
    content["conclusion"] = conclude(content, nets)
    plain: dict[str, Any] = finite(content)
    return plain


def counted(net: Net, scale: Scale) -> dict[str, Any]:
    """What is counted of a net, nothing measured."""
    floors = Floors(net)
    passes = scale.batch_size // scale.group
    return {
        "depth": net.depth,
        "parameters": floors.parameters,
        "forward_flops_per_image": floors.forward_flops,
        "training_flops_per_image": floors.training_flops,
        "bytes_per_image": {
            level: {precision: floors.bytes_per_image(level, precision) for precision in BYTES_OF} for level in LEVELS
        },
        "launches": {
            "eager or graph, by groups": floors.launches("unfused", passes),
            "compile": floors.launches("fused"),
            "ideal": floors.launches("ideal"),
        },
        "operations": floors.operations,
        "convolutions": [
            {
                "kernel": placed.convolution.kernel,
                "inputs": placed.convolution.inputs,
                "outputs": placed.convolution.outputs,
                "stride": placed.convolution.stride,
                "size": placed.size,
                "number": placed.number,
            }
            for placed in placed_convolutions(net)
        ],
    }


def to_json(content: Mapping[str, Any]) -> str:
    """The document's text: a line for each row of a part."""
    return json_text.to_json(content, levels=3)


def schema() -> dict[str, Any]:
    """The JSON Schema of a document."""
    return json_text.packaged_schema("paperbench.bench.anatomy", "anatomy.schema.json")
