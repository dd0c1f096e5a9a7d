from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

from paperbench.training.checkpoint import CheckpointError, ForeignFormatError, checkpoint_bytes, read_checkpoint


def test_tensors_and_plain_values_come_back() -> None:
    contents = {"x": torch.arange(5.0), "nested": [{"seconds": 0.1, "commit": None}], "iteration": 7}
    found, version = read_checkpoint(checkpoint_bytes("a-run", contents), "a-run")
    assert torch.equal(found.pop("x"), contents.pop("x"))
    assert found == contents
    assert version == torch.__version__


def test_the_same_contents_are_the_same_bytes() -> None:
    contents = {"x": torch.arange(5.0), "name": "a"}
    assert checkpoint_bytes("a-run", contents) == checkpoint_bytes("a-run", contents)


@pytest.mark.parametrize("cut", [1, 700, 100_000])
def test_a_truncated_one_is_refused(cut: int) -> None:
    data = checkpoint_bytes("a-run", {"x": torch.zeros(1000)})
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_checkpoint(data[:-cut], "a-run")


def test_code_in_one_is_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.write_text, (tmp_path / "sprung", ""))

    with pytest.raises(CheckpointError, match="cannot be read"):
        read_checkpoint(checkpoint_bytes("a-run", {"trainer": Trap()}), "a-run")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "payload",
    [
        {"format": 2, "run": "a-run", "torch": "2.0", "contents": {}},
        {"format": 3, "run": "another-run", "torch": "2.0", "contents": {}},
        {"format": 3, "run": "a-run", "torch": 2, "contents": {}},
        {"format": 3, "run": "a-run", "torch": "2.0", "contents": []},
        {"format": 3},
        [3],
        7,
    ],
)
def test_what_is_no_checkpoint_of_this_run_and_format_is_refused(payload: Any) -> None:
    stream = io.BytesIO()
    torch.save(payload, stream)
    is_foreign = isinstance(payload, dict) and payload["format"] == 2
    with pytest.raises(ForeignFormatError if is_foreign else CheckpointError):
        read_checkpoint(stream.getvalue(), "a-run")
