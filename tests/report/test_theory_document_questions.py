"""The questions of results are all that their tables and figures need, and showing them evaluates no channel."""

import pytest

import smimbench
from smimbench.cli.results import charts_of
from smimbench.registry.registry import get_registry
from smimbench.report.results import Results
from smimbench.report.theory_document import figure_questions, table_questions
from smimbench.run.store import Store
from smimbench.run.theory_solver import TheorySolver
from smimbench.suite.reader import load_suite
from smimbench.theory import information
from tests.helpers import ATTENTION, LINE, call, output, suite_text, write_suite

pytestmark = pytest.mark.slow

FRESH = 'name = "sgd"\nonline = true\nsteps = 20\nbatch = 5\nlearning_rate = 0.1'
TWO = LINE.replace("noise = 0.2", "components = 2, noise = 0.2")
SUITES = {
    "low rank, fresh samples": suite_text(
        LINE, [0.5, 1.0], 20, 3, 'name = "gamp"', FRESH, 'name = "ridge"'
    ),
    "two components": suite_text(
        TWO, [0.5, 1.0], 20, 3, 'name = "gamp"', 'name = "adam"\nsteps = 5'
    ),
    "matrices": ATTENTION.replace("softmax", "linear").replace(
        "beta = 1.0", "noise = 0.3"
    ),
    "errors of prediction": suite_text(LINE, [0.5], 20, 3, 'name = "gamp"')
    + '\n[run]\nmetrics = ["mse", "generalization_error_bayes"]\n',
}


@pytest.fixture(scope="module", params=SUITES)
def suite(request, tmp_path_factory):
    """A suite whose runs are in the folder ``results`` next to it."""
    folder = tmp_path_factory.mktemp("questions")
    path = write_suite(folder, '[suite]\ntitle = "Questions"\n' + SUITES[request.param])
    smimbench.run(path, results=folder / "results", progress=False)
    return path


def test_answers_to_all_questions_are_all_that_tables_and_figures_read(suite, tmp_path):
    pytest.importorskip("matplotlib")
    loaded, store = load_suite(suite), Store(suite.parent / "results" / "small")
    solver = TheorySolver(tmp_path, prediction_errors=loaded.needs_prediction_errors)
    results = Results(loaded, store, (), solver.answers)
    solver.answer(table_questions(results))
    assert results.rows
    assert not results.answers.has_missing_answers
    solver.answer(figure_questions(results))
    drawn = charts_of(results)
    assert drawn
    assert not results.answers.has_missing_answers
    assert any(
        series.kind == "line" and len(series.columns["alpha"]) > 100
        for series in drawn[0].panels[0].series
    )


def test_what_is_shown_evaluates_no_channel(suite, tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    where = (suite, "--results", suite.parent / "results")
    output(capsys, "theory", *where)
    shown = call(capsys, "show", *where, "--json")

    def refuse(*arguments, **options):
        pytest.fail("a channel was evaluated while results were shown")

    monkeypatch.setattr(information, "information_at", refuse)
    for entry in get_registry().entries("channel"):
        for method in ("information", "posterior", "log_partition", "forward"):
            if getattr(entry.item, method, None) is not None:
                monkeypatch.setattr(entry.item, method, refuse)
    assert call(capsys, "show", *where, "--json") == shown
    assert call(capsys, "report", *where, "--output", tmp_path / "page.html")[::2] == (
        0,
        "",
    )
    folder = suite.parent / "results" / "small"
    output(capsys, "compare", folder, folder)
