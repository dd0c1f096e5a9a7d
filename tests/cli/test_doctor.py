from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import paperbench
from paperbench.catalogue import DATASETS
from paperbench.cli import doctor as doctor_command
from paperbench.runs import doctor
from paperbench.specs.table import Table
from tests.cli.conftest import Run
from tests.helpers import random_dataset
from tests.training.gpus import GPU, NO_DRIVER, OLD_DRIVER, V100, with_gpus

SMI = "nvidia-smi"


@pytest.fixture(autouse=True)
def machine(run: Run, monkeypatch: pytest.MonkeyPatch, tables: dict[str, Table]) -> dict[str, str]:
    """A machine with enough memory, without GPUs, with both data sets; what commands print there."""
    outputs = {SMI: ""}
    monkeypatch.setattr(doctor_command, "load_tables", lambda: list(tables.values()))  # reading them takes a second
    monkeypatch.setattr(doctor, "_output_of", lambda command, *_: outputs.get(command, ""))
    monkeypatch.setattr(doctor, "memory_needed", lambda *_, **__: 2_000_000_000)
    monkeypatch.setattr(doctor, "memory_free", lambda device: 8_000_000_000)
    with_gpus(monkeypatch, init_error=NO_DRIVER)
    images = random_dataset(32).x_train
    Path("data").mkdir()
    for key in ("cifar10", "cifar100"):
        labels = np.arange(100) % DATASETS[key].num_classes
        np.savez(Path("data") / f"{key}.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    return outputs


class Page:
    """What the command prints: facts by subject, choices by table, problems in one line each."""

    def __init__(self, run: Run, *arguments: object) -> None:
        self.status, self.text, errors = run("doctor", *arguments)
        assert errors == "paperbench: examining this machine; this takes some seconds.\n"
        assert max(map(len, self.text.splitlines())) <= 100
        facts, *_ = self.text.split("\n\n")
        joined = re.sub(r"\n {12}", " ", facts)
        self.facts = {line[:12].strip(): line[12:] for line in joined.splitlines()}
        self.choices = {line.split()[0]: line.split()[1:] for line in re.findall(r"^table\d .*", self.text, re.M)}
        self.problems = re.findall(r"^\d+\. (.*)", re.sub(r"\n {3}", " ", self.text), re.M)


def test_page_of_a_machine_without_a_gpu(run: Run) -> None:
    page = Page(run)
    assert (page.status, page.problems) == (0, [])
    assert page.text.endswith("\nNo problem found.\n")
    assert page.facts["driver"] == "nvidia-smi not found"
    assert page.facts["GPU"] == "none"
    assert page.facts["CIFAR-10"] == "CIFAR-10 (unverified cifar10.npz), not comparable with the paper"
    assert page.facts["torch"].startswith(f"{torch.__version__}, built for CUDA 13.2 on sm_75 ")
    assert page.choices["table2"] == ["fp32", "eager", "2.0", "GB"]
    assert "`paperbench run` takes, on cpu:" in page.text
    assert page.choices["table5"][:2] == ["fp32", "eager"]


def test_page_of_an_h100(run: Run, machine: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    machine[SMI] = "580.65.06, NVIDIA H100 80GB HBM3"
    with_gpus(monkeypatch, GPU())
    page = Page(run)
    assert page.status == 0
    assert page.facts["driver"] == machine[SMI]
    assert page.facts["cuda:0"] == "NVIDIA H100 80GB HBM3, sm_90, 8.0 GB of 85.0 GB free; works"
    assert page.choices["table1"][:2] == ["fp32", "graph"]
    assert page.choices["table2"] == ["tf32", "graph", "2.0", "GB"]
    assert "\nfp32: what table1 asks for\n" in page.text
    assert "\ntf32: the default on cuda:0\n" in page.text


def test_page_with_an_old_driver(run: Run, machine: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    machine[SMI] = "535.104.05, NVIDIA A100-SXM4-40GB"
    with_gpus(monkeypatch, GPU(), init_error=OLD_DRIVER)
    page = Page(run)
    assert page.status == 1
    reason = "The NVIDIA driver on your system is too old (found version 12020)"
    assert page.facts["cuda:0"] == f"does not work: {reason}"
    assert page.choices["table2"][:2] == ["fp32", "eager"]
    (problem,) = page.problems
    assert problem.startswith(f"The CPU is used, as cuda:0 does not work: {reason}. Update the NVIDIA driver or")
    assert Page(run, "--device", "cpu").status == 0


@pytest.mark.parametrize(
    ("device", "problem"), [("cuda:0", "Device 'cuda:0': CUDA error: no"), ("mps", "Apple's GPUs")]
)
def test_device_that_run_refuses_gets_no_table(
    run: Run, monkeypatch: pytest.MonkeyPatch, device: str, problem: str
) -> None:
    with_gpus(monkeypatch, V100)
    page = Page(run, "--device", device)
    assert (page.status, page.choices) == (1, {})
    assert problem in page.problems[0]


def test_broken_gpu_is_no_problem_beside_one_that_works(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, V100, GPU())
    page = Page(run)
    assert (page.status, page.problems) == (0, [])
    assert page.facts["cuda:0"].endswith(
        "; does not work: CUDA error: no kernel image is available for execution on the device"
    )
    assert page.facts["cuda:1"].endswith("; works")
    assert "takes, on cuda:1:" in page.text


def test_torch_without_cuda_beside_a_gpu(run: Run, machine: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    machine[SMI] = "580.65.06, NVIDIA H100 80GB HBM3"
    with_gpus(monkeypatch, cuda=None)
    page = Page(run)
    assert page.facts["torch"].endswith(", built for CPUs")
    assert "has no CUDA. Install one that has" in page.problems[0]


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (r"import os; os.write(1, b'\xff 9\n')", "\ufffd 9"),
        ("import time; time.sleep(60)", f"{Path(sys.executable)} does not answer"),
    ],
    ids=["garbage", "hangs"],
)
def test_command_may_print_garbage_or_hang(monkeypatch: pytest.MonkeyPatch, code: str, line: str) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(doctor, "COMMAND_TIMEOUT", 2)
    assert doctor._output_of(sys.executable, "-c", code) == line


def test_net_that_does_not_fit_is_a_problem(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "memory_needed", lambda net, *_, **__: 9_900_000_000 if net.depth == 1001 else 1)
    page = Page(run)
    assert page.status == 1
    assert [problem.split(" needs ")[0] for problem in page.problems] == [
        "The largest net of table3",
        "The largest net of table4",
    ]
    assert "cpu has 8.0 GB free" in page.problems[0]


def test_missing_and_damaged_data_are_problems(run: Run) -> None:
    Path("data/cifar10.npz").write_bytes(b"no archive")
    Path("data/cifar100.npz").unlink()
    page = Page(run)
    assert (page.status, page.facts["CIFAR-10"], page.facts["CIFAR-100"]) == (1, "cannot be used", "missing")
    damaged, missing = page.problems
    assert damaged.startswith("cifar10.npz: damaged or not a .npz file")
    assert "table3, table4 need it. `paperbench data download cifar100` gets the original files" in missing
    assert "`paperbench data download cifar100`" in page.text  # in one line, to be copied


def test_windows_is_a_problem(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.platform, "system", lambda: "Windows")
    assert Page(run).problems == ["Windows does not rename open files, so no run can be saved. Use WSL 2."]


def test_page_names_no_host_user_or_path(
    run: Run, machine: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    working = tmp_path / "secretclient" / "secret project"
    (working / "secret data" / "cifar-10-batches-py").mkdir(parents=True)
    monkeypatch.chdir(working)
    monkeypatch.setenv("HOME", "/secret/user")
    monkeypatch.setenv("USER", "secretuser")
    monkeypatch.setattr(platform, "node", lambda: "secrethost")
    machine[SMI] = "error: cannot open /secret/lib/libnvidia-ml.so.1, ~/secretdir or C:\\secret\\nvml.dll"
    for arguments in (
        [],
        ["--data", "secret data", "--results", "secret results"],
        ["--data", working / "secret data"],
    ):
        page = Page(run, *arguments)
        assert page.status == 1
        assert "secret" not in page.text
        assert str(tmp_path.parent) not in page.text


def test_library_that_does_not_load_is_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paperbench.runs.doctor", None)
    code, out, err = run("doctor")
    assert (code, out) == (2, "")
    assert "paperbench: error: A library does not load: " in err


def test_page_describes_this_machine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(doctor, "memory_needed", lambda *_, **__: 1)  # takes seconds
    page = Page(run, "--data", "nowhere")
    assert page.status == 1
    assert page.facts["paperbench"].startswith(f"{paperbench.__version__}, ")
    assert page.facts["system"].endswith(f", Python {platform.python_version()}")
    assert page.facts["disk"].endswith(" GB free for results")
    assert page.choices["table2"][0] in ("fp32", "tf32")


def test_page_names_the_quota(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    for limit, expected in ((None, " 4 threads, "), (4, " 4 threads, "), (3, " 4 threads (a cgroup allows 3: set ")):
        monkeypatch.setattr(doctor, "quota", lambda limit=limit: limit)
        assert expected in Page(run).facts["cpu"]
