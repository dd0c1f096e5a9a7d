"""Facts about the machine that belong beside a speed.

A whitelist: no host name, user name, path or serial number is ever taken in.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from paperbench.runs.environment import environment_facts

_CLOCKS = {"sm": "clocks.sm", "memory": "clocks.mem", "sm_max": "clocks.max.sm", "memory_max": "clocks.max.mem"}


def facts(device: torch.device) -> dict[str, Any]:
    """Hardware, libraries and settings that speed on the device depends on; plain values.

    Returns:
        What records keep of the environment, and under other keys: `cpus` (that this process may use), `cpu_features`
        (bf16 instructions), `memory_bytes` (of the machine or GPU), `interop_threads`, `openmp` (the variables that say
        how its threads wait); on a GPU `capability`, `multiprocessors`, `driver`, `clocks_mhz` and `power_limit_w`, the
        last three None where nvidia-smi does not tell.
    """
    found: dict[str, Any] = asdict(environment_facts(device))
    affinity = getattr(os, "sched_getaffinity", None)
    found |= {
        "cpus": len(affinity(0)) if affinity else os.cpu_count(),
        "cpu_features": _cpu_features(),
        "interop_threads": torch.get_num_interop_threads(),
        "openmp": {name: os.environ[name] for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT") if name in os.environ},
    }
    if device.type != "cuda":
        return found | {"memory_bytes": _machine_memory()}
    properties = torch.cuda.get_device_properties(device)
    told = _nvidia_smi(device, "driver_version", "power.limit")
    return found | {
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "driver": told[0] if told else None,
        "power_limit_w": _number(told[1]) if told else None,
        "clocks_mhz": clocks(device),
    }


def clocks(device: torch.device) -> dict[str, int] | None:
    """Present and greatest clocks of a GPU in MHz; None without a GPU or where nvidia-smi does not tell."""
    if device.type != "cuda":
        return None
    told = _nvidia_smi(device, *_CLOCKS.values())
    if told is None:
        return None
    values = {name: _number(text) for name, text in zip(_CLOCKS, told, strict=True)}
    return {name: round(value) for name, value in values.items() if value is not None}


def _nvidia_smi(device: torch.device, *fields: str) -> list[str] | None:
    """What nvidia-smi says of the very device, whatever number it has there."""
    identity = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    command = ["nvidia-smi", f"--id={identity}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    values = [value.strip() for value in done.stdout.strip().split(",")]
    return values if len(values) == len(fields) else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # "[N/A]"
        return None


def _cpu_features() -> list[str]:
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return []
    return sorted(words & {"avx2", "avx512f", "avx512_bf16", "amx_bf16"})


def _machine_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
