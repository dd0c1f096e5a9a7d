"""What a table is made of beyond plain cells: sweeps, labels, footnotes, data sets by column, literature rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from paperbench.specs.table import Table, load_table
from tests.helpers import line_of
from tests.specs.conftest import Complaint, replace_once

X1, X3, X4, X5 = (f"experiments/table{n}.yaml" for n in (1, 3, 4, 5))
E1, E2, E4, E5 = (f"expected/table{n}.yaml" for n in (1, 2, 4, 5))
SWEEP = "{model: resnet110_exclusive_gating, sweep: {gate_bias: [0, -1, -2, -3, -4, -5]}}"
NIN = '{id: nin, title: NIN, cells: {cifar10: 8.81, cifar100: 35.68}, source: "arXiv:1312.4400"}'


def test_a_sweep_is_one_cell_of_a_net_for_each_value(tables: dict[str, Table]) -> None:
    table = tables["table1"]
    cell = table.cell("exclusive_gating_0_to_5/resnet110")
    paper = table.profiles.named("paper")
    assert [setting.label for setting in cell.settings] == [f"gate_bias={b}" for b in (0, -1, -2, -3, -4, -5)]
    assert [cell.net_in(paper, setting).gate_bias for setting in cell.settings] == [0, -1, -2, -3, -4, -5]
    assert [str(cell.reference_in(paper, setting)) for setting in cell.settings][5] == (
        "resnet110_exclusive_gating(gate_bias=-5)"
    )
    assert cell.net_in(paper) == cell.net_in(paper, cell.settings[0])


def test_all_other_cells_are_of_one_net_without_a_label(tables: dict[str, Table]) -> None:
    cells = [cell for table in tables.values() for cell in table.all_cells if "0_to_5" not in cell.id]
    assert {tuple(setting.label for setting in cell.settings) for cell in cells} == {("",)}


@pytest.mark.parametrize(
    ("net", "message"),
    [
        ("{model: resnet110_exclusive_gating, sweep: {gate_bias: [0]}}", "gate_bias needs two values or more, each"),
        ("{model: resnet110_exclusive_gating, sweep: {gate_bias: []}}", "gate_bias needs two values or more, each"),
        ("{model: resnet110_exclusive_gating, sweep: {gate_bias: [0, -1, 0]}}", "gate_bias needs two values or more"),
        ("{model: resnet110_exclusive_gating, sweep: {gate_bias: [0, 0.0]}}", "gate_bias needs two values or more"),
        ("{model: resnet110_exclusive_gating, sweep: {gate_bias: -1}}", "must be a list"),
        ("{model: resnet110_exclusive_gating, sweep: {gate_bais: [0, -1]}}", "Did you mean 'gate_bias'?"),
        (
            "{model: resnet110_exclusive_gating, sweep: {gate_bias: [0, low]}}",
            "gate_bias of resnet110_exclusive_gating",
        ),
        ("{model: original_resnet110, sweep: {gate_bias: [0, -1]}}", "original_resnet110 would ignore gate_bias"),
        ("{model: original_resnet110, sweep: {num_classes: [10, 100]}}", "num_classes follows from the data set"),
        (
            "{model: resnet110_exclusive_gating, kwargs: {gate_bias: -6}, sweep: {gate_bias: [0, -1]}}",
            "gate_bias is among kwargs too.",
        ),
        (
            "{model: resnet110_exclusive_gating, sweep: {gate_bias: [0, -1], gate_init: [he, gaussian]}}",
            "a sweep is over one argument.",
        ),
        (
            "{model: resnet110_exclusive_gating, sweeps: {gate_bias: [0, -1]}}",
            "unknown key 'sweeps'. Did you mean 'sweep'",
        ),
        ("{sweep: {gate_bias: [0, -1]}}", "the key 'model' is missing."),
    ],
)
def test_a_sweep_that_is_none_is_refused_at_its_line(complaint: Complaint, specs: Path, net: str, message: str) -> None:
    where, told = complaint("table1", {X1: [(SWEEP, net)]})
    assert where == f"{X1}:{line_of(specs / X1, net)}"
    assert message in told


@pytest.mark.parametrize("value", ["8.70", "unprinted", "{value: 8.70, note: of one of them}"])
def test_a_sweep_has_no_number_for_several_nets_but_fails(complaint: Complaint, specs: Path, value: str) -> None:
    old = "      value: fail\n      note: One row of the paper for six values;"
    text = f"exclusive_gating_0_to_5: {{resnet110: {value}}}"
    note = "b_g of -8 to -10 was searched too and is not reported (Sec. 3.1)."
    where, told = complaint("table1", {E1: [(f"exclusive_gating_0_to_5:\n    resnet110:\n{old} {note}", text)]})
    assert where == f"{E1}:{line_of(specs / E1, text)}"
    assert told == "exclusive_gating_0_to_5/resnet110 stands for 6 nets, so its value must be `fail`."


LABELLED = '{on shortcut: dropout 0.5, on F: "1"}'


@pytest.mark.parametrize(
    ("table", "file", "old", "new", "line", "message"),
    [
        (
            "table1",
            X1,
            LABELLED,
            LABELLED.replace("on F", "onF"),
            "id: dropout_shortcut",
            "row 'dropout_shortcut': unknown label 'onF'. Did you mean 'on F'?",
        ),
        (
            "table1",
            X1,
            LABELLED,
            LABELLED.replace('"1"', "1"),
            "on F: 1}",
            "must be text, not '1' (a whole number); quote",
        ),
        (
            "table1",
            X1,
            "remark: after}",
            "remark: behind}",
            "remark: behind}",
            "'behind' is not allowed here. Known: after",
        ),
        (
            "table3",
            X3,
            "labels: {dataset: before}\n",
            "",
            "id: cifar10_resnet110_1layer",
            "row 'cifar10_resnet110_1layer': unknown label 'dataset'. There are none.",
        ),
        (
            "table5",
            E5,
            "labels: {augmentation: scale+asp ratio, train crop: 299x299, test crop: 299x299}",
            "labels: {augmentatoin: scale+asp ratio}",
            "- id: inception_v3",
            "unknown label 'augmentatoin'. Did you mean 'augmentation'?",
        ),
    ],
)
def test_a_label_that_the_table_has_not_is_refused(
    complaint: Complaint, specs: Path, table: str, file: str, old: str, new: str, line: str, message: str
) -> None:
    where, told = complaint(table, {file: [(old, new)]})
    assert where == f"{file}:{line_of(specs / file, line)}"
    assert message in told


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        (
            "title: CIFAR-10, dataset: cifar10}",
            "title: CIFAR-10}",
            "- id: resnet110",
            "resnet110/cifar10: the data set must be given by the row or the column; neither does.",
        ),
        (
            "    title: ResNet-110, original unit\n",
            "    title: ResNet-110, original unit\n    dataset: cifar10\n",
            "- id: resnet110",
            "resnet110/cifar10: the data set must be given by the row or the column; both do.",
        ),
        (
            "title: CIFAR-10, dataset: cifar10}",
            "title: CIFAR-10, dataset: cifar}",
            "dataset: cifar}",
            "unknown data set 'cifar'. Did you mean 'cifar10'?",
        ),
        (
            "title: CIFAR-10, dataset: cifar10}",
            "title: CIFAR-10, dataset: imagenet}",
            "- id: resnet110",
            "row 'resnet110': cifar10: original_resnet110 is a net for images of 32x32 pixels, and ImageNet",
        ),
        (
            "cells: {cifar10: original_resnet110}",
            "cells: {cifar10: original_resnet110.cifar100}",
            "- id: resnet110",
            "original_resnet110.cifar100 is tagged for cifar100, and the data set is cifar10. Drop the tag.",
        ),
        (
            "cells: {cifar10: original_resnet110}",
            "cells: {cifar1: original_resnet110}",
            "- id: resnet110",
            "row 'resnet110': unknown column 'cifar1'. Did you mean 'cifar10'?",
        ),
        ("cells: {cifar10: original_resnet110}", "cells: {}", "cells: {}", "a row needs cells."),
        (
            "title: CIFAR-10, dataset: cifar10}",
            "title: CIFAR-10, datset: cifar10}",
            "datset: cifar10}",
            "unknown key 'datset'. Did you mean 'dataset'?",
        ),
        (
            "title: CIFAR-10, dataset: cifar10}",
            "title: CIFAR-10, dataset: cifar10, metric: top2}",
            "metric: top2}",
            "'top2' is not allowed here. Did you mean 'top",
        ),
    ],
)
def test_a_column_and_its_data_set_must_fit_the_rows(
    complaint: Complaint, specs: Path, old: str, new: str, line: str, message: str
) -> None:
    where, told = complaint("table4", {X4: [(old, new)]})
    assert where == f"{X4}:{line_of(specs / X4, line)}"
    assert message in told


@pytest.mark.parametrize(
    ("id_and_title", "cells", "message"),
    [
        (
            "id: nin, title: NIN",
            "{cifar10: 8.81, cifar1000: 3.5}",
            "unknown column 'cifar1000'. Did you mean 'cifar100'",
        ),
        (
            "id: nin, title: NIN",
            "{cifar10: 881, cifar100: 35.68}",
            "a test error lies between 0 and 100 percent, 881.0",
        ),
        ("id: nin, title: NIN", "{cifar10: fail}", "must be a number, not 'fail' (text)."),
        ("id: nin, title: NIN", "{}", "a row needs cells."),
        ("id: resnet110, title: NIN", "{cifar10: 8.81}", "'resnet110' is a row of the experiment."),
        ("id: nin, titel: NIN", "{cifar10: 8.81}", "unknown key 'titel'. Did you mean 'title'?"),
        ("id: nin, title: NIN, place: under", "{cifar10: 8.81}", "'under' is not allowed here. Known: above, below."),
    ],
)
def test_a_row_of_others_that_does_not_fit_the_table_is_refused_at_its_line(
    complaint: Complaint, specs: Path, id_and_title: str, cells: str, message: str
) -> None:
    row = f"{{{id_and_title}, cells: {cells}}}"
    where, told = complaint("table4", {E4: [(NIN, row)]})
    assert where == f"{E4}:{line_of(specs / E4, row)}"
    assert told.startswith(message)


def test_two_rows_of_others_with_one_id_are_refused(complaint: Complaint, specs: Path) -> None:
    where, told = complaint("table4", {E4: [("{id: dsn,", "{id: nin,")]})
    assert where == f"{E4}:{line_of(specs / E4, 'literature:')}"
    assert told == "the id 'nin' stands twice in literature."


def test_a_mark_without_a_footnote_is_refused(complaint: Complaint) -> None:
    where, told = complaint("table4", {E4: [('  "†": mini-batches', '  "‡": mini-batches')]})
    assert where.startswith(f"{E4}:")
    assert told == "the mark '†' is not explained in footnotes."


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("mean: 4.89", "mean: 489.0", "a test error lies between 0 and 100 percent, 489.0 does not."),
        ("std: 0.14", "std: 0.000", "a standard deviation is positive, 0.0 is not."),
        ("std: 0.14", "sdt: 0.14", "unknown key 'sdt'. Did you mean 'std'?"),
        ("params: 19.4M", "parms: 19.4M", "unknown key 'parms'. Did you mean 'params'?"),
        ("statistic: single  ", "statistic: best  ", "'best' is not allowed here."),
        ("      n: 1\n      params: 19.4M", "      n: 2\n      params: 19.4M", "a single run is not 2 runs."),
        ("tolerance: 0.5}", "tolerance: 0.5, decimals: -1}", "decimals must not be negative, as -1 is."),
        ("tolerance: 0.5}", "tolerance: 0.5, decimal: 1}", "unknown key 'decimal'. Did you mean 'decimals'?"),
        ("footnotes:", "footnote:", "unknown key 'footnote'. Did you mean 'footnotes'?"),
        ("literature:", "litrature:", "unknown key 'litrature'. Did you mean 'literature'?"),
    ],
)
def test_what_is_said_of_a_number_must_make_sense(
    complaint: Complaint, specs: Path, old: str, new: str, message: str
) -> None:
    where, told = complaint("table4", {E4: [(old, new)]})
    assert where == f"{E4}:{line_of(specs / E4, new.splitlines()[0])}"
    assert told.startswith(message)


@pytest.mark.parametrize("key", ["mean: 12.0", "std: 0.1, std_source: me", "tolerance: 1.0"])
@pytest.mark.parametrize("value", ["fail", "unprinted"])
def test_only_a_number_has_a_spread_and_a_tolerance(complaint: Complaint, specs: Path, value: str, key: str) -> None:
    new = f"constant_scaling_unscaled: {{resnet110: {{value: {value}, {key}}}}}"
    where, told = complaint("table1", {E1: [("constant_scaling_unscaled: {resnet110: fail}", new)]})
    assert where == f"{E1}:{line_of(specs / E1, new)}"
    assert told == f"{key.split(':')[0]} is for cells with a number."


def test_a_peer_with_an_impossible_error_is_refused(complaint: Complaint, specs: Path) -> None:
    where, told = complaint("table2", {E2: [("value: 13.56", "value: 1356")]})
    assert where == f"{E2}:{line_of(specs / E2, 'value: 1356')}"
    assert told == "a test error lies between 0 and 100 percent, 1356.0 does not."


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ("{crop: 257, scale: 256}", "a crop of 257 pixels does not fit an image of 256."),
        ("{crop: 0, scale: 256}", "a crop of 0 pixels does not fit an image of 256."),
        ("{crop: 224, sacle: 256}", "unknown key 'sacle'. Did you mean 'scale'?"),
        ("{crop: 225}", "the key 'scale' is missing."),
    ],
)
def test_a_crop_must_fit_the_image(complaint: Complaint, specs: Path, evaluation: str, message: str) -> None:
    where, told = complaint("table5", {X5: [('{crop: 224, scale: 256}                 # "a', f'{evaluation}  # "a')]})
    assert where == f"{X5}:{line_of(specs / X5, f'evaluation: {evaluation}  #')}"
    assert told == message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    figure: 4(b)\n", "    figrue: 4(b)\n", "unknown key 'figrue'. Did you mean 'figure'?"),
        ("case: method\n", "csae: method\n", "unknown key 'csae'. Did you mean 'case'?"),
        (
            "    recipe: imagenet_torch\n",
            "    recpie: imagenet_torch\n",
            "unknown key 'recpie'. Did you mean 'recipe'?",
        ),
        (
            "recipe: imagenet\n",
            "recipe: imagenet\nprecision: fp23\n",
            "'fp23' is not allowed here. Did you mean 'fp32'?",
        ),
    ],
)
def test_a_misspelt_word_of_an_experiment_gets_the_nearest_one(
    complaint: Complaint, specs: Path, old: str, new: str, message: str
) -> None:
    where, told = complaint("table5", {X5: [(old, new)]})
    assert where == f"{X5}:{line_of(specs / X5, new.splitlines()[-1])}"
    assert told == message


def test_an_unknown_recipe_of_a_row_is_refused_at_the_row(complaint: Complaint, specs: Path) -> None:
    where, told = complaint("table5", {X5: [("    recipe: imagenet_torch\n", "    recipe: imagenet_troch\n")]})
    assert where == f"{X5}:{line_of(specs / X5, '- id: preact_resnet200_aspect')}"
    assert told.endswith("recipes has no recipe 'imagenet_troch'. Did you mean 'imagenet_torch'?")


def test_what_is_wrong_with_the_recipe_of_a_row_is_told_of_the_recipe(complaint: Complaint, specs: Path) -> None:
    recipe = "experiments/recipes/cifar_torch.yaml"
    where, told = complaint("table4", {recipe: [("batch_size: 64\n", "batch_size: 63\n")]})
    assert where == f"{recipe}:{line_of(specs / recipe, 'batch_norm:')}"
    assert told == "group must be at least 2 and divide batch_size 63, not 32."


def test_a_table_may_train_in_a_precision_of_its_own(tables: dict[str, Table], specs: Path) -> None:
    assert {name: table.experiment.precision for name, table in tables.items()} == {
        "table1": "fp32",
        "table2": None,
        "table3": None,
        "table4": None,
        "table5": None,
    }
    replace_once(specs / X1, [("precision: fp32 ", "precision: tf32 ")])
    assert load_table("table1", specs).experiment.precision == "tf32"
