"""The memory layout of a training, which no result depends on beyond rounding."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paperbench.catalogue import resolve
from paperbench.data.dataset import ImageDataset
from paperbench.specs.recipe import Recipe
from paperbench.training import compiling
from paperbench.training import trainer as trainer_module
from paperbench.training.engine import ENGINES, EngineName
from paperbench.training.precision import PRECISIONS, memory_layout
from paperbench.training.trainer import Trainer
from tests.training.tape import Tape
from tests.training.trainings import advance, differences, state_of

CPU, GPU = torch.device("cpu"), torch.device("cuda")
NET = resolve("resnet110_conv_shortcut", depth=8)
COMPUTE = {"convolution", "convolution_backward", "native_batch_norm", "native_batch_norm_backward", "relu"}


def test_only_fp32_on_a_gpu_is_contiguous() -> None:
    assert {memory_layout(p, CPU) for p in PRECISIONS} == {torch.channels_last}
    assert [p for p in PRECISIONS if memory_layout(p, GPU) == torch.contiguous_format] == ["fp32"]


class _Layouts(TorchDispatchMode):
    """Records the results of each operator whose layout is wrong, and counts copies of images."""

    def __init__(self, layout: torch.memory_format) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.operators: set[str] = set()
        self.image_copies = 0
        self._layout = layout

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor) and tensor.dim() == 4 and name in COMPUTE:
                self.operators.add(name)
                self.wrong += [] if tensor.is_contiguous(memory_format=self._layout) else [f"{name} {tensor.shape}"]
        if name in ("clone", "copy_", "_to_copy") and output.dim() == 4 and output.shape[1] == 3:
            self.image_copies += 1
        return output


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_step_and_tests_keep_the_layout_throughout(
    recipe: Recipe, tiny_dataset: ImageDataset, layout: torch.memory_format
) -> None:
    """Forward, backward and update, with at most one copy of the images; the tests, too."""
    trainer = Trainer(NET, recipe, tiny_dataset, 0, "fp32", CPU, layout=layout)
    with trainer.stepping_eagerly(), _Layouts(layout) as step:
        trainer.step()
    with _Layouts(layout) as test:
        trainer.finish()
    assert step.operators == COMPUTE
    assert {"convolution", "native_batch_norm"} <= test.operators
    assert step.wrong == test.wrong == []
    assert step.image_copies <= 1


def test_engines_agree_in_the_contiguous_layout(
    recipe: Recipe, tiny_dataset: ImageDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "CudaCapture", lambda device: Tape())
    monkeypatch.setattr(trainer_module, "compile_units", partial(compiling.compile_units, backend="aot_eager"))

    def trained(engine: EngineName, layout: torch.memory_format) -> Trainer:
        return advance(Trainer(NET, recipe, tiny_dataset, 0, "fp32", CPU, engine, layout), 3)

    eager, graph, compiled = (trained(engine, torch.contiguous_format) for engine in ENGINES)
    assert differences(state_of(graph), state_of(eager)) == []
    losses = [trainer.training_metrics().loss for trainer in (compiled, trained("eager", torch.channels_last))]
    assert losses == pytest.approx([eager.training_metrics().loss] * 2, rel=1e-4)
