"""Mappings: how state dicts of other implementations become state dicts of our nets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from paperbench.errors import PaperbenchError, nearest
from paperbench.specs.experiment import DatasetName
from paperbench.specs.recipe import ChannelValues
from paperbench.specs.table import find_spec_root
from paperbench.specs.table_files import read_named
from paperbench.typed import Line, Text, typed


@typed
class StateMapping:
    """What differs between the nets of another implementation and ours.

    Attributes:
        mapping: Its name, which is the file name.
        source: The implementation.
        inputs: The net's input by data set: (pixels - mean) / std for pixels in [0, 1].
        names: Regular expressions and replacements, applied to every tensor's name, one after the other.
        arguments: Arguments of our net that make it theirs.
        shortcut_padding: Where option A adds zero channels: at the "end", as here, or half of them at "both" ends.
    """

    schema: Literal[1]
    mapping: Line
    source: Text
    inputs: Mapping[DatasetName, ChannelValues]
    names: tuple[tuple[Line, Line], ...]
    arguments: Mapping[Line, Any] = field(default_factory=dict)
    shortcut_padding: Literal["end", "both"] = "end"

    def __post_init__(self) -> None:
        for pattern, replacement in self.names:
            try:
                re.sub(f"{pattern}|", replacement, "")
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression with its replacement: {error}.") from error

    def renamed(self, name: str) -> str:
        """Return the name of a tensor in our net."""
        for pattern, replacement in self.names:
            name = re.sub(pattern, replacement, name)
        return name


def load_mapping(name: str) -> StateMapping:
    """Load a mapping of experiments/mappings, or a YAML file.

    Raises:
        PaperbenchError: It does not exist, or has problems.
    """
    directory = find_spec_root() / "experiments" / "mappings"
    known = sorted(path.stem for path in directory.glob("*.yaml"))
    path = directory / f"{name}.yaml" if name in known else Path(name)
    if path.suffix != ".yaml":
        raise PaperbenchError(f"Unknown mapping {name!r}. {nearest(name, known)} Or name a YAML file of your own.")
    return read_named(path, StateMapping, "mapping")[1]
