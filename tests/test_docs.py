"""The documents: links resolve, commands parse, Python blocks run, the example table trains, the site builds."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import pytest
import torch
import yaml

import paperbench
from paperbench.catalogue import DATASETS, NETS, resolve
from paperbench.cli.main import build_parser, main
from paperbench.cli.schema import FORMATS
from paperbench.runs.observer import Observer
from paperbench.runs.planning import PlannedRun
from paperbench.runs.store import RunDirectory
from paperbench.specs.table import load_profiles, read_table, table_ids
from paperbench.training.engines import ENGINES
from paperbench.training.precision import PRECISIONS
from tests.conftest import ROOT

PAGES = sorted(ROOT.glob("docs/*.md"))
TOP_LEVEL = ("README", "ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")
DOCUMENTS = [ROOT / f"{name}.md" for name in TOP_LEVEL] + PAGES
EXAMPLE = ROOT / "examples" / "own_table"
PLACEHOLDERS = {
    "TABLE": "table2",
    "NAME": "preact_resnet164",
    "NET": "preact_resnet164",
    "N": "1",
    "CELL": "preact/resnet110",
}
QUICK = ("list", "show", "models", "schema", "compare")
"""Subcommands that neither train nor measure."""

_FENCED = re.compile(r"(?P<marker><!-- not run: [^\n]+ -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S)
_INDENTED = re.compile(r"(?:^ {4}.*\n)+", re.M)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_COMMAND_MENTIONED = re.compile(r"`paperbench ([a-z]+)([^`]*)`")


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        is_run: Whether the tests run it: a comment `<!-- not run: reason -->` before the block says otherwise.
    """

    language: str
    code: str
    is_run: bool


def text_of(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def prose_of(document: Path) -> str:
    return _FENCED.sub("", text_of(document))


def blocks_of(document: Path) -> list[Block]:
    """Fenced blocks with their language, and indented blocks without one."""
    fenced = [Block(m["language"], m["code"], not m["marker"]) for m in _FENCED.finditer(text_of(document))]
    return fenced + [Block("", code, is_run=True) for code in _INDENTED.findall(prose_of(document))]


def commands_of(document: Path) -> Iterator[list[str]]:
    """The arguments of every `paperbench` command in the code blocks."""
    for block in blocks_of(document):
        if block.language not in ("", "sh"):
            continue
        for line in block.code.replace("\\\n", " ").splitlines():
            if re.match(r"\s*(\w+=\S+ )*(torchrun .*-m |srun .*)?paperbench ", line):
                words = shlex.split(line, comments=True)
                words = words[words.index("paperbench") + 1 :]
                end = next((i for i, word in enumerate(words) if word in ("|", "&&", ";", ">")), len(words))
                yield [PLACEHOLDERS.get(word, word) for word in words[:end]]


ALL_COMMANDS = sorted({tuple(command) for document in DOCUMENTS for command in commands_of(document)})


@cache
def slugs_of(document: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+)$", prose_of(document), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the examples and empty results."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name in ("results", "baseline", "new"):
        (tmp_path / name / "runs").mkdir(parents=True)
    for name in ("lab", "smoke"):
        (tmp_path / "results" / name).symlink_to(ROOT / "results" / name)
    return tmp_path


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_and_anchors_resolve(document: Path) -> None:
    targets = [t for t in _LINK.findall(prose_of(document)) if not re.match(r"https?:|mailto:", t)]
    for target in targets:
        path, _, anchor = target.partition("#")
        linked = (document.parent / path).resolve() if path else document
        assert linked.exists(), target
        assert not anchor or anchor in slugs_of(linked), target


@pytest.mark.parametrize("command", ALL_COMMANDS, ids=" ".join)
def test_commands_parse_and_name_what_exists(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    try:
        args = build_parser().parse_args(command)
    except SystemExit as end:  # --help and --version exit with 0
        if end.code:
            pytest.fail("argparse refuses the command")
        return
    check_names(args)


def check_names(args: argparse.Namespace) -> None:
    """The tables, cells, profiles, nets, data sets, formats, engines and precisions of a command exist."""
    values: dict[str, Any] = vars(args)
    root = values.get("tables") or ROOT
    if values.get("table"):
        table = read_table(args.table, root)
        if "cells" in values:
            assert table.cells(args.cells or "*", on_request=True)
        if "cell" in values:
            table.cell(args.cell)
    profiles = values.get("profile") or ()
    for name in [profiles] if isinstance(profiles, str) else profiles:
        load_profiles(root).named(name)
    for name in values.get("names", ()):
        read_table(name, root)
    whats = values.get("what") or ()
    for what in [whats] if isinstance(whats, str) else whats:
        figures = [figure.id for one in table_ids(root) for figure in read_table(one, root).experiment.figures]
        assert ":" in what or what in {*NETS, *table_ids(root), *figures}
    if "pattern" in values:
        assert args.pattern.partition(".")[0] in NETS or any(fnmatchcase(name, args.pattern) for name in NETS)
    for name in values.get("models") or ():
        resolve(name)
    assert values.get("dataset") in (None, *DATASETS)
    if args.command == "schema":
        assert args.name in (None, *FORMATS)
    assert {*values.get("engines", ()), values.get("engine", "auto")} <= {*ENGINES, "auto"}
    more = {"fp64"} if args.command == "analyze" else set[str]()
    assert {*values.get("precisions", ()), values.get("precision")} <= {*PRECISIONS, *more, None}


@cache
def help_of(command: str) -> str:
    with redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit, match=r"^0$"):
        build_parser().parse_args([command, "--help"])
    return printed.getvalue()


def test_commands_in_running_text_exist_with_their_options() -> None:
    for document in DOCUMENTS:
        for name, rest in _COMMAND_MENTIONED.findall(prose_of(document)):
            known = {*re.findall(r"--[a-z-]+", help_of(name))}
            assert set(re.findall(r"--[a-z-]+", rest)) <= known, (document.name, name, rest)


@pytest.mark.parametrize("command", [c for c in ALL_COMMANDS if c[0] in QUICK], ids=" ".join)
def test_quick_commands_run(command: tuple[str, ...], working_directory: Path) -> None:
    expected = 3 if "--against" in command else 1 if "--require" in command else 0  # by empty results
    assert main(command) == expected


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_blocks_run(document: Path, working_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks_of(document):
        if block.language == "python":
            code = compile(block.code, document.name, "exec")
            if block.is_run:
                with torch.device("meta"):  # large nets without their memory
                    exec(code, {})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[PlannedRun, Path]:
    """A finished run of the example table, smaller and shorter than in `smoke`, and its directory."""
    root = tmp_path_factory.mktemp("own_table")
    shutil.copytree(EXAMPLE, root, dirs_exist_ok=True)
    file = root / "experiments" / "profiles.yaml"
    profiles = yaml.safe_load(file.read_text())
    smoke = profiles["profiles"]["smoke"]
    smoke["depth"] = {"basic": 8}
    smoke["datasets"]["digits"]["recipe"] |= {"iterations": 4, "drops": {"at": [2]}}
    file.write_text(yaml.safe_dump(profiles))
    plan = paperbench.plan("mytable", root / "results", profile="smoke", cells="original/*", device="cpu", root=root)
    outcome = paperbench.run(plan, Observer())
    assert not outcome.remaining
    return plan.runs[0], root / "results" / "runs" / plan.runs[0].id


def test_weights_of_a_run_load_as_documented(trained: tuple[PlannedRun, Path]) -> None:
    run, directory = trained
    (block,) = (b for b in blocks_of(ROOT / "docs" / "nets.md") if "model.safetensors" in b.code)
    names: dict[str, Any] = {"pixels": torch.from_numpy(run.dataset.x_test).permute(0, 3, 1, 2).float()}
    exec(block.code.replace("results/runs/<run>", str(directory)), names)
    loss = torch.nn.functional.cross_entropy(names["logits"], torch.from_numpy(run.dataset.y_test)).item()
    assert loss == pytest.approx(json.loads(names["facts"]["result"])["test_loss"], rel=1e-5)


def test_observer_logs_every_line_and_the_result(
    trained: tuple[PlannedRun, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, directory = trained[0], RunDirectory(trained[1])
    logged: list[tuple[dict[str, Any], int]] = []
    opened = SimpleNamespace(log=lambda values, step: logged.append((values, step)), finish=logged.copy)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: opened))  # type: ignore[arg-type]
    (block,) = (b for b in blocks_of(ROOT / "docs" / "pictures.md") if "import wandb" in b.code)
    names: dict[str, Any] = {}
    exec(block.code, names)
    observer, history, record = names["ToWandb"](), directory.history(), directory.read_record()
    assert record
    assert record.result
    observer.started(run, 0, 4, "eager", "")
    for line in history:
        observer.logged(run, line)
    observer.ended(run, record)
    assert [values.get("train_loss") for values, _ in logged] == [*(line.train_loss for line in history), None]
    assert logged[-1] == ({"result": record.result.test_error}, 4)
    assert not observer.open


def test_step_is_profiled_as_documented(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = (b for b in blocks_of(ROOT / "docs" / "speed.md") if "torch.profiler" in b.code)
    exec(block.code.replace('"preact_resnet110", 128', '"preact_resnet20", 4'), {})
    assert {"aten::convolution_backward", "aten::native_batch_norm"} <= set(capsys.readouterr().out.split())


@pytest.mark.full
def test_example_table_trains_as_documented(working_directory: Path) -> None:
    (command,) = (c for c in commands_of(ROOT / "docs" / "extending.md") if c[:2] == ["run", "mytable"])
    assert main(command) == 0
    assert len(list(working_directory.glob("build/mytable/runs/*/model.safetensors"))) == 2


def test_code_of_own_units_is_that_of_the_example() -> None:
    example = text_of(ROOT / "examples" / "own_unit" / "units.py")
    section = (
        text_of(ROOT / "docs" / "extending.md").partition("## A new shortcut or placement")[2].partition("\n## ")[0]
    )
    codes = [found["code"] for found in _FENCED.finditer(section)]
    assert codes
    assert all(code in example for code in codes)


@pytest.mark.full
def test_pictures_and_report_are_those_of_the_published_runs(tmp_path: Path) -> None:
    pinned = f"matplotlib=={matplotlib.__version__}" in text_of(ROOT / "constraints.txt").splitlines()
    runpy.run_path(str(ROOT / "docs" / "pictures.py"))["build"](tmp_path)
    built = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(built) == 12
    for path in built:
        if pinned or path.suffix == ".html":
            is_current = path.read_bytes() == (ROOT / "docs" / path.relative_to(tmp_path)).read_bytes()
            assert is_current, f"{path.name}: give `python docs/pictures.py`"


def test_citation_is_complete_and_of_this_version() -> None:
    citation = yaml.safe_load(text_of(ROOT / "CITATION.cff"))
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
    assert {"cff-version", "message", "title", "authors", "repository-code"} <= citation.keys()
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == paperbench.__version__
    assert citation["license"] == project["license"]
    assert citation["references"][0]["doi"] == "10.1007/978-3-319-46493-0_38"


@pytest.mark.full
def test_site_builds_and_loads_nothing_from_the_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="`bash ci/docs.sh` installs mkdocs")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(
        build, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    pages = list(tmp_path.glob("*.html"))
    assert {page.stem for page in pages} > {path.stem for path in PAGES} | {"architecture", "contributing", "security"}
    for document in PAGES:
        shown = re.findall(r'<img[^>]* src="([^"]+)"', text_of(tmp_path / f"{document.stem}.html"))
        assert shown == re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text_of(document)), document.name
    for page in pages:
        loaded = re.findall(r"<(?:script|img|link)[^>]* (?:src|href)=[\"']?([^\"'\s>]+)", text_of(page))
        assert not [address for address in loaded if re.match(r"(https?:)?//", address)], page.name
