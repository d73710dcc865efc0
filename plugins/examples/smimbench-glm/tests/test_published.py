"""Published values of other groups agree with theory within their tolerance, or a remark explains the difference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import smimbench
from smimbench.suite.reader import load_suite
from smimbench.theory.information import information_at, overlap_at

SUITE = Path(__file__).resolve().parent.parent / "published.toml"


def test_overlaps_of_probit_labels():
    """Published overlaps of probit labels agree with theory within their tolerance, or a remark explains the difference."""

    (document,) = smimbench.theory(
        load_suite(SUITE, only=("problem=probit",)), thresholds=False
    ).documents
    for row in document["published"]:
        assert row["within"] is not bool(row["remark"]), (
            f"at {row['alpha']}: {row['theory']}"
        )


def test_overlaps_of_a_committee_of_two_are_fixed_points():
    """Published overlaps Q of a committee machine with two hidden units (q of a unit's estimate with that unit, r with the other
    unit) stay the same in one step of state evolution.
    """
    suite = load_suite(SUITE)
    problem = suite.plans[1].problem
    same_unit, other_unit = (
        reference for reference in suite.plans[1].references if reference.entry
    )
    for alpha, q, r in zip(same_unit.alpha, same_unit.value, other_unit.value):
        Q = np.array([[q, r], [r, q]])
        information = information_at(problem, Q, np.eye(2) - Q)
        overlap_after_step, _ = overlap_at(
            problem,
            problem.model.kappa * alpha * (information.value + information.value.T) / 2,
        )
        q_and_r_after_step = [
            np.diagonal(overlap_after_step).mean(),
            overlap_after_step[0, 1],
        ]
        assert q_and_r_after_step == pytest.approx(
            [q, r], abs=same_unit.tolerance + 3 * alpha * information.error.max()
        )
