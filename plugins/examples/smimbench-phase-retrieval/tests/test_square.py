"""Noisy phase retrieval: what the engine makes of a likelihood, against integrals by SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from smimbench_phase_retrieval import Modulus, NoisySquare

import smimbench
from smimbench.derive import complete_channel
from smimbench.registry import get_registry
from smimbench.testing import parametrize_with_checks
from smimbench.theory.information import channel_information
from smimbench.theory.scalar import scalar_curve

MODEL = get_registry().get("model", "sequence-multi-index").item(tokens=1)


@parametrize_with_checks([NoisySquare(), NoisySquare(noise=1.0)])
def test_contract(check):
    """The channel passes every published check, with little and much noise."""
    check()


def moments(y: float, noise: float) -> list[float]:
    """Integrals of 1 and z^2 over the joint law of a standard normal latent z and the label y, for this noise variance."""

    def density(z: float, power: int) -> float:
        """Joint density of z and y times ``z^power``."""
        return (
            z**power
            * math.exp(-((y - z * z) ** 2) / (2 * noise) - z * z / 2)
            / (2 * math.pi * math.sqrt(noise))
        )

    peak = math.sqrt(max(y, 0))
    return [
        2
        * quad(
            density,
            0,
            9,
            args=(power,),
            points=sorted({peak, 1.1 * peak, 0.9 * peak, peak + 1}),
            limit=200,
        )[0]
        for power in (0, 2)
    ]


@pytest.mark.parametrize("noise", [0.03, 1.0])
def test_weak_recovery_threshold(noise):
    """Weak recovery starts where alpha times ``E (E[z^2 | y] - 1)^2``, a mean over the labels y, is 1; the curve of fixed points
    starts there, at a small overlap q.
    """

    def strength(y: float) -> float:
        """Density of the label y times ``(E[z^2 | y] - 1)^2``."""
        label_density, integral_of_z_squared = moments(y, noise)
        return (
            (integral_of_z_squared / label_density - 1) ** 2 * label_density
            if label_density > 0
            else 0.0
        )

    smallest_label = -6 * math.sqrt(noise)
    label_ranges = [
        (smallest_label, 0.0),
        (0.0, 1.0),
        (1.0, 4.0),
        (4.0, 60 + 6 * math.sqrt(noise)),
    ]
    mean_strength = sum(
        quad(strength, *label_range, limit=200, epsabs=1e-6, epsrel=1e-6)[0]
        for label_range in label_ranges
    )
    problem = smimbench.Problem(
        {"name": "sequence-multi-index", "tokens": 1},
        {"name": "noisy-square", "noise": noise},
        "gaussian",
    )
    weak_threshold = scalar_curve(problem).weak_limit()
    assert weak_threshold.error < 1e-4 * weak_threshold.value
    assert weak_threshold.value == pytest.approx(1 / mean_strength, rel=1e-5)
    assert (
        weak_threshold.value > 0.5
    )  # noise makes it harder than the noiseless channel
    # The curve starts there.
    q = 1e-3
    information = channel_information(
        problem.channel, MODEL, np.array([[q]]), np.array([[1 - q]])
    )
    assert q / information.value[0, 0] == pytest.approx(weak_threshold.value, rel=5e-3)


def test_little_noise_is_no_noise():
    """With little noise the posterior given labels y of latents N(omega, V) tends to that of the noiseless channel whose label is
    squared.
    """
    rng = np.random.default_rng(5)
    omega, V = rng.standard_normal((200, 1, 1)), np.array([[0.4]])
    y = np.abs(omega + math.sqrt(0.4) * rng.standard_normal(omega.shape))
    y = np.maximum(y, 0.3)  # where the square is flat the noise counts
    noiseless_posterior = Modulus(tokens=1).posterior(y, omega, V)
    posterior = complete_channel(NoisySquare(noise=1e-4), MODEL).posterior(
        y * y, omega, V
    )
    assert np.abs(posterior.mean - noiseless_posterior.mean).max() < 0.02
    assert posterior.covariance[0, 0] == pytest.approx(
        noiseless_posterior.covariance[0, 0], abs=3e-3
    )


@pytest.mark.parametrize(
    ("key", "value"), [("noise", 0.0), ("noise", math.inf), ("tokens", 2)]
)
def test_bad_parameters_are_named(key, value):
    """An invalid ``value`` of the parameter ``key`` raises an error that names it."""
    with pytest.raises(smimbench.ParameterError, match=key):
        NoisySquare(**{key: value})
