"""Axes, titles and layout that all figures share."""

import itertools

import pytest

from smimbench.report.charts import Chart, Panel, Series, draw


def drawn(panels):
    figure = draw(Chart("x", "title", panels))
    figure.draw_without_rendering()
    return figure


def line(y, x=(1.0, 2.0)):
    return Series("line", {"alpha": x, "value": y})


CHART = Chart(
    "one",
    "title",
    [Panel("", "", "", [Series("line", {"alpha": (1.0, 2.0), "value": (0, 1)}, {})])],
)


def test_no_tick_of_a_wide_axis_is_typeset_as_a_formula():
    (axis,) = drawn([Panel("", "", "", [line([1, 2], [1e-4, 1e3])], xlog=True)]).axes
    texts = [label.get_text() for label in axis.get_xticklabels()]
    assert {"0.01", "1"} <= set(texts)
    assert not any("$" in text for text in texts)


@pytest.mark.parametrize(
    "ends",
    [(0.13, 1.9), (0.3, 2.5), (0.011, 0.9), (1.0, 9.0), (1e-5, 1e3), (9.0, 130.0)],
)
def test_every_logarithmic_axis_has_ticks_that_tell_its_scale(ends):
    (axis,) = drawn([Panel("", "", "", [line(ends)], ylog=True)]).axes
    low, high = axis.get_ylim()
    assert 2 <= len([tick for tick in axis.get_yticks() if low <= tick <= high]) <= 8


@pytest.mark.parametrize("high", [1e-3, 0.7, 3.0])
@pytest.mark.parametrize("floor", [1e-10, 1e-7, 1e-4])
def test_the_end_of_an_axis_says_that_it_stands_for_all_that_is_smaller(floor, high):
    (axis,) = drawn([Panel("", "", "", [line([high, 0.0])], floor=floor)]).axes
    low, high = axis.get_ylim()
    ticks = [
        tick.label1
        for tick in axis.yaxis.get_major_ticks()
        if low <= tick.get_loc() <= high
    ]
    assert ticks[0].get_text() == f"≤ {floor:g}"
    boxes = [tick.get_window_extent() for tick in ticks]
    assert 2 <= len(boxes) <= 7
    assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))
    assert axis.lines[0].get_ydata().min() == floor


def test_a_long_title_is_broken_and_meets_no_other():
    title = "a problem whose name is longer than its panel is wide, α = 0.12, d = 80"
    figure = drawn([Panel(title, "", "", [line([0, 1])]) for _ in range(3)])
    for axis in figure.axes:
        for words in axis.get_title().splitlines():
            assert not words.startswith(("=", "0.12", "80"))
    boxes = [axis.title.get_window_extent() for axis in figure.axes]
    assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))
    assert min(box.x0 for box in boxes) >= 0
    assert max(box.x1 for box in boxes) <= figure.bbox.width
