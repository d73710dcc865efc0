"""Means with the help of numbers whose mean is known to be zero, and how sure they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["controlled_mean"]

Host = np.ndarray[Any, Any]


def controlled_mean(
    samples: Sequence[Host], controls: Sequence[Host], *, faintest: float = 0.0, collinear: float = 1e-9
) -> tuple[Host, Host]:
    """Means of several random numbers, less their regression on numbers with mean zero.

    Parameters
    ----------
    samples : sequence of R arrays (n, J)
        One array per scramble.
    controls : sequence of R arrays (n, K)
        The same control variates for all J numbers, with mean exactly zero. K may be 0.
    faintest : float
        Controls of a smaller standard deviation are left out: numerical error would not have mean zero.
    collinear : float
        Controls may repeat one another: directions with singular values below this fraction are left out of the regression.

    Returns
    -------
    value, error : ndarray (J,)
        Mean over the scrambles of ``mean(y - b . x)``, and its standard error from the spread of the R means. The
        coefficients b of a scramble are fitted by least squares on all others: neither is flattered by the fit.
    """
    centred = [x - x.mean(0) for x in controls]
    grams = [x.T @ x for x in centred]
    mixed = [x.T @ (y - y.mean(0)) for x, y in zip(centred, samples)]
    gram, mix = sum(grams), sum(mixed)
    limit = faintest * np.sqrt(sum(len(x) for x in controls))
    estimates = []
    for y, x, own_gram, own_mix in zip(samples, controls, grams, mixed):
        left, right = gram - own_gram, mix - own_mix
        scale = np.sqrt(np.maximum(np.diagonal(left), 0.0))
        alive = scale > limit
        inverse = np.where(alive, 1 / np.where(alive, scale, 1.0), 0.0)
        unit = left * inverse * inverse[:, None]
        slope = np.linalg.lstsq(unit, right * inverse[:, None], rcond=collinear)[0]
        estimates.append(y.mean(0) - (x.mean(0) * inverse) @ slope)
    stacked = np.stack(estimates)
    return stacked.mean(0), stacked.std(0, ddof=1) / np.sqrt(len(estimates))
