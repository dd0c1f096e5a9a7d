"""Profiles: the paper's experiment exactly, or a reduced one that the user asks for by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from paperbench.catalogue import FAMILIES
from paperbench.errors import PaperbenchError, nearest
from paperbench.specs.experiment import DatasetName
from paperbench.typed import Count, Id, Problem, Text, check, one_of, typed


@typed
class Profile:
    """What a profile changes in every run of a table.

    Only the one named `paper`, which changes nothing, can earn a verdict about the paper.

    Attributes:
        title: One line for lists and tables.
        depth: Depth of every net of a family.
        dataset: What every run trains on.
        recipe: Keys laid over every recipe.
        seeds: Seeds per cell unless the user says otherwise.
    """

    title: Text
    depth: Mapping[Annotated[str, one_of("family", FAMILIES)], int] = field(default_factory=dict)
    dataset: DatasetName | None = None
    recipe: Mapping[str, Any] | None = None
    seeds: Count | None = None

    def __post_init__(self) -> None:
        check(self._problems())

    def _problems(self) -> Iterator[Problem]:
        for family, depth in self.depth.items():
            try:
                FAMILIES[family].units(depth)
            except PaperbenchError as error:
                yield Problem(("depth", family), str(error))


@typed
class Profiles:
    """The file profiles.yaml."""

    schema: Literal[1]
    profiles: Mapping[Id, Profile]

    def __post_init__(self) -> None:
        paper = self.profiles.get("paper")
        if paper is None or paper != Profile(paper.title):
            check([Problem(("profiles", "paper"), "there must be a profile `paper`, and it must change nothing.")])

    def named(self, name: str) -> Profile:
        """The profile of a name.

        Raises:
            PaperbenchError: There is none.
        """
        if name not in self.profiles:
            raise PaperbenchError(f"Unknown profile {name!r}. {nearest(name, self.profiles)}")
        return self.profiles[name]
