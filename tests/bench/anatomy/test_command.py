"""The command as a user gives it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from paperbench.bench.anatomy.document import schema
from paperbench.bench.anatomy.plan import PARTS
from tests.helpers import ROOT


def command(out: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "paperbench", "anatomy", "--out", str(out), "--device", "cpu", *arguments]


def written(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "anatomy.json").read_text())
    jsonschema.validate(content, schema())
    return content


def test_a_quick_run_measures_every_part_that_a_cpu_can(tmp_path: Path, full: bool) -> None:
    """Without --full those that the conclusion rests on: every part is a process that loads torch."""
    out = tmp_path / "new" / "folder"
    parts = list(PARTS) if full else ["machine", "ladder", "kernels", "imagenet"]
    started = command(out, "--quick", "--parts", *parts)
    done = subprocess.run(started, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(out / "anatomy.md")
    assert "less than on a GPU is measured" in done.stderr
    content = written(out)
    status = {part["part"]: (part["status"], part["why"], len(part["rows"]) > 0) for part in content["parts"]}
    assert set(status) == set(parts)
    for name, (state, why, has_rows) in status.items():
        expected = ("not run", True, False) if PARTS[name].needs_gpu else ("complete", False, True)
        assert (state, why is not None, has_rows) == expected, (name, why, done.stderr)
    assert all(not part["left_out"] for part in content["parts"]), content["parts"]
    (entry,) = content["conclusion"]
    assert entry["from"] == "ladder"
    assert 0 < entry["share_of_ideal"] <= entry["share"]
    assert entry["next"]
    text = (out / "anatomy.md").read_text()
    assert "Less was measured than on a GPU: `--quick`" in text
    assert "needs a GPU" in text
    assert "| ResNet-20 | fp32        | eager " in text


def test_ctrl_c_ends_the_part_at_work_and_writes_what_there_is(tmp_path: Path) -> None:
    with subprocess.Popen(
        command(tmp_path, "--quick", "--parts", "machine", "pieces"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "1 of 2: machine" in line:
                break
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 128 + signal.SIGINT
    content = written(tmp_path)
    assert [part["status"] for part in content["parts"]] == ["interrupted", "not run"]
    assert content["signal"] == signal.SIGINT
    assert "ended by signal 2" in (tmp_path / "anatomy.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--parts", "kernel"], "Did you mean 'kernels'"),
        (["--models", "preact_resnet200"], "large images"),
        (["--models", "preact_resnet2"], "Unknown net"),
        (["--models", "resnet110_dropout_shortcut"], "identity or a convolution"),
        (["--minutes", "0"], "positive"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from paperbench.cli.main import main

    try:
        code = main(["anatomy", "--out", str(tmp_path / "out"), "--quick", "--device", "cpu", *arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    assert code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc, where nobody can make a folder")
def test_a_folder_that_cannot_be_made_is_said_to_be_an_argument_of_this_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from paperbench.cli.main import main

    assert main(["anatomy", "--out", "/proc/x", "--quick", "--device", "cpu", "--parts", "machine"]) == 2
    told = capsys.readouterr().err
    assert "--out DIR" in told
    assert "--results" not in told


def test_a_part_that_a_cpu_has_not_measures_nothing_and_that_is_status_1(tmp_path: Path) -> None:
    from paperbench.cli.main import main

    assert main(["anatomy", "--out", str(tmp_path), "--quick", "--device", "cpu", "--parts", "autotuned"]) == 1


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from paperbench.cli.main import main

    (tmp_path / "file").touch()
    assert main(["anatomy", "--out", str(tmp_path / "file")]) == 2
    assert "no directory" in capsys.readouterr().err
