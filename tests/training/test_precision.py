from __future__ import annotations

import pytest
import torch

from paperbench.errors import PaperbenchError
from paperbench.training.precision import choose_device, choose_precision, set_arithmetic

CPU = torch.device("cpu")


def test_defaults_on_the_cpu() -> None:
    assert choose_precision(None, CPU) == "fp32"
    assert choose_precision("bf16", CPU) == "bf16"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [("tf32", "Use fp32 or bf16"), ("fp16", "Known: fp32, tf32, bf16"), ("half", "Known: fp32, tf32, bf16")],
)
def test_precisions_that_a_cpu_lacks_are_refused(wanted: str, message: str) -> None:
    with pytest.raises(PaperbenchError, match=message):
        choose_precision(wanted, CPU)


@pytest.mark.parametrize(("wanted", "message"), [("gpu", "Use auto, cpu, cuda"), ("mps", "runs on cpu and cuda")])
def test_unknown_devices_are_refused(wanted: str, message: str) -> None:
    with pytest.raises(PaperbenchError, match=message):
        choose_device(wanted)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_refused() -> None:
    with pytest.raises(PaperbenchError, match=r"sees no GPU here. Use `--device cpu`"):
        choose_device("cuda")
    assert choose_device("auto") == CPU


@pytest.mark.gpu
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(PaperbenchError, match="the GPUs here are cuda:0 to"):
        choose_device("cuda:99")
    assert choose_device("auto").type == "cuda"


@pytest.mark.gpu
def test_tf32_concerns_convolutions_and_no_matrix_product() -> None:
    layout = torch.channels_last
    images = torch.randn(64, 64, 32, 32, device="cuda").contiguous(memory_format=layout)
    weight = torch.randn(64, 64, 3, 3, device="cuda").contiguous(memory_format=layout)
    a = torch.randn(512, 512, device="cuda")

    def errors() -> list[float]:
        pairs = (
            (torch.nn.functional.conv2d(images, weight), torch.nn.functional.conv2d(images.double(), weight.double())),
            (a @ a, a.double() @ a.double()),
        )
        return [float((ours.double() - exact).norm() / exact.norm()) for ours, exact in pairs]

    try:
        for precision in ("fp32", "tf32", "fp32"):
            set_arithmetic(precision)
            conv, product = errors()
            assert conv > 1e-4 if precision == "tf32" else conv < 5e-5
            assert product < 5e-5
    finally:
        set_arithmetic("fp32")
