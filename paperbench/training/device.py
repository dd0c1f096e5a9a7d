"""The device of a training: a CPU, or an NVIDIA GPU on which a small convolution has been tried."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
import torch.nn.functional as F

from paperbench.errors import PaperbenchError, one_line
from paperbench.launch import Launch

_OLDER_BUILD = "a torch for CUDA 12.6, from https://download.pytorch.org/whl/cu126"
"""It runs with drivers for any CUDA 12, and has kernels for GPUs from sm_50 on; later ones begin with sm_75."""

OTHER_MACHINES_GPU = torch.device("cuda")
"""A GPU of another machine, which has TF32; those of this one have numbers."""

CUDA_ERRORS = (RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError)
"""What torch raises if a GPU, or the number of one, cannot be used."""


def own_device(wanted: str, launch: Launch | None) -> str:
    """Return the name of the device of one of several processes: each has the GPU of its number on its machine."""
    if launch is None or not torch.cuda.device_count() or wanted not in ("auto", "cuda"):
        if launch and wanted.startswith("cuda:"):
            raise PaperbenchError(f"Several processes cannot share {wanted}. With `--device cuda`, each takes its own.")
        return wanted
    return f"cuda:{launch.local_rank}"


def choose_device(wanted: str, warn: Callable[[str], None], *, allow_other_machine: bool = False) -> torch.device:
    """Return the device by name. "auto" is the first GPU that works, else the CPU.

    Args:
        warn: Called with a sentence for each GPU that "auto" passes over.
        allow_other_machine: Whether "cuda" is `OTHER_MACHINES_GPU` on a machine without GPUs.
    """
    if wanted == "auto":
        for index in range(torch.cuda.device_count()):
            device = torch.device("cuda", index)
            if not (problem := gpu_problem(device)):
                return device
            warn(f"{device} is not used: {problem}")
        return torch.device("cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise PaperbenchError(f"Unknown device {wanted!r}. Use auto, cpu, cuda or cuda:N.") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        why = ": Apple's GPUs have no float64, in which it sums losses" if device.type == "mps" else ""
        raise PaperbenchError(f"paperbench runs on cpu and cuda, not on {wanted!r}{why}. Use `--device cpu`.")
    if allow_other_machine and device == OTHER_MACHINES_GPU and not torch.cuda.device_count():
        return OTHER_MACHINES_GPU
    device = torch.device("cuda", device.index or 0)
    if problem := gpu_problem(device):
        raise PaperbenchError(f"Device {wanted!r}: {problem}")
    return device


def gpu_problem(device: torch.device) -> str | None:
    """Return why torch cannot compute on a GPU, and what to do about it; None if a small convolution works there.

    Trying it finds what no list of properties shows: an old driver, a busy GPU, a library that fails to load.
    """
    if torch.version.cuda is None:  # also if it is built for AMD's GPUs, which it calls "cuda"
        return f"torch {torch.__version__} has no CUDA. Install one that has, from https://pytorch.org."
    try:
        torch.cuda.init()
        count = torch._C._cuda_getDeviceCount()  # torch.cuda.device_count may be the driver's, which lists more
        if device.index >= count:
            last = f" to cuda:{count - 1}" if count > 1 else ""
            return f"CUDA finds only cuda:0{last} here. Choose another device."
        ones = torch.ones(1, 1, 3, 3, device=device)
        found = F.conv2d(ones, ones).item()
    except CUDA_ERRORS as error:
        reason = one_line(re.split(r"\n|\. Please ", str(error).strip())[0][:300].rstrip(". "))
        return f"{reason}. {_advice(reason.lower(), device)}"
    return None if found == 9 else f"a convolution of ones gave {found}, not 9. Do not trust results of this GPU."


def _advice(reason: str, device: torch.device) -> str:
    """Return what to do about the failure of a first convolution, given the reason in lower case."""
    if "too old" in reason or "driver version is insufficient" in reason:
        return f"Update the NVIDIA driver or, if it supports CUDA 12, install {_OLDER_BUILD}."
    if "out of memory" in reason or "busy" in reason:
        return "Another program may hold the GPU: `nvidia-smi` lists them. Stop it, or choose another GPU."
    if torch.cuda.is_initialized() and (
        (capability := torch.cuda.get_device_capability(device)) < (7, 5) or "no kernel image" in reason
    ):
        built_for = " ".join(torch.cuda.get_arch_list())
        return (
            f"The GPU is sm_{capability[0]}{capability[1]}, and torch {torch.__version__} is built for {built_for}. "
            f"Install one built for this GPU: before sm_75, {_OLDER_BUILD}."
        )
    return (
        "Check `nvidia-smi`, CUDA_VISIBLE_DEVICES and, if the GPU is split, its MIG instances; or use `--device cpu`."
    )
