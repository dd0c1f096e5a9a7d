"""The formats of a comparison."""

from __future__ import annotations

from typing import Literal, get_args

Format = Literal["table", "markdown", "latex", "json", "csv", "junit"]
FORMATS: tuple[Format, ...] = get_args(Format)
