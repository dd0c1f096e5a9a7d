"""Analyses as text, Markdown, CSV, JSON and data frames, beside the records."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import statistics
from dataclasses import fields, replace

import pytest

from paperbench.analysis.record import Analysis, Health, Modules, Passes, Spectrum, read_analyses
from paperbench.errors import PaperbenchError
from paperbench.report.analyses import ITERATIONS, QUANTITIES, Analyses, singular
from tests.helpers import ROOT
from tests.report.made_analyses import made, with_everything

SEEDS = Analyses(made(seed=seed) for seed in (0, 1, 2))
MODULES = [
    {"name": "stem.conv", "weight": 4.0, "gradient": 2.0, "update": 0.5},
    {"name": "fc", "weight": 0.0, "gradient": 2.0, "update": 0.5},
    {"name": "tail.relu", "mean": 0.25, "std": 0.5, "dead": 2, "channels": 8},
    {"name": "stages.0.0", "chi": 1.5, "chi_error": 0.01, "correlation": 0.75},
]
HEALTH = Health(Modules.of(MODULES), "the last step's", probes=2, train_error=3.0, test_error=7.5)
NETS = Analyses([made(), made("original_resnet20"), made("original_resnet32", stages=(5, 5, 5))])


def cells(text: str, begin: str) -> list[str]:
    """Return the cells of the first line that begins with a text, after it."""
    line = next(line for line in text.splitlines() if line.startswith(begin))
    return line.removeprefix(begin).split()


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")


def test_nets_have_a_row_each_in_their_order() -> None:
    text = str(NETS)
    assert [line.split()[0] for line in text.splitlines() if "_resnet" in line] == [one.net for one in NETS]
    growth = [one.output.norm / one.passes.signal_norm[0] for one in NETS]
    assert [cells(text, one.net)[4] for one in NETS] == [f"{value:.3g}" for value in growth]
    assert "By unit" not in text


def test_seeds_are_a_median_with_their_range() -> None:
    ratios = sorted(one.passes.gradient_norm[0] / one.output_gradient for one in SEEDS)
    shown = [cells(str(SEEDS), begin)[0] for begin in (f"{SEEDS[0].net}, median of 3 seeds", "  lowest", "  highest")]
    assert shown == [f"{ratios[i]:.3g}" for i in (1, 0, 2)]


def test_units_of_one_net_have_their_medians() -> None:
    text = str(SEEDS).partition("By unit")[2]
    for unit in (0, 4, 8):
        (row,) = (line.split() for line in text.splitlines() if line.split()[:2] == [str(unit), str(unit // 3)])
        assert row[2] == f"{statistics.median(one.passes.signal_norm[unit] for one in SEEDS):.3g}"
        assert row[9] == f"{statistics.median(one.passes.direct_share[unit] for one in SEEDS):.3g}"
        negative = statistics.median(one.passes.negative[unit] for one in SEEDS)
        assert row[5] == f"{negative:.3g}"


def test_of_many_units_the_first_and_last_of_each_stage_are_shown() -> None:
    text = str(Analyses([made(stages=(18, 18, 18))])).partition("By unit")[2]
    units = [line.split()[:2] for line in text.splitlines() if line[:2].strip().isdigit()]
    expected = [["0", "0"], ["17", "0"], ["18", "1"], ["35", "1"], ["36", "2"], ["53", "2"]]
    assert units[:6] == expected
    assert units[6][0] == "54"


@pytest.mark.parametrize("columns", [80, 100])
def test_text_fits_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    everything = replace(with_everything(made(stages=(18, 18, 18))), health=HEALTH)
    for some in (Analyses([everything]), NETS, SEEDS):
        assert max(map(len, str(some).splitlines())) <= columns


def test_conditions_are_named_once_if_shared_else_in_each_label() -> None:
    mixed = Analyses([made(), made(run="0" * 64, iteration=100), made(run="0" * 64, iteration=8_000)])
    assert mixed.conditions == (
        "Conditions: CIFAR-10 (a copy), not the paper's images; 4 images; batch norm by the batch; fp64."
    )
    assert [group.label.partition(", ")[2] for group in mixed.groups] == [
        "at initialisation",
        "trained for 100 iterations",
        "trained for 8,000 iterations",
    ]


def test_measures_get_tables() -> None:
    one = with_everything(made())
    text = str(Analyses([one]))
    assert one.jacobians
    assert one.paths
    assert one.left_out
    longest = one.jacobians.chains[-1]
    found = (longest.largest[0], longest.rms, longest.condition)
    assert cells(text, f"{one.net}  0 to 8") == [f"{value:.3g}" for value in found]
    shares = [*one.paths.share[:6], sum(one.paths.share[6:])]
    errors = ["7", f"{statistics.median(one.left_out.without):.3g}", "12", "3"]
    rows = [line.split()[1:] for line in text.splitlines() if line.startswith(one.net)]
    assert [f"{share:.3g}" for share in shares] in rows
    assert errors in rows


def test_health_is_shown_with_what_is_unavailable() -> None:
    unknown = replace(HEALTH, test_error=None, update_is="unavailable: no momentum was kept")
    text = "".join(str(Analyses([made(health=health)])) for health in (HEALTH, unknown))
    rows = [re.split(r"  +", line) for line in text.splitlines()]
    shown = {tuple(row[:2] + row[4:]) for row in rows}
    assert shown >= {
        ("gradient norm", "2", "2", "fc", "2", "stem.conv"),
        ("gradient / weight", "0.5"),  # not of the layer whose weight is zero
        ("update / weight (the last step's)", "0.125"),
        ("dead channels, share", "0.25"),
        ("test - train error, points", "4.5"),
        ("test - train error, points (unavailable: no test yet)", "-"),
    }
    two = str(Analyses([made(health=HEALTH), made(seed=1, health=unknown)]))  # no median of the seeds that have one
    assert cells(two, "test - train error, points (unavailable: no test yet)")[0] == "-"
    assert "update / weight (unavailable: no momentum was kept)" in text


def test_ranges_are_those_of_the_published_nets_that_trained() -> None:
    analyses, complaints = read_analyses(ROOT / "results" / "health")
    found = [(one, one.health) for one in analyses if one.health]
    trained = {(one.net, one.seed) for one, health in found if one.spec.iteration == 990 and health.train_error < 10}
    assert not complaints
    for of, _, ranges in QUANTITIES.values():
        for iteration, shown in zip(ITERATIONS, ranges.split(";"), strict=True):
            of_nets = [of(h) for one, h in found if one.spec.iteration == iteration and (one.net, one.seed) in trained]
            medians = sorted(statistics.median(value for value, _ in values) for values in of_nets if values)
            assert shown == (" to ".join(f"{float(f'{medians[i]:.2g}'):g}" for i in (0, -1)) if medians else "-")


def test_json_is_the_records_as_stored() -> None:
    found = json.loads(NETS.render("json"))
    assert [Analysis.from_json(json.dumps(one)) for one in found] == list(NETS)


def test_csv_has_every_number_of_every_unit() -> None:
    rows = list(csv.DictReader(io.StringIO(NETS.render("csv"))))
    assert [(row["net"], int(row["unit"]), int(row["stage"])) for row in rows] == [
        (one.net, unit, stage) for one in NETS for unit, stage in enumerate(one.stages)
    ]
    for field in fields(Passes):
        assert [float(row[field.name]) for row in rows] == [v for one in NETS for v in getattr(one.passes, field.name)]


def test_csv_has_what_was_measured_besides() -> None:
    one = replace(with_everything(made()), health=HEALTH)
    assert one.jacobians
    assert one.left_out
    rows = list(csv.DictReader(io.StringIO(Analyses([one]).render("csv"))))
    for known in MODULES:
        row = rows.pop(9)
        assert {name[7:]: text for name, text in row.items() if name[:6] == "module" and text} == {
            name: str(value) for name, value in known.items()
        }
        assert (row["net"], row["unit"], row["test_error"]) == (one.net, "", "7.5")
    of_net = {"loss": 2.3, "output_norm": 3.5, "output_gradient": 0.125, "error": 7.0}
    for unit, row in enumerate(rows):
        spectrum = one.jacobians.units[unit]
        expected = of_net | {"jacobian_largest": spectrum.largest[0], "jacobian_rms": spectrum.rms}
        expected |= {"jacobian_condition": spectrum.condition, "error_without": one.left_out.without[unit]}
        assert {name: float(row[name]) for name in expected} == expected


def test_singular_jacobian_has_an_infinite_condition_number() -> None:
    spectrum = Spectrum(0, 0, (2.0,), None, 1.0, (2.0, 0.0), 1, None)
    assert singular(spectrum, "condition") == math.inf
    assert singular(replace(spectrum, values=(), rank=None, residual=0.1), "condition") is None


def test_number_that_a_seed_lacks_has_no_median() -> None:
    passes = SEEDS[0].passes
    first = replace(SEEDS[0], passes=replace(passes, cosine=(None, *passes.cosine[1:])))
    by_unit = [line.split() for line in str(Analyses([first, *SEEDS[1:]])).splitlines()]
    assert [row[10] for row in by_unit if row[:2] == ["0", "0"]] == ["-"]
    assert [row[10] for row in by_unit if row[:2] == ["8", "2"]] != ["-"]


def test_groups_that_differ_in_what_was_measured_say_so() -> None:
    two = Analyses([made(), made(measures=("channels", "left_out"))])
    assert [group.label for group in two.groups] == ["preact_resnet20", "preact_resnet20, with channels, left-out"]


def test_csv_leaves_missing_numbers_empty_and_names_harmless() -> None:
    passes = replace(made().passes, cut=(None,) * 9)
    row = next(csv.DictReader(io.StringIO(Analyses([made("=net", passes=passes)]).render("csv"))))
    assert (row["net"], row["cut"], row["run"]) == ("'=net", "", "")


def test_frame_is_the_csv_with_types() -> None:
    pandas = pytest.importorskip("pandas")
    frame = NETS.to_frame()
    read = pandas.read_csv(io.StringIO(NETS.render("csv")))
    assert list(frame.columns) == list(read.columns)
    assert [str(frame[name].dtype) for name in ("net", "unit", "canonical", "factor")] == [
        *("string", "int64", "boolean", "float64")
    ]
    empty = ["run", "weights", "size", "error", "error_without"]
    empty += [name for name in frame.columns if name.startswith(("jacobian", "module", "train", "test"))]
    assert frame[empty].isna().all(axis=None)
    pandas.testing.assert_frame_equal(frame.drop(columns=empty), read.drop(columns=empty), check_dtype=False)


def test_markdown_has_the_rows_of_the_text() -> None:
    text = NETS._repr_markdown_()
    assert [line.split("|")[1].strip() for line in text.splitlines() if "_resnet" in line] == [one.net for one in NETS]


def test_unknown_format_is_refused() -> None:
    with pytest.raises(PaperbenchError, match="Did you mean 'json'"):
        NETS.render("jsn")
