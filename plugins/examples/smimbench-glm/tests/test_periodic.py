"""A periodic neuron: the published checks, and its curve against integrals that share no code with the engine."""

from __future__ import annotations

import numpy as np
import pytest
from smimbench_glm import Periodic

import smimbench
from smimbench.derive import complete_channel
from smimbench.registry import get_registry
from smimbench.testing import parametrize_with_checks

MODEL = get_registry().get("model", "sequence-multi-index").item(tokens=1)


@parametrize_with_checks([Periodic()])
def test_contract(check):
    check()


def information(channel, q):
    """``E (d log p(y | omega) / d omega)^2`` for ``omega ~ N(0, q)`` by sums over grids of the latent and the label."""
    t = np.linspace(-7, 7, 281)
    weight = np.exp(-t * t / 2) / np.exp(-t * t / 2).sum()
    y = (1 + 6 * np.sqrt(channel.noise) + 4 * channel.slope) * np.linspace(-1, 1, 161)
    total = 0.0
    for omega, mass in zip(np.sqrt(q) * t[::4], weight[::4] / weight[::4].sum()):
        z = omega + np.sqrt(1 - q) * t
        law = np.exp(
            -((y[:, None] - np.sin(channel.frequency * z) + channel.slope * z) ** 2)
            / (2 * channel.noise)
        )
        law /= np.sqrt(2 * np.pi * channel.noise)
        slope, density = law @ (weight * t) / np.sqrt(1 - q), law @ weight
        total += mass * np.sum(slope**2 / density) * (y[1] - y[0])
    return total


@pytest.mark.parametrize(("q", "slope"), [(0.2, 0.0), (0.7, 0.4)])
def test_information_is_that_of_plain_integrals(q, slope):
    channel = Periodic(frequency=2.2, noise=1.0, slope=slope)
    found = complete_channel(channel, MODEL).information(
        np.array([[q]]), np.array([[1 - q]])
    )
    assert found.value[0, 0] == pytest.approx(information(channel, q), rel=1e-2)


def test_the_curve_turns_back_where_the_phase_is_hard():
    """``alpha(q) = q / ((1 - q) I(q))`` has a largest value and a smallest one behind it: two fixed points between."""
    q = np.linspace(0.1, 0.9, 33)
    curve = (
        q / (1 - q) / [information(Periodic(frequency=2.2, noise=1.0), x) for x in q]
    )
    top = np.argmax(curve[:16])
    assert curve[top] == pytest.approx(7.2, abs=0.1)
    assert curve[top:].min() == pytest.approx(5.57, abs=0.1)


@pytest.mark.parametrize(
    ("key", "value"),
    [("noise", 0.0), ("frequency", -1.0), ("slope", -1.0), ("tokens", 2)],
)
def test_bad_parameters_are_named(key, value):
    with pytest.raises(smimbench.ParameterError, match=key):
        Periodic(**{key: value})
