"""``start = "both"``: the record says where the informed run ended and which of the two has the posterior."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import smimbench
from smimbench.report.both_starts import above_informed
from smimbench.run.both_starts import LEAST_ODDS, compared_starts
from smimbench.run.loop import Status
from tests.helpers import LINE, sequence, suite_text, write_suite

D = 100
INSTANCE = SimpleNamespace(inputs=np.empty((2 * D, 1, 1)), sample_ratio=2.0)


def attempt(mse, entropy, residual=1e-3, status=Status.OK):
    final = {"residual": residual} | ({} if entropy is None else {"free_entropy": [entropy]})
    return SimpleNamespace(status=status, reason="", iterations=1, seconds=1.0, metrics={"mse": mse}, final=final)


OWN = attempt([0.6], 0.1)


@pytest.mark.parametrize(
    ("informed", "ahead", "odds"),
    [
        (attempt([0.2], 0.1 + 2 * LEAST_ODDS / D), True, 2 * LEAST_ODDS),
        (attempt([0.2], 0.1 + 0.5 * LEAST_ODDS / D), False, 0.5 * LEAST_ODDS),
        (attempt([0.2], -0.3), False, -0.4 * D),
        (attempt([0.7], 0.5), False, 0.4 * D),
        (attempt([0.2], 0.5, residual=2.0), False, None),
        (attempt([0.2], None), False, None),
        (attempt([1e-6], -3.0, residual=2.0), True, None),
        (attempt([1e-6], None, residual=2.0, status=Status.DIVERGED), False, None),
    ],
    ids=["ahead", "too close", "behind", "worse", "moving", "unknown", "recovers", "diverged"],
)
def test_an_informed_run_is_ahead_where_the_posterior_lies_there(informed, ahead, odds):
    found = compared_starts(sequence("linear"), INSTANCE, OWN, informed)
    assert found["ahead"] is ahead
    assert found["log_odds"] == (None if odds is None else pytest.approx(odds))


def test_a_row_says_how_many_and_by_how_much():
    ahead = {"ahead": True, "metrics": {"mse": [0.2]}}
    records = [
        {"metrics": {"mse": [m]}, "informed": i} for m, i in ((0.6, ahead), (0.8, ahead), (0.3, {"ahead": False}))
    ]
    found, line = above_informed(records)
    assert found == {"runs": 3, "ahead": 2, "mse": pytest.approx([0.7]), "informed_mse": pytest.approx([0.2])}
    assert line.startswith("2 of 3 runs end above an informed one of lower free energy: MSE 0.7 where it has 0.2")
    assert above_informed(records[2:])[1] is None
    assert above_informed([{"metrics": {"mse": [0.1]}}]) == (None, None)


def test_where_there_is_one_fixed_point_both_starts_end_there(tmp_path):
    algorithms = ('name = "gamp"', 'name  = "adam"\nsteps = 5')
    path = write_suite(tmp_path, suite_text(LINE, [1.0], 60, 2, *algorithms) + '\n[run]\nstart = "both"\n')
    records = []
    rows = smimbench.run(path, results=tmp_path / "results", workers=1, on_record=records.append)
    gamp, adam = (next(r for r in rows if r["algorithm"] == name and r["metric"] == "mse") for name in ("gamp", "adam"))
    assert gamp["informed"] == {"runs": 2, "ahead": 0, "mse": None, "informed_mse": None}
    assert not gamp["warnings"]
    own, informed = (gamp["findings"][name][0] for name in ("free_entropy", "free_entropy_informed"))
    assert own["mean"] == pytest.approx(informed["mean"], abs=1e-3)
    assert own["mean"] > 0.1
    assert adam["informed"] is None
    for record in records:
        assert ("informed" in record) == (record["algorithm"] == "gamp")
        if "informed" in record:
            assert abs(record["informed"]["log_odds"]) < 0.1
            assert record["informed"]["metrics"]["mse"] == pytest.approx(record["metrics"]["mse"], rel=1e-2)
