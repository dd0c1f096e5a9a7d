from __future__ import annotations

from pathlib import Path

import pytest

from paperbench.runs.store import Store
from tests.cli.conftest import Run
from tests.helpers import a_record, write_record


def test_verify_retrains_a_run_and_reports_an_edited_file(run: Run, trained: Path) -> None:
    (record,) = Store(trained).records()[0]
    code, out, err = run("verify", trained, "--rerun", 2, "--device", "cpu")
    assert (code, err) == (0, "")
    assert out.startswith(f"{trained}: 1 run checked: 1 finished.\nretrained: {record.run}, iterations 1 to ")
    assert "on cpu: every loss and error equals the recorded one, bit for bit.\n" in out
    assert "Retrained 1 of the 2 requested runs; 1 run ended and passed the checks above." in out
    assert out.endswith("OK: all files verified.\n")
    history = Store(trained).directory(record.run).history_file
    history.write_text(history.read_text().replace('"train_loss":2.', '"train_loss":1.', 1))
    code, out, _ = run("verify", trained)
    assert code == 1
    assert f"problem: {history} was edited" in out
    assert out.endswith("Not OK: see above.\n")


def test_verify_fails_if_no_run_can_be_retrained(run: Run, tmp_path: Path) -> None:
    directory = write_record(Store(tmp_path), a_record())
    code, out, _ = run("verify", tmp_path)
    assert code == 1
    assert f"problem: {directory.history_file} was cut short" in out
    directory.record_file.rename(tmp_path / "elsewhere")
    code, _, err = run("verify", tmp_path, "--rerun", 1)
    assert code == 2
    assert "No run could be retrained." in err


def test_verify_checks_external_results(run: Run, tmp_path: Path) -> None:
    entry = ("--seed", 3, "--error", 6.41, "--source", "A. Author", "--results", tmp_path)
    run("record", "table2", "original/resnet164", *entry)
    code, out, _ = run("verify", tmp_path)
    assert (code, out) == (0, f"{tmp_path}: 1 external result checked.\nOK: all files verified.\n")
    (path,) = (tmp_path / "external").iterdir()
    path.write_text(path.read_text().replace("6.41", "6.14"))
    code, out, _ = run("verify", tmp_path)
    assert code == 1
    assert f"problem: {path} does not have the sha256 of its values" in out


@pytest.mark.parametrize("command", ["verify", "compare"])
def test_names_of_files_forge_no_lines_and_no_terminal_commands(run: Run, tmp_path: Path, command: str) -> None:
    for name in ("external/a\nOK: verified.\x1b[31m.json", "runs/b\nOK: all\u202e verified./record.json"):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_text("{")
    place = ("verify", tmp_path) if command == "verify" else ("compare", "table2", "--results", tmp_path)
    text = "".join(run(*place)[1:])
    assert text.replace("\n", "").isprintable()
    assert "a\\nOK: verified.\\x1b[31m.json" in text
    assert "b\\nOK: all\\u202e verified./record.json" in text
    assert "\nOK" not in text


def test_verify_refuses_what_is_not_a_results_directory(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, message in (
        (tmp_path, "has neither runs/ nor external/"),
        ("missing", "missing does not exist"),
        ("file", "file is not a directory"),
    ):
        code, _, err = run("verify", name)
        assert code == 2
        assert message in err
