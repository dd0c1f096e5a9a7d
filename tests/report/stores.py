"""Results directories with invented runs whose histories look like real ones."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from paperbench.runs.history import HistoryLine, history_bytes
from paperbench.runs.record import Record
from paperbench.runs.store import Store
from tests.helpers import write_record


def history_of(record: Record) -> list[HistoryLine]:
    """Invent a history that ends at the record's iteration, with the recipe's drops and log interval.

    The loss and the test error fall at every drop of the rate. The last line of a diverged run has no loss.
    """
    recipe, random = record.spec.recipe, np.random.default_rng([record.seed, *record.run.encode()])
    last = recipe["iterations"]
    log_every, test_every = max(1, last // 640), max(1, last // 64)
    final = record.result.moving_average_test_error if record.result else 9.0
    lines = []
    for iteration in range(log_every, record.iteration + 1, log_every):
        dropped = sum(iteration > at for at in recipe["drops"]["at"])
        progress = iteration / last
        noise = math.exp(random.normal(0, 0.08))
        loss = 2.0 * math.exp(-4 * min(progress, 0.5)) * 0.15**dropped * noise
        error = final + (60 * math.exp(-12 * progress) + random.exponential(5)) * 0.1**dropped
        tested = iteration % test_every == 0
        rate = recipe["learning_rate"] * recipe["drops"].get("factor", 0.1) ** dropped
        is_lost = record.status == "diverged" and iteration + log_every > record.iteration
        lines.append(
            HistoryLine(
                iteration=iteration,
                epoch=round(iteration * recipe.get("batch_size", 128) / 50_000, 4),
                lr=rate,
                train_loss=None if is_lost else loss,
                train_error=min(90.0, 30 * loss),
                test_loss=0.05 * error if tested else None,
                test_error=min(90.0, error) if tested else None,
                seconds=0.1 * iteration,
            )
        )
    return lines


def make_store(root: Path, records: Iterable[Record]) -> Store:
    """Write the records with invented histories."""
    store = Store(root)
    for record in records:
        write_run(store, record, history_bytes(history_of(record)))
    return store


def write_run(store: Store, record: Record, history: bytes) -> None:
    """Write a run whose record vouches for these lines of its history."""
    lines, digest = history.count(b"\n"), hashlib.sha256(history).hexdigest()
    files = replace(record.files, history_lines=lines, history_sha256=digest)
    write_record(store, replace(record, files=files)).history_file.write_bytes(history)
