from __future__ import annotations

import math
import random
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from paperbench.errors import RunError
from paperbench.runs.history import HISTORY_REMEDY, History, HistoryLine, Measure, history_bytes
from paperbench.runs.record import Status
from tests.helpers import a_record

FILE = Path("a/history.jsonl")


def line(iteration: int, loss: float | None = 2.25, error: float | None = 87.5) -> HistoryLine:
    return HistoryLine(iteration, iteration / 390.625, 0.1, loss, error, None, None, iteration * 0.5)


def history(*iterations: int) -> bytes:
    """Return a history with loss = iteration and error = 2 * iteration."""
    return history_bytes([line(i, float(i), 2.0 * i) for i in iterations])


TEN = history(*range(100, 1001, 100))


def window_mean(data: bytes, measure: Measure, after: int, upto: int) -> float | None:
    return History(FILE, data).window_mean(measure, after, upto)


@pytest.mark.parametrize(
    ("data", "after", "upto"),
    [(TEN, 2000, 3000), (TEN, 210, 290), (b"", 0, 100), (TEN[:20], 0, 100)],
    ids=["beyond the end", "between lines", "no file", "half a line"],
)
def test_window_without_lines_has_no_mean(data: bytes, after: int, upto: int) -> None:
    assert window_mean(data, "train_loss", after, upto) is None


def test_diverged_window_has_infinite_mean() -> None:
    data = history_bytes([line(100), line(200), line(300, None, None)])
    for upto in (300, 1000):  # the run ends there
        assert window_mean(data, "train_loss", 100, upto) == math.inf
        assert window_mean(data, "train_error", 100, upto) == math.inf
    assert window_mean(data, "train_loss", 0, 200) == 2.25
    assert window_mean(data, "train_loss", 300, 1000) is None


def test_damage_outside_the_window_does_not_matter() -> None:
    lines = TEN.splitlines(keepends=True)
    spoilt = b"".join([*lines[:3], b"{\n", *lines[4:]])
    assert window_mean(spoilt, "train_loss", 500, 800) == window_mean(TEN, "train_loss", 500, 800)
    with pytest.raises(RunError, match=r"history\.jsonl:4: is not JSON"):
        window_mean(spoilt, "train_loss", 100, 800)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"train_loss":700.0', b'"train_loss":NaN', "train_loss: must be a finite number"),
        (b'"train_loss":700.0', b'"loss":700.0', "loss: unknown key. Did you mean"),
        (b'{"iteration":700,', b"\xff", "is not JSON"),
    ],
)
def test_damaged_line_is_reported_by_number(old: bytes, new: bytes, message: str) -> None:
    assert TEN.count(old) == 1
    data = TEN.replace(old, new)
    for read in (History(FILE, data).lines, lambda: window_mean(data, "train_loss", 600, 800)):
        with pytest.raises(RunError) as caught:
            read()
        assert str(caught.value).startswith(f"{FILE}:7: ")
        assert message in str(caught.value)
        assert "Restore it; or, if there is a checkpoint, move record.json away" in str(caught.value)


def test_lines_out_of_order_are_refused() -> None:
    with pytest.raises(RunError, match=r"history\.jsonl:3: goes back to iteration 200 after 200\. Restore it"):
        History(FILE, history(100, 200, 200)).lines()


def test_window_mean_equals_mean_of_parsed_lines() -> None:
    rng = random.Random(0)
    for _ in range(200):
        iterations = sorted(rng.sample(range(1, 400), rng.randint(1, 40)))
        lines = [line(i, rng.random(), 100 * rng.random()) for i in iterations]
        after, upto = sorted(rng.sample(range(400), 2))
        measure: Measure = rng.choice(["train_loss", "train_error"])
        inside = [getattr(one, measure) for one in lines if after < one.iteration <= upto <= iterations[-1]]
        expected = sum(inside) / len(inside) if inside else None
        assert window_mean(history_bytes(lines), measure, after, upto) == expected


def test_newest_value() -> None:
    lines = [replace(line(100), test_error=50.0), line(200, 1.5, 40.0), line(300, None, 30.0)]
    data = history_bytes(lines)
    for content, upto, newest in (
        (data, 300, [1.5, 30.0, 50.0]),
        (data, 299, [1.5, 40.0, 50.0]),
        (b"", 300, [None, None, None]),
    ):
        history = History(FILE, content)
        assert [history.newest(m, upto) for m in ("train_loss", "train_error", "test_error")] == newest


CUT = "was cut short: it has {} of the 10 lines that its record was written with."
CRLF = "has the right values, but CRLF line ends, as git makes them with core.autocrlf."
EDITED = "was edited: its first 10 lines are not those that its record was written with."


@pytest.mark.parametrize(
    ("found", "status", "damage"),
    [
        (TEN, "finished", None),
        (TEN + b'{"iteration": 11', "finished", None),
        (TEN + history(1100), "partial", None),
        (TEN + history(1100, 1200), "finished", "has 2 lines that were added after the run had ended."),
        (history(100, 200), "partial", CUT.format(2)),
        (b"", "finished", CUT.format(0)),
        (TEN.replace(b"500.0", b"400.0"), "finished", EDITED),
        (TEN.replace(b"500.0", b"400.0").replace(b"\n", b"\r\n"), "finished", EDITED),
        (TEN.replace(b"\n", b"\r\n"), "finished", CRLF),
        (TEN.replace(b"\n", b"\r\n", 3), "partial", CRLF),
    ],
)
def test_damage_after_the_record_was_written_is_found(found: bytes, status: Status, damage: str | None) -> None:
    record, history = a_record(status=status), History(FILE, found)
    files = replace(record.files, history_lines=10, history_sha256=sha256(TEN).hexdigest())
    record = replace(record, files=files)
    if damage is None:
        history.check(record)
        return
    with pytest.raises(RunError) as caught:
        history.check(record)
    remedy = rf"`sed -i 's/\r$//' {FILE}` restores its bytes." if damage == CRLF else HISTORY_REMEDY
    assert str(caught.value) == f"{FILE} {damage} {remedy}"


@pytest.mark.parametrize("measure", ["train_loss", "test_loss"])
@pytest.mark.parametrize(("loss", "bound"), [("-2.25", "at least 0"), ("1e308", r"at most 1e\+100")])
def test_losses_have_bounds(measure: str, loss: str, bound: str) -> None:
    data = history_bytes([replace(line(1100, 2.25), test_loss=2.25)])
    data = TEN + data.replace(f'"{measure}":2.25'.encode(), f'"{measure}":{loss}'.encode())
    with pytest.raises(RunError, match=rf"history\.jsonl:11: {measure}: must be {bound}, not"):
        History(FILE, data).lines()


def test_record_with_absurd_line_count_is_an_error() -> None:
    record = a_record()
    record = replace(record, files=replace(record.files, history_lines=10**12))
    with pytest.raises(RunError, match="was cut short"):
        History(FILE, TEN).check(record)
