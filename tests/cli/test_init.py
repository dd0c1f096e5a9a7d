"""`paperbench init`: what it writes or copies trains, and is found from its own directory."""

from __future__ import annotations

import runpy
import shlex
import subprocess
from pathlib import Path

import pytest
import torch

from paperbench.cli.init import EXAMPLES
from tests.cli.conftest import Run
from tests.golden import assert_golden
from tests.helpers import ROOT

TABLE = Path("My Units/experiments/my_units.yaml")


@pytest.fixture
def printed(run: Run) -> str:
    """What init prints when it makes a table."""
    code, out, err = run("init", "My Units")
    assert (code, err) == (0, "")
    return out


def test_table_trains_and_is_reported_by_the_printed_commands(run: Run, printed: str) -> None:
    assert_golden("init", printed)
    for command in [line for line in printed.splitlines() if line.startswith("  ")]:
        further = ("--stop-at", "1", "--device", "cpu") if " run " in command else ()
        assert run(*shlex.split(command)[1:], *further)[0] == 0
    assert Path("page/index.html").exists()


@pytest.mark.parametrize("example", [*EXAMPLES[:-1], pytest.param("resnet_v1", marks=pytest.mark.full)])
def test_copy_of_an_example_is_whole_and_its_commands_run(run: Run, example: str) -> None:
    code, out, err = run("init", "copy", "--from", example)
    assert (code, err) == (0, "")
    copied = {path.relative_to("copy"): path.read_bytes() for path in Path("copy").rglob("*") if path.is_file()}
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT / "examples" / example, text=True).splitlines()
    assert copied == {Path(name): (ROOT / "examples" / example / name).read_bytes() for name in tracked}
    few = ("--cells", "preact/layers20") if example == "lab" else ()
    for command in [line for line in out.splitlines() if line.startswith("  ")]:
        further = ("--stop-at", "1", "--device", "cpu", *few) if " run " in command else ()
        assert run(*shlex.split(command)[1:], *further)[0] == 0
    assert run("init", "copy", "--from", example)[0] == 2
    assert {path: Path("copy", path).read_bytes() for path in copied} == copied


def test_every_example_can_be_copied() -> None:
    assert sorted(EXAMPLES) == sorted(path.name for path in (ROOT / "examples").iterdir() if path.is_dir())


def test_the_directory_is_found_from_within(run: Run, printed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = run("show", "my_units", "--tables", "My Units")
    assert run("show", "my_units")[0] == 2
    monkeypatch.chdir(TABLE.parents[1])
    assert run("show", "my_units") == outside
    assert "--tables ." in run("compare", "my_units", "--results", ".")[1]
    assert "./experiments has others: my_units." in run("list")[1]
    table2 = run("show", "table2")
    Path("experiments/table2.yaml").write_text("mine")
    assert run("show", "table2") == table2, "the paper's tables stay what they are"


def test_nothing_is_overwritten_and_no_id_is_taken(run: Run) -> None:
    for directory, name in (("Table2", "my_table2"), ("profiles", "my_profiles"), ("ß", "my_table"), ("x-1", "x_1")):
        assert run("init", directory)[0] == 0
        (made,) = Path(directory, "experiments").iterdir()
        assert made.stem == name
    net = Path("x-1/nets.py")
    net.write_text("mine")
    made.unlink()
    code, _, err = run("init", "x-1")
    assert (code, net.read_text(), made.exists()) == (2, "mine", False)
    assert err == f"paperbench: error: {net} exists already. Name another directory, or move it away.\n"


def test_net_of_the_template_takes_the_images_of_the_table(run: Run) -> None:
    run("init", "x")
    net = runpy.run_path("x/nets.py")["my_net"](num_classes=7, width=4)
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
