"""Hermite labels: the published checks, orthogonality, and the linear channel for h1."""

from __future__ import annotations

import math

import numpy as np
import pytest
from smimbench_hermite import FirstHermite, SecondHermite, ThirdHermite

import smimbench
from smimbench.numerics import gauss_hermite
from smimbench.testing import parametrize_with_checks
from smimbench.theory.predictions import solve

CHANNELS = (FirstHermite, SecondHermite, ThirdHermite)


@parametrize_with_checks([channel() for channel in CHANNELS])
def test_contract(check):
    """The channels pass every published check."""
    check()


def test_polynomials_of_latents_with_the_stated_variance_are_orthonormal():
    nodes, weights = gauss_hermite(40)
    z = math.sqrt(1.7) * nodes[:, None, None]
    labels = np.stack([channel(variance=1.7).predict(z) for channel in CHANNELS])
    products = np.einsum("incd,jncd,n->ij", labels, labels, weights / weights.sum())
    np.testing.assert_allclose(products, np.eye(3), atol=1e-10)


def test_polynomials_are_those_of_the_paper():
    x = np.linspace(-2, 2, 9)[:, None, None]
    expected = (x, (x**2 - 1) / math.sqrt(2), (x**3 - 3 * x) / math.sqrt(6))
    for channel, values in zip(CHANNELS, expected):
        np.testing.assert_allclose(channel().predict(x), values, atol=1e-12)


@pytest.mark.slow
def test_first_polynomial_has_the_limit_of_linear_labels():
    model = {"name": "attention-indexed", "tokens": 1}
    wishart = {"name": "wishart", "rho": 0.5}
    # Labels of the linear channel are z sqrt(2), with noise of twice its variance.
    linear = smimbench.Problem(model, {"name": "linear", "noise": 0.15}, wishart)
    first = {"name": "h1", "noise": 0.1, "variance": 1.5}
    point, expected = (
        solve(problem, [0.3])[0]
        for problem in (smimbench.Problem(model, first, wishart), linear)
    )
    assert point.mse[0] == pytest.approx(expected.mse[0], abs=4 * point.error[0])
    assert point.error[0] < 0.02 * point.mse[0]


@pytest.mark.parametrize(
    ("key", "value"), [("noise", 0.0), ("variance", math.inf), ("tokens", 2)]
)
def test_bad_parameters_are_named(key, value):
    with pytest.raises(smimbench.ParameterError, match=key):
        SecondHermite(**{key: value})
