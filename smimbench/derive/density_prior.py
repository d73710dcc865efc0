"""Priors of low-rank signals given by the density of their entries: posterior mean and error by quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from smimbench.backend.arrays import NUMPY, clip, matching, namespace, to_host
from smimbench.derive.channel import IntegratedChannel
from smimbench.derive.derived_prior import DerivedLaw, error_curve
from smimbench.interfaces import Array, Channel, Denoised, Host, ParameterError, Prior
from smimbench.numerics.chebyshev import values_by_panels
from smimbench.numerics.linalg import inverse_root, is_diagonal, spectral_function
from smimbench.numerics.line_integrals import IMPOSSIBLE, line_moments
from smimbench.numerics.seeds import monte_carlo_rng


class DensityPrior(DerivedLaw):
    r"""Prior of signals (P, D) with iid entries of density ``exp(log_density(w))``, not necessarily normalized.

    The posterior of a column given ``R = W + Qhat^{-1/2} Z`` is ``prod_p p(w_p) N(w; R, Qhat^{-1})``. Entry by entry for
    diagonal ``Qhat`` (adaptive quadrature), jointly otherwise (quasi-random points, up to 12 components).

    Parameters
    ----------
    prior : object
        With ``law.log_density(w) -> array``, elementwise on float64 arrays of any namespace, ``-inf`` outside the support. The
        law needs a finite variance; atoms have no density: give such a prior a ``denoise``. If it has a ``sample`` of its
        own, that is used and the law is taken as it is; otherwise it is scaled to unit variance.

    References
    ----------
    Derived, checked by tests/derive/test_derived_prior.py.
    """

    def __init__(self, prior: Prior) -> None:
        super().__init__(prior)
        self._log_density: Any = prior.law.log_density
        points, mass = self._support()
        height = np.exp(mass - mass.max())
        cumulative = np.concatenate([[0.0], np.cumsum((height[1:] + height[:-1]) / 2)])
        total, positive, negative, square = self._log_moments()
        self._norm = total + math.log(math.sqrt(2 * math.pi))
        center = math.exp(positive - total) - math.exp(negative - total)
        second = math.exp(square - total)
        variance = second - center * center
        if not self._norm > IMPOSSIBLE / 2:
            raise ParameterError(
                "log_density",
                "must be the log-density of a law, but the density is 0 everywhere",
            )
        if not variance > 1e-12 * second:
            raise ParameterError(
                "log_density",
                f"must be the log-density of a law whose variance exceeds rounding, got {variance:g}",
            )
        self._set_scale(center, variance)
        self._grid = points / self.unit, cumulative / cumulative[-1]
        # Quadratures need to be told where 1/64 of the law lies within a fiftieth of its width.
        steps = np.interp(np.linspace(0, 1, 65)[1:-1], self._grid[1], self._grid[0])
        lengths = np.diff(steps)
        self._finest = float(lengths.min())
        narrow = lengths < 0.02 * math.sqrt(self.variance)
        ends = np.concatenate([steps[:-1][narrow], steps[1:][narrow]])
        self._narrow_places = np.unique(ends).tolist()

    def _support(self) -> tuple[Host, Host]:
        """Grid of points ``w = sinh(t)``, uniform in t, that covers the mass of the law, and the log-density of t there."""
        t = np.linspace(-38.0, 38.0, 40_001)
        mass = self._log_density_of_sinh(t)
        # The tails of the second moment decide whether there is one.
        tails = (mass + 2 * np.log(np.abs(np.sinh(t)) + 1e-300))[[0, -1]]
        if tails.max() > max(mass.max() - 1, IMPOSSIBLE / 2):
            raise ParameterError(
                "log_density",
                "must be the log-density of a law with finite variance, but it does not decrease far from 0",
            )
        for _ in range(3):  # zoom to where the mass is
            inside = np.flatnonzero(mass >= mass.max() - 60)
            low = t[max(inside[0] - 1, 0)]
            high = t[min(inside[-1] + 1, len(t) - 1)]
            t = np.linspace(low, high, len(t))
            mass = self._log_density_of_sinh(t)
        return np.sinh(t), mass

    def _log_density_of_sinh(self, t: Host) -> Host:
        """Log-density of the variable t for which ``w = sinh(t)`` follows the prior."""
        return self._raw_log_density(np.sinh(t)) + np.log(np.cosh(t))

    def _log_moments(self) -> Host:
        """Logarithms of the mass of the density, the two halves of its first moment, and its second moment.

        They are integrated over ``w = sinh(t)``; the halves are those of positive and of negative numbers.
        Scales up to 1e16 are reached; where the law jumps the integrals end there.
        """

        def log_weight(t: Host, lines: Host) -> Host:
            w = np.sinh(t)
            size = np.log(np.abs(w) + 1e-300)
            signs = (np.where(side * w > 0, size, IMPOSSIBLE) for side in (1, -1))
            factors = np.stack([np.zeros_like(w), *signs, 2 * size])
            factor = factors[lines, np.arange(len(lines))]
            log_density = self._raw_log_density(w) + factor
            return np.asarray(log_density + np.log(np.cosh(t)) + t * t / 2)

        moments = line_moments(
            log_weight, 4, NUMPY, None, tolerance=1e-8, reach=38.0, rounds=400
        )
        return np.asarray(moments.log_norm)

    def _raw_log_density(self, w: Host) -> Host:
        """Log-density of the prior at ``w`` as its author defined it, before scaling, as a host array."""
        with np.errstate(all="ignore"):
            log_density = np.asarray(to_host(self._log_density(w)), dtype=np.float64)
        if log_density.shape != w.shape:
            raise ParameterError(
                "log_density",
                f"must return an array with the same shape as its argument, {w.shape}, got {log_density.shape}",
            )
        if np.isnan(log_density).any() or (log_density == math.inf).any():
            raise ParameterError(
                "log_density",
                "returned a number that is not finite (only -inf is allowed)",
            )
        return np.maximum(log_density, IMPOSSIBLE)

    def sample(self, rng: np.random.Generator, components: int, dimension: int) -> Host:
        """Draw a signal (P, D) on the host, float64."""
        points, cumulative = self._grid
        return np.interp(rng.random((components, dimension)), cumulative, points)

    def mean(self, components: int, dimension: int) -> Host:
        """Prior mean of the signal (P, D), host."""
        return np.full((components, dimension), self.center)

    def denoise(self, R: Array, Qhat: Array) -> Denoised:
        """Posterior mean (P, D) given ``R = W + Qhat^{-1/2} Z``, and its error V (P, P): the mean posterior covariance.

        ``Qhat`` (P, P) is positive semidefinite; where it is 0 nothing is known beyond the prior.
        """
        host = np.asarray(to_host(Qhat), dtype=np.float64)
        if not is_diagonal(host):
            return self._denoise_jointly(R, host)
        rows = np.asarray(to_host(R), dtype=np.float64)
        estimate = np.empty(rows.shape)
        errors = np.empty(len(rows))
        for p, information in enumerate(np.diagonal(host).tolist()):
            estimate[p], variance = self._moments_of_entries(rows[p], information)
            errors[p] = variance.mean()
        xp = namespace(R)
        return Denoised(
            xp.asarray(estimate, **matching(R)),
            xp.asarray(np.diag(errors), **matching(R)),
        )

    def _moments_of_entries(self, r: Host, information: float) -> tuple[Host, Host]:
        """Posterior mean and variance of signal entries observed as ``r`` with noise of variance 1/information."""
        if information <= 0:
            return np.full_like(r, self.center), np.full_like(r, self.variance)
        if math.isinf(information):
            return r, np.zeros_like(r)

        def moments(x: Host) -> Host:
            return self._entry_posteriors(x, np.full_like(x, information), 1e-6)[:2].T

        # Both are smooth in r, and entries are many.
        unit = math.sqrt(min(self.variance, 1 / information))
        columns = values_by_panels(moments, r, 1e-6 * np.array([unit, unit * unit]))
        return columns[:, 0], np.maximum(columns[:, 1], 0.0)

    def _entry_posteriors(self, r: Host, information: Host, tolerance: float) -> Host:
        """Posterior mean, posterior variance and log-density (3, N) of observations ``r``, each with its own information."""
        # The narrower of noise and law is the Gaussian along which the other one is integrated.
        narrow = information >= 1
        width = 1 / np.sqrt(information)
        origin = np.where(narrow, r, 0.0)
        scale = np.where(narrow, width, 1.0)
        posterior = self._entry_posteriors_along(
            r, information, origin, scale, tolerance
        )
        ambiguous = narrow & bool(self._narrow_places) & (self._finest < width)
        if ambiguous.any():
            # Quadrature along the noise may miss narrow parts of the law, and quadrature along the law may miss narrow noise.
            # What is missed lowers the density, so the higher density is the right one.
            zero = np.zeros(ambiguous.sum())
            along_law = self._entry_posteriors_along(
                r[ambiguous], information[ambiguous], zero, zero + 1, tolerance
            )
            along_noise = posterior[:, ambiguous]
            denser = along_law[2] > along_noise[2]
            posterior[:, ambiguous] = np.where(denser, along_law, along_noise)
        return posterior

    def _entry_posteriors_along(
        self, r: Host, information: Host, origin: Host, scale: Host, tolerance: float
    ) -> Host:
        """Posterior mean, variance and log-density (3, N) of observations, by quadrature over ``w = origin + scale t``."""

        def log_weight(t: Host, lines: Host) -> Host:
            w = origin[lines][:, None] + scale[lines][:, None] * t
            energy = (w - r[lines][:, None]) ** 2 * information[lines][:, None] / 2
            log_density = self._raw_log_density(w * self.unit)
            return np.asarray(log_density - energy + t * t / 2)

        places = self._narrow_places if (scale == 1).any() else ()
        moments = line_moments(
            log_weight,
            len(r),
            NUMPY,
            None,
            tolerance=tolerance,
            rounds=80,
            places=places,
        )
        mean = origin + scale * moments.mean
        variance = np.maximum(moments.square - moments.mean**2, 0.0)
        log_unit = np.log(self.unit * scale * np.sqrt(information))
        log_density = moments.log_norm - self._norm + log_unit
        return np.stack([mean, scale**2 * variance, log_density])

    def _denoise_jointly(self, R: Array, Qhat: Host) -> Denoised:
        xp = namespace(R)
        P = R.shape[0]
        # A direction that was not observed has noise far beyond the law's own width.
        noise = spectral_function(Qhat, lambda values: 1 / np.maximum(values, 1e-9))
        joint = IntegratedChannel(_ColumnChannel(self, P), sites=1)
        columns = xp.astype(xp.matrix_transpose(R), xp.float64)[:, :, None]
        labels = xp.zeros((R.shape[1],), **matching(columns))
        noise = xp.asarray(noise, **matching(columns))
        posterior = joint.posterior(labels, columns, noise)
        estimate = xp.matrix_transpose(posterior.mean[:, :, 0])
        return Denoised(
            xp.astype(estimate, R.dtype), xp.astype(posterior.covariance, R.dtype)
        )

    def _error(self, Qhat: Host) -> Host:
        """Error of the posterior mean for one ``Qhat``: interpolated quadratures if it is diagonal, else quasi-random points."""
        diagonal = np.diagonal(Qhat)
        if is_diagonal(Qhat):
            return np.diag(self._scalar_error(diagonal))
        rng = monte_carlo_rng("density prior")
        W = self.sample(rng, len(Qhat), 4096)
        noise = inverse_root(Qhat, 1e-9) @ rng.standard_normal(W.shape)
        return np.asarray(self._denoise_jointly(W + noise, Qhat).V)

    @cached_property
    def _curve(self) -> Callable[[Host], Host]:
        """Error V of one component as a function of its information, by quadrature."""
        return error_curve(self._exact_error, self.variance, together=True)

    def _exact_error(self, information: Host) -> Host:
        """Mean posterior variance ``E Var(w | r)`` (N,), by nested adaptive quadrature over w and r."""
        scale = np.sqrt(self.variance + 1 / information)

        def log_weight(t: Host, lines: Host) -> Host:
            r = (self.center + scale[lines][:, None] * t).ravel()
            precision = np.repeat(information[lines], t.shape[1])
            chunks = np.array_split(np.arange(len(r)), len(r) // 4096 + 1)
            posteriors = [
                self._entry_posteriors(r[at], precision[at], 1e-4) for at in chunks
            ]
            _, variance, log_density = np.concatenate(posteriors, axis=1)
            log_error = (log_density + np.log(variance)).reshape(t.shape)
            return np.asarray(log_error + np.log(scale[lines])[:, None] + t * t / 2)

        with np.errstate(divide="ignore"):
            moments = line_moments(
                log_weight, len(information), NUMPY, None, tolerance=3e-5, rounds=60
            )
        return np.asarray(np.exp(moments.log_norm) * math.sqrt(2 * math.pi))


class _ColumnChannel(Channel):
    """Channel whose latents are the columns of a signal and whose likelihood is the prior's density."""

    name = "prior"

    def __init__(self, prior: DensityPrior, components: int) -> None:
        self.prior = prior
        self.components = components

    def log_likelihood(self, y: Array, z: Array) -> Array:
        del y
        logs = self.prior._log_density(z[:, :, 0] * self.prior.unit)
        return namespace(z).sum(clip(logs, IMPOSSIBLE, None), axis=1)
