"""Checkpoint files and their contents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from paperbench.errors import RunError
from paperbench.runs.checkpoints import Checkpoints, DamagedCheckpointError
from paperbench.runs.history import HistoryLine
from paperbench.runs.planning import PlannedRun
from paperbench.runs.resume import Checkpoint, CheckpointError
from paperbench.runs.store import Store
from paperbench.tensor_file import TensorFileError, read_tensor_file, tensor_file_bytes
from paperbench.typed import to_json
from tests.helpers import a_session
from tests.limits import limit_memory
from tests.runs.running import assert_equal, train


def iterations(checkpoints: Checkpoints) -> list[int]:
    return [file.iteration for file in checkpoints.newest_first()]


def test_checkpoints_are_sorted_and_other_files_ignored(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for iteration in (900, 64_000, 20):
        checkpoints.write(iteration, b"state")
    for name in ("checkpoint", "checkpoint-1-0123", "checkpoint-x-0123456789abcdef", "checkpoint-best"):
        (tmp_path / f"{name}.safetensors").touch()
    (tmp_path / "checkpoint-8-0123456789abcdef.safetensors.12.tmp").touch()
    assert iterations(checkpoints) == [64_000, 900, 20]
    file = checkpoints.newest_first()[0]
    assert file.path.name == f"checkpoint-64000-{hashlib.sha256(b'state').hexdigest()[:16]}.safetensors"
    assert file.read() == b"state"


@pytest.mark.parametrize(("keep_previous", "left"), [(True, [40, 30, 20]), (False, [40, 30])])
def test_prune_keeps_newest_and_optionally_previous(tmp_path: Path, keep_previous: bool, left: list[int]) -> None:
    """Later checkpoints are the work of another process."""
    checkpoints = Checkpoints(tmp_path)
    for iteration in (10, 20, 40):
        checkpoints.write(iteration, b"")
    checkpoints.write(30, b"of another session")
    newest = checkpoints.write(30, b"")
    (tmp_path / "checkpoint-best.safetensors").touch()
    checkpoints.prune(newest, keep_previous=keep_previous)
    assert iterations(checkpoints) == left
    assert newest.read() == b""
    assert (tmp_path / "checkpoint-best.safetensors").exists()


def test_checkpoint_with_wrong_hash_is_damaged(tmp_path: Path) -> None:
    file = Checkpoints(tmp_path).write(8, b"state")
    file.path.write_bytes(b"State")
    with pytest.raises(DamagedCheckpointError):
        file.read()


def test_unreadable_checkpoint_is_not_called_damaged(tmp_path: Path) -> None:
    file = Checkpoints(tmp_path).write(8, b"state")
    file.path.unlink()
    file.path.mkdir()
    with pytest.raises(RunError, match=r"cannot be read: Is a directory\. Restore it or make") as caught:
        file.read()
    assert not isinstance(caught.value, DamagedCheckpointError)


@pytest.fixture(scope="module")
def checkpoint(run: PlannedRun, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    directory, _ = train(run, tmp_path_factory.mktemp("eight"), stop_at=8)
    return Checkpoint.from_bytes(directory.checkpoints.newest_first()[0].read(), run.id)


def test_checkpoint_round_trip(run: PlannedRun, checkpoint: Checkpoint) -> None:
    data = checkpoint.to_bytes()
    again = Checkpoint.from_bytes(data, run.id)
    assert again.facts == checkpoint.facts
    assert again.iteration == 8
    assert_equal(again.state, checkpoint.state)
    assert {name.split(".")[0] for name in again.state} == {"iteration", "model", "momentum", "window", "noise"}
    backwards = Checkpoint(checkpoint.facts, dict(reversed(checkpoint.state.items())))
    assert again.to_bytes() == backwards.to_bytes() == data


def test_tensor_file_round_trip_for_any_memory_layout() -> None:
    wide = torch.arange(48.0).view(2, 3, 4, 2).contiguous(memory_format=torch.channels_last)
    tensors = {"wide": wide, "part": wide[0, 1], "none": torch.empty(0), "b": torch.tensor(True)}
    tensors["bf16"] = torch.randn(3).bfloat16()
    data = tensor_file_bytes(tensors, {"about": "ä"})
    assert_equal(safetensors.torch.load(data), tensors)
    assert read_tensor_file(data)[1] == {"about": "ä"}
    sizes = [int.from_bytes(tensor_file_bytes(tensors, {"about": "x" * n})[:8], "little") for n in range(8)]
    assert [size % 8 for size in sizes] == [0] * 8, "readers that map the file into memory need aligned values"
    many = {str(number): "" for number in range(8)}
    assert len({tensor_file_bytes(tensors, many) for _ in range(5)}) == 1


LINE = HistoryLine(5, 0.8, 0.1, 2.25, 87.5, None, None, 1.5)


def header(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """Return the file with a changed header."""
    end = 8 + int.from_bytes(data[:8], "little")
    contents = json.loads(data[8:end])
    change(contents)
    text = json.dumps(contents).encode()
    return len(text).to_bytes(8, "little") + text + data[end:]


def facts(data: bytes, old: str, new: str) -> bytes:
    def change(contents: dict[str, Any]) -> None:
        text = contents["__metadata__"]["paperbench"]
        assert old in text
        contents["__metadata__"]["paperbench"] = text.replace(old, new, 1)

    return header(data, change)


def tensors(data: bytes, change: Callable[[dict[str, torch.Tensor]], object]) -> bytes:
    """Return the file with changed tensors."""
    state, metadata = read_tensor_file(data)
    change(state)
    return tensor_file_bytes(state, metadata)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: header(data, lambda h: h["model.fc.bias"].update(shape=[10**6, 10**6])), "is not a checkpoint"),
        (lambda data: header(data, lambda h: h.pop("__metadata__")), "is not a checkpoint"),
        (lambda data: (10**18).to_bytes(8, "little") + data[8:], "is not a checkpoint .*too large"),
        (lambda data: data[:8] + b"[" * (len(data) - 8), "is not a checkpoint"),
        (lambda data: header(data, lambda h: h["__metadata__"].update(paperbench="[" * 10**6)), "is not a checkpoint"),
        (lambda data: facts(data, '"iteration":5', '"iteration":"five"'), "is not a checkpoint"),
        (lambda data: facts(data, '"format":1', '"format":2'), "format: must be 1, not 2"),
        (lambda data: facts(data, '"run":"', '"run":"x'), "belongs to run x"),
        (lambda data: facts(data, '"iteration":5', '"iteration":500'), "contradicts itself"),
        (lambda data: facts(data, '"sessions":[', f'"sessions":[{to_json(a_session(9))},'), "contradicts itself"),
        (lambda data: facts(data, '"last":8', '"last":7'), "contradicts itself"),
        (lambda data: facts(data, '"history":[', f'"history":[{to_json(LINE)},'), "contradicts itself"),
        (lambda data: tensors(data, lambda t: t.pop("iteration")), "lacks the number of iterations"),
        (
            lambda data: tensors(data, lambda t: t.update(iteration=torch.tensor([8, 8]))),
            "lacks the number of iterations",
        ),
        (lambda data: tensors(data, lambda t: t.update(iteration=torch.tensor(-1))), "contradicts itself"),
    ],
)
def test_invalid_checkpoint_bytes_are_refused(
    run: PlannedRun, checkpoint: Checkpoint, change: Callable[[bytes], bytes], message: str
) -> None:
    data = change(checkpoint.to_bytes())
    with limit_memory(), pytest.raises(CheckpointError, match=message):
        Checkpoint.from_bytes(data, run.id)


def test_tensors_of_a_type_that_torch_lacks_are_refused(checkpoint: Checkpoint) -> None:
    data = header(checkpoint.to_bytes(), lambda h: h["model.fc.bias"].update(dtype="F8_E8M0", shape=[40]))
    with pytest.raises(TensorFileError, match="is not a safetensors file"):
        read_tensor_file(data)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.update({"model.fc.bias": torch.zeros(11)}),
        lambda state: state.pop("momentum.3"),
        lambda state: state.pop("window.loss"),
        lambda state: state.update({"window.loss": torch.zeros((), dtype=torch.float32)}),
        lambda state: state.update({"momentum.3": state["momentum.3"].double()}),
        lambda state: state.update({"model.more": torch.zeros(2**40, 0)}),
        lambda state: state.update({"noise.cpu": torch.zeros(3, dtype=torch.uint8)}),
    ],
)
def test_state_that_does_not_fit_the_net_fails_the_run(
    run: PlannedRun, checkpoint: Checkpoint, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object]
) -> None:
    state = dict(checkpoint.state)
    change(state)
    Store(tmp_path).directory(run.id).checkpoints.write(8, Checkpoint(checkpoint.facts, state).to_bytes())
    assert "does not fit" in train(run, tmp_path)[1].failure


def test_gpu_error_while_loading_keeps_the_checkpoint(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, _ = train(run, tmp_path, stop_at=1)

    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.nn.Module, "load_state_dict", failing)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        train(run, tmp_path, incompatible="restart")
    assert directory.checkpoints.newest_first()
