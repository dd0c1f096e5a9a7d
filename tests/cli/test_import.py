from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.helpers import ROOT, python

LIST = "import timm; print('preact_resnet1001' in timm.list_models())"
BUILD = "model = timm.create_model('preact_resnet20'); print(sum(p.numel() for p in model.parameters()))"


def test_importing_the_package_loads_neither_torch_nor_timm() -> None:
    found = python("-c", "import sys, paperbench; print('torch' in sys.modules, 'timm' in sys.modules)")
    assert found.stdout == "False False\n", found.stderr


def test_timm_builds_the_nets_whichever_package_is_imported_first() -> None:
    for program in (f"import paperbench, timm; {BUILD}", f"{LIST}; import paperbench; {LIST}; {BUILD}"):
        found = python("-c", program)
        assert found.returncode == 0, found.stderr
        assert found.stdout.split()[-1].isdecimal()
    assert found.stdout.split()[:2] == ["False", "True"], "timm lists the nets only once the package is imported"


COMMANDS = """
    list
    show table2
    --help
    run --help
    bench --help
    --version
    compare table2 --results .
    compare table1 --results . --format latex
    compare table3 --results . --format json
    compare table4 --results . --format csv
    compare table5 --results . --format junit
    record table2 preact/resnet110 --seed 0 --error 6.4 --source test
    schema record
    models
    models preact_resnet164 --diagram --set depth=20
"""


def test_commands_that_train_nothing_do_without_torch_and_timm(tmp_path: Path) -> None:
    program = f"""
import sys
from paperbench.cli.main import main
for line in {COMMANDS!r}.strip().splitlines():
    try:
        code = main(line.split())
    except SystemExit as end:
        code = end.code
    heavy = [name for name in ("torch", "torchvision", "timm", "sklearn") if name in sys.modules]
    if code or heavy:
        sys.exit(f"{{line.strip()}}: exit status {{code}}, loaded {{heavy}}")
"""
    found = python("-c", program, cwd=tmp_path)
    assert found.returncode == 0, found.stderr


def test_specs_store_and_comparison_do_without_torch() -> None:
    program = """
import importlib, sys
for module in sys.argv[1:]:
    importlib.import_module(f"paperbench.{module}")
    if "torch" in sys.modules:
        sys.exit(f"{module} loads torch")
"""
    modules = ["architecture", "specs.table", "runs.store", "runs.lease", "runs.observer", "api", "compare.comparison"]
    modules += ["report.text", "report.diagram", "bench.figures", "bench.breakdown", "bench.text", "cli.main"]
    found = python("-c", program, *modules)
    assert found.returncode == 0, found.stderr


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
