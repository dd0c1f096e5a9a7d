"""paperbench verify [RESULTS]: check the integrity of the files in a results directory."""

from __future__ import annotations

import argparse
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from paperbench.cli.arguments import DEFAULT_RESULTS, add_shared, positive_int
from paperbench.errors import PaperbenchError, count, one_line

if TYPE_CHECKING:
    import torch

    from paperbench.runs.record import Record
    from paperbench.runs.rerun import Rerun
    from paperbench.runs.store import Store


SUMMARY = "check the files of a results directory; retrain the start of a run"
DESCRIPTION = (
    "Recompute the hashes of all runs and external results, and check that the files belong together. Exit status: 0 "
    "if no file was edited, truncated or swapped, else 1."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "positional", nargs="?", type=Path, metavar="RESULTS", help="results directory (default: ./results)"
    )
    parser.add_argument("--results", type=Path, metavar="DIR", help="same as RESULTS")
    parser.add_argument(
        "--rerun",
        type=positive_int,
        metavar="N",
        help="also retrain the first iterations of N random runs and compare them: bit for bit on the same CPU, number "
        "of threads and torch, else within 2 %% of the training loss",
    )
    add_shared(parser, "--data", "--device")
    parser.set_defaults(device=None)


def execute(args: argparse.Namespace) -> int:
    from paperbench.runs.external import read_externals
    from paperbench.runs.store import Store
    from paperbench.runs.verify import verify

    if args.results and args.positional:
        raise PaperbenchError(f"Name one results directory: {args.positional} or {args.results}.")
    for option, value in (("--data", args.data), ("--device", args.device)):
        if value and not args.rerun:
            raise PaperbenchError(f"{option} needs --rerun. Add --rerun, or omit {option}.")
    results = args.results or args.positional or DEFAULT_RESULTS
    if not results.is_dir():
        what = "is not a directory" if results.exists() else "does not exist"
        raise PaperbenchError(f"{results} {what}. Name a results directory (`--results DIR`).")
    if not any((results / name).is_dir() for name in ("runs", "external")):
        raise PaperbenchError(f"{results} has neither runs/ nor external/. Name a results directory (`--results DIR`).")
    store = Store(results)
    runs = verify(store)
    externals, complaints = read_externals(results)
    statuses = ", ".join(f"{n} {status}" for status, n in sorted(Counter(run.status for run in runs).items()))
    n_externals = len(externals) + len(complaints)
    counts = {"run": len(runs), "external result": n_externals}
    found = " and ".join(count(number, noun) for noun, number in counts.items() if number) or "0 runs"
    _print(f"{results}: {found} checked{statuses and f': {statuses}'}.")
    problems = [*(problem for run in runs for problem in run.problems), *complaints]
    for line in [f"remark: {r}" for run in runs for r in run.remarks] + [f"problem: {p}" for p in problems]:
        _print(line)
    sound = [run.record for run in runs if run.record and not run.problems]
    reruns = _rerun(args, store, sound) if args.rerun else []
    holds = not problems and all(rerun.holds for rerun in reruns)
    _print("OK: all files verified." if holds else "Not OK: see above.")
    if args.rerun and not reruns and holds:
        raise PaperbenchError("No run could be retrained. See the lines above for the reasons.")
    return 0 if holds else 1


def _print(text: str) -> None:
    print(one_line(text), flush=True)


def _rerun(args: argparse.Namespace, store: Store, records: list[Record]) -> list[Rerun]:
    """Retrain the first iterations of some runs, and print how they compare."""
    from paperbench.api import wait_without_spinning

    wait_without_spinning()
    from paperbench.catalogue import DATASETS
    from paperbench.data.sources import data_directory, load_dataset
    from paperbench.runs.rerun import rerun_prefix
    from paperbench.training.precision import choose_device

    device, directory = choose_device(args.device or "auto"), data_directory(args.data)
    datasets = {}
    for key in DATASETS:
        with suppress(PaperbenchError):
            dataset = load_dataset(key, directory)
            datasets[dataset.fingerprint] = dataset
    rng = random.Random()  # noqa: S311  (chooses runs; does not affect training)
    candidates = [record for record in records if record.status != "partial"]
    rng.shuffle(candidates)
    done: list[Rerun] = []
    for record in candidates:
        if len(done) == args.rerun:
            break
        if record.data.fingerprint not in datasets:
            _print(
                f"not retrained: {record.run}: {record.data.name} is not in {directory}. Name its place with --data."
            )
            continue
        try:
            dataset = datasets[record.data.fingerprint]
            rerun = rerun_prefix(record, store.directory(record.run).history(), dataset, device, rng)
        except PaperbenchError as error:
            _print(f"not retrained: {record.run}: {error}")
        else:
            done.append(rerun)
            _print(f"retrained: {_summary(rerun, device)}")
    if len(done) < args.rerun:
        _print(
            f"Retrained {len(done)} of the {count(args.rerun, 'requested run')}; {count(len(candidates), 'run')} ended "
            "and passed the checks above."
        )
    return done


def _summary(rerun: Rerun, device: torch.device) -> str:
    from paperbench.runs.rerun import TOLERANCE

    text = f"{rerun.run}, iterations 1 to {rerun.iterations:,} on {device}: "
    if rerun.is_identical:
        return text + "every loss and error equals the recorded one, bit for bit."
    text += f"training losses differ from the record by up to {rerun.deviation:.2%}"
    if rerun.is_same_machine:
        return text + ", on the same kind of machine with the same torch: the run is not reproduced."
    bound = f"the {TOLERANCE:.0%} that other hardware, threads or versions explain"
    return text + (f", within {bound}." if rerun.holds else f", beyond {bound}: the run is not reproduced.")
