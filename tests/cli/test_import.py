from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import ROOT, python

BUILD = "model = timm.create_model('preact_resnet20'); print(sum(p.numel() for p in model.parameters()))"


def test_importing_the_package_loads_neither_torch_nor_timm() -> None:
    found = python("-c", "import sys, paperbench; print('torch' in sys.modules, 'timm' in sys.modules)")
    assert found.stdout == "False False\n", found.stderr


@pytest.mark.parametrize("imports", ["import timm, paperbench", "import paperbench, timm"])
def test_timm_builds_the_nets_whichever_package_is_imported_first(imports: str) -> None:
    found = python("-c", f"{imports}; {BUILD}")
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip().isdecimal()


def test_timm_lists_the_nets_only_once_the_package_is_imported() -> None:
    program = (
        "import timm; before = 'preact_resnet1001' in timm.list_models();"
        "import paperbench; print(before, 'preact_resnet1001' in timm.list_models())"
    )
    found = python("-c", program)
    assert found.stdout == "False True\n", found.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["show", "table2"],
        ["--help"],
        ["run", "--help"],
        ["bench", "--help"],
        ["--version"],
        ["compare", "table2", "--results", "."],
        ["compare", "table1", "--results", ".", "--format", "latex"],
        ["compare", "table3", "--results", ".", "--format", "json"],
        ["compare", "table4", "--results", ".", "--format", "csv"],
        ["compare", "table5", "--results", ".", "--format", "junit"],
        ["record", "table2", "preact/resnet110", "--seed", "0", "--error", "6.4", "--source", "a test"],
        ["schema", "record"],
        ["models"],
        ["models", "preact_resnet164", "--diagram", "--set", "depth=20"],
    ],
    ids=" ".join,
)
def test_commands_that_train_nothing_do_without_torch_and_timm(arguments: list[str], tmp_path: Path) -> None:
    program = f"""
import sys
from paperbench.cli.main import main
try:
    code = main({arguments!r})
except SystemExit as end:
    code = end.code
heavy = [name for name in ("torch", "torchvision", "timm", "sklearn") if name in sys.modules]
print(code, heavy, file=sys.stderr)
"""
    assert python("-c", program, cwd=tmp_path).stderr.endswith("0 []\n")


@pytest.mark.parametrize(
    "module",
    [
        "architecture",
        "specs.table",
        "runs.store",
        "runs.lease",
        "runs.observer",
        "api",
        "compare.comparison",
        "report.text",
        "report.diagram",
        "bench.figures",
        "bench.breakdown",
        "bench.text",
        "cli.main",
    ],
)
def test_specs_store_and_comparison_do_without_torch(module: str) -> None:
    found = python("-c", f"import sys, paperbench.{module}; print('torch' in sys.modules)")
    assert found.stdout == "False\n", found.stderr


ORDER = [
    *("errors", "typed", "tensor_file", "catalogue", "architecture", "seeds", "atomic", "reading"),
    *("specs", "models", "data", "training", "runs", "compare", "report", "bench", "api", "cli"),
]
"""Each part of the package may import from those before it, as ARCHITECTURE.md says."""

LOADS_TORCH = {"models", "tensor_file", "training", "data.loader", "data.download"} | {
    f"runs.{module}" for module in ("disk_space", "environment", "executor", "rerun", "resume", "session", "weights")
}
LOADS_TORCH |= {f"bench.{module}" for module in ("plain_loop", "profiling", "setup", "soundness", "throughput")}


def imports_of(file: Path) -> Iterator[str]:
    """Modules imported when the file is; not those under TYPE_CHECKING or inside functions."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_imports_go_one_way_and_torch_stays_where_it_belongs() -> None:
    files = sorted((ROOT / "paperbench").rglob("*.py"))
    assert len(files) > 50
    for file in files:
        module = ".".join(file.relative_to(ROOT / "paperbench").with_suffix("").parts).removesuffix(".__init__")
        package = module.split(".")[0]
        for imported in imports_of(file):
            top, _, inner = imported.partition(".")
            if top in ("torch", "timm", "torchvision"):
                assert {module, package} & LOADS_TORCH, f"{module} imports {imported}"
            if top == "paperbench" and package in ORDER and inner:
                assert ORDER.index(inner.split(".")[0]) <= ORDER.index(package), f"{module} imports {imported}"
