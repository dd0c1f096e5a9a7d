"""Reports for people and programs: comparisons in several formats, tables, diagrams of nets, progress of runs."""

from __future__ import annotations

from typing import Literal, get_args

Format = Literal["table", "markdown", "latex", "json", "csv", "junit"]
FORMATS: tuple[Format, ...] = get_args(Format)
"""The formats of a comparison."""
