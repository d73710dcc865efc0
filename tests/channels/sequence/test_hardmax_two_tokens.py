"""Information of hardmax with two tokens: exact, so sampling must agree within its own error, wherever it is asked."""

from __future__ import annotations

import math

import numpy as np
import pytest
from smimbench_channels.sequence.hardmax import two_tokens
from smimbench_channels.sequence.hardmax.channel import SequenceHardmax
from smimbench_channels.sequence.hardmax.information import information_estimates, small_error_limit

from smimbench.problem.problem import Problem
from smimbench.theory.predictions import thresholds


def exact(s):
    """The scaled information of which the channel makes a polynomial."""
    return two_tokens._two_token_information(s) / s / (1 - s * s)


def test_against_a_plain_grid():
    s = 0.6
    width = math.sqrt(1 - s * s) / s
    channel, side = SequenceHardmax(tokens=2), np.linspace(-9, 9, 145)
    a = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 1, 2)
    density = np.exp(-(a**2).sum((1, 2)) / (2 * width**2)) / (2 * math.pi * width**2) * (side[1] - side[0]) ** 2
    total = 0.0
    for label in ([0, 0], [0, 1], [1, 1]):
        y = np.broadcast_to(label, (len(a), 2))
        shift = channel.posterior(y, a, np.eye(1)).mean - a
        total += density @ (np.exp(channel.log_partition(y, a, np.eye(1))) * (shift**2).sum((1, 2)))
    assert two_tokens._two_token_information(s) == pytest.approx(total, rel=1e-9)


def test_the_polynomial_is_as_good_as_it_says():
    found = two_tokens.scaled_information(small_error_limit(2))
    s = np.array([0.004, 0.05, 0.17, 0.33, 0.52, 0.71, 0.88, 0.97])
    value, error = found(s)
    direct = np.array([exact(x) for x in s])
    assert (np.abs(value - direct) < error).all()
    assert (error < 1e-8).all()


def test_sampling_is_unbiased():
    """The regression on what is known was fitted on its own points: 4 standard errors too high."""
    z = []
    for s in (0.95, 0.8, 0.65, 0.5, 0.35, 0.2):
        found = information_estimates(2, s)
        z.append((found.mean() - exact(s)) / (found.std(ddof=1) / math.sqrt(len(found))))
    assert np.abs(z).max() < 4
    assert abs(np.mean(z)) < 1.5


def test_weak_recovery_has_a_formula():
    problem = Problem({"name": "sequence-multi-index", "tokens": 2}, "hardmax", "gaussian")
    found = thresholds(problem)["weak_recovery"]
    assert found["value"] == pytest.approx(math.pi**2 / 12, abs=max(found["error"], 1e-15))
    assert found["error"] < 1e-10
