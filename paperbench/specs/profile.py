"""Profiles: the paper's exact experiment, or a reduced one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from paperbench.catalogue import FAMILIES
from paperbench.errors import PaperbenchError, nearest
from paperbench.specs.experiment import DatasetName
from paperbench.typed import Count, Id, Line, Problem, one_of, raise_problems, typed


@typed
class Profile:
    """Changes to every run of a table.

    Only the profile `paper`, which changes nothing, can earn a verdict about the paper.

    Attributes:
        title: One-line description.
        depth: Depth of all nets of a family, by family.
        dataset: Data set of every run.
        recipe: Values merged into every recipe.
        seeds: Default number of seeds per cell.
    """

    title: Line
    depth: Mapping[Annotated[str, one_of("family", FAMILIES)], int] = field(default_factory=dict)
    dataset: DatasetName | None = None
    recipe: Mapping[str, Any] | None = None
    seeds: Count | None = None

    def __post_init__(self) -> None:
        raise_problems(self._problems())

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
            raise_problems([Problem(("profiles", "paper"), "the profile `paper` must exist and change nothing.")])

    def named(self, name: str) -> Profile:
        """Return the profile with a name.

        Raises:
            PaperbenchError: The profile does not exist.
        """
        if name not in self.profiles:
            raise PaperbenchError(f"Unknown profile {name!r}. {nearest(name, self.profiles)}")
        return self.profiles[name]
