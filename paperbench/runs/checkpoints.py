"""The checkpoint files of a run, as bytes. This module does not import torch.

A file name holds the iteration and a hash of the contents, such as `checkpoint-64000-0123456789abcdef.safetensors`.
The hash reveals damage, and lets two results directories be merged by copying without overwriting a checkpoint.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from paperbench.errors import Finding
from paperbench.files import DAMAGED, MAX_TENSOR_FILE_BYTES, UNGUARDED, Writer, list_directory, read_at_most

CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})-([0-9a-f]{16})\.safetensors")


class DamagedCheckpointError(Finding):
    """A checkpoint whose contents do not match the hash in its name."""


@dataclass(frozen=True)
class CheckpointFile:
    """A checkpoint file, described by its name."""

    path: Path
    iteration: int
    digest: str

    def read(self) -> bytes:
        try:
            data = read_at_most(self.path, MAX_TENSOR_FILE_BYTES)
        except OSError as error:
            raise Finding.unreadable(self.path, error) from error
        if _digest(data) != self.digest:
            what = "is damaged: its hash does not match its name"
            raise DamagedCheckpointError(self.path, what, "Restore it, or delete it.")
        return data


class Checkpoints:
    """The checkpoints in a run's directory; see `RunDirectory` for the arguments."""

    def __init__(self, path: Path, writer: Writer = UNGUARDED) -> None:
        self.path, self._writer = path, writer

    def newest_first(self) -> list[CheckpointFile]:
        """Return all checkpoints, the highest iteration first."""
        matches = ((path, CHECKPOINT.fullmatch(path.name)) for path in list_directory(self.path))
        files = [CheckpointFile(path, int(match[1]), match[2]) for path, match in matches if match]
        return sorted(files, key=lambda file: (file.iteration, file.digest), reverse=True)

    def damaged(self) -> list[Path]:
        """Return the damaged checkpoints that were set aside."""
        return [path for path in list_directory(self.path) if path.match(f"checkpoint-*{DAMAGED}")]

    def write(self, iteration: int, data: bytes) -> CheckpointFile:
        """Write a checkpoint beside the existing ones."""
        digest = _digest(data)
        file = CheckpointFile(self.path / f"checkpoint-{iteration}-{digest}.safetensors", iteration, digest)
        self._writer.write(file.path, data)
        return file

    def prune(self, newest: CheckpointFile, *, keep_previous: bool) -> None:
        """Delete the checkpoints up to `newest`, except `newest` itself and, optionally, the one before it.

        Checkpoints of later iterations stay: another process wrote them.
        """
        others = [f for f in self.newest_first() if f.path != newest.path and f.iteration <= newest.iteration]
        if keep_previous:
            previous = next((file for file in others if file.iteration < newest.iteration), None)
            others = [file for file in others if file is not previous]
        for file in others:
            self._writer.remove(file.path)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
