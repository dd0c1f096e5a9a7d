from __future__ import annotations

import json
import statistics
from typing import get_args

import jsonschema
import pytest

from paperbench.bench.figures import (
    BenchReport,
    NetFigures,
    Status,
    Variant,
    VariantFigures,
    measured_noise,
    median_ratio,
)
from paperbench.errors import PaperbenchError, summarize_error
from paperbench.typed import from_json, json_schema, to_json
from tests.helpers import ROOT

EAGER = Variant("paperbench", "eager", "fp32")


def test_ratio_is_the_median_over_rounds_not_a_ratio_of_medians() -> None:
    ours, plain = (1.0, 10.0, 1.01), (2.0, 20.0, 1.0)
    found = median_ratio(ours, plain, noise=0.1)
    assert found is not None
    assert found.median == 2.0 != statistics.median(plain) / statistics.median(ours)


def test_ratio_ignores_rounds_of_one_variant_only() -> None:
    found = median_ratio((0.5, 0.25, 0.1), (1.0, 1.0), noise=None)
    assert found is not None
    assert found.median == 3.0
    assert median_ratio((10.0,), (), noise=0.0) is None


def test_noise_is_the_largest_change_in_either_direction() -> None:
    found = [
        VariantFigures(EAGER, "measured", step_seconds=(1.02, 0.99), control=(1.0, 1.0)),
        VariantFigures(EAGER, "measured", step_seconds=(1.0, 0.8, 1.1), control=(1.0, 1.0, 1.0)),
        VariantFigures(EAGER, "measured", step_seconds=(5.0,)),
    ]
    assert measured_noise(found) == pytest.approx(1 / 0.8 - 1)
    assert measured_noise(found[2:]) is None


@pytest.mark.parametrize(
    ("factor", "noise", "differs"),
    [
        (1.2, 0.1, True),
        (1.05, 0.1, False),
        (1 / 1.2, 0.1, True),
        (1 / 1.05, 0.1, False),
        (5.0, None, False),
    ],
)
def test_ratio_within_the_noise_is_not_a_difference(factor: float, noise: float | None, differs: bool) -> None:
    found = median_ratio((1.0,) * 3, (factor,) * 3, noise)
    assert found is not None
    assert found.is_difference is differs


@pytest.mark.parametrize("status", get_args(Status))
def test_net_is_sound_unless_a_variant_failed(status: Status) -> None:
    variants = VariantFigures(EAGER, "measured"), VariantFigures(EAGER, status)
    net = NetFigures("a", 1, 4, 2, 10, variants, None)
    assert net.is_sound is (status in ("measured", "out of memory", "skipped"))


def published() -> str:
    return (ROOT / "results/bench/cpu-amd-epyc-2-threads.json").read_text()


def test_published_figures_round_trip_and_match_the_schema() -> None:
    found = from_json(BenchReport, published())
    assert from_json(BenchReport, to_json(found)) == found
    assert {variant.variant.at_once for net in found.nets for variant in net.variants} == {1}  # it is not in the file
    jsonschema.Draft202012Validator(json_schema(BenchReport)).validate(json.loads(published()))


def test_published_ratios_follow_from_the_published_rounds() -> None:
    for net in from_json(BenchReport, published()).nets:
        assert net.noise == pytest.approx(measured_noise(net.variants))
        plain = net.variants[0].step_seconds
        for figures in net.variants:
            if figures.over_plain:
                rounds = [a / b for a, b in zip(plain, figures.step_seconds, strict=False)]
                assert figures.over_plain.median == pytest.approx(statistics.median(rounds))
                far = max(figures.over_plain.median, 1 / figures.over_plain.median)
                assert figures.over_plain.is_difference is (far > 1 + (net.noise or 0))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            ValueError("cannot open /folder/of/mine/a.so: no such file\nmore"),
            "ValueError: cannot open [path] no such file",
        ),
        (ValueError('File "C:\\Folder\\a.py", line 3'), 'ValueError: File "[path]", line 3'),
        (PaperbenchError("the loss is nan"), "the loss is nan"),
        (
            OSError("no" + 500 * " file" + ": full disk"),
            f"OSError: no{19 * ' file'} fi [...] {17 * 'file '}file: full disk",
        ),
    ],
)
def test_error_summary_has_no_paths(error: Exception, expected: str) -> None:
    assert summarize_error(error) == expected
