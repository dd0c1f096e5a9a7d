"""The device of a training: a CPU, or an NVIDIA GPU on which a small convolution has been tried."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from paperbench.errors import PaperbenchError, one_line, shorten

UNSUPPORTED = {
    "mps": "Apple's GPUs have no float64, in which paperbench sums losses, and torch no deterministic mode for them",
}
"""Devices that torch knows and paperbench does not, and why not."""


def choose_device(wanted: str, warn: Callable[[str], None]) -> torch.device:
    """Return the device by name. "auto" is the first GPU that works, else the CPU.

    Args:
        warn: Called with a sentence for each GPU that "auto" passes over.

    Raises:
        PaperbenchError: The device does not exist or does not work.
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
        why = UNSUPPORTED.get(device.type)
        raise PaperbenchError(
            f"paperbench runs on cpu and cuda, not on {wanted!r}{f': {why}' if why else ''}. Use `--device cpu`."
        )
    device = torch.device("cuda", device.index or 0)
    if problem := gpu_problem(device):
        raise PaperbenchError(f"Device {wanted!r}: {problem}")
    return device


def gpu_problem(device: torch.device) -> str | None:
    """Return why torch cannot compute on a GPU, and what to do about it; None if a small convolution works there.

    Trying it finds what no list of properties shows: an old driver, a busy GPU, a library that fails to load.
    """
    count, build = torch.cuda.device_count(), f"torch {torch.__version__}"
    if torch.version.cuda is None:
        return f"{build} was built without CUDA. Install a build with CUDA from pytorch.org, or use `--device cpu`."
    if count == 0:
        return f"{build} sees no GPU here. Check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or use `--device cpu`."
    if device.index >= count:
        return f"the GPUs here are cuda:0 to cuda:{count - 1}."
    try:
        ones = torch.ones(1, 1, 3, 3, device=device)
        found = F.conv2d(ones, ones).item()
    except (RuntimeError, AssertionError) as error:  # torch asserts that an index exists
        reason = one_line(shorten(str(error).strip().split("\n")[0]))
        return f"{reason.rstrip('.')}. {_advice(reason, device)}"
    return None if found == 9 else f"a convolution of ones gave {found}, not 9. Do not trust results of this GPU."


def _advice(reason: str, device: torch.device) -> str:
    """Return what to do about the failure of a first convolution."""
    lowered = reason.lower()
    if "driver" in lowered:
        return f"Update the NVIDIA driver, or install a torch built for a CUDA older than {torch.version.cuda}."
    if "no kernel image" in lowered or "not supported" in lowered or "incompatible with" in lowered:
        major, minor = torch.cuda.get_device_capability(device)
        built_for = " ".join(torch.cuda.get_arch_list())
        return (
            f"The GPU is sm_{major}{minor}; torch {torch.__version__} holds kernels for {built_for}. Install a torch "
            "built for it, often one for an older CUDA."
        )
    if "out of memory" in lowered or "busy" in lowered or "unavailable" in lowered:
        return "Another program may hold the GPU; `nvidia-smi` lists them. Stop it, or choose another GPU."
    if "ordinal" in lowered or "device id" in lowered:
        return (
            "The driver lists more GPUs than CUDA opens, as with MIG, where a process gets one instance: name it in "
            "CUDA_VISIBLE_DEVICES and use `--device cuda:0`."
        )
    return "Check `nvidia-smi`, or use `--device cpu`."
