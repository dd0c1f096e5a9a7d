"""Trainings on a fake GPU: no operation mixes devices, and a captured step does nothing on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paperbench.catalogue import resolve
from paperbench.data.dataset import Dataset, ImageDataset
from paperbench.errors import RunError
from paperbench.models import ResidualNet
from paperbench.specs.recipe import Recipe
from paperbench.training.batch_norm import TrainingBatchNorm2d
from paperbench.training.engines import ENGINES
from paperbench.training.metrics import MetricAccumulator
from paperbench.training.soundness import engine_error
from tests.training.fake_gpu import CUDA, DeviceError, backward, fake_gpu
from tests.training.trainings import Runs, advance, recipe_of, state_of

NETS = {
    "preact_resnet20": 8,
    "original_resnet20": 8,
    "preact_resnet164": 11,
    "original_resnet164": 11,
    "preact_resnet110_1layer": 5,
    "resnet110_bn_after_addition": 8,
    "resnet110_relu_before_addition": 8,
    "resnet110_relu_only_preact": 8,
    "resnet110_constant_scaling": 8,
    "resnet110_exclusive_gating": 8,
    "resnet110_shortcut_only_gating": 8,
    "resnet110_conv_shortcut": 8,
    "resnet110_dropout_shortcut": 8,
}
"""Every placement, shortcut and kind of unit, at the smallest depth."""


@pytest.fixture
def runs(paper_recipe: Recipe, tiny_dataset: ImageDataset) -> Runs:
    return Runs(recipe_of(paper_recipe, 20), tiny_dataset, CUDA)


BY_DEFAULT = {
    ("preact_resnet20", "graph", "fp32"),
    ("resnet110_exclusive_gating", "eager", "bf16"),
    ("resnet110_dropout_shortcut", "graph", "bf16"),
}
WITHOUT_TF32 = ("fp32", "bf16")  # its operations are those of fp32
CASES = {("preact_resnet20", "eager", "tf32")} | {
    (net, engine, precision) for net in NETS for engine in ENGINES for precision in WITHOUT_TF32
}


@pytest.mark.parametrize(
    ("net", "engine", "precision"),
    [pytest.param(*case, marks=() if case in BY_DEFAULT else pytest.mark.full) for case in sorted(CASES)],
)
def test_step_stays_on_the_gpu(runs: Runs, net: str, engine: str, precision: str) -> None:
    with fake_gpu() as gpu:
        trainer = gpu.on(replace(runs, net=net, depth=NETS[net], precision=precision)).new(engine)
        trainer.step()
        assert {p.device for p in trainer.model.parameters()} == {CUDA}
    assert gpu.reads == 0
    assert (gpu.captured > 0) is (engine != "eager")


@pytest.mark.parametrize(
    ("engine", "precision"),
    [("graph", "bf16"), ("eager", "fp32")],
)
def test_tests_read_each_value_once_and_states_can_be_loaded(runs: Runs, engine: str, precision: str) -> None:
    with fake_gpu() as gpu:
        trainer = advance(gpu.on(replace(runs, precision=precision)).new(engine), 2)
        for evaluate, values in ((trainer.test, 4), (trainer.metrics.compute, 2), (trainer.finish, 4)):
            gpu.reads = 0
            evaluate()
            assert gpu.reads == values, "not once per batch"
        state = state_of(trainer)
        assert {name for name, value in state.items() if value.device == CUDA} >= {"window.loss", "momentum.0"}
        trainer.load_state_dict(state)
        assert trainer.iteration == 2
        trainer.step()


@pytest.mark.parametrize("engine", ENGINES)
def test_photographs_are_copied_on_a_stream_of_their_own(photo_recipe: Recipe, photos: Dataset, engine: str) -> None:
    """Their short batches, too."""
    with fake_gpu() as gpu:
        trainer = gpu.on(Runs(photo_recipe, photos, CUDA)).new(engine)
        advance(trainer, 6)
        assert gpu.reads == 0
        trainer.test()
        advance(trainer, 7)
    assert (gpu.captured > 0) is (engine != "eager")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("synchronize", "overwritten before they are copied|uses a tensor of another stream"),
        ("record_stream", "uses a tensor of another stream"),
    ],
)
def test_copies_that_race_are_refused(
    photo_recipe: Recipe, photos: Dataset, monkeypatch: pytest.MonkeyPatch, broken: str, message: str
) -> None:
    with fake_gpu() as gpu:
        if broken == "synchronize":
            stream = SimpleNamespace(synchronize=lambda: None)
            monkeypatch.setattr("paperbench.data.imagenet.feed._copies_to", lambda _: stream)
        else:
            monkeypatch.setattr(gpu, "record_stream", lambda *_: None)
        with pytest.raises(DeviceError, match=message):
            advance(Runs(photo_recipe, photos, CUDA).new("eager"), 2)


@pytest.mark.full
def test_checks_of_a_training_stay_on_the_gpu(runs: Runs) -> None:
    """On a fake GPU, all values are equal."""
    with fake_gpu() as gpu:
        assert engine_error(gpu.on(runs).new("graph")) is None


def adds_a_number_of_the_host(output: Tensor) -> Tensor:
    return output + torch.ones(())


def copies_a_value_from_the_host(output: Tensor) -> Tensor:
    return output + torch.tensor(1.0, device=CUDA)


def works_on_the_host(output: Tensor) -> Tensor:
    torch.ones(3).add_(1)
    return output


def copies_to_the_host(output: Tensor) -> Tensor:
    output.cpu()
    return output


def reads_a_value(output: Tensor) -> Tensor:
    return output * output.detach().sum().item()


def has_a_shape_that_depends_on_values(output: Tensor) -> Tensor:
    output[output > 0].sum()
    return output


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (copies_a_value_from_the_host, "a tensor is created from a value on the host"),
        (adds_a_number_of_the_host, "works on the host during the capture"),
        (works_on_the_host, "works on the host during the capture"),
        (copies_to_the_host, "works on the host during the capture"),
        (reads_a_value, "reads values on the host during the recording"),
        (has_a_shape_that_depends_on_values, "the number of places in a mask is read on the host"),
    ],
)
def test_work_of_the_host_in_a_capture_is_found(runs: Runs, mistake: Callable[[Tensor], Tensor], message: str) -> None:
    with fake_gpu() as gpu, pytest.raises(RunError, match=message):
        step_with(mistake, gpu.on(runs), "graph")


def test_reads_of_an_eager_step_are_counted(runs: Runs) -> None:
    with fake_gpu() as gpu:
        step_with(reads_a_value, runs, "eager")
    assert gpu.reads == 2  # two groups


def step_with(mistake: Callable[[Tensor], Tensor], runs: Runs, engine: str) -> None:
    """Make a step of a net whose stem's output goes through `mistake`."""
    trainer = runs.new("eager")
    trainer.model.stem.register_forward_hook(lambda _module, _inputs, output: mistake(output))
    trainer.use(engine)
    trainer.step()


def test_forgotten_moves_to_the_gpu_are_found(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    make = MetricAccumulator.__init__
    monkeypatch.setattr(MetricAccumulator, "__init__", lambda self, _: make(self, torch.device("cpu")))
    with fake_gpu(), pytest.raises(DeviceError, match="mixes devices"):
        advance(runs.new("eager"), 1)


@pytest.mark.parametrize("is_training", [True, False])
def test_batch_norm_that_uses_cudnn_is_found(runs: Runs, monkeypatch: pytest.MonkeyPatch, is_training: bool) -> None:
    def forward(self: nn.BatchNorm2d, x: Tensor) -> Tensor:
        mean, variance = self.running_mean, self.running_var
        return F.batch_norm(x, mean, variance, self.weight, self.bias, self.training, 0.1)

    monkeypatch.setattr(TrainingBatchNorm2d, "forward", forward)
    with fake_gpu():
        trainer = runs.new("eager")
        with pytest.raises(DeviceError, match="uses cuDNN"):
            trainer.step() if is_training else trainer.test()


def test_backward_pass_equals_that_of_torch() -> None:
    """On real tensors. The net has gates, projections, and a classifier whose bias is broadcast."""
    net = ResidualNet(resolve("resnet110_exclusive_gating", depth=8, shortcut_option="B")).double()
    images = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    gradients = []
    for run in (backward, torch.autograd.backward):
        net.zero_grad()
        run(net(images).square().sum(), torch.tensor(0.5, dtype=torch.float64))
        gradients.append([parameter.grad for parameter in net.parameters()])
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)
