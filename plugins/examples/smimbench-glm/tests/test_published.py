"""Values of other groups stand next to theory within their tolerance, or a remark says why they do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import smimbench
from smimbench.suite.reader import load_suite
from smimbench.theory.information import information_at, overlap_at

SUITE = Path(__file__).resolve().parent.parent / "published.toml"


def test_overlaps_of_probit_labels():
    (document,) = smimbench.theory(
        load_suite(SUITE, only=("problem=probit",)), thresholds=False
    ).documents
    for row in document["published"]:
        assert row["within"] is not bool(row["remark"]), (
            f"at {row['alpha']}: {row['theory']}"
        )


def test_overlaps_of_a_committee_of_two_are_fixed_points():
    """``smimbench theory published.toml`` solves for them, which takes a minute; here one step must not move them."""
    suite = load_suite(SUITE)
    problem = suite.plans[1].problem
    same, other = (r for r in suite.plans[1].references if r.entry)
    for alpha, q, r in zip(same.alpha, same.value, other.value):
        Q = np.array([[q, r], [r, q]])
        information = information_at(problem, Q, np.eye(2) - Q)
        moved, _ = overlap_at(
            problem,
            problem.model.kappa * alpha * (information.value + information.value.T) / 2,
        )
        symmetric = [np.diagonal(moved).mean(), moved[0, 1]]
        assert symmetric == pytest.approx(
            [q, r], abs=same.tolerance + 3 * alpha * information.error.max()
        )
