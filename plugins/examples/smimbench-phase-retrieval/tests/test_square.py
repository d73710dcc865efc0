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
    check()


def moments(y: float, noise: float) -> list[float]:
    """Integrals of 1 and z^2 over the law of z and the label y."""

    def density(z: float, power: int) -> float:
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
            args=(k,),
            points=sorted({peak, 1.1 * peak, 0.9 * peak, peak + 1}),
            limit=200,
        )[0]
        for k in (0, 2)
    ]


@pytest.mark.parametrize("noise", [0.03, 1.0])
def test_weak_recovery_threshold(noise):
    """Learning starts where alpha times ``E (E[z^2 | y] - 1)^2`` is 1, with the label's own law."""

    def strength(y: float) -> float:
        mass, square = moments(y, noise)
        return (square / mass - 1) ** 2 * mass if mass > 0 else 0.0

    lowest = -6 * math.sqrt(noise)
    parts = [(lowest, 0.0), (0.0, 1.0), (1.0, 4.0), (4.0, 60 + 6 * math.sqrt(noise))]
    inverse = sum(
        quad(strength, *ends, limit=200, epsabs=1e-6, epsrel=1e-6)[0] for ends in parts
    )
    problem = smimbench.Problem(
        {"name": "sequence-multi-index", "tokens": 1},
        {"name": "noisy-square", "noise": noise},
        "gaussian",
    )
    found = scalar_curve(problem).weak_limit()
    assert found.error < 1e-4 * found.value
    assert found.value == pytest.approx(1 / inverse, rel=1e-5)
    assert found.value > 0.5  # noise makes it harder than the noiseless channel
    # The curve starts there.
    q = 1e-3
    information = channel_information(
        problem.channel, MODEL, np.array([[q]]), np.array([[1 - q]])
    )
    assert q / information.value[0, 0] == pytest.approx(found.value, rel=5e-3)


def test_little_noise_is_no_noise():
    """The posterior tends to that of the noiseless channel, label squared."""
    rng = np.random.default_rng(5)
    omega, V = rng.standard_normal((200, 1, 1)), np.array([[0.4]])
    y = np.abs(omega + math.sqrt(0.4) * rng.standard_normal(omega.shape))
    y = np.maximum(y, 0.3)  # where the square is flat the noise counts
    exact = Modulus(tokens=1).posterior(y, omega, V)
    found = complete_channel(NoisySquare(noise=1e-4), MODEL).posterior(y * y, omega, V)
    assert np.abs(found.mean - exact.mean).max() < 0.02
    assert found.covariance[0, 0] == pytest.approx(exact.covariance[0, 0], abs=3e-3)


@pytest.mark.parametrize(
    ("key", "value"), [("noise", 0.0), ("noise", math.inf), ("tokens", 2)]
)
def test_bad_parameters_are_named(key, value):
    with pytest.raises(smimbench.ParameterError, match=key):
        NoisySquare(**{key: value})
