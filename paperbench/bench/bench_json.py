"""A benchmark as JSON, for publication: bench.schema.json beside this file says what each value means."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from paperbench.bench import json_text
from paperbench.bench.figures import NetFigures

SCHEMA = 1

MEANINGS = {
    "fp32": "IEEE float32 throughout",
    "tf32": "float32; convolutions multiply with TF32's 10 bits of mantissa and add in float32",
    "bf16": "convolutions and activations in bfloat16; parameters, gradients of them, momentum, batch-norm statistics "
    "and loss in float32",
    "bf16-fp32-stream": "as bf16, with the signal that the shortcuts carry in float32",
}


@dataclass(frozen=True)
class Settings:
    """What was asked for; `minutes` is None if there was no limit."""

    models: tuple[str, ...]
    engines: tuple[str, ...]
    precisions: tuple[str, ...]
    batch_size: int
    rounds: int
    seconds: float
    minutes: float | None


def document(
    nets: Sequence[NetFigures], settings: Settings, machine: dict[str, Any], code: dict[str, Any]
) -> dict[str, Any]:
    """Plain values that the schema allows.

    Args:
        nets: What was measured; may be fewer than asked for, if the command was ended early.
        settings: What was asked for.
        machine: `machine.facts`.
        code: Version, commit, source digest and numerics of paperbench.
    """
    content = {
        "schema": SCHEMA,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "paperbench": code,
        "machine": machine,
        "settings": asdict(settings),
        "precisions": {name: MEANINGS[name] for name in MEANINGS if name in _precisions(nets, settings)},
        "nets": [asdict(net) for net in nets],
    }
    plain: dict[str, Any] = json.loads(json.dumps(content, allow_nan=False))  # tuples become lists
    return plain


def to_json(content: dict[str, Any]) -> str:
    """The document's text: indented, with short lists of numbers on one line."""
    return json_text.to_json(content)


def schema() -> dict[str, Any]:
    """The JSON Schema of a document."""
    return json_text.packaged_schema("paperbench.bench", "bench.schema.json")


def _precisions(nets: Sequence[NetFigures], settings: Settings) -> set[str]:
    return {*settings.precisions, *(variant.precision for net in nets for variant in net.variants)}
