"""Priors of matrices with a given spectrum: posterior mean and error by free convolution with a semicircle."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal

import numpy as np

from smimbench.backend.arrays import matching, namespace, to_host
from smimbench.derive.derived_prior import LOWEST, DerivedLaw, error_curve
from smimbench.interfaces import Array, Denoised, Host, Law, ParameterError, Prior
from smimbench.numerics.free_convolution import FreeConvolution
from smimbench.numerics.linalg import is_diagonal, symmetric
from smimbench.numerics.quadrature import gauss_legendre

FEWEST_SAMPLES = 64
"""Smallest number of eigenvalues that is treated as samples of a law; fewer are taken as the law itself."""


class SpectrumPrior(DerivedLaw):
    r"""Prior of rotationally invariant signals ``S = O diag(lambda) O^T`` (P, D, D) with a given law of the eigenvalues.

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
        super().__init__(prior)
        self._quantile: Any = prior.law.quantile
        law: Literal["exact", "quantiles"] = "quantiles"
        if self._quantile is not None:
            probabilities, weights = _probability_rule(4)
            atoms = self._quantiles(probabilities)
            finite = atoms.shape == probabilities.shape and np.isfinite(atoms).all()
            if not finite or (np.diff(atoms) < 0).any():
                raise ParameterError(
                    "quantile",
                    "must return one finite number for each probability, in non-decreasing order",
                )
        else:
            eigenvalues = np.asarray(to_host(prior.law.eigenvalues), dtype=np.float64)
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
        center = float(weights @ atoms)
        variance = float(weights @ (atoms - center) ** 2)
        if not variance > 0:
            raise ParameterError(
                "quantile",
                "must be the quantile function of a law with positive variance",
            )
        self._set_scale(center, variance)
        self._law = FreeConvolution(atoms / self.unit, weights, law=law)

    def _quantiles(self, probabilities: Host) -> Host:
        """Eigenvalues at given probabilities, as the law defines them, before scaling."""
        return np.asarray(to_host(self._quantile(probabilities)), dtype=np.float64)

    def spectrum(self, dimension: int) -> Host:
        """Eigenvalues (D,) of every signal of dimension D, ascending."""
        u = (np.arange(dimension) + 0.5) / dimension
        if self._quantile is not None:
            eigenvalues = self._quantiles(u)
        elif self._samples.size < FEWEST_SAMPLES:
            eigenvalues = self._samples[(u * self._samples.size).astype(int)]
        else:
            at = (np.arange(len(self._samples)) + 0.5) / len(self._samples)
            eigenvalues = np.interp(u, at, self._samples)
        return eigenvalues / self.unit

    def sample(self, rng: np.random.Generator, components: int, dimension: int) -> Host:
        """Draw a signal (P, D, D) on the host, float64, symmetric."""
        values = self.spectrum(dimension)
        signal = np.empty((components, dimension, dimension))
        for p in range(components):
            rotation, triangle = np.linalg.qr(
                rng.standard_normal((dimension, dimension))
            )
            rotation *= np.where(np.diagonal(triangle) < 0, -1.0, 1.0)
            signal[p] = symmetric((rotation * values) @ rotation.T)
        return signal

    def mean(self, components: int, dimension: int) -> Host:
        """Prior mean: the mean eigenvalue times the identity (P, D, D), host."""
        return np.repeat(self.center * np.eye(dimension)[None], components, axis=0)

    @property
    def law(self) -> Law:
        """Law of the eigenvalues, with means over the spectrum of noisy signals added (see ``FreeConvolution.means``).

        Fluctuations of the overlap are of order 1/D.
        """
        law: Law = self.prior.law
        return law._replace(
            spectral_means=self._law.means,
            fluctuation=lambda dimension: 2.0 / dimension,
        )

    def denoise(self, R: Array, Qhat: Array) -> Denoised:
        """Posterior mean (P, D, D) given ``R = S + Qhat^{-1/2} Z`` (symmetric), and its error V (P, P), diagonal."""
        xp = namespace(R)
        noise = _noise_variances(np.asarray(to_host(Qhat), dtype=np.float64))
        dimension = R.shape[-1]
        estimates = []
        for p, variance in enumerate(noise.tolist()):
            estimate = R[p, ...]
            if variance > 1 / LOWEST:
                mean = self.center * np.eye(dimension)
                estimate = xp.asarray(mean, **matching(R))
            elif variance > 0:
                values, vectors = xp.linalg.eigh(estimate)
                shrunk = self._law.rie(values, variance)[None, :]
                estimate = xp.matmul(vectors * shrunk, xp.matrix_transpose(vectors))
            estimates.append(estimate)
        V = self._error_of_noise(noise)
        return Denoised(xp.stack(estimates), xp.asarray(V, **matching(R)))

    def _error(self, Qhat: Host) -> Host:
        """Error V (P, P) of the posterior mean, diagonal, with ``V_pp = F([Qhat^{-1}]_pp)``."""
        return self._error_of_noise(_noise_variances(Qhat))

    def _error_of_noise(self, noise: Host) -> Host:
        with np.errstate(divide="ignore"):
            return np.diag(self._scalar_error(1 / noise))

    @cached_property
    def _curve(self) -> Callable[[Host], Host]:
        """Error V of one component as a function of its information, by free convolution."""

        def exact(information: float) -> float:
            return float(self._law.mmse(1 / information, rtol=1e-5).value)

        return error_curve(exact, self.variance, finest=6, steady=1e-3)


def _noise_variances(Qhat: Host) -> Host:
    """Noise variance ``[Qhat^{-1}]_pp`` (P,) with which each component is observed; infinite without information."""
    diagonal = np.diagonal(Qhat)
    with np.errstate(divide="ignore"):
        if is_diagonal(Qhat) or not np.isfinite(Qhat).all():
            return np.asarray(1 / np.where(diagonal < 0, 0.0, diagonal))
        values, vectors = np.linalg.eigh(Qhat)
        return np.asarray((vectors**2 / np.maximum(values, 1e-300)).sum(1))


def _probability_rule(order: int) -> tuple[Host, Host]:
    """Quadrature nodes and weights on (0, 1) for functions of a probability that may diverge at the ends."""
    nodes, weights = gauss_legendre(order)
    # Panels halve towards both ends, down to 2^-24, so that the tails of an unbounded law are resolved.
    edges = 0.5 * np.concatenate([[0.0], 2.0 ** -np.arange(23, -1, -1.0)])
    lower = edges[:-1]
    upper = edges[1:]
    starts = [
        np.linspace(a, b, 5)[:-1] if b > 0.06 else [a] for a, b in zip(lower, upper)
    ]
    split = np.concatenate([*starts, [0.5]])
    lower = split[:-1]
    upper = split[1:]
    u = ((lower + upper)[:, None] / 2 + (upper - lower)[:, None] / 2 * nodes).ravel()
    w = ((upper - lower)[:, None] / 2 * weights).ravel()
    return np.concatenate([u, 1 - u[::-1]]), np.concatenate([w, w[::-1]])


def _grouped_samples(atoms: Host) -> tuple[Host, Host]:
    """Group sorted samples into at most 512 groups of neighbors; return their means and weights."""
    groups = np.array_split(atoms, min(len(atoms), 512))
    weights = np.array([len(group) for group in groups], dtype=float)
    return np.array([group.mean() for group in groups]), weights / weights.sum()
