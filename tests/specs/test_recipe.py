from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from paperbench.specs.recipe import Augmentation, Recipe
from paperbench.specs.yaml_file import read_yaml
from paperbench.typed import TypedError, from_json
from tests.helpers import ROOT

SHIPPED = ROOT / "experiments" / "recipes" / "cifar.yaml"


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return read_yaml(SHIPPED).parse(Recipe)


def changed(**changes: Any) -> dict[str, Any]:
    """The values of the shipped recipe with some replaced, mappings within by their keys."""
    values = read_yaml(SHIPPED).data
    for key, value in changes.items():
        both_are_mappings = isinstance(value, dict) and isinstance(values.get(key), dict)
        values[key] = {**values[key], **value} if both_are_mappings else value
    return values


@pytest.mark.parametrize(
    ("changes", "blamed", "message"),
    [
        ({"batch_size": 0}, "batch_size", "must be at least 1, not 0."),
        ({"batch_size": 2**40}, "batch_size", "must be at most 65536, not 1099511627776."),
        ({"iterations": 10**18}, "iterations", "must be at most 1000000000000, not 1000000000000000000."),
        ({"augmentation": {"padding": 10**6}}, "augmentation.padding", "must be at most 64, not 1000000."),
        ({"drops": {"at": list(range(400, 1500))}}, "drops.at", "must have at most 1000 entries, not "),
        ({"learning_rate": 1e308}, "learning_rate", "must be at most 1e+30, not 1e+308."),
        ({"drops": {"factor": 1e-200}}, "drops", "must leave a learning rate of at least 1e-30."),
        ({"momentum": 1}, "momentum", "must be below 1, not 1."),
        ({"momentum": 0, "momentum_form": "nesterov"}, "momentum", "must be above 0 with nesterov."),
        ({"batch_norm": {"group": 1}}, "batch_norm.group", "must be at least 2, not 1."),
        ({"batch_norm": {"group": 48}}, "batch_norm.group", "must divide batch_size (128)."),
        ({"batch_norm": {"moving_average": 1.5}}, "batch_norm.moving_average", "must be at most 1, not 1.5."),
        ({"drops": {"at": [48000, 32000]}}, "drops.at", "must be in increasing order."),
        ({"drops": {"at": [399, 48000]}}, "drops.at", "the first drop is before the end of the warm-up at 400."),
        ({"drops": {"at": [-1]}, "warm_up": None}, "drops.at[0]", "must be at least 0, not -1."),
        ({"drops": {"at": [32000, 64000]}}, "drops.at", "the drop at 64000 is not before the end at 64000 iterations."),
        ({"monitoring": {"log_every": 0}}, "monitoring.log_every", "must be at least 1, not 0."),
        ({"silent": ["input", "momentun"]}, "silent[1]", "unknown recipe value 'momentun'. Did you mean 'momentum'?"),
        *(
            ({"silent": [name]}, "silent[0]", f"unknown recipe value '{name}'.")
            for name in ("batch_norm.epsilon", "momentum.form", "monitoring", "source")
        ),
    ],
)
def test_invalid_recipe_is_refused(changes: dict[str, Any], blamed: str, message: str) -> None:
    with pytest.raises(TypedError) as caught:
        from_json(Recipe, json.dumps(changed(**changes)))
    assert str(caught.value).startswith(f"{blamed}: {message}")


LARGE = {"padding": 0, "crop": 224}


@pytest.mark.parametrize(
    ("augmentation", "blamed", "message"),
    [
        ({"shorter_side": [256, 480], "crop": 224}, "padding", "must be 0 for images that are resized or recoloured."),
        ({"jitter": 0.4}, "padding", "must be 0 for images that are resized or recoloured."),
        ({**LARGE, "shorter_side": [480, 256]}, "shorter_side", "must have the smaller number first."),
        ({**LARGE, "area": [1.0, 0.08]}, "area", "must have the smaller number first."),
        ({**LARGE, "shorter_side": [100, 480]}, "crop", "must be at most 100, the minimum of shorter_side."),
        ({"padding": 0, "area": [0.08, 1.0]}, "crop", "is required with shorter_side or area."),
        ({**LARGE, "shorter_side": [256, 480], "area": [0.1, 1.0]}, "area", "cannot be combined with shorter_side"),
    ],
)
def test_invalid_augmentation_is_refused(augmentation: dict[str, Any], blamed: str, message: str) -> None:
    with pytest.raises(TypedError) as caught:
        from_json(Augmentation, json.dumps({"padding": 4, "flip": True, **augmentation}))
    assert str(caught.value).startswith(f"{blamed}: {message}")


@pytest.mark.parametrize(
    "changes",
    [
        {"warm_up": None},
        {"drops": {"at": []}},
        {"momentum": 0},
        {"batch_norm": {"group": 128}},
        {"augmentation": {"padding": 0, "shorter_side": [256, 256], "crop": 224}},
        {"augmentation": {"padding": 0, "crop": 224, "area": [0.08, 1.0], "aspect_ratio": [0.75, 1.3333]}},
        {"augmentation": {"padding": 0, "jitter": 0.4, "lighting": 0.1}},
        {"silent": ["batch_norm", "warm_up.iterations", "input"]},
    ],
)
def test_unusual_recipe_is_accepted(changes: dict[str, Any]) -> None:
    from_json(Recipe, json.dumps(changed(**changes)))


def test_learning_rate_schedule(recipe: Recipe) -> None:
    rates = [(0, 0.01), (399, 0.01), (400, 0.1), (31_999, 0.1), (32_000, 0.01), (47_999, 0.01), (48_000, 0.001)]
    assert [recipe.rate_at(i) for i, _ in rates] == pytest.approx([rate for _, rate in rates], rel=1e-12)
    assert replace(recipe, warm_up=None).rate_at(0) == 0.1


def test_all_values_but_monitoring_and_documentation_define_a_run(recipe: Recipe) -> None:
    assert "warm_up" not in replace(recipe, warm_up=None).defining_values(), "unset values are not in digests"
    others = {"schema", "recipe", "source", "monitoring", "authors", "silent"}
    assert recipe.defining_values() == {k: v for k, v in read_yaml(SHIPPED).data.items() if k not in others}


def test_large_image_augmentations_are_recognised(recipe: Recipe) -> None:
    values: list[dict[str, Any]] = [{"jitter": 0.4}, {"lighting": 0.1}, {"crop": 224}, {"aspect_ratio": (0.75, 1.33)}]
    assert all(Augmentation(padding=0, flip=True, **one).is_for_large_images for one in values)
    assert not recipe.augmentation.is_for_large_images
