from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from paperbench.errors import PaperbenchError
from paperbench.training.device import choose_device, gpu_problem
from paperbench.training.precision import choose_precision
from tests.helpers import ROOT
from tests.training.gpus import (
    BUSY,
    GPU,
    NO_DRIVER,
    NO_ENGINE,
    NO_GPU,
    OLD_DRIVER,
    T4,
    V100,
    cuda_error,
    with_gpus,
)

CPU, FIRST, SECOND = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)
OLDER_BUILD = "install a torch for CUDA 12.6, from https://download.pytorch.org/whl/cu126."


def chosen(wanted: str) -> tuple[torch.device, list[str]]:
    """The device, and what was said about those passed over."""
    warnings: list[str] = []
    return choose_device(wanted, warnings.append), warnings


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("gpu", "Unknown device 'gpu'. Use auto, cpu, cuda or cuda:N."),
        ("mps", "not on 'mps': Apple's GPUs have no float64, in which it sums losses. Use `--device cpu`."),
        ("xpu", "paperbench runs on cpu and cuda, not on 'xpu'. Use `--device cpu`."),
    ],
)
def test_devices_of_other_kinds_are_refused(wanted: str, message: str) -> None:
    with pytest.raises(PaperbenchError) as refusal:
        choose_device(wanted, pytest.fail)
    assert message in str(refusal.value)


def test_a_gpu_that_works_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, GPU(), GPU())
    assert chosen("auto") == chosen("cuda") == (FIRST, [])
    assert chosen("cuda:1") == (SECOND, [])


def test_old_driver_is_refused_by_name_and_passed_over_by_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML lists the GPU, whatever the age of the driver."""
    with_gpus(monkeypatch, GPU(), init_error=OLD_DRIVER)
    assert torch.cuda.device_count() == 1
    problem = (
        "The NVIDIA driver on your system is too old (found version 12020). Update the NVIDIA driver or, if it "
        f"supports CUDA 12, {OLDER_BUILD}"
    )
    with pytest.raises(PaperbenchError) as refusal:
        choose_device("cuda", pytest.fail)
    assert str(refusal.value) == f"Device 'cuda': {problem}"
    assert chosen("auto") == (CPU, [f"cuda:0 is not used: {problem}"])


def test_auto_takes_the_first_card_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, V100, GPU())
    device, (warning,) = chosen("auto")
    assert device == SECOND
    assert warning.startswith("cuda:0 is not used: CUDA error: no kernel image is available for execution on the dev")


@pytest.mark.parametrize(
    ("gpu", "reason", "advice"),
    [
        (
            V100,
            "CUDA error: no kernel image is available for execution on the device",
            f"The GPU is sm_70, and torch {torch.__version__} is built for sm_75 sm_80 sm_86 sm_90 sm_100 sm_120. "
            "Install one built for this GPU: before sm_75, a torch for CUDA 12.6,",
        ),
        (
            GPU("NVIDIA GeForce GTX 1080 Ti", (6, 1), on_convolution=NO_ENGINE),
            "GET was unable to find an engine to execute this computation",
            "The GPU is sm_61,",
        ),
        (
            GPU(on_convolution=RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED")),
            "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
            "Check `nvidia-smi`, CUDA_VISIBLE_DEVICES",
        ),
        (
            GPU(on_first_tensor=BUSY),
            "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            "Another program may hold the GPU: `nvidia-smi` lists them. Stop it, or choose another GPU.",
        ),
        (
            GPU(on_first_tensor=torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")),
            "CUDA out of memory. Tried to allocate 2.00 MiB",
            "Another program may hold the GPU",
        ),
        (
            GPU(on_first_tensor=torch.cuda.DeferredCudaCallError("CUDA call failed lazily\n\nCUDA call was")),
            "CUDA call failed lazily",
            "Check `nvidia-smi`, CUDA_VISIBLE_DEVICES",
        ),
        (
            GPU(on_first_tensor=cuda_error("unspecified launch failure")),
            "CUDA error: unspecified launch failure",
            "Check `nvidia-smi`, CUDA_VISIBLE_DEVICES",
        ),
        (GPU(found=8.0), "a convolution of ones gave 8.0, not 9", "Do not trust results of this GPU."),
    ],
)
def test_what_fails_on_a_gpu_is_told_with_advice(
    monkeypatch: pytest.MonkeyPatch, gpu: GPU, reason: str, advice: str
) -> None:
    with_gpus(monkeypatch, gpu)
    problem = gpu_problem(FIRST)
    assert problem is not None
    assert problem.startswith(f"{reason}. {advice}")


@pytest.mark.parametrize(
    ("init_error", "listed", "advice"),
    [
        (NO_DRIVER, 0, "Found no NVIDIA driver on your system. Check `nvidia-smi`"),
        (NO_GPU, 1, "No CUDA GPUs are available. Check `nvidia-smi`, CUDA_VISIBLE_DEVICES and, if the GPU is split"),
    ],
)
def test_machine_without_a_usable_gpu(
    monkeypatch: pytest.MonkeyPatch, init_error: Exception, listed: int, advice: str
) -> None:
    with_gpus(monkeypatch, listed=listed, init_error=init_error)
    with pytest.raises(PaperbenchError) as refusal:
        choose_device("cuda", pytest.fail)
    assert str(refusal.value).startswith(f"Device 'cuda': {advice}")
    device, warnings = chosen("auto")
    assert (device, len(warnings)) == (CPU, listed)


def test_gpus_that_only_the_driver_lists_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With MIG, the driver lists GPUs that CUDA does not open: it opens one instance."""
    with_gpus(monkeypatch, GPU("NVIDIA A100 MIG 3g.20gb", (8, 0)), listed=2)
    assert torch.cuda.device_count() == 2
    assert gpu_problem(SECOND) == "CUDA finds only cuda:0 here. Choose another device."
    assert chosen("auto") == (FIRST, [])


def test_torch_without_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = f"torch {torch.__version__} has no CUDA. Install one that has, from https://pytorch.org."
    with_gpus(monkeypatch, GPU("AMD Instinct MI250X"))
    monkeypatch.setattr(torch.version, "cuda", None)  # torch calls AMD's GPUs "cuda"
    assert chosen("auto") == (CPU, [f"cuda:0 is not used: {problem}"])
    with_gpus(monkeypatch, GPU(), cuda=None)
    assert chosen("auto") == (CPU, [])
    assert gpu_problem(FIRST) == problem


def test_precisions_of_a_gpu_from_before_ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, T4)
    assert choose_precision(None, FIRST) == choose_precision("fp32", FIRST) == "fp32"
    for precision in ("tf32", "bf16"):
        with pytest.raises(PaperbenchError, match=f"{precision} needs an NVIDIA GPU of the Ampere .* Use fp32.$"):
            choose_precision(precision, FIRST)


def test_precisions_of_a_gpu_from_ampere_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, V100, GPU(capability=(8, 0)))
    assert choose_precision(None, SECOND) == "tf32"
    assert choose_precision("bf16", SECOND) == "bf16"


def test_arithmetic_can_be_set_where_an_image_allows_tf32_for_products() -> None:
    """NVIDIA's images set this variable, through torch's older interface."""
    program = (
        "import torch; from paperbench.training.precision import set_arithmetic\n"
        "for precision in ('tf32', 'fp32'):\n"
        "    set_arithmetic(precision)\n"
        "    print(torch.backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision())"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, "False highest\n" * 2), done.stderr


@pytest.mark.gpu
def test_gpu_of_this_machine_works_and_missing_ones_are_refused() -> None:
    assert chosen("auto")[0].type == "cuda"
    with pytest.raises(PaperbenchError, match=r"CUDA finds only cuda:0"):
        choose_device("cuda:99", pytest.fail)
