"""Two verdicts: the algorithm's own theory in rows, in the document of theory and in figures."""

import json
import re
import shlex
import shutil

import numpy as np
import pytest

import smimbench
from smimbench.report.charts import save
from smimbench.report.results import Results
from smimbench.report.run_figures import learning_charts
from smimbench.report.statistics import TracedRun, errors_at
from smimbench.report.theory_document import (
    ProblemTheory,
    theory_of_suite,
    with_predictions,
)
from smimbench.report.theory_tables import prediction_tables, theory_tables
from smimbench.run.store import Store
from smimbench.run.theory_solver import TheorySolver
from smimbench.theory.predictions import solve, theory_point
from tests import records
from tests.helpers import LINE, call, flat, output, suite_text, write_suite
from tests.report.rows import printed
from tests.stretched import stretched

pytestmark = pytest.mark.usefixtures("svg_alone")

ALGORITHMS = (
    'name = "gamp"\ndamping = 0.0',
    'name = "erm"\npenalty = 1.0',
    'name = "sgd"\nonline = true\nbatch = 10\nsteps = 30\nlearning_rate = 0.02',
    'name = "adam"\nsteps = 3',
    'name = "averaged"\nof = { name = "erm", penalty = 1.0 }\nstudents = 2',
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    file = folder / "own.toml"
    file.write_text(
        '[suite]\ntitle = "own"\n' + suite_text(LINE, [0.5], 60, 6, *ALGORITHMS)
    )
    suite = smimbench.load_suite(file)
    return (
        suite,
        smimbench.run(suite, results=folder),
        Store(folder / suite.name),
        folder,
    )


def test_rows_have_two_verdicts(results):
    rows = {row["algorithm"]: row for row in results[1] if row["metric"] == "mse"}
    assert rows["gamp"]["own_theory"] == rows["gamp"]["bayes"]
    assert rows["erm"]["own_theory"] > 1.05 * rows["erm"]["bayes"]
    assert rows["averaged"]["own_theory"] == pytest.approx(
        rows["erm"]["own_theory"], rel=1e-9
    )
    assert rows["sgd"]["alpha"] == 5.0
    for name in ("gamp", "erm", "sgd"):
        row = rows[name]
        assert row["no_theory"] is None
        assert abs(row["own_z"]) < 5 or abs(row["mean"] / row["own_theory"] - 1) < 0.1
        assert row["z"] == row["own_z"]
    assert rows["adam"]["own_theory"] is None
    assert rows["adam"]["own_z"] is None
    assert "samples are reused" in rows["adam"]["no_theory"]
    assert rows["adam"]["theory"] == rows["adam"]["bayes"]


def test_what_has_no_row_is_compared_too(results):
    """Accounts of error of every run, places on a predicted trajectory, and how long the teachers are."""
    first = {row["algorithm"]: row for row in results[1] if row["metric"] == "mse"}
    gamp, sgd = first["gamp"]["also_predicted"], first["sgd"]["also_predicted"]
    assert {one["metric"] for one in gamp if one["at"] is None} == {
        "nishimori",
        "calibration",
    }
    assert {one["at"] for one in gamp if one["metric"] == "mse"} == {0.125, 0.25, 0.5}
    assert {one["at"] for one in sgd} == {0.125, 0.25, 0.5}
    for one in gamp + sgd:
        assert len(one["values"]) == 6
        assert np.mean([*one["values"].values()]) == pytest.approx(
            one["prediction"], rel=0.3
        )
    # descent is predicted for its size and its starts, message passing for the limit
    assert {one["coefficient"] for one in sgd} == {0.0}
    assert {one["coefficient"] for one in gamp} == {None}
    assert np.mean([*first["sgd"]["teachers"].values()]) == pytest.approx(0, abs=1e-12)
    assert 0 < abs(np.mean([*first["gamp"]["teachers"].values()])) < 0.3
    assert first["gamp"]["optimum_source"] == "closed form"
    assert first["erm"]["optimum"] == first["gamp"]["optimum"] > first["gamp"]["bayes"]
    assert (first["sgd"]["optimum"], first["sgd"]["optimum_source"]) == (
        first["sgd"]["bayes"],
        "limit",
    )


def test_runs_that_converged_early_keep_their_error():
    """To leave them out of a place on the trajectory would keep the slow runs only; a run that was cut off is left out."""
    path = {"iteration": np.arange(4), "mse": np.array([[1.0], [0.5], [0.3], [0.2]])}
    run = TracedRun(records.record(), path)
    assert errors_at(run, "iteration", 1.5) == [pytest.approx(0.4)]
    assert errors_at(run, "iteration", 9.0) == [0.2]
    cut_off = TracedRun(records.record(status="timeout"), path)
    assert np.isnan(errors_at(cut_off, "iteration", 9.0)).all()


@pytest.mark.slow
def test_theory_is_solved_in_run_and_theory_and_only_read_elsewhere(
    tmp_path, capsys, monkeypatch
):
    """What is missing is shown as missing, with one remark that names the command; then all is as it was after the run."""
    suite, out = write_suite(tmp_path), tmp_path / "r"
    where = (suite, "--results", out)
    call(capsys, "run", *where, "--workers", "1", "--no-figure")
    table = call(capsys, "show", *where, "--json")[1]
    shutil.move(out / "theory", tmp_path / "theory")
    with monkeypatch.context() as patch:
        patch.setattr(
            TheorySolver,
            "solve",
            lambda *_: pytest.fail("solved while tables are made"),
        )
        code, text, err = call(capsys, "show", *where, "--json")
        assert code == 0
        words = shlex.split(
            re.fullmatch(
                r"smimbench: some theory is not stored; 'smimbench (.*)' solves it\n",
                err,
            )[1]
        )
        assert [
            v["contenders"][0]["unsolved"] > 0 for v in json.loads(text)["verdicts"]
        ] == [True]
        assert "the optimal error is not known" in flat(call(capsys, "show", *where)[1])
        for row, known in zip(json.loads(text)["rows"], json.loads(table)["rows"]):
            assert (row["mean"], row["bayes"], row["own_theory"]) == (
                known["mean"],
                None,
                None,
            )
            assert row["warnings"] == known["warnings"]
        output(capsys, "report", *where, "--output", tmp_path / "page.html")
    output(capsys, *words, "--quiet", "--json")
    monkeypatch.setattr(
        TheorySolver,
        "solve",
        lambda *_: pytest.fail("solved while tables and figures are made"),
    )
    assert call(capsys, "show", *where, "--json")[1:] == (table, "")
    assert call(capsys, "report", *where, "--output", tmp_path / "page.html")[2] == ""


def test_training_loss_stands_beside_its_theory(results):
    (found,) = next(row for row in results[1] if row["algorithm"] == "erm")["findings"][
        "training_loss"
    ]
    assert found["mean"] == pytest.approx(found["theory"], rel=0.15)


def test_overlap_of_theory_is_the_metric_of_runs(results):
    """A squared cosine, not the product with the signal, which grows with the length of the estimate."""
    suite, rows, _, _ = results
    theories = theory_of_suite(suite, solver := TheorySolver(), thresholds=False)
    (theory,) = with_predictions(suite, theories, solver)
    text = printed(prediction_tables([theory]))
    for row in rows:
        if row["metric"] == "overlap" and row["algorithm"] in (
            "erm",
            "averaged",
            "gamp",
        ):
            entry = next(
                e for e in theory.algorithms if e.algorithm == row["algorithm"]
            )
            assert entry.overlap == [pytest.approx(row["own_theory"], rel=1e-6)]
            (line,) = [
                line
                for line in text.splitlines()
                if line.split()[:2] == [row["algorithm"], "0.5"]
            ]
            assert float(line.split()[-1]) == pytest.approx(row["own_theory"], rel=1e-4)
    erm = next(entry for entry in theory.algorithms if entry.algorithm == "erm")
    assert abs(erm.prediction.overlap[0][0] / erm.overlap[0] - 1) > 0.05


def test_overlap_of_the_bayes_table_is_the_metric_too():
    with stretched({"name": "linear", "noise": 0.5}) as problem:
        point = theory_point(problem, solve(problem, [0.6])[0])
        assert point.overlap[0, 0] > 1
    text = printed(theory_tables([ProblemTheory("long", {}, [point])]))
    assert f"{point.squared_cosine[0]:.6f}" in text
    assert f"{point.overlap[0, 0]:.3f}" not in text


def test_theory_of_algorithms_is_of_the_sample_ratios_asked_for(results, monkeypatch):
    suite, cache, asked = results[0], TheorySolver(), []
    points = cache.points
    monkeypatch.setattr(
        cache,
        "points",
        lambda problem, alphas: asked.extend(alphas) or points(problem, alphas),
    )
    theories = theory_of_suite(suite, cache, [0.8], thresholds=False)
    (theory,) = with_predictions(suite, theories, cache, [0.8])
    found = {entry.algorithm: entry for entry in theory.algorithms}
    assert set(found) == {plan.label for plan in suite.algorithms}
    assert found["gamp"].alpha == found["gamp"].prediction.more["alpha"] == 0.8
    assert found["gamp"].prediction.mse == theory.points[0].mse
    # What draws fresh samples stands where its steps take it.
    assert found["sgd"].alpha == 5.0
    assert 0.5 not in asked


def test_theory_of_algorithms_is_one_for_all_sizes_that_round_the_samples_differently(
    tmp_path,
):
    file = tmp_path / "sizes.toml"
    text = suite_text(LINE, [0.31], 17, 6, *ALGORITHMS[:2]).replace(
        "[17]", "[17, 29, 60]"
    )
    file.write_text('[suite]\ntitle = "own"\n' + text)
    suite = smimbench.load_suite(file)
    theories = theory_of_suite(suite, solver := TheorySolver(), thresholds=False)
    (theory,) = with_predictions(suite, theories, solver)
    assert theory.predicted == [("gamp", 0.31), ("erm", 0.31)]


def test_trajectories_are_drawn(results):
    pytest.importorskip("matplotlib")
    suite, _, store, folder = results
    results = Results(suite, store, answers=TheorySolver())
    charts = learning_charts(results)
    assert [chart.name for chart in charts] == ["learning-mse", "learning-overlap"]
    for chart in charts:
        predicted = set()
        paths = save(chart, folder / "figures")
        assert [path.suffix for path in paths] == [".png", ".svg", ".pdf", ".csv"]
        for panel in chart.panels:
            curves = {series.full_name: series for series in panel.series}
            for name, series in curves.items():
                if name.endswith(", predicted"):
                    predicted.add(series.algorithm)
                    runs, x = curves[series.algorithm], series.numbers("samples")
                    first = max(x[0], runs.numbers("samples")[0])
                    at = [
                        np.interp(first, one.numbers("samples"), one.numbers("value"))
                        for one in (series, runs)
                    ]
                    assert at[1] == pytest.approx(at[0], rel=0.25, abs=0.05)
        assert predicted == {"gamp", "sgd"}
