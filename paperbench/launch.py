"""What a launcher of several processes, torchrun or srun, tells this one, and an exit status for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from paperbench.errors import PaperbenchError

TIME_WAS_UP = 75
"""Exit status when work is left at a time limit: EX_TEMPFAIL of sysexits.h, "try again later"."""


@dataclass(frozen=True)
class Launch:
    """This process among those that a launcher started.

    Attributes:
        rank, count: Number of this process, and of all.
        local_rank: Number of this process on its machine.
        address, port: Where process 0 can be reached.
        name: Tells this launch from others at that port.
    """

    rank: int
    count: int
    local_rank: int
    address: str
    port: int
    name: str = "paperbench"

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Launch | None:
        """Return what torchrun, or srun, says about this process; None if it was started alone."""
        try:
            if int(environment.get("WORLD_SIZE", 1)) > 1 and "RANK" in environment:
                if int(environment.get("TORCHELASTIC_MAX_RESTARTS", 0)):
                    raise PaperbenchError(
                        "torchrun's --max-restarts is not supported, as restarted processes do not find one another. "
                        "Omit it: the same command resumes. `--executor local` restarts processes that crash."
                    )
                rank, number, local = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
                return cls(rank, number, local, environment["MASTER_ADDR"], int(environment["MASTER_PORT"]))
            if int(environment.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
                names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_JOB_ID", "SLURM_STEP_ID")
                rank, number, local, job, step = (int(environment[name]) for name in names)
                port = 20_000 + (31 * job + step) % 10_000  # not among those that systems hand out
                address = environment.get("MASTER_ADDR") or first_host(environment["SLURM_STEP_NODELIST"])
                return cls(rank, number, local, address, int(environment.get("MASTER_PORT") or port), f"{job}.{step}")
        except (KeyError, ValueError) as error:
            raise PaperbenchError(
                f"The environment of a launcher of several processes is incomplete ({error}). Start them with "
                "`torchrun --nproc-per-node N -m paperbench ...` or `srun`; to train in one process, unset WORLD_SIZE."
            ) from error
        return None


def first_host(nodes: str) -> str:
    """Return the first host of a list as Slurm writes it: "gpu[03-05,9],login" gives "gpu03"."""
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", nodes).partition(",")[0]
