"""Small mistakes in tables that would otherwise go unseen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paperbench.specs.strict_yaml import SpecError
from paperbench.specs.table import load_table
from tests.helpers import edit


@pytest.mark.parametrize(
    ("table", "file", "old", "new", "message"),
    [
        ("table4", "expected/table4.yaml", '  "†": mini-', '  "‡": unused\n  "†": mini-', "no cell has the mark '‡'"),
        (
            "table5",
            "experiments/table5.yaml",
            "\nlabels: {augm",
            "\nlabels: {other: after, augm",
            "no row has the label",
        ),
        ("table4", "expected/table4.yaml", 'mark: "†"', 'mark: "*"', "the mark '*' is not explained in footnotes"),
        ("table4", "expected/table4.yaml", "- {id: nin,", "- {id: n/i,", "must be made of small letters"),
        ("table1", "experiments/table1.yaml", "{gate_bias: [0, -1, -2, -3, -4, -5]}", "{}", "a sweep is over one"),
        (
            "table1",
            "experiments/table1.yaml",
            "{gate_bias: [0, -1, -2, -3, -4, -5]}",
            "{depth: [110, 56]}",
            "profiles choose the depth of every net",
        ),
        ("table5", "experiments/recipes/imagenet.yaml", "crop: 224", "crop: 500", "a crop of 500 does not fit"),
        ("table5", "experiments/recipes/imagenet_torch.yaml", "  crop: 224\n", "", "large images need a crop"),
        ("table5", "experiments/recipes/imagenet.yaml", "crop: 224", "crop: 224, area: [0.1, 1.0]", "not both"),
    ],
)
def test_what_means_nothing_or_cannot_be_is_refused_and_its_file_named(
    specs: Path, table: str, file: str, old: str, new: str, message: str
) -> None:
    edit(specs / file, old, new)
    with pytest.raises(SpecError, match=re.escape(message)) as caught:
        load_table(table, specs)
    assert str(caught.value).startswith(f"{specs / file}:")


def test_a_single_run_is_one_run_whatever_the_default_says(specs: Path) -> None:
    edit(specs / "expected" / "table2.yaml", "resnet164: 5.93", "resnet164: {value: 5.93, statistic: single}")
    assert load_table("table2", specs).cell("original/resnet164").published_runs == 1
