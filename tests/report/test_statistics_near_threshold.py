"""Reasons of runs that do not converge name the threshold they stand near."""

import math

import pytest

import smimbench
from smimbench.report.results import Results
from smimbench.report.statistics import near_threshold
from smimbench.run.store import Store
from smimbench.run.theory_solver import TheorySolver
from smimbench.suite.reader import load_suite
from smimbench.theory.types import Bifurcation, Threshold, Thresholds
from tests.helpers import sequence, write_suite

TWO = Thresholds(
    Threshold(0.1667, 0.0),
    Threshold(1.5, 0.0),
    (Bifurcation(1, 0.1667, 0.0), Bifurcation(0, 0.8, 0.0)),
)


def test_the_nearest_threshold_is_named_within_one_over_root_d():
    said = near_threshold(TWO, 0.17, 100, "layer")
    assert said == (
        "alpha 0.17 is within 1/sqrt(100) = 10% of the threshold of layer 2 at 0.167: increase D"
    )
    assert "layer 1 at 0.8" in near_threshold(TWO, 0.75, 100, "layer")
    assert "perfect-recovery threshold at 1.5" in near_threshold(TWO, 1.4, 100, "layer")


@pytest.mark.parametrize(("alpha", "value"), [(0.17, 0.1667), (0.75, 0.8), (1.4, 1.5)])
def test_a_larger_dimension_ends_the_window(alpha, value):
    widest = math.floor((alpha / value - 1) ** -2)
    assert near_threshold(TWO, alpha, widest) is not None
    assert near_threshold(TWO, alpha, widest + 1) is None


def test_where_no_threshold_is_near_nothing_is_said():
    assert near_threshold(TWO, 0.4, 100) is None
    assert near_threshold(Thresholds(), 0.4, 100) is None
    assert near_threshold(Thresholds(Threshold(0.0, 0.0)), 0.001, 100) is None


SUITE = """
[suite]
title = "A run that is cut short near a threshold, and one far from it"
[problem]
label = "one layer"
model = { name = "sequence-multi-index", tokens = 2 }
channel = { name = "softmax" }
prior = { name = "gaussian" }
[grid]
alpha = [ALPHA, 3.0]
dimension = [100]
seeds = 1
[[algorithms]]
name = "gamp"
[run]
max_iterations = 5
"""


@pytest.mark.slow
def test_the_rows_of_a_suite_say_it(tmp_path):
    cache = TheorySolver()
    found = cache.thresholds(sequence())
    weak = found.sequential[0].alpha
    path = write_suite(tmp_path, SUITE.replace("ALPHA", f"{1.05 * weak:.3g}"))
    smimbench.run(path, results=tmp_path / "results")
    suite, store = load_suite(path), Store(tmp_path / "results" / "small")
    rows = Results(suite, store, answers=cache).rows
    near, far = (
        next(row.runs.reasons for row in rows if (row.place.alpha > 1) == above)
        for above in (False, True)
    )
    (said,), (other,) = near, far
    assert said.startswith("not-converged: 5 iterations reached; alpha ")
    assert f"threshold of layer 1 at {weak:.3g}: increase D" in said
    assert "threshold" not in other


ATTENTION = """
[suite]
title = "A run that is cut short where 125 samples carry barely what the signal holds, and one with many more"
[problem]
label = "attention"
model = { name = "attention-indexed", tokens = 2 }
channel = { name = "softmax" }
prior = { name = "wishart", rho = 0.1 }
[grid]
alpha = [0.05, 0.2]
dimension = [50]
seeds = 1
[[algorithms]]
name = "gamp"
[run]
max_iterations = 5
"""


def test_with_extensive_rank_the_samples_are_counted(tmp_path):
    """Perfect recovery of 2 alpha = rho - rho^2 / 2 equations: alpha = 0.0475, and 1/sqrt(125) is 9%."""
    path = write_suite(tmp_path, ATTENTION)
    rows = smimbench.run(path, results=tmp_path / "results")
    (near,), (far,) = (row["reasons"] for row in rows if row["metric"] == "mse")
    assert (
        "within 1/sqrt(125) = 8.9% of the perfect-recovery threshold at 0.0475: increase D"
        in near
    )
    assert "threshold" not in far
