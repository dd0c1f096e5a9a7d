"""What the command line says about mistakes: tests/printed/mistakes_*.txt has every message."""

from __future__ import annotations

import shlex
import shutil
from math import inf
from pathlib import Path

import pytest
import torch

from paperbench.cli.main import SUBCOMMANDS
from paperbench.errors import one_line
from paperbench.specs.table import Table
from tests.cli.conftest import Run
from tests.compare.judging import record, records
from tests.golden import assert_golden
from tests.report.stores import make_store

MISTAKES = """
    lst
    --hlep
    show 2
    show table2 table3
    run
    run table2 --precison=bf16
    run table2 --incompatible restrat
    run table2 --incompatible continue
    run table2 --cells preakt
    run table2 --stop-at 0
    run table2 --seeds 1001
    run table2 --max-seconds 5x
    run table2
    run table5
    run table2 --profile smoke --cells preact/resnet110 --device cpu --results file/results
    run table2 --profile smoke --device cpu --executor local --gpus-per-run 2
    run table2 --profile smoke --device cuda:1 --executor local
    run table2 --workers 2
    run table2 --set itertions=5
    run table2 --set iterations=64000
    run table2 --set iterations=2
    run table2 --set authors.framework=x
    run table2 --profile smke --set iterations=2
    run table2 --profile paper+iterations=5,batch_size=64
    plan table2 --set batch_size=32
    plan table2 --claim preact/resnet110
    plan table2 --claim 'preact/resnet110 < original/resnet11'
    plan table2 --claim 'preact/resnet110 < preact/resnet110'
    plan table2 --claim 'preact/resnet110 < original/resnet110 by 0'
    plan table2 --claim 'preact/resnet110 < original/resnet110' --cells preact
    plan table2 --claim 'preact/resnet110 < original/resnet110' --profile smoke
    compare table2 --set batch_norm.gruop=2
    run table2 --executor local --partition gpu
    plan tabel2
    plan table2 --budget 8h
    plan table2 --profile smoke --rate preact_resnet111=5
    plan table2 --profile smoke --rate preact_resnet110=0
    plan table2 --profile smoke --rate preact_resnet200=5
    plan table2 --std 0
    plan table2 --std abc
    plan table2 --results file
    compare table2 --result x
    compare table2 --format md
    compare table2 --noise per-cell
    compare table2 --margin 2
    compare table2 --cite --format json
    compare table2 --against missing
    compare table2 --against empty --format csv
    compare table2 --against empty --seeds 3
    compare table2 --against empty --long
    compare table2 --against empty --require reproduced
    compare table2 --against empty --margin 0
    models preact_resnet11
    models preact_resnet164.cifar1
    models --batch-size 64 --memory
    schema mapping
    check
    check tabel2
    check preact_resnet11
    check preact_resnet20 --set dept=8
    check preact_resnet20 --set depth=9
    check preact_resnet20 --cells preact/resnet110
    check preact_resnet20 --profile smoke
    check table2 --set depth=8
    check table2 --cells nothing
    check table2 --profile smke
    check preact_resnet20 --against missing
    check preact_resnet20 --against file
    check preact_resnet20 --against some.pth
    check nothing:net
    check math:nothing
    check math:sqrt
    check string:Formatter
    check timm:resnet5
    check timm:vit_tiny_patch16_224 --size 100
    check timm:test_resnet --size 0
    data convert . other.npz
    verify --data .
    verify --save
    verify empty
    verify missing
    verify file
    status --results missing
    status --profile smke
    status --watch --format json
    record table2 original/resnet164 --seed 3 --error 6.41 --source A --setting x
    record table2 original/resnet16 --seed 3 --error 6.41 --source A
    record table2 'original/*' --seed 3 --error 6.41 --source A
    record table1 exclusive_gating_0_to_5/resnet110 --seed 3 --error 6.41 --source A
    record table1 exclusive_gating_0_to_5/resnet110 --seed 3 --error 6.41 --source A --setting gate_bias=-6
    record table2 original/resnet164 --error 6.41 --source A --seed -1
    record table2 original/resnet164 --error 6.41 --source A --seed 1.5
    record table2 original/resnet164 --seed 3 --source A --error 101
    record table2 original/resnet164 --seed 3 --source A --error 0.0641
    record table2 original/resnet164 --seed 3 --source A --error 6.41%
    record table2 original/resnet164 --seed 3 --error 6.41 --source ' '
    record table2 original/resnet164 --seed 3 --error 6.41 --source 'a\x1bb'
    report --out page --results empty
    report --out page --results empty --profile smoke
    report --out page table22
    report --out page table2 --cells nothing
    report --out page --cells nothing
    report table2 --out file
    report table2 --out file/below
    plot preact_resnet11
    plot preact_resnet110 --set dept=20
    plot preact_resnet110 --set depth=8 --set depth=14
    plot preact_resnet110 --set depth
    plot preact_resnet110 --set depth=[
    plot preact_resnet110 --set depth=2e1
    plot preact_resnet110 --format csv
    plot preact_resnet110 --x epochs
    plot preact_resnet110 --cells a
    plot preact_resnet110 --seeds 3
    plot preact_resnet110 --profile smoke
    plot preact_resnet110 --results elsewhere
    plot table2 --out a.jpeg
    plot table2 --out a.svg --format png
    plot table2 --out nowhere/a.svg
    plot table2 --set depth=20
    plot table2 --cells relu_only_preact
    plot table2 --profile smoke
    plot table2 --profile smoke --x depth
    plot table2 --format csv --x epochs
    plot table1 --x depth
    plot fig6 --x depth
    plot fig1
    plot fig4 --format csv
    analyze
    analyze --trained --cells a --init orthogonal
    analyze --measure channels --minus preact_resnet20 --format png
    analyze preact_resnet20 --out units.xls
    analyze preact_resnet20 --out units.csv --format json
    analyze preact_resnet20 --out missing/units.csv
    analyze preact_resnet20 --minus original_resnet20
    analyze preact_resnet20 --run x
    analyze --run x
    analyze --run x --seeds 2
    analyze --run x --dataset digits
    analyze --weights x
    analyze --weights x --profile smoke
    analyze preact_resnet20 --trained --cells a
    analyze table2 --set depth=8
    analyze table2 --dataset digits
    analyze table2 --trained --seeds 2
    analyze table2 --trained --profile smoke --results empty
    analyze table22
    analyze preact_resnet20.cifar100 --data nowhere
    analyze preact_resnet20.cifar
    analyze preact_resnet20 --dataset photos
    analyze preact_resnet18 --dataset digits
    analyze preact_resnet20 --dataset digits --images 129
    analyze preact_resnet20 --dataset digits --images 361 --batch-norm averages
    evaluate resnet50 --dataset photos
    evaluate timm:resnet5 --dataset photos --weights some.pth
    evaluate timm:preact_resnet18 --dataset photos --weights some.pth
    evaluate timm:resnet18 --weights some.pth --dataset cifar
    evaluate timm:resnet50 --weights some.pth --pretrained
    evaluate torchvision:resnet5 --dataset photos --weights some.pth
    evaluate torchvision:resnet50.V1 --dataset photos --weights some.pth
    evaluate torchvision:resnet18 --weights some.pth --crop 224
    evaluate torchvision:resnet18 --weights some.pth --crop 224 --scale 200
    evaluate torchvision:resnet18 --weights some.pth --crop 24 --scale 24 --dataset digits
    evaluate torchvision:resnet18 --weights some.pth --seed 1
    evaluate torchvision:resnet18 --weights some.pth --mapping akamaster
    evaluate preact_resnet20 --weights some.pth
    evaluate preact_resnet20 --pretrained
    evaluate some.pth
    evaluate original_resnet20 --weights some.pth --mapping akamster
    evaluate resnet110_conv_shortcut --weights some.pth --mapping akamaster --dataset photos
    evaluate some.pth --record table2 original/resnet110
"""


HEADINGS = {command: heading for heading, modules in SUBCOMMANDS.items() for command in modules}


@pytest.fixture(scope="module")
def results(table2: Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    diverged = record(table2, "bn_after_addition/resnet110", inf, iteration=8_000)
    partial = record(table2, "preact/resnet164", None, iteration=4_000)
    runs = [*records(table2, "original/resnet110", (6.58, 6.64)), diverged, partial]
    return make_store(tmp_path_factory.mktemp("store"), runs).root


@pytest.mark.parametrize("heading", [*SUBCOMMANDS, "Unknown"])
def test_mistakes_are_named_with_what_to_do_and_change_nothing(run: Run, results: Path, heading: str) -> None:
    """In a directory with results of three nets, an empty directory, a file, and weights of no net."""
    shutil.copytree(results, "results")
    Path("empty").mkdir()
    Path("file").write_text("mine")
    torch.save({"x": torch.ones(1)}, "some.pth")
    before, said = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}, []
    for line in map(str.strip, MISTAKES.strip().splitlines()):
        if HEADINGS.get(line.split()[0], "Unknown") == heading:
            code, out, err = run(*shlex.split(line))
            assert (code, out) == (2, ""), line
            said.append(f"$ paperbench {one_line(line)}\n{err}")
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("*")} == before
    assert_golden(f"mistakes_{heading.lower()}", "\n".join(said))


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 100_000], ids=range(2))
def test_endless_value_is_refused(run: Run, value: str) -> None:
    code, out, err = run("plot", "preact_resnet110", "--set", f"depth={value}")
    assert (code, out) == (2, "")
    assert "must be a whole number" in err
