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
    ("{modle: preact_resnet110}", "modle: unknown key. Did you mean 'model'?"),
    ("{kwargs: {depth: 20}}", "model: is missing."),
    ("{model: preact_resnet110, kwargs: {dept: 20}}", "no argument 'dept'. Did you mean 'depth'?"),
    ("{model: preact_resnet110, kwargs: {name: original_resnet110}}", "preact_resnet110 has no argument 'name'."),
    ("{model: preact_resnet110, kwargs: {num_classes: 5}}", "num_classes follows from the data set; leave it out."),
    ("{model: preact_resnet110, kwargs: {gate_bias: -6}}", "would ignore gate_bias: its shortcut is identity"),
    (
        "{model: preact_resnet110, kwargs: {shortcut: constant_scaling, shortcut_scale: '0,5'}}",
        "shortcut_scale of preact_resnet110 must be a number, not '0,5'.",
    ),
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
    ("sweep: {gate_bias: []}", "sweep.gate_bias: needs two values or more, each different."),
    ("sweep: {gate_bias: [0, -1, 0]}", "sweep.gate_bias: needs two values or more, each different."),
    ("sweep: {gate_bias: [0, 0.0]}", "sweep.gate_bias: needs two values or more, each different."),
    ("sweep: {gate_bias: -1}", "sweep.gate_bias: must be a list, not -1."),
    ("sweep: {gate_bais: [0, -1]}", "Did you mean 'gate_bias'?"),
    ("sweep: {gate_bias: [0, low]}", "gate_bias of resnet110_exclusive_gating must be a number"),
    ("sweep: {inverted: [true, false]}", "resnet110_exclusive_gating would ignore inverted"),
    ("sweep: {num_classes: [10, 100]}", "num_classes follows from the data set"),
    ("kwargs: {gate_bias: -6}, sweep: {gate_bias: [0, -1]}", "sweep.gate_bias: is among kwargs too."),
    ("sweep: {gate_bias: [0, -1], gate_init: [he, gaussian]}", "sweep: a sweep is over one argument."),
    ("sweep: {}", "sweep: a sweep is over one argument."),
    ("sweep: {depth: [110, 56]}", "sweep: profiles choose the depth of every net; make a cell for each depth."),
    ("sweeps: {gate_bias: [0, -1]}", "sweeps: unknown key. Did you mean 'sweep'?"),
]


@pytest.mark.parametrize(("sweep", "message"), SWEEPS)
def test_what_is_no_sweep_is_refused(problems: Problems, specs: Path, sweep: str, message: str) -> None:
    new = f"{{model: resnet110_exclusive_gating, {sweep}}}"
    found = problems("table1", X1, (SWEEP, new))
    assert {line for line, _ in found} == {line_of(specs / X1, new)}
    assert any(message in told for _, told in found)


MISTAKES = [  # table, file, old text, new text with its mistake in the first line, message
    ("table2", X2, "- id: preact\n", "- id: original\n", "rows[4].id: another of the rows is called 'original' too."),
    ("table2", X2, "- {id: resnet164,", "- {id: resnet110,", "columns[1].id: another of the columns is called 'resnet"),
    ("table2", X2, "- id: preact\n", "- id: pre/act\n", "must be made of small letters, digits and underscores, not"),
    ("table2", X2, "seeds: 5", "seeds: 0", "seeds: must be at least 1, not 0."),
    ("table2", X2, "seeds: 5", "seeds: 1001", "seeds: must be at most 1000, not 1001."),
    ("table2", X2, "table: table2", "table: table3", "table: must be table2, as the file is called."),
    ("table2", X2, "recipe: cifar", "recipe: cifra", "recipe: unknown recipe 'cifra'. Did you mean 'cifar'?"),
    ("table2", X2, "schema: 1", "schema: 2", "schema: must be 1, not 2."),
    (
        "table2",
        X2,
        "dataset: cifar10\n    cells: {resnet110: preact_resnet110, ",
        "dataset: cifra10\n    cells: {resnet110: preact_resnet110, ",
        "rows[4].dataset: unknown data set 'cifra10'. Did you mean 'cifar10'?",
    ),
    (
        "table1",
        X1,
        "{on shortcut: dropout 0.5, on F:",
        "{on shortcut: a, onF:",
        "onF: unknown label 'onF'. Did you mean 'on F'",
    ),
    ("table1", X1, 'dropout 0.5, on F: "1"', "dropout 0.5, on F: 1", "on F: must be text, not 1. Put it in quotes."),
    ("table1", X1, "remark: after}", "remark: behind}", "labels.remark: must be 'before' or 'after', not 'behind'."),
    (
        "table4",
        X4,
        "    title: ResNet-110, original unit\n    cells: {cifar10: original_resnet110}",
        "    title: ResNet-110, original unit\n    dataset: cifar10\n    cells: {cifar10: original_resnet110}",
        "rows[0].cells.cifar10: the data set must be given by the row or the column; both do.",
    ),
    (
        "table4",
        X4,
        "{cifar10: original_resnet110}",
        "{cifar1: original_resnet110}",
        "unknown column 'cifar1'. Did you mean 'cifar10",
    ),
    ("table4", X4, "{cifar10: original_resnet110}", "{}", "rows[0].cells: must not be empty."),
    ("table4", X4, "CIFAR-10, dataset: cifar10}", "CIFAR-10, dataset: cifar}", "Did you mean 'cifar10'?"),
    ("table4", X4, "CIFAR-10, dataset: cifar10}", "C, metric: top2}", "metric: must be 'top1' or 'top5', not 'top2'."),
    ("table5", X5, "    figure: 4(b)\n", "    figrue: 4(b)\n", "rows[7].figrue: unknown key. Did you mean 'figure'?"),
    ("table5", X5, "    recipe: imagenet_torch\n", "    recipe: imagenet_troch\n", "Did you mean 'imagenet_torch'?"),
    (
        "table5",
        X5,
        "{crop: 224, scale: 256}                 #",
        "{crop: 257, scale: 256}  #",
        "257 pixels does not fit",
    ),
    ("table5", X5, "{crop: 224, scale: 256}                 #", "{crop: 0, scale: 256}  #", "crop: must be at least 1"),
    ("table5", X5, "{crop: 224, scale: 256}                 #", "{crop: 224}  #", "evaluation.scale: is missing."),
    (
        "table5",
        X5,
        "seeds: 3 ",
        "precision: fp23\nseeds: 3 ",
        "precision: must be 'fp32', 'tf32', 'bf16-fp32-stream' or",
    ),
    # published numbers
    ("table2", E2, "table: table2\nsource:", "table: table3\nsource:", "table: must be table2, as the file is called."),
    (
        "table2",
        E2,
        "bn_after_addition: {resnet110: 8.17, resnet164: 6.50}",
        "bn_after_addition: {resnet110: 8.17}",
        "cells.bn_after_addition.resnet164: the cell has no published number here.",
    ),
    (
        "table2",
        E2,
        "preact: {resnet110: 6.37, resnet164: 5.46}",
        "preact: {resnet110: 6.37, resnet164: 5.46, resnet1001: 4.92}",
        "cells.preact.resnet1001: unknown cell 'preact/resnet1001'. Did you mean 'preact/resnet110'?",
    ),
    ("table2", E2, "resnet110: 8.17", "resnet110: failed", "must be a number or 'fail' or 'unprinted', not 'failed'."),
    ("table2", E2, "resnet110: 8.17", "resnet110: '8,17'", "must be a number or 'fail' or 'unprinted', not '8,17'."),
    ("table2", E2, "resnet110: 8.17", "resnet110: 817", "must be at most 100 or 'fail' or 'unprinted', not 817."),
    ("table2", E2, "resnet110: 8.17", "resnet110: -1", "must be at least 0 or 'fail' or 'unprinted', not -1."),
    ("table2", E2, "resnet110: 8.17", "resnet110: .nan", "must be a finite number or"),
    ("table2", E2, "resnet110: 8.17", "resnet110: {note: a}", "value: a cell needs a value, or same_as with the cell"),
    ("table2", E2, "      std_source:", "      source:", "std: std and std_source need each other."),
    ("table2", E2, "std: 0.16", "std: -0.16", "std: must be above 0, not -0.16."),
    ("table2", E2, "n: 5,", "n: 0,", "defaults.n: must be at least 1, not 0."),
    ("table2", E2, "tolerance: 0.5", "tolerance: -0.5", "defaults.tolerance: must be above 0, not -0.5."),
    (
        "table2",
        E2,
        "relu_only_preact/resnet164\n    c",
        "relu_only_preact/resnet146\n    c",
        "Did you mean 'relu_only_preact/r",
    ),
    (
        "table2",
        E2,
        "bn_after_addition/resnet110\n    v",
        "bn_after_addition/resnet11\n    v",
        "unknown cell 'bn_after_add",
    ),
    ("table2", E2, "value: 13.56", "value: 1356", "peers[10].value: must be at most 100, not 1356."),
    (
        "table1",
        E1,
        "unscaled: {resnet110: fail}",
        "unscaled: {resnet110: {value: fail, tolerance: 1}}",
        "cells with a number.",
    ),
    (
        "table1",
        E1,
        "unscaled: {resnet110: fail}",
        "unscaled: {resnet110: {value: unprinted, mean: 1}}",
        "with a number.",
    ),
    ("table4", E4, "mean: 4.89", "mean: 489.0", "mean: must be at most 100, not 489.0."),
    ("table4", E4, "std: 0.14", "sdt: 0.14", "sdt: unknown key. Did you mean 'std'?"),
    (
        "table4",
        E4,
        "      n: 1\n      params: 19.4M",
        "      n: 2\n      params: 19.4M",
        "n: a single run is not 2 runs.",
    ),
    ("table4", E4, "tolerance: 0.5}", "tolerance: 0.5, decimals: -1}", "decimals: must be at least 0, not -1."),
    ("table4", E4, "literature:", "litrature:", "litrature: unknown key. Did you mean 'literature'?"),
    ("table4", E4, 'mark: "†"', 'mark: "*"', "unknown mark '*'. Known: †."),
    ("table4", E4, '  "†": mini-', '  "‡": unused\n  "†": mini-', "footnotes.‡: no cell has this mark."),
    ("table4", E4, "{id: dsn,", "{id: nin,", "literature[1].id: another of the literature is called 'nin' too."),
    ("table4", E4, "{id: nin,", "{id: resnet110,", "literature[0].id: 'resnet110' is a row of the experiment."),
    (
        "table4",
        E4,
        "{cifar10: 8.81, cifar100",
        "{cifar10: 8.81, cifar1000",
        "cifar1000: unknown column 'cifar1000'. Did you mean 'cifar100'",
    ),
    (
        "table4",
        E4,
        "{cifar10: 8.81, cifar100: 35.68}",
        "{cifar10: fail}",
        "cells.cifar10: must be a number, not 'fail'.",
    ),
    ("table4", E4, "{cifar10: 8.81, cifar100: 35.68}", "{}", "literature[0].cells: must not be empty."),
    (
        "table5",
        E5,
        "augmentation: scale+asp ratio, train crop: 299",
        "augmentatoin: scale+asp ratio, train crop: 299",
        "unknown label 'augmentatoin'. Did",
    ),
    # profiles
    (
        "table2",
        PROFILES,
        "{basic: 14,",
        "{basic: 15,",
        "smoke.depth.basic: A basic net has no depth 15: depths are 6n+2.",
    ),
    (
        "table2",
        PROFILES,
        "{basic: 14,",
        "{basci: 14,",
        "smoke.depth.basci: unknown family 'basci'. Did you mean 'basic'?",
    ),
    ("table2", PROFILES, "dataset: digits", "dataset: digit", "Did you mean 'digits'?"),
    (
        "table2",
        PROFILES,
        "exactly\n",
        "exactly\n    seeds: 3\n",
        "there must be a profile `paper`, and it must change not",
    ),
    ("table2", PROFILES, "  paper:\n", "  papers:\n", "there must be a profile `paper`, and it must change nothing."),
    ("table2", PROFILES, "drops: {at: [50, 65]}", "dorps: {at: [50, 65]}", "dorps: unknown key. Did you mean 'drops'?"),
    ("table2", PROFILES, "{group: 32}", "{gruop: 32}", "batch_norm.gruop: unknown key. Did you mean 'group'?"),
    ("table2", PROFILES, "{group: 32}", "{group: 48}", "batch_norm.group: must divide batch_size, which is 64."),
    # recipes
    ("table2", CIFAR, "recipe: cifar", "recipe: mine", "recipe: must be cifar, as the file is called."),
    ("table2", CIFAR, "momentum: 0.9", "momentun: 0.9", "momentun: unknown key. Did you mean 'momentum'?"),
    ("table5", IMAGENET, "crop: 224", "crop: 500", "augmentation.crop: a crop of 500 does not fit"),
    ("table5", IMAGENET, "crop: 224", "crop: 224, area: [0.1, 1.0]", "augmentation.area: a crop is of a fixed size"),
    ("table5", TORCH, "  crop: 224\n", "", "augmentation.crop: large images need a crop."),
]
BLAMES_THE_KEY_ABOVE = ("no published number", "profile `paper`", "need a crop", "both do", "need each other")


@pytest.mark.parametrize(("table", "file", "old", "new", "message"), MISTAKES)
def test_a_mistake_is_reported_at_its_line(
    problems: Problems, specs: Path, table: str, file: str, old: str, new: str, message: str
) -> None:
    expected = (specs / file).read_text(encoding="utf-8").partition(old)[0].count("\n") + 1
    found = problems(table, file, (old, new))
    told = [(line, text) for line, text in found if message in text]
    assert len(told) == 1, found
    if not any(part in message for part in BLAMES_THE_KEY_ABOVE):
        changed = next(i for i, line in enumerate(new.splitlines()) if line not in old.splitlines())
        assert told[0][0] == expected + changed


def test_all_problems_of_a_file_are_reported_at_once_in_its_order(problems: Problems, specs: Path) -> None:
    edits = [("momentum: 0.9", "momentun: 0.9"), ("batch_size: 128", "batch_size: 0"), ("eps: 0.00001", "eps: none")]
    assert problems("table2", CIFAR, *edits) == [
        (line_of(specs / CIFAR, "schema: 1"), "momentum: is missing."),
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


@pytest.mark.parametrize("value", ["8.70", "unprinted", "{value: 8.70, note: of one of them}"])
def test_a_sweep_has_no_number_for_several_nets_but_fails(problems: Problems, value: str) -> None:
    old = "resnet110:\n      value: fail\n      note: One row of the paper for six values;"
    note = " b_g of -8 to -10 was searched too and is not reported (Sec. 3.1)."
    ((_, told),) = problems("table1", E1, (old + note, f"resnet110: {value}"))
    assert told.endswith("exclusive_gating_0_to_5/resnet110 stands for 6 nets, so its value must be `fail`.")
