"""Mappings: how state dicts of other implementations become state dicts of our nets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from paperbench.errors import PaperbenchError, nearest
from paperbench.specs.experiment import DatasetName
from paperbench.specs.recipe import ChannelValues
from paperbench.specs.table import find_spec_root
from paperbench.specs.table_files import read_named
from paperbench.typed import Line, Problem, Text, raise_problems, typed

_PARTS = re.compile(r"(\*|[\w-]+)(\.(\*|[\w-]+)){,7}")
_MAX_NAME = 300  # none of ours is as long
_Part = Annotated[Line, Field(max_length=_MAX_NAME)]


@typed
class StateMapping:
    """What differs between the nets of another implementation and ours.

    Attributes:
        mapping: Its name, which is the file name.
        source: The implementation.
        inputs: The net's input by data set: (pixels - mean) / std for pixels in [0, 1].
        names: Beginnings of tensors' names in whole parts, with * for a number, such as layer1.*, and what takes their
            place, such as stages.0.*.residual. Each is applied to every name, one after the other.
        arguments: Arguments of our net that make it theirs.
        shortcut_padding: Where option A adds zero channels: at the "end", as here, or half of them at "both" ends.
    """

    schema: Literal[1]
    mapping: Line
    source: Text
    inputs: Mapping[DatasetName, ChannelValues]
    names: Annotated[tuple[tuple[_Part, _Part], ...], Field(max_length=1_000)]
    arguments: Mapping[Line, Any] = field(default_factory=dict)
    shortcut_padding: Literal["end", "both"] = "end"

    def __post_init__(self) -> None:
        for i, (old, new) in enumerate(self.names):
            if not (_PARTS.fullmatch(old) and _PARTS.fullmatch(new or old) and old.count("*") == new.count("*")):
                message = (
                    "must be the beginning of names in whole parts (at most 8), with * for a number, and its new form: "
                    r"[layer1.*, stages.0.*.residual], where ['^layer1\.(\d+)\.', 'stages.0.\1.residual.'] was written."
                )
                raise_problems([Problem(("names", i), message)])

    def renamed(self, name: str) -> str:
        """Return the name of a tensor in our net."""
        for old, new in self.names:
            if found := _beginning(old).match(name):
                beginning = new.replace("*", "{}").format(*found.groups())
                name = ".".join(filter(None, (beginning, name[found.end() :])))[:_MAX_NAME]
        return name


@cache
def _beginning(parts: str) -> re.Pattern[str]:
    """Return the pattern of the names that begin with these parts. It takes linear time."""
    return re.compile(re.escape(parts).replace(r"\*", r"(\d+)") + r"(?:\.|\Z)")


def load_mapping(name: str) -> StateMapping:
    """Load a mapping of experiments/mappings, or a YAML file."""
    directory = find_spec_root() / "experiments" / "mappings"
    known = sorted(path.stem for path in directory.glob("*.yaml"))
    path = directory / f"{name}.yaml" if name in known else Path(name)
    if path.suffix != ".yaml":
        raise PaperbenchError(f"Unknown mapping {name!r}. {nearest(name, known)} Or name a YAML file of your own.")
    return read_named(path, StateMapping, "mapping")[1]
