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
    """The periodic channel passes every published check."""

    check()


def information(channel, q):
    """Fisher information ``E (d log p(y | omega) / d omega)^2`` of the channel's label y about the latent's mean ``omega ~ N(0,
    q)``, by sums over grids of the latent z and of y.
    """
    unit_grid = np.linspace(-7, 7, 281)
    weight = (
        np.exp(-unit_grid * unit_grid / 2) / np.exp(-unit_grid * unit_grid / 2).sum()
    )
    y = (1 + 6 * np.sqrt(channel.noise) + 4 * channel.slope) * np.linspace(-1, 1, 161)
    total_information = 0.0
    for omega, weight_of_omega in zip(
        np.sqrt(q) * unit_grid[::4], weight[::4] / weight[::4].sum()
    ):
        z = omega + np.sqrt(1 - q) * unit_grid
        likelihood = np.exp(
            -((y[:, None] - np.sin(channel.frequency * z) + channel.slope * z) ** 2)
            / (2 * channel.noise)
        )
        likelihood /= np.sqrt(2 * np.pi * channel.noise)
        density_derivative, density = (
            likelihood @ (weight * unit_grid) / np.sqrt(1 - q),
            likelihood @ weight,
        )
        total_information += (
            weight_of_omega * np.sum(density_derivative**2 / density) * (y[1] - y[0])
        )
    return total_information


@pytest.mark.parametrize(("q", "slope"), [(0.2, 0.0), (0.7, 0.4)])
def test_information_is_that_of_plain_integrals(q, slope):
    """The engine's information at the overlap q agrees with plain sums over grids, for a channel with this slope."""

    channel = Periodic(frequency=2.2, noise=1.0, slope=slope)
    engine_information = complete_channel(channel, MODEL).information(
        np.array([[q]]), np.array([[1 - q]])
    )
    assert engine_information.value[0, 0] == pytest.approx(
        information(channel, q), rel=1e-2
    )


def test_the_curve_turns_back_where_the_phase_is_hard():
    """The sample ratio ``alpha(q) = q / ((1 - q) I(q))`` of a fixed point at the overlap q, with I the information, has a maximum
    followed by a minimum; between these values of alpha two fixed points are stable and the phase is hard.
    """
    q = np.linspace(0.1, 0.9, 33)
    alphas = (
        q
        / (1 - q)
        / [information(Periodic(frequency=2.2, noise=1.0), overlap) for overlap in q]
    )
    index_of_maximum = np.argmax(alphas[:16])
    assert alphas[index_of_maximum] == pytest.approx(7.2, abs=0.1)
    assert alphas[index_of_maximum:].min() == pytest.approx(5.57, abs=0.1)


@pytest.mark.parametrize(
    ("key", "value"),
    [("noise", 0.0), ("frequency", -1.0), ("slope", -1.0), ("tokens", 2)],
)
def test_bad_parameters_are_named(key, value):
    """An invalid ``value`` of the parameter ``key`` raises an error that names it."""

    with pytest.raises(smimbench.ParameterError, match=key):
        Periodic(**{key: value})
