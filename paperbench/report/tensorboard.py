"""Training curves as event files of TensorBoard, whose package this needs; torch is not.

An event's wall time is the time spent on the run so far, so equal runs have equal files, whenever they are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from paperbench.errors import RunError
from paperbench.files import write_growing
from paperbench.runs.history import HistoryLine
from paperbench.runs.record import Record
from paperbench.runs.store import RunDirectory

_FILE = "events.out.tfevents.0000000000.paperbench"
"""TensorBoard reads files whose names begin so."""
_MAX_WORD = 80
_MEASURED = ("lr", "train_loss", "train_error", "test_loss", "test_error")
_CROPS = ("top1", "top5")


def write_curves(runs: Iterable[RunDirectory], directory: Path) -> tuple[int, list[str]]:
    """Write the curves of runs, each into a folder of its own; a later call appends what is new.

    Returns:
        The number of runs, and a sentence for each that is left out.
    """
    written, left_out = 0, []
    for run in runs:
        try:
            if record := run.read_record():
                write_growing(directory / _folder(record) / _FILE, _events(record, run.history()), "--out DIR")
                written += 1
            else:
                left_out.append(f"{run.path} has no record yet, which comes with its first checkpoint.")
        except RunError as error:
            left_out.append(str(error))
    return written, left_out


def _folder(record: Record) -> str:
    """Return the name of a run's folder: net, arguments, profile, precision, seed, and the beginning of its id."""
    words = record.net, record.spec.profile, record.spec.precision, f"s{record.seed}", record.run[:8]
    return "_".join(re.sub(r"[^\w.,=+-]+", "-", word).strip("-.")[:_MAX_WORD] for word in words)


def _events(record: Record, history: Iterable[HistoryLine]) -> bytes:
    """Return the contents of a run's file: a head, the lines of its history, and its result at the last iteration."""
    stream = BytesIO()
    writer = RecordWriter(stream)
    writer.write(Event(file_version="brain.Event:2").SerializeToString())
    seconds = 0.0
    for line in history:
        seconds = line.seconds
        measured = {name.replace("_", "/"): getattr(line, name) for name in _MEASURED}  # such as train/loss
        writer.write(_event(measured, line.iteration, seconds))
    if result := record.result:
        crops = {f"{name}/{one.evaluation}": getattr(one, name) for one in result.evaluations for name in _CROPS}
        errors = {"result/error": result.test_error, "result/loss": result.test_loss, **crops}
        writer.write(_event(errors, record.iteration, seconds))
    return stream.getvalue()


def _event(values: Mapping[str, float | None], iteration: int, seconds: float) -> bytes:
    """Return the event of an iteration, with the values that there are."""
    scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items() if value is not None]
    data: bytes = Event(wall_time=seconds, step=iteration, summary=Summary(value=scalars)).SerializeToString()
    return data
