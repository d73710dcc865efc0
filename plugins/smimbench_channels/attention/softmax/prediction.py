"""Errors of prediction of softmax attention between two tokens: integrals of the logistic function over normal laws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from smimbench.numerics import gauss_legendre

__all__ = ["COARSE", "FINE", "two_token_errors"]

# Gauss-Legendre nodes of a panel: the two counts differ by the error, the larger one is the answer. Doubled: errors are
# rounding already, twice the time.
COARSE, FINE = 10, 16
# Range of the standard normal variables, and the distances of the panels from the step of the logistic function, in its widths.
# Doubled: the range leaves out 1e-19 as it is; coarser panels are wrong by more, and say so.
_RANGE = 9.0
_LADDER = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


def two_token_errors(q: float, v: float, beta: float, count: int) -> np.ndarray[Any, Any]:
    """Bayes, plug-in and constant error of the two-token label, by ``count`` Gauss-Legendre nodes in each panel.

    The formulas are those of ``AttentionSoftmax._two_token_error``.
    """
    width, spread = math.sqrt(3 * v), math.sqrt(3 * q)
    # As a function of m the integrand has the steepness of s itself and of s smoothed over u.
    scales = [1 / beta, width]
    t, weights = _normal_panels(np.zeros(1), spread, scales, count)
    variance, square = _logistic_spread(spread * t[0], width, beta, count)
    bayes, plugin = weights[0] @ variance, weights[0] @ square
    constant = _logistic_spread(np.zeros(1), math.sqrt(3 * (q + v)), beta, count)[0][0]
    return 4 * np.array([bayes, plugin, constant])


def _logistic_spread(m: np.ndarray[Any, Any], width: float, beta: float, count: int) -> tuple[Any, Any]:
    """Variance of ``s(beta u)`` and ``E (s(beta u) - s(beta m))^2`` for ``u ~ N(m, width^2)``; m is (k,)."""
    from scipy.special import expit

    x, weights = _normal_panels(m, width, [1 / beta], count)
    centre = beta * m[:, None]
    step = beta * width * x
    low, high = np.minimum(centre, centre + step), np.maximum(centre, centre + step)
    # s(high) - s(low) as a product: the difference of two numbers near 1 would keep no digits.
    difference = np.sign(step) * expit(high) * expit(-low) * -np.expm1(-np.abs(step))
    first = np.sum(weights * difference, axis=1)
    second = np.sum(weights * difference**2, axis=1)
    return second - first**2, second


def _normal_panels(
    centre: np.ndarray[Any, Any], width: float, scales: list[float], count: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Nodes x (k, N) and weights for ``x ~ N(0, 1)``, graded around the zero of ``centre + width x``."""
    ladder = np.concatenate([s * np.array(_LADDER) for s in scales])
    ladder = np.concatenate([-ladder, ladder])
    grid = np.linspace(-_RANGE, _RANGE, 13)
    edges = np.empty((len(centre), len(ladder) + len(grid)))
    edges[:, : len(grid)] = grid
    far = np.where(ladder[None, :] > centre[:, None], _RANGE, -_RANGE)
    steps = (ladder[None, :] - centre[:, None]) / width if width > 0 else far
    edges[:, len(grid) :] = np.clip(steps, -_RANGE, _RANGE)
    edges.sort(axis=1)
    nodes, weights = gauss_legendre(count)
    half = np.diff(edges, axis=1)[:, :, None] / 2
    x = edges[:, :-1, None] + half * (1 + nodes)
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return x.reshape(len(centre), -1), (half * weights * density).reshape(len(centre), -1)
