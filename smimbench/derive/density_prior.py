r"""Priors that are given by less than a prior needs: the engine derives the rest.

* ``log_density(w)``: a low-rank signal with iid entries of that law. Posterior mean and error by quadrature.
* ``quantile(u)`` or ``eigenvalues``: a rotationally invariant matrix of extensive rank with that spectrum. Posterior mean
  and error by free convolution with a semicircle.
* ``sample`` and ``denoise``: any signal. The state-evolution map is what ``denoise`` does in simulations.

In the first two the law is scaled to unit variance unless the prior draws its own samples, so that the prior mean scores 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import array_api_compat
import numpy as np

from smimbench.backend.arrays import clip, namespace, to_host
from smimbench.derive.likelihood_channel import IntegratedChannel
from smimbench.interfaces import Denoised, Overlap, ParameterError
from smimbench.numerics.free_convolution import FreeConvolution
from smimbench.numerics.linalg import inverse_root, is_diagonal, spectral_function
from smimbench.numerics.line_integrals import IMPOSSIBLE, line_moments
from smimbench.numerics.quadrature import gauss_legendre
from smimbench.numerics.seeds import monte_carlo_rng

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.interfaces import Array, Model

__all__ = ["DensityPrior", "SimulatedPrior", "SpectrumPrior", "complete_prior"]

Host = np.ndarray[Any, np.dtype[np.float64]]

_LOWEST, _HIGHEST = 1e-9, 1e16
_COARSE = 2
_STILL = 3
_FINE = 40_001
_REACH = 38.0
_DEPTH = 60.0
_PANELS = 24
_FEW = 64
_LITTLE = 1e-6
_TINY = 1e-300
_ENTRIES = 4096


def complete_prior(prior: Any, model: Model) -> Any:
    """The prior with everything the engine can derive; the same object where nothing is missing.

    Raises
    ------
    ParameterError
        If it gives neither ``denoise`` nor a law that the engine can use with this model.
    """
    needed = ("sample", "mean", "second_moment", "mean_overlap", "denoise", "overlap")
    if all(hasattr(prior, name) for name in needed):
        return prior
    who = f"prior {getattr(prior, 'name', type(prior).__name__)!r}"
    if hasattr(prior, "denoise"):
        if not hasattr(prior, "sample"):
            raise ParameterError("name", f"{who} gives denoise but no sample; both are needed")
        return SimulatedPrior(prior, model)
    matrix = len(model.signal_shape(1, 2)) == 3
    density, spectrum = (
        hasattr(prior, "log_density"),
        hasattr(prior, "quantile") or hasattr(prior, "eigenvalues"),
    )
    if not density and not spectrum:
        raise ParameterError(
            "name",
            f"{who} gives neither denoise nor log_density, quantile or eigenvalues; one of them is needed",
        )
    if matrix and not spectrum:
        raise ParameterError("name", f"{who} gives a log_density, which is for low-rank signals")
    if not matrix and not density:
        raise ParameterError("name", f"{who} gives a spectrum, which is for matrices of extensive rank")
    return SpectrumPrior(prior) if matrix else DensityPrior(prior)


class _Derived:
    """What is not derived is the prior's own.

    Gradient methods move in the signal itself (a symmetric matrix: in any matrix, of which the symmetric part counts)
    unless the prior has a factor of its own.
    """

    matrix = False
    overlap_error = 1e-3
    """Relative error of V in ``overlap``, for the error of predictions."""

    def __init__(self, prior: Any) -> None:
        self.prior = prior

    def __getattr__(self, name: str) -> Any:
        if name == "prior" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return getattr(self.prior, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.prior!r})"

    def _own(self, name: str) -> Any:
        """A method of the prior, or None."""
        return getattr(self.prior, name, None)

    def draw_factor(
        self, rng: np.random.Generator, components: int, dimension: int, width: int | None = None
    ) -> Host:
        """The prior's own, or iid N(0, 1) entries of the signal; ParameterError if a width is asked for."""
        own = self._own("draw_factor") if self._own("compose") else None
        if own is not None:
            drawn: Host = own(rng, components, dimension, width)
            return drawn
        if width is not None:
            raise ParameterError("width", f"must not be set with the prior {self.prior.name!r}, got {width}")
        shape = (components, dimension, dimension) if self.matrix else (components, dimension)
        return rng.standard_normal(shape)

    def compose(self, factor: Array) -> Array:
        """The prior's own, or the factor itself (its symmetric part)."""
        own = self._own("compose")
        return own(factor) if own is not None else self._symmetric(factor)

    def pullback(self, factor: Array, gradient: Array) -> Array:
        """Gradient with respect to the factor."""
        own = self._own("pullback")
        return own(factor, gradient) if own is not None else self._symmetric(gradient)

    def _symmetric(self, array: Array) -> Array:
        return (array + namespace(array).matrix_transpose(array)) / 2 if self.matrix else array


class DensityPrior(_Derived):
    r"""Signal ``W`` (P, D) with iid entries of a density ``exp(log_density(w))``, not necessarily normalised.

    The posterior of a column given ``R = W + Qhat^{-1/2} Z`` is ``prod_p p(w_p) N(w; R, Qhat^{-1})``. Entry by entry for
    diagonal ``Qhat`` (adaptive quadrature), jointly otherwise (quasi-random points, up to 12 components).

    Parameters
    ----------
    prior : object
        With ``log_density(w) -> array``, elementwise on float64 arrays of any namespace, ``-inf`` outside the support. The
        law needs a finite variance; atoms have no density: give such a prior a ``denoise``. If it has a ``sample`` of its
        own, that is used and the law is taken as it is; otherwise it is scaled to unit variance.

    References
    ----------
    Derived, checked by tests/theory/test_derived_prior.py.
    """

    def __init__(self, prior: Any) -> None:
        super().__init__(prior)
        total, positive, negative, square = (
            self._moment(k) for k in ("one", "positive", "negative", "square")
        )
        if not (math.isfinite(total) and total > 0.5 * IMPOSSIBLE and math.isfinite(square)):
            raise ParameterError("log_density", "must belong to a law with a finite norm and variance")
        self._norm = total + math.log(math.sqrt(2 * math.pi))
        centre = math.exp(positive - total) - math.exp(negative - total)
        second = math.exp(square - total)
        variance = second - centre * centre
        if not variance > 1e-12 * second:
            raise ParameterError(
                "log_density", f"must belong to a law with a positive variance, got {variance:g}"
            )
        self.unit = 1.0 if self._own("sample") else math.sqrt(variance)
        # What is left of a symmetric law's mean is rounding, and a prior mean of any size would change what can be learned.
        centre = 0.0 if abs(centre) < 1e-6 * math.sqrt(second) else centre
        self.centre, self.variance = centre / self.unit, variance / self.unit**2
        self._grid = self._cumulative()
        self._curve: Callable[[Host], Host] | None = None

    def _moment(self, what: str) -> float:
        """Logarithm of an integral over all of R, in ``w = sinh(t)``, which reaches any scale."""

        def log_weight(t: Array, lines: Array) -> Array:
            w = np.sinh(t)
            with np.errstate(divide="ignore"):
                factor = {
                    "one": np.zeros_like(w),
                    "positive": np.where(w > 0, np.log(np.abs(w) + _TINY), IMPOSSIBLE),
                    "negative": np.where(w < 0, np.log(np.abs(w) + _TINY), IMPOSSIBLE),
                    "square": 2 * np.log(np.abs(w) + _TINY),
                }[what]
            return self._raw(w) + factor + np.log(np.cosh(t)) + t * t / 2

        found = line_moments(
            log_weight, 1, namespace(np.empty(0)), None, tolerance=1e-8, reach=_REACH, rounds=400
        )
        return float(found.log_norm[0])

    def _raw(self, w: Host) -> Host:
        """The prior's log-density on the host, in its own units."""
        with np.errstate(all="ignore"):
            found = np.asarray(to_host(self.prior.log_density(w)), dtype=np.float64)
        if found.shape != w.shape:
            raise ParameterError(
                "log_density",
                f"must return an array of the shape of its argument {w.shape}, got {found.shape}",
            )
        if np.isnan(found).any() or (found == math.inf).any():
            raise ParameterError("log_density", "returned a number that is not finite (only -inf is allowed)")
        return np.maximum(found, IMPOSSIBLE)

    def _scaled(self, w: Array) -> Array:
        xp = namespace(w)
        found = xp.astype(self.prior.log_density(w * self.unit), xp.float64)
        return xp.maximum(found, xp.full_like(found, IMPOSSIBLE))

    def _cumulative(self) -> tuple[Host, Host]:
        """Points and distribution function, fine enough to draw from and to make a rule of."""
        t = np.linspace(-_REACH, _REACH, _FINE)
        for _ in range(3):  # zoom to where the mass is
            mass = self._raw(np.sinh(t)) + np.log(np.cosh(t))
            inside = np.flatnonzero(mass > mass.max() - _DEPTH)
            first, last = max(inside[0] - 1, 0), min(inside[-1] + 1, len(t) - 1)
            t = np.linspace(t[first], t[last], _FINE)
        mass = self._raw(np.sinh(t)) + np.log(np.cosh(t))
        height = np.exp(mass - mass.max())
        cumulative = np.concatenate([[0.0], np.cumsum((height[1:] + height[:-1]) / 2)])
        return np.sinh(t) / self.unit, cumulative / cumulative[-1]

    # -- law ----------------------------------------------------------------------------------------------------

    def sample(self, rng: np.random.Generator, components: int, dimension: int) -> Host:
        """Draw a signal (P, D) on the host, float64."""
        own = self._own("sample")
        if own is not None:
            drawn: Host = own(rng, components, dimension)
            return drawn
        points, cumulative = self._grid
        return np.interp(rng.random((components, dimension)), cumulative, points)

    def mean(self, components: int, dimension: int) -> Host:
        """Prior mean (P, D), host."""
        return np.full((components, dimension), self.centre)

    def mean_overlap(self, components: int) -> Host:
        """Squared mean of the law in every entry of (P, P), host."""
        return np.full((components, components), self.centre**2)

    def second_moment(self, components: int) -> Host:
        """``mean_overlap`` plus the variance on the diagonal (P, P), host."""
        return self.mean_overlap(components) + self.variance * np.eye(components)

    # -- inference ------------------------------------------------------------------------------------------------

    def denoise(self, R: Array, Qhat: Array) -> Denoised:
        """Posterior mean (P, D) given ``R = W + Qhat^{-1/2} Z``, and its error V (P, P): the mean posterior covariance.

        ``Qhat`` (P, P) is positive semidefinite; where it is 0 nothing is known beyond the prior.
        """
        xp = namespace(R)
        place = {"dtype": R.dtype, "device": array_api_compat.device(R)}
        host = np.asarray(to_host(Qhat), dtype=np.float64)
        P = R.shape[0]
        if not is_diagonal(host):
            return self._denoise_jointly(R, host)
        means, errors = [], []
        for p in range(P):
            mean, variance = self._scalar(xp.astype(R[p, :], xp.float64), float(host[p, p]))
            means.append(mean)
            errors.append(float(xp.mean(variance)))
        return Denoised(xp.astype(xp.stack(means), R.dtype), xp.asarray(np.diag(errors), **place))

    def _scalar(self, r: Array, information: float) -> tuple[Array, Array]:
        """Entries observed as r, with noise of variance 1/information: mean and variance."""
        xp = namespace(r)
        if information <= 0:
            return xp.full_like(r, self.centre), xp.full_like(r, self.variance)
        if math.isinf(information):
            return r, xp.zeros_like(r)
        return self._entries(r, xp.full_like(r, information), narrow=information >= 1, tolerance=1e-6)[:2]

    def _entries(
        self, r: Array, information: Array, *, narrow: bool, tolerance: float
    ) -> tuple[Array, Array, Array]:
        """Mean, variance and the log-density of r (N,) for an information of every entry's own."""
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
        found = line_moments(log_weight, r.shape[0], xp, device, tolerance=tolerance, rounds=80)
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

    def overlap(self, Qhat: Array) -> Overlap:
        """State-evolution map: ``V = E Cov(w | R)`` and ``Q = second_moment - V``, of shape (..., P, P).

        A smooth interpolant of quadratures for diagonal ``Qhat``; quasi-random points otherwise.
        """
        xp = namespace(Qhat)
        place = {"dtype": Qhat.dtype, "device": array_api_compat.device(Qhat)}
        host = np.asarray(to_host(Qhat), dtype=np.float64)
        P = host.shape[-1]
        flat = host.reshape(-1, P, P)
        V = (
            np.stack([self._error(matrix) for matrix in flat]).reshape(host.shape)
            if len(flat)
            else np.zeros(host.shape)
        )
        return Overlap(xp.asarray(self.second_moment(P) - V, **place), xp.asarray(V, **place))

    def _error(self, Qhat: Host) -> Host:
        diagonal = np.diagonal(Qhat)
        if np.all(Qhat == np.diag(diagonal)):
            return np.diag(self._scalar_error(diagonal))
        rng = monte_carlo_rng("density prior")
        W = self.sample(rng, len(Qhat), 4096)
        noise = inverse_root(Qhat, 1e-9) @ rng.standard_normal(W.shape)
        found: Host = np.asarray(self._denoise_jointly(W + noise, Qhat).V)
        return found

    def _scalar_error(self, information: Host) -> Host:
        if self._curve is None:
            self._curve = _curve(self._exact_error, self.variance, together=True)
        return _below_linear(self._curve(information), information, self.variance)

    def _exact_error(self, information: Host) -> Host:
        """``E Var(w | r)`` (N,), by an adaptive rule over r around the one over w."""
        scale = np.sqrt(self.variance + 1 / information)

        def log_weight(t: Array, lines: Array) -> Array:
            r = (self.centre + scale[lines][:, None] * t).ravel()
            known = np.broadcast_to(information[lines][:, None], t.shape).ravel()
            log_error = np.empty_like(r)
            for narrow in (False, True):
                (rows,) = np.nonzero((known >= 1) == narrow)
                for part in np.array_split(rows, len(rows) // _ENTRIES + 1) if len(rows) else []:
                    _, variance, log_density = self._entries(
                        r[part], known[part], narrow=narrow, tolerance=1e-4
                    )
                    log_error[part] = log_density + np.log(variance)
            return (log_error.reshape(t.shape) + np.log(scale[lines])[:, None]) + t * t / 2

        with np.errstate(divide="ignore"):
            found = line_moments(
                log_weight, len(information), namespace(information), None, tolerance=3e-5, rounds=60
            )
        error: Host = np.exp(found.log_norm) * math.sqrt(2 * math.pi)
        return error


class _Columns:
    """A column of the signal as the latents of a channel whose likelihood is the prior's density."""

    name = "prior"

    def __init__(self, prior: DensityPrior, components: int) -> None:
        self.prior, self.components = prior, components

    def log_likelihood(self, y: Array, z: Array) -> Array:
        del y
        return namespace(z).sum(self.prior._scaled(z[:, :, 0]), axis=1)


class SpectrumPrior(_Derived):
    r"""Rotationally invariant signal ``S = O diag(lambda) O^T`` (P, D, D) with a given law of the eigenvalues.

    ``O`` is uniform over rotations, ``lambda`` are the quantiles of the law at ``(i + 1/2)/D``. The posterior mean given
    ``R = S + sqrt(Delta) Z`` keeps the eigenvectors of R and shrinks its eigenvalues,
    ``xi = x - 2 Delta Re g(x)``, ``g`` the Stieltjes transform of the free convolution with a semicircle. Several components
    are estimated one by one, from ``Delta_p = [Qhat^{-1}]_pp``.

    Parameters
    ----------
    prior : object
        With ``quantile(u) -> array``, the inverse distribution function for u in (0, 1), or ``eigenvalues``, samples of
        the law (an array, or a method without arguments); fewer than 64 are not samples but the law itself, each an atom
        of equal weight. The law is scaled to unit variance, unless the prior has a
        ``sample`` of its own.

    References
    ----------
    smimbench.numerics.free_convolution; derived, checked by tests/theory/test_derived_prior.py.
    """

    matrix = True
    overlap_error = 3e-3

    def __init__(self, prior: Any) -> None:
        super().__init__(prior)
        discrete = False
        if self._own("quantile") is not None:
            u, weights = _probability_rule(4)
            atoms = np.asarray(to_host(prior.quantile(u)), dtype=np.float64)
            if atoms.shape != u.shape or not np.isfinite(atoms).all() or (np.diff(atoms) < 0).any():
                raise ParameterError(
                    "quantile", "must return finite numbers that do not decrease, one for each probability"
                )
        elif self._own("eigenvalues") is not None:
            found = prior.eigenvalues() if callable(prior.eigenvalues) else prior.eigenvalues
            atoms = np.sort(np.asarray(to_host(found), dtype=np.float64).ravel())
            if atoms.size < 2 or not np.isfinite(atoms).all():
                raise ParameterError("eigenvalues", "must be at least two finite numbers")
            self._samples = atoms
            discrete = atoms.size < _FEW
            if discrete:
                atoms, counts = np.unique(atoms, return_counts=True)
                weights = counts / counts.sum()
            else:
                atoms, weights = _thinned(atoms)
        else:
            raise ParameterError(
                "name", f"prior {prior.name!r} gives no denoise, log_density, quantile or eigenvalues"
            )
        centre = float(weights @ atoms)
        variance = float(weights @ (atoms - centre) ** 2)
        if not variance > 0:
            raise ParameterError("quantile", "must belong to a law with a positive variance")
        self.unit = 1.0 if self._own("sample") else math.sqrt(variance)
        # What is left of a symmetric law's mean is rounding, and a prior mean of any size would change what can be learned.
        centre = 0.0 if abs(centre) < 1e-6 * math.sqrt(variance) else centre
        self.centre, self.variance = centre / self.unit, variance / self.unit**2
        self._law = FreeConvolution(atoms / self.unit, weights, law="exact" if discrete else "quantiles")
        self._curve: Callable[[Host], Host] | None = None

    # -- law ----------------------------------------------------------------------------------------------------

    def spectrum(self, dimension: int) -> Host:
        """Eigenvalues of every signal of this dimension, ascending."""
        u = (np.arange(dimension) + 0.5) / dimension
        if self._own("quantile") is not None:
            found = np.asarray(to_host(self.prior.quantile(u)), dtype=np.float64)
        elif self._samples.size < _FEW:
            found = self._samples[(u * self._samples.size).astype(int)]
        else:
            at = (np.arange(len(self._samples)) + 0.5) / len(self._samples)
            found = np.interp(u, at, self._samples)
        return found / self.unit

    def sample(self, rng: np.random.Generator, components: int, dimension: int) -> Host:
        """Draw a signal (P, D, D) on the host, float64, symmetric."""
        own = self._own("sample")
        if own is not None:
            drawn: Host = own(rng, components, dimension)
            return drawn
        values = self.spectrum(dimension)
        signal = np.empty((components, dimension, dimension))
        for p in range(components):
            rotation, triangle = np.linalg.qr(rng.standard_normal((dimension, dimension)))
            rotation *= np.where(np.diagonal(triangle) < 0, -1.0, 1.0)
            product = (rotation * values) @ rotation.T
            signal[p] = (product + product.T) / 2
        return signal

    def mean(self, components: int, dimension: int) -> Host:
        """Prior mean: the mean eigenvalue times the identity (P, D, D), host."""
        return np.repeat(self.centre * np.eye(dimension)[None], components, axis=0)

    def mean_overlap(self, components: int) -> Host:
        """Squared mean eigenvalue in every entry of (P, P), host."""
        return np.full((components, components), self.centre**2)

    def second_moment(self, components: int) -> Host:
        """``mean_overlap`` plus the variance of the spectrum on the diagonal (P, P), host."""
        return self.mean_overlap(components) + self.variance * np.eye(components)

    def fluctuation(self, dimension: int) -> float:
        """Relative fluctuation of an overlap at finite size: the spectrum is fixed, the estimate's moves by about 1/D."""
        return 2.0 / dimension

    # -- inference ------------------------------------------------------------------------------------------------

    def denoise(self, R: Array, Qhat: Array) -> Denoised:
        """Posterior mean (P, D, D) given ``R = S + Qhat^{-1/2} Z`` (symmetric), and its error V (P, P), diagonal."""
        xp = namespace(R)
        place = {"dtype": R.dtype, "device": array_api_compat.device(R)}
        noise = _noise_of(np.asarray(to_host(Qhat), dtype=np.float64))
        P, dimension = R.shape[0], R.shape[-1]
        estimates = []
        for p in range(P):
            if not noise[p] > 0:
                estimates.append(R[p, ...])
            elif noise[p] > 1 / _LOWEST:
                estimates.append(xp.asarray(self.centre * np.eye(dimension), **place))
            else:
                values, vectors = xp.linalg.eigh(R[p, ...])
                shrunk = self._law.rie(values, float(noise[p]))
                estimates.append(xp.matmul(vectors * shrunk[None, :], xp.matrix_transpose(vectors)))
        with np.errstate(divide="ignore"):
            V = np.diag(self._error(1 / noise))
        return Denoised(xp.stack(estimates), xp.asarray(V, **place))

    def overlap(self, Qhat: Array) -> Overlap:
        """State-evolution map: ``V_pp = F(Delta_p)``, ``Q = second_moment - V``; (..., P, P), leading axes are a batch."""
        xp = namespace(Qhat)
        place = {"dtype": Qhat.dtype, "device": array_api_compat.device(Qhat)}
        host = np.asarray(to_host(Qhat), dtype=np.float64)
        P = host.shape[-1]
        flat = host.reshape(-1, P, P)
        with np.errstate(divide="ignore"):
            errors = np.array([self._error(1 / _noise_of(matrix)) for matrix in flat]).reshape(
                host.shape[:-1]
            )
        V = errors[..., None] * np.eye(P)
        return Overlap(xp.asarray(self.second_moment(P) - V, **place), xp.asarray(V, **place))

    def _error(self, information: Host) -> Host:
        if self._curve is None:
            self._curve = _curve(
                lambda x: float(self._law.mmse(1 / x, rtol=1e-5).value), self.variance, finest=6, steady=1e-3
            )
        return _below_linear(self._curve(information), information, self.variance)


def _below_linear(error: Host, information: Host, variance: float) -> Host:
    """The error of the best estimate, which is at most that of the best linear one, and equal to it where little is known.

    There the overlap is the small difference of two large numbers, and rounding could even make it negative.
    """
    linear = variance / (1 + variance * information)
    return np.where(variance * information < _LITTLE, linear, np.minimum(error, linear))


class SimulatedPrior(_Derived):
    """A prior with ``sample`` and ``denoise``: moments and the state-evolution map from simulations of the two.

    The error of ``overlap`` is the statistical one of a simulation with about 10^5 entries of the signal (a third of a per
    cent), the same draws for every ``Qhat``; a closed form or quadrature of the prior's own is always better.

    Parameters
    ----------
    prior : object
        With ``sample(rng, components, dimension)`` and ``denoise(R, Qhat)``.
    model : Model
        Gives noise and inner product of signals.
    """

    overlap_error = 3e-3

    def __init__(self, prior: Any, model: Model) -> None:
        super().__init__(prior)
        self.model = model
        self.matrix = len(model.signal_shape(1, 2)) == 3
        if self._own("overlap") is not None:
            self.overlap_error = 0.0
        self._size = (300, 2) if self.matrix else (1 << 14, 8)
        self._curve: Callable[[Host], Host] | None = None
        self._moments: dict[int, tuple[Host, Host]] = {}

    def mean(self, components: int, dimension: int) -> Host:
        """What ``denoise`` makes of nothing."""
        own = self._own("mean")
        if own is not None:
            found: Host = own(components, dimension)
            return found
        nothing = np.zeros(self.model.signal_shape(components, dimension))
        return np.asarray(self.prior.denoise(nothing, 1e-12 * np.eye(components)).estimate)

    def _found(self, components: int) -> tuple[Host, Host]:
        if components not in self._moments:
            dimension, draws = self._size
            mean = self.mean(components, dimension)
            square = np.zeros((components, components))
            for k in range(draws):
                signal = self.prior.sample(monte_carlo_rng("simulated prior", k), components, dimension)
                square += np.asarray(self.model.inner(signal - mean, signal - mean)) / draws
            overlap = np.asarray(self.model.inner(mean, mean))
            self._moments[components] = (overlap + square, overlap)
        return self._moments[components]

    def second_moment(self, components: int) -> Host:
        """The prior's own, or its mean over simulations."""
        own = self._own("second_moment")
        return np.asarray(own(components)) if own is not None else self._found(components)[0]

    def mean_overlap(self, components: int) -> Host:
        """The prior's own, or the overlap of the prior mean with itself."""
        own = self._own("mean_overlap")
        return np.asarray(own(components)) if own is not None else self._found(components)[1]

    def overlap(self, Qhat: Array) -> Overlap:
        """State-evolution map of ``denoise`` (..., P, P), by simulation; leading axes are a batch."""
        own = self._own("overlap")
        if own is not None:
            found: Overlap = own(Qhat)
            return found
        xp = namespace(Qhat)
        place = {"dtype": Qhat.dtype, "device": array_api_compat.device(Qhat)}
        host = np.asarray(to_host(Qhat), dtype=np.float64)
        P = host.shape[-1]
        flat = host.reshape(-1, P, P)
        V = np.stack([self._error(matrix) for matrix in flat]).reshape(host.shape)
        return Overlap(xp.asarray(self.second_moment(P) - V, **place), xp.asarray(V, **place))

    def _error(self, Qhat: Host) -> Host:
        if len(Qhat) > 1:
            return self._simulated(Qhat)
        if self._curve is None:
            variance = float(self.second_moment(1)[0, 0] - self.mean_overlap(1)[0, 0])
            self._curve = _curve(lambda x: float(self._simulated(np.array([[x]]))[0, 0]), variance, finest=8)
        return self._curve(np.diagonal(Qhat))[None, :]

    def _simulated(self, Qhat: Host) -> Host:
        """Error V (P, P) of ``denoise`` in simulations.

        Where little is known V is the prior's variance less the overlap of the estimate with itself, which Bayes makes
        equal to that with the signal; where much is known it is the squared error. Each has a small relative error in its
        own domain, and none in the other's.
        """
        P = len(Qhat)
        dimension, draws = self._size
        spread = inverse_root(Qhat, 1e-12)
        mean = self.mean(P, dimension)
        squared, held = np.zeros((P, P)), np.zeros((P, P))
        for k in range(draws):
            rng = monte_carlo_rng("simulated prior", k)
            signal = self.prior.sample(rng, P, dimension)
            noise = self.model.draw_noise(rng, P, dimension)
            R = signal + np.tensordot(spread, noise, axes=1)
            estimate = np.asarray(self.prior.denoise(R, Qhat).estimate)
            difference, learned = signal - estimate, estimate - mean
            squared += np.asarray(self.model.inner(difference, difference)) / draws
            held += np.asarray(self.model.inner(learned, learned)) / draws
        variance = self.second_moment(P) - self.mean_overlap(P)
        known = float(np.trace(Qhat) * np.trace(variance)) / P**2
        found: Host = (variance - held + known * squared) / (1 + known)
        return found

    def __getattr__(self, name: str) -> Any:
        if name == "model":
            raise AttributeError(name)
        return super().__getattr__(name)


def _curve(
    exact: Callable[[Any], Any],
    variance: float,
    *,
    together: bool = False,
    finest: int = 16,
    steady: float = 1e-7,
) -> Callable[[Host], Host]:
    """``V(information)`` for any information, from values on a logarithmic grid.

    Interpolated is ``log(V (1/variance + information))``, which tends to constants at both ends: it is how much better than
    the best linear estimate the estimate is. ``together``: ``exact`` takes the whole grid at once. ``finest``: values
    per decade where most happens. ``steady``: relative change from one value to the next at which the rest is left out.
    """
    from scipy.interpolate import PchipInterpolator

    # Between a tenth of the prior's precision and a thousand times that a signal with structure is found out.
    centre = math.log10(1 / variance)
    ends = math.log10(_LOWEST), centre - 1, centre + 3, math.log10(_HIGHEST)
    rates = (_COARSE, finest, _COARSE)
    parts = [
        np.linspace(low, high, round((high - low) * rate) + 1)[:-1]
        for low, high, rate in zip(ends, ends[1:], rates)
    ]
    x = np.append(np.concatenate(parts), ends[-1]) * math.log(10)
    count, grid = len(x), np.exp(x)
    if together:
        gain = np.log(np.clip(exact(grid), _TINY, variance) * (1 / variance + grid))
    else:
        gain = np.zeros(count)
        still = 0
        for i, information in enumerate(grid):
            # Far out at the upper end nothing changes any more.
            if still == _STILL:
                gain[i] = gain[i - 1]
                continue
            value = min(max(exact(information), _TINY), variance)
            gain[i] = math.log(value * (1 / variance + information))
            still = (
                still + 1 if i and information * variance > 100 and abs(gain[i] - gain[i - 1]) < steady else 0
            )
    interpolant = PchipInterpolator(x, gain)

    def error(information: Host) -> Host:
        information = np.asarray(information, dtype=np.float64)
        inside = np.clip(information, _LOWEST, _HIGHEST)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.exp(interpolant(np.log(inside))) / (1 / variance + information)
        return np.where(np.isnan(information), np.nan, np.where(information <= 0, variance, found))

    return error


def _noise_of(Qhat: Host) -> Host:
    """``[Qhat^{-1}]_pp`` (P,), infinite where nothing is known."""
    diagonal = np.diagonal(Qhat)
    with np.errstate(divide="ignore"):
        if not np.any(Qhat != np.diag(diagonal)) or not np.isfinite(Qhat).all():
            found: Host = 1 / np.where(diagonal < 0, 0.0, diagonal)
            return found
        values, vectors = np.linalg.eigh(Qhat)
        return np.asarray((vectors**2 / np.maximum(values, _TINY)).sum(1))


def _probability_rule(order: int) -> tuple[Host, Host]:
    """Nodes and weights on (0, 1) for functions of a probability, which may grow towards the ends."""
    nodes, weights = gauss_legendre(order)
    # Panels shrink towards both ends, so that the tails of an unbounded law are resolved.
    edges = 0.5 * np.concatenate([[0.0], 2.0 ** -np.arange(_PANELS - 1, -1, -1.0)])
    left, right = edges[:-1], edges[1:]
    split = np.concatenate(
        [np.linspace(a, b, 5)[:-1] if b > 0.06 else [a] for a, b in zip(left, right)] + [[0.5]]
    )
    left, right = split[:-1], split[1:]
    u = ((left + right)[:, None] / 2 + (right - left)[:, None] / 2 * nodes).ravel()
    w = ((right - left)[:, None] / 2 * weights).ravel()
    return np.concatenate([u, 1 - u[::-1]]), np.concatenate([w, w[::-1]])


def _thinned(atoms: Host) -> tuple[Host, Host]:
    """Sorted samples as at most 512 groups of neighbours, with their means and weights."""
    groups = np.array_split(atoms, min(len(atoms), 512))
    weights = np.array([len(group) for group in groups], dtype=float)
    return np.array([group.mean() for group in groups]), weights / weights.sum()
