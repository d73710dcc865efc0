"""Hard phases of sparse signals: from counting equations to the end of the uninformed branch, which is a maximum."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, optimize, stats

import smimbench
from smimbench.theory.predictions import thresholds

pytest.importorskip("smimbench_sparse", reason="needs the priors of smimbench-sparse")


def relu_information(v):
    """Fisher information ``E g^2`` of labels ``y = max(z, 0)`` at the posterior variance v of the latent z: positive labels are z
    itself, others say only that z is negative.
    """
    deviation_of_omega = np.sqrt(1 - v)

    def integrand(omega):
        """Contribution of the latent's mean omega to the information: ``revealed_part`` from positive labels, the rest from
        labels 0.
        """

        scaled_omega = omega / np.sqrt(v)
        density, probability_of_zero = (
            stats.norm.pdf(scaled_omega),
            stats.norm.cdf(-scaled_omega),
        )
        revealed_part = 1 - probability_of_zero - scaled_omega * density
        return (
            (revealed_part + density**2 / max(probability_of_zero, 1e-300))
            / v
            * stats.norm.pdf(omega, scale=deviation_of_omega)
        )

    return integrate.quad(
        integrand,
        -8 * deviation_of_omega,
        8 * deviation_of_omega,
        points=[0.0],
        limit=400,
    )[0]


# Published: sphinxteam/tramp, examples/glm/data, from iterations with a loose stop: late by up to 4e-3 of the value.
@pytest.mark.parametrize(
    ("channel", "rho", "published_threshold"),
    [
        ("linear", 0.45, 0.639167),
        ("linear", 0.55, 0.729987),
        ("linear", 0.75, 0.880377),
        ("relu", 0.25, 0.707526),
        ("relu", 0.45, 1.12061),
        ("relu", 0.85, 1.79346),
    ],
)
def test_hard_phase_of_sparse_signals(channel, rho, published_threshold):
    """The hard phase of a Gauss-Bernoulli signal of density rho, observed through this channel, ends where plain integrals and a
    published threshold say; v is the posterior variance.
    """

    problem = smimbench.Problem(
        {"name": "sequence-multi-index", "tokens": 1},
        channel,
        {"name": "gauss-bernoulli", "rho": rho},
    )
    information = relu_information if channel == "relu" else lambda v: 1 / v

    def minus_alpha(log_Qhat):
        """Minus the sample ratio alpha at which state evolution has a fixed point of information Qhat = ``exp(log_Qhat)``, with
        posterior variance V.
        """
        V = problem.prior.overlap(np.exp(log_Qhat) * np.eye(1)).V
        return -np.exp(log_Qhat) / information(float(np.asarray(V)[0, 0]))

    largest_alpha = -optimize.minimize_scalar(
        minus_alpha, bounds=(-2, 8), method="bounded", options={"xatol": 1e-6}
    ).fun
    threshold_document = thresholds(problem).document()
    informed_threshold, algorithmic_threshold = threshold_document["hard_phase"]
    assert informed_threshold == pytest.approx(
        rho * (2 if channel == "relu" else 1), rel=1e-4
    )
    assert algorithmic_threshold == pytest.approx(largest_alpha, rel=1e-6)
    assert algorithmic_threshold == threshold_document["algorithmic"]["value"]
    assert 0 <= published_threshold / algorithmic_threshold - 1 < 4e-3
