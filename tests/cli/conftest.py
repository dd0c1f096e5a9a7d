"""The command line as the tests call it, and one trained run for the tests that only read it."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from paperbench.api import plan
from paperbench.cli.main import main
from paperbench.cli.schema import FORMATS
from paperbench.typed import json_schema
from tests.helpers import change_yaml, copy_of_specs, copy_of_tiny_specs

Run = Callable[..., tuple[int, str, str]]

ONE_CELL = ("--profile", "smoke", "--cells", "preact/resnet110", "--device", "cpu")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line in an empty directory; returns exit status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PAPERBENCH_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: object) -> tuple[int, str, str]:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def validated(name: str, out: str) -> dict[str, Any]:
    """Parse what a command printed as JSON, in ASCII, and check it against the schema of this name."""
    module, _, kind = FORMATS[name].rpartition(".")
    value: dict[str, Any] = json.loads(out)
    assert out.isascii()
    jsonschema.Draft202012Validator(json_schema(getattr(import_module(f"paperbench.{module}"), kind))).validate(value)
    return value


@pytest.fixture(scope="session")
def quick_specs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped specs, whose smoke profile trains nets of 8 and 11 layers for six iterations. Do not edit."""
    specs = copy_of_specs(tmp_path_factory.mktemp("specs"))
    smoke = ("profiles", "smoke")
    recipe = (*smoke, "datasets", "digits", "recipe")
    change_yaml(
        specs / "experiments" / "profiles.yaml",
        ((*smoke, "depth"), {"basic": 8, "bottleneck": 11, "one_layer": 8}),
        ((*recipe, "batch_size"), 32),
        ((*recipe, "iterations"), 6),
        ((*recipe, "warm_up", "iterations"), 1),
        ((*recipe, "drops", "at"), [3, 5]),
        ((*recipe, "monitoring"), {"log_every": 1, "test_every": 3, "checkpoint_every": 2}),
    )
    return specs


@pytest.fixture(scope="session")
def taking(tmp_path_factory: pytest.TempPathFactory) -> Callable[[float], Path]:
    """Returns tables whose runs, in profile smoke, take about so many days on this CPU."""
    monitoring = {"log_every": 10**6, "test_every": 10**6, "checkpoint_every": 10**6}

    @cache
    def made(days: float, iterations: int = 1_000_000) -> Path:
        drops = {"at": [iterations // 2]}
        settings = {"iterations": iterations, "drops": drops, "monitoring": monitoring}
        return copy_of_tiny_specs(tmp_path_factory.mktemp("slow"), **settings)

    @cache
    def iterations_a_day() -> float:
        where = {"root": made(0), "results": tmp_path_factory.mktemp("none")}
        cost = plan("table2", cells="preact/resnet110", profile="smoke", device="cpu", **where).cost()
        assert cost
        return 1_000_000 * 86_400 / cost.total

    return lambda days: made(days, int(days * iterations_a_day()))


@pytest.fixture(scope="session")
def trained_once(quick_specs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results directory with one finished run."""
    results = tmp_path_factory.mktemp("trained") / "results"
    assert main(["run", "table2", "--tables", str(quick_specs), "--results", str(results), *ONE_CELL]) == 0
    return results


@pytest.fixture
def trained(trained_once: Path, tmp_path: Path) -> Path:
    """A copy of the results directory with one finished run."""
    return shutil.copytree(trained_once, tmp_path / "trained")


@pytest.fixture
def no_pickles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets no pickle be read: it could run code."""

    def poisoned(*_: object, **__: object) -> None:
        raise AssertionError("a pickle was read")

    for place in ("pickle.load", "pickle.loads", "pickle.Unpickler", "torch.load"):
        monkeypatch.setattr(place, poisoned)


@pytest.fixture
def heeded_signals() -> Iterator[None]:
    """Let processes heed signals that the tests' own process may ignore, such as SIGHUP under nohup."""
    numbers = (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    default = {signal.SIGINT: signal.default_int_handler, **dict.fromkeys(numbers, signal.SIG_DFL)}
    before = {number: signal.signal(number, handler) for number, handler in default.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
