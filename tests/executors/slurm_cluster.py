"""A Slurm cluster of one machine, from the distribution's packages, in a scratch folder and on free ports."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.training.together import free_port

SECONDS = 240.0

# The queue is looked at every second. Jobs in the partition "high" preempt those in "low", after 5 seconds. Credentials
# that expire soon let a requeued job start soon.
_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5,socket={folder}/munge.socket
SlurmctldPort={control_port}
SlurmdPort={node_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
ReturnToService=1
JobRequeue=1
KillWait=10
BatchStartTimeout=1
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2 Gres=gpu:2 State=UNKNOWN
PartitionName=low Nodes=localhost Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
PartitionName=high Nodes=localhost MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def why_not() -> str | None:
    """Why no cluster can be started here, if so."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", "srun") if not shutil.which(name)]
    if missing:
        return f"needs {', '.join(missing)}: apt-get install slurmctld slurmd slurm-client munge"
    return None if os.geteuid() == 0 else "needs root, as slurmd does"


class Cluster:
    """A running cluster; `cluster` starts it.

    Attributes:
        environment: With it, Slurm's commands reach this cluster, and jobs find the package.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        python = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.environment = inherited | python | {"SLURM_CONF": str(folder / "slurm.conf")}

    def start(self) -> None:
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        ports = {"control_port": free_port(), "node_port": free_port()}
        host = os.uname().nodename.partition(".")[0]
        text = _CONFIGURATION.format(folder=self.folder, host=host, **ports)
        (self.folder / "slurm.conf").write_text(text)
        gpus = "".join(
            f"NodeName=localhost Name=gpu File=/dev/{file}\n" for file in ("null", "zero")
        )  # any file passes
        (self.folder / "gres.conf").write_text(gpus)
        files = {"key-file": key, "socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log"}
        munge = [f"--{name}={self.folder / file}" for name, file in (files | {"seed-file": "munge.seed"}).items()]
        self._start("munged", "--foreground", "--force", *munge)
        self.wait_for(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._start("slurmctld", "-D")
        self.start_node()

    def start_node(self) -> None:
        """Start slurmd, and wait until the node takes jobs."""
        self._start("slurmd", "-D")
        self.wait_for(lambda: self.node_state() in ("idle", "mix"), "slurmd")

    def _start(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.out").open("ab") as output:
            subprocess.Popen(command, stdout=output, stderr=output, env=self.environment, start_new_session=True)

    def run(self, *command: str, stdin: str = "") -> str:
        """Run a command with the cluster's environment, and return what it prints."""
        done = subprocess.run(
            command, env=self.environment, input=stdin, capture_output=True, text=True, timeout=SECONDS, cwd=self.folder
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def node_state(self) -> str:
        with suppress(AssertionError):  # slurmctld is starting
            return self.run("sinfo", "--noheader", "--format=%t", "--partition=low").strip()
        return ""

    def state(self, job: int) -> str:
        """Return a job's state, such as "RUNNING"."""
        return self.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()

    def restarts(self, job: int) -> int:
        """Return how often a job has been requeued."""
        (found,) = re.findall(r"Restarts=(\d+)", self.run("scontrol", "show", "job", str(job)))
        return int(found)

    def wait_for(self, condition: Callable[[], bool], what: str, results: Path | None = None) -> None:
        end = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < end, f"waited in vain for {what}\n{self.log(results)}"
            time.sleep(0.1)

    def log(self, results: Path | None = None) -> str:
        """Return the ends of the logs of the daemons, and of the jobs on a results directory."""
        logs = sorted(self.folder.glob("*.log")) + (sorted(results.glob("slurm/*.log")) if results else [])
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)

    def processes(self, word: str = "") -> list[int]:
        """Return the ids of the processes of this cluster, daemons and jobs, whose command line has a word."""
        mark, found = f"SLURM_CONF={self.folder / 'slurm.conf'}\0".encode(), []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (process / "environ").read_bytes() and word.encode() in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
        return found

    def kill(self, word: str = "") -> None:
        """Kill processes of this cluster, until none is left."""
        while found := self.processes(word):
            for process in found:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.05)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start a cluster, and end it with all its jobs."""
    started = Cluster(folder)
    try:
        try:
            started.start()
        except AssertionError as error:
            pytest.skip(f"Slurm does not start here: {error}")
        yield started
    finally:
        started.kill()
