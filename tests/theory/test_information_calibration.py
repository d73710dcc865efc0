"""Stated errors of what labels tell, against plain draws: all shipped channels, from nearly nothing known to nearly all."""

import math

import numpy as np
import pytest

from smimbench.problem.problem import Problem
from suites.asv.calibration import CASES, overlaps, scores, verify_information

CHEAP = [
    name
    for name in CASES
    if "layers" not in name and not ("hardmax" in name and "2 tokens" not in name)
]
"""Those with formulas or quadratures, and a posterior of microseconds."""


@pytest.mark.slow
def test_z_is_normal():
    """The dear ones are read, with fifty times the draws, by the track of asv that holds the same cases."""
    z = np.concatenate([scores(name, 2000) for name in CHEAP])
    assert len(z) > 100
    assert np.abs(z).max() < 4
    assert 0.7 < math.sqrt((z**2).mean()) < 1.3


@pytest.mark.slow
def test_z_of_two_layers_is_normal():
    """Sampled information with little and with nearly everything known of the last layer, nothing or a part of the first."""
    name = "sequence-multi-index: softmax, 2 tokens, layers 2, skip 1.0"
    z = np.array(scores(name, 20_000, slice(5, 10, 4)))
    assert len(z) >= 6
    assert np.abs(z).max() < 4
    assert 0.3 < math.sqrt((z**2).mean()) < 2.0


def test_an_error_that_is_left_out_is_seen():
    problem = Problem(*CASES["sequence-multi-index: linear, 2 tokens, noise 0.1"])
    whole = problem.channel.information

    class Wrong(type(problem.channel)):
        def information(self, Q, V):
            found = whole(Q, V)
            return found._replace(value=1.05 * found.value)

    problem.channel = Wrong(
        **{
            name: getattr(problem.channel, name)
            for name in ("tokens", "components", "noise")
        }
    )
    Q, V = list(overlaps(problem))[2]
    assert max(abs(check.z) for check in verify_information(problem, Q, V, 20_000)) > 4
