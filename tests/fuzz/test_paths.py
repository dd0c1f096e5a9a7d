"""Pipes, devices, links and huge files in place of every file and directory that paperbench reads."""

from __future__ import annotations

import ast
import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from paperbench.catalogue import resolve
from paperbench.cli.main import main
from paperbench.errors import PaperbenchError
from paperbench.files import DAMAGED
from paperbench.models.weights_file import check_weights
from tests.fuzz.conftest import ANALYZE, COMPARE, RUN, TABLE, VERIFY
from tests.helpers import ROOT
from tests.limits import limit_address_space, limit_seconds

SHOW = ("show", *TABLE)
PLAN = ("plan", *RUN[1:])
RUNS = ("runs", "--long")
DELETE = (*RUNS, "--delete", "checkpoints", "superseded", "damaged", "leftovers")
CHECK = ("data", "check", "cifar10", "--data", "data")
CHECK_INDEX = ("data", "check", "imagenet", "--data", "data")
CONVERT = ("data", "convert", "images", "cifar10.npz")

FINISHED, PAUSED = "results/runs/{finished}", "results/runs/{paused}"
READ_BY = {
    (VERIFY, COMPARE, RUNS): (
        *(f"{FINISHED}/{name}" for name in ("record.json", "history.jsonl", "model.safetensors", "{last}")),
        *(f"{PAUSED}/{name}" for name in ("record.json", "history.jsonl", "model.safetensors", "{newest}", "{older}")),
        *("results/external/{external}", "results/leases/{paused}.1", f"{PAUSED}", "results/external"),
        *("results/leases", "results/superseded", "results/runs", "results"),
    ),
    (VERIFY, ANALYZE): ("results/analysis/{analysis}", "results/analysis"),
    (SHOW, COMPARE, PLAN): (
        *("experiments/table2.yaml", "experiments/profiles.yaml", "experiments/recipes/cifar.yaml"),
        *("expected/table2.yaml", "expected", "experiments", "experiments/recipes"),
    ),
    (CHECK,): ("data/cifar10.npz", "data/dataset.yaml", "data/cifar-10-batches-py/data_batch_1", "data"),
    (CHECK_INDEX,): ("data/imagenet.index", "photos/train/n01440764/a.JPEG", "photos/val/n01440764", "photos"),
    (CONVERT,): ("images/train/0/a.png", "images/test/0", "images/test", "images", "cifar10.npz", "cifar10.npz.tmp"),
}
COMMANDS = {place: commands for commands, places in READ_BY.items() for place in places}

THINGS: dict[str, Callable[[Path, Path], object]] = {
    "pipe": lambda path, _: os.mkfifo(path),
    "device": lambda path, _: path.symlink_to("/dev/zero"),
    "link to a pipe": lambda path, outside: path.symlink_to(outside / "pipe"),
    "dangling link": lambda path, outside: path.symlink_to(outside / "missing"),
    "link to itself": lambda path, _: path.symlink_to(path.name),
    "link to a file": lambda path, outside: path.symlink_to(outside / "canary"),
    "directory": lambda path, _: path.mkdir(),
    "empty file": lambda path, _: path.touch(),
    "terabyte": lambda path, _: (path.touch(), os.truncate(path, 2**40)),
}
KINDS = tuple(THINGS)


@pytest.fixture
def worlds(untouched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], Path]:
    """Makes a copy of the world with a thing in place of a file, the current directory; returns one beside it."""

    def make(path: Path, kind: str) -> Path:
        monkeypatch.chdir(shutil.copytree(untouched, tmp_path / kind / "world"))
        outside = tmp_path / kind / "outside"
        outside.mkdir()
        (outside / "canary").write_bytes(b"do not touch\n")
        os.mkfifo(outside / "pipe")
        if path.exists():
            path.rename(tmp_path / kind / "original")
        path.parent.mkdir(parents=True, exist_ok=True)
        THINGS[kind](path, outside)
        return outside

    return make


def tree(root: Path, *but: Path) -> dict[Path, object]:
    """Return everything under a directory: contents of files, targets of links, other kinds."""
    found: dict[Path, object] = {}
    for path in root.rglob("*"):
        if not {path, *path.parents} & {*but}:
            found[path] = path.readlink() if path.is_symlink() else stat.S_IFMT(path.stat().st_mode)
            if path.is_file() and not path.is_symlink():
                found[path] = path.read_bytes()
    return found


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[[tuple[str, ...]], tuple[int, str]]:
    """Run a command that must end soon, in little memory and without a traceback; return exit status and output."""

    def run(command: tuple[str, ...]) -> tuple[int, str]:
        with limit_seconds(), limit_address_space():
            code = main(command)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        if code == 2:
            assert "error: " in captured.err
        return code, captured.out + captured.err

    return run


@pytest.mark.parametrize("place", COMMANDS)
def test_obstacle_stops_no_command_and_is_left_alone(
    place: str,
    full: bool,
    names: dict[str, str],
    worlds: Callable[[Path, str], Path],
    call: Callable[[tuple[str, ...]], tuple[int, str]],
) -> None:
    path = Path(place.format(**names))
    is_part = "/runs/{" in place or "/external/" in place
    number = list(COMMANDS).index(place)
    for kind in KINDS if full else (KINDS[number % 9], KINDS[(number + 4) % 9]):
        outside = worlds(path, kind)
        before, untouched = tree(Path(), path), tree(outside)
        for command in COMMANDS[place]:
            code, output = call(command)
            if command == VERIFY and is_part and kind != "dangling link" and path.name != names["paused"]:
                assert code == (1 if "model" not in place or "finished" in place else 0), kind
            assert code in (0, 1, 2), kind
            assert code < 2 or path.name in output or path.parent.name in output, kind
        assert tree(Path(), path, Path("cifar10.npz")) == before, kind
        assert tree(outside) == untouched, kind


DEFAULT = {f"{PAUSED}/record.json": "dangling link", f"{PAUSED}/history.jsonl": "pipe"}


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(place, marks=[pytest.mark.full] * (place not in DEFAULT))
        for place in READ_BY[VERIFY, COMPARE, RUNS] + READ_BY[VERIFY, ANALYZE]
    ],
)
def test_run_harms_nothing_beside_an_obstacle(
    place: str,
    full: bool,
    names: dict[str, str],
    worlds: Callable[[Path, str], Path],
    call: Callable[[tuple[str, ...]], tuple[int, str]],
) -> None:
    path = Path(place.format(**names))
    for kind in KINDS if full else (DEFAULT[place],):
        changing = [path, Path(PAUSED.format(**names)), Path("results/leases"), path.parent / "failure.json"]
        if path.name == "record.json" and kind in ("dangling link", "link to a file", "empty file"):
            changing.append(path.parent)  # it is rewritten from the checkpoint
        outside = worlds(path, kind)
        before, untouched = tree(Path(), *changing), tree(outside)
        code, output = call(RUN)
        assert code in (0, 2), kind
        assert tree(Path(), *changing, path.with_name(path.name + DAMAGED)) == before, (kind, output)
        assert call(DELETE)[0] in (0, 2), kind
        assert tree(outside) == untouched, (kind, output)


@pytest.mark.parametrize("kind", KINDS)
def test_obstacle_is_no_weights_file(kind: str, worlds: Callable[[Path, str], Path]) -> None:
    outside = worlds(Path("weights.safetensors"), kind)
    before = tree(outside)
    with pytest.raises(PaperbenchError, match="weights"), limit_seconds(), limit_address_space():
        check_weights(Path("weights.safetensors"), resolve("preact_resnet20"))
    assert tree(outside) == before


OPENERS = {
    "connect",
    "open",
    "fdopen",
    "read_bytes",
    "read_text",
    "write_bytes",
    "write_text",
    "safe_open",
    "load_file",
}
ALLOWED = {
    "cli/init.py": {"source.read_bytes()": "paperbench's own template or example"},
    "data/convert.py": {"Image.open(stream, formats=('PNG', 'JPEG'))": "an opened stream"},
    "data/download.py": {"tarfile.open(archive, 'r:gz')": "its md5 sum is right"},
    "data/imagenet/build.py": {
        "os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW, 438)": "never waits, and is checked",
    },
    "data/imagenet/index_file.py": {
        "sqlite3.connect(f'{path.absolute().as_uri()}?{options}', uri=True)": "it was opened as a regular file",
    },
    "data/imagenet/decode.py": {"Image.open(io.BytesIO(data), formats=('JPEG', 'PNG'))": "bytes in memory"},
    "data/imagenet/synsets.py": {
        "Path(spec.submodule_search_locations[0], 'data', '_info', 'imagenet_synsets.txt').read_text()": "timm's file"
    },
    "data/npz.py": {"archive.open(info)": "part of an opened archive"},
    "models/weights_file.py": {"safe_open(file, 'pt')": "takes only paths; it is opened as a regular file before"},
    "processors.py": {"file.read_text()": "a file of the kernel"},
    "runs/environment.py": {"file.read_bytes()": "paperbench's own source code"},
    "runs/lease.py": {"open(path, 'xb')": "a new file"},
    "tensor_file.py": {"safe_open(path, 'np')": "the same"},
}
"""The calls outside `files.py` that open a file, but for those of the kernel, and why they may: it is no stranger's."""


def test_strangers_files_are_opened_in_one_way() -> None:
    package = ROOT / "paperbench"
    found: dict[str, set[str]] = {}
    for module in package.rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in OPENERS and not re.search(r"'/proc/|os\.devnull", ast.unparse(node)):
                    found.setdefault(str(module.relative_to(package)), set()).add(ast.unparse(node))
    del found["files.py"]
    assert found == {module: set(calls) for module, calls in ALLOWED.items()}
