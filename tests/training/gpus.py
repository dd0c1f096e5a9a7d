"""GPUs that do not exist: torch.cuda as it starts up on them, with torch's own functions above its C library.

The messages are those of torch 2.15's sources; `_lazy_init`, `device_count` and `get_device_properties` are its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

SITE = "http://www.nvidia.com/Download/index.aspx"
OLD_DRIVER = RuntimeError(
    "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver by downloading "
    f"and installing a new version from the URL: {SITE} Alternatively, go to: https://pytorch.org to install a PyTorch "
    "version that has been compiled with your version of the CUDA driver."
)
NO_DRIVER = RuntimeError(
    "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from "
    + SITE
)
NO_GPU = RuntimeError("No CUDA GPUs are available")
NO_ENGINE = RuntimeError("GET was unable to find an engine to execute this computation")


def cuda_error(what: str) -> RuntimeError:
    """Return the error of a CUDA call, with the lines that torch adds."""
    return torch.AcceleratorError(
        f"CUDA error: {what}\nSearch for `cudaError' in the CUDA documentation for more information.\nCUDA kernel "
        "errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
    )


NO_KERNEL = cuda_error("no kernel image is available for execution on the device")
BUSY = cuda_error("CUDA-capable device(s) is/are busy or unavailable")


@dataclass(frozen=True)
class GPU:
    """A GPU, and what goes wrong on it.

    Attributes:
        memory, free: Bytes.
        on_first_tensor, on_convolution: Errors that these raise.
        found: Every element of a convolution's result.
    """

    name: str = "NVIDIA H100 80GB HBM3"
    capability: tuple[int, int] = (9, 0)
    memory: int = 85_017_000_000
    free: int = 84_000_000_000
    on_first_tensor: Exception | None = None
    on_convolution: Exception | None = None
    found: float = 9.0


V100 = GPU("Tesla V100-SXM2-16GB", (7, 0), 16_935_000_000, 16_500_000_000, on_first_tensor=NO_KERNEL)
T4 = GPU("Tesla T4", (7, 5), 15_829_000_000, 15_600_000_000)


def with_gpus(
    monkeypatch: pytest.MonkeyPatch,
    *gpus: GPU,
    listed: int | None = None,
    init_error: Exception | None = None,
    cuda: str | None = "13.2",
) -> None:
    """Make torch.cuda start up as on a machine with these GPUs.

    Args:
        listed: GPUs that the driver (NVML) lists, if that is another number.
        init_error: What the C library raises when it is initialised.
        cuda: CUDA version of the torch build; None for one without CUDA.
    """
    current: list[GPU] = []

    def init() -> None:
        if init_error is not None:
            raise init_error

    def ones(*size: int, device: Any = None, **settings: Any) -> Tensor:
        if device is None or torch.device(device).type != "cuda":
            return true_ones(*size, device=device, **settings)
        torch.cuda._lazy_init()  # as its C++ code does
        if device.index >= len(gpus):
            raise cuda_error("invalid device ordinal")
        current[:] = [gpus[device.index]]
        return true_ones(*size) if not current[0].on_first_tensor else fail(current[0].on_first_tensor)

    def conv2d(*arguments: Any, **settings: Any) -> Tensor:
        if not current:
            return true_conv2d(*arguments, **settings)
        gpu = current.pop()
        return torch.full((1, 1, 1, 1), gpu.found) if not gpu.on_convolution else fail(gpu.on_convolution)

    def properties(index: int) -> SimpleNamespace:
        gpu = gpus[index]
        major, minor = gpu.capability
        return SimpleNamespace(name=gpu.name, major=major, minor=minor, total_memory=gpu.memory)

    true_ones, true_conv2d = torch.ones, F.conv2d
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    if cuda is None:
        for name in ("_cuda_getDeviceCount", "_cuda_init"):
            monkeypatch.delattr(torch._C, name, raising=False)
    else:
        of_c: dict[str, Callable[..., Any]] = {
            "_cuda_init": init,
            "_cuda_getDeviceCount": lambda: 0 if init_error else len(gpus),
            "_cuda_getDevice": lambda: 0,
            "_cuda_getArchFlags": lambda: "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120",
        }
        for name, function in of_c.items():
            monkeypatch.setattr(torch._C, name, function, raising=False)
    state: dict[str, Any] = {
        "_initialized": False,
        "_cached_device_count": None,
        "_cudart": object(),
        "_queued_calls": [],  # checks that only warn
        "_lazy_seed_tracker": type(torch.cuda._lazy_seed_tracker)(),  # a new one, without seeds set by other tests
    }
    for name, value in state.items():
        monkeypatch.setattr(torch.cuda, name, value, raising=False)
    monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", lambda: len(gpus) if listed is None else listed)
    monkeypatch.setattr(torch.cuda, "_get_device_properties", properties, raising=False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (gpus[device.index].free, gpus[device.index].memory))
    for name in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 0)
    monkeypatch.setattr(torch, "ones", ones)
    monkeypatch.setattr(F, "conv2d", conv2d)


def fail(error: Exception) -> Tensor:
    """Raise an error where a tensor is expected."""
    raise error
