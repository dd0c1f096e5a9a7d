"""Pipes, devices, links and files of other users in place of every file and directory that paperbench reads."""

from __future__ import annotations

import ast
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

import pytest

from paperbench.api import load_table
from paperbench.catalogue import resolve
from paperbench.cli.main import main
from paperbench.errors import PaperbenchError
from paperbench.files import DAMAGED
from paperbench.models.weights_file import check_weights
from paperbench.runs.store import Store
from tests.fuzz.conftest import ANALYZE, COMPARE, RUN, TABLE, VERIFY
from tests.helpers import ROOT
from tests.limits import limit_address_space, limit_seconds

SHOW = ("show", *TABLE)
PLAN = ("plan", *RUN[1:])
CHECK = ("data", "check", "cifar10", "--data", "data")
CHECK_INDEX = ("data", "check", "imagenet", "--data", "data")
CONVERT = ("data", "convert", "images", "cifar10.npz")

FINISHED, PAUSED = "results/runs/{finished}", "results/runs/{paused}"
READ_BY = {
    (VERIFY, COMPARE): (
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

EMPTIED = (PAUSED, "results", "results/runs", "results/external", "results/superseded")
"""Places where a directory is no obstacle: without results, runs start."""

Thing = Callable[[Path, Path], object]
THINGS: dict[str, Thing] = {
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
UNREADABLE = "of another user"
KINDS = (*THINGS, UNREADABLE)
OTHER_USER = 65534


@pytest.fixture(scope="session")
def completed(untouched: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The comparison after `run` has completed the paused run, undisturbed."""
    world = shutil.copytree(untouched, tmp_path_factory.mktemp("completed") / "world")
    with chdir(world):
        assert main(RUN) == 0
        return table_of("results", world)


def table_of(results: str, root: Path) -> str:
    return load_table("table2", root).compare(results, profile="smoke").render("csv", "no difference", long=True)


@pytest.fixture
def world(untouched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the directory, as the current directory. Another user may write to it."""
    world = shutil.copytree(untouched, tmp_path / "world")
    monkeypatch.chdir(world)
    return world


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory that no command may write to."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "canary").write_bytes(b"do not touch\n")
    os.mkfifo(outside / "pipe")
    return outside


class Obstacle:
    """Something in place of a file or directory of the current directory."""

    def __init__(self, path: Path, kind: str, outside: Path) -> None:
        self.path, self.kind = path, kind
        self._original = outside.parent / "original"
        self._mode = path.stat().st_mode if path.exists() else None
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == UNREADABLE:
            if self._mode is None:
                path.touch()
            if os.geteuid() == 0:
                for file in (Path(), *Path().rglob("*")):
                    os.chown(file, OTHER_USER, OTHER_USER)
                os.chown(path, 0, 0)
            path.chmod(0)
        else:
            if self._mode is not None:
                path.replace(self._original)
            THINGS[kind](path, outside)
        self._identity = identity(path)

    def remove(self) -> None:
        """Restore the original, unless a command has replaced it."""
        for path in (self.path, self.path.with_name(self.path.name + DAMAGED)):
            if os.path.lexists(path) and identity(path) == self._identity:
                if self.kind == UNREADABLE and self._mode is not None:
                    path.chmod(stat.S_IMODE(self._mode))
                    os.chown(path, path.parent.stat().st_uid, -1)
                    return
                path.rmdir() if self.kind == "directory" else path.unlink()
        if not os.path.lexists(self.path) and self._original.exists():
            self._original.replace(self.path)


def identity(path: Path) -> tuple[int, int, int]:
    status = path.lstat()
    return status.st_ino, status.st_mode, status.st_mtime_ns


@contextmanager
def another_user(kind: str) -> Iterator[None]:
    """Act as a user to whom the obstacle does not belong, if that is why it cannot be read."""
    if kind != UNREADABLE or os.geteuid() != 0:
        yield
        return
    for directory in (Path.cwd(), *Path.cwd().parents):
        if "/pytest-" in str(directory):  # SQLite opens files by their whole path
            directory.chmod(directory.stat().st_mode | stat.S_IXGRP | stat.S_IXOTH)
    os.seteuid(OTHER_USER)
    try:
        yield
    finally:
        os.seteuid(0)


def tree(root: Path, *but: Path) -> dict[str, object]:
    """Return everything under a directory: contents and times of files, and targets of links."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        if any(path == part or part in path.parents for part in but):
            continue
        status = path.lstat()
        match stat.S_IFMT(status.st_mode):
            case stat.S_IFREG:
                found[str(path)] = (path.read_bytes(), status.st_mtime_ns)
            case stat.S_IFLNK:
                found[str(path)] = str(path.readlink())
            case kind:
                found[str(path)] = kind
    return found


def changes(before: dict[str, object], after: dict[str, object], *, times: bool = True) -> list[str]:
    """Return the paths at which two trees differ."""
    one, other = (
        {path: value[0] if isinstance(value, tuple) and not times else value for path, value in found.items()}
        for found in (before, after)
    )
    return [path for path in one | other if one.get(path) != other.get(path)]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run a command that must end soon, in little memory and without a traceback; return exit status and output."""

    def run(command: tuple[str, ...], kind: str = "") -> tuple[int, str]:
        with limit_seconds(), limit_address_space(), another_user(kind):
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
    world: Path,
    outside: Path,
    call: Callable[..., tuple[int, str]],
) -> None:
    path = Path(place.format(**names))
    is_part = "/runs/{" in place or "/external/" in place
    number = list(COMMANDS).index(place)
    for kind in KINDS if full else (KINDS[number % 10], KINDS[(number + 3) % 10]):
        obstacle = Obstacle(path, kind, outside)
        before, untouched = tree(world, world / path), tree(outside)
        for command in COMMANDS[place]:
            code, output = call(command, kind)
            if command == VERIFY and is_part and kind != "dangling link" and path.name != names["paused"]:
                assert code == (1 if "model" not in place or "finished" in place else 0), kind
            assert code in (0, 1, 2), kind
            assert code < 2 or path.name in output or path.parent.name in output, kind
        assert changes(before, tree(world, world / path, world / "cifar10.npz")) == [], kind
        assert changes(untouched, tree(outside)) == [], kind
        obstacle.remove()
        Path("cifar10.npz").unlink(missing_ok=True)


def restore_results(untouched: Path) -> None:
    shutil.rmtree("results")
    shutil.copytree(untouched / "results", "results")


REWRITTEN = ("dangling link", "link to a file", "empty file")
"""Kinds of records that are missing or damaged; `run` rewrites such a record from the checkpoint."""


DEFAULT = {f"{PAUSED}/record.json": "dangling link", f"{PAUSED}/history.jsonl": "pipe"}
RESUMED = [
    pytest.param(place, marks=[pytest.mark.full] * (place not in DEFAULT))
    for place, commands in COMMANDS.items()
    if commands[0] == VERIFY
]


@pytest.mark.parametrize("place", RESUMED)
def test_run_goes_on_once_the_obstacle_is_removed(
    place: str,
    full: bool,
    names: dict[str, str],
    completed: str,
    untouched: Path,
    world: Path,
    outside: Path,
    call: Callable[..., tuple[int, str]],
) -> None:
    path = Path(place.format(**names))
    for kind in KINDS if full else (DEFAULT[place],):
        if kind == "directory" and place in EMPTIED:
            continue
        restore_results(untouched)
        others = [world / PAUSED.format(**names), world / "results" / "leases", world / path.parent / "failure.json"]
        if path.name == "record.json" and kind in REWRITTEN:
            others.append(world / path.parent)
        obstacle = Obstacle(path, kind, outside)
        before, canaries = tree(world, world / path, *others), tree(outside)
        code, output = call(RUN, kind)
        assert code in (0, 2), kind
        after = tree(world, world / path, world / f"{path}{DAMAGED}", *others)
        assert changes(before, after, times=False) == [], (kind, output)
        assert changes(canaries, tree(outside)) == [], (kind, output)
        obstacle.remove()
        assert call(RUN)[0] == 0, (kind, output)
        assert table_of("results", world) == completed, (kind, output)
        assert call(VERIFY)[0] == 0, (kind, output)
        record = Store(world / "results").directory(names["paused"]).read_record()
        assert record
        assert len(record.sessions) > 1, "nothing was trained again"


@pytest.mark.parametrize(
    "option",
    [pytest.param((), id="refuse", marks=pytest.mark.full), pytest.param(("--incompatible", "restart"), id="restart")],
)
def test_files_of_another_user_are_left_alone(
    option: tuple[str, ...],
    full: bool,
    names: dict[str, str],
    untouched: Path,
    world: Path,
    outside: Path,
    call: Callable[..., tuple[int, str]],
) -> None:
    records = (f"{FINISHED}/record.json", f"{PAUSED}/record.json")
    for place in (*records, f"{PAUSED}/{{newest}}", PAUSED, "results/leases", "results/runs") if full else records[:1]:
        restore_results(untouched)
        path = Path(place.format(**names))
        Obstacle(path, UNREADABLE, outside)
        before = tree(world / path.parent)
        code, output = call((*RUN, *option), UNREADABLE)
        assert code == 2, place
        assert str(path) in output
        assert "Permission denied" in output
        assert {path for path in changes(before, tree(world / path.parent)) if path in before} == set()


@pytest.mark.parametrize("kind", [*THINGS, UNREADABLE])
def test_obstacle_is_no_weights_file(kind: str, tmp_path: Path, world: Path, outside: Path) -> None:
    obstacle = Obstacle(world / "weights.safetensors", kind, outside)
    before = tree(tmp_path, obstacle.path)
    with pytest.raises(PaperbenchError, match="weights"), limit_seconds(), limit_address_space(), another_user(kind):
        check_weights(obstacle.path, resolve("preact_resnet20"))
    assert tree(tmp_path, obstacle.path) == before


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
    "data/convert.py": {"Image.open(stream, formats=('PNG', 'JPEG'))": "an opened stream"},
    "data/download.py": {"tarfile.open(archive, 'r:gz')": "its md5 sum is right"},
    "data/imagenet/build.py": {
        "os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW, 438)": "never waits, and is checked",
    },
    "data/imagenet/decode.py": {"Image.open(io.BytesIO(data), formats=('JPEG', 'PNG'))": "bytes in memory"},
    "data/imagenet/index_file.py": {
        "sqlite3.connect(f'{path.absolute().as_uri()}?{options}', uri=True)": "it was opened as a regular file",
    },
    "data/imagenet/pack.py": {"Path('/proc/self/statm').read_text()": "a file of the kernel"},
    "data/imagenet/synsets.py": {
        "Path(spec.submodule_search_locations[0], 'data', '_info', 'imagenet_synsets.txt').read_text()": "timm's file"
    },
    "data/npz.py": {"archive.open(info)": "part of an opened archive"},
    "models/weights_file.py": {"safe_open(file, 'pt')": "takes only paths; the line before opens it as a regular file"},
    "processors.py": {"file.read_text()": "a file of the kernel"},
    "runs/environment.py": {
        "file.read_bytes()": "paperbench's own source code",
        "Path('/proc/cpuinfo').read_text()": "a file of the kernel",
    },
    "runs/lease.py": {
        "open(path, 'xb')": "a new file",
        "Path('/proc/sys/kernel/random/boot_id').read_text()": "a file of the kernel",
        "Path(f'/proc/{pid}/stat').read_text()": "a file of the kernel",
    },
    "streams.py": {
        "open(os.devnull, 'w')": "the null device",
        "os.open(os.devnull, os.O_RDWR)": "the null device",
        "os.open(os.devnull, os.O_WRONLY)": "the null device",
    },
    "training/memory.py": {"Path('/proc/meminfo').read_text()": "a file of the kernel"},
}
"""The calls outside `files.py` that open a file, and why they may: that is not a stranger's file."""


def test_strangers_files_are_opened_in_one_way() -> None:
    package = ROOT / "paperbench"
    found: dict[str, set[str]] = {}
    for module in package.rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in OPENERS:
                    found.setdefault(str(module.relative_to(package)), set()).add(ast.unparse(node))
    del found["files.py"]
    assert found == {module: set(calls) for module, calls in ALLOWED.items()}
