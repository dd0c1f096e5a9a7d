"""What README.md tells people to type, where the other tests do not type it anyway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from paperbench.data.dataset import ImageDataset
from paperbench.specs.recipe import Recipe
from tests.helpers import ROOT
from tests.runs.running import go, planned, tiny


def block_with(text: str) -> str:
    """The indented block of README.md in which a text stands."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    (middle,) = (number for number, line in enumerate(lines) if text in line)
    first, last = middle, middle
    while lines[first - 1].startswith("    ") or not lines[first - 1]:
        first -= 1
    while lines[last + 1].startswith("    ") or not lines[last + 1]:
        last += 1
    return "\n".join(line.removeprefix("    ") for line in lines[first : last + 1])


def test_a_trained_net_is_loaded_as_the_readme_says(
    paper_recipe: Recipe, small_dataset: ImageDataset, tmp_path: Path
) -> None:
    directory, log = go(planned(tiny(paper_recipe), small_dataset), tmp_path)
    code = block_with("facts = opened.metadata()").replace("results/runs/<run>", str(directory.path))
    pixels = torch.from_numpy(small_dataset.x_test).permute(0, 3, 1, 2).float()
    names: dict[str, Any] = {"pixels": pixels}
    exec(code, names)
    labels = torch.from_numpy(small_dataset.y_test)
    result = log.record.result
    assert result is not None
    torch.testing.assert_close(
        torch.nn.functional.cross_entropy(names["logits"], labels).item(), result.test_loss, rtol=1e-5, atol=0
    )


def test_nets_are_built_as_the_readme_says() -> None:
    names: dict[str, Any] = {}
    with torch.device("meta"):
        exec(block_with('timm.create_model("preact_resnet1001")'), names)
    assert names["model"].num_classes == 100
    assert names["small"].net.depth == 29
