"""Where experiments/ and expected/ are: inside an installed wheel, or at the top of a source checkout."""

from __future__ import annotations

from pathlib import Path

from paperbench.errors import PaperbenchError


def spec_root(chosen: Path | None = None) -> Path:
    """The folder that holds experiments/ and expected/.

    Args:
        chosen: A folder named by the user, who may have tables of their own.

    Raises:
        PaperbenchError: The chosen folder, or else the installation, lacks them.
    """
    package = Path(__file__).resolve().parents[1]
    candidates = [chosen] if chosen else [package / "_specs", package.parent]
    for root in candidates:
        if (root / "experiments").is_dir() and (root / "expected").is_dir():
            return root
    if chosen:
        raise PaperbenchError(
            f"{chosen} has no folders experiments/ and expected/. Name one that has, or leave it out."
        )
    raise PaperbenchError("This installation lacks its experiments/ and expected/ folders. Install paperbench again.")
