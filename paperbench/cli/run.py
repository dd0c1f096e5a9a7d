"""paperbench run TABLE: train the missing runs of a table, then print the table."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from paperbench.cli.arguments import (
    DAY,
    add_shared,
    command_for,
    number_of_runs,
    plan_of,
    positive_int,
    say_what_is_skipped,
    seconds,
    warn,
)
from paperbench.errors import PaperbenchError, count, duration, listing
from paperbench.launch import TIME_WAS_UP, Launch

if TYPE_CHECKING:
    from paperbench.api import Outcome, Plan
    from paperbench.training.processes import Processes

SUMMARY = "train the cells of a table, then print it"
DESCRIPTION = (
    "Train the missing runs of a table, then print it beside the published numbers. Repeat the command to resume: "
    "finished runs are never trained again. Exit status: 0; 2 if a run failed; 75 if work is left at the time limit; "
    "128 + N after signal N."
)


def add_arguments(parser: argparse.ArgumentParser, *, with_executors: bool = True) -> None:
    add_shared(parser, "table", "--cells", "--profile")
    parser.add_argument(
        "--seeds", type=number_of_runs, metavar="N", help="runs per cell (default: the table's, or the profile's)"
    )
    add_shared(parser, "--precision", "--device", "--engine", "--stop-at")
    parser.add_argument(
        "--max-seconds",
        type=seconds,
        metavar="T",
        help="pause after this time, such as 1h30m or 90 (seconds); loading the data and the final test of a run are "
        "not counted",
    )
    parser.add_argument(
        "--incompatible",
        choices=("refuse", "restart", "continue"),
        default="refuse",
        help="what to do with a run of another numerics version or major version of torch, or without a readable "
        "checkpoint: refuse it (default); restart it and set its old files aside; continue it if possible and mark it "
        "as mixed",
    )
    parser.add_argument(
        "--yes", action="store_true", help="train on a CPU even if that takes more than a day; see `paperbench plan`"
    )
    add_shared(parser, "--data", "--results", "--tables")
    if with_executors:
        _add_executor(parser)


def _add_executor(parser: argparse.ArgumentParser) -> None:
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
    group.add_argument(
        "--sbatch", action="append", metavar="=OPTION", help="slurm: another option of sbatch; repeatable"
    )
    group.add_argument(
        "--setup", action="append", metavar="COMMAND", help="slurm: a command that the script begins with; repeatable"
    )
    group.add_argument("--print-script", action="store_true", default=None, help="slurm: only print the script")


def _check_time(plan: Plan, args: argparse.Namespace, processes: int) -> None:
    """Say how long the runs take if that is long; refuse more than a day on a CPU without `--yes`."""
    if (args.max_seconds or math.inf) <= DAY:
        return
    try:
        cost = plan.cost(only_if_long=True, processes=processes)
    except PaperbenchError as error:
        warn(f"could not measure how long this takes: {error}")
        return
    if cost and plan.device.type == "cpu" and cost.total > DAY and not args.yes:
        raise PaperbenchError(
            f"On this CPU, these runs take {cost} Add --yes to train them anyway, set a limit (such as --max-seconds "
            f"8h), choose runs that fit into a time (`paperbench plan {args.table} --budget 8h`), or choose a smaller "
            "profile (see `paperbench list`)."
        )
    if cost:
        print(f"paperbench: {cost}", file=sys.stderr)


def _check_executor(args: argparse.Namespace) -> None:
    """Refuse options of an executor without it."""
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
    if args.gpus_per_run and args.device == "cpu":
        raise PaperbenchError("--gpus-per-run needs GPUs. Omit it, or --device cpu.")


def _start_workers(args: argparse.Namespace) -> int:
    """Start copies of the command, without the options of executors."""
    parser = argparse.ArgumentParser()
    add_arguments(parser, with_executors=False)
    arguments: tuple[str, ...] = ("run", args.table)
    for name, default in vars(parser.parse_args([args.table])).items():
        option, value = f"--{name.replace('_', '-')}", getattr(args, name)
        if isinstance(value, list):
            arguments += (option, *value)
        elif value != default:
            arguments += (option,) if value is True else (option, str(value))
    return _submit_jobs(args, arguments) if args.executor == "slurm" else _divide(args, arguments)


def _submit_jobs(args: argparse.Namespace, arguments: tuple[str, ...]) -> int:
    """Submit Slurm jobs, from a machine that may have no GPU."""
    from paperbench.executors import Workers
    from paperbench.executors.slurm import script, submit

    on_gpu = args.device != "cpu"
    if args.device == "auto":  # would train on the CPU of a machine whose GPU fails
        arguments += ("--device", "cuda")
    elif not on_gpu:
        arguments += ("--yes",)
    workers = Workers(arguments, args.results, args.workers or 1, args.gpus_per_run or 1 if on_gpu else 0)
    text = script(workers, args.partition, args.time, args.sbatch or (), args.setup or ())
    if args.print_script:
        print(text, end="")
        return 0
    # A plan for a CPU refuses what only GPUs have, and without the jobs' precision it does not know the ids of runs.
    is_exact = not on_gpu or args.precision not in (None, "tf32")
    engine = "auto" if args.engine == "graph" else args.engine
    plan = plan_of(args, device="cpu", precision=args.precision if is_exact else None, engine=engine)
    if is_exact and not plan.remaining:
        print(f"All runs are finished. Next, print the report:\n{plan.compare_command}")
        return 0
    present, new = submit(workers, text)
    ids = f": {listing(new)}" if new else ""
    print(f"{count(len(new), 'job')} submitted{ids}. {count(present, 'job')} of this command waited or ran already.")
    print(f"Logs: {workers.results / 'slurm' / workers.name}-*.log")
    print(f"Progress: {command_for('status', args)}")
    print(f"To stop, with everything saved: scancel --name={workers.name}")
    return 0


def _divide(args: argparse.Namespace, arguments: tuple[str, ...]) -> int:
    """Let workers on this machine or a Ray cluster train the runs; wait for them, and print the table.

    Raises:
        PaperbenchError: The options contradict each other, there are too few GPUs, or Ray is not installed.
    """
    import torch

    from paperbench import api
    from paperbench.executors import Workers, local
    from paperbench.report.progress import Progress
    from paperbench.runs.limits import Limits

    plan = plan_of(args)
    on_gpu = plan.device.type == "cuda"
    if on_gpu:
        arguments += ("--device", "cuda")  # never the CPU of a machine whose GPU fails
    elif args.gpus_per_run:
        raise PaperbenchError(f"--gpus-per-run needs GPUs, and this plan is for {plan.device}. Omit the option.")
    elif plan.remaining:  # each worker would measure all runs as its own
        _check_time(plan, args, args.workers or 1)
        arguments += ("--yes",)
    workers = Workers(arguments, args.results, args.workers or 1, args.gpus_per_run or 1 if on_gpu else 0)
    limits, say = Limits(plan.stop_at, plan.max_seconds), Progress((), len(plan.runs), sys.stderr).say
    statuses: list[int] = []
    if not plan.remaining:
        pass
    elif args.executor == "local":
        from paperbench.data.imagenet.stream import processors

        gpus = local.ids_of_gpus(torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES"))
        if not args.workers and workers.gpus_per_run:
            workers = replace(workers, count=max(1, len(gpus) // workers.gpus_per_run))
        statuses = local.run(workers, local.environments(workers, gpus, processors()), limits, say)
    else:
        from paperbench.executors import ray

        statuses = ray.run(workers, limits, say)
    is_cut_short = limits.exhausted or TIME_WAS_UP in statuses
    has_failed = any(status not in (0, TIME_WAS_UP) for status in statuses) and not limits.signal
    return _conclude(api.conclude(plan, None if has_failed else [], is_cut_short, limits.signal), say)


def execute(args: argparse.Namespace) -> int:
    _check_executor(args)
    if args.executor:
        return _start_workers(args)
    launch = Launch.of(os.environ)
    if launch is None:
        return _run(args, launch)
    from paperbench.api import wait_without_spinning

    wait_without_spinning()
    from paperbench.data.sources import data_directory
    from paperbench.runs.follow import follow
    from paperbench.runs.limits import Limits, stopping_on_signals
    from paperbench.training.device import choose_device, own_device
    from paperbench.training.processes import Processes

    args.device = own_device(args.device, launch)
    device, limits, status = choose_device(args.device, warn), Limits(), 2
    processes = Processes(launch, device)
    try:
        if launch.rank == 0:
            status = _run(args, launch, processes)
        else:
            processes.limits = limits
            with stopping_on_signals(limits, is_launched=True):
                status = follow(processes, device, data_directory(args.data), limits)
    finally:
        processes.end(status)
    return status


def _run(args: argparse.Namespace, launch: Launch | None, processes: Processes | None = None) -> int:
    """Run the command in a process that trains alone, or as number 0 of several."""
    from paperbench import api
    from paperbench.report.progress import Progress

    plan = plan_of(args)
    say_what_is_skipped(plan, args)
    _check_time(plan, args, launch.count if launch else 1)
    progress = Progress(plan.remaining, len(plan.runs), sys.stderr)
    return _conclude(api.run(plan, progress, processes), progress.say)


def _conclude(outcome: Outcome, say: Callable[[str], None]) -> int:
    """Print what is left to do, and the table; return the exit status."""
    left, failed = len(outcome.remaining), len(outcome.failed)
    for complaint in outcome.judged.left_out:
        say(f"paperbench: left out: {complaint}")
    if left and outcome.is_cut_short and not outcome.signal:  # the handler of a signal prints its own message
        say(f"paperbench: stopped after {duration(outcome.plan.max_seconds or 0)}; {count(left, 'run')} left.")
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
    return 2 if failed else TIME_WAS_UP if left and outcome.is_cut_short else 0
