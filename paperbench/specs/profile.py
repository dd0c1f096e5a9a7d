"""Profiles: the paper's exact experiment, or a reduced one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, Literal

from paperbench.catalogue import DATASETS, FAMILIES, is_function
from paperbench.errors import PaperbenchError, nearest
from paperbench.specs.experiment import DatasetName
from paperbench.typed import Count, Id, Line, Problem, typed, unknown_words


@typed
class Substitute:
    """A data set that stands in for others.

    Attributes:
        replaces: Keys of the data sets for which it stands in. Their images have the same size.
        recipe: Values merged into the recipes of the rows that train on it.
        recipes: Further values by the recipe's name.
    """

    replaces: tuple[DatasetName, ...]
    recipe: Mapping[str, Any] = field(default_factory=dict)
    recipes: Mapping[Line, Mapping[str, Any]] = field(default_factory=dict)


@typed
class Profile:
    """Changes to every run of a table.

    Only the profile `paper`, which changes nothing, can earn a verdict about the paper.

    Attributes:
        title: One-line description.
        depth: Depth of all nets of a family, by family; or the argument `depth` of a function, by its name.
        datasets: The data sets that stand in for others, by key.
        seeds: Default number of seeds per cell.
    """

    title: Line
    depth: Mapping[Line, int] = field(default_factory=dict)
    datasets: Mapping[DatasetName, Substitute] = field(default_factory=dict)
    seeds: Count | None = None

    def problems(self) -> Iterator[Problem]:
        for family, depth in self.depth.items():
            if is_function(family):
                continue
            yield from unknown_words("family", [(("depth", family), family)], FAMILIES)
            try:
                if family in FAMILIES:
                    FAMILIES[family].units(depth)
            except PaperbenchError as error:
                yield Problem(("depth", family), str(error))
        replaced: dict[str, str] = {}
        for name, substitute in self.datasets.items():
            for i, other in enumerate(substitute.replaces):
                path, size = ("datasets", name, "replaces", i), DATASETS[name].size
                if DATASETS[other].size != size:
                    yield Problem(path, f"{other} has images of another size than {name} ({size} pixels).")
                if other in replaced:
                    yield Problem(path, f"{other} is replaced by {replaced[other]} already.")
                replaced[other] = name


@typed
class Profiles:
    """The file profiles.yaml."""

    schema: Literal[1]
    profiles: Mapping[Id, Profile]

    def problems(self) -> Iterator[Problem]:
        paper = self.profiles.get("paper")
        if paper is None or paper != Profile(paper.title):
            yield Problem(("profiles", "paper"), "the profile `paper` must exist and change nothing.")

    def named(self, name: str) -> Profile:
        """Return the profile with a name."""
        if name not in self.profiles:
            raise PaperbenchError(f"Unknown profile {name!r}. {nearest(name, self.profiles)}")
        return self.profiles[name]
