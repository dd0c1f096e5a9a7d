"""Profiles: the paper's experiment exactly, or a reduced one that the user asks for by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import yaml

from paperbench.catalogue import DATASETS, FAMILIES
from paperbench.errors import PaperbenchError, nearest
from paperbench.specs.strict_yaml import FieldError


@dataclass(frozen=True)
class Profile:
    """What a profile changes in every run of a table.

    Only the one named `paper`, which changes nothing, can earn a verdict about the paper.

    Attributes:
        title: One line for lists and tables.
        depth: Depth of every net of a family.
        dataset: A key of `catalogue.DATASETS` for every run.
        recipe: Keys laid over every recipe.
        seeds: Seeds a cell unless the user says otherwise.
    """

    title: str
    depth: Mapping[str, int] = field(default_factory=dict)
    dataset: str | None = None
    recipe: yaml.MappingNode | None = None
    seeds: int | None = None
    where: str = ""

    def __post_init__(self) -> None:
        for family, depth in self.depth.items():
            if family not in FAMILIES:
                raise FieldError("depth", f"unknown family {family!r}. {nearest(family, FAMILIES)}")
            try:
                FAMILIES[family].units(depth)
            except PaperbenchError as error:
                raise FieldError("depth", str(error)) from error
        if self.dataset is not None and self.dataset not in DATASETS:
            raise FieldError("dataset", f"unknown data set {self.dataset!r}. {nearest(self.dataset, DATASETS)}")
        if self.seeds is not None and self.seeds < 1:
            raise FieldError("seeds", f"seeds must be at least 1, not {self.seeds}.")


@dataclass(frozen=True)
class Profiles:
    """The file profiles.yaml."""

    schema: Literal[1]
    profiles: Mapping[str, Profile]

    def __post_init__(self) -> None:
        paper = self.profiles.get("paper")
        if paper is None or paper.depth or paper.dataset or paper.recipe or paper.seeds:
            raise FieldError("profiles", "there must be a profile `paper`, and it must change nothing.")

    def named(self, name: str) -> Profile:
        if name not in self.profiles:
            raise PaperbenchError(f"Unknown profile {name!r}. {nearest(name, self.profiles)}")
        return self.profiles[name]
