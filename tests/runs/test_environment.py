from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from paperbench.runs.environment import commit_of, environment_facts, source_digest
from tests.helpers import ROOT
from tests.training.gpus import GPU, V100, with_gpus


def write_files(directory: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


FILES = {"__init__.py": "", "a.py": "x = 1\n", "sub/b.py": "y = 2\n"}


def test_source_digest_changes_with_the_code(tmp_path: Path) -> None:
    trees = (
        FILES,
        {**FILES, "a.py": "x = 2\n"},
        {**FILES, "c.py": ""},
        {"__init__.py": "", "a.py": "y = 2\n", "sub/b.py": "x = 1\n"},
        {"__init__.py": "", "a.py": "x = 1\n", "b.py": "y = 2\n"},
    )
    digests = [source_digest(write_files(tmp_path / str(number), tree)) for number, tree in enumerate(trees)]
    assert len(set(digests)) == len(trees)
    assert source_digest(write_files(tmp_path / "copy", {**FILES, "notes.txt": "no code"})) == digests[0]


def test_commit_marks_changed_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert commit_of(tmp_path) is None
    write_files(tmp_path / "paperbench", FILES)
    (tmp_path / "notes.txt").write_text("no code")

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        done = subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "all")
    commit = git("rev-parse", "HEAD")
    assert commit_of(tmp_path) == commit
    (tmp_path / "notes.txt").write_text("other notes")
    assert commit_of(tmp_path) == commit
    git("config", "status.showUntrackedFiles", "no")
    monkeypatch.setenv("GIT_DIR", str(ROOT / ".git"))  # as in a hook of another repository
    assert commit_of(tmp_path) == commit
    (tmp_path / "paperbench" / "new.py").write_text("x = 3\n")
    assert commit_of(tmp_path) == f"{commit}+changes"


def test_an_old_gpu_beside_the_one_in_use_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, V100, GPU())
    facts = environment_facts(torch.device("cuda", 1))
    assert (facts.device, facts.cuda) == ("NVIDIA H100 80GB HBM3", "13.2")
    if torch.backends.cudnn.is_available():
        assert facts.cudnn == str(torch._C._cudnn.getVersionInt())
