from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from paperbench.errors import PaperbenchError
from paperbench.specs.recipe import Augmentation, Recipe
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
        ({"augmentation": {"padding": -1}}, "padding:", "padding must not be negative"),
        ({"monitoring": {"log_every": 0}}, "log_every:", "log_every must be at least 1, not 0"),
        ({"monitoring": {"test_every": -3}}, "test_every:", "test_every must be at least 1"),
        ({"monitoring": {"checkpoint_every": 0}}, "checkpoint_every:", "checkpoint_every must be at least 1"),
        ({"augmentation": {"shorter_side": [256, 480], "crop": 224}}, "padding:", "padding is for small images"),
        ({"augmentation": {"crop": 28}}, "padding:", "padding is for small images that are not resized; write 0 here."),
        ({"augmentation": {"jitter": 0.4}}, "padding:", "padding is for small images"),
        ({"augmentation": {"padding": 0, "shorter_side": [480, 256]}}, "shorter_side:", "the lesser first"),
        ({"augmentation": {"padding": 0, "shorter_side": [256]}}, "shorter_side:", "must be two positive numbers"),
        ({"augmentation": {"padding": 0, "shorter_side": [0, 480]}}, "shorter_side:", "must be two positive numbers"),
        ({"augmentation": {"padding": 0, "shorter_side": [256.5, 480]}}, "- 256.5", "must be a whole number"),
        (
            {"augmentation": {"padding": 0, "area": [1.0, 0.08]}},
            "area:",
            "area must be two positive numbers, the lesser",
        ),
        ({"augmentation": {"padding": 0, "area": [0, 1.0]}}, "area:", "area must be two positive numbers"),
        (
            {"augmentation": {"padding": 0, "crop": 224, "area": [8, 100]}},
            "area:",
            "a share of the image, at most 1, not 100.0.",
        ),
        ({"augmentation": {"padding": 0, "aspect_ratio": [1.33, 0.75]}}, "aspect_ratio:", "the lesser first"),
        ({"augmentation": {"padding": 0, "aspect_ratio": [0.7, 1, 1.3]}}, "aspect_ratio:", "must be two positive"),
        ({"augmentation": {"padding": 0, "crop": 0}}, "crop:", "crop must be positive, not 0."),
        ({"augmentation": {"padding": 0, "jitter": -0.4}}, "jitter:", "jitter must be positive, not -0.4."),
        ({"augmentation": {"padding": 0, "lighting": 0}}, "lighting:", "lighting must be positive, not 0.0."),
        (
            {"augmentation": {"padding": 0, "shortest_side": [256, 480]}},
            "shortest_side:",
            "Did you mean 'shorter_side'?",
        ),
        ({"silent": ["momentum_form", "momentun"]}, "silent:", "a recipe has no value 'momentun'."),
        ({"silent": ["batch_norm.epsilon"]}, "silent:", "a recipe has no value 'batch_norm.epsilon'."),
        ({"silent": ["momentum.form"]}, "silent:", "a recipe has no value 'momentum.form'."),
        ({"silent": ["monitoring.log_every"]}, "silent:", "a recipe has no value 'monitoring.log_every'."),
        ({"silent": ["augmentation.crop"]}, "silent:", "a recipe has no value 'augmentation.crop'."),
        ({"silent": ["silent"]}, "silent:", "a recipe has no value 'silent'."),
        ({"silent": "momentum_form"}, "silent:", "must be a list"),
        ({"authors": {"precision": "fp23"}}, "precision:", "'fp23' is not allowed here. Did you mean 'fp32'?"),
        ({"authors": {"images_per_gpu": 0}}, "images_per_gpu:", "images_per_gpu must be at least 1, not 0."),
        ({"authors": {"frame_work": "Caffe"}}, "frame_work:", "unknown key 'frame_work'. Did you mean 'framework'?"),
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
        {"augmentation": {"padding": 0, "shorter_side": [256, 256], "crop": 224}},
        {"augmentation": {"padding": 0, "crop": 224, "area": [0.08, 1.0], "aspect_ratio": [0.75, 1.3333]}},
        {"augmentation": {"padding": 0, "jitter": 0.4, "lighting": 0.1}},
        {"silent": []},
        {"silent": ["batch_norm", "warm_up.iterations", "input"]},
    ],
)
def test_legal_changes_are_taken(tmp_path: Path, changes: dict[str, Any]) -> None:
    bind(read_mapping(changed(tmp_path, **changes)), Recipe)


def test_what_defines_a_run_is_all_but_names_sources_remarks_and_monitoring(recipe: Recipe) -> None:
    written = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    for key in ("schema", "recipe", "source", "monitoring", "authors", "silent"):
        del written[key]
    assert recipe.defining_values() == written


def test_monitoring_names_sources_and_remarks_do_not_define_a_run(recipe: Recipe, tmp_path: Path) -> None:
    others = {"silent": ["momentum"], "authors": {"framework": "mine", "images_per_gpu": 2, "precision": "bf16"}}
    file = changed(tmp_path, recipe="mine", source="me", monitoring={"log_every": 7, "test_every": 9}, **others)
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
        {"augmentation": {"padding": 0}},
        {"augmentation": {"padding": 0, "crop": 224}},
        {"batch_norm": {"group": 32}},
        {"batch_norm": {"at_test": "moving_average"}},
        {"batch_norm": {"moving_average": 0.2}},
        {"batch_norm": {"eps": 0.001}},
    ],
)
def test_every_value_that_changes_the_training_defines_the_run(
    recipe: Recipe, tmp_path: Path, changes: dict[str, Any]
) -> None:
    other = bind(read_mapping(changed(tmp_path, **changes)), Recipe)
    assert other.defining_values() != recipe.defining_values()


@pytest.mark.parametrize("key", ["authors", "silent"])
def test_what_is_known_of_the_authors_must_be_said(tmp_path: Path, key: str) -> None:
    values = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    del values[key]
    file = tmp_path / "cifar.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    with pytest.raises(SpecError, match=f":1: the key '{key}' is missing."):
        bind(read_mapping(file), Recipe)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("momentum", 0.9),
        ("batch_norm.eps", 1e-5),
        ("warm_up.iterations", 400),
        ("drops.at", [32_000, 48_000]),
        ("augmentation", {"padding": 4, "flip": True}),
    ],
)
def test_a_value_can_be_asked_for_by_its_dotted_name(recipe: Recipe, name: str, value: Any) -> None:
    assert recipe.value_of(name) == value


@pytest.mark.parametrize("name", ["recipe", "source", "schema", "authors.framework", "monitoring", "", "drops.at.0"])
def test_what_defines_no_run_has_no_such_name(recipe: Recipe, name: str) -> None:
    with pytest.raises(PaperbenchError, match=f"a recipe has no value '{name}'"):
        recipe.value_of(name)


def test_each_value_for_large_images_defines_a_run_and_none_is_there_for_small_ones(recipe: Recipe) -> None:
    """Digests of runs on CIFAR are older than these fields, and must not change by them."""
    large = {
        "shorter_side": (256, 480),
        "crop": 224,
        "area": (0.08, 1.0),
        "aspect_ratio": (0.75, 1.3333),
        "jitter": 0.4,
        "lighting": 0.1,
    }
    assert recipe.defining_values()["augmentation"] == {"padding": 4, "flip": True}
    for name, value in large.items():
        crop = {"crop": 224} if name in ("shorter_side", "area") else {}
        augmentation = Augmentation(padding=0, flip=True, **crop, **{name: value})
        assert augmentation.is_for_large_images
        values = replace(recipe, augmentation=augmentation).defining_values()["augmentation"]
        plain = list(value) if isinstance(value, tuple) else value
        assert values == {"padding": 0, "flip": True, **crop, name: plain}
    assert not recipe.augmentation.is_for_large_images
