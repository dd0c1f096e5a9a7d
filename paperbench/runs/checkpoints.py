"""The checkpoint files of a run. Nothing here imports torch: what is in them is the trainer's business.

A name holds the iteration and a hash of the contents, such as `checkpoint-64000-0123456789abcdef.safetensors`, so that
damage shows without a second file, and the folders of two stores can be copied over each other without one checkpoint
replacing another.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paperbench.errors import RunError
from paperbench.files import DAMAGED, read_at_most, remove, set_aside, unguarded, write_atomically

_LARGEST = 10_000_000_000
_NAME = re.compile(r"checkpoint-(\d{1,12})-([0-9a-f]{16})\.safetensors")


class DamagedCheckpointError(RunError):
    """A checkpoint that is not what was written."""


@dataclass(frozen=True)
class CheckpointFile:
    """One checkpoint, by its name."""

    path: Path
    iteration: int
    digest: str

    def read(self) -> bytes:
        """Its bytes.

        Raises:
            DamagedCheckpointError: They are not those that were written.
            RunError: The file cannot be read.
        """
        try:
            data = read_at_most(self.path, _LARGEST)
        except OSError as error:
            raise RunError(
                f"{self.path} cannot be read: {error.strerror or error}. Mend that, and give the same command again."
            ) from error
        if _digest(data) != self.digest:
            raise DamagedCheckpointError(f"{self.path} does not hold what was written: its hash is another")
        return data


class Checkpoints:
    """The checkpoints in a run's folder.

    Args:
        folder: The run's.
        guard: Called before anything is written or removed; may raise to prevent it.
    """

    def __init__(self, folder: Path, guard: Callable[[], None] = unguarded) -> None:
        self.folder, self._guard = folder, guard

    def newest_first(self) -> list[CheckpointFile]:
        """All of them, the farthest first."""
        named = ((path, _NAME.fullmatch(path.name)) for path in self.folder.glob("checkpoint-*.safetensors"))
        files = [CheckpointFile(path, int(match[1]), match[2]) for path, match in named if match]
        return sorted(files, key=lambda file: (file.iteration, file.digest), reverse=True)

    def damaged(self) -> list[Path]:
        """Those that were set aside."""
        return sorted(self.folder.glob(f"checkpoint-*{DAMAGED}"))

    def write(self, iteration: int, data: bytes) -> CheckpointFile:
        """A new checkpoint; those there stay.

        Raises:
            PaperbenchError: It cannot be written.
        """
        digest = _digest(data)
        file = CheckpointFile(self.folder / f"checkpoint-{iteration}-{digest}.safetensors", iteration, digest)
        write_atomically(file.path, data, self._guard)
        return file

    def prune(self, newest: CheckpointFile, *, keep_previous: bool) -> None:
        """Remove those before the newest or, if asked to, all of these but the farthest one of an earlier iteration.

        What is farther than `newest` is not this process's work, and stays.

        Raises:
            PaperbenchError: The folder cannot be written.
        """
        others = [f for f in self.newest_first() if f.path != newest.path and f.iteration <= newest.iteration]
        if keep_previous:
            previous = next((file for file in others if file.iteration < newest.iteration), None)
            others = [file for file in others if file is not previous]
        for file in others:
            remove(file.path, self._guard)

    def set_aside(self, file: CheckpointFile) -> Path:
        """Give a damaged checkpoint a name under which it is not looked for; returns that."""
        return set_aside(file.path, self._guard)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
