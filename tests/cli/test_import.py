from __future__ import annotations

from pathlib import Path

from paperbench.analysis.record import write_analysis
from paperbench.cli.schema import FORMATS
from tests.helpers import python
from tests.report.made_analyses import made

COMMANDS = """
    list --format json
    show table2 --format json
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
    report table5 --results . --out page
    status --results .
    status table2 --results . --format json
    verify
    runs --long --results . --delete leftovers checkpoints
    schema record
    models
    plot preact_resnet164 --set depth=20
    analyze --results .
    export --curves tensorboard --results . --out curves
"""

MODULES = ["runs.lease", "runs.observer", "bench.figures", "bench.text"]
"""Modules without torch that those commands do not import."""


def test_commands_that_train_nothing_import_neither_torch_nor_timm(tmp_path: Path) -> None:
    program = f"""
import importlib, sys
import paperbench
from paperbench.cli.main import main
assert len(paperbench.load_table("table2").compare(".").cells) == 10
for line in {[*COMMANDS.strip().splitlines(), *(f"schema {name}" for name in FORMATS)]}:
    try:
        code = main(line.split())
    except SystemExit as end:
        code = end.code
    heavy = [name for name in ("torch", "torchvision", "timm", "sklearn") if name in sys.modules]
    if code or heavy:
        sys.exit(f"{{line.strip()}}: exit status {{code}}, imported {{heavy}}")
for module in {MODULES}:
    importlib.import_module(f"paperbench.{{module}}")
    if "torch" in sys.modules:
        sys.exit(f"{{module}} imports torch")
"""
    write_analysis(tmp_path, made())
    found = python("-c", program, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
