from __future__ import annotations

import pytest
import torch

from paperbench.errors import PaperbenchError
from paperbench.training.precision import choose_precision, set_arithmetic

CPU = torch.device("cpu")


def test_default_precision_on_a_cpu() -> None:
    assert choose_precision(None, CPU) == "fp32"
    assert choose_precision("bf16", CPU) == "bf16"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("tf32", "Use fp32 or bf16"),
        ("fp16", "Did you mean .bf16."),
        ("half", "Known: bf16, fp32, tf32"),
        ("bf16-fp32-stream", "was removed, and its results stay readable. Use bf16"),
    ],
)
def test_unavailable_precisions_are_refused(wanted: str, message: str) -> None:
    with pytest.raises(PaperbenchError, match=message):
        choose_precision(wanted, CPU)


@pytest.mark.gpu
def test_tf32_affects_only_convolutions() -> None:
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
