"""Means over random samples with control variates, and what they need: normal points, honest standard errors.

Monte Carlo noise is an error of theory like any other, so every mean comes with its standard error. It is taken over
independent scrambles, and the coefficients of the control variates of a scramble are fitted on the other ones: neither the
mean nor its error is flattered by the fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.interfaces import Array

__all__ = ["SCRAMBLES", "controlled_mean", "normal_points"]

SCRAMBLES = 16


def normal_points(dimension: int, points: int, *seed: int) -> np.ndarray[Any, Any]:
    """One scramble of a Sobol sequence, mapped to independent standard normal numbers.

    Parameters
    ----------
    dimension : int
    points : int
        A power of 2 keeps the sequence balanced.
    *seed : int
        Names the scramble: equal seeds give equal points.

    Returns
    -------
    ndarray (points, dimension)
    """
    from scipy.special import ndtri
    from scipy.stats import qmc

    uniform = qmc.Sobol(dimension, scramble=True, rng=np.random.default_rng(seed)).random(points)
    return np.asarray(ndtri(np.clip(uniform, 1e-16, 1 - 1e-16)))


def controlled_mean(samples: Sequence[Array], controls: Sequence[Array]) -> tuple[float, float]:
    """Mean of a random number with the help of others whose mean is zero.

    Parameters
    ----------
    samples : sequence of R arrays (n,)
        One array per scramble.
    controls : sequence of R arrays (n, K)
        Numbers with mean exactly zero. K may be 0.

    Returns
    -------
    value, error : float
        Mean over the scrambles of ``mean(y - b . x)``, with ``b`` fitted by least squares on all other scrambles, and its
        standard error from the spread of the R means.
    """
    count = len(samples)
    width = controls[0].shape[1]
    grams, mixed, means, mean_controls = [], [], [], []
    for y, x in zip(samples, controls):
        centred = x - x.mean(0)
        grams.append(centred.T @ centred / len(y))
        mixed.append(centred.T @ (y - y.mean()) / len(y))
        means.append(y.mean())
        mean_controls.append(x.mean(0))
    gram, mix = sum(grams), sum(mixed)
    estimates = np.empty(count)
    for k in range(count):
        correction = 0.0
        if width:
            left, right = gram - grams[k], mix - mixed[k]
            # Controls may be proportional to one another, or vanish: least squares of the unit-scaled system.
            scale = np.sqrt(np.maximum(np.diagonal(left), 0.0))
            inverse = np.where(scale > 0, 1 / np.where(scale > 0, scale, 1), 0)
            slope = (
                inverse * np.linalg.lstsq(left * inverse * inverse[:, None], right * inverse, rcond=1e-9)[0]
            )
            correction = float(slope @ mean_controls[k])
        estimates[k] = means[k] - correction
    return float(estimates.mean()), float(estimates.std(ddof=1) / np.sqrt(count))
