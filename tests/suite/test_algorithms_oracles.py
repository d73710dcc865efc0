"""An algorithm that starts near the teacher is an oracle: it is shown, and neither ranked nor tuned."""

import pytest

import smimbench
from smimbench.report.packed import rerun_obstacle
from smimbench.report.row import row_of
from smimbench.report.verdict import verdicts
from smimbench.suite import SuiteError
from tests.helpers import LINE, loaded, suite_text, write_suite

GAMP = 'name = "gamp"'
ADAM = 'name = "adam"\nsteps = 20\n'


def test_an_oracle_is_no_contender(tmp_path):
    text = suite_text(LINE, [0.5], 12, 4, GAMP, ADAM, f'{ADAM}start = "informed"')
    suite = loaded(tmp_path, text)
    labels = {algorithm.label: algorithm.origin for algorithm in suite.algorithms}
    assert labels["adam, from the teacher"] == "oracle"
    assert labels["adam"] != "oracle"
    cells = {cell.algorithm_label: cell for cell in suite.cells()}
    assert [cells[name].run.start for name in labels] == [
        "uninformed",
        "uninformed",
        "informed",
    ]
    assert len({cell.key for cell in suite.cells()}) == 12
    results = smimbench.run(
        write_suite(tmp_path, text), results=tmp_path / "results", progress=False
    )
    rows = [row for row in results if row["metric"] == "mse"]
    oracle = next(row for row in rows if row["algorithm"] == "adam, from the teacher")
    assert oracle["settings"] == "oracle"
    assert {
        one.algorithm for one in verdicts([row_of(row) for row in rows])[0].contenders
    } == {"gamp", "adam"}
    shared = {"by": "x", "versions": {"smimbench": "1"}}
    assert "starts from the teacher" in rerun_obstacle(row_of(oracle), shared)


def test_an_oracle_is_not_tuned(tmp_path):
    tuned = f'{ADAM}start = "informed"\n[algorithms.tune]\nlearning_rate = [0.1, 0.2]'
    with pytest.raises(SuiteError, match="is not ranked or tuned"):
        loaded(tmp_path, suite_text(LINE, [0.5], 12, 1, tuned))
    with pytest.raises(SuiteError, match="start"):
        loaded(tmp_path, suite_text(LINE, [0.5], 12, 1, f'{ADAM}start = "spectral"'))
