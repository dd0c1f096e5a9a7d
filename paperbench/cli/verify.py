"""paperbench verify [RESULTS]: check the integrity of the files in a results directory."""

from __future__ import annotations

import argparse
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from paperbench.cli.arguments import add_shared
from paperbench.errors import PaperbenchError, count, listing, one_line
from paperbench.options import Selection, positive_int

if TYPE_CHECKING:
    import torch

    from paperbench.data.dataset import Dataset
    from paperbench.runs.record import Record
    from paperbench.runs.rerun import Rerun, Retest
    from paperbench.runs.store import Store


SUMMARY = "check the files of a results directory; retrain the start of a run"
DESCRIPTION = (
    "Recompute the hashes of all runs, external results and analyses, and check that the files belong together. Exit "
    "status: 0 if all agree; 1 if a file was edited, truncated, swapped or is unreadable, or if a rerun disagrees or "
    "finds no net to test."
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
        help="also retrain the first iterations of N random runs, test their saved nets, and compare: bit for bit on "
        "the same CPU, number of threads and torch, else within 2 %% of the training loss, 0.2 %% of the test loss and "
        "0.1 %% of the test images",
    )
    add_shared(parser, "--data", "--device", default=None)
    add_shared(parser, "--tables")


def execute(args: argparse.Namespace) -> int:
    from paperbench.analysis.record import read_analyses
    from paperbench.runs.external import read_externals
    from paperbench.runs.store import Store
    from paperbench.runs.verify import verify
    from paperbench.specs.table import know_functions

    if args.results and args.positional:
        raise PaperbenchError(f"Name one results directory: {args.positional} or {args.results}.")
    for option, value in (("--data", args.data), ("--device", args.device)):
        if value and not args.rerun:
            raise PaperbenchError(f"{option} needs --rerun. Add --rerun, or omit {option}.")
    results = args.results or args.positional or Selection.results
    store = Store.existing(results)
    know_functions(args.tables)
    if not any((results / name).is_dir() for name in ("runs", "external", "analysis")):
        raise PaperbenchError(
            f"{results} has neither runs/, external/ nor analysis/. Name a results directory (`--results DIR`)."
        )
    datasets = _load_datasets(store, args.data) if args.rerun else []
    runs = verify(store, datasets)
    externals, complaints = read_externals(results)
    statuses = ", ".join(f"{n} {status}" for status, n in sorted(Counter(run.status for run in runs).items()))
    analyses, damaged = read_analyses(results)
    counts = {
        "run": len(runs),
        "external result": len(externals) + len(complaints),
        "analysis file": len(analyses) + len(damaged),
    }
    complaints += damaged
    found = " and ".join(count(number, noun) for noun, number in counts.items() if number) or "0 runs"
    _print(f"{results}: {found} checked{statuses and f': {statuses}'}.")
    problems = [*(problem for run in runs for problem in run.problems), *complaints]
    remarks: list[object] = [remark for run in runs for remark in run.remarks]
    if bare := [run.record.run for run in runs if run.record and run.rests_on_record]:
        which = f"{count(len(bare), 'run')} that kept neither weights nor a last checkpoint ({listing(bare)})"
        remarks.append(f"{which}: nothing here shows that the training took place, or on which data.")
    for line in [f"remark: {remark}" for remark in remarks] + [f"problem: {problem}" for problem in problems]:
        _print(line)
    sound = [run.record for run in runs if run.record and not run.problems]
    retrained, agrees = _rerun(args, store, datasets, sound) if args.rerun else (0, True)
    holds = not problems and agrees
    _print("OK: all files verified." if holds else "Not OK: see above.")
    if args.rerun and not retrained and holds:
        raise PaperbenchError("No run could be retrained. See the lines above for the reasons.")
    return 0 if holds else 1


def _print(text: str) -> None:
    print(one_line(text), flush=True)


def _load_datasets(store: Store, directory: Path | None) -> list[Dataset]:
    """Load the data sets that are at hand and have as many classes as a recorded net."""
    from paperbench.catalogue import DATASETS
    from paperbench.data.sources import data_directory, load_dataset

    classes = {record.spec.net.get("num_classes") for record in store.records()[0]}
    datasets: list[Dataset] = []
    for key, info in DATASETS.items():
        if info.num_classes in classes:
            with suppress(PaperbenchError):
                datasets.append(load_dataset(key, data_directory(directory)))
    return datasets


def _rerun(args: argparse.Namespace, store: Store, datasets: list[Dataset], records: list[Record]) -> tuple[int, bool]:
    """Retrain the first iterations of some runs and test their saved nets; print how they compare with the records.

    Returns:
        Number of retrained runs, and whether all records hold.
    """
    from paperbench.data.sources import data_directory
    from paperbench.runs.rerun import DisprovedError, rerun_prefix, retest
    from paperbench.training.device import choose_device

    device = choose_device(args.device or "auto", _print)
    by_fingerprint = {data.fingerprint: data for data in datasets}
    rng = random.Random()  # noqa: S311  (chooses runs; does not affect training)
    candidates = [record for record in records if record.status != "partial"]
    rng.shuffle(candidates)
    checked, retrained, agrees = 0, 0, True
    for record in candidates:
        if checked == args.rerun:
            break
        if record.data.fingerprint not in by_fingerprint:
            place = data_directory(args.data)
            _print(f"not retrained: {record.run}: {record.data.name} is not in {place}. Name its place with --data.")
            continue
        checked += 1
        dataset, directory = by_fingerprint[record.data.fingerprint], store.directory(record.run)
        try:
            rerun = rerun_prefix(record, directory.history(), dataset, device, rng, _print)
            retrained, agrees = retrained + 1, agrees and rerun.holds
            _print(f"retrained: {_describe_rerun(rerun, device)}")
        except DisprovedError as error:
            agrees = False
            _print(f"problem: {error}")
            continue
        except PaperbenchError as error:
            _print(f"not retrained: {record.run}: {error}")
        try:
            for tested in retest(record, directory, dataset, device):
                agrees = agrees and tested.holds
                _print(f"tested: {_describe_retest(tested, device)}")
        except PaperbenchError as error:
            agrees = False
            what = "problem" if isinstance(error, DisprovedError) else f"not tested: {record.run}"
            _print(f"{what}: {error}")
    if retrained < args.rerun:
        _print(
            f"Retrained {retrained} of the {count(args.rerun, 'requested run')}; {count(len(candidates), 'run')} "
            "ended and passed the checks above."
        )
    return retrained, agrees


def _describe_rerun(rerun: Rerun, device: torch.device) -> str:
    from paperbench.runs.rerun import TOLERANCE

    text = f"{rerun.run}, iterations 1 to {rerun.iterations:,} on {device}: "
    if rerun.is_identical:
        return text + "every loss and error equals the recorded one, bit for bit."
    text += f"training losses differ from the record by up to {rerun.deviation:.2%}"
    return text + _judgement(rerun, f"{TOLERANCE:.0%}", "the run is not reproduced")


def _describe_retest(retest: Retest, device: torch.device) -> str:
    from paperbench.runs.rerun import LOSS_TOLERANCE

    how = f", {retest.evaluation}" if retest.evaluation else ""
    text = f"{retest.run}, {retest.what} on {device}{how}: "
    if retest.is_identical:
        return text + f"{', '.join(retest.changed)} and test loss equal the recorded ones, bit for bit."
    (first, changed), *others = retest.changed.items()
    text += f"the {first} differs from the record by {count(changed, 'image')} of {retest.images:,}, "
    text += "".join(f"the {name} by {count(images, 'image')}, " for name, images in others)
    text += f"the test loss by {retest.deviation:.2%}"
    bound = f"{count(retest.allowed, 'image')} and {LOSS_TOLERANCE:.1%}"
    return text + _judgement(retest, bound, "the record's result is not that of this net")


def _judgement(outcome: Rerun | Retest, bound: str, failure: str) -> str:
    """Return the end of a sentence about numbers that differ from the record."""
    if outcome.is_same_machine:
        return f", on the same kind of machine with the same torch: {failure}."
    bound = f"the {bound} that other hardware, threads or versions explain"
    return f", within {bound}." if outcome.holds else f", beyond {bound}: {failure}."
