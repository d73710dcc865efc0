"""From Python: results as tidy tables, figures as objects, a part of a suite, what notebooks show."""

from collections import Counter

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
    assert Counter(v["metric"] for v in values) == {"mse": 8, "overlap": 8, "nishimori": 8, "calibration": 4}
    for row in rows:
        own = [v["value"] for v in values if all(v[k] == row[k] for k in ("algorithm", "alpha", "metric"))]
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
    figure = smimbench.plot(suite, "overlap", results=folder / "results")
    assert figure.axes[0].get_ylabel() == "overlap"
    with pytest.raises(ValueError, match="choose from mse, overlap"):
        smimbench.plot(suite, "cosine", results=folder / "results")


def test_a_part_is_run_and_its_progress_shown(tmp_path, capsys):
    suite = write_suite(tmp_path, SUITE)
    rows = smimbench.run(suite, results=tmp_path / "r", only=["algorithm=gamp", "alpha=1.0"], progress=True)
    assert {(row["algorithm"], row["alpha"]) for row in rows} == {("gamp", 1.0)}
    assert "100%" in capsys.readouterr().out
    with pytest.raises(ValueError, match="given by name or path"):
        smimbench.run(smimbench.load_suite(suite), only=["alpha=1.0"])


def test_a_problem_shows_itself_in_a_notebook():
    text = attention(rho=0.25)._repr_html_()
    for words in ("attention-indexed", "softmax", "rho=0.25"):
        assert words in text
