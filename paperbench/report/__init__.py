"""What people and other programs read: comparisons in several formats, tables, pictures of nets, progress of runs."""

from __future__ import annotations

from typing import Literal, get_args

Format = Literal["table", "markdown", "latex", "json", "csv", "junit"]
FORMATS: tuple[Format, ...] = get_args(Format)
"""Of a comparison."""
