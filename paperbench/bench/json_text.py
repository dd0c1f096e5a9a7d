"""JSON for people: indented, with what is small on a line of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any


def to_json(content: Mapping[str, Any], *, levels: int | None = None) -> str:
    """The text of a document.

    Args:
        content: Plain values, none of them NaN or infinite.
        levels: Down to which level objects are spread over lines; None for all.
    """
    return _lines(content, "", levels) + "\n"


def packaged_schema(package: str, name: str) -> dict[str, Any]:
    """A JSON Schema that lies beside a package's modules."""
    loaded: dict[str, Any] = json.loads(files(package).joinpath(name).read_text(encoding="utf-8"))
    return loaded


def _lines(value: Any, indent: str, levels: int | None) -> str:
    inner = indent + "  "
    if isinstance(value, Mapping) and value and (levels is None or len(indent) < 2 * levels):
        parts = [f"{inner}{json.dumps(key)}: {_lines(item, inner, levels)}" for key, item in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        return "[\n" + ",\n".join(inner + _lines(item, inner, levels) for item in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
