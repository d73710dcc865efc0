"""Values by panels of Chebyshev polynomials against the function itself."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from smimbench.numerics.chebyshev import NODES, values_by_panels


class Counted:
    """A function of two outputs that counts where it is evaluated."""

    def __init__(self, one, two):
        self.parts = (one, two)
        self.count = 0

    def __call__(self, x):
        self.count += len(x)
        return np.stack([part(x) for part in self.parts], axis=1)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_smooth_functions_take_few_evaluations(rng, scale):
    function = Counted(
        lambda x: np.tanh(3 * x / scale), lambda x: np.exp(-((x / scale) ** 2))
    )
    x = scale * rng.standard_normal(20_000)
    found = values_by_panels(function, x, np.array([1e-9, 1e-9]))
    assert function.count < 1500
    assert_allclose(found, function(x), rtol=0, atol=1e-8)


def test_a_narrow_step_is_found_between_smooth_parts(rng):
    function = Counted(lambda x: np.tanh(1e4 * (x - 0.123)), np.cos)
    x = rng.uniform(-2, 3, 50_000)
    found = values_by_panels(function, x, np.array([1e-6, 1e-6]))
    assert function.count < len(x) / 10
    assert_allclose(found, function(x), rtol=0, atol=1e-5)


def test_what_no_polynomial_follows_is_evaluated(rng):
    function = Counted(lambda x: np.sign(x - 0.3), lambda x: np.sin(1e9 * x))
    x = rng.uniform(0, 1, 3000)
    assert_array_equal(
        values_by_panels(function, x, np.array([1e-6, 1e-6])), function(x)
    )


@pytest.mark.parametrize(
    "x", [[], [0.7], [0.7] * 40, [0.0] * 20 + [1.0] * 20, np.arange(NODES + 1.0)]
)
def test_few_points_and_equal_ones(x):
    function = Counted(np.cos, np.sin)
    x = np.array(x, dtype=float)
    found = values_by_panels(function, x, np.array([1e-9, 1e-9]))
    assert found.shape == (len(x), 2)
    assert_allclose(found, function(x), rtol=0, atol=1e-8)
