"""What a results directory holds, and the deletion of what no result needs.

Only files of paperbench's names in their places are ever deleted, each under its run's lease. A link counts as unknown,
and nothing behind one is looked at. This module does not import torch.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from paperbench.errors import RunError
from paperbench.files import DAMAGED, LEFTOVER, MAX_TENSOR_FILE_BYTES, Writer, list_directory, open_regular
from paperbench.options import Deletable
from paperbench.runs.checkpoints import CHECKPOINT
from paperbench.runs.history import History
from paperbench.runs.record import Record
from paperbench.runs.store import RunDirectory, Store

_RUN = r"(?P<run>[0-9a-f]{12}-s\d+)"
_RECORDS, _WEIGHTS = r"(record\.json|history\.jsonl|failure\.json)", r"model\.safetensors"
_DAMAGED = rf"[^/]+\{DAMAGED}"
_ANY = "|".join((_RECORDS, _WEIGHTS, CHECKPOINT.pattern, _DAMAGED, LEFTOVER.pattern))
KINDS = {
    "records": ("records and histories", f"runs/{_RUN}/{_RECORDS}"),
    "weights": ("trained nets", f"runs/{_RUN}/{_WEIGHTS}"),
    "unfinished": ("checkpoints of runs that go on", ""),  # among the next ones; the record says so
    "checkpoints": ("checkpoints of runs that ended", f"runs/{_RUN}/{CHECKPOINT.pattern}"),
    "superseded": ("superseded runs", rf"superseded/{_RUN}-\d+/({_ANY})"),
    "damaged": ("set aside as damaged", f"runs/{_RUN}/{_DAMAGED}"),
    "leftovers": ("left by killed processes", f"runs/{_RUN}/{LEFTOVER.pattern}"),
    "external": ("external results", "external/.+"),
    "analysis": ("analyses", "analysis/.+"),
    "reruns": ("kept reruns", "reruns/.+"),
    "contributed": ("results of other people", "contributed/.+"),
    "slurm": ("logs of jobs", "slurm/.+"),
    "leases": ("leases", "leases/.+"),
    "unknown": ("unknown to paperbench", ""),
}
"""What files are, in words, and where they are."""


class HeldFile(NamedTuple):
    """A file, or a link, in a results directory.

    Attributes:
        kind: A key of `KINDS`.
        run: The run that it belongs or belonged to; "" if there is none.
    """

    path: Path
    kind: str
    run: str
    size: int


def survey(store: Store) -> Iterator[HeldFile]:
    """Yield every file of a results directory; others may work there meanwhile."""
    directories = [store.root]
    while directories:
        for path in list_directory(directories.pop()):
            if path.is_dir() and not path.is_symlink():
                directories.append(path)
                continue
            with suppress(FileNotFoundError):  # it has just been replaced
                yield HeldFile(path, *_kind_and_run(store, path), path.lstat().st_size)


def _kind_and_run(store: Store, path: Path) -> tuple[str, str]:
    place = path.relative_to(store.root).as_posix()
    for kind, (_, pattern) in KINDS.items():
        if (found := re.fullmatch(pattern, place)) and not path.is_symlink():
            run = found.groupdict().get("run", "")
            record = _record(store, run) if kind == "checkpoints" else None
            goes_on = kind == "checkpoints" and (record is None or record.status == "partial")
            return "unfinished" if goes_on else kind, run
    return "unknown", ""


def delete(store: Store, kinds: Collection[Deletable]) -> Iterator[tuple[list[HeldFile], str]]:
    """Delete the files that no result needs; yield those of each directory and kind, and why they were kept if so."""
    found: dict[str, dict[tuple[Path, str], list[HeldFile]]] = defaultdict(lambda: defaultdict(list))
    for file in survey(store):
        if file.kind in kinds:
            found[file.run][file.path.parent, file.kind].append(file)
    for run, groups in sorted(found.items()):
        lease = store.lease(run)
        try:
            holder = None if lease.acquire() else lease.holder or "another process"
            for (directory, kind), files in sorted(groups.items()):
                why = f"{holder} works on the run" if holder else _why_kept(kind, store, run)
                for file in () if why else files:
                    Writer(lease.check).remove(file.path)
                if kind == "superseded" and not why:
                    with suppress(OSError):  # it holds what is not paperbench's
                        directory.rmdir()
                yield files, why
        finally:
            lease.release()


def _record(store: Store, run: str) -> Record | None:
    with suppress(RunError):
        return store.own_directory(run).read_record()
    return None


def _why_kept(kind: str, store: Store, run: str) -> str:
    """Say why a run needs its files of a kind; the caller holds its lease, so that this remains so."""
    directory, record = store.own_directory(run), _record(store, run)
    if kind not in ("checkpoints", "damaged") or (record and _does_without_checkpoint(directory, record)):
        return ""
    if kind == "checkpoints":
        return "the run's net or history is missing or is not the record's, so its result rests on them"
    with suppress(RunError):
        if record and (checkpoint := directory.named_checkpoint(record)) and checkpoint.read():
            return ""
    return "they may be all that is left of the run"


def _does_without_checkpoint(run: RunDirectory, record: Record) -> bool:
    """Whether trained net and history are here and whole; a diverged run has no net."""
    with suppress(OSError, RunError):
        History.read(run.history_file).check(record)
        with open_regular(run.weights_file, MAX_TENSOR_FILE_BYTES) as weights:
            return hashlib.file_digest(weights, "sha256").hexdigest() == record.files.weights_sha256
    return False
