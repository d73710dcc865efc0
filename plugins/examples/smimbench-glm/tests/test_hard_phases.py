"""Hard phases of sparse signals: from counting equations to the end of the uninformed branch, which is a maximum."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, optimize, stats

import smimbench
from smimbench.theory.predictions import thresholds

pytest.importorskip("smimbench_sparse", reason="needs the priors of smimbench-sparse")


def relu_information(v):
    """``E g^2`` of ``y = max(z, 0)``: positive labels are z itself, others say only that z is negative."""
    width = np.sqrt(1 - v)

    def at(omega):
        t = omega / np.sqrt(v)
        density, below = stats.norm.pdf(t), stats.norm.cdf(-t)
        known = 1 - below - t * density
        return (
            (known + density**2 / max(below, 1e-300))
            / v
            * stats.norm.pdf(omega, scale=width)
        )

    return integrate.quad(at, -8 * width, 8 * width, points=[0.0], limit=400)[0]


# Published: sphinxteam/tramp, examples/glm/data, from iterations with a loose stop: late by up to 4e-3 of the value.
@pytest.mark.parametrize(
    ("channel", "rho", "published"),
    [
        ("linear", 0.45, 0.639167),
        ("linear", 0.55, 0.729987),
        ("linear", 0.75, 0.880377),
        ("relu", 0.25, 0.707526),
        ("relu", 0.45, 1.12061),
        ("relu", 0.85, 1.79346),
    ],
)
def test_hard_phase_of_sparse_signals(channel, rho, published):
    problem = smimbench.Problem(
        {"name": "sequence-multi-index", "tokens": 1},
        channel,
        {"name": "gauss-bernoulli", "rho": rho},
    )
    information = relu_information if channel == "relu" else lambda v: 1 / v

    def needed(log):
        """Sample ratio whose fixed point is at this Qhat, with a minus sign."""
        V = problem.prior.overlap(np.exp(log) * np.eye(1)).V
        return -np.exp(log) / information(float(np.asarray(V)[0, 0]))

    end = -optimize.minimize_scalar(
        needed, bounds=(-2, 8), method="bounded", options={"xatol": 1e-6}
    ).fun
    found = thresholds(problem).document()
    low, high = found["hard_phase"]
    assert low == pytest.approx(rho * (2 if channel == "relu" else 1), rel=1e-4)
    assert high == pytest.approx(end, rel=1e-6)
    assert high == found["algorithmic"]["value"]
    assert 0 <= published / high - 1 < 4e-3
