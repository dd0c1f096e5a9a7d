from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from paperbench.specs.recipe import Recipe
from paperbench.specs.strict_yaml import SpecError, bind, read_mapping
from tests.helpers import ROOT

SHIPPED = ROOT / "experiments" / "recipes" / "cifar.yaml"


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return bind(read_mapping(SHIPPED), Recipe)


def test_the_shipped_recipe_has_the_values_of_the_paper(recipe: Recipe) -> None:
    """Appendix of the paper, and v1 (Sec. 4.2) for what it takes from there."""
    assert recipe.learning_rate == 0.1
    assert recipe.drops.at == (32_000, 48_000)
    assert recipe.drops.factor == 0.1
    assert recipe.iterations == 64_000
    assert recipe.warm_up is not None
    assert (recipe.warm_up.learning_rate, recipe.warm_up.iterations) == (0.01, 400)
    assert recipe.batch_size == 128
    assert recipe.batch_norm.group == 64, "128 images on 2 GPUs"
    assert recipe.weight_decay == 1e-4
    assert recipe.momentum == 0.9
    assert (recipe.augmentation.padding, recipe.augmentation.flip) == (4, True)
    assert recipe.input == "per_pixel_mean"


def test_the_shipped_recipe_has_our_decisions_where_the_paper_is_silent(recipe: Recipe) -> None:
    assert recipe.momentum_form == "caffe"
    assert recipe.initialisation == "fan_out"
    assert (recipe.batch_norm.eps, recipe.batch_norm.at_test) == (1e-5, "reestimated")


@pytest.mark.parametrize(
    ("iteration", "rate"),
    [
        (0, 0.01),
        (399, 0.01),
        (400, 0.1),
        (31_999, 0.1),
        (32_000, 0.01),
        (47_999, 0.01),
        (48_000, 0.001),
        (63_999, 0.001),
    ],
)
def test_learning_rate_of_the_paper(recipe: Recipe, iteration: int, rate: float) -> None:
    assert recipe.rate_at(iteration) == pytest.approx(rate, rel=1e-12)


def test_without_warm_up_the_first_iteration_has_the_full_rate(recipe: Recipe) -> None:
    assert replace(recipe, warm_up=None).rate_at(0) == 0.1


def changed(tmp_path: Path, **changes: Any) -> Path:
    """The shipped recipe with some keys replaced, mappings within by their keys."""
    values = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(values.get(key), dict)
        values[key] = {**values[key], **value} if both else value
    file = tmp_path / "cifar.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False, default_flow_style=False), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("changes", "blamed", "message"),
    [
        ({"schema": 2}, "schema:", "2 is not allowed here"),
        ({"batch_size": 0}, "batch_size:", "batch_size must be at least 1, not 0"),
        ({"iterations": 0}, "iterations: 0", "iterations must be at least 1, not 0"),
        ({"iterations": 64000.0}, "iterations: 64000.0", "must be a whole number"),
        ({"learning_rate": 0}, "learning_rate: 0\n", "learning_rate must be positive, not 0"),
        ({"learning_rate": -0.1}, "learning_rate: -0.1", "learning_rate must be positive"),
        ({"momentum": 1}, "momentum: 1", "momentum must be in [0, 1), not 1"),
        ({"momentum": -0.1}, "momentum: -0.1", "momentum must be in [0, 1)"),
        ({"momentum_form": "cafe"}, "momentum_form:", "'cafe' is not allowed here. Did you mean 'caffe'?"),
        ({"weight_decay": -1.0}, "weight_decay:", "weight_decay must not be negative"),
        ({"initialisation": "fan_avg"}, "initialisation:", "'fan_avg' is not allowed here"),
        ({"input": "per_pixel"}, "input:", "Did you mean 'per_pixel_mean'?"),
        ({"batch_norm": {"group": 1}}, "batch_norm:", "group must be at least 2 and divide batch_size 128, not 1"),
        ({"batch_norm": {"group": 48}}, "batch_norm:", "divide batch_size 128, not 48"),
        ({"batch_norm": {"group": 256}}, "batch_norm:", "divide batch_size 128, not 256"),
        ({"batch_norm": {"eps": 0}}, "batch_norm:", "eps positive"),
        ({"batch_norm": {"moving_average": 0}}, "batch_norm:", "moving_average must be in (0, 1]"),
        ({"batch_norm": {"moving_average": 1.5}}, "batch_norm:", "moving_average must be in (0, 1]"),
        ({"batch_norm": {"at_test": "batch"}}, "at_test:", "'batch' is not allowed here"),
        ({"drops": {"at": [48000, 32000]}}, "drops:", "`at` must rise from drop to drop"),
        ({"drops": {"at": [32000, 32000]}}, "drops:", "`at` must rise from drop to drop"),
        ({"drops": {"factor": 0}}, "drops:", "factor be in (0, 1]"),
        ({"drops": {"factor": 10}}, "drops:", "factor be in (0, 1]"),
        ({"drops": {"at": [399, 48000]}}, "drops:", "must not come before the warm-up ends, at 400"),
        ({"drops": {"at": [-1]}, "warm_up": None}, "drops:", "must not come before the warm-up ends, at 0"),
        ({"drops": {"at": [32000, 64000]}}, "drops:", "the drop at 64000 comes after the last of 64000 iterations"),
        ({"warm_up": {"iterations": 0}}, "warm_up:", "iterations and learning_rate must be positive"),
        ({"warm_up": {"learning_rate": 0}}, "warm_up:", "iterations and learning_rate must be positive"),
        ({"augmentation": {"padding": -1}}, "augmentation:", "padding must not be negative"),
        ({"monitoring": {"log_every": 0}}, "log_every:", "log_every must be at least 1, not 0"),
        ({"monitoring": {"test_every": -3}}, "test_every:", "test_every must be at least 1"),
        ({"monitoring": {"checkpoint_every": 0}}, "checkpoint_every:", "checkpoint_every must be at least 1"),
        ({"momentun": 0.9}, "momentun:", "unknown key 'momentun'. Did you mean 'momentum'?"),
    ],
)
def test_values_that_make_no_sense_are_refused_at_their_line(
    tmp_path: Path, changes: dict[str, Any], blamed: str, message: str
) -> None:
    file = changed(tmp_path, **changes)
    text = file.read_text(encoding="utf-8")
    lines = [n for n, line in enumerate(text.splitlines(keepends=True), 1) if line.strip(" ").startswith(blamed)]
    with pytest.raises(SpecError) as caught:
        bind(read_mapping(file), Recipe)
    where, told = str(caught.value).removeprefix(f"{file}:").split(": ", 1)
    assert int(where) == lines[-1]
    assert message in told


@pytest.mark.parametrize(
    "changes",
    [
        {"warm_up": None},
        {"drops": {"at": []}},
        {"drops": {"at": [400, 500]}},
        {"momentum": 0},
        {"weight_decay": 0},
        {"momentum_form": "nesterov"},
        {"batch_norm": {"group": 128}},
        {"batch_norm": {"at_test": "moving_average"}},
        {"augmentation": {"padding": 0, "flip": False}},
    ],
)
def test_legal_changes_are_taken(tmp_path: Path, changes: dict[str, Any]) -> None:
    bind(read_mapping(changed(tmp_path, **changes)), Recipe)


def test_what_defines_a_run_is_all_but_names_sources_and_monitoring(recipe: Recipe) -> None:
    written = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    for key in ("schema", "recipe", "source", "monitoring"):
        del written[key]
    assert recipe.defining_values() == written


def test_monitoring_names_and_sources_do_not_define_a_run(recipe: Recipe, tmp_path: Path) -> None:
    file = changed(tmp_path, recipe="mine", source="me", monitoring={"log_every": 7, "test_every": 9})
    assert bind(read_mapping(file), Recipe).defining_values() == recipe.defining_values()


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": 256},
        {"iterations": 64001},
        {"learning_rate": 0.2},
        {"warm_up": None},
        {"drops": {"factor": 0.2}},
        {"momentum": 0.8},
        {"momentum_form": "pytorch"},
        {"weight_decay": 0.0002},
        {"initialisation": "fan_in"},
        {"input": "channel_mean_std"},
        {"augmentation": {"flip": False}},
        {"batch_norm": {"group": 32}},
        {"batch_norm": {"eps": 0.001}},
    ],
)
def test_every_value_that_changes_the_training_defines_the_run(
    recipe: Recipe, tmp_path: Path, changes: dict[str, Any]
) -> None:
    other = bind(read_mapping(changed(tmp_path, **changes)), Recipe)
    assert other.defining_values() != recipe.defining_values()
