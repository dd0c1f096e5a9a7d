"""Code in README.md and docs/ that other tests do not run."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import torch

from paperbench.data.dataset import ImageDataset
from paperbench.specs.recipe import Recipe
from tests.helpers import ROOT
from tests.runs.running import go, planned, tiny

CODE_BLOCK = re.compile(r"^```python\n(.*?)^```$|((?:^(?: {4}[^\n]*)?\n)+)", re.MULTILINE | re.DOTALL)
"""A fenced or an indented block."""


def code_with(text: str) -> str:
    """Return the first code block of the documentation that contains a text."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for fenced, indented in CODE_BLOCK.findall(page.read_text(encoding="utf-8")):
            if text in (block := textwrap.dedent(fenced or indented)):
                return block
    raise AssertionError(f"no code block contains {text!r}")


def test_weights_of_a_finished_run_load_in_timm_as_documented(
    paper_recipe: Recipe, small_dataset: ImageDataset, tmp_path: Path
) -> None:
    directory, log = go(planned(tiny(paper_recipe), small_dataset), tmp_path)
    code = code_with("facts = opened.metadata()").replace("results/runs/<run>", str(directory.path))
    pixels = torch.from_numpy(small_dataset.x_test).permute(0, 3, 1, 2).float()
    names: dict[str, Any] = {"pixels": pixels}
    exec(code, names)
    labels = torch.from_numpy(small_dataset.y_test)
    result = log.record.result
    assert result is not None
    torch.testing.assert_close(
        torch.nn.functional.cross_entropy(names["logits"], labels).item(), result.test_loss, rtol=1e-5, atol=0
    )


def test_nets_are_built_as_documented() -> None:
    names: dict[str, Any] = {}
    with torch.device("meta"):
        exec(code_with('timm.create_model("preact_resnet1001")'), names)
    assert names["model"].num_classes == 100
    assert names["small"].net.depth == 29
