"""Gauss rules on polynomials that they integrate exactly."""

import math

import numpy as np
import pytest

from smimbench.numerics.quadrature import (
    gauss_hermite,
    gauss_kronrod,
    gauss_legendre,
    gauss_lobatto,
    gaussian_trapezoid,
    half_plane_hermite,
)


@pytest.mark.parametrize(("rule", "degree"), [(gauss_legendre, 11), (gauss_lobatto, 9)])
def test_powers_on_the_interval(rule, degree):
    x, w = rule(6)
    for power in range(degree + 1):
        assert w @ x**power == pytest.approx(
            (1 + (-1) ** power) / (power + 1), abs=1e-14
        )


def test_an_interval_of_ones_own():
    x, w = gauss_legendre(8, 1.0, 3.0)
    assert w @ np.exp(x) == pytest.approx(math.exp(3) - math.exp(1), rel=1e-12)


@pytest.mark.parametrize(
    ("rule", "count"), [(gauss_hermite, 8), (gaussian_trapezoid, 65)]
)
def test_normal_moments(rule, count):
    x, w = rule(count)
    for power, moment in ((0, 1.0), (1, 0.0), (2, 1.0), (4, 3.0), (6, 15.0)):
        assert w @ x**power == pytest.approx(moment, abs=1e-11)


def test_half_plane():
    (x, y), w = half_plane_hermite(8)
    assert (y > 0).all()
    assert np.sum(w) == pytest.approx(1.0)
    assert np.sum(w * x**2 * y**4) == pytest.approx(3.0)


def test_kronrod_nodes_hold_those_of_gauss():
    nodes, kronrod, gauss = gauss_kronrod()
    assert np.allclose(nodes[1::2], np.polynomial.legendre.leggauss(7)[0], atol=1e-15)
    for power in range(
        24
    ):  # 15 nodes, 7 of them given: exact to degree 22, and to 23 by symmetry
        exact = (1 - (-1) ** (power + 1)) / (power + 1)
        assert kronrod @ nodes**power == pytest.approx(exact, abs=1e-15)
        if power < 14:
            assert gauss @ nodes[1::2] ** power == pytest.approx(exact, abs=1e-15)
