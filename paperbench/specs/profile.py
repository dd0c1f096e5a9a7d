"""Profiles: the paper's exact experiment, or a reduced one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

from paperbench.catalogue import DATASETS, FAMILIES, is_function
from paperbench.errors import PaperbenchError, nearest, one_line
from paperbench.options import parse_settings
from paperbench.specs.experiment import DatasetName
from paperbench.specs.recipe import Recipe
from paperbench.typed import Count, Id, Line, Problem, dump_set_fields, from_json, typed, unknown_words


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
        depth: Depth of all nets of a family, or one for each depth of theirs, by family; or the argument `depth` of
            a function, by its name.
        datasets: The data sets that stand in for others, by key.
        seeds: Default number of seeds per cell.
    """

    title: Line
    depth: Mapping[Line, int | Mapping[Line, int]] = field(default_factory=dict)
    datasets: Mapping[DatasetName, Substitute] = field(default_factory=dict)
    seeds: Count | None = None

    def problems(self) -> Iterator[Problem]:
        families = [family for family in self.depth if not is_function(family)]
        yield from unknown_words("family", ((("depth", family), family) for family in families), FAMILIES)
        for family in filter(FAMILIES.__contains__, families):
            given = self.depth[family]
            for depth in given.values() if isinstance(given, Mapping) else [given]:
                try:
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

    def depth_of(self, family: str, depth: Any) -> Any:
        """Return the depth of a net of a family that has this depth in the table, or of a function's net."""
        given = self.depth.get(family, depth)
        return given.get(str(depth), depth) if isinstance(given, Mapping) else given


@typed
class ChangedProfile(Profile):
    """A profile with some values of its recipes set.

    Attributes:
        name: BASE+key=value,... with sorted keys, such as "paper+batch_norm.group=32,iterations=2000".
        base: The name of the profile whose recipes are changed.
        changes: The values by their dotted names.
    """

    name: Line = field(kw_only=True)
    base: Line = field(kw_only=True)
    changes: Mapping[str, Any] = field(kw_only=True)

    def changed(self, recipe: Recipe) -> Recipe:
        """Return a recipe with the values set; what it counts in iterations, and they do not set, keeps its share."""
        values: dict[str, Any] = {"warm_up": None, **dump_set_fields(recipe)}
        after = self.changes.get("iterations")
        if type(after) is int and after > 0:
            if recipe.drops:
                values["drops"]["at"] = [at * after // recipe.iterations for at in recipe.drops.at]
            for part in filter(None, (values["warm_up"], values["monitoring"])):  # their whole numbers are iterations
                part |= {key: max(1, n * after // recipe.iterations) for key, n in part.items() if isinstance(n, int)}
        for name, value in self.changes.items():
            parent, _, key = name.rpartition(".")
            if parent and not isinstance(values.get(parent), dict):
                values[parent] = {}
            (values[parent] if parent else values)[key] = value
        return from_json(Recipe, json.dumps(values))


def changed_profile(name: str, settings: Sequence[str] = ()) -> tuple[str, dict[str, Any]]:
    """Return the proper name and the values of a `ChangedProfile`, with further values, each as `key=value`."""
    base, _, given = name.partition("+")
    found = parse_settings([*filter(None, re.split(r",(?=[\w.]+=)", given)), *settings])
    values = {key: int(one) if isinstance(one, float) and one.is_integer() else one for key, one in found.items()}
    texts = (f"{k}={v if isinstance(v, str) else json.dumps(v, separators=(',', ':'))}" for k, v in values.items())
    return f"{base}+{','.join(sorted(texts))}", values


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
        """Return the profile with a name, which may be a `ChangedProfile`'s."""
        base, plus, given = name.partition("+")
        if base not in self.profiles:
            raise PaperbenchError(f"Unknown profile {base!r}. {nearest(base, self.profiles)}")
        profile = self.profiles[base]
        if not plus:
            return profile
        if len(name) > 300 or one_line(name) != name:  # a stranger's record may have any, deeply nested
            raise PaperbenchError("A profile's name has at most 300 printable characters. Set fewer values.")
        proper, changes = changed_profile(name)
        if proper != name or not given:
            raise PaperbenchError(f"Call profile {name!r} {proper if given else base!r}.")
        own = f"{profile.title}; but {given}", profile.depth, profile.datasets, profile.seeds
        return ChangedProfile(*own, name=name, base=base, changes=changes)
