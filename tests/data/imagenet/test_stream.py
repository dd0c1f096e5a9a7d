from __future__ import annotations

import faulthandler
import gc
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from paperbench.data.imagenet.batches import BatchPlan, CentralCrops, Crops, CropSource, TrainingCrops
from paperbench.data.imagenet.index import ImageFiles
from paperbench.data.imagenet.stream import CropStream, advice
from paperbench.errors import PaperbenchError
from paperbench.specs.recipe import Evaluation, Photographs
from tests.data.imagenet.small_files import crops_of, image_files, photographs

SETTINGS = Photographs(decoder="pillow", interpolation="bilinear", crop=16, shorter_side=(20, 30))
IMAGES = 11


@pytest.fixture
def files(tmp_path: Path) -> ImageFiles:
    return image_files(tmp_path, photographs(IMAGES, sides=(20, 31)))


@pytest.fixture(autouse=True)
def _no_thread_survives() -> Iterator[None]:
    yield
    if stream_threads():
        faulthandler.dump_traceback()  # what they wait for
    assert stream_threads() == []


def stream_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("crew ")]


def training_crops(files: ImageFiles, *, batch_size: int = 4, has_short_batches: bool = False) -> TrainingCrops:
    return TrainingCrops(files, SETTINGS, batch_size=batch_size, flip=True, has_short_batches=has_short_batches, seed=5)


def values_of(crops: Crops) -> list[bytes]:
    """Copy a batch, whose pixels are soon overwritten."""
    return [tensor.numpy().tobytes() for tensor in (crops.pixels, crops.labels, *(crops.colours or ()))]


class PacedCrops(CropSource):
    """One batch after another of 50 grey crops; `pace` is called for each, with its batch's number. Has no files."""

    def __init__(self, pace: Callable[[int], object]) -> None:
        self.crop, self.batch_size, self.pace, self.rendered = 2, 50, pace, 0

    def plan(self, number: int) -> BatchPlan:
        return BatchPlan(np.full(50, number), np.empty((50, 0), np.uint64))

    def render(self, plan: BatchPlan, row: int, out: npt.NDArray[np.uint8]) -> None:
        self.rendered += 1
        self.pace(int(plan.images[row]))

    def assemble(self, plan: BatchPlan, pixels: torch.Tensor) -> Crops:
        return Crops(pixels, torch.zeros(50), None)


@pytest.mark.parametrize("has_short_batches", [False, True])
@pytest.mark.parametrize(("threads", "start"), [(0, 0), (1, 3), (2, 2), (7, 1)])
def test_batches_depend_only_on_their_number(
    threads: int, start: int, has_short_batches: bool, files: ImageFiles
) -> None:
    source = training_crops(files, has_short_batches=has_short_batches)
    expected = [values_of(crops_of(source, number)) for number in range(start, start + 6)]
    with CropStream(source, start=start, threads=threads) as stream:
        assert [values_of(crops) for crops in islice(stream, 6)] == expected


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("start", [0, 2, 3])
def test_central_crops_end_after_the_last_image(threads: int, start: int, files: ImageFiles) -> None:
    source = CentralCrops(files, SETTINGS, Evaluation(crop=16, scale=20), batch_size=4)
    expected = [values_of(crops_of(source, number)) for number in range(start, 3)]
    with CropStream(source, start=start, threads=threads) as stream:
        assert [values_of(crops) for crops in stream] == expected


def test_batch_stays_as_it_is_until_the_next_is_asked_for(files: ImageFiles) -> None:
    source = training_crops(files)
    with CropStream(source, threads=2) as stream:
        for number in range(4):
            crops = next(stream)
            time.sleep(0.02)  # in which the threads make what they can
            assert values_of(crops) == values_of(crops_of(source, number))


def change_image(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("threads", [0, 1, 4])
@pytest.mark.parametrize(("harm", "message"), [(Path.unlink, "cannot be read"), (change_image, "has changed")])
def test_error_is_raised_at_its_batch_and_names_the_file(
    threads: int, harm: Callable[[Path], None], message: str, files: ImageFiles
) -> None:
    source = training_crops(files, batch_size=3)
    _, first, second = source.plan(2).images
    for number in (second, first):
        harm(files.root / f"{number}.jpg")
    with CropStream(source, threads=threads) as stream:
        assert [len(crops.labels) for crops in islice(stream, 2)] == [3, 3]
        with pytest.raises(PaperbenchError, match=f"/{first}.jpg {message}"):
            next(stream)
        assert stream_threads() == []
        assert list(stream) == []


@pytest.mark.parametrize("batches", [30, pytest.param(1_000, marks=pytest.mark.full)])
def test_memory_does_not_grow_with_the_batches(batches: int, files: ImageFiles) -> None:
    addresses = set()
    with CropStream(training_crops(files, batch_size=8), threads=3) as stream:
        for number, crops in enumerate(islice(stream, batches)):
            addresses.add(crops.pixels.data_ptr())
            if number == batches // 4:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(addresses) == 3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2_000  # kB


@pytest.mark.parametrize("threads", [1, 4])
def test_interrupted_consumer_waits_for_one_image_per_thread(threads: int) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def pace(_: int) -> None:
        begun.set()
        go_on.wait(10)

    source = PacedCrops(pace)

    def interrupt() -> None:
        begun.wait(10)
        while source.rendered < threads:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        go_on.set()

    interrupting = threading.Thread(target=interrupt)
    gc.collect()  # threads of earlier tests: the callback of a weak reference to one would swallow the interrupt
    interrupting.start()
    with CropStream(source, threads=threads) as stream:
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        assert stream_threads() == []
        assert list(islice(stream, 1)) == [], "no batch is left out"
    interrupting.join()
    assert source.rendered == threads


def test_thread_that_collects_its_stream_does_not_wait_for_itself() -> None:
    go_on = threading.Event()

    def pace(batch: int) -> None:
        if batch:  # else the consumer would wait, too
            go_on.wait(10)
            held.clear()

    source = PacedCrops(pace)
    held = [CropStream(source, threads=2)]
    next(held[0])
    threads = stream_threads()
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert held == stream_threads() == []


ENDINGS = """
import sys, time
import numpy as np
from tests.data.imagenet.test_stream import CropStream, PacedCrops
stream = CropStream(PacedCrops(lambda _: time.sleep(0.001)), threads=3)
next(stream)
print("ready", flush=True)
while sys.argv[1] == "goes on":
    next(stream)
"""


@pytest.mark.full  # importing torch takes seconds
@pytest.mark.parametrize(
    ("sent", "status"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, -signal.SIGTERM), (None, 0)]
)
def test_python_exits_at_once_though_a_stream_was_not_closed(sent: signal.Signals | None, status: int) -> None:
    command = [sys.executable, "-c", ENDINGS, "goes on" if sent else "ends"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            if sent:
                process.send_signal(sent)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == status
    assert ("KeyboardInterrupt" in errors) is (sent == signal.SIGINT)
    assert "Fatal" not in errors


@pytest.mark.parametrize(
    ("waited", "worked", "says"),
    [
        (4.0, 390.0, None),
        (38.0, 650.0, "waits for images 38% of the time. 11 cores would keep up; 4 are in use."),
        (38.0, 620.0, "waits for images 38% of the time. 10 cores would keep up; 4 are in use."),
        (38.0, 200.0, "waits for images 38% of the time. Its 4 threads wait themselves:"),
    ],
)
def test_starved_consumer_is_told_the_cores_that_would_feed_it(waited: float, worked: float, says: str | None) -> None:
    found = advice(100.0, waited, worked, 4)
    assert found is None if says is None else says in (found or "")


def test_waiting_and_work_are_counted_since_the_last_advice() -> None:
    now = [0.0]

    def pace(_: int) -> None:
        now[0] += 0.5

    with CropStream(PacedCrops(pace), threads=0, clock=lambda: now[0]) as stream:
        said = [(next(stream), stream.advice())[1] for _ in range(3)]
        assert said[:2] == [None, None], "25 and 50 seconds are less than a minute"
        assert re.search(r"waits for images 100% of the time\. [\d,]+ cores would keep up; 0 are in use", said[2] or "")
        now[0] += 500
        assert stream.advice() is None


@pytest.mark.gpu
def test_pinned_batches_are_the_same(files: ImageFiles) -> None:
    source = training_crops(files)
    with CropStream(source, threads=2, pinned=True) as stream:
        crops = next(stream)
        assert crops.pixels.is_pinned()
        assert values_of(crops) == values_of(crops_of(source, 0))
