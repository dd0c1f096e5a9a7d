from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paperbench.specs.recipe import Recipe, WarmUp
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
        ({"weight_decay_on": "all"}, "weight_decay_on", "must be 'convolutions', not 'all'."),  # one digest for one run
        ({"batch_size": 0}, "batch_size", "must be at least 1, not 0."),
        ({"batch_size": 2**40}, "batch_size", "must be at most 65536, not 1099511627776."),
        ({"iterations": 10**18}, "iterations", "must be at most 1000000000000, not 1000000000000000000."),
        ({"augmentation": {"padding": 10**6}}, "augmentation.padding", "must be at most 64, not 1000000."),
        ({"drops": {"at": list(range(400, 1500))}}, "drops.at", "must have at most 1000 entries, not "),
        ({"learning_rate": 1e308}, "learning_rate", "must be at most 1e+30, not 1e+308."),
        ({"drops": {"factor": 1e-200}}, "drops", "must leave a learning rate of at least 1e-30."),
        ({"evaluations": {"a": {"crop": 2, "scale": 2}}}, "evaluations", "are required with photographs, and only"),
        ({"momentum": 1}, "momentum", "must be below 1, not 1."),
        ({"momentum": 0, "momentum_form": "nesterov"}, "momentum", "must be above 0 with nesterov."),
        ({"batch_norm": {"group": 1}}, "batch_norm.group", "must be at least 2, not 1."),
        ({"batch_norm": {"group": 48}}, "batch_norm.group", "must divide batch_size (128)."),
        ({"batch_norm": {"moving_average": 1.5}}, "batch_norm.moving_average", "must be at most 1, not 1.5."),
        ({"drops": {"at": [48000, 32000]}}, "drops.at", "must be in increasing order."),
        ({"drops": {"at": [399, 48000]}}, "drops.at", "the first drop is before the end of the warm-up at 400."),
        ({"drops": {"at": [-1]}, "warm_up": None}, "drops.at[0]", "must be at least 0, not -1."),
        ({"drops": {"at": [32000, 64000]}}, "drops.at", "the drop at 64000 is not before the end at 64000 iterations."),
        ({"drops": None}, "drops", "must be given, or a schedule (cosine) in their place, but not both."),
        ({"schedule": "cosine"}, "drops", "must be given, or a schedule (cosine) in their place, but not both."),
        ({"drops": None, "schedule": "cosine", "learning_rate": 1e-21}, "schedule", "must leave a learning rate of"),
        ({"drops": None, "schedule": "cosine", "iterations": 400}, "warm_up.iterations", "must be below 400: the "),
        ({"warm_up": {"form": "constant"}}, "warm_up.form", "must be 'linear', not 'constant'."),
        ({"clip_norm": 0}, "clip_norm", "must be at least 1e-30, not 0."),
        ({"label_smoothing": 1}, "label_smoothing", "must be below 1, not 1."),
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


PHOTOGRAPHS = {
    "decoder": "pillow",
    "interpolation": "bilinear",
    "crop": 224,
    "shorter_side": [256, 480],
    "mean_image_scale": 256,
}
"""On the shipped recipe: shorter_side, per-pixel mean."""
AREA = {"shorter_side": None, "area": [0.08, 1.0], "aspect_ratio": [0.75, 1.5], "mean_image_scale": None}
CHANNELS = {"mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2]}


def with_photographs(photographs: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The shipped recipe, for photographs."""
    set_values = {key: value for key, value in {**PHOTOGRAPHS, **photographs}.items() if value is not None}
    for_photographs = {"photographs": set_values, "evaluations": {"crop224": {"crop": 224, "scale": 256}}}
    return changed(**{"augmentation": {"padding": 0}, **for_photographs, **changes})


SIDE_OR_AREA = "must be given, or area and aspect_ratio, but not both."


@pytest.mark.parametrize(
    ("photographs", "changes", "blamed", "message"),
    [
        ({}, {"augmentation": {"padding": 4}}, "augmentation.padding", "must be 0 for photographs, whose crops are"),
        ({}, {"input": CHANNELS}, "photographs.mean_image_scale", "is required with the input per_pixel_mean, and onl"),
        ({"mean_image_scale": None}, {}, "photographs.mean_image_scale", "is required with the input per_pixel_mean"),
        ({"mean_image_scale": 223}, {}, "photographs.mean_image_scale", "must be at least 224, the side of the crop."),
        (AREA, {"input": "channel_mean_std"}, "input", "must be per_pixel_mean or given values for photographs."),
        (AREA, {"input": {**CHANNELS, "std": [0.2, 0, 0.2]}}, "input.std[1]", "must be above 0, not 0."),
        (AREA, {"input": "mean"}, "input", "must be 'per_pixel_mean' or 'channel_mean_std', or a mapping, not 'mean'."),
        ({}, {"epoch_end": "drop"}, "epoch_end", "must be 'short_batch', not 'drop'."),
        ({"shorter_side": [480, 256]}, {}, "photographs.shorter_side", "must have the smaller number first."),
        ({"shorter_side": [223, 480]}, {}, "photographs.shorter_side", "must be at least 224, the side of the crop."),
        ({"shorter_side": None}, {}, "photographs.shorter_side", SIDE_OR_AREA),
        ({**AREA, "shorter_side": [256, 480]}, {"input": CHANNELS}, "photographs.shorter_side", SIDE_OR_AREA),
        ({**AREA, "aspect_ratio": None}, {"input": CHANNELS}, "photographs.aspect_ratio", "and area must be given tog"),
        ({**AREA, "area": [1.0, 0.08]}, {"input": CHANNELS}, "photographs.area", "must have the smaller number first."),
        ({**AREA, "area": [0, 1]}, {"input": CHANNELS}, "photographs.area[0]", "must be above 0, not 0."),
        ({"jitter": 1.5}, {}, "photographs.jitter", "must be at most 1, not 1.5."),
        ({}, {"evaluations": {}}, "evaluations", "are required with photographs, and only then."),
        ({}, {"evaluations": {"a": {"crop": 0, "scale": 9}}}, "evaluations.a.crop", "must be at least 1, not 0."),
        ({"crop": 0}, {}, "photographs.crop", "must be at least 1, not 0."),
        ({"decoder": "opencv"}, {}, "photographs.decoder", "must be 'pillow' or 'torchcodec', not 'opencv'."),
        ({"interpolation": "bicubic"}, {}, "photographs.interpolation", "must be 'bilinear' or 'torch_bicubic', not"),
        ({"lighting": {"std": 0.1}}, {}, "photographs.lighting.eigenvalues", "is missing"),
    ],
)
def test_invalid_photographs_are_refused(
    photographs: dict[str, Any], changes: dict[str, Any], blamed: str, message: str
) -> None:
    with pytest.raises(TypedError) as caught:
        from_json(Recipe, json.dumps(with_photographs(photographs, **changes)))
    assert f"{blamed}: {message}" in str(caught.value)


def test_short_batches_need_photographs() -> None:
    with pytest.raises(TypedError, match="epoch_end: is only possible with photographs"):
        from_json(Recipe, json.dumps(changed(epoch_end="short_batch")))


@pytest.mark.parametrize(
    ("photographs", "changes"),
    [
        ({}, {"epoch_end": "short_batch"}),
        ({"shorter_side": [256, 256], "jitter": 0.4}, {"silent": ["photographs.shorter_side", "photographs"]}),
        (AREA, {"input": CHANNELS, "silent": ["input.mean", "photographs.area"]}),
    ],
)
def test_unusual_photographs_are_accepted(photographs: dict[str, Any], changes: dict[str, Any]) -> None:
    from_json(Recipe, json.dumps(with_photographs(photographs, **changes)))


@pytest.mark.parametrize(
    "changes",
    [
        {"warm_up": None},
        {"drops": {"at": []}},
        {"momentum": 0},
        {"batch_norm": {"group": 128}},
        {"input": CHANNELS},
        {"silent": ["batch_norm", "warm_up.iterations", "input"]},
    ],
)
def test_unusual_recipe_is_accepted(changes: dict[str, Any]) -> None:
    from_json(Recipe, json.dumps(changed(**changes)))


def test_learning_rate_schedule(recipe: Recipe) -> None:
    rates = [(0, 0.01), (399, 0.01), (400, 0.1), (31_999, 0.1), (32_000, 0.01), (47_999, 0.01), (48_000, 0.001)]
    assert [recipe.rate_at(i) for i, _ in rates] == pytest.approx([rate for _, rate in rates], rel=1e-12)
    assert replace(recipe, warm_up=None).rate_at(0) == 0.1


def test_linear_warm_up_and_cosine(recipe: Recipe) -> None:
    smooth = replace(recipe, warm_up=WarmUp(0.01, 400, "linear"), drops=None, schedule="cosine")
    at, rates = np.arange(64_000), [smooth.rate_at(i) for i in range(64_000)]
    falling = 0.1 * (1 + np.cos(np.pi * (at - 400) / 63_600)) / 2
    expected = np.where(at < 400, np.interp(at, [0, 400], [0.01, 0.1]), falling)
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    assert (rates[0], rates[400]) == (0.01, 0.1)


def test_all_values_but_monitoring_and_documentation_define_a_run(recipe: Recipe) -> None:
    assert "warm_up" not in replace(recipe, warm_up=None).defining_values(), "unset values are not in digests"
    others = {"schema", "recipe", "source", "monitoring", "authors", "silent"}
    assert recipe.defining_values() == {k: v for k, v in read_yaml(SHIPPED).data.items() if k not in others}


def test_evaluations_do_not_define_a_run() -> None:
    one, other = (
        from_json(Recipe, json.dumps(with_photographs({}, evaluations={"a": {"crop": crop, "scale": 320}})))
        for crop in (224, 320)
    )
    assert one != other
    assert one.defining_values() == other.defining_values()


def slice_range(elements: int, index: int, splits: int) -> tuple[int, int]:
    """First element (from 1) and size of a GPU's slice, as DataParallelTable.lua of github.com/torch/cunn has it."""
    per_module = elements // splits
    extra = elements - per_module * splits
    if index <= extra:
        return (index - 1) * (per_module + 1) + 1, per_module + 1
    return extra * (per_module + 1) + (index - 1 - extra) * per_module + 1, per_module


@pytest.mark.parametrize(("batch_size", "group"), [(256, 32), (128, 64), (64, 32), (256, 256), (24, 2)])
def test_short_batches_are_divided_as_among_the_authors_gpus(recipe: Recipe, batch_size: int, group: int) -> None:
    settings = replace(recipe, batch_size=batch_size, batch_norm=replace(recipe.batch_norm, group=group))
    gpus = batch_size // group
    for images in range(1, batch_size + 1):
        slices = [slice_range(images, index, gpus) for index in range(1, gpus + 1)]
        assert settings.group_sizes(images) == tuple(size for _, size in slices if size)
        assert [first for first, _ in slices] == [1 + sum(size for _, size in slices[:i]) for i in range(gpus)]
    assert settings.group_sizes(batch_size) == (group,) * gpus
