"""A cell of a table: the published result, and what to train for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from paperbench.catalogue import DATASETS, NETS, AnyNet, is_function, own_net, resolve, tags
from paperbench.specs.expected import Defaults, ExpectedCell
from paperbench.specs.experiment import Column, NetReference, Row, Setting
from paperbench.specs.profile import Profile


@dataclass(frozen=True)
class Cell:
    """A cell with its published result.

    Attributes:
        expected: The published result. If the file gives `same_as`, the result of that cell.
        defaults: The defaults of the table that prints the result.
        home: "table/row/column" of the cell that prints the result.
        dataset: Key of the data set that its nets train on.
        recipe: Name of its recipe.
        root: Directory from which files with nets are named.
    """

    row: Row
    column: Column
    expected: ExpectedCell
    defaults: Defaults
    home: str
    dataset: str
    recipe: str
    root: Path

    def __repr__(self) -> str:
        return f"<{self.id}: published {self.expected.value}>"

    @property
    def published_runs(self) -> int:
        """Number of runs behind the published number."""
        if self.expected.statistic == "single":
            return 1
        return self.expected.n or self.defaults.n

    @property
    def tolerance(self) -> float:
        """Percentage points within which two medians count as the same."""
        return self.defaults.tolerance if self.expected.tolerance is None else self.expected.tolerance

    @property
    def resolution(self) -> float:
        """Step to which the paper rounds errors, in percentage points."""
        return 10.0**-self.defaults.decimals

    @property
    def number(self) -> float | None:
        """The published test error in percent that ours are compared with, or None if the paper prints no number."""
        value = self.expected.mean if self.expected.statistic == "best" else self.expected.value
        return value if isinstance(value, float) else None

    @property
    def published(self) -> ExpectedCell:
        """The published result with the number of runs and, if it is a number, its tolerance."""
        if self.expected.value == "unprinted":
            return self.expected
        return replace(
            self.expected,
            statistic=self.expected.statistic or self.defaults.statistic,
            n=self.published_runs,
            tolerance=self.tolerance if self.number is not None else None,
        )

    @property
    def id(self) -> str:
        return f"{self.row.id}/{self.column.id}"

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The nets of the cell: one, or several if the paper gives one result for a sweep."""
        return self.row.cells[self.column.id].settings

    def dataset_in(self, profile: Profile) -> str:
        """Return the key of the data set that the cell's nets train on."""
        return next((name for name, one in profile.datasets.items() if self.dataset in one.replaces), self.dataset)

    def net_in(self, profile: Profile, setting: Setting | None = None) -> AnyNet:
        """Return a net of the cell, by default its first, at the profile's depth, with an output per class."""
        reference, dataset = self.reference_in(profile, setting), DATASETS[self.dataset_in(profile)]
        if is_function(reference.model):
            return own_net(reference.model, reference.kwargs, dataset.num_classes, dataset.size, self.root)
        return resolve(reference.model, **reference.kwargs, num_classes=dataset.num_classes)

    def reference_in(self, profile: Profile, setting: Setting | None = None) -> NetReference:
        """Return the timm name, or the function, and the arguments of the same net."""
        reference, dataset = (setting or self.settings[0]).reference, self.dataset_in(profile)
        name = model = family = reference.name
        depth = given = reference.kwargs.get("depth")
        if not is_function(name):
            family, depth = NETS[name].family, given or NETS[name].depth
            model = f"{name}.{dataset}" if dataset in tags(name)[1:] else name
        reduced = profile.depth_of(family, depth)
        return NetReference(model, {**reference.kwargs, **({} if reduced == depth else {"depth": reduced})})
