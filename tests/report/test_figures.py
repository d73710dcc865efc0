"""Figures: one look per algorithm, theory that is smooth, labels next to the data, and the data next to the figure."""

import csv
import itertools

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

import smimbench
from smimbench.registry.registry import BUILT_IN, get_registry
from smimbench.report import theory_lines
from smimbench.report.charts import Chart, Panel, Series, draw, save
from smimbench.report.figures import metric_chart, theory_charts, varied_parameter
from smimbench.report.results import Results
from smimbench.report.run_figures import seconds_chart
from smimbench.report.style import COLORS, looks
from smimbench.report.theory_lines import Line, chart_questions, smooth
from smimbench.run.store import Store
from smimbench.run.theory_solver import TheorySolver
from smimbench.suite.reader import load_suite
from smimbench.theory.types import Bifurcation, HardPhase, Threshold, Thresholds
from tests.helpers import ATTENTION, SUITE, loaded, output, theory_point, write_suite
from tests.report.rows import row

TEXT = (
    ATTENTION.replace("[0.1, 0.3]", "[0.1, 0.15, 0.3]")
    + '[[algorithms]]\nname = "adam"\nsteps = 20\n'
)

THEORY = TheorySolver()
"""What one test has solved, another does not solve again."""


IDENTITY = {"problem": {}, "algorithm": {"name": "gamp"}}


def gamp(**numbers):
    """A row of GAMP on the small suite."""
    about = {"problem": "line", "own_theory": None, "identity": IDENTITY}
    return row(**about | numbers)


@pytest.fixture
def small(tmp_path):
    return loaded(tmp_path)


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A suite whose theory reaches 0, run once: suite, store, pairs, rows, folder of figures, paths, figures."""
    folder = tmp_path_factory.mktemp("figures")
    path = write_suite(folder, TEXT)
    smimbench.run(path, results=folder / "results")
    found = Results(
        load_suite(path), Store(folder / "results" / "small"), answers=THEORY
    )
    suite, rows, cache = found.suite, found.rows, found.answers
    made, savefig = [], Figure.savefig
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Figure,
            "savefig",
            lambda self, *a, **k: (
                made.append(self),
                k["format"] == "svg" and savefig(self, *a, **k),
            ),
        )
        paths = [
            p
            for m in suite.run.metrics
            for p in save(metric_chart(suite, rows, cache, m), folder / "figures")
        ]
        paths += save(seconds_chart(found), folder / "figures")
    return suite, rows, folder / "figures", paths, made[::3]


def test_an_algorithm_looks_the_same_in_every_suite():
    one = looks({"gamp": "gamp", "adam": "adam", "mine": "my-own"})
    other = looks(
        {"adam fast": "adam", "adam": "adam", "mine": "my-own", "other": "another"}
    )
    assert one["adam"] == other["adam"]
    assert one["mine"] == other["mine"]
    assert (
        len({look.color for look in other.values()})
        == len({look.marker for look in other.values()})
        == 4
    )
    shipped = [
        entry.name
        for entry in get_registry().entries("algorithm")
        if entry.distribution == BUILT_IN
    ]
    assert [
        looks({name: name})[name].color for name in shipped[: len(COLORS)]
    ] == COLORS


def test_smooth_theory_goes_through_its_points_and_overshoots_nowhere():
    x = np.array([0.1, 0.2, 0.3, 0.5, 0.6, 0.9])
    y = np.array([1.0, 1.0, 0.8, 0.1, 0.0, 0.0])
    line = smooth(Line(x, y, 0 * y), [])
    assert np.allclose(np.interp(x, line.alpha, line.value), y, atol=5e-3)
    assert (np.diff(line.value) <= 1e-12).all()
    broken = smooth(Line(x, y, 0 * y), [0.55])
    between = (broken.alpha > 0.5) & (broken.alpha < 0.6)
    assert not between.any(), (
        "a line across the threshold says something that is not known"
    )
    assert np.isnan(broken.value[broken.alpha == 0.6]).any()


def test_where_theory_reaches_zero_the_axis_ends_where_tables_print_zero(results):
    """A single run that recovers everything does not stretch the axis over ten decades: it is a triangle at its end."""
    suite, rows, _, _, figures = results
    error, overlap, *_ = figures
    (axis, *_) = error.axes
    assert axis.get_yscale() == "log"
    assert overlap.axes[0].get_yscale() == "linear"
    means = [one.estimate.mean for one in rows if one.metric == "mse"]
    floor = suite.run.target
    assert min(means) < floor / 100
    assert floor / 2 < axis.get_ylim()[0] < floor
    triangles = [line for line in axis.lines if line.get_marker() == "v"]
    assert len(triangles) == sum(mean < floor for mean in means)
    assert [text.get_text() for text in axis.texts] == ["below"]
    assert axis.get_yticklabels()[0].get_text() == f"≤ {floor:g}"


def test_every_mark_stands_at_its_sample_ratio_and_none_is_cut_off(results):
    _, rows, _, _, figures = results
    for axis, metric in ((figures[0].axes[0], "mse"), (figures[1].axes[0], "overlap")):
        low, high = axis.get_ylim()
        left, right = axis.get_xlim()
        own = [one for one in rows if one.metric == metric]
        for one in own:
            assert one.estimate.mean < high
            assert left < one.place.alpha < right
        marks = [one for one in axis.collections if isinstance(one, PathCollection)]
        shown = {
            round(float(x), 9)
            for one in marks
            for x, y in one.get_offsets()
            if low < y < high
        }
        shown |= {
            round(float(line.get_xdata()[0]), 9)
            for line in axis.lines
            if line.get_marker() == "v"
        }
        assert shown == {round(one.place.alpha, 9) for one in own}


def test_of_several_dimensions_the_largest_is_shown(small):
    rows = [gamp(alpha=0.5, dimension=n, mean=1 / n) for n in (50, 200, 100)]
    (panel,) = metric_chart(small, rows, THEORY, "mse").panels
    assert panel.title == "line, D = 200"
    assert [one["value"] for one in panel.series[-1].rows] == [1 / 200]
    # Whoever was run at a smaller one only is shown there: nobody is dropped.
    rows.append(gamp(alpha=0.5, algorithm="adam", dimension=50, mean=0.3))
    (panel,) = metric_chart(small, rows, THEORY, "mse").panels
    assert panel.title == "line, D = 50 to 200"
    assert sorted(
        one["value"] for one in Chart("", "", [panel]).rows if one["what"] == "runs"
    ) == [1 / 200, 0.3]


@pytest.mark.parametrize(("width", "inches"), [("column", 3.4), ("page", 7.0)])
@pytest.mark.parametrize("panels", [1, 5])
def test_a_figure_is_as_wide_as_asked_with_letters_of_eight_points(
    width, inches, panels
):
    line = Series("a line", {"alpha": [1, 2], "value": [0.001, 1]})
    chart = Chart(
        "x",
        "A title that is longer than a column is wide, or so it seems",
        [Panel("p", "x", "y", [line])] * panels,
    )
    figure = draw(chart, width=width)
    figure.draw_without_rendering()
    assert figure.get_figwidth() == inches
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text():
            assert text.get_fontsize() >= 8, text.get_text()
    box = figure.get_tightbbox()
    assert box.x0 >= -0.01
    assert box.x1 <= inches + 0.01


def test_a_followed_curve_is_drawn_densely(tmp_path):
    """Between two sample ratios the line is the curve that thresholds have followed, not a straight one."""
    text = SUITE.replace(
        '"linear", noise = 0.2', '"linear", components = 2, noise = 0.2'
    )
    suite = loaded(tmp_path, text)
    solver = TheorySolver()
    metrics, answers = ("overlap", "generalization_error_bayes"), solver.answers
    solver.answer(chart_questions(suite, answers, metrics))
    for metric in metrics:
        found = metric_chart(suite, [], answers, metric).rows
        lines = {}
        for entry in found:
            if entry["what"] != "threshold":
                line = lines.setdefault(entry["component"], {})
                line[entry["alpha"]] = entry["value"]
        assert all(len(line) > 100 for line in lines.values())
        if metric == "overlap":
            assert set(lines) == {1, 2}
            middle = sorted(lines[1])[60]
            (point, *_) = solver.points(suite.plans[0].problem, [middle])[0]
            assert lines[1][middle] == pytest.approx(point.overlap[0, 0], rel=1e-12)


def test_the_data_lie_beside_every_figure(results):
    _, rows, folder, paths, _ = results
    assert {path.suffix for path in paths} == {".png", ".svg", ".pdf", ".csv"}
    found = read(folder / "mse.csv")
    drawn = {
        (e["algorithm"], float(e["alpha"])): float(e["value"])
        for e in found
        if e["what"] == "runs"
    }
    assert drawn == {
        (r.place.algorithm, r.place.alpha): r.estimate.mean
        for r in rows
        if r.metric == "mse"
    }
    theory = [
        (float(e["alpha"]), float(e["value"]))
        for e in found
        if e["what"] == "Bayes-optimal"
    ]
    assert len(theory) > 100


@pytest.mark.slow
@pytest.mark.usefixtures("svg_alone")
def test_theory_alone_is_drawn_with_a_phase_diagram(tmp_path, capsys):
    text = ATTENTION.replace("rho = 0.5", "rho = [0.2, 0.5, 1.0]").partition(
        "[[algorithms]]"
    )[0]
    suite = write_suite(tmp_path, text.replace('label   = "softmax"\n', ""))
    out = output(capsys, "theory", suite, "--figure", "--results", tmp_path / "r")
    folder = tmp_path / "r" / "small" / "figures"
    assert {path.stem for path in folder.iterdir()} == {
        "theory-mse",
        "theory-overlap",
        "phases",
    }
    assert str(folder / "phases.png") in out
    found = [e for e in read(folder / "phases.csv") if e["what"] == "perfect recovery"]
    assert {float(e["prior.rho"]) for e in found} == {0.2, 0.5, 1.0}
    plans = load_suite(suite).plans
    assert varied_parameter(plans) == ("prior.rho", [0.2, 0.5, 1.0])
    assert varied_parameter(plans[:2]) is None
    assert (
        len(theory_charts(load_suite(suite), TheorySolver(tmp_path / "r" / "theory")))
        == 3
    )


@pytest.mark.parametrize(
    ("alphas", "bars"), [([0.8], True), ([0.5, 1.0], True), ([0.5, 0.7, 1.0], False)]
)
def test_theory_at_one_or_two_points_has_no_line(tmp_path, monkeypatch, alphas, bars):
    """A straight line through two points would say something of what lies between; three give a curve."""
    monkeypatch.setattr(theory_lines, "is_cheap", lambda problem: False)
    own = {
        "own_theory": 0.7,
        "own_theory_error": 0.01,
        "bayes": 0.6,
        "identity": {"problem": {}, "algorithm": {"name": "gamp"}},
    }
    rows = [
        row(**own, problem="line", alpha=alpha, mean=0.7, sem=0.01) for alpha in alphas
    ]
    suite = loaded(tmp_path, SUITE.replace("[0.5, 1.0]", str(alphas)))
    found = metric_chart(suite, rows, THEORY, "mse")
    (axis,) = draw(found).axes
    labels = axis.get_legend_handles_labels()[1]
    assert {"Bayes-optimal", "predicted"} <= set(labels)
    lines = [
        line
        for line in axis.lines
        if line.get_linestyle() in ("-", "--") and len(line.get_xdata()) > 1
    ]
    marks = [
        list(one.get_offsets()[:, 0])
        for one in axis.collections
        if one.get_label() in ("Bayes-optimal", "predicted")
    ]
    assert bool(lines) is not bars
    assert marks == ([alphas, alphas] if bars else [])
    assert (
        "bars at one or two sample ratios: theory of the Bayes-optimal" in found.caption
    )


class Theory(TheorySolver):
    """Two branches between 1 and 1.5, as of phase retrieval: from an uninformed start the error falls later."""

    FOUND = Thresholds(
        Threshold(0.5, 0.0),
        Threshold(1.0, 0.0),
        (Bifurcation(0, 0.5, 0.0), Bifurcation(1, 0.8, 0.0)),
        HardPhase(Threshold(0.9, 0.0), Threshold(1.0, 0.0), Threshold(1.5, 0.0)),
    )

    def thresholds(self, problem):
        return self.FOUND

    thresholds_or_empty = thresholds

    def points(self, problem, alphas):
        return [
            [theory_point(1.0, error, branch=name) for name, error in branches]
            for branches in (
                [("unique", 1 - alpha / 4)]
                if alpha < 1
                else [("informed", 0.0), ("uninformed", 1 - alpha / 4)]
                if alpha < 1.5
                else [("unique", 0.0)]
                for alpha in alphas
            )
        ]

    line = line_or_none = points


def test_both_branches_are_drawn_and_every_threshold_has_its_name(tmp_path):
    suite = loaded(tmp_path, SUITE.replace("[0.5, 1.0]", "[0.3, 1.0, 1.8]"))
    found = metric_chart(suite, [], Theory(), "mse")
    (axis,) = draw(found).axes
    handles = dict(zip(*reversed(axis.get_legend_handles_labels())))
    dashed = handles["uninformed branch (reached by algorithms)"]
    assert dashed.get_linestyle() == "--"
    assert dashed.get_xdata().min() == pytest.approx(1.0, rel=1e-3)
    assert dashed.get_xdata().max() == pytest.approx(1.5, rel=1e-3)
    assert dashed.get_ydata()[:-1] == pytest.approx(1 - dashed.get_xdata()[:-1] / 4)
    drawn = {entry["what"] for entry in found.rows}
    assert {
        "Bayes-optimal",
        "uninformed branch (reached by algorithms)",
        "threshold",
    } <= drawn
    assert set(handles) >= {
        "weak recovery", "component 2 learned", "perfect recovery (informed)", "perfect recovery (uninformed)", "spinodal"
    }  # fmt: skip
    assert "hard phase" in handles


def test_labels_of_ticks_do_not_meet(tmp_path):
    """Sample ratios that differ in their third digit have labels that are long."""
    text = SUITE.replace("[0.5, 1.0]", "[0.0992, 0.1]").replace(
        "noise = 0.2", "noise = [0.2, 0.3, 0.4]"
    )
    (axis, *_) = draw(
        metric_chart(load_suite(write_suite(tmp_path, text)), [], THEORY, "mse")
    ).axes
    axis.figure.draw_without_rendering()
    labels = [
        tick.label1.get_window_extent()
        for tick in axis.xaxis.get_major_ticks()
        if tick.label1.get_text()
    ]
    shown = [
        box for box in labels if axis.bbox.x0 <= (box.x0 + box.x1) / 2 <= axis.bbox.x1
    ]
    assert len(shown) >= 2
    assert all(
        one.x1 + one.height < other.x0 for one, other in itertools.pairwise(shown)
    )
