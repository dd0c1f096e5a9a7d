"""paperbench verify [RESULTS]: check the integrity of the files in a results directory."""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paperbench.cli.arguments import add_shared
from paperbench.cli.output import add_format, print_json
from paperbench.errors import PaperbenchError, count, listing, one_line
from paperbench.files import refuse_links
from paperbench.options import Selection, positive_int

if TYPE_CHECKING:
    from paperbench.data.dataset import Dataset
    from paperbench.runs.rerun_record import Rerun, RerunRecord, Retest
    from paperbench.runs.store import Store
    from paperbench.runs.verify import Verification, VerifiedRun

SUMMARY = "check the files of a results directory; retrain the start of a run"
DESCRIPTION = (
    "Recompute the hashes of all runs, external results, analyses and kept reruns, and check that the files belong "
    "together. Exit status: 0 if all agree; 1 if a file was edited, truncated, swapped or is unreadable, or if a rerun "
    "disagrees or finds no net to test."
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
    help_ = "keep what each retrained run gives, with the kind of machine, in reruns/ of the results directory"
    parser.add_argument("--save", action="store_true", help=help_)
    add_shared(parser, "--data", "--device", default=None)
    add_shared(parser, "--tables")
    add_format(parser)


def execute(args: argparse.Namespace) -> int:
    from paperbench.runs.store import Store
    from paperbench.specs.table import know_functions

    if args.results and args.positional:
        raise PaperbenchError(f"Name one results directory: {args.positional} or {args.results}.")
    for option, value in (("--data", args.data), ("--device", args.device), ("--save", args.save)):
        if value and not args.rerun:
            raise PaperbenchError(f"{option} needs --rerun. Add --rerun, or omit {option}.")
    results = args.results or args.positional or Selection.results
    store = Store.existing(results)
    know_functions(args.tables)
    if not any((results / name).is_dir() for name in ("runs", "external", "analysis", "reruns", "contributed")):
        raise PaperbenchError(
            f"{results} has neither runs/, external/ nor analysis/. Name a results directory (`--results DIR`)."
        )
    if args.save:
        refuse_links(results / "reruns")  # now, as reruns take their time
    datasets = _load_datasets(store, args.data) if args.rerun else []
    stream = sys.stderr if args.format == "json" else sys.stdout

    def say(text: str) -> None:
        print(one_line(text), file=stream, flush=True)

    found = _checked(results, store, datasets)
    for line in _lines(found):
        say(line)
    if args.rerun:
        found = _with_reruns(args, store, datasets, found, say)
    say("OK: all files verified." if found.holds else "Not OK: see above.")
    if args.format == "json":
        print_json(found)
    if args.rerun and found.holds and not any(one.rerun for one in found.reruns):
        raise PaperbenchError("No run could be retrained. See the lines above for the reasons.")
    return 0 if found.holds else 1


def _checked(results: Path, store: Store, datasets: Sequence[Dataset]) -> Verification:
    from paperbench.analysis.record import read_analyses
    from paperbench.runs.external import read_externals
    from paperbench.runs.rerun_record import read_reruns
    from paperbench.runs.verify import Verification, about_reruns, verify

    runs = verify(store, datasets)
    externals, wrong_externals = store.gather(read_externals)
    analyses, wrong_analyses = store.gather(read_analyses)
    kept, wrong_reruns = store.gather(read_reruns)
    problems = [*map(one_line, (*wrong_externals, *wrong_analyses, *wrong_reruns))]
    remarks = [*about_reruns(kept, (record for its in store.records_by_run()[0].values() for _, record in its))]
    if bare := [run.run for run in runs if run.rests_on_record]:
        which = f"{count(len(bare), 'run')} that kept neither weights nor a last checkpoint ({listing(bare)})"
        remarks.append(f"{which}: nothing here shows that the training took place, or on which data.")
    return Verification(
        schema=1,
        results=one_line(str(results)),
        runs=runs,
        external=len(externals) + len(wrong_externals),
        analyses=len(analyses) + len(wrong_analyses),
        remarks=remarks,
        problems=problems,
        kept=kept,
        holds=not problems and not any(run.problems for run in runs),
    )


def _lines(found: Verification) -> Iterator[str]:
    counts = {
        "run": len(found.runs),
        "external result": found.external,
        "analysis file": found.analyses,
        "kept rerun": len(found.kept),
    }
    statuses = ", ".join(f"{n} {status}" for status, n in sorted(Counter(run.status for run in found.runs).items()))
    checked = " and ".join(count(number, noun) for noun, number in counts.items() if number) or "0 runs"
    yield f"{found.results}: {checked} checked{statuses and f': {statuses}'}."
    parts: list[VerifiedRun | Verification] = [*found.runs, found]
    yield from (f"remark: {text}" for one in parts for text in one.remarks)
    yield from (f"problem: {text}" for one in parts for text in one.problems)


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


def _with_reruns(
    args: argparse.Namespace, store: Store, datasets: Sequence[Dataset], found: Verification, say: Callable[[str], None]
) -> Verification:
    """Retrain the start of some runs and test their saved nets; say how they compare with the records."""
    from paperbench.data.sources import data_directory
    from paperbench.runs.rerun import verify_run
    from paperbench.runs.rerun_record import write_rerun
    from paperbench.training.device import choose_device

    device = choose_device(args.device or "auto", say)
    by_fingerprint = {data.fingerprint: data for data in datasets}
    rng = random.Random()  # noqa: S311  (chooses runs; does not affect training)
    sound = {(run.by, run.run) for run in found.runs if not run.problems}
    first = [its[0] for its in store.records_by_run()[0].values()]
    candidates = [record for by, record in first if (by, record.run) in sound and record.status != "partial"]
    rng.shuffle(candidates)
    reruns: list[RerunRecord] = []
    without_data: list[str] = []
    for record in candidates:
        if len(reruns) == args.rerun:
            break
        if record.data.fingerprint not in by_fingerprint:
            place = f"{record.data.name} is not in {data_directory(args.data)}. Name its place with --data."
            without_data.append(one_line(f"not retrained: {record.run}: {place}"))
            say(without_data[-1])
            continue
        dataset, directory = by_fingerprint[record.data.fingerprint], store.directory(record.run)
        one = verify_run(record, directory, dataset, device, rng, say)
        reruns.append(one)
        for line in _describe(one):
            say(line)
        if args.save and not one.not_retrained:
            say(f"Wrote {write_rerun(store.root, one)}.")
    retrained = sum(one.rerun is not None for one in reruns)
    if retrained < args.rerun:
        say(
            f"Retrained {retrained} of the {count(args.rerun, 'requested run')}; {count(len(candidates), 'run')} "
            "ended and passed the checks above."
        )
    holds = found.holds and all(one.holds and not one.not_tested for one in reruns)
    return replace(found, reruns=reruns, remarks=[*found.remarks, *without_data], holds=holds)


def _describe(one: RerunRecord) -> Iterator[str]:
    if one.rerun:
        yield f"retrained: {one.run}, {_describe_rerun(one.rerun, one.device)}"
    if one.not_retrained:
        yield f"not retrained: {one.run}: {one.not_retrained}"
    if one.not_tested:
        yield f"not tested: {one.run}: {one.not_tested}"
    yield from (f"tested: {one.run}, {_describe_retest(retest, one.device)}" for retest in one.retests)
    yield from (f"problem: {failure}" for failure in one.failures)


def _describe_rerun(rerun: Rerun, device: str) -> str:
    from paperbench.runs.rerun_record import TOLERANCE

    text = f"iterations 1 to {rerun.iterations:,} on {device}: "
    if rerun.is_identical:
        return text + "every loss and error equals the recorded one, bit for bit."
    text += f"training losses differ from the record by up to {rerun.deviation:.2%}"
    return text + _judgement(rerun, f"{TOLERANCE:.0%}", "the run is not reproduced")


def _describe_retest(retest: Retest, device: str) -> str:
    from paperbench.runs.rerun_record import LOSS_TOLERANCE

    how = f", {retest.evaluation}" if retest.evaluation else ""
    text = f"{retest.what} on {device}{how}: "
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
