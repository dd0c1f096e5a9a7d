"""Helpers for several test files: copies of the shipped specs, image data sets, processes, records."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from paperbench.data.dataset import ImageDataset
from paperbench.runs.record import Code, DataFacts, Divergence, Environment, Files, Measured, Record, Result, Session
from paperbench.runs.store import RunDirectory, Store
from paperbench.specs.recipe import Evaluation
from paperbench.specs.run_spec import RunSpec

ROOT = Path(__file__).resolve().parents[1]


def copy_of_specs(target: Path) -> Path:
    """Copy experiments/ and expected/ for a test to change."""
    for name in ("experiments", "expected"):
        shutil.copytree(ROOT / name, target / name)
    return target


def copy_of_tiny_specs(target: Path, **recipe: Any) -> Path:
    """Copy the specs with a smoke profile that trains on digits for six iterations, with changes to its recipe."""
    root = copy_of_specs(target)
    tiny = {
        "batch_size": 8,
        "iterations": 6,
        "warm_up": {"learning_rate": 0.01, "iterations": 1},
        "drops": {"at": [3, 5]},
        "augmentation": {"padding": 4, "flip": False},
        "batch_norm": {"group": 8, "at_test": "moving_average"},
        "monitoring": {"log_every": 1, "test_every": 3, "checkpoint_every": 2, "checkpoint_share": 1.0},
    }
    digits = {"replaces": ["cifar10", "cifar100"], "recipe": {**tiny, **recipe}}
    smoke = {"title": "tiny", "depth": {"basic": 8, "bottleneck": 11}, "datasets": {"digits": digits}, "seeds": 1}
    profiles = {"paper": {"title": "exact"}, "smoke": smoke}
    content = yaml.safe_dump({"schema": 1, "profiles": profiles})
    (root / "experiments" / "profiles.yaml").write_text(content, encoding="utf-8")
    return root


def copy_of_photo_specs(target: Path, crop: int) -> Path:
    """Copy the specs with a smoke profile that trains Table 5 on small crops for two iterations."""
    root, smoke = copy_of_specs(target), ("profiles", "smoke", "datasets", "photos")
    recipe, large = (*smoke, "recipe"), crop * 3 // 2
    evaluations = {"crop224": {"crop": crop, "scale": 73}, "crop320": {"crop": large, "scale": large}}
    change_yaml(
        root / "experiments" / "profiles.yaml",
        ((*recipe, "batch_size"), 4),
        ((*recipe, "iterations"), 2),
        ((*recipe, "drops"), {"at": [1]}),
        ((*recipe, "photographs"), {"crop": crop}),
        ((*recipe, "evaluations"), evaluations),
        ((*recipe, "monitoring"), {"log_every": 1, "test_every": 2, "checkpoint_every": 1}),
    )
    return root


def edit(path: Path, old: str, new: str) -> int:
    """Replace a text that occurs exactly once in a file; return the line number, from 1, of the replacement."""
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {path}"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return text[: text.index(old)].count("\n") + 1


def change_yaml(path: Path, *changes: tuple[tuple[str | int, ...], Any]) -> None:
    """Set the values at some paths of keys and indices in a YAML file."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    for (*parents, last), value in changes:
        holder = content
        for part in parents:
            holder = holder[part]
        holder[last] = value
    path.write_text(yaml.safe_dump(content, allow_unicode=True, sort_keys=False), encoding="utf-8")


def line_of(path: Path, text: str) -> int:
    """Return the number, from 1, of the only line that contains a text."""
    lines = [number for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if text in line]
    assert len(lines) == 1, f"{text!r} is in lines {lines} of {path}"
    return lines[0]


def random_images(n: int, seed: int = 0, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8), rng.integers(0, classes, n)


def random_dataset(side: int) -> ImageDataset:
    """Return 100 training and 40 test images of side x side random pixels."""
    rng = np.random.default_rng(0)
    return ImageDataset(
        key="cifar10",
        name="random pixels",
        origin="a test",
        canonical=False,
        x_train=rng.integers(0, 256, (100, side, side, 3), dtype=np.uint8),
        y_train=rng.integers(0, 10, 100),
        x_test=rng.integers(0, 256, (40, side, side, 3), dtype=np.uint8),
        y_test=rng.integers(0, 10, 40),
    )


def paperbench_process(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `python -m paperbench ...` in another process."""
    return python("-m", "paperbench", *arguments, cwd=cwd)


def python(*arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run another Python process that can import the package."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=cwd, env=environment, timeout=300
    )


SPEC_VALUES: dict[str, Any] = {
    "net": {"family": "basic", "depth": 8, "placement": "preact", "shortcut_option": "A", "num_classes": 10},
    "recipe": {"iterations": 80, "learning_rate": 0.1, "warm_up": None, "drops": {"at": [50, 65], "factor": 0.1}},
    "data": "ab" * 32,
    "profile": "paper",
    "precision": "fp32",
}


def a_spec(**changes: Any) -> RunSpec:
    return RunSpec(**{**SPEC_VALUES, **changes})


CHECKPOINT = "checkpoint-80-0123456789abcdef.safetensors"
CODE = Code("0.1.0", None, "0" * 16, 1)
ENVIRONMENT = Environment("3.11.7", "2.15.0", "0.29.2", "1.0.31", "2.4.6", None, None, "Linux x", "a CPU", 2)


def a_session(last: int, **changes: Any) -> Session:
    """Return a session that ended at iteration `last`, with changes to it, its code or its environment."""
    code, environment = (
        replace(part, **{key: changes.pop(key) for key in list(changes) if hasattr(part, key)})
        for part in (CODE, ENVIRONMENT)
    )
    return replace(Session(last, 6.25, "eager", code, environment), **changes)


def a_record(**changes: Any) -> Record:
    """Return a consistent record of a finished run, or of the given status, with changes."""
    spec, seed, status = changes.get("spec", a_spec()), changes.get("seed", 3), changes.get("status", "finished")
    iteration = changes.get("iteration", {"finished": 80, "partial": 40, "diverged": 7}[status])
    values: dict[str, Any] = {
        "schema": 1,
        "run": spec.run_id(seed),
        "seed": seed,
        "net": "preact_resnet20(depth=8)",
        "status": status,
        "iteration": iteration,
        "result": Result(6.5, 0.25, 6.75, 0.26, 6.25) if status == "finished" else None,
        "divergence": Divergence(5, 0.1, "forward", "stages.0.1") if status == "diverged" else None,
        "sessions": (a_session(5), a_session(iteration)),
        "test_every": 40,
        "data": DataFacts("random pixels", "a test", False, spec.data),
        "spec": spec,
        "files": Files(4, "0" * 64, CHECKPOINT, "0" * 64 if status == "finished" else None),
    }
    return Record(**{**values, **changes})


CROP224, CROP320 = Evaluation(224, 256), Evaluation(320, 320)


def a_photo_record() -> Record:
    """Return the record of a run whose net was tested in two ways."""
    measured = Measured(CROP224, 23.0, 6.7, 0.9), Measured(CROP320, 21.3, 5.5, 0.8)
    return a_record(result=Result(23.0, 0.9, 24.0, 1.0, 23.5, measured), evaluations=(CROP224, CROP320))


def json_with_hash(values: dict[str, Any]) -> str:
    """Return JSON text with the sha256 of the values under its last key, as records and external results have it."""
    values = {key: value for key, value in values.items() if key != "sha256"}
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return json.dumps({**values, "sha256": hashlib.sha256(canonical.encode()).hexdigest()})


def write_record(store: Store, record: Record, name: str | None = None) -> RunDirectory:
    """Write a record into a results directory, under its run id or another name."""
    directory = store.directory(name or record.run)
    directory.write_record(record)
    return directory
