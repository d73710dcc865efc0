"""Low-rank signals given by the density of their entries: posterior mean and error by quadrature."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import array_api_compat
import numpy as np

from smimbench.backend.arrays import NUMPY, clip, matching, namespace, to_host
from smimbench.derive.channel import IntegratedChannel
from smimbench.derive.derived_prior import DerivedLaw, Host, below_linear, error_curve
from smimbench.interfaces import Channel, Denoised, ParameterError
from smimbench.numerics.linalg import inverse_root, is_diagonal, spectral_function
from smimbench.numerics.line_integrals import IMPOSSIBLE, line_moments
from smimbench.numerics.memo import kept
from smimbench.numerics.panels import values_by_panels
from smimbench.numerics.seeds import monte_carlo_rng

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.interfaces import Array

__all__ = ["DensityPrior"]


class DensityPrior(DerivedLaw):
    r"""Signal ``W`` (P, D) with iid entries of a density ``exp(log_density(w))``, not necessarily normalised.

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

        def log_size(w: Host) -> Host:
            return np.log(np.abs(w) + 1e-300)

        t = np.linspace(-38.0, 38.0, 4001)
        weight = self._raw(np.sinh(t)) + np.log(np.cosh(t)) + 2 * log_size(np.sinh(t))  # of the second moment
        if max(weight[0], weight[-1]) > max(weight.max() - 1, IMPOSSIBLE / 2):  # or the integrals below never end
            raise ParameterError(
                "log_density", "must belong to a law with a finite variance; it does not fall far from 0"
            )
        total = self._moment(np.zeros_like)
        positive = self._moment(lambda w: np.where(w > 0, log_size(w), IMPOSSIBLE))
        negative = self._moment(lambda w: np.where(w < 0, log_size(w), IMPOSSIBLE))
        square = self._moment(lambda w: 2 * log_size(w))
        if not (math.isfinite(total) and total > 0.5 * IMPOSSIBLE and math.isfinite(square)):
            raise ParameterError("log_density", "must belong to a law with a finite norm and variance")
        self._norm = total + math.log(math.sqrt(2 * math.pi))
        centre = math.exp(positive - total) - math.exp(negative - total)
        second = math.exp(square - total)
        variance = second - centre * centre
        if not variance > 1e-12 * second:
            raise ParameterError("log_density", f"must belong to a law with a positive variance, got {variance:g}")
        self._scale(centre, variance)
        self._grid = self._cumulative()
        # Where 1/64 of the law lies within a fiftieth of its width, quadratures need to know where.
        points, cumulative = self._grid
        steps = np.interp(np.linspace(0, 1, 65)[1:-1], cumulative, points)
        self._finest = float(np.diff(steps).min())
        fine = np.diff(steps) < 0.02 * math.sqrt(self.variance)
        self._places = np.unique(np.concatenate([steps[:-1][fine], steps[1:][fine]])).tolist()

    def _moment(self, factor: Callable[[Host], Host]) -> float:
        """Logarithm of the integral of ``exp(factor(w))`` over the law, in ``w = sinh(t)``: scales up to 1e16 are reached."""

        def log_weight(t: Array, lines: Array) -> Array:
            w = np.sinh(t)
            return self._raw(w) + factor(w) + np.log(np.cosh(t)) + t * t / 2

        found = line_moments(log_weight, 1, NUMPY, None, tolerance=1e-8, reach=38.0, rounds=400)
        return float(found.log_norm[0])

    def _raw(self, w: Host) -> Host:
        """The prior's log-density on the host, in its own units."""
        with np.errstate(all="ignore"):
            found = np.asarray(to_host(self._log_density(w)), dtype=np.float64)
        if found.shape != w.shape:
            raise ParameterError(
                "log_density", f"must return an array of the shape of its argument {w.shape}, got {found.shape}"
            )
        if np.isnan(found).any() or (found == math.inf).any():
            raise ParameterError("log_density", "returned a number that is not finite (only -inf is allowed)")
        return np.maximum(found, IMPOSSIBLE)

    def _scaled(self, w: Array) -> Array:
        xp = namespace(w)
        found = xp.astype(self._log_density(w * self.unit), xp.float64)
        return xp.maximum(found, xp.full_like(found, IMPOSSIBLE))

    def _cumulative(self) -> tuple[Host, Host]:
        """The distribution function on a grid fine enough to sample from."""
        low, high = -38.0, 38.0
        for _ in range(3):  # zoom to where the mass is
            t = np.linspace(low, high, 40_001)
            mass = self._raw(np.sinh(t)) + np.log(np.cosh(t))
            inside = np.flatnonzero(mass > mass.max() - 60)
            low, high = t[max(inside[0] - 1, 0)], t[min(inside[-1] + 1, len(t) - 1)]
        t = np.linspace(low, high, 40_001)
        mass = self._raw(np.sinh(t)) + np.log(np.cosh(t))
        height = np.exp(mass - mass.max())
        cumulative = np.concatenate([[0.0], np.cumsum((height[1:] + height[:-1]) / 2)])
        return np.sinh(t) / self.unit, cumulative / cumulative[-1]

    def sample(self, rng: np.random.Generator, components: int, dimension: int) -> Host:
        """Draw a signal (P, D) on the host, float64."""
        points, cumulative = self._grid
        return np.interp(rng.random((components, dimension)), cumulative, points)

    def mean(self, components: int, dimension: int) -> Host:
        """Prior mean (P, D), host."""
        return np.full((components, dimension), self.centre)

    def denoise(self, R: Array, Qhat: Array) -> Denoised:
        """Posterior mean (P, D) given ``R = W + Qhat^{-1/2} Z``, and its error V (P, P): the mean posterior covariance.

        ``Qhat`` (P, P) is positive semidefinite; where it is 0 nothing is known beyond the prior.
        """
        xp = namespace(R)
        host = np.asarray(to_host(Qhat), dtype=np.float64)
        P = R.shape[0]
        if not is_diagonal(host):
            return self._denoise_jointly(R, host)
        means, errors = [], []
        for p in range(P):
            mean, variance = self._scalar(xp.astype(R[p, :], xp.float64), float(host[p, p]))
            means.append(mean)
            errors.append(float(xp.mean(variance)))
        return Denoised(xp.astype(xp.stack(means), R.dtype), xp.asarray(np.diag(errors), **matching(R)))

    def _scalar(self, r: Array, information: float) -> tuple[Array, Array]:
        """Posterior mean and variance of entries observed as r with noise of variance 1/information."""
        xp = namespace(r)
        if information <= 0:
            return xp.full_like(r, self.centre), xp.full_like(r, self.variance)
        if math.isinf(information):
            return r, xp.zeros_like(r)

        def moments(entries: Host) -> Host:
            here = xp.asarray(entries, dtype=xp.float64, device=array_api_compat.device(r))
            found = self._entries(here, xp.full_like(here, information), narrow=information >= 1, tolerance=1e-6)
            return np.stack([to_host(part) for part in found[:2]], axis=1)

        # Both are smooth in r, and entries are many.
        unit = math.sqrt(min(self.variance, 1 / information))
        found = values_by_panels(moments, to_host(r), 1e-6 * np.array([unit, unit * unit]))
        mean, variance = (xp.asarray(found[:, k], **matching(r)) for k in range(2))
        return mean, xp.maximum(variance, xp.zeros_like(variance))

    def _entries(self, r: Array, information: Array, *, narrow: bool, tolerance: float) -> tuple[Array, Array, Array]:
        """Posterior mean and variance, and the log-density of r (N,); each entry has its own information."""
        found = self._entries_along(r, information, narrow=narrow, tolerance=tolerance)
        xp = namespace(r)
        if not (narrow and self._places and self._finest**2 * float(xp.min(information)) < 1):
            return found
        # A part of the law narrower than the noise may be missed along the noise, noise narrower than a law's steps along the
        # law: what is missed lowers the density.
        other = self._entries_along(r, information, narrow=False, tolerance=tolerance)
        more = other[2] > found[2]
        mean, variance, log_density = (xp.where(more, new, old) for new, old in zip(other, found))
        return mean, variance, log_density

    def _entries_along(
        self, r: Array, information: Array, *, narrow: bool, tolerance: float
    ) -> tuple[Array, Array, Array]:
        """The same, with nodes along the noise (``narrow``) or along the law."""
        xp = namespace(r)
        width = 1 / xp.sqrt(information)

        # The narrower of noise and law is the Gaussian along which the other one is integrated.
        def log_weight(t: Array, lines: Array) -> Array:
            here = xp.take(r, lines)[:, None]
            if narrow:
                return self._scaled(here + xp.take(width, lines)[:, None] * t)
            gap = t - here
            return self._scaled(t) - gap * gap * xp.take(information, lines)[:, None] / 2 + t * t / 2

        device = array_api_compat.device(r)
        places = () if narrow else self._places
        found = line_moments(log_weight, r.shape[0], xp, device, tolerance=tolerance, rounds=80, places=places)
        variance = clip(found.square - found.mean * found.mean, 0.0, None)
        log_density = found.log_norm - self._norm + math.log(self.unit)
        if narrow:
            return r + width * found.mean, width * width * variance, log_density
        return found.mean, variance, log_density - xp.log(width)

    def _denoise_jointly(self, R: Array, Qhat: Host) -> Denoised:
        xp = namespace(R)
        P = R.shape[0]
        # A direction that was not observed has noise far beyond the law's own width.
        noise = spectral_function(Qhat, lambda values: 1 / np.maximum(values, 1e-9))
        joint = IntegratedChannel(_Columns(self, P), sites=1)
        device = array_api_compat.device(R)
        columns = xp.astype(xp.matrix_transpose(R), xp.float64)[:, :, None]
        labels = xp.zeros((R.shape[1],), dtype=xp.float64, device=device)
        found = joint.posterior(labels, columns, xp.asarray(noise, dtype=xp.float64, device=device))
        return Denoised(
            xp.astype(xp.matrix_transpose(found.mean[:, :, 0]), R.dtype), xp.astype(found.covariance, R.dtype)
        )

    def _error(self, Qhat: Host) -> Host:
        """Interpolated from quadratures for diagonal ``Qhat``; by quasi-random points otherwise."""
        diagonal = np.diagonal(Qhat)
        if is_diagonal(Qhat):
            return np.diag(self._scalar_error(diagonal))
        rng = monte_carlo_rng("density prior")
        W = self.sample(rng, len(Qhat), 4096)
        noise = inverse_root(Qhat, 1e-9) @ rng.standard_normal(W.shape)
        found: Host = np.asarray(self._denoise_jointly(W + noise, Qhat).V)
        return found

    def _scalar_error(self, information: Host) -> Host:
        curve = kept(self, "curve", lambda: error_curve(self._exact_error, self.variance, together=True))
        return below_linear(curve(information), information, self.variance)

    def _exact_error(self, information: Host) -> Host:
        """``E Var(w | r)`` (N,), by an adaptive rule over r around the one over w."""
        scale = np.sqrt(self.variance + 1 / information)

        def log_weight(t: Array, lines: Array) -> Array:
            r = (self.centre + scale[lines][:, None] * t).ravel()
            known = np.broadcast_to(information[lines][:, None], t.shape).ravel()
            log_error = np.empty_like(r)
            for narrow in (False, True):
                (rows,) = np.nonzero((known >= 1) == narrow)
                for part in np.array_split(rows, len(rows) // 4096 + 1) if len(rows) else []:
                    _, variance, log_density = self._entries(r[part], known[part], narrow=narrow, tolerance=1e-4)
                    log_error[part] = log_density + np.log(variance)
            return (log_error.reshape(t.shape) + np.log(scale[lines])[:, None]) + t * t / 2

        with np.errstate(divide="ignore"):
            found = line_moments(log_weight, len(information), NUMPY, None, tolerance=3e-5, rounds=60)
        error: Host = np.exp(found.log_norm) * math.sqrt(2 * math.pi)
        return error


class _Columns(Channel):
    """A column of the signal as the latents of a channel whose likelihood is the prior's density."""

    name = "prior"

    def __init__(self, prior: DensityPrior, components: int) -> None:
        self.prior, self.components = prior, components

    def log_likelihood(self, y: Array, z: Array) -> Array:
        del y
        return namespace(z).sum(self.prior._scaled(z[:, :, 0]), axis=1)
