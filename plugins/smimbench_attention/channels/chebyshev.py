"""Chebyshev polynomials in ``s = sqrt(V / (Q + V))`` fitted to sampled information, which is costly to compute."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from smimbench.interfaces import Host


class Polynomials(NamedTuple):
    """Fitted Chebyshev polynomial (degree + 1, scrambles) in ``2 s - 1`` for each scramble, and the error of the fit.

    One column alone has no noise.
    """

    coefficients: Host
    fit_error: float

    def __call__(self, s: Host) -> tuple[Host, Host]:
        """Value at ``s`` and its error, from the spread over scrambles and the error of the fit."""
        values = np.polynomial.chebyshev.chebval(2 * s - 1, self.coefficients)
        mean = values.mean(axis=0)
        noise = (
            values.std(axis=0, ddof=1) / math.sqrt(len(values))
            if len(values) > 1
            else 0.0
        )
        return mean, np.hypot(noise, self.fit_error * mean)


def lobatto_points(count: int) -> Host:
    """Chebyshev-Lobatto points on [0, 1], both ends included."""
    return np.asarray((1 - np.cos(math.pi * np.arange(count) / (count - 1))) / 2)


def fitted(
    s: Host, values: Host, standard_error: Host, degree: int, fit_error: float
) -> Polynomials:
    """Least-squares fit through estimates (points, scrambles) of standard error ``standard_error`` (points,)."""
    basis = np.polynomial.chebyshev.chebvander(2 * s - 1, degree)
    fit = np.linalg.pinv(basis / standard_error[:, None], rcond=1e-14) / standard_error
    return Polynomials(fit @ values, fit_error)
