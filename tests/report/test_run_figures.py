"""Courses of learning: what is on the axes, where the Bayes-optimal line goes, and when nothing is drawn."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.testing import assert_allclose

import smimbench
from smimbench.report.charts import save
from smimbench.report.results import Results
from smimbench.report.run_figures import FLOOR, learning_charts
from smimbench.run.store import Store
from smimbench.run.theory_solver import TheorySolver
from smimbench.suite.reader import load_suite
from tests.helpers import ATTENTION, LINE, suite_text, write_suite

pytestmark = pytest.mark.usefixtures("svg_alone")

D = 30
LEARNERS = """
[[algorithms]]
name = "adam"
batch = 20
epochs = 4
[[algorithms]]
name = "adam"
label = "online"
online = true
batch = 20
steps = 30
"""
ALONE = ATTENTION.partition("[[algorithms]]")[0]


@pytest.fixture
def drawn(monkeypatch):
    """Figures as they are saved."""
    figures = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure,
        "savefig",
        lambda self, *a, **k: (figures.append(self), save(self, *a, **k)),
    )
    return figures


def draw(tmp_path, text):
    path = write_suite(tmp_path, text)
    smimbench.run(path, results=tmp_path / "results")
    suite = load_suite(path)
    store = Store(tmp_path / "results" / "small")
    results = Results(suite, store, answers=TheorySolver())
    paths = [
        path
        for chart in learning_charts(results)
        for path in save(chart, tmp_path / "figures")
    ]
    return suite, store, results.pairs, paths


def lines_of(axis):
    return {
        line.get_label(): line
        for line in axis.lines
        if not line.get_label().startswith("_")
    }


@pytest.mark.slow
def test_lines_are_the_median_of_the_runs_and_the_best_with_as_many_samples(
    tmp_path, drawn
):
    suite, store, pairs, paths = draw(tmp_path, ALONE + LEARNERS)
    assert [path.name for path in paths] == [
        f"learning-{metric}.{kind}"
        for metric in ("mse", "overlap")
        for kind in ("png", "svg", "pdf", "csv")
    ]
    axes = [axis for axis in drawn[0].axes if axis.get_visible()]
    assert len(axes) == 2
    problem = suite.plans[0].problem
    answers = TheorySolver()
    for axis, alpha in zip(axes, (0.1, 0.3)):
        n = round(alpha * D * D)
        lines = lines_of(axis)
        assert set(lines) == {
            "Bayes-optimal",
            "Bayes-optimal, fresh samples",
            "adam",
            "online",
            "predicted",
            "every sample once",
            FLOOR,
        }
        passes, errors = lines[FLOOR].get_data()
        floor = answers.floor(problem, problem.model.sample_ratio(n, D))
        assert passes[0] == n
        assert_allclose(errors, floor.after(passes / n))
        for label, steps in (("adam", 4 * -(-n // 20)), ("online", 30)):
            runs = [
                store.trajectory(record)
                for cell, record in pairs
                if cell.algorithm_label == label and cell.alpha == alpha
            ]
            x, y = lines[label].get_data()
            assert x[0] == 20
            assert x[-1] == (4 * n if label == "adam" else 20 * steps)
            assert y[-1] == pytest.approx(
                np.median([run["mse"][-1, 0] for run in runs]), rel=1e-12
            )
        assert lines["every sample once"].get_xdata()[0] == n
        x, y = lines["Bayes-optimal"].get_data()
        assert list(x) == [20, max(4 * n, 600)]
        assert y[0] == y[-1] == problem_error(problem, n)
        x, y = lines["Bayes-optimal, fresh samples"].get_data()
        assert (x[0], x[-1]) == pytest.approx((20, 600))
        for k in (0, 13, 27, 39):
            assert y[k] == problem_error(problem, round(x[k]))


def problem_error(problem, n):
    """Where it is 0, the line runs along the end of the axis."""
    return pytest.approx(
        max(TheorySolver().points(problem, [n / D**2])[0][0].mse[0], 1e-3), rel=1e-9
    )


@pytest.mark.slow
def test_components_have_a_line_each(tmp_path, drawn):
    problem = LINE.replace("noise = 0.2", "components = 2, noise = 0.3")
    sgd = 'name = "sgd"\nepochs = 3\nbatch = 10\nlearning_rate = 0.02'
    text = (
        suite_text(problem, [2.0], 20, 3, sgd) + '[run]\nmetrics = ["overlap", "mse"]\n'
    )
    draw(tmp_path, text)
    (axis,) = drawn[0].axes
    assert axis.get_ylabel() == "overlap"
    names = {"sgd", "predicted", "Bayes-optimal"}
    lines = [line for line in axis.lines if line.get_label() in names]
    colors = {line.get_color() for line in lines}
    assert len(lines) == 2 * len(names)
    assert len(colors) == 2
    legend = drawn[0].legends[0]
    entries = {text.get_text() for text in legend.get_texts()}
    assert names | {"component 1", "component 2"} <= entries


def test_algorithms_that_count_no_samples_leave_no_figure(tmp_path, drawn):
    *_, paths = draw(tmp_path, ATTENTION)
    assert (paths, drawn) == ([], [])
    assert not (tmp_path / "figures").exists()


@pytest.mark.slow
def test_a_run_that_has_ended_keeps_its_last_value(tmp_path, drawn):
    """Between two looks a run holds its last value; the median is that of all runs from where each has been looked at."""
    _, store, pairs, _ = draw(
        tmp_path, (ATTENTION + LEARNERS).replace("[0.1, 0.3]", "[0.1]")
    )
    runs = [
        store.trajectory(record)
        for cell, record in pairs
        if cell.algorithm_label == "gamp"
    ]
    assert len({run["iteration"][-1] for run in runs}) > 1
    x, y = lines_of(drawn[0].axes[0])["gamp"].get_data()
    for at, value in zip(np.asarray(x) / 90, y):
        held = [
            run["mse"][np.searchsorted(run["iteration"], at + 1e-9) - 1, 0]
            for run in runs
        ]
        assert value == pytest.approx(np.median(held))
