"""Axes, titles and layout that all figures share."""

import itertools

import pytest

from smimbench.report.style import (
    decades_to_zero,
    finish,
    floor_line,
    log_axis,
    new_figure,
    panel_title,
    power_of_ten,
    save_figure,
)


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "10⁰"), (1e-3, "10⁻³"), (1e12, "10¹²"), (0.0, ""), (float("nan"), "")]
)
def test_powers_of_ten_are_written_as_letters(value, text):
    assert power_of_ten(value) == text


def test_no_tick_of_a_wide_axis_is_typeset_as_a_formula():
    _, (axis,) = new_figure("", 1)
    axis.plot([1e-4, 1e3], [1, 2])
    log_axis(axis, "x")
    axis.figure.draw_without_rendering()
    texts = [label.get_text() for label in axis.get_xticklabels()]
    assert "10⁰" in texts
    assert not any("$" in text for text in texts)


@pytest.mark.parametrize("floor", [1e-10, 1e-7, 5e-4])
def test_no_decade_is_written_over_the_zero_of_an_axis(floor):
    figure, (axis,) = new_figure("", 1)
    axis.plot([1, 2], [1.0, 0.1])
    decades_to_zero(axis, floor, 3.0)
    finish(figure, [axis])
    renderer = figure._get_renderer()
    zero = next(text for text in axis.texts if text.get_text() == "0").get_window_extent(renderer)
    low, high = axis.get_ylim()
    ticks = [tick.label1 for tick in axis.yaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    assert ticks
    assert not [tick.get_text() for tick in ticks if tick.get_window_extent(renderer).overlaps(zero)]


def test_a_long_title_is_broken_and_meets_no_other():
    figure, axes = new_figure("", 3)
    for axis in axes:
        axis.plot([0, 1], [0, 1])
        panel_title(axis, "a problem whose name is longer than its panel is wide, α = 0.12, d = 80")
        for line in axis.get_title().splitlines():
            assert not line.startswith(("=", "0.12", "80"))
    finish(figure, axes)
    renderer = figure._get_renderer()
    boxes = [axis.title.get_window_extent(renderer) for axis in axes]
    assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))
    assert min(box.x0 for box in boxes) >= 0
    assert max(box.x1 for box in boxes) <= figure.bbox.width


def test_a_figure_is_laid_out_once_for_all_its_files(tmp_path, monkeypatch):
    figure, (axis,) = new_figure("", 1)
    axis.plot([0, 1], [0, 1], label="line")
    finish(figure, [axis])
    engine, calls = type(figure.get_layout_engine()), []
    execute = engine.execute
    monkeypatch.setattr(engine, "execute", lambda self, fig: (calls.append(1), execute(self, fig)))
    paths = save_figure(figure, tmp_path, "one", [{"x": 1}])
    assert [path.suffix for path in paths] == [".png", ".svg", ".pdf", ".csv"]
    assert len(calls) == 1


def test_the_layout_is_that_of_the_figure_whatever_the_user_has_set(tmp_path):
    import matplotlib

    files = []
    for on in (False, True):
        with matplotlib.rc_context({"figure.autolayout": on}):
            figure, (axis,) = new_figure("title", 1)
            axis.plot([0, 1], [0, 1], label="line")
            floor_line(axis, 0.5)
            finish(figure, [axis])
            files.append(save_figure(figure, tmp_path, f"figure-{on}")[1].read_bytes())
    assert files[0] == files[1]
