"""Quasi-random points: one door, equal names equal points, moments."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from smimbench.numerics.random_numbers import (
    normal_points,
    normal_scrambles,
    uniform_points,
    whitened_points,
)


def test_names_decide_the_points():
    first = uniform_points(3, 64, "a", 0)
    assert first is uniform_points(3, 64, "a", 0)
    assert not np.array_equal(first, uniform_points(3, 64, "a", 1))
    assert not np.array_equal(first, uniform_points(3, 64, "b", 0))
    assert_array_equal(first[:40], uniform_points(3, 40, "a", 0))


def test_scrambles_follow_one_another():
    found = normal_scrambles(2, 32, 3, "a", 7)
    assert found.shape == (96, 2)
    assert_array_equal(found[32:64], normal_points(2, 32, "a", 7, 1))


@pytest.mark.parametrize("paired", [True, False])
def test_whitened_points_have_unit_covariance(paired):
    points = whitened_points(4, 128, "a", 2, paired=paired)
    assert points.shape == (128, 4)
    assert_allclose(points.T @ points / 128, np.eye(4), atol=1e-12)
    assert not points.flags.writeable
    if paired:
        assert_array_equal(points[:64], -points[64:])
