"""paperbench run TABLE: train the missing runs of a table, then print the table."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from paperbench.cli.arguments import add_shared, chosen, plan_of, tell, warn
from paperbench.errors import PaperbenchError, count, duration, listing
from paperbench.launch import TIME_WAS_UP, Launch
from paperbench.options import DAY, Selection, TrainingOptions, arguments, command, positive_int

if TYPE_CHECKING:
    from paperbench.api import Outcome, Plan
    from paperbench.executors import Workers
    from paperbench.training.processes import Processes

SUMMARY = "train the cells of a table, then print it"
DESCRIPTION = (
    "Train the missing runs of a table, then print it beside the published numbers. Repeat the command to resume: "
    "finished runs are never trained again. Exit status: 128 + N after signal N; else 75 if work is left at the time "
    "limit; else 2 if a run failed; else 0."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "table", "--cells", "--profile", "--set", "--seeds")
    add_shared(
        parser, "--precision", "--device", "--engine", "--at-once", "--stop-at", "--max-seconds", "--incompatible"
    )
    help_ = "train even if that takes more than a day on a CPU, without measuring how long; see `paperbench plan`"
    parser.add_argument("--yes", action="store_true", help=help_)
    add_shared(parser, "--data", "--results", "--tables")
    group = parser.add_argument_group(
        "executors", "Start copies of this command, called workers, that divide its runs among them."
    )
    group.add_argument(
        "--executor",
        choices=("local", "slurm", "ray"),
        help="local: a worker for each GPU of this machine, or one on its CPU; slurm: submit jobs; ray: start tasks "
        "on a Ray cluster",
    )
    group.add_argument(
        "--workers",
        type=positive_int,
        metavar="N",
        help="number of copies (default: 1; local: as many as there are GPUs for). slurm: submits only those that "
        "are missing",
    )
    group.add_argument(
        "--gpus-per-run", type=positive_int, metavar="N", help="GPUs that train each run together (default: 1)"
    )
    group.add_argument("--partition", metavar="P", help="slurm: the partition")
    group.add_argument("--time", metavar="T", help="slurm: the time limit of a job, as for sbatch, such as 4:00:00")
    help_ = "slurm: another option of sbatch, after an equals sign, such as --sbatch=--qos=low; repeatable"
    group.add_argument("--sbatch", action="append", metavar="OPTION", help=help_)
    group.add_argument(
        "--setup", action="append", metavar="COMMAND", help="slurm: a command that the script begins with; repeatable"
    )
    group.add_argument("--print-script", action="store_true", default=None, help="slurm: only print the script")


def execute(args: argparse.Namespace) -> int:
    _check_executor(args)
    if args.executor:
        return _submit_jobs(args) if args.executor == "slurm" else _divide(args)
    launch = Launch.of(os.environ)
    return _train_together(args, launch) if launch else _train(args)


def _check_time(plan: Plan, args: argparse.Namespace, processes: int) -> None:
    """Say how long the runs take if that is long; refuse more than a day on a CPU without `--yes`."""
    if args.yes or (args.max_seconds or math.inf) <= DAY:
        return
    try:
        cost = plan.cost(only_if_long=True, processes=processes)
    except PaperbenchError as error:
        warn(f"could not measure how long this takes: {error}")
        return
    if cost and plan.device.type == "cpu" and cost.total > DAY:
        raise PaperbenchError(
            f"On this CPU, these runs take {cost} Add --yes to train them anyway, set a limit (such as --max-seconds "
            f"8h), choose fewer cells (`paperbench plan {args.table}` says which decide most), or choose a smaller "
            "profile (see `paperbench list`)."
        )
    if cost:
        tell(str(cost))


def _check_executor(args: argparse.Namespace) -> None:
    """Refuse options of an executor without it, and an executor in each of several processes."""
    slurm = ("partition", "time", "sbatch", "setup", "print_script")
    for name in ("workers", "gpus_per_run", *slurm):
        needed = "--executor slurm" if name in slurm else "--executor"
        if getattr(args, name) is not None and (not args.executor or (name in slurm and args.executor != "slurm")):
            raise PaperbenchError(f"--{name.replace('_', '-')} needs {needed}. Add it, or omit the option.")
    if args.executor and args.device not in ("auto", "cpu", "cuda"):
        raise PaperbenchError(
            f"With --executor, --device is auto, cpu or cuda, not {args.device!r}, as workers take GPUs of their own. "
            "Set CUDA_VISIBLE_DEVICES to choose those of this machine."
        )
    if args.executor and Launch.of(os.environ):
        raise PaperbenchError("--executor starts all processes itself. Give the command without torchrun or srun.")
    if args.gpus_per_run and args.device == "cpu":
        raise PaperbenchError("--gpus-per-run needs GPUs. Omit it, or --device cpu.")


def _workers(args: argparse.Namespace, device: str) -> Workers:
    """Return copies of the command without the options of executors, which start in any directory."""
    from paperbench.data.sources import data_directory
    from paperbench.executors import Workers

    selection, training = chosen(Selection, args), chosen(TrainingOptions, args)
    root = selection.root.absolute() if selection.root else None
    anywhere = replace(selection, results=selection.results.absolute(), root=root)
    training = replace(training, device=device, data=data_directory(training.data).absolute())
    # A worker never trains on the CPU of a machine whose GPU fails, nor measures how long all runs would take it.
    words = arguments("run", anywhere, training, "--yes")
    return Workers(words, selection.results, args.workers or 1, 0 if device == "cpu" else args.gpus_per_run or 1)


def _submit_jobs(args: argparse.Namespace) -> int:
    """Submit Slurm jobs, from a machine that may have no GPU."""
    from paperbench.executors.slurm import script, submit

    if args.device == "auto":
        args.device = "cuda"
    workers = _workers(args, args.device)
    text = script(workers, args.partition, args.time, args.sbatch or (), args.setup or ())
    if args.print_script:
        print(text, end="")
        return 0
    plan = plan_of(args, for_other_machine=args.device == "cuda")
    plan.check_processes(workers.processes)
    if not plan.remaining:
        print(f"All runs are finished. Next, print the report:\n{plan.compare_command}")
        return 0
    if args.device == "cpu":
        _check_time(plan, args, min(workers.count, len(plan.remaining)))
    present, new = submit(workers, text)
    ids = f": {listing(new)}" if new else ""
    print(f"Submitted {count(len(new), 'job')}{ids}.")
    if present:
        print(
            f"Already in the queue, and not changed by new options of Slurm: {count(present, 'job')} of this command."
        )
    print(f"Logs: {workers.results / 'slurm' / workers.name}-*.log")
    print(f"Progress: {command('status', chosen(Selection, args))}")
    print(f"To stop, with everything saved: scancel --name={workers.name}")
    return 0


def _divide(args: argparse.Namespace) -> int:
    """Let workers on this machine or a Ray cluster train the runs; wait for them, and print the table."""
    import torch

    from paperbench import api
    from paperbench.executors import local, ray
    from paperbench.processors import processors
    from paperbench.report.progress import Progress
    from paperbench.runs.limits import Limits

    plan = plan_of(args)
    if args.gpus_per_run and plan.device.type != "cuda":
        raise PaperbenchError(f"--gpus-per-run needs GPUs, and this plan is for {plan.device}. Omit the option.")
    workers = _workers(args, plan.device.type)
    plan.check_processes(workers.processes)
    gpus = local.ids_of_gpus(torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    if args.executor == "local" and not args.workers and workers.gpus_per_run:
        workers = replace(workers, count=max(1, len(gpus) // workers.gpus_per_run))
    if plan.device.type == "cpu":
        _check_time(plan, args, 1)  # one measured CPU is what workers divide
    limits, say = Limits(plan.training.stop_at, plan.training.max_seconds), Progress((), len(plan.runs), sys.stderr).say
    statuses, before = list[int](), _failures(plan)
    if plan.remaining and args.executor == "local":
        statuses = local.run(workers, local.environments(workers, gpus, processors()), limits, say)
    elif plan.remaining:
        statuses = ray.run(workers, limits, say)
    is_cut_short = limits.exhausted or TIME_WAS_UP in statuses
    new = dict(_failures(plan).items() - before.items())
    outcome = api.conclude(plan, [run for run in plan.runs if run.id in new], is_cut_short, limits.signal)
    has_crashed = any(status not in local.USUAL for status in statuses)
    if not is_cut_short and (has_crashed or (any(statuses) and not new)):  # nothing says what has failed
        outcome = replace(outcome, failed=outcome.remaining)
    return report_outcome(outcome, say)


def _failures(plan: Plan) -> dict[str, int]:
    """Return when runs failed that have not been resumed since."""
    from paperbench.runs.store import Store

    found = {}
    for run in plan.runs:
        with suppress(OSError):
            found[run.id] = Store(plan.selection.results).own_directory(run.id).failure_file.stat().st_mtime_ns
    return found


def _train(args: argparse.Namespace, processes: Processes | None = None) -> int:
    """Train the runs in this process, alone or as number 0 of several, and print the table."""
    from paperbench import api
    from paperbench.report.progress import Progress

    plan = processes.agreed(lambda: plan_of(args)) if processes else plan_of(args)
    _check_time(plan, args, processes.count if processes else 1)
    progress = Progress(plan.remaining, len(plan.runs), sys.stderr)
    return report_outcome(api.run(plan, progress, processes), progress.say)


def _train_together(args: argparse.Namespace, launch: Launch) -> int:
    """Train each run in all processes that torchrun or srun has started; this is one of them."""
    from paperbench import api
    from paperbench.training.device import choose_device, own_device
    from paperbench.training.processes import together

    def work(processes: Processes) -> int:
        if launch.rank == 0:
            return _train(args, processes)
        return api.assist(chosen(Selection, args), chosen(TrainingOptions, args), processes)

    args.device = own_device(args.device, launch)
    return together(launch, choose_device(args.device, warn), work)


def report_outcome(outcome: Outcome, say: Callable[[str], None]) -> int:
    """Print what is left to do, and the table; return the exit status."""
    left, failed = len(outcome.remaining), len(outcome.failed)
    for complaint in outcome.judged.left_out:
        say(f"paperbench: left out: {complaint}")
    if left and outcome.is_cut_short and not outcome.signal:  # the handler of a signal prints its own message
        say(f"paperbench: stopped after {duration(outcome.plan.training.max_seconds or 0)}; {count(left, 'run')} left.")
    elif left > failed and not outcome.is_cut_short:
        say(f"paperbench: {count(left - failed, 'run')} left to other processes.")
    if failed:
        ids = ", ".join(run.id for run in outcome.failed)
        say(f"paperbench: error: {count(failed, 'run')} failed, see above: {ids}")
    try:
        print(outcome.summary(), flush=True)
    except OSError as error:  # the exit status still reports how the training ended
        say(f"paperbench: could not print the table: {error}. `{outcome.plan.compare_command}` prints it.")
    if outcome.signal:
        return 128 + outcome.signal
    if outcome.is_cut_short and left > failed:
        return TIME_WAS_UP
    return 2 if failed else 0
