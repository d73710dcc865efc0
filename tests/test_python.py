"""From Python: results as tidy tables, figures as objects, a part of a suite, what notebooks show."""

import re
import sys
import types
from collections import Counter

import numpy as np
import pytest

import smimbench
from smimbench.report import notebook
from smimbench.suite import SuiteError
from tests.helpers import SUITE, attention, write_suite


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("python")
    suite = write_suite(folder, SUITE)
    return folder, suite, smimbench.run(suite, results=folder / "results")


def as_rows(frame):
    if isinstance(frame, list):
        return frame
    return frame.to_dict("records") if hasattr(frame, "iloc") else frame.to_dicts()


@pytest.mark.parametrize("where", ["results", "results/small"])
def test_everything_that_was_run_is_loaded(ran, where):
    folder, _, rows = ran
    found = smimbench.load(folder / where)
    values = as_rows(found.values)
    # Beside the metrics of the suite every record has those by which the verdict tests it; only GAMP claims an error of its own.
    assert Counter(v["metric"] for v in values) == {
        "mse": 8,
        "overlap": 8,
        "nishimori": 8,
        "calibration": 4,
    }
    for row in rows:
        own = [
            v["value"]
            for v in values
            if all(v[k] == row[k] for k in ("algorithm", "alpha", "metric"))
        ]
        assert sum(own) / len(own) == pytest.approx(row["mean"])
    last, damped = {}, set()
    for step in as_rows(found.trajectories):
        if step["metric"] == "mse":
            last[step["key"]] = step["value"]
        damping = step["damping"]  # None or NaN where none is reported
        if damping is not None and step["iteration"] > 0 and damping == damping:
            assert 0 <= damping < 1
            damped.add(step["key"])
    ends = {v["key"]: v["value"] for v in values if v["metric"] == "mse"}
    assert last == pytest.approx(ends, rel=1e-6)
    assert damped == {v["key"] for v in values if v["algorithm"] == "gamp"} != set()
    assert "28 rows" in found._repr_html_()
    steps = len(found.trajectories)
    assert repr(found) == f"28 rows in .values, {steps} in .trajectories"


def test_rows_in_a_notebook_are_a_verdict_a_ranking_and_folded_rows(ran):
    text = ran[2]._repr_html_()
    _, verdict, ranking, rows = re.split("<p>|</p>|<details>", text)
    for words in (
        "error ÷ optimal error",
        "error ÷ lowest error",
        "95% interval",
        "gamp",
        "adam",
    ):
        assert words in ranking
    assert verdict.startswith("line: gamp is best, ")
    assert "<summary>8 of 8 rows</summary>" in rows
    assert "sortable" not in text  # nothing would sort it
    assert "\n  adam: " in repr(ran[2])


def test_values_in_a_notebook_are_a_table_without_pandas(ran, monkeypatch):
    monkeypatch.setattr(notebook, "frame", lambda rows: rows)
    text = smimbench.load(ran[0] / "results")._repr_html_()
    assert text.count("<tr>") == 12 + 1
    assert "<th>metric</th>" in text
    assert not re.search(r"\d\.\d{6}", re.sub('data-value="[^"]*"', "", text))


def test_without_frames_there_are_lists(ran, monkeypatch):
    monkeypatch.setattr(notebook.importlib.util, "find_spec", lambda name: None)
    found = smimbench.load(ran[0] / "results")
    assert isinstance(found.values, list)
    assert isinstance(found.trajectories, list)
    with pytest.raises(SuiteError, match="not a results folder"):
        smimbench.load(ran[0])


def test_a_figure_is_returned(ran):
    pytest.importorskip("matplotlib")
    folder, suite, _ = ran
    axis = smimbench.plot(suite, "overlap", results=folder / "results", width="page")
    assert axis.get_ylabel() == "overlap"
    assert axis.figure.get_figwidth() == 7.0
    with pytest.raises(ValueError, match="choose from mse, overlap"):
        smimbench.plot(suite, "cosine", results=folder / "results")


def test_learning_curves_are_returned_with_the_optimum(ran):
    pytest.importorskip("matplotlib")
    folder, suite, rows = ran
    options = {"results": folder / "results"}
    for against, label in (("samples", "samples processed"), ("seconds", "seconds")):
        axes = smimbench.plot(suite, against=against, **options)
        assert [axis.get_xlabel() for axis in axes] == [label] * 2
        lines = {line.get_label(): line for line in axes[0].get_lines()}
        assert {"Bayes-optimal", "gamp", "adam"} <= set(lines)
        assert set(lines["Bayes-optimal"].get_ydata()) == {rows[0]["bayes"]}
    with pytest.raises(ValueError, match="one of alpha, samples, seconds, got 'time'"):
        smimbench.plot(suite, against="time", **options)
    with pytest.raises(ValueError, match="no learning curve of mse to draw"):
        smimbench.plot(suite, against="samples", results=folder / "nothing")


def test_a_problem_shows_itself_in_a_notebook():
    text = attention(rho=0.25)._repr_html_()
    for words in ("attention-indexed", "softmax", "rho=0.25"):
        assert words in text


@pytest.mark.parametrize(
    ("terminal", "progress"), [(True, True), (True, False), (False, True)]
)
def test_long_calls_show_a_bar_in_a_terminal_and_else_nothing(
    tmp_path, capsys, monkeypatch, terminal, progress
):
    monkeypatch.setenv("FORCE_COLOR" if terminal else "NO_COLOR", "1")
    suite = write_suite(tmp_path, SUITE)
    smimbench.run(
        suite, results=tmp_path / "r", only=["algorithm=gamp"], progress=progress
    )
    ran = capsys.readouterr()
    smimbench.theory(suite, progress=progress)
    solved = capsys.readouterr()
    assert ran.out == solved.out == ""
    assert (
        ("theory of small" in ran.err)
        == ("theory of line" in solved.err)
        == (terminal and progress)
    )


def test_a_notebook_shows_a_bar_without_further_packages(tmp_path, monkeypatch):
    shown = []
    handle = types.SimpleNamespace(
        display=lambda data, raw: shown.append(data),
        update=lambda data, raw: shown.append(data),
    )
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(
        sys.modules,
        "IPython.display",
        types.SimpleNamespace(DisplayHandle=lambda: handle),
    )
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    smimbench.run(
        write_suite(tmp_path, SUITE), results=tmp_path / "r", only=["algorithm=gamp"]
    )
    texts = [one["text/plain"] for one in shown]
    assert texts[0] == texts[-1] == ""
    assert f"[{'#' * 15:30}] 2 / 4 small" in texts
    shown.clear()
    smimbench.tune(
        write_suite(
            tmp_path, f"{SUITE}\n[algorithms.tune]\nlearning_rate = [0.1, 0.2]"
        ),
        results=tmp_path / "r",
    )
    assert any("tuning small" in one["text/plain"] for one in shown)
    assert shown[-1] == {"text/plain": ""}


# -- theory ---------------------------------------------------------------------------------------------------------------

PHASES = {"model": "attention-indexed", "channel": "softmax", "prior": "wishart"}


@pytest.mark.parametrize("rho", [0.2, 0.5, 0.8])
def test_theory_of_a_problem_that_is_named(rho):
    """Softmax attention of one layer is learned perfectly from the number of its parameters on, a closed form."""
    found = smimbench.theory(**PHASES, rho=rho, alpha="0.1:0.5:5")
    rows = as_rows(found.table)
    assert [row["alpha"] for row in rows] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert all(
        not isinstance(value, (dict, list)) for row in rows for value in row.values()
    )
    (perfect,) = [
        row
        for row in as_rows(found.thresholds)
        if row["threshold"] == "perfect recovery"
    ]
    assert perfect["alpha"] == pytest.approx((rho - rho**2 / 2) / 2, rel=1e-6)
    assert all((row["mse"] < 1e-6) == (row["alpha"] > perfect["alpha"]) for row in rows)
    assert rows == as_rows(
        smimbench.theory(
            **PHASES, rho=np.float64(rho), alpha=np.array([0.1, 0.2, 0.3, 0.4, 0.5])
        ).table
    )


def test_errors_of_prediction_are_columns_where_they_are_asked_for():
    """Of a noiseless problem that is solved nothing is left to predict wrongly."""
    known, solved = as_rows(
        smimbench.theory(**PHASES, rho=0.3, alpha=[0.05, 0.2], predictions=True).table
    )
    assert (
        0 < known["generalization_error_bayes"] < known["generalization_error_plugin"]
    )
    assert solved["generalization_error_bayes"] == pytest.approx(0.0, abs=1e-9)
    with pytest.raises(
        ValueError, match=re.escape("use theory(..., predictions=True)")
    ):
        smimbench.theory(**PHASES, rho=0.3, alpha=0.1).plot(
            "generalization_error_bayes"
        )
    with pytest.raises(ValueError, match="width must be column, page or a length"):
        smimbench.theory(**PHASES, rho=0.3, alpha=0.1).plot(width="wide")


@pytest.mark.slow
def test_a_list_makes_several_problems_and_an_axis_for_each():
    found = smimbench.theory(**PHASES, rho=[0.2, 0.5], alpha=[0.1, 0.3])
    assert len({row["problem"] for row in as_rows(found.table)}) == 2
    axes = found.plot(width="column")
    assert len(axes) == 2
    assert axes[0].figure.get_figwidth() == 3.4
    labels = axes[0].get_legend_handles_labels()[1]
    assert {"Bayes-optimal", "perfect recovery"} <= set(labels)
    assert found.plot("overlap")[0].get_ylabel() == "overlap"


def test_what_objects_say_of_themselves_fits_a_screen(ran):
    _, suite, rows = ran
    for one in (smimbench.theory("quickstart"), smimbench.theory(**PHASES, rho=0.5, alpha="0.01:1:100"), rows,
                smimbench.load_suite("contenders"), smimbench.load_suite(suite)):  # fmt: skip
        lines = repr(one).splitlines()
        assert len(lines) <= 27
        assert max(map(len, lines)) <= 80 or len(lines) == 1
    text = repr(smimbench.theory(**PHASES, rho=0.5, alpha="0.01:1:100"))
    assert "perfect recovery" in text
    assert "88 more points in .table" in text
    assert repr(smimbench.load_suite(suite)) == "Suite('small'; line; gamp, adam)"
    selected = smimbench.load_suite(suite, only=["algorithm=gamp"])
    assert repr(selected) == "Suite('small'; line; gamp)"


def test_the_frame_of_results_is_flat(ran):
    rows = ran[2]
    table = as_rows(rows.table)
    assert len(table) == len(rows) == 8
    assert all(
        value is None or isinstance(value, (int, float, str))
        for row in table
        for value in row.values()
    )
    assert [row["mean"] for row in table] == [row["mean"] for row in rows]
    assert {row["status_counts"] for row in table} == {"2 ok"}


@pytest.mark.parametrize(("given", "message"), [
    ({}, "theory needs a suite, or the names of model, channel and prior"),
    ({"suite": "quickstart", "alphas": [0.2]}, "theory of a suite takes no argument 'alphas'"),
    ({"suite": "quickstart", "alhpa": 0.1}, "takes no argument 'alhpa'; did you mean 'alpha'"),
    ({"model": "attention-indexed", "prior": "wishart", "chanel": "softmax"}, "channel is missing ('chanel' looks like a typo)"),
    ({**PHASES, "alhpa": 0.1}, "alpha is missing ('alhpa' looks like a typo)"),
    ({**PHASES, "alpha": 0.1, "bta": 2.0}, "bta is neither an option nor a parameter of this problem; did you mean 'beta'?"),
    ({"suite": "quickstart", "alpha": []}, "give at least one sample ratio"),
    ({"suite": "quickstart", "model": "attention-indexed"}, "model: give either a suite or the items of a problem"),
    ({**PHASES, "alpha": 0.1, "rhoo": 0.3}, "rhoo is neither an option nor a parameter of this problem"),
    ({**PHASES}, "alpha is missing; give sample ratios"),
    ({**PHASES, "alpha": [0.1, -1]}, "a sample ratio must be > 0 and finite, got -1.0"),
    ({"suite": "quickstart", "alpha": "0.1:0.3"}, "or look like 0.1, 0.1,0.2,0.5 or 0.1:0.3:20"),
    ({"suite": "quickstart", "alpha": [0.1, "x"]}, "sample ratios must be numbers"),
    ({"suite": "quickstart", "alpha": "0.1:0.3:1"}, "(2 to 10,000 of them), got '0.1:0.3:1'"),
    ({"model": "attention-indexed", "alpha": 1}, "channel is missing; without a suite, give model, channel, prior"),
])  # fmt: skip
def test_what_is_wrong_with_a_question_is_said(given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        smimbench.theory(**given)
