"""Analyses as text, Markdown, CSV, JSON and data frames, beside the records."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from dataclasses import fields, replace

import pytest

from paperbench.analysis.record import Analysis, Health, Modules, Passes, Spectrum, read_analyses
from paperbench.errors import PaperbenchError
from paperbench.report.analyses import ITERATIONS, QUANTITIES, Analyses, singular
from tests.golden import assert_golden
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


def test_analyses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    everything, deep = with_everything(made()), with_everything(made(stages=(18, 18, 18)))
    unknown = replace(HEALTH, test_error=None, update_is="unavailable: no momentum was kept")
    lacking = replace(SEEDS[0], passes=replace(SEEDS[0].passes, cosine=(None, *SEEDS[0].passes.cosine[1:])))
    texts = [
        NETS.render("markdown"),
        *(
            str(Analyses(some))
            for some in (
                NETS,
                [lacking, *SEEDS[1:]],
                [everything, with_everything(made("original_resnet20"))],
                [replace(deep, health=HEALTH)],
                [made(health=HEALTH), made(seed=1, health=unknown)],
                [made(health=unknown)],
                [made(), made(run="0" * 64, iteration=100), made(run="0" * 64, iteration=8_000)],
                [made(), made(measures=("channels", "left_out"))],
            )
        ),
    ]
    assert_golden("analyses", f"\n{'=' * 120}\n\n".join(texts))


def test_seeds_are_a_median_with_their_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    lowest, median, highest = sorted(one.passes.gradient_norm[0] / one.output_gradient for one in SEEDS)
    of_net, of_units = str(SEEDS).split("By unit")
    for begin, value in ((f"{SEEDS[0].net}, median of 3 seeds", median), ("  lowest", lowest), ("  highest", highest)):
        (line,) = (line for line in of_net.splitlines() if line.startswith(begin))
        assert line.removeprefix(begin).split()[0] == f"{value:.3g}"
    for unit in (0, 4, 8):
        (row,) = (line.split() for line in of_units.splitlines() if line.split()[:2] == [str(unit), str(unit // 3)])
        assert row[2] == f"{statistics.median(one.passes.signal_norm[unit] for one in SEEDS):.3g}"
        assert row[9] == f"{statistics.median(one.passes.direct_share[unit] for one in SEEDS):.3g}"


@pytest.mark.parametrize("columns", [80, 100])
def test_text_fits_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    everything = replace(with_everything(made(stages=(18, 18, 18))), health=HEALTH)
    for some in (Analyses([everything]), NETS, SEEDS):
        assert max(map(len, str(some).splitlines())) <= columns


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


def test_unknown_format_is_refused() -> None:
    with pytest.raises(PaperbenchError, match="Did you mean 'json'"):
        NETS.render("jsn")
