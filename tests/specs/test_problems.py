"""Each mistake in a spec is reported at its line, with what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from paperbench.errors import PaperbenchError
from paperbench.specs.table import load_table
from tests.helpers import edit, line_of
from tests.specs.conftest import Problems

X1, X2, X4, X5 = (f"experiments/table{n}.yaml" for n in (1, 2, 4, 5))
E1, E2, E4, E5 = (f"expected/table{n}.yaml" for n in (1, 2, 4, 5))
PROFILES, CIFAR, IMAGENET, TORCH = (
    "experiments/profiles.yaml",
    "experiments/recipes/cifar.yaml",
    "experiments/recipes/imagenet.yaml",
    "experiments/recipes/imagenet_torch.yaml",
)

NET = "resnet110: preact_resnet110, "
NETS = [  # in place of a net of Table 2
    ("preact_resnet11", "Unknown net 'preact_resnet11'. Did you mean 'preact_resnet1"),
    ("", "must be text, not nothing."),
    ("[preact_resnet110]", "must be text, not a list."),
    ("{kwargs: {depth: 20}}", "model: is missing."),
    ("{model: preact_resnet110, kwargs: {dept: 20}}", "no argument 'dept'. Did you mean 'depth'?"),
    ("{model: preact_resnet110, kwargs: {num_classes: 5}}", "num_classes follows from the data set; leave it out."),
    ("{model: preact_resnet110, kwargs: {gate_bias: -6}}", "would ignore gate_bias: its shortcut is identity"),
    ("preact_resnet110.cifar1", "preact_resnet110 has no tag 'cifar1'. Did you mean 'cifar10'?"),
    ("preact_resnet110.cifar100", "is tagged for cifar100, and the data set is cifar10. Drop the tag."),
    ("preact_resnet101", "preact_resnet101 is a net for images of 224x224 pixels, and CIFAR-10 has 32x32."),
]


@pytest.mark.parametrize(("net", "message"), NETS)
def test_what_is_no_net_of_the_data_set_is_refused(problems: Problems, specs: Path, net: str, message: str) -> None:
    found = problems("table2", X2, (NET, f"resnet110: {net}, "))
    assert {line for line, _ in found} == {line_of(specs / X2, f"resnet110: {net}, ")}
    assert all(told.startswith("rows[4].cells.resnet110") for _, told in found)
    assert any(message in told for _, told in found)


SWEEP = "{model: resnet110_exclusive_gating, sweep: {gate_bias: [0, -1, -2, -3, -4, -5]}}"
SWEEPS = [
    ("sweep: {gate_bias: [0]}", "sweep.gate_bias: needs two values or more, each different."),
    ("sweep: {gate_bias: [0, 0.0]}", "sweep.gate_bias: needs two values or more, each different."),
    ("sweep: {gate_bias: -1}", "sweep.gate_bias: must be a list, not -1."),
    ("sweep: {gate_bais: [0, -1]}", "Did you mean 'gate_bias'?"),
    ("sweep: {gate_bias: [0, low]}", "gate_bias of resnet110_exclusive_gating: must be a number"),
    ("sweep: {num_classes: [10, 100]}", "num_classes follows from the data set"),
    ("kwargs: {gate_bias: -6}, sweep: {gate_bias: [0, -1]}", "sweep.gate_bias: is among kwargs too."),
    ("sweep: {gate_bias: [0, -1], gate_init: [he, gaussian]}", "sweep: a sweep is over one argument."),
    ("sweep: {}", "sweep: a sweep is over one argument."),
    ("sweep: {depth: [110, 56]}", "sweep: profiles choose the depth of every net; make a cell for each depth."),
]


@pytest.mark.parametrize(("sweep", "message"), SWEEPS)
def test_what_is_no_sweep_is_refused(problems: Problems, specs: Path, sweep: str, message: str) -> None:
    new = f"{{model: resnet110_exclusive_gating, {sweep}}}"
    found = problems("table1", X1, (SWEEP, new))
    assert {line for line, _ in found} == {line_of(specs / X1, new)}
    assert any(message in told for _, told in found)


MISTAKES = [  # file, old text, new text with its mistake in the first line, message
    (X2, "- id: preact\n", "- id: original\n", "rows[4].id: another of the rows is called 'original' too."),
    (X2, "- id: preact\n", "- id: pre/act\n", "must be made of small letters, digits and underscores, not"),
    (X2, "seeds: 5", "seeds: 0", "seeds: must be at least 1, not 0."),
    (X2, "seeds: 5", "seeds: 1001", "seeds: must be at most 1000, not 1001."),
    (X2, "table: table2", "table: table3", "table: must be table2, as the file is called."),
    (X2, "recipe: cifar", "recipe: cifra", "recipe: unknown recipe 'cifra'. Did you mean 'cifar'?"),
    (
        X2,
        "dataset: cifar10\n    cells: {resnet110: preact_",
        "dataset: cifra10\n    cells: {resnet110: preact_",
        "unknown data set 'cifra10'. Did",
    ),
    (X1, "{on shortcut: dropout 0.5, on F:", "{on shortcut: a, onF:", "onF: unknown label 'onF'. Did you mean 'on F'"),
    (X1, 'dropout 0.5, on F: "1"', "dropout 0.5, on F: 1", "on F: must be text, not 1. Put it in quotes."),
    (X1, "remark: after}", "remark: after, unused: after}", "labels.unused: no row has this label."),
    (X1, "remark: after}", "remark: behind}", "labels.remark: must be 'before' or 'after', not 'behind'."),
    (
        X4,
        "    cells: {cifar10: original_resnet110}",
        "    dataset: cifar10\n    cells: {cifar10: original_resnet110}",
        "the row or the column; both do.",
    ),
    (
        X4,
        "{cifar10: original_resnet110}",
        "{cifar1: original_resnet110}",
        "unknown column 'cifar1'. Did you mean 'cifar",
    ),
    (X4, "CIFAR-10, dataset: cifar10}", "CIFAR-10, dataset: cifar}", "Did you mean 'cifar10'?"),
    (X5, "    figure: 4(b)\n", "    figrue: 4(b)\n", "rows[7].figrue: unknown key. Did you mean 'figure'?"),
    (X5, "    recipe: imagenet_torch\n", "    recipe: imagenet_troch\n", "Did you mean 'imagenet_torch'?"),
    (X5, "{crop: 224, scale: 256}                 #", "{crop: 257, scale: 256}  #", "257 pixels does not fit"),
    (X5, "{crop: 224, scale: 256}                 #", "{crop: 224}  #", "evaluation.scale: is missing."),
    (E2, "table: table2\nsource:", "table: table3\nsource:", "table: must be table2, as the file is called."),
    (E2, "{resnet110: 8.17, resnet164: 6.50}", "{resnet110: 8.17}", "resnet164: the cell has no published number"),
    (E2, "resnet164: 5.46}", "resnet164: 5.46, resnet56: 1}", "unknown cell 'preact/resnet56'. Did you mean 'preact/"),
    (E2, "resnet110: 8.17", "resnet110: failed", "must be a number or 'fail' or 'unprinted', not 'failed'."),
    (E2, "resnet110: 8.17", "resnet110: 817", "must be at most 100 or 'fail' or 'unprinted', not 817."),
    (E2, "resnet110: 8.17", "resnet110: -1", "must be at least 0 or 'fail' or 'unprinted', not -1."),
    (E2, "resnet110: 8.17", "resnet110: .nan", "must be a finite number or"),
    (E2, "resnet110: 8.17", "resnet110: {note: a}", "value: a cell needs a value, or same_as with the cell"),
    (E2, "      std_source:", "      source:", "std: std and std_source need each other."),
    (E2, "bn_after_addition/resnet110\n    v", "bn_after_addition/resnet11\n    v", "unknown cell 'bn_after_add"),
    (E1, "unscaled: {resnet110: fail}", "unscaled: {resnet110: {value: fail, tolerance: 1}}", "cells with a number."),
    (E4, "std: 0.14", "sdt: 0.14", "sdt: unknown key. Did you mean 'std'?"),
    (E4, "      n: 1\n      params: 19.4M", "      n: 2\n      params: 19.4M", "n: a single run is not 2 runs."),
    (E4, 'mark: "†"', 'mark: "*"', "unknown mark '*'. Known: †."),
    (E4, '  "†": mini-', '  "‡": unused\n  "†": mini-', "footnotes.‡: no cell has this mark."),
    (E4, "{id: dsn,", "{id: nin,", "literature[1].id: another of the literature is called 'nin' too."),
    (E4, "{id: nin,", "{id: resnet110,", "literature[0].id: 'resnet110' is a row of the experiment."),
    (E4, "{cifar10: 8.81, cifar100", "{cifar10: 8.81, cifar1000", "unknown column 'cifar1000'. Did you mean 'ci"),
    (
        E5,
        "augmentation: scale+asp ratio, train crop: 299",
        "augmentatoin: x, train crop: 299",
        "unknown label 'augmentatoin'. Did",
    ),
    (PROFILES, "{basic: 14,", "{basic: 15,", "smoke.depth.basic: A basic net has no depth 15: depths are 6n+2."),
    (PROFILES, "{basic: 14,", "{basci: 14,", "smoke.depth.basci: unknown family 'basci'. Did you mean 'basic'?"),
    (PROFILES, "exactly\n", "exactly\n    seeds: 3\n", "there must be a profile `paper`, and it must change not"),
    (PROFILES, "  paper:\n", "  papers:\n", "there must be a profile `paper`, and it must change nothing."),
    (PROFILES, "{group: 32}", "{gruop: 32}", "batch_norm.gruop: unknown key. Did you mean 'group'?"),
    (PROFILES, "{group: 32}", "{group: 48}", "batch_norm.group: must divide batch_size, which is 64."),
    (CIFAR, "momentum: 0.9", "momentun: 0.9", "momentun: unknown key. Did you mean 'momentum'?"),
    (IMAGENET, "crop: 224", "crop: 500", "augmentation.crop: a crop of 500 does not fit"),
    (IMAGENET, "crop: 224", "crop: 224, area: [0.1, 1.0]", "augmentation.area: a crop is of a fixed size"),
    (TORCH, "  crop: 224\n", "", "augmentation.crop: large images need a crop."),
]
TABLES = {PROFILES: "table2", CIFAR: "table2", IMAGENET: "table5", TORCH: "table5"}
BLAMES_THE_KEY_ABOVE = ("no published number", "profile `paper`", "need a crop", "both do", "need each other")


@pytest.mark.parametrize(("file", "old", "new", "message"), MISTAKES)
def test_a_mistake_is_reported_at_its_line(
    problems: Problems, specs: Path, file: str, old: str, new: str, message: str
) -> None:
    expected = (specs / file).read_text(encoding="utf-8").partition(old)[0].count("\n") + 1
    found = problems(TABLES.get(file, Path(file).stem), file, (old, new))
    told = [(line, text) for line, text in found if message in text]
    assert len(told) == 1, found
    if not any(part in message for part in BLAMES_THE_KEY_ABOVE):
        changed = next(i for i, line in enumerate(new.splitlines()) if line not in old.splitlines())
        assert told[0][0] == expected + changed


def test_all_problems_of_a_file_are_reported_at_once_in_its_order(problems: Problems, specs: Path) -> None:
    edits = [
        ("warm_up: {learning_rate: 0.01, iterations: 400}\n", "\n"),
        ("momentum: 0.9", "momentun: 0.9"),
        ("batch_size: 128", "batch_size: 0"),
        ("eps: 0.00001", "eps: none"),
    ]
    assert problems("table2", CIFAR, *edits) == [
        (line_of(specs / CIFAR, "schema: 1"), "momentum: is missing."),
        (line_of(specs / CIFAR, "schema: 1"), "warm_up: is missing."),
        (line_of(specs / CIFAR, "batch_size: 0"), "batch_size: must be at least 1, not 0."),
        (line_of(specs / CIFAR, "momentun"), "momentun: unknown key. Did you mean 'momentum'?"),
        (line_of(specs / CIFAR, "eps: none"), "batch_norm.eps: must be a number, not 'none'."),
    ]


def test_problems_between_files_are_reported_at_once_too(problems: Problems) -> None:
    edits = [("resnet110: 8.17, ", ""), ("- cell: relu_only_preact/resnet164\n", "- cell: preact/resnet16\n")]
    messages = [message for _, message in problems("table2", E2, *edits)]
    assert len(messages) == 2
    assert "no published number" in messages[0]
    assert "unknown cell 'preact/resnet16'" in messages[1]


@pytest.mark.parametrize("part", ["rows", "columns"])
def test_a_table_without_rows_or_columns_is_refused(specs: Path, part: str) -> None:
    head, rest = (specs / X2).read_text(encoding="utf-8").split("columns:\n")
    columns, rows = rest.split("rows:\n")
    kept = f"{head}columns: []\nrows:\n{rows}" if part == "columns" else f"{head}columns:\n{columns}rows: []\n"
    (specs / X2).write_text(kept, encoding="utf-8")
    with pytest.raises(PaperbenchError, match=rf":{line_of(specs / X2, part + ': []')}: {part}: must not be empty\."):
        load_table("table2", specs)


def test_a_profile_that_spoils_a_recipe_is_named(specs: Path) -> None:
    edit(specs / PROFILES, "      batch_norm: {group: 32}\n", "")
    line = edit(specs / PROFILES, "batch_size: 64", "batch_size: 96")
    assert line
    with pytest.raises(PaperbenchError) as caught:
        load_table("table2", specs)
    where = f"{specs / CIFAR}:{line_of(specs / CIFAR, 'group: 64')}"
    assert str(caught.value).splitlines() == [
        f"{where}: batch_norm.group: must divide batch_size, which is 96.",
        "(Recipe cifar with the changes of profile smoke.)",
    ]


@pytest.mark.parametrize("name", [E2, PROFILES, CIFAR])
def test_a_missing_file_is_named(specs: Path, name: str) -> None:
    (specs / name).unlink()
    with pytest.raises(PaperbenchError, match=r"cannot be read: No such file|unknown recipe 'cifar'\."):
        load_table("table2", specs)


def test_a_sweep_has_no_number_for_several_nets_but_fails(problems: Problems) -> None:
    old = "resnet110:\n      value: fail\n      note: One row of the paper for six values;"
    note = " b_g of -8 to -10 was searched too and is not reported (Sec. 3.1)."
    ((_, told),) = problems("table1", E1, (old + note, "resnet110: 8.70"))
    assert told.endswith("exclusive_gating_0_to_5/resnet110 stands for 6 nets, so its value must be `fail`.")
