"""What follows from made-up GPU figures, and the page that says so."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from paperbench.bench.anatomy.conclusion import convolution_sums
from paperbench.bench.anatomy.document import document, schema, to_json
from paperbench.bench.anatomy.floors import Floors
from paperbench.bench.anatomy.page import page
from paperbench.bench.anatomy.scale import FULL
from paperbench.bench.anatomy.schedule import Outcome
from paperbench.catalogue import resolve
from tests.bench.anatomy.gpu_figures import CODE, MODELS, kernel_row, outcome, outcomes, step_row

NETS = {name: resolve(name) for name in MODELS}


def made(found: list[Outcome] | None = None, signal: int | None = None) -> dict[str, Any]:
    return document(outcomes() if found is None else found, NETS, FULL, "cuda", 10.0, 432.0, CODE, signal)


def concluded(content: dict[str, Any], model: str, precision: str) -> dict[str, Any]:
    (entry,) = [e for e in content["conclusion"] if (e["model"], e["precision"]) == (model, precision)]
    return dict(entry)


def test_the_document_is_as_its_schema_says() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(json.loads(to_json(made())), schema())
    jsonschema.validate(json.loads(to_json(made([], signal=2))), schema())


@pytest.mark.parametrize(
    "change",
    [
        {"status": "lost"},
        {"rows": [{"what": "copy", "bytes_per_second": 1.0}]},
        {"rows": [{"what": "copy", "bytes": 1, "bytes_per_second": float("nan")}]},
        {"seconds": -1.0},
    ],
)
def test_the_schema_refuses_what_is_wrong(change: dict[str, Any]) -> None:
    first, *rest = outcomes()
    content = json.loads(to_json(made([replace(first, **change), *rest])))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, schema())


def test_a_step_stands_beside_its_floors() -> None:
    entry = concluded(made(), "preact_resnet110", "bf16")
    assert (entry["engine"], entry["ms_per_step"], entry["level"], entry["from"]) == ("compile", 4.0, "fused", "ladder")
    floors = Floors(NETS["preact_resnet110"])
    assert entry["byte_floor_ms"]["fused"] == pytest.approx(1000 * floors.step_bytes("fused", "bf16", 128) / 4e12)
    assert entry["byte_floor_ms"]["fused"] == pytest.approx(128 * 32.5e6 / 4e9, rel=0.02)
    assert entry["launch_floor_ms"]["fused"] == pytest.approx(980 * 0.002)
    assert entry["arithmetic_floor_ms"] == pytest.approx(0.194e15 / 8e14, rel=0.01)
    assert entry["floor"] == "launches"
    assert entry["share"] == pytest.approx(980 * 0.002 / 4.0)


def test_by_groups_a_graph_launches_everything_twice() -> None:
    entry = concluded(made(), "preact_resnet164", "bf16")
    assert entry["engine"] == "graph"
    assert entry["launch_floor_ms"]["unfused"] == pytest.approx(2 * 1257 * 0.002)


def test_a_step_without_a_ladder_is_taken_from_the_profile() -> None:
    entry = concluded(made(), "preact_resnet110", "fp32")
    assert (entry["engine"], entry["from"], entry["over_plain"]) == ("eager", "kernels", None)


@pytest.mark.parametrize("why", ["wrong loss: step 3: loss 2.5", "not checked: eager fp32: there was no time"])
def test_a_step_whose_loss_the_ladder_refused_is_not_taken_from_the_profile(why: str) -> None:
    small = MODELS[0]
    left = {"model": small, "precision": "bf16", "kind": "paperbench", "engine": "graph"}
    found = [
        outcome("ladder", [step_row(small, "eager", "bf16", 18.0)], small, left_out=[{"what": left, "why": why}]),
        outcome("kernels", [kernel_row(small, "graph", "bf16", 5.0, convolution=2.0)], small),
    ]
    assert concluded(made(found), small, "bf16")["engine"] == "eager"
    found[0].left_out[0]["why"] = "left out: the time was over"
    entry = concluded(made(found), small, "bf16")
    assert (entry["engine"], entry["from"]) == ("graph", "kernels")
    assert "loss not checked" in page(made(found)).split("**What stands")[0]


def test_works_are_ranked_by_what_they_take_beyond_their_floor() -> None:
    entry = concluded(made(), "preact_resnet110", "bf16")
    assert [item["work"] for item in entry["next"][:4]] == [
        "convolutions",
        "BN, ReLU, addition",
        "idle",
        "copies, casts",
    ]
    convolutions, normalisation, idle, _ = entry["next"][:4]
    launches = 218 * 0.002  # above the bytes, 0.40 ms, and the arithmetic
    assert convolutions["floor_ms"] == pytest.approx(launches)
    assert convolutions["beyond_ms"] == pytest.approx(2.0 - launches)
    stream = 3 * 18 * (16 * 32**2 + 32 * 16**2 + 64 * 8**2)  # elements of the residual stream, read twice, written once
    assert normalisation["ms"] == pytest.approx(1.1)
    assert normalisation["floor_ms"] == pytest.approx(128 * 2 * stream / 4e9, rel=0.01)
    assert idle["ms"] == pytest.approx(4.1 - 3.5)


def test_nothing_is_ranked_for_a_step_that_was_not_profiled() -> None:
    assert concluded(made(), "preact_resnet164", "bf16")["next"] is None


def test_convolutions_add_up_to_those_of_a_net() -> None:
    sums = convolution_sums(made())
    assert [(s["model"], s["benchmark"]) for s in sums] == [(m, b) for m in MODELS for b in (False, True)]
    first = sums[0]
    assert first["forward_ms"] == pytest.approx(109 * 0.004)
    assert first["data_gradient_ms"] == pytest.approx(108 * 0.008)
    assert first["ms"] == pytest.approx(0.004 * 109 + 0.008 * (108 + 109))
    assert first["byte_floor_ms"] == pytest.approx((3 * 109 - 1) * 8e6 / 4e9)


def test_a_sum_with_a_hole_is_none() -> None:
    found = outcomes()
    found[1].rows.pop()
    assert [(s["model"], s["benchmark"]) for s in convolution_sums(made(found))] == [
        ("preact_resnet110", False),
        ("preact_resnet110", True),
        ("preact_resnet164", True),
    ]


def test_the_page_begins_with_what_follows() -> None:
    text = page(made())
    lines = text.splitlines()
    assert lines[0] == "# Where a training step's time goes"
    assert lines[2] == "A GPU; torch 2.11.0, CUDA 13.0, cuDNN 9, driver 580"
    assert "**Lost or cut short: ladder ResNet-164, kernels ResNet-164.**" in text
    headings = [line for line in lines if line.startswith("## ")]
    assert headings[0] == "## In short"
    assert len(headings) == len(set(headings)) == 12
    row = next(line for line in lines if line.startswith("| ResNet-110 | bf16        | compile "))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[3:] == ["32,000", "5.00", "4.00", "1.96", "49 %", "launches"]
    table = text.split("## In short")[1].split("**Exactness")[0]
    assert max(len(line) for line in table.splitlines()) <= 120
    floors = next(line for line in lines if line.startswith("| ResNet-110   | bf16        | compile"))
    assert [cell.strip() for cell in floors.strip("|").split("|")][3:] == ["1.05", "0.51", "1.96", "0.24", "13 %"]
    assert (
        "- ResNet-110, bf16, compile: convolutions 1.56 (of 2.00, 100); BN, ReLU, addition 1.00 (of 1.10, 200)" in text
    )
    assert "- ResNet-164, bf16, graph: not known, as its kernels were not profiled." in text
    assert "**Exactness: not equal bit by bit: ResNet-110 bf16: 4 seeds side by side.**" in text


def test_a_ratio_within_the_noise_is_marked() -> None:
    small = MODELS[0]
    row = {**step_row(small, "graph", "bf16", 8.0), "noise": 0.05, "rounds": 2}
    text = page(made([outcome("ladder", [{**row, "over_plain": 1.04, "over_plain_same_precision": 1.06}], small)]))
    line = next(line for line in text.splitlines() if "| graph bf16" in line)
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[5:9] == ["~1.04", "1.06", "2", "5.0 %"]
    assert "~1.04" in text.split("## Steps by engine")[0]
    assert "no difference" in text.split("## Steps by engine")[0]


def test_the_page_says_what_was_lost_and_why() -> None:
    last = page(made()).split("## What was not measured, and why")[1]
    assert "- ladder ResNet-164: killed: still running after 65 s; last said: round 1 of 3. Rows kept: 1." in last
    assert "- kernels ResNet-164: crashed: ended by SIGSEGV." in last
    assert "- ladder ResNet-110, left out, no time left: model preact_resnet110, precision fp32." in last


def test_a_graph_that_is_not_as_eager_is_said_at_the_top() -> None:
    found = outcomes()
    about = {"model": "preact_resnet110", "precision": "fp32", "steps": 50}
    rows = [{**about, "check": "graph is as eager", "equal": False, "greatest_relative_difference_of_loss": 0.1}]
    found = [outcome("exactness", rows) if o.task.part.name == "exactness" else o for o in found]
    assert "ResNet-110 fp32: graph is as eager" in page(made(found)).split("## Ceilings")[0]


def test_every_table_is_rectangular_and_no_cell_breaks_it() -> None:
    tables = re.findall(r"(?:^\|.*\n)+", page(made()), flags=re.MULTILINE)
    assert len(tables) == 16
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1, table


@pytest.mark.parametrize("part", [*sorted({o.task.part.name for o in outcomes()}), "everything"])
def test_the_page_does_without_any_part(part: str) -> None:
    text = page(made([o for o in outcomes() if part not in (o.task.part.name, "everything")]))
    assert text.startswith("# Where a training step's time goes")
    if part == "machine":
        assert "rates were not measured" in text
    if part == "everything":
        assert "nothing can be concluded" in text


def test_an_interrupted_command_says_so() -> None:
    assert "ended by signal 2" in page(made(signal=2))


def test_a_profile_alone_says_where_the_time_goes() -> None:
    row = kernel_row("preact_resnet110", "graph", "bf16", 8.0, convolution=3.0, elementwise=4.0)
    text = page(made([outcome("kernels", [row], "preact_resnet110")]))
    assert "- ResNet-110, bf16, graph: BN, ReLU, addition 4.00 (of 4.00, 200); convolutions 3.00" in text
