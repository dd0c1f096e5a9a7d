"""The executor "slurm": jobs that each run a copy of the command, and are requeued until nothing is left."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Sequence

from paperbench.ambient import variables_without
from paperbench.errors import PaperbenchError, count, one_line, printable
from paperbench.executors import Workers
from paperbench.files import report_write_errors
from paperbench.runs.store import Store

_SECONDS_TO_COMPLETE = 60.0
"""How long a job that ends is waited for: twice Slurm's usual `KillWait`."""
_JOB = re.compile(r"^ *(\d+(?:[_+][\d[][^\s;]*)?)(?:;\S+)? *$", re.MULTILINE)
"""A line with the id of a job, of an array's job or of a part of a job, and maybe a cluster."""

_COUNT_STARTS = r"""
# A job starts again after a time limit, a preemption or the loss of its node. Each start adds a line to a file, until
# the job saves a record, which makes the other file the newer one: the count begins anew.
starts=$results/slurm/$SLURM_JOB_ID.starts
export PAPERBENCH_SAVED=$results/slurm/$SLURM_JOB_ID.saved
if [ "$PAPERBENCH_SAVED" -nt "$starts" ]; then
    rm -f "$starts"
fi
date >> "$starts"
if [ "$(wc -l < "$starts")" -gt 4 ]; then
    echo "paperbench: error: this job has saved nothing in 4 starts, so it ends. See above why, then submit it again."
    rm -f "$starts" "$PAPERBENCH_SAVED"
    exit 1
fi
# srun drops this option of sbatch.
if [ -n "${SLURM_CPUS_PER_TASK-}" ]; then
    export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
fi
trap : TERM USR1  # the processes stop; this script goes on after srun
again() {  # a command of Slurm, which may be too busy to answer
    for _ in 1 2 3 4 5; do "$@" && return; sleep 10; done
    echo "paperbench: error: $1 keeps failing, so this job ends. Submit it again." >&2
    return 1
}
"""

_REQUEUE = r"""
status=$?
# Work is left after 75 (--max-seconds) and after a signal: USR1 as the time limit is near, TERM in a preemption, KILL
# for the memory. If the job is not "RUNNING" any more, it was cancelled, or Slurm starts it again by itself.
read -r state restarts < <(again squeue --noheader --jobs="$SLURM_JOB_ID" --Format=State,RestartCnt |
    grep -Ex ' *[A-Z_]+ +[0-9]+ *')  # no banner
case "$state $status" in
"RUNNING 75" | "RUNNING 1"[2-9][0-9]) again scontrol requeue "$SLURM_JOB_ID" && exit ;;
esac
if [ "$restarts" = "${SLURM_RESTART_COUNT:-0}" ]; then  # nothing has requeued it
    rm -f "$starts" "$PAPERBENCH_SAVED"
fi
exit $status
"""


def script(
    workers: Workers, partition: str | None, limit: str | None, options: Sequence[str] = (), setup: Sequence[str] = ()
) -> str:
    """Return the script of a job, with further options of sbatch, and with commands to begin with."""
    for option in options:
        if not option.startswith("-"):
            raise PaperbenchError(
                f"--sbatch takes an option with its dashes, such as `--sbatch=--qos=low`, not {option!r}."
            )
    results = workers.results.absolute()
    log = f"{results}/slurm/".replace("%", "%%") + "%x-%j.log"
    wanted = [
        *([f"--partition={shlex.quote(partition)}"] if partition else []),
        *([f"--time={shlex.quote(limit)}"] if limit else []),
        f"--nodes=1 --ntasks={workers.processes}",
        *([f"--gres=gpu:{workers.gpus_per_run}"] if workers.gpus_per_run else []),
        "--requeue --open-mode=append --signal=USR1@180",
        f"--output={shlex.quote(log)}",
        *options,
        f"--job-name={workers.name}",  # last, as jobs are counted by it
    ]
    if bad := next((option for option in wanted if one_line(option) != option), None):
        raise PaperbenchError(f"sbatch cannot be given {bad!r}: remove line breaks and other control characters.")
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in wanted), ""]
    lines += [f"results={shlex.quote(str(results))}  # results/slurm must exist", *_COUNT_STARTS.strip().splitlines()]
    # Processes notice within 60 seconds that one of theirs has died. To kill them sooner would hide its exit status.
    # After `sbatch --export=NONE`, srun would hide this script's variables, too.
    srun = "srun --export=ALL --kill-on-bad-exit=0 --wait=120"
    # For these processes alone, whatever the lines above set: Slurm's commands may be programs in another Python.
    imports = [f"{name}={value}" for name, value in workers.imports.items()]
    if setup:
        lines += ["", *setup, "set +e  # the lines above may have set it"]
    lines += ["", f"{srun} {shlex.join(('env', *imports, *workers.command))}"]
    return "\n".join(lines) + _REQUEUE


def submit(workers: Workers, text: str) -> tuple[int, list[str]]:
    """Submit the jobs that are missing; return how many wait or run already, and the ids of the new ones."""
    logs, lease, new = workers.results / "slurm", Store(workers.results).lease("slurm"), list[str]()
    with report_write_errors(logs):
        logs.mkdir(parents=True, exist_ok=True)
    while not lease.acquire():  # another process is submitting
        time.sleep(0.2)
    try:
        end = time.monotonic() + _SECONDS_TO_COMPLETE
        while _jobs(workers, "COMPLETING") and time.monotonic() < end:
            time.sleep(1)  # cancelled, or requeued and pending soon: the state does not tell
        present = _jobs(workers, "PENDING,CONFIGURING,RUNNING,SUSPENDED")
        for _ in range(workers.count - len(present)):
            if not (ids := _JOB.findall(said := _slurm("sbatch", "--parsable", stdin=text))):
                raise PaperbenchError(f"sbatch printed no line with a job's id: {said.strip()!r}. See `squeue --me`.")
            new.append(ids[-1])
    except PaperbenchError as error:
        raise PaperbenchError(f"{error} {count(len(new), 'job')} submitted before that.") if new else error from None
    finally:
        lease.release()
    return len(present), new


def _jobs(workers: Workers, states: str) -> list[str]:
    """Return the ids of the workers' jobs in some states."""
    found = _slurm("squeue", "--me", "--noheader", f"--name={workers.name}", f"--states={states}", "--format=%i")
    return _JOB.findall(found)


def _slurm(*command: str, stdin: str = "") -> str:
    """Return what a command of Slurm prints. An allocation around this process does not influence it."""
    try:
        done = subprocess.run(  # noqa: S603  (no words of strangers)
            command,
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            env=variables_without("SLURM_", "SLURM_CONF"),
        )
    except FileNotFoundError as error:
        raise PaperbenchError(
            f"{command[0]} is not on the PATH. Give this command where jobs are submitted, on a login node; "
            "--print-script prints the script anywhere."
        ) from error
    if done.returncode:
        said = printable(done.stderr.strip()) or f"exit status {done.returncode}"
        change = "Change --partition, --time or --sbatch, or try" if stdin else "Try"
        raise PaperbenchError(f"{command[0]} failed: {said}\n{change} again later.")
    return done.stdout
