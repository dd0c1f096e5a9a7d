"""`paperbench check`: which mistakes it finds, and that it finds none where there is none."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from paperbench.cli.main import main
from tests.cli.conftest import Run
from tests.conftest import ROOT
from tests.helpers import copy_of_tiny_specs, edit, python

SHALLOW = "check table2 --profile shallow --cells preact/resnet110"
BOTTLENECK = "check preact_resnet164 --set depth=11"
GATED = "check resnet110_exclusive_gating --set gate_bias=-6 --set depth=8"
SCALED = "check resnet110_constant_scaling --set shortcut_scale=0.5 --set residual_scale=1.0 --set depth=8"
DROPOUT = "check resnet110_dropout_shortcut --set depth=8"
PHOTOGRAPHS = "check table5 --profile smoke --cells original_resnet101/top1"
CLIPPED = "check table2 --profile smoke --cells preact/resnet110 --tables specs"
TRAINING = (
    "run table2 --profile smoke --cells preact/resnet110 --tables specs --seeds 2 --device cpu --engine eager --results"
)
TRAINED = "compare table2 --profile smoke --cells preact/resnet110 --tables specs --results new"


class Mistake(NamedTuple):
    """A text replaced in a copy of the project, the command that finds it, and words of what it says."""

    title: str
    file: str
    before: str
    after: str
    command: str
    words: str


NETS = "paperbench/models/residual_net.py", "paperbench/models/parts.py", "paperbench/models/shortcuts.py"
LAYERS, PLACEMENTS = "paperbench/architecture.py", "paperbench/catalogue/placements.py"
RECIPE, SGD, STEP = "experiments/recipes/cifar.yaml", "paperbench/training/optimiser.py", "paperbench/training/step.py"
LOADER, RATES = "paperbench/data/loader.py", "paperbench/specs/recipe.py"
TRAINER, AVERAGES = "paperbench/training/trainer.py", "paperbench/training/batch_norm.py"
# fmt: off
MISTAKES = [Mistake(*fields) for fields in (
    ("eps 1e-3 in the module", NETS[1], "nn.BatchNorm2d,", "lambda n: nn.BatchNorm2d(n, eps=1e-3),", SHALLOW,
     "bn: was eps 1e-05 and is eps 0.001"),
    ("eps 1e-3 in the recipe", RECIPE, "eps: 0.00001", "eps: 0.001", SHALLOW, "bn: was eps 1e-05 and is eps 0.001"),
    ("BN's momentum 0.01 for 0.1", TRAINER, "batch_norm.moving_average", "batch_norm.moving_average / 10", SHALLOW,
     "bn: was momentum 0.1 and is momentum 0.01"),
    ("last pre-activation dropped", LAYERS, "return PLACEMENTS[net.placement].before", "return ()", SHALLOW,
     "tail, number 1: was bn and is nothing"),
    ("BN and ReLU swapped", PLACEMENTS, '"full pre-activation", before=("bn", "relu")',
     '"full pre-activation", before=("relu", "bn")', SHALLOW,
     "stages.0.0, number 1: was preactivation.bn and is preactivation.relu"),
    ("fan-in for fan-out", NETS[0], '= "fan_in" if method == "fan_in" else "fan_out"', '= "fan_in"', SHALLOW,
     "and is weight 16x3x3x3, normal, deviation sqrt(2 / fan-in) = 0.2722"),
    ("classifier drawn too wide", NETS[0], "classifier.in_features**-0.5", "classifier.in_features**-0.25", SHALLOW,
     "fc: was weight 10x64, uniform, deviation sqrt(1 / (3 fan-in)) = 0.07217"),
    ("no decay on BN", SGD, 'weight_decay_on != "convolutions" or p.ndim == 4', "weight_decay_on or p.ndim > 1",
     SHALLOW, "preactivation.bn: was weight 16, all 1, decay 0.0001 and is weight 16, all 1, decay 0"),
    ("decay on nothing but BN", SGD, 'recipe.weight_decay_on != "convolutions" or p.ndim == 4', "p.ndim == 1", SHALLOW,
     "= 0.1179, decay 0.0001 and is weight 16x3x3x3, normal, deviation sqrt(1 / (3 fan-in)) = 0.1111 or "
     "sqrt(2 / fan-out) = 0.1179, decay 0 ("),
    ("no warm-up", RATES, "if warm_up and iteration < begin", "if False", SHALLOW,
     "learning rate, iteration 0: was 0.01 and is 0.1"),
    ("drops moved by one", RATES, "(self.drops.at, iteration)", "(self.drops.at, iteration - 1)",
     SHALLOW, "learning rate, number 4: was iteration 31999 and is iteration 32000"),
    ("momentum in PyTorch's form", SGD, '== "caffe" and', '== "pytorch" and', SHALLOW,
     "parameters after iteration 400: was"),
    ("Nesterov's momentum", SGD, '_form == "nesterov"', '_form != "nesterov"', SHALLOW,
     "parameters after iteration 0: was"),
    ("gradients not clipped", SGD, "self._recipe.clip_norm is not None", "False", CLIPPED,
     "parameters after iteration 0: was"),
    ("flip off", LOADER, "(1 if recipe.augmentation.flip else 2)", "2", SHALLOW, "images of iteration 0: was "),
    ("padding by reflection", LOADER, "(p, p), (0, 0)))", "(p, p), (0, 0)), mode=\"reflect\")", SHALLOW,
     "images of iteration 0: was "),
    ("crops at 8 positions for 9", LOADER, "arange(2 * padding + 1)", "arange(2 * padding)", SHALLOW,
     "images of iteration 0: was "),
    ("mean image not subtracted", LOADER, " - self._shifts[variant]", "", SHALLOW,
     "images of iteration 0: was "),
    ("one mean for each channel", LOADER, "return mean_image, np.ones(3)",
     "return mean_image.mean((0, 1)) + 0 * mean_image, np.ones(3)", SHALLOW, "images of iteration 0: was "),
    ("labels off by one", LOADER, "self._labels[chosen])", "self._labels[chosen - 1])", SHALLOW, "label"),
    ("order of images without the seed", LOADER, 'derived_seed(seed, purpose, "order"',
     'derived_seed(0, purpose, "order"', SHALLOW, "images of iteration 0: was "),
    ("every epoch in the same order", LOADER, '"order", number', '"order", 0', SHALLOW, "images of iteration 50: was "),
    ("test images moved", LOADER, "(pixels / self._scale", "(pixels.roll(1, 2) / self._scale", SHALLOW,
     "images of the test: was "),
    ("loss averaged over a group", STEP, "tensor(1 / images", "tensor(parts.recipe.groups / images", SHALLOW,
     "gradient in stem: was "),
    ("away from the minimum", STEP, "loss.backward(weight)", "loss.backward(-weight)", SHALLOW,
     "gradient in stem: was "),
    ("moving averages move too far", AVERAGES, "self._layers[0].momentum or 0.0", "1 - (self._layers[0].momentum or 0)",
     SHALLOW, "BN's averages after a step: was "),
    ("option A from the raw signal", LAYERS, 'changes_dimensions and net.transition_shortcut == "activated"',
     "False", SHALLOW, "signal after stages.1.0, in a test: was "),
    ("stride in another convolution", LAYERS, 'strided = 1 if net.stride_in == "middle" else 0', "strided = 1",
     BOTTLENECK, "stages.1.0.residual.conv1: was stride 2x2 and is weight"),
    ("gate bias 0 for -6", NETS[2], 'bias"), self.initial_bias)', 'bias"), 0)', GATED,
     "addition.gate: was bias 16, all -6 and is bias 16, all 0"),
    ("gate not exclusive", NETS[2], "gate * residual if self.exclusive else residual", "residual", GATED,
     "signal after stages.0.0, in a test: was "),
    ("factors swapped", NETS[2], "self.shortcut_scale * shortcut, self.residual_scale * residual",
     "self.residual_scale * shortcut, self.shortcut_scale * residual", SCALED,
     "signal after stages.0.0, in a test: was "),
    ("dropout in the other branch", NETS[2], "self.dropout(shortcut)\n        return self.scale * dropped, residual",
     "self.dropout(residual)\n        return self.scale * shortcut, dropped", DROPOUT,
     "signal after stages.0.0, in training: was "),
    ("dropout's scale", NETS[2], "1.0 if inverted else 0.5", "1.0", DROPOUT,
     "signal after stages.0.0, in a test: was "),
    ("first seed's initial weights for all", TRAINER, 'derived_seed(self.seed, "initialisation")',
     'derived_seed(0, "initialisation")', TRAINED, "seed 1, iteration 1: train_loss was"),
    ("BN's averages not estimated again", TRAINER, 'at_test == "reestimated"', 'at_test == ""', TRAINED,
     "seed 0, at the end: test_loss was"),
    ("every second batch trained on twice", "paperbench/training/engine.py", "feed.choices(iteration)",
     "feed.choices(iteration - iteration % 2)", TRAINED, "iteration 2: train_loss was"),
    ("gradients of the fourth group lost", "paperbench/training/tree_sum.py", "self._parts.append((1, tensors))",
     "self._parts[1:] = [(1, tensors)]", TRAINED, "iteration 2: train_loss was"),
    ("mean training loss over too many images", "paperbench/training/metrics.py", "self._images += images",
     "self._images += images + 1", TRAINED, "seed 0, iteration 1: train_loss was"),
    ("test error of the wrong class", "paperbench/training/evaluation.py", "logits.argmax(1)", "logits.argmin(1)",
     TRAINED, "test_error was"),
)]
# fmt: on
BATCH_NORM = {"group": 16, "at_test": "reestimated"}
GUIDE = (ROOT / "docs" / "maintainers.md").read_text()
QUICK = ("eps 1e-3 in the module", "no warm-up", "labels off by one", "BN and ReLU swapped")

_SERVER = """
import json, os, sys
import pydantic, scipy.stats, sklearn.datasets, timm, torch
torch.set_num_threads(1)
for line in sys.stdin:
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    else:
        with open("said", "w") as sys.stdout:
            sys.stderr = sys.stdout
            from paperbench.cli.main import main
            sys.exit(main(json.loads(line)))
"""


@dataclass
class Copy:
    """A copy of the project, and a process that has imported what is not of the project, to save time."""

    root: Path
    server: subprocess.Popen[str]

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run a command in a fork; return its exit status and what it says."""
        assert self.server.stdin
        assert self.server.stdout
        print(
            json.dumps([word for line in arguments for word in shlex.split(line)]), file=self.server.stdin, flush=True
        )
        return int(self.server.stdout.readline()), (self.root / "said").read_text()

    def baseline(self, command: str) -> str:
        """Return the options that compare with what the unchanged project gives, which is made once."""
        made = re.sub(r"\W+", "-", command)
        if not (self.root / made).exists():
            code, said = self.run(*(command, "--save", made) if command != TRAINED else (TRAINING, made))
            assert code == 0, said
        return f"--against {made}"

    def elsewhere(self) -> str:
        """Return a directory with what the unchanged project trains on a machine with two threads."""
        if not (self.root / "elsewhere").exists():
            variables = {"PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "2"}
            python("-m", "paperbench", *shlex.split(TRAINING), "elsewhere", cwd=self.root, **variables)
        return "elsewhere"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    root = tmp_path_factory.mktemp("copy")
    for name in ("paperbench", "experiments", "expected"):
        shutil.copytree(ROOT / name, root / name)
    copy_of_tiny_specs(root / "specs", batch_size=64, batch_norm=BATCH_NORM, clip_norm=1.0)
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=-1, stdout=-1, text=True, cwd=root, env=environment
    ) as server:
        yield Copy(root, server)
        assert server.stdin
        server.stdin.close()


@pytest.mark.parametrize(
    "mistake",
    [pytest.param(one, id=one.title, marks=[] if one.title in QUICK else pytest.mark.full) for one in MISTAKES],
)
def test_planted_mistake_is_named(copy: Copy, mistake: Mistake) -> None:
    against, file = copy.baseline(mistake.command), copy.root / mistake.file
    unchanged = file.read_text()
    edit(file, mistake.before, mistake.after)
    try:
        if mistake.command == TRAINED:
            shutil.rmtree(copy.root / "new", ignore_errors=True)
            code, said = copy.run(TRAINING, "new")
            assert code == 0, said
        code, said = copy.run(mistake.command, against)
    finally:
        file.write_text(unchanged)
    assert code == 1, said
    assert mistake.words in " ".join(said.split()), said
    if mistake.command == TRAINED:
        assert copy.run(TRAINED, "--against", copy.elsewhere())[0] == 3


def test_table_in_the_guide_is_that_of_the_planted_mistakes() -> None:
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\| .*\|$", GUIDE, re.MULTILINE)]
    found = [("`check`", "`check`") if one.command != TRAINED else ("`compare`", "cannot say") for one in MISTAKES]
    assert [row for row in rows if row[0] in {one.title for one in MISTAKES}] == [
        [one.title, *where] for one, where in zip(MISTAKES, found, strict=True)
    ]


CELLS = ("check", "table2", "--profile", "smoke", "--cells", "preact/*", "original/*")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("saved") / "facts.json"
    assert main([*CELLS, "--save", str(file)]) == 0
    return file


@pytest.mark.full
@pytest.mark.parametrize(
    "machine",
    [{"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}, *({"ATEN_CPU_CAPABILITY": c} for c in ("avx2", "default"))],
)
def test_no_machine_changes_facts(saved: Path, machine: dict[str, str]) -> None:
    done = python("-m", "paperbench", *CELLS, "--against", str(saved), **machine)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "8 equal."), done


NET = GUIDE.partition("```python\n")[2].partition("```")[0]


@pytest.mark.parametrize(
    ("options", "before", "after", "words"),
    [
        ((), "[2, 2]", "[2, 3]", "stages.1.blocks.2, number 1: was nothing and is"),
        (
            ("--size", "40"),
            "eps=1e-5",
            "eps=1e-3",
            "stages.0.blocks.0.norm1: was eps 1e-05 and is eps 0.001",
        ),
        (
            ("--set", "zero_init=true"),
            "last=zero_init",
            "last=False",
            "conv3: was weight 16x8x1x1, all 0 and is weight 16x8x1x1, drawn, ",
        ),
    ],
)
def test_net_of_another_library_is_guarded(
    run: Run, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], before: str, after: str, words: str
) -> None:
    def check(code: str, *more: str) -> tuple[int, str]:
        Path("own_nets.py").write_text(code)
        monkeypatch.delitem(sys.modules, "own_nets", raising=False)
        importlib.invalidate_caches()
        return run("check", "own_nets:preact", *options, *more)[:2]

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert check(NET, "--save", "facts.json")[0] == 0
    assert check(NET, "--against", "facts.json")[0] == 0
    code, said = check(NET.replace(before, after), "--against", "facts.json")
    assert code == 1
    assert words in said


def test_net_that_is_not_in_the_file_is_no_success(run: Run) -> None:
    assert run("check", "timm:test_resnet", "--save", "facts.json")[0] == 0
    code, said, _ = run("check", "preact_resnet20", "--set", "depth=8", "--against", "facts.json")
    assert (code, said.splitlines()[-1]) == (1, "1 not compared.")


@pytest.mark.full
def test_steps_of_the_workflow_run(saved: Path, tmp_path: Path) -> None:
    """But for pip: with nets that take seconds, first without a baseline and then with one."""
    jobs = yaml.safe_load(GUIDE.partition("```yaml\n")[2].partition("```")[0])["jobs"]
    specs, facts = copy_of_tiny_specs(tmp_path / "specs"), tmp_path / "tests" / "facts.json"
    facts.parent.mkdir()
    shutil.copy(saved, facts)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    said = ""
    for job in ("facts", "trained", "trained"):
        for script in [
            step["run"] for step in jobs[job]["steps"] if "run" in step and "pip install" not in step["run"]
        ]:
            script = script.replace("check table1 table2", " ".join(CELLS))
            script = script.replace("--profile smoke --results", f"--profile smoke --tables {specs} --results")
            command = ["bash", "-ec", script.replace("run table2", "run table2 --cells preact/resnet110 --device cpu")]
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, (script, done)
            said += done.stdout
    assert "Profile smoke: 1 identical" in said
