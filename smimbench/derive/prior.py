"""Completes priors that define only a density, a spectrum, or a sampler and a denoiser.

* a ``law`` with a ``log_density``: a low-rank signal with iid entries of that law. Posterior mean and error by quadrature.
* a ``law`` with ``quantile`` or ``eigenvalues``: a rotationally invariant matrix of extensive rank with that spectrum.
  Posterior mean and error by free convolution with a semicircle.
* ``sample`` and ``denoise``: any signal. The state-evolution map is what ``denoise`` does in simulations.

In the first two the law is scaled to unit variance unless the prior draws its own samples, so that the prior mean scores 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal

import numpy as np

from smimbench.backend.arrays import (
    NUMPY,
    asarray_like,
    clip,
    matching,
    namespace,
    to_host_floats,
)
from smimbench.derive.channel import IntegratedChannel
from smimbench.derive.derived_prior import LOWEST, DerivedLaw, error_curve
from smimbench.interfaces import (
    Array,
    Channel,
    Denoised,
    Host,
    Law,
    ParameterError,
    Prior,
)
from smimbench.numerics.chebyshev import values_by_panels
from smimbench.numerics.free_convolution import FreeConvolution
from smimbench.numerics.linalg import (
    inverse_root,
    is_diagonal,
    spectral_function,
    symmetric,
)
from smimbench.numerics.quadrature import IMPOSSIBLE, gauss_legendre, line_moments
from smimbench.numerics.random_numbers import monte_carlo_rng


class DensityPrior(DerivedLaw):
    r"""Prior of signals (P, D) with iid entries w of density ``exp(log_density(w))``, not necessarily normalized.

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
        """Normalize the density of the prior's law, scale it, and find where it is narrow: edges of intervals between quantiles
        at which integration must look closely.
        """
        super().__init__(prior)
        self._log_density: Any = prior.law.log_density
        support_points, log_density = self._support()
        density = np.exp(log_density - log_density.max())
        cumulative_mass = np.concatenate(
            [[0.0], np.cumsum((density[1:] + density[:-1]) / 2)]
        )
        log_mass, log_positive_part, log_negative_part, log_second_moment = (
            self._log_moments()
        )
        self._norm = log_mass + math.log(math.sqrt(2 * math.pi))
        mean = math.exp(log_positive_part - log_mass) - math.exp(
            log_negative_part - log_mass
        )
        second_moment = math.exp(log_second_moment - log_mass)
        variance = second_moment - mean * mean
        if not self._norm > IMPOSSIBLE / 2:
            raise ParameterError(
                "log_density",
                "must be the log-density of a law, but the density is 0 everywhere",
            )
        if not variance > 1e-12 * second_moment:
            raise ParameterError(
                "log_density",
                f"must be the log-density of a law whose variance exceeds rounding, got {variance:g}",
            )
        self._set_scale(mean, variance)
        self._distribution = (
            support_points / self.unit,
            cumulative_mass / cumulative_mass[-1],
        )
        # Quadratures need to be told where 1/64 of the law lies within a fiftieth of its width.
        quantiles = np.interp(
            np.linspace(0, 1, 65)[1:-1], self._distribution[1], self._distribution[0]
        )
        quantile_gaps = np.diff(quantiles)
        self._smallest_quantile_gap = float(quantile_gaps.min())
        is_narrow = quantile_gaps < 0.02 * math.sqrt(self.variance)
        narrow_ends = np.concatenate(
            [quantiles[:-1][is_narrow], quantiles[1:][is_narrow]]
        )
        self._narrow_edges = np.unique(narrow_ends).tolist()

    def _support(self) -> tuple[Host, Host]:
        """Grid of points ``w = sinh(t)``, uniform in t, that covers the mass of the law of an entry w, and the log-density of t
        there. ``lowest_t`` and ``highest_t`` bound t.
        """
        t = np.linspace(-38.0, 38.0, 40_001)
        log_density = self._log_density_of_sinh(t)
        # The tails of the second moment decide whether there is one.
        tail_moments = (log_density + 2 * np.log(np.abs(np.sinh(t)) + 1e-300))[[0, -1]]
        if tail_moments.max() > max(log_density.max() - 1, IMPOSSIBLE / 2):
            raise ParameterError(
                "log_density",
                "must be the log-density of a law with finite variance, but it does not decrease far from 0",
            )
        for _ in range(3):  # narrow the grid to the mass
            in_support = np.flatnonzero(log_density >= log_density.max() - 60)
            lowest_t = t[max(in_support[0] - 1, 0)]
            highest_t = t[min(in_support[-1] + 1, len(t) - 1)]
            t = np.linspace(lowest_t, highest_t, len(t))
            log_density = self._log_density_of_sinh(t)
        return np.sinh(t), log_density

    def _log_density_of_sinh(self, t: Host) -> Host:
        """Log-density of the variable t for which the entry ``w = sinh(t)`` of the signal follows the prior."""
        return self._raw_log_density(np.sinh(t)) + np.log(np.cosh(t))

    def _log_moments(self) -> Host:
        """Logarithms of four integrals of the density over entries w: its mass, the positive and the negative part of its first
        moment, and its second moment.

        They are integrated over ``w = sinh(t)``; the halves are those of positive and of negative numbers.
        Scales up to 1e16 are reached; where the law jumps the integrals end there.
        """

        def log_weight(t: Host, moment_indices: Host) -> Host:
            """Log-density at ``w = sinh(t)`` plus the logarithm of each moment's factor: 1, positive part of w, negative part
            of w (``log_signed_halves``), w^2. ``moment_indices`` say which of these, one for every row of t.
            """
            w = np.sinh(t)
            log_abs_w = np.log(np.abs(w) + 1e-300)
            log_signed_halves = (
                np.where(sign * w > 0, log_abs_w, IMPOSSIBLE) for sign in (1, -1)
            )
            log_factors = np.stack(
                [np.zeros_like(w), *log_signed_halves, 2 * log_abs_w]
            )
            log_factor = log_factors[moment_indices, np.arange(len(moment_indices))]
            log_density = self._raw_log_density(w) + log_factor
            return np.asarray(log_density + np.log(np.cosh(t)) + t * t / 2)

        moments = line_moments(
            log_weight, 4, NUMPY, None, tolerance=1e-8, reach=38.0, rounds=400
        )
        return np.asarray(moments.log_norm)

    def _raw_log_density(self, w: Host) -> Host:
        """Log-density of the prior at entries ``w`` as its author defined it, before scaling, as a host array."""
        with np.errstate(all="ignore"):
            log_density = to_host_floats(self._log_density(w))
        if log_density.shape != w.shape:
            raise ParameterError(
                "log_density",
                f"must return an array with the same shape as its argument, {w.shape}, got {log_density.shape}",
            )
        if np.isnan(log_density).any() or (log_density == math.inf).any():
            raise ParameterError(
                "log_density",
                "must return finite numbers or -inf, but returned a number that is not finite",
            )
        return np.maximum(log_density, IMPOSSIBLE)

    def sample(self, rng: np.random.Generator, components: int, dimension: int) -> Host:
        """Draw a signal (P, D) on the host, float64, where P is ``components`` and D ``dimension``."""
        support_points, cumulative_mass = self._distribution
        return np.interp(
            rng.random((components, dimension)), cumulative_mass, support_points
        )

    def mean(self, components: int, dimension: int) -> Host:
        """Prior mean (P, D) of the signal, where P is ``components`` and D ``dimension``, as a host array."""
        return np.full((components, dimension), self.center)

    def denoise(self, R: Array, Qhat: Array) -> Denoised:
        """Posterior mean (P, D) of the signal W given ``R = W + Qhat^{-1/2} Z`` with standard normal Z and information Qhat (P,
        P), and its error V (P, P), the posterior covariance of the P components averaged over the D entries.

        ``Qhat`` (P, P) is positive semidefinite; where it is 0 nothing is known beyond the prior.
        """
        host_Qhat = to_host_floats(Qhat)
        if not is_diagonal(host_Qhat):
            return self._denoise_jointly(R, host_Qhat)
        observations = to_host_floats(R)
        estimate = np.empty(observations.shape)
        errors = np.empty(len(observations))
        for component, information in enumerate(np.diagonal(host_Qhat).tolist()):
            estimate[component], variance = self._moments_of_entries(
                observations[component], information
            )
            errors[component] = variance.mean()
        return Denoised(asarray_like(estimate, R), asarray_like(np.diag(errors), R))

    def _moments_of_entries(self, r: Host, information: float) -> tuple[Host, Host]:
        """Posterior mean and variance of signal entries observed as ``r`` (n,) with noise of variance 1/information;
        interpolated between observations by panels.
        """
        if information <= 0:
            return np.full_like(r, self.center), np.full_like(r, self.variance)
        if math.isinf(information):
            return r, np.zeros_like(r)

        def entry_moments(observations: Host) -> Host:
            """Posterior mean and variance (n, 2) of the signal entries at these n ``observations``."""
            return self._entry_posteriors(
                observations, np.full_like(observations, information), 1e-6
            )[:2].T

        # Posterior mean and variance are smooth in r, and entries are many: interpolate.
        posterior_width = math.sqrt(min(self.variance, 1 / information))
        mean_and_variance = values_by_panels(
            entry_moments,
            r,
            1e-6 * np.array([posterior_width, posterior_width * posterior_width]),
        )
        return mean_and_variance[:, 0], np.maximum(mean_and_variance[:, 1], 0.0)

    def _entry_posteriors(self, r: Host, information: Host, tolerance: float) -> Host:
        """Posterior mean and variance of signal entries observed as ``r`` (N,), and the log-density of r, stacked (3, N); noise
        has variance 1/information, one for each. The quadrature over an entry has the scale of the noise or of the law,
        whichever is narrower, or where unsure both, and is accurate to ``tolerance``.
        """
        # The narrower of noise and law is the Gaussian along which the other one is integrated.
        noise_is_narrower = information >= 1
        noise_width = 1 / np.sqrt(information)
        line_origin = np.where(noise_is_narrower, r, 0.0)
        line_scale = np.where(noise_is_narrower, noise_width, 1.0)
        posterior = self._entry_posteriors_along(
            r, information, line_origin, line_scale, tolerance
        )
        is_ambiguous = (
            noise_is_narrower
            & bool(self._narrow_edges)
            & (self._smallest_quantile_gap < noise_width)
        )
        if is_ambiguous.any():
            # Quadrature along the noise may miss narrow parts of the law, and quadrature along the law may miss narrow noise.
            # What is missed lowers the density, so the higher density is the right one.
            zeros = np.zeros(is_ambiguous.sum())
            posterior_along_law = self._entry_posteriors_along(
                r[is_ambiguous], information[is_ambiguous], zeros, zeros + 1, tolerance
            )
            posterior_along_noise = posterior[:, is_ambiguous]
            law_finds_more = posterior_along_law[2] > posterior_along_noise[2]
            posterior[:, is_ambiguous] = np.where(
                law_finds_more, posterior_along_law, posterior_along_noise
            )
        return posterior

    def _entry_posteriors_along(
        self, r: Host, information: Host, origin: Host, scale: Host, tolerance: float
    ) -> Host:
        """Posterior mean and variance of signal entries w observed as ``r`` (N,) with noise of variance 1/information, and the
        log-density of r, stacked (3, N), by quadrature over t with ``w = origin + scale t``. The quadrature is accurate to
        ``tolerance``.
        """

        def log_weight(t: Host, lines: Host) -> Host:
            """Log-density of an entry w and of its observation r given w, at ``w = origin + scale t``; ``lines`` are the
            numbers of the observations.
            """
            w = origin[lines][:, None] + scale[lines][:, None] * t
            noise_energy = (
                (w - r[lines][:, None]) ** 2 * information[lines][:, None] / 2
            )
            log_density = self._raw_log_density(w * self.unit)
            return np.asarray(log_density - noise_energy + t * t / 2)

        narrow_places = self._narrow_edges if (scale == 1).any() else ()
        moments = line_moments(
            log_weight,
            len(r),
            NUMPY,
            None,
            tolerance=tolerance,
            rounds=80,
            places=narrow_places,
        )
        mean = origin + scale * moments.mean
        variance = np.maximum(moments.square - moments.mean**2, 0.0)
        log_unit = np.log(self.unit * scale * np.sqrt(information))
        log_density = moments.log_norm - self._norm + log_unit
        return np.stack([mean, scale**2 * variance, log_density])

    def _denoise_jointly(self, R: Array, Qhat: Host) -> Denoised:
        """Posterior mean and error of the signal given ``R = W + Qhat^{-1/2} Z`` if Qhat is not diagonal, so that components
        are coupled: by integration over every column (the P components of one entry).
        """
        xp = namespace(R)
        P = R.shape[0]
        # A direction that was not observed has noise far beyond the law's own width.
        noise_covariance = spectral_function(
            Qhat, lambda values: 1 / np.maximum(values, 1e-9)
        )
        column_channel = IntegratedChannel(_ColumnChannel(self, P), sites=1)
        signal_columns = xp.astype(xp.matrix_transpose(R), xp.float64)[:, :, None]
        labels = xp.zeros((R.shape[1],), **matching(signal_columns))
        noise_covariance = asarray_like(noise_covariance, signal_columns)
        posterior = column_channel.posterior(labels, signal_columns, noise_covariance)
        estimate = xp.matrix_transpose(posterior.mean[:, :, 0])
        return Denoised(
            xp.astype(estimate, R.dtype), xp.astype(posterior.covariance, R.dtype)
        )

    def _error(self, Qhat: Host) -> Host:
        """Error V (P, P) of the posterior mean for one information matrix ``Qhat`` (P, P): by interpolated quadratures if it is
        diagonal, else by denoising one random signal W of D = 4096.
        """
        informations = np.diagonal(Qhat)
        if is_diagonal(Qhat):
            return np.diag(self._scalar_error(informations))
        rng = monte_carlo_rng("density prior")
        W = self.sample(rng, len(Qhat), 4096)
        noise_draws = inverse_root(Qhat, 1e-9) @ rng.standard_normal(W.shape)
        return np.asarray(self._denoise_jointly(W + noise_draws, Qhat).V)

    @cached_property
    def _error_curve(self) -> Callable[[Host], Host]:
        """Function for the error V of one component at a given information (inverse noise variance), by quadrature."""
        return error_curve(self._exact_error, self.variance, takes_grid=True)

    def _exact_error(self, information: Host) -> Host:
        """Mean posterior variance ``E Var(w | r)`` of a signal entry w observed as r with noise of variance 1/information, for
        N informations, by nested adaptive quadrature over w and r.
        """
        observation_width = np.sqrt(self.variance + 1 / information)

        def log_weight(t: Host, lines: Host) -> Host:
            """Logarithm of density times posterior variance at observations r that lie ``t`` standard deviations of r from the
            mean; ``lines`` are the indices of the informations, one for every row of t.
            """
            observations = (self.center + observation_width[lines][:, None] * t).ravel()
            informations = np.repeat(information[lines], t.shape[1])
            chunks = np.array_split(
                np.arange(len(observations)), len(observations) // 4096 + 1
            )
            posteriors = [
                self._entry_posteriors(observations[chunk], informations[chunk], 1e-4)
                for chunk in chunks
            ]
            _, variance, log_density = np.concatenate(posteriors, axis=1)
            log_error = (log_density + np.log(variance)).reshape(t.shape)
            return np.asarray(
                log_error + np.log(observation_width[lines])[:, None] + t * t / 2
            )

        with np.errstate(divide="ignore"):
            moments = line_moments(
                log_weight, len(information), NUMPY, None, tolerance=3e-5, rounds=60
            )
        return np.asarray(np.exp(moments.log_norm) * math.sqrt(2 * math.pi))


class _ColumnChannel(Channel):
    """Channel whose latents are the columns of a signal and whose likelihood is the prior's density."""

    name = "prior"

    def __init__(self, prior: DensityPrior, components: int) -> None:
        """Set the prior, and the number of components as number of latents."""
        self.prior = prior
        self.components = components

    def log_likelihood(self, y: Array, z: Array) -> Array:
        """Log-density under the prior of every column ``z`` (n, P, 1) of a signal; the labels ``y`` are not used."""
        del y
        log_densities = self.prior._log_density(z[:, :, 0] * self.prior.unit)
        return namespace(z).sum(clip(log_densities, IMPOSSIBLE, None), axis=1)


FEWEST_SAMPLES = 64
"""Smallest number of eigenvalues that is treated as samples of a law; fewer are taken as the law itself."""


class SpectrumPrior(DerivedLaw):
    r"""Prior of rotationally invariant signals ``S = O diag(lambda) O^T`` (P, D, D), O a random rotation, with a given law of
    the eigenvalues lambda. ``matrix`` says that signals are matrices, ``overlap_error`` is the relative error of V.

    ``O`` is uniform over rotations, ``lambda`` are the quantiles of the law at ``(i + 1/2)/D``. The posterior mean given
    ``R = S + sqrt(Delta) Z`` keeps the eigenvectors of R and shrinks its eigenvalues,
    ``xi = x - 2 Delta Re g(x)``, ``g`` the Stieltjes transform of the free convolution with a semicircle. Several components
    are estimated one by one, from ``Delta_p = [Qhat^{-1}]_pp``.

    Parameters
    ----------
    prior : object
        With ``law.quantile(u) -> array``, the inverse distribution function for u in (0, 1), or ``law.eigenvalues``, samples of
        the law; fewer than 64 are not samples but the law itself, each an atom
        of equal weight. The law is scaled to unit variance, unless the prior has a
        ``sample`` of its own.

    References
    ----------
    smimbench.numerics.free_convolution; derived, checked by tests/derive/test_derived_prior.py.
    """

    matrix = True
    overlap_error = 3e-3

    def __init__(self, prior: Prior) -> None:
        """Read the law of the eigenvalues, from its quantile function or from samples, as ``atoms`` (eigenvalues) with
        weights.
        """
        super().__init__(prior)
        self._quantile: Any = prior.law.quantile
        law: Literal["exact", "quantiles"] = "quantiles"
        if self._quantile is not None:
            probabilities, weights = _probability_rule(4)
            atoms = self._quantiles(probabilities)
            is_finite = atoms.shape == probabilities.shape and np.isfinite(atoms).all()
            if not is_finite or (np.diff(atoms) < 0).any():
                raise ParameterError(
                    "quantile",
                    "must return one finite number for each probability, in non-decreasing order",
                )
        else:
            eigenvalues = to_host_floats(prior.law.eigenvalues)
            self._samples = atoms = np.sort(eigenvalues.ravel())
            if atoms.size < 2 or not np.isfinite(atoms).all():
                raise ParameterError(
                    "eigenvalues",
                    "must be two or more finite numbers, the eigenvalues of the signal",
                )
            if atoms.size < FEWEST_SAMPLES:
                law = "exact"
                atoms, counts = np.unique(atoms, return_counts=True)
                weights = counts / counts.sum()
            else:
                atoms, weights = _grouped_samples(atoms)
        mean = float(weights @ atoms)
        variance = float(weights @ (atoms - mean) ** 2)
        if not variance > 0:
            raise ParameterError(
                "quantile",
                "must be the quantile function of a law with positive variance, but all its values are equal",
            )
        self._set_scale(mean, variance)
        self._law = FreeConvolution(atoms / self.unit, weights, law=law)

    def _quantiles(self, probabilities: Host) -> Host:
        """Eigenvalues at given probabilities, as the law defines them, before scaling."""
        return to_host_floats(self._quantile(probabilities))

    def spectrum(self, dimension: int) -> Host:
        """Eigenvalues (D,) of every signal of dimension D, ascending: quantiles of the law at D equidistant ``probabilities``."""
        probabilities = (np.arange(dimension) + 0.5) / dimension
        if self._quantile is not None:
            eigenvalues = self._quantiles(probabilities)
        elif self._samples.size < FEWEST_SAMPLES:
            eigenvalues = self._samples[
                (probabilities * self._samples.size).astype(int)
            ]
        else:
            sample_probabilities = (np.arange(len(self._samples)) + 0.5) / len(
                self._samples
            )
            eigenvalues = np.interp(probabilities, sample_probabilities, self._samples)
        return eigenvalues / self.unit

    def sample(self, rng: np.random.Generator, components: int, dimension: int) -> Host:
        """Draw a symmetric signal (P, D, D) on the host, float64, where P is ``components`` and D ``dimension``: one fixed
        spectrum in random bases.
        """
        eigenvalues = self.spectrum(dimension)
        signal = np.empty((components, dimension, dimension))
        for component in range(components):
            rotation, triangular = np.linalg.qr(
                rng.standard_normal((dimension, dimension))
            )
            rotation *= np.where(np.diagonal(triangular) < 0, -1.0, 1.0)
            signal[component] = symmetric((rotation * eigenvalues) @ rotation.T)
        return signal

    def mean(self, components: int, dimension: int) -> Host:
        """Prior mean (P, D, D) of the signal, as a host array: the mean eigenvalue times the identity; P is ``components``, D
        ``dimension``.
        """
        return np.repeat(self.center * np.eye(dimension)[None], components, axis=0)

    @property
    def law(self) -> Law:
        """Law of the eigenvalues, an object that also gives means over the spectrum of noisy signals (``FreeConvolution.means``).

        Fluctuations of the overlap are of order 1/D.
        """
        law: Law = self.prior.law
        return law._replace(
            spectral_means=self._law.means,
            fluctuation=lambda dimension: 2.0 / dimension,
        )

    def denoise(self, R: Array, Qhat: Array) -> Denoised:
        """Posterior mean (P, D, D) of the signal S given ``R = S + Qhat^{-1/2} Z`` with symmetric noise Z and information Qhat
        (P, P), and its error V (P, P), diagonal.
        """
        xp = namespace(R)
        noise = _noise_variances(to_host_floats(Qhat))
        dimension = R.shape[-1]
        estimates = []
        for component, variance in enumerate(noise.tolist()):
            estimate = R[component, ...]
            if variance > 1 / LOWEST:
                mean = self.center * np.eye(dimension)
                estimate = asarray_like(mean, R)
            elif variance > 0:
                eigenvalues, eigenvectors = xp.linalg.eigh(estimate)
                denoised_eigenvalues = self._law.rie(eigenvalues, variance)[None, :]
                estimate = xp.matmul(
                    eigenvectors * denoised_eigenvalues,
                    xp.matrix_transpose(eigenvectors),
                )
            estimates.append(estimate)
        V = self._error_of_noise(noise)
        return Denoised(xp.stack(estimates), asarray_like(V, R))

    def _error(self, Qhat: Host) -> Host:
        """Error V (P, P) of the posterior mean at information ``Qhat`` (P, P), diagonal: ``V_pp = F([Qhat^{-1}]_pp)`` with
        F(noise variance) the error of one component.
        """
        return self._error_of_noise(_noise_variances(Qhat))

    def _error_of_noise(self, noise: Host) -> Host:
        """Error V (P, P) of the posterior mean, diagonal, if component p is observed with noise of variance ``noise[p]``."""
        with np.errstate(divide="ignore"):
            return np.diag(self._scalar_error(1 / noise))

    @cached_property
    def _error_curve(self) -> Callable[[Host], Host]:
        """Function for the error V of one component at a given information (inverse noise variance), by free convolution."""

        def exact_error(information: float) -> float:
            """Minimum mean square error of one component observed with noise of variance 1/information."""
            return float(self._law.mmse(1 / information, rtol=1e-5).value)

        return error_curve(exact_error, self.variance, per_decade=6, steady=1e-3)


def _noise_variances(Qhat: Host) -> Host:
    """Noise variance ``[Qhat^{-1}]_pp`` (P,) with which each component is observed at information ``Qhat`` (P, P); infinite
    where there is none.
    """
    informations = np.diagonal(Qhat)
    with np.errstate(divide="ignore"):
        if is_diagonal(Qhat) or not np.isfinite(Qhat).all():
            return np.asarray(1 / np.where(informations < 0, 0.0, informations))
        eigenvalues, eigenvectors = np.linalg.eigh(Qhat)
        return np.asarray((eigenvectors**2 / np.maximum(eigenvalues, 1e-300)).sum(1))


def _probability_rule(order: int) -> tuple[Host, Host]:
    """Quadrature nodes and weights on (0, 1) for functions of a probability that may diverge at the ends: Gauss-Legendre rules
    of ``order`` nodes on panels that halve towards both ends.
    """
    nodes, weights = gauss_legendre(order)
    # Panels halve towards both ends, down to 2^-24, so that the tails of an unbounded law are resolved.
    dyadic_edges = 0.5 * np.concatenate([[0.0], 2.0 ** -np.arange(23, -1, -1.0)])
    panel_starts = dyadic_edges[:-1]
    panel_stops = dyadic_edges[1:]
    subpanel_starts = [
        np.linspace(start, end, 5)[:-1] if end > 0.06 else [start]
        for start, end in zip(panel_starts, panel_stops)
    ]
    panel_edges = np.concatenate([*subpanel_starts, [0.5]])
    panel_starts = panel_edges[:-1]
    panel_stops = panel_edges[1:]
    probabilities = (
        (panel_starts + panel_stops)[:, None] / 2
        + (panel_stops - panel_starts)[:, None] / 2 * nodes
    ).ravel()
    probability_weights = ((panel_stops - panel_starts)[:, None] / 2 * weights).ravel()
    return np.concatenate([probabilities, 1 - probabilities[::-1]]), np.concatenate(
        [probability_weights, probability_weights[::-1]]
    )


def _grouped_samples(atoms: Host) -> tuple[Host, Host]:
    """Group sorted samples (atoms of the spectrum) into at most 512 groups of neighbors; return their means and weights."""
    groups = np.array_split(atoms, min(len(atoms), 512))
    weights = np.array([len(group) for group in groups], dtype=float)
    return np.array([group.mean() for group in groups]), weights / weights.sum()
