"""Runs on photographs that are killed and continued, or lose their images."""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from paperbench.data.imagenet.index import ImageFiles, PhotoDataset
from paperbench.data.imagenet.index_file import FILE_NAME
from paperbench.data.loader import Choices
from paperbench.data.photos import load_photos
from paperbench.data.sources import ENVIRONMENT_VARIABLE
from paperbench.errors import DataError
from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.store import RunDirectory, Store
from paperbench.training.engines import ENGINES
from paperbench.training.evaluation import EvaluationMetrics
from paperbench.training.trainer import Trainer
from tests.helpers import ROOT, change_yaml, copy_of_specs
from tests.runs.running import Log, assert_same, photographs_recipe, plan_run, train

DROP, LAST = 6, 12
"""Iterations of `photographs_recipe`."""
Harm = Callable[[Path], Callable[[], object]]
"""Does something to a directory of images, and returns what undoes it."""


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return shutil.copytree(load_photos().directory, tmp_path / "images", ignore=shutil.ignore_patterns("mean*"))


@pytest.fixture
def run(images: Path) -> PlannedRun:
    """A run on a copy of the embedded photographs."""
    photos = load_photos()
    parts = {name: replace(getattr(photos, name), root=images) for name in ("train", "test")}
    data = images.with_name("data")
    data.mkdir()
    return plan_run(photographs_recipe(), replace(photos, directory=data, **parts))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """The results of training the run in one session."""
    return train(plan_run(photographs_recipe(), load_photos()), tmp_path_factory.mktemp("uninterrupted"))[0]


@pytest.fixture(autouse=True)
def _no_thread_survives() -> Iterator[None]:
    yield
    assert crop_threads() == []


def crop_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("crew ")]


def move(images: Path) -> Callable[[], object]:
    return images.rename(images.with_name("elsewhere")).rename


def rewrite(change: Callable[[bytes], bytes]) -> Harm:
    """Change all image files."""

    def harm(images: Path) -> Callable[[], object]:
        before = {path: path.read_bytes() for path in images.glob("*/*/*")}
        for path, data in before.items():
            path.write_bytes(change(data))
        return lambda *_: [path.write_bytes(data) for path, data in before.items()]

    return harm


HARMS: dict[str, tuple[Harm, str]] = {
    "moved": (move, r"No such file or directory\. Make the directory of the images available again, or index the one"),
    "changed": (rewrite(lambda data: data[:-9] + b"x" + data[-8:]), r"has changed since it was indexed .* Restore it"),
    "truncated": (rewrite(lambda data: data[:500]), r"has changed since it was indexed .* Restore it"),
    "empty": (rewrite(lambda _: b""), r"has changed since it was indexed .* Restore it"),
}


CASES = [("moved", at) for at in (2, DROP - 1, LAST, LAST + 1)] + [(harm, 2) for harm in list(HARMS)[1:]]


@pytest.mark.parametrize(("harm", "at"), CASES)
def test_lost_images_pause_the_run_which_continues_bit_equal(
    harm: str, at: int, run: PlannedRun, images: Path, expected: RunDirectory, tmp_path: Path
) -> None:
    """In training, in a test in its midst, in the last test, and in the final re-estimation of batch norm."""
    (do_harm, message), undo = HARMS[harm], list[Callable[[Path], object]]()

    class Harmful(Log):
        def stepped(self, run: PlannedRun, iteration: int) -> None:
            super().stepped(run, iteration)
            if iteration == at:
                undo.append(do_harm(images))

        def finishing(self, run: PlannedRun, test_seconds: float | None) -> None:
            self.stepped(run, LAST + 1)

    log = Harmful()
    with pytest.raises(DataError, match=message) as caught:
        train(run, tmp_path, log=log)
    assert f"{images}{os.sep}" in str(caught.value)
    directory = Store(tmp_path).directory(run.id)
    record, reached = directory.read_record(), min(log.steps[-1], LAST)
    assert record
    assert (record.status, record.iteration) == ("partial", reached)
    assert at <= reached <= at + 3 or reached == LAST
    assert not list((tmp_path / "leases").iterdir())
    undo[0](images)
    directory, log = train(run, tmp_path)
    assert log.warnings == []
    assert log.steps == [*range(reached + 1, LAST + 1)]
    assert_same(directory, expected)


def test_lost_image_where_the_rate_drops_does_not_scale_the_momentum_twice(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path
) -> None:
    class Lacking(Trainer):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            choices = self.feed.choices

            def failing(iteration: int) -> Choices:
                if iteration == DROP:
                    raise DataError("it is gone")
                return choices(iteration)

            self.feed.choices = failing  # type: ignore[method-assign]

    with pytest.raises(DataError, match="it is gone"):
        train(run, tmp_path, setting={"new_trainer": Lacking})
    assert_same(train(run, tmp_path)[0], expected)


def test_training_that_waits_for_images_says_so_once(run: PlannedRun, tmp_path: Path) -> None:
    """Not in the first period between log lines, as training always waits for its first images."""
    advice = iter(["first", "second", "third"])

    def slow(*arguments: Any, **options: Any) -> Trainer:
        trainer = Trainer(*arguments, **options)
        trainer.feed.advice = lambda: next(advice)  # type: ignore[method-assign]
        return trainer

    stop_at = 3 * run.recipe.monitoring.log_every
    assert train(run, tmp_path, stop_at=stop_at, setting={"new_trainer": slow})[1].warnings == ["second"]


def test_run_paused_after_a_short_batch_continues(run: PlannedRun, tmp_path: Path) -> None:
    """Before the next history line; 48 images are four batches of ten and one of eight."""
    changes: dict[str, Any] = {
        "batch_size": 10,
        "epoch_end": "short_batch",
        "batch_norm": replace(run.recipe.batch_norm, group=2),
        "monitoring": replace(run.recipe.monitoring, log_every=6),
    }
    short = replace(run, recipe=replace(run.recipe, **changes))
    train(short, tmp_path, stop_at=5)
    assert train(short, tmp_path, stop_at=6)[1].steps == [6]


def test_run_without_its_images_does_not_start(run: PlannedRun, images: Path, tmp_path: Path) -> None:
    back = move(images)
    with pytest.raises(DataError, match=f"{images}.* cannot be read: No such file or directory"):
        train(run, tmp_path)
    assert Store(tmp_path).directory(run.id).read_record() is None
    back(images)
    assert train(run, tmp_path, stop_at=1)[1].steps == [1]


def test_signal_while_the_mean_image_is_computed_leaves_no_run(run: PlannedRun, tmp_path: Path) -> None:
    limits = Limits()

    class Signalling(ImageFiles):
        def read(self, number: int) -> bytes:
            limits.signal = signal.SIGTERM
            return super().read(number)

    photos = cast(PhotoDataset, run.dataset)
    run = replace(run, dataset=replace(photos, train=Signalling(**vars(photos.train))))
    directory, log = train(run, tmp_path, limits)
    assert (log.records, log.failures) == ([], [])
    assert not directory.path.exists()


def test_ended_session_has_no_threads_while_its_trainer_lives(run: PlannedRun, tmp_path: Path) -> None:
    trainers = []

    def kept(*arguments: Any, **options: Any) -> Trainer:
        trainers.append(Trainer(*arguments, **options))
        return trainers[0]

    train(run, tmp_path, stop_at=1, setting={"new_trainer": kept})
    assert trainers[0].iteration == 1
    assert crop_threads() == []


def test_loss_that_is_infinite_in_a_later_evaluation_ends_the_run(run: PlannedRun, tmp_path: Path) -> None:
    class Broken(Trainer):
        def finish(self, *_: object) -> list[EvaluationMetrics]:
            return [EvaluationMetrics(1.0, 50.0, 10.0), EvaluationMetrics(math.inf, 50.0, 10.0)]

    _, log = train(run, tmp_path, setting={"new_trainer": Broken})
    assert (log.record.status, log.record.result) == ("diverged", None)


def test_lost_images_do_not_count_against_an_engine(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the run would train on a slower one to its end."""

    def lost(_: object) -> Any:
        raise DataError("it is gone")

    monkeypatch.setitem(ENGINES, "graph", ENGINES["graph"]._replace(why_not=lambda _: None))
    with pytest.raises(DataError, match="it is gone"):
        train(run, tmp_path, setting={"new_trainer": partial(Trainer, capture=lost)})
    assert Store(tmp_path).directory(run.id).read_record() is None


ITERATIONS = 200
KILLS = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)
RECIPE = {
    "batch_size": 8,
    "iterations": ITERATIONS,
    "learning_rate": 0.01,
    "drops": {"at": [100, 150]},
    "batch_norm": {"group": 2},
    "monitoring": {"log_every": 5, "test_every": 100, "checkpoint_every": 5, "checkpoint_share": 0.05},
}


def start(specs: Path, data: Path, results: Path) -> subprocess.Popen[bytes]:
    """Start or continue the training of ResNet-50 on one thread."""
    command = ["run", "table5", "--profile", "shallow", "--cells", "original_resnet152", "--device", "cpu"]
    places = ["--tables", str(specs), "--data", str(data), "--results", str(results)]
    return subprocess.Popen(
        [sys.executable, "-m", "paperbench", *command, *places],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )


def the_run(results: Path) -> RunDirectory | None:
    """Return the only run of a results directory, once it exists."""
    found = list((results / "runs").glob("*"))
    return Store(results).directory(found[0].name) if found else None


def wait_for(iteration: int, results: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until the history has a line of that iteration or a later one, and then up to the time between two lines."""
    while process.poll() is None:
        run = the_run(results)
        lines = run.history() if run else []
        if lines and lines[-1].iteration >= iteration:
            time.sleep(random.uniform(0, lines[-1].seconds / len(lines)))
            return
        time.sleep(0.2)


@pytest.mark.stress
def test_resnet50_killed_and_continued_five_times_is_bit_equal(tmp_path: Path) -> None:
    """At full crop, on the images of the index in the folder that the environment variable names."""
    data = Path(os.environ.get(ENVIRONMENT_VARIABLE, ""))
    if not (data / FILE_NAME).is_file():
        pytest.skip(f"needs an index of ImageNet, or of a subset, in the folder that {ENVIRONMENT_VARIABLE} names")
    specs = copy_of_specs(tmp_path / "specs")
    substitute = {"imagenet": {"replaces": ["imagenet"], "recipe": RECIPE}}
    change_yaml(specs / "experiments" / "profiles.yaml", (("profiles", "shallow", "datasets"), substitute))
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    other = start(specs, data, undisturbed)
    try:
        for number, iteration in zip(KILLS, sorted(random.sample(range(5, ITERATIONS - 10), len(KILLS))), strict=True):
            process = start(specs, data, disturbed)
            wait_for(iteration, disturbed, process)
            process.send_signal(number)
            assert process.wait() == (-number if number == signal.SIGKILL else 128 + number)
        assert start(specs, data, disturbed).wait() == 0
        assert other.wait() == 0
    finally:
        other.kill()
    one, two = the_run(undisturbed), the_run(disturbed)
    assert one
    assert two
    assert_same(one, two)
    record = two.read_record()
    assert record
    print(record.files.weights_sha256, [session.last for session in record.sessions])
    assert len(record.sessions) > KILLS.count(signal.SIGTERM)
