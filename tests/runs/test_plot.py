"""Plots: axes that hold everything, and a picture that differs where the curves do."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from arpo.runs.plot import COLOURS, Series, save_plot, ticks


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_ticks_are_few_rise_evenly_and_hold_both_ends(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    found = ticks(low, high)
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    assert 2 <= len(found) <= 8
    assert found[0] <= low + slack and found[-1] >= high - slack
    steps = np.diff(found)
    assert (steps > 0).all() and np.allclose(steps, steps[0], rtol=1e-3)


def test_each_series_is_drawn_in_its_own_colour_and_a_band_lies_around_it(tmp_path: Path) -> None:
    x, y = [1.0, 2.0, 3.0], [0.1, 0.5, 0.3]
    plain, banded = tmp_path / "plain.png", tmp_path / "banded.png"
    save_plot(plain, [Series("one", x, y), Series("two", x, [0.6, 0.7, 0.8])], "update", "success")
    pixels = np.asarray(Image.open(plain)).reshape(-1, 3).astype(int)
    for colour in COLOURS[:2]:
        assert (np.abs(pixels - colour).sum(axis=1) < 20).sum() > 100
    save_plot(banded, [Series("one", x, y, [0.0, 0.4, 0.2], [0.2, 0.6, 0.4])], "update", "success")
    tinted = np.asarray(Image.open(banded)).reshape(-1, 3)
    assert ((tinted[:, 2] > 240) & (tinted[:, 0] < 230) & (tinted[:, 0] > 190)).sum() > 5000


def test_a_band_hides_no_line(tmp_path: Path) -> None:
    x = [1.0, 2.0]
    series = [Series("under", x, [0.5, 0.5]), Series("over", x, [0.9, 0.9], [0.0, 0.0], [1.0, 1.0])]
    save_plot(tmp_path / "plot.png", series, "update", "success")
    pixels = np.asarray(Image.open(tmp_path / "plot.png")).reshape(-1, 3).astype(int)
    assert (np.abs(pixels - COLOURS[0]).sum(axis=1) < 20).sum() > 500


def test_one_point_can_be_shown_and_nothing_cannot(tmp_path: Path) -> None:
    save_plot(tmp_path / "one.png", [Series("one", [1.0], [0.5], [0.4], [0.6])], "update", "success")
    with pytest.raises(ValueError, match="a plot of nothing"):
        save_plot(tmp_path / "none.png", [], "update", "success")


def height_of(line: Series, share: bool, path: Path) -> float:
    """How far up, of the whole picture, a level line is drawn."""
    save_plot(path, [line], "update", "success", share=share)
    pixels = np.asarray(Image.open(path)).astype(int)[:, 200:]  # beyond the name of the series
    rows = np.flatnonzero((np.abs(pixels - COLOURS[0]).sum(axis=2) < 20).sum(axis=1) > 300)
    return 1 - float(rows.mean()) / pixels.shape[0]


def test_shares_are_drawn_from_0_to_1_however_small_they_are(tmp_path: Path) -> None:
    def at(value: float, share: bool = True) -> float:
        return height_of(Series("one", [1.0, 2.0], [value, value]), share, tmp_path / "plot.png")

    assert at(0.5) - at(0.0) == pytest.approx(at(1.0) - at(0.5), abs=0.01)
    assert at(0.1) - at(0.0) == pytest.approx((at(1.0) - at(0.0)) / 10, abs=0.01)
    assert at(0.1, share=False) == pytest.approx(at(1.0, share=False), abs=0.01)  # else the axis ends where they do


def test_a_band_of_shares_that_leaves_them_stays_inside_the_axes(tmp_path: Path) -> None:
    wide = Series("one", [1.0, 2.0], [0.5, 0.5], [-0.8, -0.8], [1.8, 1.8])
    narrow = Series("one", [1.0, 2.0], [0.5, 0.5], [0.0, 0.0], [1.0, 1.0])
    for series, name in ((wide, "wide.png"), (narrow, "narrow.png")):
        save_plot(tmp_path / name, [series], "update", "success", share=True)
    assert (tmp_path / "wide.png").read_bytes() == (tmp_path / "narrow.png").read_bytes()
