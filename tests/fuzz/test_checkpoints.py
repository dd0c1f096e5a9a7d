from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paperbench.data.dataset import ImageDataset
from paperbench.runs.planning import PlannedRun
from paperbench.runs.resume import Checkpoint, CheckpointError
from paperbench.runs.store import RunDirectory, Store
from paperbench.runs.verify import verify
from paperbench.specs.recipe import Recipe
from paperbench.tensor_file import read_tensor_file, tensor_file_bytes
from tests.fuzz.strategies import (
    JSON_TOKENS,
    JSON_VALUES,
    TENSOR_TOKENS,
    altered_trees,
    damaged,
    is_refused,
    share_of_examples,
    times_examples,
)
from tests.helpers import random_dataset
from tests.runs.running import plan_run, tiny_recipe, train


@pytest.fixture(scope="module")
def data() -> ImageDataset:
    return random_dataset(8)


@pytest.fixture(scope="module")
def run(paper_recipe: Recipe, data: ImageDataset) -> PlannedRun:
    return plan_run(tiny_recipe(paper_recipe), data)


@pytest.fixture(scope="module")
def paused(run: PlannedRun, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return train(run, tmp_path_factory.mktemp("paused"), stop_at=8)[0]


@pytest.fixture(scope="module")
def checkpoint(paused: RunDirectory) -> bytes:
    return paused.checkpoints.newest_first()[0].read()


@pytest.fixture(scope="module")
def elsewhere(run: PlannedRun, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return Store(tmp_path_factory.mktemp("elsewhere")).directory(run.id)


def is_resumed(run: PlannedRun, directory: RunDirectory, checkpoint: bytes) -> bool:
    """Whether a run continues from a checkpoint; if not, its failure must be reported."""
    for file in directory.path.glob("*"):
        file.unlink()
    directory.checkpoints.write(8, checkpoint)
    _, log = train(run, directory.path.parents[1], stop_at=9)
    assert log.failures or log.records
    return not log.failures


@times_examples(2)
@given(values=st.data())
def test_damaged_checkpoint_is_read_or_refused(run: PlannedRun, checkpoint: bytes, values: st.DataObject) -> None:
    end = 8 + int.from_bytes(checkpoint[:8], "little")
    content = values.draw(damaged(checkpoint[:end], (*TENSOR_TOKENS, *JSON_TOKENS))) + checkpoint[end:]
    is_refused(CheckpointError, Checkpoint.from_bytes, content, run.id)


@times_examples(2)
@given(values=st.data())
def test_checkpoint_with_altered_facts_is_resumed_or_refused(
    run: PlannedRun, checkpoint: bytes, elsewhere: RunDirectory, values: st.DataObject
) -> None:
    state, metadata = read_tensor_file(checkpoint)
    tree = values.draw(altered_trees(json.loads(metadata["paperbench"])) | JSON_VALUES)
    content = tensor_file_bytes(state, {"paperbench": json.dumps(tree)})
    if not is_refused(CheckpointError, Checkpoint.from_bytes, content, run.id):
        is_resumed(run, elsewhere, content)


def counted(tensor: torch.Tensor, number: int) -> torch.Tensor:
    return torch.full_like(tensor, number)


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "missing": lambda _: None,
    "float64": lambda tensor: tensor.double(),
    "int64": lambda tensor: tensor.to(torch.int64),
    "one more dimension": lambda tensor: tensor[None],
    "none": lambda tensor: tensor.flatten()[:0],
    "of zero elements": lambda _: torch.zeros(2**40, 0),
}


@share_of_examples(2)
@given(part=st.sampled_from(["iteration", "window", "noise", "momentum", "model"]), change=st.sampled_from([*CHANGES]))
def test_checkpoint_with_altered_tensor_is_refused(
    run: PlannedRun, checkpoint: bytes, elsewhere: RunDirectory, part: str, change: str
) -> None:
    state, metadata = read_tensor_file(checkpoint)
    name = next(name for name in state if name.startswith(part))
    before = (state[name].shape, state[name].dtype)
    after = CHANGES[change](state.pop(name))
    if after is not None:
        state[name] = after
        if (after.shape, after.dtype) == before:
            return
    assert not is_resumed(run, elsewhere, tensor_file_bytes(state, metadata))


@pytest.mark.parametrize("number", [-5, 7, 10**18])
@pytest.mark.parametrize("name", ["iteration", "window.images"])
def test_checkpoint_with_another_count_is_refused(
    run: PlannedRun, checkpoint: bytes, elsewhere: RunDirectory, name: str, number: int
) -> None:
    state, metadata = read_tensor_file(checkpoint)
    assert is_resumed(run, elsewhere, checkpoint)
    state[name] = torch.tensor(number)
    assert not is_resumed(run, elsewhere, tensor_file_bytes(state, metadata))


@given(values=st.data())
def test_spec_with_altered_values_is_verified(
    run: PlannedRun, paused: RunDirectory, tmp_path_factory: pytest.TempPathFactory, values: st.DataObject
) -> None:
    record = paused.read_record()
    assert record
    parts: dict[str, Any] = {}
    for name in ("net", "recipe"):
        tree = values.draw(altered_trees(getattr(record.spec, name)))
        parts[name] = tree if isinstance(tree, dict) else {"value": tree}
    spec = replace(record.spec, **parts)
    store = Store(Path(tmp_path_factory.mktemp("results")))
    directory = store.directory(spec.run_id(0))
    directory.write_record(replace(record, spec=spec, run=spec.run_id(0)))
    directory.write_history(paused.history())
    (found,) = verify(store)
    assert found.status in ("partial", "unreadable")  # text with a lone surrogate is not JSON
    assert all(str(problem).strip() for problem in found.problems)
