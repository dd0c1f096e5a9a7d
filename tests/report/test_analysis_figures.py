"""Pictures of analyses: what matplotlib draws, beside the records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paperbench.analysis.record import Analysis
from paperbench.errors import PaperbenchError
from paperbench.report.analyses import Analyses
from paperbench.report.analysis_figures import draw, to_bytes
from paperbench.report.figures import PAGE
from tests.report.made_analyses import made, with_everything

SEEDS = Analyses(with_everything(made(seed=seed)) for seed in (0, 1, 2))
NET = SEEDS[0].net


@pytest.fixture(scope="module")
def drawn() -> Figure:
    return draw(SEEDS)


def without_channels(*analyses: Analysis) -> Analyses:
    return Analyses(replace(one, channels=()) for one in analyses)


def line(figure: Figure, gid: str) -> np.ndarray:
    (found,) = (line for axes in figure.axes for line in axes.lines if line.get_gid() == gid)
    return np.array(found.get_xydata())


def titled(figure: Figure, title: str) -> Axes:
    (found,) = (axes for axes in figure.axes if axes.get_title().replace("\n", " ").startswith(title))
    return found


def test_extreme_numbers_are_drawn() -> None:
    one, other = made(), made("original_resnet20")
    odd = replace(one, channels=((-1e300, 1e300), *one.channels[1:]))
    draw(Analyses([odd]), Analyses([other])).draw_without_rendering()
    for value in (-1e301, 1e301):
        with pytest.raises(ValueError, match="equal to"):
            replace(one, output_gradient=value)


@pytest.mark.parametrize("column", ["signal_norm", "residual_norm", "gradient_norm", "direct_norm"])
def test_lines_are_the_columns_and_their_medians(drawn: Figure, column: str) -> None:
    last = {"signal_norm": [3.5], "residual_norm": []}.get(column, [0.125])
    columns = np.array([[*getattr(one.passes, column), *last] for one in SEEDS])
    for one, values in zip(SEEDS, columns, strict=True):
        found = line(drawn, f"{column} of {NET}, seed {one.seed}")
        np.testing.assert_array_equal(found, np.stack([np.arange(len(values)), values], 1))
    np.testing.assert_array_equal(line(drawn, f"{column} of {NET}")[:, 1], np.median(columns, axis=0))


def test_norms_have_a_logarithmic_axis(drawn: Figure) -> None:
    assert {titled(drawn, title).get_yscale() for title in ("signal", "residual", "gradient, norm", "its part")} == {
        "log"
    }


@pytest.mark.parametrize("name", ["largest", "rms", "condition"])
def test_singular_values_are_those_of_units_and_chains(drawn: Figure, name: str) -> None:
    one = SEEDS[1]
    assert one.jacobians
    for what, spectra in (("units", one.jacobians.units), ("chains", one.jacobians.chains)):
        expected = [spectrum.largest[0] if name == "largest" else getattr(spectrum, name) for spectrum in spectra]
        found = line(drawn, f"{name} of {what} of {NET}, seed 1")
        np.testing.assert_array_equal(found[:, 1], expected)
    assert list(found[:, 0]) == [1, 2, 4, 9]


def test_paths_and_units_left_out_are_drawn(drawn: Figure) -> None:
    one = SEEDS[2]
    assert one.paths
    assert one.left_out
    np.testing.assert_array_equal(line(drawn, f"path norms of {NET}, seed 2")[:, 1], one.paths.norm)
    np.testing.assert_array_equal(line(drawn, f"path shares of {NET}, seed 2")[:, 1], one.paths.share)
    np.testing.assert_array_equal(line(drawn, f"left out of {NET}")[:, 1], one.left_out.without)
    assert set(line(drawn, f"whole left out of {NET}")[:, 1]) == {7.0}


def test_what_was_not_measured_is_not_drawn() -> None:
    titles = [axes.get_title() for axes in draw(without_channels(made())).axes]
    assert len(titles) == 4
    assert not any("chains" in title or "path" in title or "channels" in title for title in titles)


def test_stages_begin_at_vertical_lines(drawn: Figure) -> None:
    borders = [one for one in titled(drawn, "signal").lines if one.get_gid() == "stage"]
    assert [np.array(one.get_xydata())[0, 0] for one in borders] == [3, 6]


def test_many_nets_are_split_and_all_drawn() -> None:
    nets = [made(f"net{n}", stages=(2, 2, 2)) for n in range(7)]
    figure = draw(without_channels(*nets))
    assert len(figure.axes) == 2 * 4
    for one in nets:
        np.testing.assert_array_equal(line(figure, f"signal_norm of {one.net}")[:-1, 1], one.passes.signal_norm)


def test_channels_are_a_picture_of_their_median(drawn: Figure) -> None:
    (image,) = titled(drawn, f"channels, {NET}").images
    found: np.ndarray = np.ma.filled(np.ma.asarray(image.get_array(), dtype=float), np.nan)
    assert found.shape == (8, 9)
    for unit in range(9):
        expected = np.median([one.channels[unit] for one in SEEDS], axis=0)
        np.testing.assert_array_equal(found[: len(expected), unit], expected)
        assert np.isnan(found[len(expected) :, unit]).all()


def test_difference_is_that_of_the_channels() -> None:
    one, other = made(), made("original_resnet20")
    figure = draw(Analyses([one]), Analyses([other]))
    (image,) = titled(figure, f"channels, {one.net} minus {other.net}").images
    found: np.ndarray = np.ma.asarray(image.get_array())
    for unit in range(9):
        expected = np.subtract(one.channels[unit], other.channels[unit])
        np.testing.assert_array_equal(found[: len(expected), unit], expected)
    low, high = image.get_clim()
    assert high
    assert low == -high


@pytest.mark.parametrize(
    ("of", "minus", "message"),
    [
        ([made()], [made("deep", stages=(4, 4, 4))], "different units or channels"),
        ([made()], [made()], "two nets"),
        ([made(), made("other")], [made("original_resnet20")], "two nets"),
    ],
)
def test_difference_of_what_are_not_two_nets_of_one_shape_is_refused(
    of: list[Analysis], minus: list[Analysis], message: str
) -> None:
    with pytest.raises(PaperbenchError, match=message):
        draw(Analyses(of), Analyses(minus))


@pytest.mark.filterwarnings("error")
def test_only_zeros_have_a_linear_axis() -> None:
    zero = (0.0,) * 9
    passes = replace(made().passes, direct_norm=zero, signal_norm=zero)
    nothing = made(passes=passes, output_gradient=0.0, channels=tuple((0.0,) * 2 for _ in range(9)))
    figure = draw(Analyses([nothing]))
    figure.draw_without_rendering()
    assert [axes.get_yscale() for axes in figure.axes[:4]] == ["log", "log", "log", "linear"]


def test_pictures_have_the_width_of_a_page(drawn: Figure) -> None:
    assert drawn.get_figwidth() == PAGE


@pytest.mark.full
def test_pictures_have_the_same_bytes_each_time() -> None:
    some = without_channels(made(stages=(1, 1, 1)))
    assert to_bytes(draw(some), "svg") == to_bytes(draw(some), "svg")


def test_no_text_leaves_the_picture() -> None:
    names = [f"original_resnet1202_with_a_long_name(shortcut='conv', depth={n})" for n in (8, 14)]
    figure = draw(Analyses(map(made, names)))
    figure.draw_without_rendering()
    width, height = figure.bbox.size
    texts = [axes.title for axes in figure.axes] + [axes.xaxis.label for axes in figure.axes]
    for text in [*texts, *(text for part in figure.subfigs for box in part.legends for text in box.get_texts())]:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= width
        assert box.y0 >= 0
        assert box.y1 <= height, text.get_text()
