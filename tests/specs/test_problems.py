"""Each mistake in a spec is reported with its file, its path and what would be right."""

from __future__ import annotations

from typing import Any

import pytest

from paperbench.errors import PaperbenchError
from tests.specs.small_specs import (
    LARGE,
    ONE,
    ONE_EXPECTED,
    PROFILES,
    REMOVED,
    SMALL,
    TWO,
    TWO_EXPECTED,
    SmallSpecs,
)

NET, SWEEP, CELL = ("rows", 1, "cells", "basic"), ("rows", 2, "cells", "basic"), ("cells", "preact", "basic")
GATING = "resnet110_exclusive_gating"


def sweep(*, kwargs: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
    return {"model": GATING, "kwargs": kwargs or {}, "sweep": arguments}


NETS = [
    (ONE, NET, "preact_resnet11", "Unknown net 'preact_resnet11'. Did you mean 'preact_resnet1"),
    (ONE, NET, None, "must be text; it is empty."),
    (ONE, NET, {"model": "preact_resnet110", "kwargs": {"dept": 20}}, "'dept'. Did you mean 'depth'?"),
    (ONE, NET, {"model": "preact_resnet110", "kwargs": {"num_classes": 5}}, "num_classes follows from the data set"),
    (ONE, NET, {"model": "preact_resnet110", "kwargs": {"gate_bias": -6}}, "gate_bias"),
    (ONE, NET, {"model": "preact_resnet110", "kwargs": {"drop_rate": 0.1}}, "Only timm.create_model takes it"),
    (ONE, NET, "preact_resnet110.cifar100", "is tagged for cifar100, but the data set is cifar10. Remove the tag."),
    (ONE, NET, "preact_resnet101", "preact_resnet101 expects images of 224x224 pixels, but CIFAR-10 has 32x32."),
    (ONE, SWEEP, sweep(gate_bias=[0]), "sweep.gate_bias: needs at least two different values, without duplicates."),
    (ONE, SWEEP, sweep(gate_bais=[0, -1]), "Did you mean 'gate_bias'?"),
    (ONE, SWEEP, sweep(kwargs={"gate_bias": -6}, gate_bias=[0, -1]), "sweep.gate_bias: is also in kwargs."),
    (ONE, SWEEP, sweep(gate_bias=[0, -1], gate_init=["he", "gaussian"]), "sweep: must have exactly one argument."),
    (ONE, SWEEP, sweep(depth=[110, 56]), "sweep: depth cannot be swept, because profiles set it"),
]
LINES = [
    (file, path, "a\n## b", f"{name}: must be one line of text without control characters, not 'a\\n## b'.")
    for file, path, name in [
        (ONE, ("title",), "title"),
        (ONE, ("rows", 0, "title"), "rows[0].title"),
        (ONE, ("columns", 0, "title"), "columns[0].title"),
        (ONE, ("rows", 0, "figure"), "rows[0].figure"),
        (ONE_EXPECTED, ("source", "table"), "source.table"),
        (ONE_EXPECTED, ("cells", "original", "basic", "mark"), "cells.original.basic.mark"),
        (PROFILES, ("profiles", "paper", "title"), "profiles.paper.title"),
        (SMALL, ("authors", "framework"), "authors.framework"),
    ]
]
EXPERIMENTS = [
    (ONE, ("rows", 1, "id"), "original", "rows[1].id: duplicate id 'original'."),
    (ONE, ("rows",), [], "rows: must not be empty."),
    (ONE, ("seeds",), 0, "seeds: must be at least 1, not 0."),
    (ONE, ("table",), "two", "table: must be one, like the file name."),
    (ONE, ("recipe",), "smal", "recipe: unknown recipe 'smal'. Did you mean 'small'?"),
    (ONE, ("recipe",), "x", "Known: cifar, cifar_no_warm_up, cifar_torch, imagenet, imagenet_torch, large, small."),
    (ONE, ("rows", 0, "dataset"), "cifra10", "unknown data set 'cifra10'. Did you mean 'cifar10'?"),
    (ONE, ("rows", 0, "dataset"), REMOVED, "rows[0].cells.basic: needs a data set"),
    (ONE, ("rows", 0, "labels", "onF"), "1", "unknown label 'onF'. Did you mean 'on F'?"),
    (ONE, ("labels", "unused"), "after", "labels.unused: no row has this label."),
    (ONE, ("rows", 1, "figrue"), "4(b)", "rows[1].figrue: unknown key. Did you mean 'figure'?"),
    (TWO, ("rows", 0, "dataset"), "cifar10", "rows[0].cells.cifar: has two data sets"),
    (TWO, ("rows", 0, "cells", "cifra"), "preact_resnet110", "unknown column 'cifra'. Did you mean 'cifar'?"),
    (TWO, ("rows", 1, "recipe"), "lagre", "rows[1].recipe: unknown recipe 'lagre'. Did you mean 'large'?"),
    (TWO, ("rows", 1, "evaluation"), "crop242", "rows[1].evaluation: unknown evaluation 'crop242'. Did you mean"),
    (TWO, ("rows", 1, "evaluation"), REMOVED, "rows[1].evaluation: is missing. Known: crop224."),
    (ONE, ("rows", 0, "evaluation"), "crop224", "rows[0].evaluation: unknown evaluation 'crop224'. There are none."),
    (TWO, ("rows", 1, "recipe"), REMOVED, "rows[1].recipe: small is for small images, but the data set is imagenet."),
    (ONE, ("recipe",), "large", "rows[0].recipe: large is for photographs, but the data set is cifar10."),
    (ONE, ("columns", 1, "metric"), "top5", "rows[1].cells.deep: top-5 errors are measured on photographs only."),
]
PUBLISHED = [
    (ONE_EXPECTED, ("table",), "two", "table: must be one, like the file name."),
    (ONE_EXPECTED, ("defaults",), REMOVED, "cells.preact.basic: is published, so `defaults` must say by how many"),
    (ONE_EXPECTED, ("source", "paper"), REMOVED, "source.paper: is missing."),
    (ONE_EXPECTED, ("cells", "preact", "depe"), 1, "unknown cell 'preact/depe'. Did you mean 'preact/deep'?"),
    (ONE_EXPECTED, CELL, "failed", "must be a number, or 'fail' or 'unprinted', not 'failed'."),
    (ONE_EXPECTED, CELL, 817, "must be a number of at most 100, or 'fail' or 'unprinted', not 817."),
    (ONE_EXPECTED, CELL, float("nan"), "must be a finite number, or"),
    (ONE_EXPECTED, CELL, {"note": "a"}, "value: a cell needs either value or same_as."),
    (ONE_EXPECTED, CELL, {"value": 6.0, "std": 0.2}, "std: std and std_source must be given together."),
    (ONE_EXPECTED, CELL, {"value": "fail", "tolerance": 1}, "tolerance: is only for cells with a number."),
    (ONE_EXPECTED, CELL, {"value": 6.0, "statistic": "single", "n": 2}, "n: must be 1 for a single run, not 2."),
    (
        ONE_EXPECTED,
        CELL,
        {"value": 6.0, "n": 1, "std": 0.2, "std_source": "x"},
        "a standard deviation needs at least 2 runs, and n is 1.",
    ),
    (ONE_EXPECTED, CELL, {"value": 6.0, "mark": "*"}, "unknown mark '*'. Known: †."),
    (ONE_EXPECTED, ("footnotes", "‡"), "unused", "footnotes.‡: no cell has this mark."),
    (
        ONE_EXPECTED,
        ("cells", "gating", "basic"),
        8.7,
        "gating/basic is a sweep over 2 nets, so its value must be `fail`",
    ),
    (TWO_EXPECTED, ("cells", "large", "imagenet"), "fail", "`fail` is not defined for ImageNet"),
    (ONE_EXPECTED, ("literature", 0, "id"), "preact", "literature[0].id: 'preact' is also a row of the experiment."),
    (ONE_EXPECTED, ("literature", 0, "cells", "basci"), 8.0, "unknown column 'basci'. Did you mean 'basic'?"),
    (ONE_EXPECTED, ("peers", 0, "cell"), "original/basi", "peers[0].cell: unknown cell 'original/basi'. Did you"),
]
DIGITS = ("profiles", "quick", "datasets", "digits")
RECIPES = [
    (LARGE, ("evaluations", "crop224", "crop"), 257, "the crop (257 pixels) must not exceed the scale (256 pixels)."),
    (LARGE, ("evaluations", "Crop 224"), {"crop": 1, "scale": 1}, "must be made of lowercase letters, digits and"),
    (LARGE, ("evaluations",), REMOVED, "evaluations: are required with photographs, and only then."),
    (PROFILES, ("profiles", "quick", "datasets", "digist"), {"replaces": []}, "'digist'. Did you mean 'digits'?"),
    (PROFILES, (*DIGITS, "replaces", 0), "cifra10", "unknown data set 'cifra10'. Did you mean 'cifar10'?"),
    (PROFILES, (*DIGITS, "replaces"), ["imagenet"], "replaces[0]: imagenet has images of another size than digits (32"),
    (PROFILES, (*DIGITS, "replaces"), ["cifar10"] * 2, "replaces[1]: cifar10 is replaced by digits already."),
    (PROFILES, (*DIGITS, "recipes"), {"smal": {}}, "digits.recipes.smal: unknown recipe 'smal'. Did you mean 'small'?"),
    (PROFILES, ("profiles", "quick", "depth", "basic"), 15, "quick.depth.basic: A basic net has no depth 15"),
    (PROFILES, ("profiles", "quick", "depth", "basci"), 14, "unknown family 'basci'. Did you mean 'basic'?"),
    (PROFILES, ("profiles", "paper", "seeds"), 3, "the profile `paper` must exist and change nothing."),
]


@pytest.mark.parametrize(("file", "path", "value", "message"), [*LINES, *NETS, *EXPERIMENTS, *PUBLISHED, *RECIPES])
def test_mistake_is_reported(
    specs: SmallSpecs, file: str, path: tuple[str | int, ...], value: Any, message: str
) -> None:
    specs.set(file, path, value)
    found = specs.complaints("two" if file in (TWO, TWO_EXPECTED, LARGE) else "one")
    assert {name for name, _, _ in found} == {file}
    assert sum(message in complaint for _, _, complaint in found) == 1, found


def test_all_problems_are_reported_at_their_lines_in_order(specs: SmallSpecs) -> None:
    for path, value in ((("warm_up",), REMOVED), (("batch_size",), 0), (("batch_norm", "eps"), "none")):
        specs.set(SMALL, path, value)
    assert specs.complaints() == [
        (SMALL, 1, "warm_up: is missing."),
        (SMALL, specs.line_of(SMALL, "batch_size: 0"), "batch_size: must be at least 1, not 0."),
        (SMALL, specs.line_of(SMALL, "eps: none"), "batch_norm.eps: must be a number, not 'none'."),
    ]


def test_profile_that_breaks_a_recipe_is_named(specs: SmallSpecs) -> None:
    specs.set(PROFILES, (*DIGITS, "recipe", "batch_norm", "gruop"), 16)
    specs.set(PROFILES, (*DIGITS, "recipe", "batch_size"), 96)
    specs.set(PROFILES, (*DIGITS, "recipe", "batch_norm", "group"), 64)
    with pytest.raises(PaperbenchError) as caught:
        specs.load()
    assert "batch_norm.gruop: unknown key. Did you mean 'group'?" in str(caught.value)
    assert str(caught.value).endswith("(Recipe small with the changes of profile quick.)")


def test_profile_cannot_add_drops_to_a_schedule(specs: SmallSpecs) -> None:
    specs.set(SMALL, ("drops",), REMOVED)
    specs.set(SMALL, ("schedule",), "cosine")
    place = f"profiles.yaml:{specs.line_of(PROFILES, 'drops:')}: drops: must be given, or a schedule"
    with pytest.raises(PaperbenchError, match=place):
        specs.load()


def test_profile_changes_only_recipes_for_its_data_sets(specs: SmallSpecs) -> None:
    specs.set(LARGE, ("batch_norm", "group"), 128)
    specs.set(PROFILES, (*DIGITS, "recipe", "batch_norm"), REMOVED)
    specs.load("two")
    specs.set(SMALL, ("batch_norm", "group"), 128)
    with pytest.raises(PaperbenchError, match=r"must divide batch_size \(64\)"):
        specs.load("two")


def test_changes_to_one_recipe_follow_those_to_all(specs: SmallSpecs) -> None:
    specs.set(PROFILES, (*DIGITS, "recipes"), {"small": {"warm_up": {"iterations": 7}}, "large": {"momentum": 0.5}})
    table = specs.load()
    recipe = table.recipe_in(table.profiles.named("quick"))
    assert recipe.warm_up
    assert (recipe.warm_up.iterations, recipe.iterations, recipe.momentum) == (7, 80, 0.9)
    assert table.recipe_in(table.profiles.named("paper")).warm_up != recipe.warm_up


def test_rows_that_share_a_recipe_cannot_change_it_in_two_ways(specs: SmallSpecs) -> None:
    specs.set(ONE, ("rows", 1, "dataset"), "cifar100")
    ((file, line, message),) = specs.complaints()
    assert (file, line) == (PROFILES, specs.line_of(PROFILES, "datasets:"))
    assert message == (
        "profiles.quick.datasets: change recipe small in two ways. Give the rows that train on cifar100 another recipe."
    )


def test_profile_of_paperbench_that_breaks_a_recipe_is_to_be_replaced(specs: SmallSpecs) -> None:
    (specs.root / PROFILES).unlink()
    specs.set(SMALL, ("drops",), REMOVED)
    specs.set(SMALL, ("schedule",), "cosine")
    with pytest.raises(PaperbenchError, match=r"profile smoke\. It is paperbench's: write experiments/profiles\.yaml"):
        specs.load()
