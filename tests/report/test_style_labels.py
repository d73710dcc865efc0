"""Labels of figures of any width: none overlaps another, all have one size, and symbols are math italics."""

import itertools
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text

from smimbench.report.charts import Chart, Panel, Series, draw, page_figures, save
from smimbench.report.figures import metric_chart
from smimbench.report.style import math_text
from smimbench.run.answers import Answers
from smimbench.suite.reader import load_suite, parse_suite
from smimbench.theory.types import (
    Bifurcation,
    HardPhase,
    TheoryPoint,
    Threshold,
    Thresholds,
)
from tests.report.rows import row

SVG = "{http://www.w3.org/2000/svg}"
SUITES = (
    "quickstart",
    "smi-two-layers",
    "contenders",
    "aim-hardmax-tokens",
    "published",
)
WIDTHS = ("2in", "3.3in", "84mm", "page", "12in")


class Theory(Answers):
    """Errors that fall to 0, with every kind of threshold in the range that is drawn, without solving anything."""

    def thresholds(self, problem):
        one, two, three = (Threshold(alpha, 1e-9) for alpha in (0.08, 0.11, 0.15))
        return Thresholds(
            one, two, (Bifurcation(0, 0.09, 0.0),), HardPhase(one, two, three)
        )

    def points(self, problem, alphas):
        points = []
        for alpha in alphas:
            falls = np.linspace(1.0, 2.0, problem.components)
            mse = np.clip(1 - falls * alpha, 0.0, None)
            about = (mse, 0 * mse, 0 * mse, np.diag(1 - mse), "unique", "closed form")
            errors = dict.fromkeys(("bayes", "plugin", "constant"), 0.3)
            points.append([TheoryPoint(alpha, *about, errors, errors, "")])
        return points

    thresholds_or_empty = thresholds
    line = line_or_none = points


def synthetic_chart(name, metric):
    """The figure of a shipped suite with made-up rows at all its sample ratios, for all its algorithms."""
    suite, rows = load_suite(name), []
    for plan, algorithm in itertools.product(suite.chosen_plans, suite.algorithms):
        components = plan.problem.components
        for alpha, component in itertools.product(
            plan.alphas, range(1, components + 1)
        ):
            about = {
                "problem": plan.label,
                "algorithm": algorithm.label,
                "metric": metric,
                "own_theory": 0.2,
            }
            about["component"] = component if components > 1 else None
            identity = {"problem": {}, "algorithm": {"name": algorithm.spec["name"]}}
            rows.append(
                row(
                    **about,
                    identity=identity,
                    alpha=alpha,
                    mean=10.0 ** -(1 + 9 * alpha),
                    sem=1e-3,
                )
            )
    return metric_chart(suite, rows, Theory(), metric)


def visible_texts(figure):
    """Texts that are seen, without ticks outside of the axes."""
    figure.draw_without_rendering()
    outside = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick, at in zip(axis.get_major_ticks(), axis.get_majorticklocs()):
                outside |= {tick.label1} if not low <= at <= high else set()
    return [
        text
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip("\u200b") and text not in outside
        and (text.axes is None or text.axes.get_visible())
    ]  # fmt: skip


def overlaps(figure):
    """Pairs of texts whose boxes overlap by more than a pixel."""
    texts = visible_texts(figure)
    boxes = [text.get_window_extent() for text in texts]
    return [
        (one.get_text(), other.get_text())
        for (one, a), (other, b) in itertools.combinations(zip(texts, boxes), 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1
        and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
    ]


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SUITES)
def test_no_label_overlaps_another_and_none_is_cut(name, width):
    chart = synthetic_chart(name, "mse")
    figure = draw(replace(chart, panels=chart.panels[:6]), width=width)
    assert not overlaps(figure)
    for text in visible_texts(figure):
        box = text.get_window_extent()
        assert figure.bbox.x0 - 1 <= box.x0, text.get_text()
        assert box.x1 <= figure.bbox.x1 + 1, text.get_text()
    for axes in figure.axes:
        if axes.get_visible():
            for axis in (axes.xaxis, axes.yaxis):
                low, high = sorted(axis.get_view_interval())
                assert sum(low <= at <= high for at in axis.get_majorticklocs()) >= 2


@pytest.mark.parametrize(
    "ends", [(0.0992, 0.1001), (1e-7, 3.0), (1000.0, 1e6), (-0.05, 1.31)]
)
@pytest.mark.parametrize("width", ["2in", "3.3in", "7in"])
def test_ticks_of_any_range_have_room(ends, width):
    long = "claimed over real squared error"
    series = Series("line", {"alpha": ends, "value": [1e-5, 1e3]})
    panels = [
        Panel(
            f"{long}, d = 80",
            long,
            long,
            [series],
            xlog=ends[0] > 0,
            ylog=True,
            axis_floor=1e-4,
        ),
        Panel("b", "x", "y", [series]),
    ]
    assert not overlaps(
        draw(Chart("x", long, panels * 2, f"{long}. " * 4), width=width)
    )


@pytest.mark.slow
def test_letters_have_one_size_in_print_and_on_the_page(tmp_path):
    chart = synthetic_chart("quickstart", "overlap")
    path, *_ = save(chart, tmp_path, ("svg",), "3.3in")
    root = ElementTree.parse(path).getroot()
    sizes = {
        part.split()[0]
        for text in root.iter(f"{SVG}text")
        for part in text.get("style", "")
        .replace("font: ", "font-size: ")
        .split("font-size: ")[1:]
    }
    assert {size.rstrip(";") for size in sizes} == {"8px"}
    assert float(root.get("width").removesuffix("pt")) == pytest.approx(
        3.3 * 72, abs=1e-3
    )
    widths = {
        ElementTree.fromstring(figure.svg).get("width")
        for figure in page_figures(chart)
    }
    assert len(widths) == 1, "the page scales all to one width"


@pytest.mark.parametrize(
    ("text", "symbols"),
    [("sample ratio α", "α"), ("Softmax attention, T = 3, β = 2, ρ = 0.3", "Tβρ"), ("softmax (prior.rho=0.2)", "ρ"),
     ("(T² + T - 2) n / d²", "TTnd"), ("1 / D", "D"), ("layer 1", ""), ("a $x$ b", ""), ("Adam, a method", "")],
)  # fmt: skip
def test_symbols_are_in_math_italics(text, symbols):
    drawn = math_text(text).replace(r"\$", "")
    assert "".join(drawn.split("$")[1::2]) == symbols


def test_titles_are_words_of_the_items():
    text = """
[problem]
model = { name = "attention-indexed", tokens = 3 }
channel = { name = "softmax", beta = 2.0 }
prior = { name = "wishart", rho = [0.3, 0.5] }
[grid]
alpha = [0.1]
dimension = [20]
"""
    suite = parse_suite(Path("words.toml"), text)
    assert (
        metric_chart(suite, [], Theory(), "mse").title
        == "Softmax attention, T = 3, β = 2"
    )
    titled = parse_suite(Path("words.toml"), text + '[suite]\ntitle = "Mine"\n')
    assert metric_chart(titled, [], Theory(), "mse").title == "Mine"
    titles = [panel.title for panel in metric_chart(suite, [], Theory(), "mse").panels]
    assert titles == [
        f"Softmax attention, T = 3, β = 2, ρ = {rho}" for rho in (0.3, 0.5)
    ]
    named = parse_suite(
        Path("words.toml"), text.replace("[problem]", '[problem]\nlabel = "mine"')
    )
    first, _ = metric_chart(named, [], Theory(), "mse").panels
    assert (
        math_text(first.title).replace("\N{NO-BREAK SPACE}", " ") == "mine ($ρ$ = 0.3)"
    )


def test_panels_do_not_repeat_the_title_above_them():
    panels = [
        Panel(f"Linear labels, T = 2, Δ = {noise}", "x", "y", []) for noise in (1, 2)
    ]
    chart = Chart("chart", "Linear labels, T = 2", panels)
    for several, titles in (
        (chart, ["$Δ$ = 1", "$Δ$ = 2"]),
        (replace(chart, panels=panels[:1]), ["Linear labels, $T$ = 2, $Δ$ = 1"]),
        (chart.without_title(), [f"Linear labels, $T$ = 2, $Δ$ = {i}" for i in (1, 2)]),
    ):
        drawn = [axes.get_title().replace("\n", " ") for axes in draw(several).axes]
        assert [title.replace("\N{NO-BREAK SPACE}", " ") for title in drawn] == titles
