"""Polynomials in ``s = sqrt(V / (Q + V))`` through randomised estimates, for information that is costly to compute each time."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from smimbench.interfaces import Host


class Polynomials(NamedTuple):
    """A polynomial (degree + 1, scrambles) for each scramble, in Chebyshev's basis of ``2 s - 1``; error of the fit.

    One column alone has no noise.
    """

    coefficients: Host
    fit_error: float

    def __call__(self, s: Host) -> tuple[Host, Host]:
        """Value and error at ``s``: the standard error over the scrambles, and the error of the fit."""
        values = np.polynomial.chebyshev.chebval(2 * s - 1, self.coefficients)
        mean = values.mean(axis=0)
        noise = values.std(axis=0, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        return mean, np.hypot(noise, self.fit_error * mean)


def lobatto_points(count: int) -> Host:
    """Chebyshev-Lobatto points on [0, 1], both ends included."""
    return np.asarray((1 - np.cos(math.pi * np.arange(count) / (count - 1))) / 2)


def fitted(s: Host, values: Host, spread: Host, degree: int, fit_error: float) -> Polynomials:
    """Least squares through estimates (points, scrambles) of standard error ``spread`` (points,)."""
    basis = np.polynomial.chebyshev.chebvander(2 * s - 1, degree)
    fit = np.linalg.pinv(basis / spread[:, None], rcond=1e-14) / spread
    return Polynomials(fit @ values, fit_error)
