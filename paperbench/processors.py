"""How many processors this process may use."""

from __future__ import annotations

import math
import os
import re
from contextlib import suppress
from pathlib import Path

_OWN, _TREE = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def processors(own: Path = _OWN, tree: Path = _TREE) -> int:
    """Return the number of those on which this process may run, or its cgroups' quota, if that is less.

    If torchrun started several processes on this machine, return this one's part.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable, quota(own, tree) or usable) // int(os.environ.get("LOCAL_WORLD_SIZE") or 1))


def quota(own: Path = _OWN, tree: Path = _TREE) -> int | None:
    """Return the smallest quota of this process's cgroups and those above them, rounded up; None if there is none.

    Args:
        own: File that names them.
        tree: Where cgroups are mounted: of version 2 there, of version 1 in `cpu`.
    """
    found = []
    for cpu, path in re.findall(r"^\d+:(?:|(?:.*,)?(cpu)(?:,.*)?):/(.*)$", _text(own), re.MULTILINE):
        for place in (Path(path), *Path(path).parents):  # a container may not see its own, but what is mounted above it
            files = (tree / cpu / place / name for name in ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"))
            if values := re.fullmatch(r"\s*([1-9]\d*)\s+([1-9]\d*)\s*", " ".join(map(_text, files))):
                found.append(math.ceil(int(values[1]) / int(values[2])))
    return min(found, default=None)


def _text(file: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return file.read_text()
    return ""
