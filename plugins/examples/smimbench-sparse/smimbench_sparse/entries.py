r"""Signals whose entries come from a mixture of two Gaussian laws, either of which may be an atom.

A column ``w`` of P entries belongs to one of ``2^P`` patterns k, each a Gaussian law with mean ``m_k`` and diagonal covariance
``D_k``. Given ``R = w + Qhat^{-1/2} Z`` and with ``A_k = I + D_k^{1/2} Qhat D_k^{1/2}``, ``b_k = D_k^{1/2} Qhat (R - m_k)``,

.. math::

    E[w | R, k] = m_k + D_k^{1/2} A_k^{-1} b_k, \qquad
    \log P(k | R) = \log \pi_k + \tfrac12 b_k^T A_k^{-1} b_k - \tfrac12 \log\det A_k
        + m_k^T \hat Q R - \tfrac12 m_k^T \hat Q m_k + \mathrm{const},

for any positive semidefinite ``Qhat``, diagonal or not.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np

from smimbench import Capabilities, Denoised, Overlap, ParameterError
from smimbench.backend import namespace, to_host
from smimbench.numerics import inverse_root, normal_points

__all__ = ["GaussBernoulli", "Rademacher"]

_MAX_COMPONENTS = 8
_LARGEST_INFORMATION = 1e12
"""Information beyond which more makes no difference in double precision."""


class _Mixture:
    """Base class of priors with independent entries from a mixture of Gaussians, of total mean 0 and variance 1. A pattern is a
    choice of one Gaussian of the mixture for each of the P components.

    ``mixture`` holds weight, mean and variance of each Gaussian.
    """

    version = 1
    capabilities = Capabilities(models=("sequence-multi-index",))

    @property
    def mixture(self) -> tuple[tuple[float, float, float], ...]:
        """Weight, mean and variance of each Gaussian of the mixture; each subclass defines it."""
        raise NotImplementedError

    def _scalar_error(self, information: Any) -> Any:
        """Mean posterior variance of an entry observed with this ``information``; each subclass defines it."""
        raise NotImplementedError

    # -- law ----------------------------------------------------------------------------------------------------

    def sample(self, rng: np.random.Generator, components: int, dimension: int) -> Any:
        """Draw a signal (P, D) on the host: for each entry one Gaussian of the mixture (``gaussian_index``), then its value."""
        weights, means, variances = (np.array(column) for column in zip(*self.mixture))
        gaussian_index = rng.choice(
            len(weights), size=(components, dimension), p=weights
        )
        return means[gaussian_index] + np.sqrt(
            variances[gaussian_index]
        ) * rng.standard_normal((components, dimension))

    def mean(self, components: int, dimension: int) -> Any:
        """Prior mean: zeros (P, D)."""
        return np.zeros((components, dimension))

    def second_moment(self, components: int) -> Any:
        """Second moment ``E[W W^T] / D = I`` (P, P) of the signal."""
        return np.eye(components)

    def mean_overlap(self, components: int) -> Any:
        """Overlap (P, P) of the prior mean with itself: zeros."""
        return np.zeros((components, components))

    # -- inference ------------------------------------------------------------------------------------------------

    def denoise(self, R: Any, Qhat: Any) -> Denoised:
        """Posterior mean (P, D) of the signal W given the observation ``R = W + Qhat^{-1/2} Z`` (P, D) with information Qhat (P,
        P) and white noise Z, and the mean posterior covariance V (P, P).
        """
        if tuple(Qhat.shape) != (R.shape[0], R.shape[0]):
            raise ValueError(
                f"the information matrix Qhat must have shape {(R.shape[0],) * 2}, got {tuple(Qhat.shape)}"
            )
        xp = namespace(R)
        dtype_and_device = {"dtype": xp.float64, "device": array_api_compat.device(R)}
        bounded_Qhat = np.minimum(
            np.asarray(to_host(Qhat), dtype=float), _LARGEST_INFORMATION
        )
        estimate, V = self._denoise(
            xp.astype(R, xp.float64), bounded_Qhat, xp, dtype_and_device
        )
        return Denoised(xp.astype(estimate, R.dtype), xp.astype(V, R.dtype))

    def _denoise(
        self, R: Any, Qhat: Any, xp: Any, dtype_and_device: dict[str, Any]
    ) -> tuple[Any, Any]:
        """Posterior mean (P, D) and mean posterior covariance V (P, P) at observations R with bounded information Qhat: for every
        pattern, of means m and variances v, Gaussian mean and covariance and the log of its weight given R, then their mixture.
        ``xp`` and ``dtype_and_device`` say where arrays are made.
        """
        P = R.shape[0]
        natural_parameter = xp.matmul(xp.asarray(Qhat, **dtype_and_device), R)
        log_weights, means, covariances = [], [], []
        for weight, m, v in self._patterns(P):
            root_of_v = np.sqrt(v)
            scaled_precision = (
                np.eye(P) + root_of_v[:, None] * Qhat * root_of_v[None, :]
            )
            covariance = (
                root_of_v[:, None]
                * np.linalg.inv(scaled_precision)
                * root_of_v[None, :]
            )
            centered_parameter = natural_parameter - xp.asarray(
                (Qhat @ m)[:, None], **dtype_and_device
            )
            mean_shift = xp.matmul(
                xp.asarray(covariance, **dtype_and_device), centered_parameter
            )
            log_likelihood = xp.sum(
                centered_parameter * mean_shift, axis=0
            ) / 2 + xp.sum(
                xp.asarray(m[:, None], **dtype_and_device) * natural_parameter, axis=0
            )
            log_constant = (
                math.log(weight)
                - float(np.linalg.slogdet(scaled_precision)[1]) / 2
                - float(m @ Qhat @ m) / 2
            )
            log_weights.append(log_likelihood + log_constant)
            means.append(xp.asarray(m[:, None], **dtype_and_device) + mean_shift)
            covariances.append(covariance)
        log_weights_of_patterns = xp.stack(log_weights)
        weights_given_R = xp.exp(
            log_weights_of_patterns
            - xp.max(log_weights_of_patterns, axis=0, keepdims=True)
        )
        weights_given_R = weights_given_R / xp.sum(
            weights_given_R, axis=0, keepdims=True
        )
        estimate = xp.zeros_like(R)
        for pattern, mean in enumerate(means):
            estimate = estimate + weights_given_R[pattern, :][None, :] * mean
        V = xp.zeros((P, P), **dtype_and_device)
        for pattern, mean in enumerate(means):
            deviation = mean - estimate
            V = (
                V
                + xp.matmul(
                    deviation * weights_given_R[pattern, :][None, :],
                    xp.matrix_transpose(deviation),
                )
                / R.shape[1]
            )
            V = V + xp.mean(weights_given_R[pattern, :]) * xp.asarray(
                covariances[pattern], **dtype_and_device
            )
        return estimate, V

    def _patterns(self, components: int) -> list[tuple[float, Any, Any]]:
        """Weight, means (P,) and variances (P,) of each way to assign the P components to Gaussians of the mixture."""
        if components > _MAX_COMPONENTS:
            raise ValueError(
                f"this prior supports at most {_MAX_COMPONENTS} components, got {components}"
            )
        patterns = []
        for pattern in itertools.product(self.mixture, repeat=components):
            weights, means, variances = (np.array(column) for column in zip(*pattern))
            if math.prod(weights) > 0:
                patterns.append((math.prod(weights), means, variances))
        return patterns

    def overlap(self, Qhat: Any) -> Overlap:
        """State-evolution map from the information Qhat (..., P, P) of an observation R to the error ``V = E Cov(w | R)`` of the
        posterior mean of entries w, and its overlap ``Q = I - V``.

        Quadrature for diagonal ``Qhat``, fixed quasi-random points (to about four digits) for any other.
        """
        xp = namespace(Qhat)
        dtype_and_device = {
            "dtype": Qhat.dtype,
            "device": array_api_compat.device(Qhat),
        }
        bounded_Qhat = np.minimum(
            np.asarray(to_host(Qhat), dtype=float), _LARGEST_INFORMATION
        )
        P = bounded_Qhat.shape[-1]
        Qhat_diagonal = np.diagonal(bounded_Qhat, axis1=-2, axis2=-1)
        V = self._scalar_error(Qhat_diagonal)[..., None] * np.eye(P)
        flat_Qhat, errors = bounded_Qhat.reshape(-1, P, P), V.reshape(-1, P, P)
        for coupled_index in np.flatnonzero(
            np.any(flat_Qhat * (1 - np.eye(P)) != 0, axis=(1, 2))
        ):
            errors[coupled_index] = self._joint_error(flat_Qhat[coupled_index])
        return Overlap(
            xp.asarray(np.eye(P) - V, **dtype_and_device),
            xp.asarray(V, **dtype_and_device),
        )

    def _joint_error(self, Qhat: Any) -> Any:
        """Error V (P, P) of components observed together as R with correlated noise, of information Qhat, averaged over
        quasi-random signals and noise; m and v are means and variances of a pattern.
        """
        P = len(Qhat)
        normal_numbers = normal_points(2 * P, 1 << 12, "sparse entries").T
        noise = inverse_root(Qhat, 1e-9) @ normal_numbers[P:]
        error = np.zeros((P, P))
        dtype_and_device = {"dtype": np.float64, "device": None}
        for weight, m, v in self._patterns(P):
            R = m[:, None] + np.sqrt(v)[:, None] * normal_numbers[:P] + noise
            error += weight * self._denoise(R, Qhat, namespace(R), dtype_and_device)[1]
        return error


@dataclass(frozen=True)
class GaussBernoulli(_Mixture):
    r"""Sparse signals: an entry is 0, or with probability rho a Gaussian number of variance 1/rho.

    .. math:: p(w) = (1 - \rho)\, \delta(w) + \rho\, \mathcal N(w; 0, 1/\rho)

    Parameters
    ----------
    rho : float
        Fraction of entries that are not 0, in (0, 1]; 1 is the built-in ``gaussian``.

    References
    ----------
    arXiv:1109.4424 (with the noiseless linear channel: compressed sensing); checked by tests/test_entries.py.
    """

    rho: float = 0.2

    name = "gauss-bernoulli"
    reference = "arXiv:1109.4424"

    def __post_init__(self) -> None:
        """Check that the density rho of nonzero entries is in (0, 1]."""
        if not 0 < self.rho <= 1:
            raise ParameterError("rho", f"must be in (0, 1], got {self.rho}")

    @property
    def mixture(self) -> tuple[tuple[float, float, float], ...]:
        """Weight, mean and variance of the atom at 0 and of the Gaussian."""
        return (1 - self.rho, 0.0, 0.0), (self.rho, 0.0, 1 / self.rho)

    def _scalar_error(self, information: Any) -> Any:
        r"""Mean posterior variance ``E Var(w | r)`` of an entry w given ``r = w + z / sqrt(q)`` with white noise z and
        ``information`` q, by quadrature over ``t = sqrt(q) r``: ``spike`` and ``slab`` are the densities of t for zero and
        nonzero entries.

        In ``t = r sqrt(q)`` the two laws are N(0, 1) and N(0, 1 + q/rho). The trapezoidal rule in ``asinh t`` sees both.
        """
        q = np.asarray(information, dtype=float)[..., None]
        signal_to_noise = q / self.rho
        range_parameter = np.arcsinh(12 * np.sqrt(1 + signal_to_noise))
        spacing = 1 / 150
        unit_grid = np.arange(-150, 151) * spacing
        t = np.sinh(range_parameter * unit_grid)
        jacobian = (
            range_parameter
            * np.cosh(range_parameter * unit_grid)
            * spacing
            / math.sqrt(2 * math.pi)
        )
        spike = (1 - self.rho) * np.exp(-t * t / 2)
        slab = (
            self.rho
            * np.exp(-t * t / (2 * (1 + signal_to_noise)))
            / np.sqrt(1 + signal_to_noise)
        )
        density = np.maximum(spike + slab, 1e-300)
        # Given the slab, mean and variance are those of the Gaussian law; the rest is not knowing which law it was.
        variance_within = slab / (self.rho * (1 + signal_to_noise))
        variance_between = (
            spike
            * slab
            / density
            * t
            * t
            * signal_to_noise
            / (self.rho * (1 + signal_to_noise) ** 2)
        )
        return np.sum(jacobian * (variance_within + variance_between), axis=-1)


@dataclass(frozen=True)
class Rademacher(_Mixture):
    r"""Binary signals: every entry is +1 or -1 with equal probability.

    .. math:: \hat w = \tanh(\hat q R), \qquad V = E\, \cosh^{-2}(\hat q + \sqrt{\hat q}\, x)

    in the case of one component.

    References
    ----------
    arXiv:1708.03395 (with signs as labels: the binary perceptron); checked by tests/test_entries.py.
    """

    name = "rademacher"
    reference = "arXiv:1708.03395"

    @property
    def mixture(self) -> tuple[tuple[float, float, float], ...]:
        """Weight, mean and variance of the atoms at -1 and +1."""
        return (0.5, -1.0, 0.0), (0.5, 1.0, 0.0)

    def _scalar_error(self, information: Any) -> Any:
        """Mean posterior variance ``E cosh^{-2}(q + sqrt(q) x)`` of an entry, with ``information`` q and standard normal x, by
        the trapezoidal rule over x.
        """
        root_of_q = np.sqrt(np.minimum(np.asarray(information, dtype=float), 2500.0))[
            ..., None
        ]
        unit_grid = np.linspace(0, 1, 601)
        x = -root_of_q - 12 + (root_of_q + 24) * unit_grid
        decay = np.exp(-2 * np.abs(root_of_q * (root_of_q + x)))
        inverse_square = 4 * decay / (1 + decay) ** 2
        density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        return (
            np.sum(density * inverse_square, axis=-1) * (root_of_q[..., 0] + 24) / 600
        )
