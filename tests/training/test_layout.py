"""The memory layout of a training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paperbench.catalogue import resolve
from paperbench.data.dataset import ImageDataset
from paperbench.specs.recipe import Recipe
from paperbench.training.trainer import Trainer

CPU = torch.device("cpu")
NET = resolve("resnet110_conv_shortcut", depth=8)
COMPUTE = {"convolution", "convolution_backward", "native_batch_norm", "native_batch_norm_backward", "relu"}


class _Layouts(TorchDispatchMode):
    """Records the results of each operator whose layout is wrong, and counts copies of images."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.operators: set[str] = set()
        self.image_copies = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor) and tensor.dim() == 4 and name in COMPUTE:
                self.operators.add(name)
                self.wrong += (
                    [] if tensor.is_contiguous(memory_format=torch.channels_last) else [f"{name} {tensor.shape}"]
                )
        if name in ("clone", "copy_", "_to_copy") and output.dim() == 4 and output.shape[1] == 3:
            self.image_copies += 1
        return output


def test_step_and_tests_keep_the_layout_throughout(recipe: Recipe, tiny_dataset: ImageDataset) -> None:
    """Forward, backward and update, with at most one copy of the images; the tests, too."""
    trainer = Trainer(NET, recipe, tiny_dataset, 0, "fp32", CPU)
    with trainer.stepping_eagerly(), _Layouts() as step:
        trainer.step()
    with _Layouts() as test:
        trainer.finish()
    assert step.operators == COMPUTE
    assert {"convolution", "native_batch_norm"} <= test.operators
    assert step.wrong == test.wrong == []
    assert step.image_copies <= 1
