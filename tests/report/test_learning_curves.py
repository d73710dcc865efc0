"""Courses of learning: what is on the axes, where the Bayes-optimal line goes, and when nothing is drawn."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

import smimbench
from smimbench.report.charts import save
from smimbench.report.learning_curves import chosen_panels, learning_chart, left_out, median_curve, spread
from smimbench.report.results import Results
from smimbench.run.store import Store
from smimbench.run.theory_cache import TheoryCache
from smimbench.suite.reader import load_suite
from tests.helpers import ATTENTION, LINE, suite_text, write_suite

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
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
    return figures


def draw(tmp_path, text):
    path = write_suite(tmp_path, text)
    smimbench.run(path, results=tmp_path / "results")
    suite = load_suite(path)
    store = Store(tmp_path / "results" / "small")
    results = Results(suite, store, cache=TheoryCache())
    paths = save(learning_chart(results), tmp_path / "figures")
    return suite, store, results.pairs, paths


def lines_of(axis):
    return {line.get_label(): line for line in axis.lines if not line.get_label().startswith("_")}


def test_lines_are_the_median_of_the_runs_and_the_best_with_as_many_samples(tmp_path, drawn):
    suite, store, pairs, paths = draw(tmp_path, ALONE + LEARNERS)
    assert [path.name for path in paths] == [f"learning.{kind}" for kind in ("png", "svg", "pdf", "csv")]
    axes = [axis for axis in drawn[0].axes if axis.get_visible()]
    assert len(axes) == 2
    problem = suite.plans[0].problem
    for axis, alpha in zip(axes, (0.1, 0.3)):
        n = round(alpha * D * D)
        floor = min(axis.lines[-2].get_ydata()) if axis.get_yscale() == "log" else 0.0  # the zero of a logarithmic axis
        lines = lines_of(axis)
        assert set(lines) == {"Bayes-optimal", "Bayes-optimal, fresh samples", "adam", "online"}
        for label, steps in (("adam", 4 * -(-n // 20)), ("online", 30)):
            runs = [
                store.trajectory(record)
                for cell, record in pairs
                if cell.algorithm_label == label and cell.alpha == alpha
            ]
            x, y = lines[label].get_data()
            assert x[0] == 20
            assert x[-1] == (4 * n if label == "adam" else 20 * steps)
            assert y[-1] == pytest.approx(np.median([run["mse"][-1, 0] for run in runs]), rel=1e-12)
        x, y = (np.asarray(v) for v in lines["Bayes-optimal"].get_data())
        assert x[-2:] == pytest.approx([n, max(4 * n, 600)])
        assert y[-1] == y[-2]
        assert y[-1] == problem_error(problem, n, floor)
        for k in (0, 13, 27):
            assert y[k] == problem_error(problem, round(x[k]), floor)
        x, y = lines["Bayes-optimal, fresh samples"].get_data()
        assert x[0] == pytest.approx(n)
        assert y[-1] == problem_error(problem, 600, floor)


def problem_error(problem, n, floor=0.0):
    return pytest.approx(max(TheoryCache().points(problem, [n / D**2])[0][0]["mse"], floor), rel=1e-9)


def test_without_a_curve_the_line_is_that_of_all_samples(tmp_path, drawn, monkeypatch):
    monkeypatch.setattr("smimbench.report.learning_curves.is_cheap", lambda problem: False)
    suite, *_ = draw(tmp_path, ALONE + LEARNERS)
    lines = lines_of(drawn[0].axes[0])
    x, y = lines["Bayes-optimal, whole data set"].get_data()
    assert all(value == problem_error(suite.plans[0].problem, 90) for value in y)
    assert (x[0], x[-1]) == (20, 600)
    assert "Bayes-optimal, fresh samples" not in lines


def test_components_have_a_line_each(tmp_path, drawn):
    problem = LINE.replace("noise = 0.2", "components = 2, noise = 0.3")
    sgd = 'name = "sgd"\nepochs = 3\nbatch = 10\nlearning_rate = 0.02'
    text = suite_text(problem, [2.0], 20, 3, sgd) + '[run]\nmetrics = ["overlap", "mse"]\n'
    draw(tmp_path, text)
    (axis,) = drawn[0].axes
    assert axis.get_ylabel() == "overlap"
    assert {f"{name}, component {k}" for name in ("sgd", "Bayes-optimal, whole data set") for k in (1, 2)} == set(
        lines_of(axis)
    )


def test_message_passing_stands_beside_those_that_count_samples(tmp_path, drawn):
    """An iteration goes through all samples, and counts them."""
    _, store, pairs, _ = draw(tmp_path, (ATTENTION + LEARNERS).replace("[0.1, 0.3]", "[0.1]"))
    lines = lines_of(drawn[0].axes[0])
    runs = [store.trajectory(record) for cell, record in pairs if cell.algorithm_label == "gamp"]
    x, y = lines["gamp"].get_data()
    assert x[0] == round(0.1 * D * D)
    assert x[-1] == min(run["iteration"][-1] for run in runs) * x[0]
    assert y[0] == pytest.approx(np.median([run["mse"][1, 0] for run in runs]))


def test_algorithms_that_count_no_samples_leave_no_figure(tmp_path, drawn):
    *_, paths = draw(tmp_path, ATTENTION)
    assert (paths, drawn) == ([], [])
    assert not (tmp_path / "figures").exists()


def test_median_of_runs_that_were_looked_at_elsewhere():
    """Between two looks a run holds its last value; where one run has ended, there is no median of all."""
    a = (np.array([1.0, 3.0, 5.0]), np.array([9.0, 6.0, 3.0]))
    b = (np.array([2.0, 3.0, 4.0]), np.array([1.0, 2.0, 5.0]))
    x, y = median_curve([a, b])
    assert x.tolist() == [2.0, 3.0, 4.0]
    assert y.tolist() == [5.0, 4.0, 5.5]


def test_of_too_many_panels_the_largest_dimensions_are_drawn():
    suite = SimpleNamespace(plans=[SimpleNamespace(label="second"), SimpleNamespace(label="first")])
    few = [("first", 0.1, 20), ("second", 0.2, 10), ("second", 0.1, 20)]
    assert chosen_panels(suite, few) == [("second", 0.1, 20), ("second", 0.2, 10), ("first", 0.1, 20)]
    many = [(label, alpha / 10, D) for label in ("first", "second") for alpha in range(1, 5) for D in (10, 20, 40)]
    chosen = chosen_panels(suite, many)
    assert chosen == [(label, alpha / 10, 40) for label in ("second", "first") for alpha in range(1, 5)]
    assert left_out(chosen, many) == " 8 of 24 combinations of problem, sample ratio and dimension."
    assert left_out(few, few) == ""


@pytest.mark.parametrize(("count", "most", "expected"), [(3, 5, [0, 1, 2]), (9, 3, [0, 4, 8]), (5, 5, [0, 1, 2, 3, 4])])
def test_panels_arespread_over_all(count, most, expected):
    assert spread(list(range(count)), most) == expected
