"""No number depends on what surrounds a computation."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
import yaml
from PIL import ImageFile
from safetensors.torch import load_file

import paperbench
from paperbench.ambient import OVERRIDES, neutral, prepare_for_torch, same_imports
from paperbench.errors import PaperbenchError
from paperbench.runs.observer import Observer
from paperbench.runs.store import Store
from tests.helpers import ROOT, copy_of_specs, copy_of_tiny_specs, edit, python


def restored(get: Callable[[], Any], set_to: Callable[[Any], Any], value: Any) -> AbstractContextManager[Any]:
    stack = ExitStack()
    stack.callback(set_to, get())
    set_to(value)
    return stack


def attribute(holder: Any, name: str, value: Any) -> AbstractContextManager[Any]:
    return restored(lambda: getattr(holder, name), lambda to: setattr(holder, name, to), value)


BACKENDS: Any = torch.backends
STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no gradients": torch.no_grad,
    "inference mode": torch.inference_mode,
    "default device": lambda: torch.device("meta"),
    "default device, set": lambda: restored(lambda: "cpu", torch.set_default_device, "meta"),
    "default dtype": lambda: restored(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "deterministic": lambda: restored(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, "error"),
    "anomaly detection": torch.autograd.detect_anomaly,
    "medium products": lambda: restored(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
    ),
    "bfloat16 in convolutions": lambda: attribute(BACKENDS.mkldnn.conv, "fp32_precision", "bf16"),
    "bfloat16 in oneDNN": lambda: attribute(BACKENDS, "fp32_precision", "bf16"),
    "no oneDNN": lambda: attribute(BACKENDS.mkldnn, "enabled", False),
    "flushed denormals": lambda: restored(lambda: False, torch.set_flush_denormal, True),
    "seed": lambda: restored(torch.initial_seed, torch.manual_seed, 99),
}


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_tiny_specs(tmp_path_factory.mktemp("specs"), batch_norm={"group": 8, "at_test": "reestimated"})


@pytest.fixture(scope="module")
def usual(specs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return numbers(specs, tmp_path_factory.mktemp("usual"))


def numbers(specs: Path, results: Path, *states: str) -> dict[str, Any]:
    """Return what planning, training, tests, an analysis and an evaluation give in some states of torch."""
    with ExitStack() as stack:
        for state in states:
            stack.enter_context(STATES[state]())
        where = {"results": results, "device": "cpu"}
        plan = paperbench.plan("table2", cells="preact/resnet110", profile="smoke", root=specs, **where)
        text = str(plan)
        paperbench.run(plan, Observer())
        (run,) = plan.runs
        evaluated = paperbench.evaluate(run.id, **where)
        (analysis,) = paperbench.analyze(run=run.id, images=4, precision="fp32", **where)
    directory = Store(results).directory(run.id)
    return {
        "plan": text.replace(str(results), ""),
        "history": [replace(line, seconds=0) for line in directory.history()],
        "weights": {name: tensor.tolist() for name, tensor in load_file(directory.weights_file).items()},
        "evaluation": evaluated,
        "analysis": replace(analysis, seconds=0),
    }


@pytest.mark.parametrize(
    "states",
    [tuple(STATES), *(pytest.param((state,), marks=pytest.mark.full) for state in STATES)],
    ids=lambda states: " and ".join(states[:2]),
)
@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:TF32 acceleration")
def test_no_state_of_torch_changes_a_number(
    states: tuple[str, ...], usual: dict[str, Any], specs: Path, tmp_path: Path
) -> None:
    def own() -> list[Any]:
        of_torch = (torch.get_default_dtype, torch.get_float32_matmul_precision, torch.get_num_threads)
        return [*(get() for get in of_torch), BACKENDS.cudnn.deterministic, BACKENDS.cudnn.benchmark]

    before, random = own(), torch.get_rng_state()
    found = numbers(specs, tmp_path, *states)
    assert [name for name in usual if found[name] != usual[name]] == []
    assert own() == before
    assert torch.equal(torch.get_rng_state(), random) or "seed" in states


@pytest.mark.parametrize("holder", [BACKENDS, BACKENDS.cudnn, BACKENDS.cuda.matmul, BACKENDS.cudnn.conv])
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_precisions_are_left_as_they_were(holder: Any, precision: str) -> None:
    """Whichever are set: torch refuses to say the old one's value beside some of the new ones."""

    def precisions() -> list[str]:
        parts = (BACKENDS.cuda.matmul, BACKENDS.cudnn.conv, BACKENDS.mkldnn.matmul, BACKENDS.mkldnn.conv)
        return [part.fp32_precision for part in parts]

    with attribute(holder, "fp32_precision", precision):
        before = precisions()
        with neutral():
            assert torch.get_float32_matmul_precision() == "highest"
            assert precisions() == ["ieee", "tf32", "ieee", "none"]
        assert precisions() == before


def test_truncated_images_are_refused_whatever_pillow_is_told() -> None:
    with attribute(ImageFile, "LOAD_TRUNCATED_IMAGES", True):
        with neutral():
            assert not ImageFile.LOAD_TRUNCATED_IMAGES
        assert ImageFile.LOAD_TRUNCATED_IMAGES


@pytest.mark.full
def test_state_that_cannot_be_undone_is_refused() -> None:
    """Threads inherit the setting of the one that starts them, and keep it."""
    program = "import torch, paperbench; torch.set_flush_denormal(True); torch.rand(2**20) + 1; paperbench.run(None)"
    assert "PaperbenchError: torch.set_flush_denormal(True) cannot be undone" in python("-c", program).stderr


@pytest.mark.parametrize("name", OVERRIDES)
def test_variable_that_changes_the_precision_has_no_effect(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "BF16")
    with pytest.raises(PaperbenchError, match=f"{name} is set"):
        prepare_for_torch()
    program = f"import os, paperbench.ambient as a; a.prepare_for_torch(); assert {name!r} not in os.environ"
    assert python("-c", program).returncode == 0


@pytest.mark.parametrize(
    ("given", "expected"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)]
)
def test_openmp_threads_sleep_unless_the_user_sets_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: str | None
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    prepare_for_torch()
    assert os.environ.get("GOMP_SPINCOUNT") == expected
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)


def test_another_interpreter_imports_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a directory whose name would separate paths, in the working directory."""
    directory = tmp_path / "a:b $'"
    (directory / "more").mkdir(parents=True)
    (directory / "yaml.py").write_text("raise ImportError('of the working directory')")
    (directory / "more" / "only_here.py").touch()
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(directory / "more")
    command = (
        [sys.executable, "-m", "json.tool"],
        [sys.executable, "-c", "import yaml, only_here; print(yaml.__file__)"],
    )
    variables = {**os.environ, **same_imports()}
    outputs = [subprocess.run(one, env=variables, input="{}", capture_output=True, text=True) for one in command]
    assert [one.stdout.strip() for one in outputs] == ["{}", yaml.__file__]


@pytest.mark.full
def test_pictures_and_help_do_not_depend_on_the_shell(tmp_path: Path) -> None:
    """A notebook names a backend that its shell lacks; a working directory has settings; a terminal has no width."""
    plot, pictures = ["-m", "paperbench", "plot", "preact_resnet20", "--out", "net.png"], []
    for name, text in (("usual", ""), ("other", "text.usetex: True\nsavefig.facecolor: red\nfont.size: 30\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "matplotlibrc").write_text(text)
        backend = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"} if text else {}
        done = python(*plot, cwd=tmp_path / name, **backend, COLUMNS="1")
        assert done.returncode == 0, done.stderr
        pictures.append((tmp_path / name / "net.png").read_bytes())
    assert pictures[0] == pictures[1]


@pytest.mark.full
@pytest.mark.parametrize("is_installed", [True, False])
def test_workers_run_the_code_of_their_command(specs: Path, tmp_path: Path, is_installed: bool) -> None:
    """An installed command whose working directory has other modules, and a checkout that is only in its own."""
    if is_installed:
        (tmp_path / "timm.py").write_text("raise ImportError('of the working directory')")
    else:
        copytree(ROOT / "paperbench", tmp_path / "paperbench")
        copy_of_specs(tmp_path)
        edit(tmp_path / "paperbench" / "__init__.py", '__version__ = "0.1.0"', '__version__ = "9.9"')
    options = ["--profile=smoke", "--device=cpu", "--executor=local", f"--tables={specs}", "--results=r"]
    command = [sys.executable, *["-P"] * is_installed, "-m", "paperbench", "run", "table2", "--cells=preact/resnet110"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT) if is_installed else ""}
    done = subprocess.run(
        [*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    (record,), _ = Store(tmp_path / "r").records()
    assert record.sessions[0].code.version == (paperbench.__version__ if is_installed else "9.9")
