"""Low-rank signals given by the density of their entries: posterior mean and error by quadrature."""

from __future__ import annotations

import math
from typing import Any

import array_api_compat
import numpy as np

from smimbench.backend.arrays import NUMPY, clip, matching, namespace, to_host
from smimbench.derive.channel import IntegratedChannel
from smimbench.derive.derived_prior import DerivedLaw, below_linear, error_curve
from smimbench.interfaces import Array, Channel, Denoised, Host, ParameterError
from smimbench.numerics.chebyshev import values_by_panels
from smimbench.numerics.linalg import inverse_root, is_diagonal, spectral_function
from smimbench.numerics.line_integrals import IMPOSSIBLE, line_moments
from smimbench.numerics.memo import cached_on
from smimbench.numerics.seeds import monte_carlo_rng


class DensityPrior(DerivedLaw):
    r"""Signal ``W`` (P, D) with iid entries of a density ``exp(log_density(w))``, not necessarily normalized.

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

    def __init__(self, prior: Any) -> None:
        super().__init__(prior)
        self._log_density = prior.law.log_density

        low = -38.0
        high = 38.0
        for is_last in (False, False, False, True):  # zoom to where the mass is
            t = np.linspace(low, high, 40_001)
            w = np.sinh(t)
            mass = self._raw_log_density(w) + np.log(np.cosh(t))
            # The tails of the second moment decide whether there is one.
            tails = (mass + 2 * np.log(np.abs(w) + 1e-300))[[0, -1]]
            if high == 38.0 and tails.max() > max(mass.max() - 1, IMPOSSIBLE / 2):
                raise ParameterError(
                    "log_density",
                    "must be the log-density of a law with finite variance, but it does not decrease far from 0",
                )
            if not is_last:
                inside = np.flatnonzero(mass >= mass.max() - 60)
                low = t[max(inside[0] - 1, 0)]
                high = t[min(inside[-1] + 1, len(t) - 1)]
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
        self._scale(center, variance)
        self._grid = w / self.unit, cumulative / cumulative[-1]
        # Quadratures need to be told where 1/64 of the law lies within a fiftieth of its width.
        steps = np.interp(np.linspace(0, 1, 65)[1:-1], self._grid[1], self._grid[0])
        self._finest = float(np.diff(steps).min())
        fine = np.diff(steps) < 0.02 * math.sqrt(self.variance)
        self._places = np.unique(
            np.concatenate([steps[:-1][fine], steps[1:][fine]])
        ).tolist()

    def _log_moments(self) -> Host:
        """Logarithms of the integral of the density, of both signs of its first moment and of its second moment, by ``w =
        sinh(t)``.

        Scales up to 1e16 are reached; where the law jumps the integrals end there.
        """

        def log_weight(t: Host, lines: Host) -> Host:
            w = np.sinh(t)
            size = np.log(np.abs(w) + 1e-300)
            signs = (np.where(side * w > 0, size, IMPOSSIBLE) for side in (1, -1))
            factors = np.stack([np.zeros_like(w), *signs, 2 * size])
            return np.asarray(
                self._raw_log_density(w)
                + factors[lines, np.arange(len(lines))]
                + np.log(np.cosh(t))
                + t * t / 2
            )

        moments = line_moments(
            log_weight, 4, NUMPY, None, tolerance=1e-8, reach=38.0, rounds=400
        )
        return np.asarray(moments.log_norm)

    def _raw_log_density(self, w: Host) -> Host:
        """Log-density of the prior at ``w``, as an array on the host, before shift and scale."""
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
        """Prior mean (P, D), host."""
        return np.full((components, dimension), self.center)

    def denoise(self, R: Array, Qhat: Array) -> Denoised:
        """Posterior mean (P, D) given ``R = W + Qhat^{-1/2} Z``, and its error V (P, P): the mean posterior covariance.

        ``Qhat`` (P, P) is positive semidefinite; where it is 0 nothing is known beyond the prior.
        """
        host = np.asarray(to_host(Qhat), dtype=np.float64)
        if not is_diagonal(host):
            return self._denoise_jointly(R, host)
        rows = np.asarray(to_host(R), dtype=np.float64)
        posteriors = [
            self._posterior(r, float(q)) for r, q in zip(rows, np.diagonal(host))
        ]
        xp = namespace(R)
        errors = [variance.mean() for _, variance in posteriors]
        estimate = np.stack([mean for mean, _ in posteriors])
        return Denoised(
            xp.asarray(estimate, **matching(R)),
            xp.asarray(np.diag(errors), **matching(R)),
        )

    def _posterior(self, r: Host, information: float) -> tuple[Host, Host]:
        """Posterior mean and variance of entries observed as r with noise of variance 1/information."""
        if information <= 0:
            return np.full_like(r, self.center), np.full_like(r, self.variance)
        if math.isinf(information):
            return r, np.zeros_like(r)
        # Both are smooth in r, and entries are many.
        unit = math.sqrt(min(self.variance, 1 / information))
        moments = values_by_panels(
            lambda x: self._entries(x, np.full_like(x, information), 1e-6)[:2].T,
            r,
            1e-6 * np.array([unit, unit * unit]),
        )
        return moments[:, 0], np.maximum(moments[:, 1], 0.0)

    def _entries(self, r: Host, information: Host, tolerance: float) -> Host:
        """Posterior mean, posterior variance and log-density of the observations r, (3, N); each entry has its own
        information.
        """
        # The narrower of noise and law is the Gaussian along which the other one is integrated.
        narrow = information >= 1
        width = 1 / np.sqrt(information)
        posterior = self._entries_along(
            r,
            information,
            np.where(narrow, r, 0.0),
            np.where(narrow, width, 1.0),
            tolerance,
        )
        again = narrow & bool(self._places) & (self._finest < width)
        if again.any():
            # Quadrature along the noise may miss narrow parts of the law, and quadrature along the law may miss narrow noise.
            # What is missed lowers the density, so the higher density is the right one.
            zero = np.zeros(again.sum())
            along_law = self._entries_along(
                r[again], information[again], zero, zero + 1, tolerance
            )
            posterior[:, again] = np.where(
                along_law[2] > posterior[2, again], along_law, posterior[:, again]
            )
        return posterior

    def _entries_along(
        self, r: Host, information: Host, origin: Host, scale: Host, tolerance: float
    ) -> Host:
        """Posterior mean, variance and log-density of the observations, with quadrature nodes ``w = origin + scale t``."""

        def log_weight(t: Host, lines: Host) -> Host:
            start, step, observed, precision = (
                a[lines][:, None] for a in (origin, scale, r, information)
            )
            w = start + step * t
            return np.asarray(
                self._raw_log_density(w * self.unit)
                - (w - observed) ** 2 * precision / 2
                + t * t / 2
            )

        places = self._places if (scale == 1).any() else ()
        moments = line_moments(
            log_weight,
            len(r),
            NUMPY,
            None,
            tolerance=tolerance,
            rounds=80,
            places=places,
        )
        variance = np.maximum(moments.square - moments.mean**2, 0.0)
        log_density = (
            moments.log_norm
            - self._norm
            + np.log(self.unit * scale * np.sqrt(information))
        )
        return np.stack(
            [origin + scale * moments.mean, scale**2 * variance, log_density]
        )

    def _denoise_jointly(self, R: Array, Qhat: Host) -> Denoised:
        xp = namespace(R)
        P = R.shape[0]
        # A direction that was not observed has noise far beyond the law's own width.
        noise = spectral_function(Qhat, lambda values: 1 / np.maximum(values, 1e-9))
        joint = IntegratedChannel(_Columns(self, P), sites=1)
        device = array_api_compat.device(R)
        columns = xp.astype(xp.matrix_transpose(R), xp.float64)[:, :, None]
        labels = xp.zeros((R.shape[1],), dtype=xp.float64, device=device)
        posterior = joint.posterior(
            labels, columns, xp.asarray(noise, dtype=xp.float64, device=device)
        )
        return Denoised(
            xp.astype(xp.matrix_transpose(posterior.mean[:, :, 0]), R.dtype),
            xp.astype(posterior.covariance, R.dtype),
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

    def _scalar_error(self, information: Host) -> Host:
        curve = cached_on(
            self,
            "curve",
            lambda: error_curve(self._exact_error, self.variance, together=True),
        )
        return below_linear(curve(information), information, self.variance)

    def _exact_error(self, information: Host) -> Host:
        """Mean posterior variance ``E Var(w | r)`` (N,), by nested adaptive quadrature over w and r."""
        scale = np.sqrt(self.variance + 1 / information)

        def log_weight(t: Host, lines: Host) -> Host:
            r = (self.center + scale[lines][:, None] * t).ravel()
            precision = np.repeat(information[lines], t.shape[1])
            chunks = np.array_split(np.arange(len(r)), len(r) // 4096 + 1)
            posterior = np.concatenate(
                [self._entries(r[chunk], precision[chunk], 1e-4) for chunk in chunks],
                axis=1,
            )
            log_error = (posterior[2] + np.log(posterior[1])).reshape(t.shape)
            return np.asarray(log_error + np.log(scale[lines])[:, None] + t * t / 2)

        with np.errstate(divide="ignore"):
            moments = line_moments(
                log_weight, len(information), NUMPY, None, tolerance=3e-5, rounds=60
            )
        return np.asarray(np.exp(moments.log_norm) * math.sqrt(2 * math.pi))


class _Columns(Channel):
    """Treats the columns of a signal as latents of a channel whose likelihood is the prior's density."""

    name = "prior"

    def __init__(self, prior: DensityPrior, components: int) -> None:
        self.prior = prior
        self.components = components

    def log_likelihood(self, y: Array, z: Array) -> Array:
        del y
        logs = self.prior._log_density(z[:, :, 0] * self.prior.unit)
        return namespace(z).sum(clip(logs, IMPOSSIBLE, None), axis=1)
