"""Lines of theory in figures: their names, their components, where thresholds are drawn, and that they have no gaps."""

from dataclasses import replace

import numpy as np
import pytest

from smimbench.report.charts import draw
from smimbench.report.figures import metric_chart
from smimbench.report.theory_lines import chart_questions, theory_lines
from smimbench.run.store import Store, settings_folder
from smimbench.suite.reader import load_suite
from smimbench.theory.types import LineQuestion, PointsQuestion
from tests.report.test_style_labels import Theory, synthetic_chart


class LinesWithoutErrors(Theory):
    """A followed curve of several components, whose points alone have errors of prediction."""

    def line(self, problem, alphas):
        return [
            [replace(point, generalization_error=None) for point in branches]
            for branches in self.points(problem, alphas)
        ]

    line_or_none = line


class PointsAlone(Theory):
    """Coupled components, whose theory is too slow for a line."""

    def line_or_none(self, problem, alphas):
        return None


def test_slow_theory_is_a_curve_through_points_that_has_no_gaps():
    suite, metric = load_suite("aim-two-layers"), "generalization_error_bayes"
    (plan,), answers = suite.plans, PointsAlone()
    (line,) = theory_lines(answers, plan, metric, plan.alphas, 0).values()
    assert np.isfinite(line.value).all()
    assert line.alpha[[0, -1]].tolist() == [plan.alphas[0], plan.alphas[-1]]
    assert len(line.alpha) > 200
    (error,) = theory_lines(answers, plan, "mse", plan.alphas, 1).values()
    exact = np.clip(1 - 2 * error.alpha, 0, None)
    assert error.value == pytest.approx(exact, abs=5e-3)
    (question,) = [
        question
        for question in chart_questions(suite, answers, (metric,))
        if isinstance(question, PointsQuestion)
        and len(question.alphas) > len(plan.alphas)
    ]
    assert len(question.alphas) <= len(plan.alphas) + 2 * 4, "two points at a threshold"


def vertical(panel):
    return [series for series in panel.series if series.kind == "vertical"]


def test_errors_of_prediction_are_drawn_as_densely_as_the_error_and_without_gaps():
    suite, metric = load_suite("smi-two-layers"), "generalization_error_bayes"
    (plan,), answers = suite.plans, LinesWithoutErrors()
    (error,) = theory_lines(answers, plan, "mse", plan.alphas, 0).values()
    (prediction,) = theory_lines(answers, plan, metric, plan.alphas, 0).values()
    assert np.isfinite(prediction.value).all()
    assert len(prediction.alpha) >= len(error.alpha)
    assert np.diff(prediction.alpha).max() < 2 * np.diff(error.alpha).max()
    assert prediction.alpha[[0, -1]] == pytest.approx(error.alpha[[0, -1]], rel=1e-3)
    questions = list(chart_questions(suite, answers, (metric, "mse")))
    (nodes,) = [
        question.alphas
        for question in questions
        if isinstance(question, PointsQuestion)
    ]
    assert set(plan.alphas) < set(nodes)
    assert any(isinstance(question, LineQuestion) for question in questions)


def test_components_share_a_panel_and_have_a_color_each():
    chart = synthetic_chart("smi-two-layers", "overlap")
    (panel,) = chart.panels
    components = {
        series.component: series.color for series in panel.series if series.component
    }
    assert set(components) == {"layer 1", "layer 2"}
    assert len(set(components.values())) == 2
    (legend,) = draw(chart).legends
    entries = [text.get_text() for text in legend.get_texts()]
    assert entries[:4] == ["layer 1", "layer 2", "Bayes-optimal", "gamp"]
    assert len(entries) == len(set(entries))
    assert {row["component"] for row in chart.rows if row["what"] == "runs"} == {1, 2}


@pytest.mark.parametrize(
    ("suite", "metric", "name"),
    [("quickstart", "mse", "Bayes-optimal"), ("quickstart", "overlap", "predicted (posterior mean)"),
     ("quickstart", "cosine", "Bayes-optimal"), ("smi-two-layers", "overlap", "Bayes-optimal"),
     ("smi-two-layers", "generalization_error_bayes", "Bayes-optimal"),
     ("smi-two-layers", "generalization_error_plugin", "predicted (posterior mean)"),
     ("quickstart", "calibration", "predicted (posterior mean)")],
)  # fmt: skip
def test_a_line_is_optimal_only_in_a_metric_that_it_bounds(suite, metric, name):
    for panel in metric_chart(load_suite(suite), [], Theory(), metric).panels:
        assert panel.series[0].name == name


def test_thresholds_are_drawn_where_theory_changes_and_are_in_the_data():
    suite = load_suite("quickstart")
    chart = metric_chart(suite, [], Theory(), "mse")
    names = {row["threshold"] for row in chart.rows if row["what"] == "threshold"}
    assert {"weak recovery", "component 1 learned"} <= names
    assert all(row["error"] >= 0 for row in chart.rows if row["what"] == "threshold")
    ratio = metric_chart(suite, [], Theory(), "nishimori")  # 1 on both sides
    assert not any(vertical(panel) for panel in ratio.panels)
    assert all(panel.hard_phase is None for panel in ratio.panels)


def test_folders_of_settings_have_short_names(tmp_path):
    changes = [f"algorithms.adam.learning_rate={rate}" for rate in (0.1, 0.2)]
    changes += [
        "grid.dimension=20",
        "run.max_iterations=17",
        "suite.title='A title of many words, and more'",
    ]
    folders = {
        settings_folder(load_suite("quickstart", changes[:n]), Store(tmp_path)).name
        for n in range(1, 6)
    }
    assert len(folders) == 5
    assert max(map(len, folders)) < 40
