"""The code and the machine, as a record describes them.

Only the listed values are recorded: never a host name, user name, path or environment variable.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import timm
import torch

import paperbench
from paperbench.ambient import variables_without
from paperbench.errors import PaperbenchError
from paperbench.runs.record import Code, Environment
from paperbench.training.processes import Processes
from paperbench.training.trainer import NUMERICS_VERSION
from paperbench.typed import from_json, to_json, typed

_EQUAL = ("source", "numerics", "torch", "torchvision", "timm", "numpy", "cuda")
"""What processes that share a run must have in common."""


@typed
class Surroundings:
    """The code and the machine of a process."""

    code: Code
    environment: Environment

    @classmethod
    def of(cls, device: torch.device) -> Surroundings:
        return cls(code_facts(), environment_facts(device))

    def has_code_of(self, code: Code, environment: Environment) -> bool:
        """Whether a session had the same code and libraries."""
        pairs = ((vars(self.code) | vars(self.environment)), (vars(code) | vars(environment)))
        return all(pairs[0][name] == pairs[1][name] for name in _EQUAL if name != "cuda")

    def have_equal_machines(self, processes: Processes) -> bool:
        """Whether processes have equal machines. Those with other code or packages than process 0 are an error."""
        first = from_json(Surroundings, processes.first_text(to_json(self)))

        def check() -> None:
            expected, own = (vars(one.code) | vars(one.environment) for one in (first, self))
            different = [name for name in _EQUAL if own[name] != expected[name]]
            if found := [f"{name} {own[name]} (process 0: {expected[name]})" for name in different]:
                raise PaperbenchError(f"it has {', '.join(found)}. Start the same code and packages on all machines.")

        processes.agreed(check)
        return not any(processes.any_of(self.environment != first.environment))


@cache  # files may change while a process runs, but the code that it loaded does not
def code_facts() -> Code:
    """Return the version of the loaded code."""
    package = Path(paperbench.__file__).resolve().parent
    return Code(paperbench.__version__, commit_of(package.parent), source_digest(package), NUMERICS_VERSION)


def source_digest(package: Path) -> str:
    """Return 16 hex digits of a sha256 over the names and contents of the Python files in a directory."""
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(f"{file.relative_to(package).as_posix()}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def environment_facts(device: torch.device) -> Environment:
    """Return the libraries and hardware that a run on the device depends on."""
    on_gpu = device.type == "cuda"
    return Environment(
        python=platform.python_version(),
        torch=str(torch.__version__),  # torch's own string class cannot be stored in a checkpoint
        torchvision=version("torchvision"),
        timm=timm.__version__,  # of what was imported, which need not be what is installed
        numpy=np.__version__,
        cuda=torch.version.cuda if on_gpu else None,
        cudnn=cudnn_version() if on_gpu else None,
        system=f"{platform.system()} {platform.machine()}",
        device=torch.cuda.get_device_name(device) if on_gpu else _processor(),
        threads=torch.get_num_threads(),
    )


def cudnn_version() -> str | None:
    """Return cuDNN's version as one number; None if torch was built without it.

    torch's own function raises an error if any GPU of the machine, in use or not, is too old for this cuDNN.
    """
    return str(torch._C._cudnn.getVersionInt()) if torch.backends.cudnn.is_available() else None


def _processor() -> str:
    """Return the name of the CPU, which may be only that of the maker, with its model numbers and its instructions."""
    facts: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            facts.setdefault(key.strip(), value.strip())
    keys = ("cpu family", "model", "stepping", "CPU implementer", "CPU variant", "CPU part", "CPU revision")
    numbers = "-".join(facts[key] for key in keys if key in facts)
    name = facts.get("model name") or platform.processor() or platform.machine()
    return f"{name} ({' '.join(filter(None, (numbers, torch.backends.cpu.get_cpu_capability())))})"


def commit_of(top: Path) -> str | None:
    """Return the commit of a source checkout, with "+changes" if code or experiments differ; None outside one."""
    if not (top / ".git").exists():
        return None
    own = variables_without("GIT_")  # a hook's name another repository
    git = partial(subprocess.check_output, cwd=top, stderr=subprocess.DEVNULL, text=True, env=own)
    try:
        commit = git(["git", "rev-parse", "HEAD"]).strip()
        changes = git(["git", "status", "--porcelain", "--untracked-files", "--", "paperbench", "experiments"])
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+changes" if changes else "")
