from __future__ import annotations

import json
import statistics
from dataclasses import replace
from typing import Any, get_args

import jsonschema
import pytest

from paperbench.bench.figures import (
    BenchReport,
    Control,
    NetFigures,
    Spread,
    Status,
    Variant,
    VariantFigures,
    json_text,
    noise_of,
    ratio,
    spread,
    summarize_error,
)
from paperbench.typed import TypedError, from_json, json_schema
from tests.helpers import ROOT

EAGER = Variant("paperbench", "eager", "fp32")
SPEED = Spread(2.0, 1.0, 3.0)


def test_a_ratio_is_the_median_of_those_of_the_rounds_not_the_ratio_of_medians() -> None:
    ours, plain = (100.0, 10.0, 99.0), (50.0, 5.0, 90.0)
    found = ratio(ours, plain, noise=0.1)
    assert found is not None
    assert found.rounds == (2.0, 2.0, pytest.approx(1.1))
    assert (found.median, found.low, found.high) == (2.0, pytest.approx(1.1), 2.0)
    assert statistics.median(ours) / statistics.median(plain) != found.median


def test_rounds_that_only_one_of_them_has_are_left_out_of_a_ratio() -> None:
    found = ratio((10.0, 20.0, 30.0), (5.0, 5.0), noise=None)
    assert found is not None
    assert found.rounds == (2.0, 4.0)
    assert ratio((10.0,), (), noise=0.0) is None


def test_a_spread_is_median_least_and_greatest() -> None:
    assert spread((128.0, 256.0, 64.0)) == Spread(128.0, 64.0, 256.0)


def test_noise_is_the_farthest_that_a_variant_was_from_itself_in_either_direction() -> None:
    controls = [Control(EAGER, (1.02, 0.99)), Control(EAGER, (1.0, 0.8, 1.1))]
    assert noise_of(controls) == pytest.approx(1 / 0.8 - 1)
    assert noise_of([]) is None


@pytest.mark.parametrize(
    ("factor", "noise", "differs"),
    [
        (1.2, 0.1, True),
        (1.05, 0.1, False),
        (1 / 1.2, 0.1, True),
        (1 / 1.05, 0.1, False),
        (1.0, 0.0, False),
        (5.0, None, False),
    ],
)
def test_what_is_nearer_to_1_than_the_noise_is_no_difference(factor: float, noise: float | None, differs: bool) -> None:
    found = ratio((factor * 100,) * 3, (100.0,) * 3, noise)
    assert found is not None
    assert found.is_difference is differs


@pytest.mark.parametrize("status", get_args(Status))
def test_a_net_is_sound_unless_a_variant_computed_something_else_or_broke(status: Status) -> None:
    measured = VariantFigures(EAGER, "measured", seconds=(1.0,), images_per_second=SPEED)
    other = measured if status == "measured" else VariantFigures(EAGER, status)
    net = NetFigures("a", 1, 2, 10, 20, (measured, other), (), None, None)
    assert net.is_sound is (status in ("measured", "out of memory", "skipped"))
    assert replace(net, variants=(other,)).has_figures is (status == "measured")


def test_only_what_was_measured_has_a_speed() -> None:
    with pytest.raises(ValueError, match="if and only if"):
        VariantFigures(EAGER, "measured")
    with pytest.raises(ValueError, match="if and only if"):
        VariantFigures(EAGER, "wrong step", seconds=(1.0,), images_per_second=SPEED)


def published() -> str:
    return (ROOT / "results/bench/cpu-amd-epyc-2-threads.json").read_text()


def test_published_figures_are_valid_and_come_back_the_same() -> None:
    report = from_json(BenchReport, published())
    assert json_text(report) == published()
    jsonschema.Draft202012Validator(json_schema(BenchReport)).validate(json.loads(published()))


def test_published_ratios_follow_from_the_published_rounds() -> None:
    for net in from_json(BenchReport, published()).nets:
        seconds = {figures.variant: [s / (figures.steps or 1) for s in figures.seconds] for figures in net.variants}
        plain = seconds[Variant("plain", "eager", "fp32")]
        for figures in net.variants:
            if figures.over_plain:
                rounds = [a / b for a, b in zip(plain, seconds[figures.variant], strict=False)]
                assert figures.over_plain.median == pytest.approx(statistics.median(rounds))
                far = max(figures.over_plain.median, 1 / figures.over_plain.median)
                assert figures.over_plain.is_difference is (far > 1 + (net.noise or 0))


def without_speed(content: dict[str, Any]) -> None:
    content["nets"][0]["variants"][0]["images_per_second"] = None


def of_a_host(content: dict[str, Any]) -> None:
    content["machine"]["host"] = "somebody's"


def of_another_schema(content: dict[str, Any]) -> None:
    content["schema"] = 2


@pytest.mark.parametrize("change", [without_speed, of_a_host, of_another_schema])
def test_other_documents_are_refused(change: Any) -> None:
    content = json.loads(published())
    change(content)
    with pytest.raises(TypedError):
        from_json(BenchReport, json.dumps(content))


def test_lists_of_plain_values_are_on_one_line_and_text_stays_what_it_is() -> None:
    detail = 'a "[\n" and ]'
    figures = VariantFigures(EAGER, "failed", detail, losses=(1.0, None, 0.5))
    text = json_text(figures)
    assert '"losses": [1.0, null, 0.5]' in text
    assert from_json(VariantFigures, text) == figures


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            ValueError("cannot open /folder/of/mine/a.so: no such file\nmore"),
            "ValueError: cannot open [path] no such file",
        ),
        (ValueError('File "C:\\Folder\\a.py", line 3'), "ValueError: File [path] line 3"),
        (ValueError(), "ValueError"),
        (RuntimeError("CUDA out of memory."), "RuntimeError: CUDA out of memory."),
    ],
)
def test_an_error_is_summarised_without_paths(error: Exception, expected: str) -> None:
    assert summarize_error(error) == expected
