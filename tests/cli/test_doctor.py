"""`paperbench doctor`; tests/printed/doctor_*.txt has its pages."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paperbench.catalogue import DATASETS
from paperbench.cli.doctor import page
from paperbench.runs.diagnosis import Diagnosis
from paperbench.runs.doctor import describe_cpu, diagnose, output_of
from paperbench.specs.table import Table, read_table
from tests.cli.conftest import Run, validated
from tests.executors.commands import write_program
from tests.golden import assert_golden
from tests.helpers import ENVIRONMENT, ROOT, random_dataset
from tests.training.gpus import GPU, NO_DRIVER, OLD_DRIVER, V100, with_gpus

H100, A100 = "580.65.06, NVIDIA H100 80GB HBM3", "535.104.05, NVIDIA A100-SXM4-40GB"
OF_THIS_MACHINE = ("paperbench", "system", "torch", "libraries", "cpu", "disk")

Diagnose = Callable[..., Diagnosis]


@pytest.fixture
def diagnosis(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tables: dict[str, Table]) -> Diagnose:
    """Examines a machine that has both data sets, for a small table, with `nvidia-smi` and GPUs."""
    own = [read_table("mytable", ROOT / "examples" / "own_table"), tables["table1"], tables["table4"]]
    images = random_dataset(32).x_train
    Path("data").mkdir()
    for key in ("cifar10", "cifar100"):
        labels = np.arange(100) % DATASETS[key].num_classes
        np.savez(f"data/{key}.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def made(smi: str, *gpus: GPU, wanted: str = "auto", few: int = 1, **settings: Any) -> Diagnosis:
        if smi:
            write_program(tmp_path / "bin" / "nvidia-smi", f"echo '{smi}'")
        with_gpus(monkeypatch, *gpus, **settings)
        return diagnose(wanted, Path("data"), Path("results"), own[:few])

    return made


def assert_page(name: str, found: Diagnosis) -> None:
    """Compare a page with a file, but for what differs between machines and versions of torch."""
    found.facts.update({name: fact.replace(torch.__version__, "VERSION") for name, fact in found.facts.items()})
    found.facts.update(dict.fromkeys(OF_THIS_MACHINE, "..."))
    found.problems[:] = [problem.replace(torch.__version__, "VERSION") for problem in found.problems]
    text = page(found)
    assert max(map(len, text.splitlines())) <= 100
    assert_golden(f"doctor_{name}", re.sub(r"(fp32|tf32|\w+) {2,}(eager|graph) +[\d.]+ .B", r"\1  \2  ... GB", text))


@pytest.mark.parametrize(
    ("name", "smi", "gpus", "settings"),
    [
        ("cpu", "", (), {"init_error": NO_DRIVER}),
        ("h100", H100, (GPU(),), {"few": 2}),
        ("old_driver", A100, (GPU(),), {"init_error": OLD_DRIVER}),
        ("old_driver_not_needed", A100, (GPU(),), {"init_error": OLD_DRIVER, "wanted": "cpu"}),
        ("no_cuda", H100, (), {"cuda": None}),
        ("broken_gpu", "", (V100,), {"wanted": "cuda:0"}),
        ("broken_gpu_beside_another", "", (V100, GPU()), {}),
        ("gpu_of_apple", "", (), {"init_error": NO_DRIVER, "wanted": "mps"}),
    ],
)
def test_page_of_a_machine(
    diagnosis: Diagnose, name: str, smi: str, gpus: tuple[GPU, ...], settings: dict[str, Any]
) -> None:
    assert_page(name, diagnosis(smi, *gpus, **settings))


def test_net_that_does_not_fit_is_a_problem(diagnosis: Diagnose) -> None:
    found = diagnosis("", replace(GPU(), free=10_000_000))
    (problem,) = found.problems
    assert re.match(r"The largest net of mytable needs about [\d.]+ MB in tf32, with its residual units reco", problem)
    assert "; cuda:0 has 10.0 MB free. Stop other programs" in problem


def test_damaged_data_are_a_problem_and_missing_ones_are_listed(diagnosis: Diagnose) -> None:
    Path("data/cifar10.npz").write_bytes(b"no archive")
    Path("data/cifar100.npz").unlink()
    found = diagnosis("", init_error=NO_DRIVER, few=3, wanted="mps")
    found.problems[1] = re.sub(r"\(.*?\)", "(...)", found.problems[1])  # as numpy says it
    assert_page("without_data", found)


@pytest.mark.parametrize(
    ("code", "line", "seconds"),
    [(r"printf '\377 9\n'", "\ufffd 9", 60), ("exec sleep 60", "{} does not answer", 1), ("echo >&2 x", "x", 60)],
)
def test_command_may_print_garbage_or_hang(tmp_path: Path, code: str, line: str, seconds: int) -> None:
    program = write_program(tmp_path / "command", code)
    assert output_of(str(program), seconds=seconds) == line.format(program)


def test_page_names_no_user_or_path(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    working = tmp_path / "secretclient" / "secret project"
    (working / "secret data" / "cifar-10-batches-py").mkdir(parents=True)
    monkeypatch.chdir(working)
    monkeypatch.setenv("HOME", "/secret/user")
    monkeypatch.setenv("USER", "secretuser")
    said = "error: cannot open /secret/lib/libnvidia-ml.so.1, ~/secretdir or C:\\\\secret\\\\nvml.dll"
    write_program(tmp_path / "bin" / "nvidia-smi", f"echo '{said}'")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    for arguments in (
        [],
        ["--data", "secret data", "--results", "secret results"],
        ["--data", working / "secret data"],
    ):
        code, out, err = run("doctor", "--device", "mps", *arguments)
        assert (code, err) == (1, "paperbench: examining this machine; this takes some seconds.\n")
        assert "secret" not in out
        assert str(tmp_path.parent) not in out


def test_library_that_does_not_load_is_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paperbench.runs.doctor", None)
    code, out, err = run("doctor")
    assert (code, out) == (2, "")
    assert "paperbench: error: A library does not load: " in err


@pytest.mark.full
def test_page_describes_this_machine(run: Run) -> None:
    code, out, _ = run("doctor", "--data", "nowhere")
    assert code == 0, "only data are missing"
    assert len(validated("doctor", run("doctor", "--data", "nowhere", "--format", "json")[1])["missing"]) == 2
    for fact in ("paperbench", "system", "torch", "libraries", "driver", "cpu", "disk"):
        assert re.search(rf"^{fact} +\S", out, re.M)
    assert re.search(r"^table5 +(fp32|tf32) ", out, re.M)
    assert f", Python {platform.python_version()}" in " ".join(out.split())


@pytest.mark.parametrize(("allowed", "said"), [(None, ""), (2, ""), (1, " (a cgroup allows 1: set OMP_NUM_THREADS=1)")])
def test_quota_below_the_threads_is_named(allowed: int | None, said: str) -> None:
    assert describe_cpu(ENVIRONMENT, allowed) == f"a CPU, 2 threads{said}"
