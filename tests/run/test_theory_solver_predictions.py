"""Errors of prediction are solved where something asks for them, and added to stored points that lack them."""

from smimbench.run.answers import Answers, document_of
from smimbench.run.theory_processes import TheoryWorker
from smimbench.run.theory_solver import TheorySolver
from tests.helpers import call, sequence


def test_stored_points_without_errors_of_prediction_get_them_when_asked(tmp_path):
    problem = sequence()

    def documents(answers):
        return document_of(answers.points(problem, [0.3, 0.4]))

    whole = documents(TheorySolver())
    plain = TheorySolver(tmp_path, prediction_errors=False)
    for (bare,), (full,) in zip(documents(plain), whole):
        assert "generalization_error" not in bare
        assert bare == {
            key: value
            for key, value in full.items()
            if not key.startswith("generalization")
        }
    assert documents(Answers(tmp_path)) == documents(plain)
    assert documents(TheorySolver(tmp_path)) == whole
    assert documents(TheorySolver(tmp_path, prediction_errors=False)) == whole


def test_runs_and_other_processes_solve_them_when_asked(capsys, tmp_path):
    problem = sequence()
    for name, predicts in (("bare", False), ("full", True)):
        solver = TheoryWorker(str(tmp_path / name), lambda **event: None)
        solver.answer("whole", problem.spec, predicts, [0.3], False)
        reading = Answers(tmp_path / name)
        ((point,),) = reading.points(problem, [0.3])
        assert (point.generalization_error is not None) == predicts
    words = (
        "run",
        "quickstart",
        "--only",
        "problem=linear",
        "--only",
        "alpha=0.1",
        "--only",
        "algorithm=gamp",
    )
    words += ("--set=grid.dimension=[20]", "--set=grid.seeds=1", "--no-figure")
    for metric in ("mse", "generalization_error_plugin"):
        folder = tmp_path / metric
        call(capsys, *words, f'--set=run.metrics=["{metric}"]', "--results", folder)
        points = [path.read_text() for path in folder.glob("**/point-*.json")]
        assert points
        assert all(
            ("generalization_error" in text) == (metric != "mse") for text in points
        )
