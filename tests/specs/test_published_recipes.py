"""The recipes against the paper and the authors' released code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paperbench.specs.recipe import Augmentation, ChannelValues, Lighting, Photographs, Recipe, WarmUp
from paperbench.specs.table import Table
from paperbench.specs.yaml_file import read_yaml
from tests.helpers import ROOT

CIFAR_IMAGES, IMAGENET_IMAGES = 50_000, 1_281_167
COLOURS = Lighting(
    std=0.1,
    eigenvalues=(0.2175, 0.0188, 0.0045),
    eigenvectors=((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203)),
)
"""The values of fb.resnet.torch, datasets/imagenet.lua."""


@pytest.fixture(scope="module")
def recipes() -> dict[str, Recipe]:
    files = (ROOT / "experiments" / "recipes").glob("*.yaml")
    return {file.stem: read_yaml(file).parse(Recipe) for file in files}


def after(epochs: int, recipe: Recipe, images: int) -> int:
    """The iteration nearest to the end of an epoch."""
    return round(epochs * images / recipe.batch_size)


def test_every_recipe_is_used(recipes: dict[str, Recipe], tables: dict[str, Table]) -> None:
    used = {table.experiment.recipe for table in tables.values()}
    used |= {cell.recipe for table in tables.values() for cell in table.all_cells}
    assert used == set(recipes)


@pytest.mark.parametrize("name", ["cifar", "cifar_no_warm_up", "cifar_torch", "imagenet", "imagenet_torch"])
def test_common_values_of_all_recipes(recipes: dict[str, Recipe], name: str) -> None:
    recipe = recipes[name]
    assert (recipe.learning_rate, recipe.drops.factor, len(recipe.drops.at)) == (0.1, 0.1, 2)
    assert (recipe.momentum, recipe.weight_decay, recipe.initialisation) == (0.9, 1e-4, "fan_out")
    assert (recipe.augmentation.flip, recipe.batch_norm.eps, recipe.batch_norm.moving_average) == (True, 1e-5, 0.1)
    assert recipe.authors.precision == "fp32"
    assert recipe.batch_norm.group == recipe.authors.images_per_gpu


def test_cifar_recipe_follows_the_papers(recipes: dict[str, Recipe]) -> None:
    """Appendix of the paper, and v1 (Sec. 4.2); the rest are our decisions."""
    recipe = recipes["cifar"]
    assert (recipe.iterations, recipe.drops.at) == (64_000, (32_000, 48_000))
    assert (recipe.batch_size, recipe.batch_norm.group) == (128, 64), "128 images on 2 GPUs"
    assert recipe.augmentation == Augmentation(padding=4, flip=True)
    assert (recipe.momentum_form, recipe.input, recipe.batch_norm.at_test) == (
        "caffe",
        "per_pixel_mean",
        "reestimated",
    )


def test_recipe_without_warm_up_differs_in_nothing_else(recipes: dict[str, Recipe]) -> None:
    assert recipes["cifar"].warm_up == WarmUp(0.01, 400)
    assert recipes["cifar_no_warm_up"] == replace(recipes["cifar"], recipe="cifar_no_warm_up", warm_up=None)


def test_table4_dagger_row_follows_the_released_code(recipes: dict[str, Recipe]) -> None:
    """KaimingHe/resnet-1k-layers and fb.resnet.torch: paper.md, 2.2."""
    recipe = recipes["cifar_torch"]
    assert recipe.batch_size == 64
    assert recipe.batch_norm.group == 32, "64 images on 2 GPUs"
    assert recipe.iterations == after(200, recipe, CIFAR_IMAGES)
    assert recipe.warm_up is None
    assert recipe.momentum_form == "nesterov"
    assert recipe.input == "channel_mean_std"
    assert recipe.batch_norm.at_test == "moving_average"
    assert recipe.augmentation == Augmentation(padding=4, flip=True)
    assert recipe.authors.framework == "Torch7"


def test_table4_dagger_row_drops_after_epochs_80_and_121(recipes: dict[str, Recipe]) -> None:
    """`epoch >= 122 and 2 or epoch >= 81 and 1 or 0`, of 781.25 iterations an epoch."""
    recipe = recipes["cifar_torch"]
    assert recipe.drops.at == (after(80, recipe, CIFAR_IMAGES), after(121, recipe, CIFAR_IMAGES))


def test_imagenet_recipe_follows_the_appendix(recipes: dict[str, Recipe]) -> None:
    recipe = recipes["imagenet"]
    assert (recipe.batch_size, recipe.batch_norm.group) == (256, 32), "8 GPUs, 32 each"
    assert recipe.warm_up is None, '"no warming up"'
    assert recipe.drops.at == (after(30, recipe, IMAGENET_IMAGES), after(60, recipe, IMAGENET_IMAGES))
    assert recipe.iterations == 600_000, "v1"
    assert (recipe.momentum_form, recipe.input, recipe.batch_norm.at_test) == (
        "caffe",
        "per_pixel_mean",
        "reestimated",
    )
    assert recipe.augmentation == Augmentation(0, True)
    assert recipe.photographs == Photographs(
        "pillow", "bilinear", 224, shorter_side=(256, 480), lighting=COLOURS, mean_image_scale=256
    )
    assert recipe.epoch_end is None


def test_table5_dagger_row_follows_the_released_code(recipes: dict[str, Recipe]) -> None:
    """fb.resnet.torch: opts.lua, train.lua and datasets/imagenet.lua."""
    recipe = recipes["imagenet_torch"]
    assert (recipe.batch_size, recipe.batch_norm.group, recipe.warm_up) == (256, 32, None)
    assert (recipe.momentum_form, recipe.input) == (
        "nesterov",
        ChannelValues(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    )
    assert recipe.augmentation == Augmentation(0, True)
    assert recipe.photographs == Photographs(
        "pillow", "torch_bicubic", 224, area=(0.08, 1.0), aspect_ratio=(3 / 4, 4 / 3), jitter=0.4, lighting=COLOURS
    )


def test_table5_dagger_row_ends_each_epoch_with_143_images(recipes: dict[str, Recipe]) -> None:
    """`DataLoader:size()` is `math.ceil(size / batchSize)`; the rate drops with the epoch's number."""
    recipe = recipes["imagenet_torch"]
    assert recipe.epoch_end == "short_batch"
    whole, short = divmod(IMAGENET_IMAGES, recipe.batch_size)
    assert (whole, short) == (5_004, 143)
    assert recipe.group_sizes(short) == (18, 18, 18, 18, 18, 18, 18, 17)
    assert recipe.drops.at == (30 * (whole + 1), 60 * (whole + 1)) == (150_150, 300_300)
    assert recipe.iterations == 90 * (whole + 1) == 450_450


def test_values_that_the_sources_do_not_give(recipes: dict[str, Recipe]) -> None:
    ours = {"momentum_form", "initialisation", "batch_norm.eps", "batch_norm.moving_average", "batch_norm.at_test"}
    photographs = {
        "decoder",
        "interpolation",
        "lighting.eigenvalues",
        "lighting.eigenvectors",
        "mean_image_scale",
    }
    assert {name: (recipe.authors.framework, set(recipe.silent)) for name, recipe in recipes.items()} == {
        "cifar": ("Caffe", ours),
        "cifar_no_warm_up": ("Caffe", ours),
        "cifar_torch": ("Torch7", set()),
        "imagenet": ("Caffe", ours | {f"photographs.{name}" for name in photographs}),
        "imagenet_torch": ("Torch7", {"iterations", "photographs.decoder"}),
    }
