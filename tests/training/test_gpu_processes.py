"""Two processes with a GPU each, which talk by NCCL, must make the numbers of one, bit for bit.

NCCL refuses two processes on one GPU, so this needs two. Processes are spawned, as CUDA does not survive a fork.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
import torch

from paperbench.catalogue import resolve
from paperbench.data.dataset import Dataset
from paperbench.launch import Launch
from paperbench.specs.recipe import BatchNormSettings, Drops, Recipe
from paperbench.tensor_file import read_tensor_file, tensor_file_bytes
from paperbench.training.processes import Processes
from paperbench.training.trainer import Trainer
from tests.training.together import SECONDS, free_port


def train(
    launch: Launch | None,
    device_type: str,
    net: str,
    recipe: Recipe,
    dataset: Dataset,
    how: tuple[str, str],
    last: int,
    saved: bytes | None,
) -> tuple[bytes, bytes, list[Any]]:
    """Return the states after iteration `last` and after the final tests, and all results.

    Args:
        how: Precision and engine.
        saved: The state to begin with.
    """
    torch.set_num_threads(1)
    device = torch.device(device_type, (launch.local_rank if launch else 0) if device_type == "cuda" else None)
    processes = Processes(launch, device)
    trainer = Trainer(resolve(net, depth=8), recipe, dataset, 3, how[0], device, how[1], processes=processes)
    if saved:
        trainer.load_state_dict(read_tensor_file(saved)[0])
    while trainer.iteration < last:
        trainer.step()
    trained = tensor_file_bytes(trainer.state_dict(), {})
    results = [trainer.metrics.compute(), trainer.test(), *trainer.finish()]
    finished = tensor_file_bytes(trainer.state_dict(), {})
    processes.end()
    return trained, finished, results


def train_with(count: int, *what: Any) -> Any:
    """Return what `train` returns in each of so many new processes, which must be the same."""
    port = free_port()
    launches = [Launch(rank, count, rank, "127.0.0.1", port) for rank in range(count)] if count > 1 else [None]
    pools = [ProcessPoolExecutor(1, get_context("spawn")) for _ in launches]
    try:
        pending = [pool.submit(train, launch, *what) for pool, launch in zip(pools, launches, strict=True)]
        results = [one.result(timeout=2 * SECONDS) for one in pending]
        for one in results[1:]:
            assert_same(one, results[0])
        return results[0]
    finally:
        for pool in pools:
            for process in [*(pool._processes or {}).values()]:
                process.kill()
            pool.shutdown()


def differences(found: bytes, expected: bytes) -> list[str]:
    """Describe the first difference of each tensor of two states."""
    lines = []
    states = [read_tensor_file(data)[0] for data in (found, expected)]
    assert states[0].keys() == states[1].keys()
    for name, wanted in states[1].items():
        ours, theirs = (tensor.reshape(-1).numpy() for tensor in (states[0][name], wanted))
        bits = [values.view(np.uint8).reshape(len(values), -1) for values in (ours, theirs)]
        places = np.flatnonzero((bits[0] != bits[1]).any(axis=1))
        if len(places):
            at = places[0]
            lines.append(f"{name}: {len(places)} of {len(ours)}, first at {at}: {ours[at]} instead of {theirs[at]}")
    return lines


def assert_same(found: Any, expected: Any) -> None:
    assert differences(found[0], expected[0]) == []
    assert differences(found[1], expected[1]) == []
    assert found[2] == expected[2]


def require_gpus(device: str) -> None:
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")


@pytest.fixture
def shared_recipe(recipe: Recipe) -> Recipe:
    """Eight batches of 16 images in four groups; a warm-up and a drop change the rate."""
    groups = BatchNormSettings(4, 1e-5, 0.1, "reestimated")
    return replace(recipe, iterations=8, drops=Drops((6,), 0.1), batch_norm=groups)


@pytest.mark.parametrize(
    ("device", "engine", "precision"),
    [
        pytest.param("cpu", "eager", "fp32", marks=pytest.mark.full),  # tries this file; `test_processes.py` has more
        *(
            pytest.param("cuda", engine, precision, marks=pytest.mark.gpu)
            for engine in ("eager", "graph")
            for precision in ("fp32", "bf16")
        ),
    ],
)
def test_two_gpus_make_the_numbers_of_one(
    shared_recipe: Recipe, tiny_dataset: Dataset, device: str, engine: str, precision: str
) -> None:
    require_gpus(device)
    what = device, "preact_resnet20", shared_recipe, tiny_dataset, (precision, engine), shared_recipe.iterations, None
    assert_same(*(train_with(count, *what) for count in (2, 1)))


@pytest.mark.gpu
def test_one_gpu_goes_on_with_a_run_of_two(shared_recipe: Recipe, tiny_dataset: Dataset) -> None:
    """And changes the engine."""
    require_gpus("cuda")
    what = "cuda", "preact_resnet20", shared_recipe, tiny_dataset
    alone = train_with(1, *what, ("fp32", "eager"), 8, None)
    half, _, _ = train_with(2, *what, ("fp32", "graph"), 3, None)
    assert_same(train_with(1, *what, ("fp32", "eager"), 8, half), alone)


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_two_gpus_make_the_numbers_of_one_on_photographs(photo_recipe: Recipe, photos: Dataset, engine: str) -> None:
    """Twelve batches of four groups of two."""
    require_gpus("cuda")
    recipe = replace(photo_recipe, batch_size=8, iterations=12)
    what = "cuda", "preact_resnet20", recipe, photos, ("fp32", engine), recipe.iterations, None
    assert_same(*(train_with(count, *what) for count in (2, 1)))
