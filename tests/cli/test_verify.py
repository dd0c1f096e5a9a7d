from __future__ import annotations

import ast
import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from paperbench.analysis.record import write_analysis
from paperbench.errors import count
from paperbench.runs.record import Divergence, Files, Record, Result
from paperbench.runs.rerun_record import read_reruns, write_rerun
from paperbench.runs.resume import Checkpoint
from paperbench.runs.store import RunDirectory, Store
from paperbench.runs.weights import recorded_metadata
from paperbench.tensor_file import read_tensor_file, tensor_file_bytes
from tests.cli.conftest import Run, validated
from tests.helpers import ROOT, a_record, copy_of_photo_specs, edit, write_record
from tests.report.made_analyses import made


@pytest.mark.usefixtures("no_pickles")
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


def forge(directory: RunDirectory, record: Record, result: Result) -> None:
    """Write another result to record and weights."""
    tensors, metadata = read_tensor_file(directory.weights_file.read_bytes())
    metadata.update(recorded_metadata(record.spec, record.seed, result))
    directory.writer.write(directory.weights_file, tensor_file_bytes(tensors, metadata))
    digest = sha256(directory.weights_file.read_bytes()).hexdigest()
    directory.write_record(replace(record, result=result, files=replace(record.files, weights_sha256=digest)))


def test_verify_tests_the_saved_net(run: Run, trained: Path) -> None:
    (record,) = Store(trained).records()[0]
    directory = Store(trained).directory(record.run)
    _, out, _ = run("verify", trained, "--rerun", 1, "--device", "cpu")
    equal = "test error and test loss equal the recorded ones, bit for bit."
    assert f"tested: {record.run}, its saved net on cpu: {equal}\n" in out
    assert record.result
    better = replace(record.result, test_error=record.result.test_error - 25)
    forge(directory, record, better)
    assert run("verify", trained)[0] == 0, "the files agree"
    code, out, _ = run("verify", trained, "--rerun", 1, "--device", "cpu")
    assert code == 1
    assert "the test error differs from the record by 90 images of 360, the test loss by 0.00%" in out
    assert "on the same kind of machine with the same torch: the record's result is not that of this net.\n" in out
    assert out.endswith("Not OK: see above.\n")


def test_verify_says_which_results_nothing_supports(run: Run, trained: Path, quick_specs: Path) -> None:
    (record,) = Store(trained).records()[0]
    directory = Store(trained).directory(record.run)
    directory.weights_file.unlink()
    code, out, _ = run("verify", trained, "--rerun", 1, "--device", "cpu")
    assert (code, "remark" in out) == (0, False)
    equal = "test error and test loss equal the recorded ones, bit for bit."
    assert f"tested: {record.run}, its saved net on cpu: {equal}\n" in out, "that of the checkpoint"
    directory.checkpoints.newest_first()[0].path.unlink()
    code, out, _ = run("verify", trained, "--rerun", 1, "--save", "--device", "cpu")
    assert (code, "not tested: " in out) == (1, True)
    code, out, _ = run("verify", trained)
    assert code == 0
    assert (
        f"remark: 1 run that kept neither weights nor a last checkpoint ({record.run}): nothing here shows that" in out
    )
    table = ("compare", "table2", "--tables", quick_specs, "--profile", "smoke", "--results", trained, "--long")
    _, report, _ = run(*table)
    assert "1 run kept neither weights nor a last checkpoint: only the records say" in " ".join(report.split())
    assert "1 confirmed by a rerun" in " ".join(report.split())


def test_weights_of_another_net_are_a_problem(run: Run, trained: Path) -> None:
    (record,) = Store(trained).records()[0]
    directory = Store(trained).directory(record.run)
    tensors, metadata = read_tensor_file(directory.weights_file.read_bytes())
    del tensors["fc.bias"]
    directory.writer.write(directory.weights_file, tensor_file_bytes(tensors, metadata))
    digest = sha256(directory.weights_file.read_bytes()).hexdigest()
    directory.write_record(replace(record, files=replace(record.files, weights_sha256=digest)))
    code, out, _ = run("verify", trained, "--rerun", 1, "--device", "cpu")
    assert code == 1
    assert f"problem: {directory.weights_file} does not hold the net of the record: missing, unknown or of" in out


def test_only_the_reader_of_cifar_knows_pickles() -> None:
    found = set()
    for file in (ROOT / "paperbench").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            is_load = isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load"
            if is_load or {"pickle", "_pickle", "shelve", "marshal", "dill", "joblib"} & set(names):
                found.add(file.name)
    assert found == {"cifar_batches.py"}


def test_verify_fails_if_no_run_can_be_retrained(run: Run, tmp_path: Path) -> None:
    directory = write_record(Store(tmp_path), a_record())
    code, out, _ = run("verify", tmp_path)
    assert code == 1
    assert f"problem: {directory.history_file} was cut short" in out
    directory.record_file.rename(tmp_path / "elsewhere")
    code, _, err = run("verify", tmp_path, "--rerun", 1)
    assert code == 2
    assert "No run could be retrained." in err


@pytest.mark.parametrize(
    ("what", "value", "other"), [("external result", "6.41", "6.14"), ("analysis file", '"seed": 0', '"seed": 1')]
)
def test_verify_checks_external_results_and_analyses(
    run: Run, tmp_path: Path, what: str, value: str, other: str
) -> None:
    if what == "analysis file":
        write_analysis(tmp_path, made())
    else:
        entry = ("--seed", 3, "--error", 6.41, "--source", "A. Author", "--results", tmp_path)
        run("record", "table2", "original/resnet164", *entry)
    assert run("verify", tmp_path) == (0, f"{tmp_path}: 1 {what} checked.\nOK: all files verified.\n", "")
    (path,) = tmp_path.rglob("*.json")
    edit(path, value, other)
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


@pytest.mark.full
def test_table_on_photographs_is_compared_and_verified(run: Run, tmp_path: Path) -> None:
    results, specs = tmp_path / "results", copy_of_photo_specs(tmp_path / "specs", crop=32)
    where = ("--tables", specs, "--profile", "smoke", "--results", results)
    assert run("run", "table5", *where, "--device", "cpu", "--cells", "original_resnet152")[0] == 0
    found = json.loads(run("compare", "table5", *where, "--format", "json")[1])
    medians = {c["id"]: c["nets"][0]["shown"]["median"] for c in found["cells"] if c["verdict"] == "not comparable"}
    for row in ("original_resnet152", "original_resnet152_224"):
        assert 0 <= medians[f"{row}/top5"] <= medians[f"{row}/top1"] <= 100
    again = ("verify", results, "--rerun", 1, "--device", "cpu")
    code, out, _ = run(*again)
    assert (code, out.count("every loss and error equals the recorded one, bit for bit.")) == (0, 1)
    equal = "top-1 error, top-5 error and test loss equal the recorded ones, bit for bit."
    for way in ("32x32 crop of a shorter side of 73", "48x48 crop of a shorter side of 48"):
        assert f"its saved net on cpu, {way}: {equal}\n" in out

    (record,) = Store(results).records()[0]
    assert record.result
    first, last = record.result.evaluations
    wrong, wrong5 = (round(error * 0.12) for error in (last.top1, last.top5))
    better = replace(record.result, evaluations=(first, replace(last, top1=100 * (wrong - 3) / 12, top5=0.0)))
    forge(Store(results).directory(record.run), record, better)
    assert run("verify", results)[0] == 0, "the files agree"
    code, out, _ = run(*again)
    assert code == 1
    changed = (
        f"differs from the record by 3 images of 12, the top-5 error by {count(wrong5, 'image')}, the test loss by"
    )
    assert f"{record.run}, its saved net on cpu, 48x48 crop of a shorter side of 48: the top-1 error {changed}" in out
    assert out.count(equal) == 2, "of the first way, before and after averaging again"


def test_published_runs_are_whole(run: Run) -> None:
    for name, found in (
        ("jpeg-copy", "2 runs checked: 1 finished, 1 partial"),
        ("smoke", "20 runs checked: 20 finished"),
    ):
        code, out, _ = run("verify", ROOT / "results" / name)
        assert code == 0, out
        assert f"{found}.\n" in out


@pytest.mark.parametrize("kept", ["one tensor", "zeros", "neither"])
def test_invented_run_is_revealed(run: Run, trained: Path, quick_specs: Path, kept: str) -> None:
    """Three iterations are real. The other lines and the result are invented, all hashes are right."""
    (record,) = Store(trained).records()[0]
    directory = Store(trained).directory(record.run)
    lines = directory.history()
    lines[3:] = [replace(line, train_loss=0.1, test_error=line.test_error and 2.5, test_loss=0.1) for line in lines[3:]]
    directory.write_history(lines)
    directory.weights_file.unlink()
    (file,) = directory.checkpoints.newest_first()
    real = Checkpoint.from_bytes(file.read(), record.run)
    file.path.unlink()
    zeros = {name: tensor * (not name.startswith("model.")) for name, tensor in real.state.items()}
    state = zeros if kept == "zeros" else {"iteration": real.state["iteration"], "model.fc.bias": torch.ones(10)}
    facts = replace(real.facts, history=tuple(lines), best_test_error=2.5)
    name = directory.checkpoints.write(6, Checkpoint(facts, state).to_bytes()).path
    if kept == "neither":
        name.unlink()
    digest = sha256(directory.history_file.read_bytes()).hexdigest()
    files = Files(len(lines), digest, name.name, record.files.weights_sha256)
    directory.write_record(replace(record, result=Result(2.5, 0.1, 2.5, 0.1, 2.5), files=files))

    code, out, _ = run("verify", trained)
    assert code == (kept == "one tensor")
    assert ("does not hold the net of the record: missing, unknown" in out) == (kept == "one tensor")
    assert ("1 run that kept neither weights nor a last checkpoint" in out) == (kept != "zeros")
    code, out, _ = run("verify", trained, "--rerun", 1, "--device", "cpu")
    assert code == 1
    assert ("iterations 1 to 6 on cpu: training losses differ from the record" in out) == (kept != "one tensor")
    assert ("the record's result is not that of this net" in out) == (kept == "zeros")
    assert (f"not tested: {record.run}: it kept neither weights nor a last" in out) == (kept == "neither")
    table = ("compare", "table2", "--tables", quick_specs, "--profile", "smoke", "--results", trained, "--long")
    told = "1 run kept neither weights nor a last checkpoint" in " ".join(run(*table)[1].split())
    assert told == (kept != "zeros")


@pytest.mark.parametrize(
    ("has_checkpoint", "message"),
    [
        (False, "not tested: {}: it kept neither weights nor a last checkpoint"),
        (True, "problem: {} did not diverge in its last test: the net of its checkpoint passes it."),
    ],
)
def test_invented_divergence_of_the_last_test_is_not_believed(
    run: Run, trained: Path, has_checkpoint: bool, message: str
) -> None:
    (record,) = Store(trained).records()[0]
    directory = Store(trained).directory(record.run)
    directory.weights_file.unlink()
    if not has_checkpoint:
        directory.checkpoints.newest_first()[0].path.unlink()
    files = replace(record.files, weights_sha256=None)
    diverged = {"status": "diverged", "result": None, "divergence": Divergence(6, 0.001, "test", "fc")}
    directory.write_record(replace(record, files=files, **diverged))
    assert run("verify", trained)[0] == 0
    code, out, _ = run("verify", trained, "--rerun", 1, "--device", "cpu")
    assert (code, message.format(record.run) in out) == (1, True)


def test_kept_rerun_is_read_back_until_it_is_edited(run: Run, trained: Path) -> None:
    (record,) = Store(trained).records()[0]
    arguments = ("verify", trained, "--rerun", 1, "--save", "--device", "cpu", "--format", "json")
    code, out, err = run(*arguments)
    found = validated("verify", out)
    (path,) = (trained / "reruns").iterdir()
    assert (code, f"Wrote {path}.\n" in err) == (0, True)
    assert path.name.startswith(f"{record.run}-")
    assert found["reruns"] == [json.loads(path.read_text())]
    (kept,), complaints = read_reruns(trained)
    assert (kept.history_sha256, kept.holds, complaints) == (record.files.history_sha256, True, [])
    assert json.loads(run("verify", trained, "--format", "json")[1])["kept"] == found["reruns"]
    with_path = write_rerun(trained, replace(kept, not_tested=f"{trained}/runs/x and /srv/ada/y cannot be read"))
    assert not [place for place in (str(trained), "ada") if place in with_path.read_text()]
    with_path.unlink()
    Store(trained).directory(record.run).record_file.unlink()
    assert f"remark: reruns/{path.name} is of another training" in run("verify", trained)[1]
    edit(path, '"holds": true', '"holds": false')
    code, out, _ = run("verify", trained)
    assert (code, f"problem: {path} is damaged or was edited: whether it holds" in out) == (1, True)
