"""Corrections of points across a curve of fixed points."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from smimbench.theory.curve_stages import Corrector


def test_noise_of_a_correction_is_that_of_noisy_sample_ratios():
    rng = np.random.default_rng(4)
    corrector = Corrector(SimpleNamespace(sampled=True))
    moving = [0, 2, 3]
    slope = rng.standard_normal((4, 4)) + 3 * np.eye(4)
    tangent = rng.standard_normal(4)
    tangent[1] = 0.0
    error = np.array([0.02, 0.5, 0.03, 0.01])
    steps = [corrector._correction(moving, 1.0 + error * rng.standard_normal(4), slope, tangent) for _ in range(20_000)]
    found = corrector._noise(moving, error, slope, tangent)
    np.testing.assert_allclose(found, np.std(steps, axis=0).max(), rtol=0.03)
    assert corrector._noise([2], error, slope, tangent) == 0.0
