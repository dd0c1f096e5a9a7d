from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paperbench
from paperbench.runs.environment import code_facts, environment_facts, source_digest


def package(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


FILES = {"__init__.py": "", "a.py": "x = 1\n", "sub/b.py": "y = 2\n"}


@pytest.mark.parametrize(
    "changed",
    [
        {**FILES, "a.py": "x = 2\n"},
        {**FILES, "c.py": ""},
        {"__init__.py": "", "a.py": "y = 2\n", "sub/b.py": "x = 1\n"},
        {"__init__.py": "", "a.py": "x = 1\n", "b.py": "y = 2\n"},
    ],
    ids=["edited", "added", "exchanged", "moved"],
)
def test_the_source_digest_tells_changed_code(tmp_path: Path, changed: dict[str, str]) -> None:
    original = source_digest(package(tmp_path / "original", FILES))
    assert source_digest(package(tmp_path / "copy", {**FILES, "notes.txt": "no code"})) == original
    assert source_digest(package(tmp_path / "changed", changed)) != original
    assert len(original) == 16


def test_code_facts() -> None:
    facts = code_facts("eager")
    assert facts.version == paperbench.__version__
    assert facts.source == source_digest(Path(paperbench.__file__).parent)
    assert facts.engine == "eager"


def test_environment_facts_on_the_cpu() -> None:
    facts = environment_facts(torch.device("cpu"))
    assert facts.torch == torch.__version__
    assert facts.threads == torch.get_num_threads()
    assert facts.cuda is None
    assert facts.device
