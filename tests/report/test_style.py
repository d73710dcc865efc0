"""Axes, titles and layout that all figures share."""

import pytest

from smimbench.report.charts import Chart, Panel, Series, draw


def drawn(panels):
    figure = draw(Chart("x", "title", panels))
    figure.draw_without_rendering()
    return figure


def line(y, x=(1.0, 2.0)):
    return Series("line", {"alpha": x, "value": y})


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
