"""The page's charts in a real browser."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import html5lib
import pytest

import paperbench
from paperbench.api import make_page
from paperbench.report.curves import Curve
from paperbench.specs.table import Table
from tests.compare.judging import record, records
from tests.report.stores import make_store


@pytest.fixture(scope="module")
def store(table2: Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    make_store(
        root,
        [
            *records(table2, "original/resnet110", (6.58, 6.64, 6.49)),
            *records(table2, "bn_after_addition/resnet110", (8.1, inf, inf), iteration=20_000),
            record(table2, "preact/resnet110", None, iteration=8_000),
        ],
    )
    return root


@pytest.fixture(scope="module")
def curves(store: Path) -> tuple[Curve, ...]:
    """The curves of the chart."""
    return paperbench.load_table("table2").compare(store).panels()[0].curves


@pytest.fixture(scope="module")
def file(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_page("table2", results=store).write(tmp_path_factory.mktemp("page"))


@pytest.fixture
def chart(open_page: Callable[..., Any], file: Path) -> Any:
    """The chart, of three curves, in a window that is wide enough for every point to have its pixels."""
    return drawn(open_page(file, viewport={"width": 1400, "height": 900}))


def drawn(page: Any) -> Any:
    """Return the page's chart when it is drawn and in view."""
    chart = page.locator("figure.chart")
    chart.scroll_into_view_if_needed()
    chart.locator(".plot svg").scroll_into_view_if_needed()
    return chart


def readout(chart: Any) -> tuple[int, list[list[str]]]:
    """Return the iteration at the cursor, and the cells of loss and error of every curve."""
    iteration = re.search(r"iteration ([\d,]+)", chart.locator("output").text_content())
    assert iteration
    rows = chart.locator(".legend tbody tr").all()
    return int(iteration[1].replace(",", "")), [row.locator("td").all_text_contents() for row in rows]


def view(chart: Any) -> tuple[int, int]:
    """Return the first and the last iteration, or epoch, in view."""
    label = chart.locator(".plot svg").get_attribute("aria-label")
    return tuple(
        int(one.replace(",", "")) for one in re.findall(r"(?:iterations|epochs) ([\d,]+) to ([\d,]+)", label)[0]
    )


def to_value(chart: Any, name: str, position: int) -> None:
    """Move a cursor to a position as the keyboard does."""
    slider = chart.get_by_role("slider")
    slider.evaluate(f"(s, at) => {{ s.value = at; s.dispatchEvent(new Event('{name}')) }}", position)


def drawn_values(chart: Any, measure: str) -> list[tuple[float, float]]:
    """Read (iteration, position between the axis's first and last tick) off the first bold curve, with the ticks."""
    path = chart.locator(".medians .curve").first.locator(f"path.{measure}").get_attribute("d")
    frame = chart.locator(".plot rect.frame").evaluate("r => [r.x.baseVal.value, r.width.baseVal.value]")
    anchor = {"loss": "end", "error": "start"}[measure]
    texts = chart.locator(f'.plot text[text-anchor="{anchor}"]').evaluate_all(
        "all => all.map(one => [Number(one.textContent), Number(one.getAttribute('y')) - 4])"
    )
    (low, y_low), (high, y_high) = min(texts), max(texts)
    points = [tuple(map(float, point)) for point in re.findall(r"([\d.]+),(-?[\d.]+)", path)]
    shares = [((x - frame[0]) / frame[1] * 64_000, (y - y_low) / (y_high - y_low)) for x, y in points]
    scale = (
        (lambda share: low * (high / low) ** share) if measure == "loss" else lambda share: low + share * (high - low)
    )
    return [(x, scale(share)) for x, share in shares]


def test_drawn_medians_are_those_of_the_curves(chart: Any, curves: tuple[Curve, ...]) -> None:
    for measure, median in (("loss", curves[0].median("train_loss")), ("error", curves[0].median("test_error"))):
        drawn = drawn_values(chart, measure)
        assert len(drawn) == len(median) == {"loss": 640, "error": 64}[measure]
        for (x, y), (iteration, value) in zip(drawn, median, strict=True):
            assert x == pytest.approx(iteration, abs=4)
            assert y == pytest.approx(value, rel=0.003)


def test_the_slider_tells_the_medians_at_its_position(chart: Any, curves: tuple[Curve, ...]) -> None:
    to_value(chart, "input", 48)
    chart.get_by_role("slider").press("ArrowRight")
    iteration, cells = readout(chart)
    assert iteration == 5_000
    assert cells == [
        [f"{dict(curve.median('train_loss'))[5_000]:#.3g}", f"{dict(curve.median('test_error'))[5_000]:.2f} %"]
        for curve in curves
    ]
    spoken = chart.get_by_role("slider").get_attribute("aria-valuetext")
    assert "iteration 5,000, epoch 12.8, learning rate 0.1 (stage 1)" in spoken
    assert f"full pre-activation: loss {cells[2][0]}, error {cells[2][1]}" in spoken


def test_diverged_and_unfinished_nets_have_no_values_at_the_end(chart: Any) -> None:
    assert "3 runs, reported 6.58\u00a0%" in chart.locator(".legend").text_content()
    chart.get_by_role("slider").press("End")
    iteration, cells = readout(chart)
    assert (iteration, cells[1:]) == (64_000, [["diverged", "diverged"], ["\u2013", "\u2013"]])
    assert "prefix, to 8,000" in chart.locator(".legend").text_content()


def test_a_box_hides_its_curve(chart: Any) -> None:
    chart.get_by_role("checkbox", name="BN after addition").uncheck()
    assert chart.locator(".medians .curve").count() == 2
    assert readout(chart)[1][1] == ["", ""]
    chart.get_by_label("all seeds").uncheck()
    assert chart.locator(".seeds").count() == 0


def test_the_pointer_moves_the_readout_and_on_a_name_dims_the_other_curves(chart: Any) -> None:
    frame = chart.locator(".plot rect.frame").bounding_box()
    chart.page.mouse.move(frame["x"] + frame["width"] / 2, frame["y"] + 50)
    assert readout(chart)[0] == 32_000
    chart.locator(".legend tbody tr").nth(1).hover()
    opacities = chart.locator(".medians .curve").evaluate_all("all => all.map(one => getComputedStyle(one).opacity)")
    assert opacities == ["0.1", "1", "0.1"]


def test_zooming_by_buttons_and_dragging(chart: Any) -> None:
    to_value(chart, "input", 319)
    chart.get_by_label("zoom in").click()
    assert view(chart) == (16_000, 48_000)
    chart.get_by_label("zoom out").click()
    assert view(chart) == (0, 64_000)
    frame, mouse = chart.locator(".plot rect.frame").bounding_box(), chart.page.mouse
    mouse.move(frame["x"] + frame["width"] / 4, frame["y"] + 50)
    mouse.down()
    mouse.move(frame["x"] + frame["width"] / 2, frame["y"] + 600)  # far below the chart
    mouse.up()
    assert view(chart) == (pytest.approx(16_000, abs=100), pytest.approx(32_000, abs=100))
    chart.get_by_label("reset the zoom").click()
    assert view(chart) == (0, 64_000)
    to_value(chart, "input", 100)
    chart.get_by_label("zoom in").press("Enter")
    to_value(chart, "input", 600)
    low, high = view(chart)
    assert low < 60_100 <= high, "the slider takes the view along"


def test_the_error_axis_holds_half_of_each_curve_or_the_view_and_says_what_is_cut_off(
    chart: Any, curves: tuple[Curve, ...]
) -> None:
    def ticks() -> list[float]:
        return [float(text) for text in chart.locator('.plot text[text-anchor="start"]').all_text_contents()]

    assert 40 < statistics.median(error for _, error in curves[2].runs[0].points("test_error")) < 60  # the prefix
    assert ticks() == [0, 20, 40, 60]
    highest = max(error for curve in curves for run in curve.runs for _, error in run.points("test_error"))
    assert chart.locator("p.note").text_content() == f"Cut off above: test errors up to {highest:.3g} %."
    chart.get_by_label("errors to 100 %").check()
    assert ticks() == [0, 20, 40, 60, 80, 100]
    assert chart.locator("p.note").text_content() == ""
    chart.get_by_label("errors to 100 %").uncheck()
    to_value(chart, "input", 600)
    chart.get_by_label("zoom in").click()
    chart.get_by_label("zoom in").click()
    ended = [run for curve in curves for run in curve.runs if run.record.status == "finished"]
    ends = [dict(run.points("test_error"))[60_000] for run in ended]
    assert min(ends) - 1 < ticks()[0] < ticks()[-1] < max(ends) + 1


def test_reported_errors_are_marked(chart: Any) -> None:
    (mark,) = chart.locator(".medians path.end").evaluate_all(
        "all => all.map(one => one.getCTM()).map(at => [at.e, at.f])"
    )[:1]
    frame = chart.locator(".plot rect.frame").evaluate(
        "r => ['x', 'y', 'width', 'height'].map(k => r[k].baseVal.value)"
    )
    assert mark[0] == pytest.approx(frame[0] + frame[2])
    assert (frame[1] + frame[3] - mark[1]) / frame[3] == pytest.approx(6.58 / 60, rel=0.01)  # of an axis to 60 %


def test_epochs_are_the_recipes(chart: Any) -> None:
    to_value(chart, "input", 319)
    chart.get_by_label("epochs").check()
    assert view(chart) == (0, 164)
    assert chart.locator("output").text_content().startswith("At iteration 32,000, epoch 81.9,")


def test_narrow_screens_need_no_sideways_scrolling(open_page: Callable[..., Any], file: Path, tmp_path: Path) -> None:
    text = file.read_text().replace('"original Residual Unit"', '"exclusive_gating_0_to_5 (gate_bias=-5)"')
    (tmp_path / "index.html").write_text(text)
    page = open_page(tmp_path / "index.html", viewport={"width": 360, "height": 700})
    drawn(page)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    texts = page.locator(".plot text").evaluate_all(
        "all => all.map(t => t.getBoundingClientRect()).map(r => [r.x, r.right])"
    )
    assert min(left for left, _ in texts) >= 0
    assert max(right for _, right in texts) <= 360


def test_print_draws_charts_that_were_never_in_view(open_page: Callable[..., Any], file: Path, tmp_path: Path) -> None:
    page = open_page(file, viewport={"width": 1000, "height": 100})
    assert page.locator(".plot svg").count() == 0
    page.pdf(path=tmp_path / "page.pdf")
    assert page.locator(".plot svg").count() == 1


def test_curves_differ_from_the_background_in_both_schemes(open_page: Callable[..., Any], file: Path) -> None:
    page = open_page(file)
    for scheme, is_dark in (("light", False), ("dark", True)):
        page.emulate_media(color_scheme=scheme)
        *colours, background = page.locator("figure.chart").first.evaluate(
            "f => ['c0', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7', 'chart-back'].map("
            "name => getComputedStyle(f).getPropertyValue(`--${name}`))"
        )
        assert len(set(colours)) == 8
        assert (luminance(background) < 0.5) == is_dark
        for colour in colours:
            light, dark = sorted((luminance(colour), luminance(background)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 3  # WCAG 2.2, success criterion 1.4.11


def luminance(colour: str) -> float:
    """Return the relative luminance of "#rgb" or "#rrggbb", by the definition of WCAG 2.2."""
    digits = colour.strip().lstrip("#")
    values = [int(digits[i] * 2 if len(digits) == 3 else digits[2 * i : 2 * i + 2], 16) / 255 for i in range(3)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_odd_histories_are_drawn_and_never_called_diverged(
    open_page: Callable[..., Any], file: Path, tmp_path: Path
) -> None:
    html = file.read_text(encoding="utf-8")
    (found,) = re.findall(r'<script type="application/json">(.*?)</script>', html)
    data = json.loads(found)
    finished, _, prefix = data["curves"]
    finished["loss"]["y"][3:5] = finished["runs"][0]["loss"]["y"][3:5] = [1e308, 1e-300]
    finished["loss"]["y"][-1] = None  # a loss that is no number, of runs that went on to their end
    for series in (prefix, *prefix["runs"]):
        series["loss"]["y"] = series["error"]["y"] = []
    (tmp_path / "index.html").write_text(html.replace(found, json.dumps(data)), encoding="utf-8")
    chart = drawn(open_page(tmp_path / "index.html"))
    _, (first, *_) = readout(chart)
    assert first[0] == "\u2013"
    (problem,) = chart.locator(".problem").all_text_contents()
    assert problem == "full pre-activation (prefix, to 8,000) has no line of history to draw."
    assert "Infinity" not in chart.inner_html()
    chart.get_by_role("button", name="zoom in").click()
    assert not re.search("Infinity|NaN", chart.inner_html())


def test_the_drawn_page_is_valid(open_page: Callable[..., Any], file: Path) -> None:
    page = open_page(file)
    drawn(page)
    html5lib.HTMLParser(strict=True).parse(page.content())


def test_a_net_whose_runs_all_diverged_has_no_values_at_the_end(
    open_page: Callable[..., Any], table2: Table, tmp_path: Path
) -> None:
    lost = records(table2, "bn_after_addition/resnet110", (inf, inf), iteration=20_000)
    make_store(tmp_path, [record(table2, "original/resnet110", 6.5), *lost])
    chart = drawn(open_page(make_page("table2", results=tmp_path).write(tmp_path / "page")))
    assert readout(chart)[1][1] == ["diverged", "diverged"]


def test_nets_of_other_lengths_and_batches_share_axes(
    open_page: Callable[..., Any], tables: dict[str, Table], tmp_path: Path
) -> None:
    rows = ("preact_resnet1001", "preact_resnet1001_batch64")  # of 64,000 and 156,200 iterations: 164 and 200 epochs
    make_store(tmp_path, [record(tables["table4"], f"{row}/cifar10", 4.8) for row in rows])
    chart = drawn(open_page(make_page("table4", results=tmp_path).write(tmp_path / "page")))
    shorter, longer = readout(chart)[1]
    assert shorter == ["\N{EN DASH}"] * 2
    assert re.fullmatch(r"[\d.]+", longer[0])
    chart.get_by_label("epochs").check()
    assert view(chart) == (0, 200)
