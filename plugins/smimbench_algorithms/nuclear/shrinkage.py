r"""Spectral proximal denoiser: soft threshold of the eigenvalues of ``R = S + sqrt(Delta) Z``.

The proximal map of ``theta |S|_*`` keeps the eigenvectors of R and moves its eigenvalues towards zero by theta,

.. math:: f(x) = \operatorname{sign}(x)\, (|x| - \theta)_+, \qquad \text{among } S \succeq 0: \quad f(x) = (x - \theta)_+ .

In the limit everything is a mean over the eigenvalues x of R, a free convolution with the semicircle. With mean xi(x) and
variance of S in the direction of an eigenvector of R,

.. math::

    \frac{|f(R) - S|_F^2}{D} \to E\,[(f - \xi)^2 + \mathrm{Var}], \qquad \frac{\operatorname{tr} f(R) S}{D} \to E f \xi, \qquad
    \frac{\operatorname{div} f}{D^2 / 2} \to \iint \frac{f(x) - f(y)}{x - y} = 2 E f\, \mathrm{Re}\, g
    = \frac{E f (x - \xi)}{\Delta} .

Checked by tests/algorithms/test_nuclear.py against large random matrices.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.backend import clip

if TYPE_CHECKING:
    from smimbench.interfaces import Array
    from smimbench.theory import Host


class Shrunk(NamedTuple):
    """The denoiser in the limit.

    Attributes
    ----------
    error : float
        ``|f(R) - S|_F^2 / D``.
    overlap, square, trace : float
        ``tr f(R) S / D``, ``|f(R)|_F^2 / D`` and ``|f(R)|_* / D``.
    freedom : float
        ``div f / (D^2 / 2)``, degrees of freedom over those of a symmetric matrix: 1 for the identity.
    rank : float
        Rank over D.
    uncertain : float
        Numerical error of ``error``.
    """

    error: float
    overlap: float
    square: float
    trace: float
    freedom: float
    rank: float
    uncertain: float = 0.0


def shrink(x: Array, threshold: float, positive: bool) -> Array:
    """Eigenvalues of the proximal map, for eigenvalues x of any shape."""
    moved = clip(x - threshold, 0.0, None)
    return moved if positive else moved - clip(-x - threshold, 0.0, None)


def shrunk(prior: Any, noise: float, threshold: float, positive: bool) -> Shrunk:
    """The denoiser of ``R = S + sqrt(noise) Z``, noise > 0, for a prior whose ``law`` has ``spectral_means``."""

    def function(x: Host, mean: Host, variance: Host) -> Host:
        f = shrink(x, threshold, positive)
        lost = (f - mean) ** 2 + variance
        return np.stack([lost, f * mean, f * f, np.abs(f), f * (x - mean) / noise, (f != 0).astype(float)])

    breaks = (threshold,) if positive else (-threshold, threshold)
    found = prior.law.spectral_means(function, noise, breaks)
    return Shrunk._make([*map(float, found.value), float(np.asarray(found.error)[0])])


def shrunk_spectrum(prior: Any, noise: float, threshold: float, positive: bool) -> dict[str, Any]:
    """Spectrum of f(R): ``mass`` between 61 neighbouring ``edges`` without that of the zeros, and the ``zeros``."""
    top = spectral_end(prior, noise, 1) - threshold
    bottom = 0.0 if positive else -(spectral_end(prior, noise, -1) - threshold)
    ends = np.linspace(min(bottom, 0.0), max(top, 1e-3), 61)

    def function(x: Host, mean: Host, variance: Host) -> Host:
        f = shrink(x, threshold, positive)
        where = np.searchsorted(ends, f, side="right") - 1
        inside = [(where == k) & (f != 0) for k in range(len(ends) - 1)]
        return np.stack([*inside, f == 0]).astype(float)

    # An eigenvalue f of the estimate comes from f + theta, or from f - theta below zero.
    breaks = {float(e) + math.copysign(threshold, e) for e in ends} | {threshold, -threshold}
    mass = np.asarray(prior.law.spectral_means(function, noise, sorted(breaks)).value)
    return {"edges": ends.tolist(), "mass": mass[:-1].tolist(), "zeros": float(mass[-1])}


def spectral_end(prior: Any, noise: float, sign: int) -> float:
    """Largest ``sign x`` among the eigenvalues x of ``S + sqrt(noise) Z``, except for a fraction 1e-9."""
    from scipy.optimize import brentq

    def beyond(end: float) -> float:
        found = prior.law.spectral_means(lambda x, *_: (sign * x > end)[None, :].astype(float), noise, (sign * end,))
        return float(found.value[0]) - 1e-9

    high = 2 * math.sqrt(noise)
    while beyond(high) > 0:
        high *= 2
    low = -high
    while beyond(low) < 0:
        low *= 2
    return float(brentq(beyond, low, high, rtol=1e-6, xtol=1e-9))


def null_eigenvalues(prior: Any) -> float:
    """Fraction of the eigenvalues of S that are zero: those within a tiny noise."""
    noise = 1e-18
    size = 3 * math.sqrt(noise)

    def function(x: Host, mean: Host, variance: Host) -> Host:
        return (np.abs(x) < size)[None, :].astype(float)

    return float(prior.law.spectral_means(function, noise, (-size, size)).value[0])
