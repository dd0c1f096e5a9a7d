"""A small world of tables, data and results for tests to damage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paperbench.analysis.record import write_analysis
from paperbench.cli.main import main
from paperbench.runs import lease
from paperbench.runs.store import Store
from tests.helpers import copy_of_tiny_specs, random_images
from tests.report.made_analyses import made, with_everything

TABLE = ("table2", "--profile", "smoke", "--tables", ".")
CELLS = ("original/resnet110", "preact/resnet110")
COMPARE = ("compare", *TABLE, "--results", "results")
VERIFY = ("verify", "results")
ANALYZE = ("analyze", "--results", "results")
RUN = ("run", *TABLE, "--results", "results", "--device", "cpu", "--cells", *CELLS)


@pytest.fixture(autouse=True, scope="package")
def impatient() -> Iterator[None]:
    """Wait for other processes as briefly as possible, and print lines that are wide enough for long paths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "LEASE_SECONDS", 0.5)
        patch.setenv("COLUMNS", "200")
        yield


@pytest.fixture(scope="session")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with tables, data, images, and results: one finished run, one paused run, one external result."""
    world = copy_of_tiny_specs(tmp_path_factory.mktemp("untouched"))
    with chdir(world):
        assert main(RUN[:-1]) == 0
        assert main([*RUN[:-2], CELLS[1], "--stop-at", "4"]) == 0
        external = ("--error", "6.5", "--seed", "1", "--source", "someone", "--tables", ".", "--results", "results")
        assert main(["record", "table2", CELLS[0], *external]) == 0
        assert main(["verify", "results", "--tables", ".", "--device", "cpu", "--rerun", "1", "--save"]) == 0
        write_analysis(world / "results", with_everything(made()))
        (world / "results" / "superseded" / "old-1").mkdir(parents=True)
        (world / "results" / "superseded" / "old-1" / "record.json").write_text("{}")
        images, labels = random_images(10)[0], np.arange(10)
        for part in ("train", "test"):
            for label in range(10):
                (world / "images" / part / str(label)).mkdir(parents=True)
                Image.fromarray(images[label]).save(world / "images" / part / str(label) / "a.png")
        (world / "data").mkdir()
        np.savez(world / "data" / "cifar10.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
        (world / "data" / "dataset.yaml").write_text("name: pixels\norigin: a test\n")
        for part in ("train", "val"):
            (world / "photos" / part / "n01440764").mkdir(parents=True)
            Image.fromarray(images[0]).save(world / "photos" / part / "n01440764" / "a.JPEG")
        assert main(["data", "index", "imagenet", "photos", "--subset", "--data", "data"]) == 0
    return world


@pytest.fixture(scope="session")
def names(untouched: Path) -> dict[str, str]:
    """The names of runs and checkpoints in the paths above."""
    store = Store(untouched / "results")
    run = {record.status: record.run for record in store.records()[0]}
    (last,) = store.directory(run["finished"]).checkpoints.newest_first()
    newest, older = store.directory(run["partial"]).checkpoints.newest_first()
    (external,) = (untouched / "results" / "external").iterdir()
    (analysis,) = (untouched / "results" / "analysis").iterdir()
    files = {
        "analysis": analysis.name,
        "last": last.path.name,
        "newest": newest.path.name,
        "older": older.path.name,
        "external": external.name,
    }
    return {"finished": run["finished"], "paused": run["partial"], "analysis": analysis.name, **files}
