"""Train tiny runs, record what their observer receives, and compare their results."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from paperbench.catalogue import DATASETS, resolve
from paperbench.data.dataset import Dataset
from paperbench.models import ResidualNet
from paperbench.runs.history import HistoryLine
from paperbench.runs.limits import Limits
from paperbench.runs.observer import Observer
from paperbench.runs.planning import PlannedRun, run_spec
from paperbench.runs.record import Files, Record
from paperbench.runs.resume import Checkpoint
from paperbench.runs.session import SessionSetting
from paperbench.runs.store import RunDirectory, Store
from paperbench.runs.worker import Incompatible, Worker
from paperbench.specs.experiment import NetReference
from paperbench.specs.recipe import BatchNormSettings, Drops, Evaluation, Monitoring, Recipe, WarmUp
from paperbench.specs.run_spec import Precision
from paperbench.specs.yaml_file import read_yaml
from tests.helpers import ROOT, a_session

CPU = torch.device("cpu")


def tiny_recipe(paper_recipe: Recipe, **changes: Any) -> Recipe:
    """20 iterations of 16 images with a warm-up, a drop, and epochs that end within batches (of 100 images)."""
    recipe = replace(
        paper_recipe,
        batch_size=16,
        iterations=20,
        warm_up=WarmUp(0.01, 4),
        drops=Drops((12,), 0.1),
        batch_norm=BatchNormSettings(8, 1e-5, 0.1, "reestimated"),
        monitoring=Monitoring(log_every=5, test_every=10, checkpoint_every=8, checkpoint_share=1.0),
    )
    return replace(recipe, **changes)


def photographs_recipe(**changes: Any) -> Recipe:
    """That of ImageNet on crops of 32 pixels: 12 iterations of 8 images, with a drop and a test after 6."""
    recipe = read_yaml(ROOT / "experiments" / "recipes" / "imagenet.yaml").parse(Recipe)
    assert recipe.photographs
    recipe = replace(
        recipe,
        batch_size=8,
        iterations=12,
        learning_rate=0.01,
        drops=Drops((6,), 0.1),
        photographs=replace(recipe.photographs, crop=32, shorter_side=(36, 68), mean_image_scale=36),
        evaluations={"small": Evaluation(32, 36), "large": Evaluation(40, 40)},
        batch_norm=BatchNormSettings(4, 1e-5, 0.1, "reestimated"),
        monitoring=Monitoring(log_every=3, test_every=6, checkpoint_every=5, checkpoint_share=1.0),
    )
    return replace(recipe, **changes)


def plan_run(
    recipe: Recipe, dataset: Dataset, net_name: str = "preact_resnet20", precision: Precision = "fp32", **kwargs: Any
) -> PlannedRun:
    reference = NetReference(net_name, {"depth": 11 if "164" in net_name else 8, **kwargs})
    net = replace(resolve(reference.model, **reference.kwargs), num_classes=DATASETS[dataset.key].num_classes)
    spec = run_spec(net, recipe, dataset.fingerprint, "paper", precision)
    return PlannedRun(spec, 0, net, reference, recipe, dataset, ("preact/resnet110",))


class Log(Observer):
    """An observer that records all calls.

    Args:
        on_step: Called after each iteration.
    """

    def __init__(self, on_step: Callable[[int], object] = lambda _: None) -> None:
        self.on_step = on_step
        self.checks: list[str] = []
        self.steps: list[int] = []
        self.lines: list[HistoryLine] = []
        self.skips: list[tuple[str, str]] = []
        self.failures: list[tuple[str, str]] = []
        self.warnings: list[str] = []
        self.waits: list[int] = []
        self.records: list[Record] = []

    def skipped(self, run: PlannedRun, why: str) -> None:
        self.skips.append((run.id, why))

    def started(self, run: PlannedRun, iteration: int, last_iteration: int, engine: str, reason: str) -> None:
        self.engine = (engine, reason)

    def checking(self, run: PlannedRun, engine: str, processes: int) -> None:
        self.checks.append(engine)

    def stepped(self, run: PlannedRun, iteration: int) -> None:
        self.steps.append(iteration)
        self.on_step(iteration)

    def logged(self, run: PlannedRun, line: HistoryLine) -> None:
        self.lines.append(line)

    def ended(self, run: PlannedRun, record: Record) -> None:
        self.records.append(record)

    def failed(self, run: PlannedRun, why: str) -> None:
        self.failures.append((run.id, why))

    def waiting(self, runs: int, seconds: float) -> None:
        self.waits.append(runs)

    def warned(self, run: PlannedRun, text: str) -> None:
        self.warnings.append(text)

    @property
    def record(self) -> Record:
        return self.records[-1]

    @property
    def failure(self) -> str:
        ((_, why),) = self.failures
        return why


def train(
    run: PlannedRun,
    root: Path,
    limits: Limits | None = None,
    log: Log | None = None,
    incompatible: Incompatible = "refuse",
    device: torch.device = CPU,
    engine: str = "auto",
    setting: Mapping[str, Any] = MappingProxyType({}),
    **values: float,
) -> tuple[RunDirectory, Log]:
    """Start or resume a run, or skip it if it is done, as the command line does.

    Args:
        setting: More values of `SessionSetting`.
        values: Those of `Limits`, if that is not given.
    """
    store, log = Store(root), log or Log()
    whole = SessionSetting(device, limits or Limits(**values), log, engine, **setting)
    Worker(store, whole, incompatible).run_all([run])
    return store.directory(run.id), log


@contextmanager
def before_forward(call: Callable[[], object]) -> Iterator[None]:
    """Call a function before each batch passes through a net, in training and in tests."""

    def hook(module: torch.nn.Module, _: object) -> None:
        if isinstance(module, ResidualNet):
            call()

    handle = torch.nn.modules.module.register_module_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def newest_state(directory: RunDirectory) -> dict[str, torch.Tensor]:
    """Load the trainer's state from the newest checkpoint."""
    return Checkpoint.from_bytes(directory.checkpoints.newest_first()[0].read(), directory.path.name).state


def fill(disk: Path, leave: int) -> Path:
    """Write a file that leaves the given number of bytes free."""
    ballast = disk / "ballast"
    free = shutil.disk_usage(disk).free
    ballast.write_bytes(b"\0" * max(0, free - leave))
    return ballast


def without_names(text: str, root: Path) -> str:
    """Return a message without what differs between machines: places, ids of runs and hashes in names of files."""
    ids: dict[str, str] = {}  # numbered as they appear
    text = re.sub(
        r"\b(?!0123456789ab)[0-9a-f]{12}(?=-s)",
        lambda found: ids.setdefault(found[0], f"RUN{len(ids) + 1}"),
        text.replace(f"{root}/", ""),
    )
    return re.sub(r"-[0-9a-f]{16}\b", "-HASH", text)


def edit_checkpoint(directory: RunDirectory, change: Callable[[Checkpoint], Checkpoint]) -> None:
    """Replace the checkpoints of a paused run by a changed copy of the newest."""
    files = directory.checkpoints.newest_first()
    checkpoint = change(Checkpoint.from_bytes(files[0].read(), directory.path.name))
    for file in files:
        file.path.unlink()
    directory.checkpoints.write(files[0].iteration, checkpoint.to_bytes())


def without_times(directory: RunDirectory) -> tuple[Record, list[HistoryLine]]:
    """Return record and history without times, hosts and the number of sessions."""
    record = directory.read_record()
    assert record
    plain = replace(
        record,
        sessions=(a_session(record.iteration),),
        files=Files(record.files.history_lines, "", "", record.files.weights_sha256),
    )
    return plain, [replace(line, seconds=0.0) for line in directory.history()]


def assert_same(one: RunDirectory, other: RunDirectory) -> None:
    """Assert that two runs are bit-identical: record, history, parameters, statistics, momentum, random state."""
    assert without_times(one) == without_times(other)
    assert_equal(newest_state(one), newest_state(other))


def assert_equal(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> None:
    """Assert that names and tensors are bit-identical; NaN equals NaN."""
    torch.testing.assert_close(dict(one), dict(other), rtol=0, atol=0, equal_nan=True)
