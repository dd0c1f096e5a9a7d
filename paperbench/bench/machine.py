"""Facts about the machine that belong beside a speed, and torch's switches.

A whitelist: no host name, user name, path or serial number is ever taken in.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from paperbench.bench.figures import Flags, Machine
from paperbench.runs.environment import environment_facts


def machine_facts(device: torch.device) -> Machine:
    """Hardware, libraries and settings that speed on the device depends on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return Machine(
        environment=environment_facts(device),
        cpus=len(affinity(0)) if affinity else os.cpu_count(),
        cpu_features=_cpu_features(),
        interop_threads=torch.get_num_interop_threads(),
        openmp={name: os.environ[name] for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT") if name in os.environ},
        memory_bytes=torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else _machine_memory(),
        gpu=nvidia_smi(device, "driver_version", "compute_cap", "power.limit", "clocks.max.sm", "clocks.max.mem"),
    )


def nvidia_smi(device: torch.device, *fields: str) -> dict[str, str] | None:
    """What nvidia-smi reports of a GPU, with units; None without a GPU or where it does not work."""
    if device.type != "cuda":
        return None
    identity = f"GPU-{torch.cuda.get_device_properties(device).uuid}"  # whatever number it has there
    command = ["nvidia-smi", f"--id={identity}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return dict(zip(fields, (value.strip() for value in done.stdout.split(",")), strict=False))


def current_flags() -> Flags:
    """The switches, read through `fp32_precision`: once that is set, reading the older `allow_tf32` can raise."""
    cudnn = torch.backends.cudnn
    convolution = cudnn.conv.fp32_precision  # type: ignore[attr-defined]
    return Flags(convolution, torch.backends.cuda.matmul.fp32_precision, cudnn.benchmark, cudnn.deterministic)


def set_flags(flags: Flags) -> None:
    """Make torch compute so."""
    torch.backends.cudnn.conv.fp32_precision = flags.convolution  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.fp32_precision = flags.product
    torch.backends.cudnn.benchmark = flags.benchmark
    torch.backends.cudnn.deterministic = flags.deterministic


@contextmanager
def restore_flags() -> Iterator[None]:
    """Leave the switches, whatever is done to them within, as they were before."""
    before = current_flags()
    try:
        yield
    finally:
        set_flags(before)


def _cpu_features() -> tuple[str, ...]:
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return ()
    return tuple(sorted(words & {"avx2", "avx512f", "avx512_bf16", "amx_bf16"}))


def _machine_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
