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
    """Base class of priors with independent entries from a mixture of Gaussians, of mean 0 and variance 1 in total.

    ``mixture`` holds weight, mean and variance of each Gaussian.
    """

    version = 1
    capabilities = Capabilities(models=("sequence-multi-index",))

    @property
    def mixture(self) -> tuple[tuple[float, float, float], ...]:
        raise NotImplementedError

    def _scalar_error(self, information: Any) -> Any:
        raise NotImplementedError

    # -- law ----------------------------------------------------------------------------------------------------

    def sample(self, rng: np.random.Generator, components: int, dimension: int) -> Any:
        """Draw a signal (P, D) on the host."""
        weights, means, variances = (np.array(column) for column in zip(*self.mixture))
        chosen = rng.choice(len(weights), size=(components, dimension), p=weights)
        return means[chosen] + np.sqrt(variances[chosen]) * rng.standard_normal(
            (components, dimension)
        )

    def mean(self, components: int, dimension: int) -> Any:
        """Prior mean: zeros (P, D)."""
        return np.zeros((components, dimension))

    def second_moment(self, components: int) -> Any:
        """Second moment ``E[W W^T] / D = I`` (P, P) of the signal."""
        return np.eye(components)

    def mean_overlap(self, components: int) -> Any:
        """Overlap (P, P) of the prior mean with the signal: zeros."""
        return np.zeros((components, components))

    # -- inference ------------------------------------------------------------------------------------------------

    def denoise(self, R: Any, Qhat: Any) -> Denoised:
        """Posterior mean (P, D) given ``R = W + Qhat^{-1/2} Z`` (P, D), and the mean posterior covariance (P, P)."""
        if tuple(Qhat.shape) != (R.shape[0], R.shape[0]):
            raise ValueError(
                f"the information matrix Qhat must have shape {(R.shape[0],) * 2}, got {tuple(Qhat.shape)}"
            )
        xp = namespace(R)
        place = {"dtype": xp.float64, "device": array_api_compat.device(R)}
        host = np.minimum(np.asarray(to_host(Qhat), dtype=float), _LARGEST_INFORMATION)
        estimate, V = self._denoise(xp.astype(R, xp.float64), host, xp, place)
        return Denoised(xp.astype(estimate, R.dtype), xp.astype(V, R.dtype))

    def _denoise(
        self, R: Any, Qhat: Any, xp: Any, place: dict[str, Any]
    ) -> tuple[Any, Any]:
        P = R.shape[0]
        natural_parameter = xp.matmul(xp.asarray(Qhat, **place), R)
        logs, means, covariances = [], [], []
        for weight, m, D in self._patterns(P):
            root = np.sqrt(D)
            A = np.eye(P) + root[:, None] * Qhat * root[None, :]
            covariance = root[:, None] * np.linalg.inv(A) * root[None, :]
            shifted = natural_parameter - xp.asarray((Qhat @ m)[:, None], **place)
            mean_shift = xp.matmul(xp.asarray(covariance, **place), shifted)
            log = xp.sum(shifted * mean_shift, axis=0) / 2 + xp.sum(
                xp.asarray(m[:, None], **place) * natural_parameter, axis=0
            )
            constant = (
                math.log(weight)
                - float(np.linalg.slogdet(A)[1]) / 2
                - float(m @ Qhat @ m) / 2
            )
            logs.append(log + constant)
            means.append(xp.asarray(m[:, None], **place) + mean_shift)
            covariances.append(covariance)
        stacked = xp.stack(logs)
        weights_given_R = xp.exp(stacked - xp.max(stacked, axis=0, keepdims=True))
        weights_given_R = weights_given_R / xp.sum(
            weights_given_R, axis=0, keepdims=True
        )
        estimate = xp.zeros_like(R)
        for k, mean in enumerate(means):
            estimate = estimate + weights_given_R[k, :][None, :] * mean
        V = xp.zeros((P, P), **place)
        for k, mean in enumerate(means):
            deviation = mean - estimate
            V = (
                V
                + xp.matmul(
                    deviation * weights_given_R[k, :][None, :],
                    xp.matrix_transpose(deviation),
                )
                / R.shape[1]
            )
            V = V + xp.mean(weights_given_R[k, :]) * xp.asarray(covariances[k], **place)
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
        """State-evolution map from ``Qhat`` (..., P, P) to error ``V = E Cov(w | R)`` and overlap ``Q = I - V``.

        Quadrature for diagonal ``Qhat``, fixed quasi-random points (to about four digits) for any other.
        """
        xp = namespace(Qhat)
        place = {"dtype": Qhat.dtype, "device": array_api_compat.device(Qhat)}
        host = np.minimum(np.asarray(to_host(Qhat), dtype=float), _LARGEST_INFORMATION)
        P = host.shape[-1]
        diagonal = np.diagonal(host, axis1=-2, axis2=-1)
        V = self._scalar_error(diagonal)[..., None] * np.eye(P)
        flat, errors = host.reshape(-1, P, P), V.reshape(-1, P, P)
        for i in np.flatnonzero(np.any(flat * (1 - np.eye(P)) != 0, axis=(1, 2))):
            errors[i] = self._joint_error(flat[i])
        return Overlap(xp.asarray(np.eye(P) - V, **place), xp.asarray(V, **place))

    def _joint_error(self, Qhat: Any) -> Any:
        P = len(Qhat)
        points = normal_points(2 * P, 1 << 12, "sparse entries").T
        noise = inverse_root(Qhat, 1e-9) @ points[P:]
        total = np.zeros((P, P))
        place = {"dtype": np.float64, "device": None}
        for weight, m, D in self._patterns(P):
            R = m[:, None] + np.sqrt(D)[:, None] * points[:P] + noise
            total += weight * self._denoise(R, Qhat, namespace(R), place)[1]
        return total


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
        if not 0 < self.rho <= 1:
            raise ParameterError("rho", f"must be in (0, 1], got {self.rho}")

    @property
    def mixture(self) -> tuple[tuple[float, float, float], ...]:
        """Weight, mean and variance of the atom at 0 and of the Gaussian."""
        return (1 - self.rho, 0.0, 0.0), (self.rho, 0.0, 1 / self.rho)

    def _scalar_error(self, information: Any) -> Any:
        r"""Mean posterior variance ``E Var(w | r)`` of an entry w given ``r = w + x / sqrt(q)``, with information q.

        In ``t = r sqrt(q)`` the two laws are N(0, 1) and N(0, 1 + q/rho). The trapezoidal rule in ``asinh t`` sees both.
        """
        q = np.asarray(information, dtype=float)[..., None]
        gain = q / self.rho
        ends = np.arcsinh(12 * np.sqrt(1 + gain))
        step = 1 / 150
        x = np.arange(-150, 151) * step
        t = np.sinh(ends * x)
        jacobian = ends * np.cosh(ends * x) * step / math.sqrt(2 * math.pi)
        spike = (1 - self.rho) * np.exp(-t * t / 2)
        slab = self.rho * np.exp(-t * t / (2 * (1 + gain))) / np.sqrt(1 + gain)
        total = np.maximum(spike + slab, 1e-300)
        # Given the slab, mean and variance are those of the Gaussian law; the rest is not knowing which law it was.
        inner = slab / (self.rho * (1 + gain))
        between = spike * slab / total * t * t * gain / (self.rho * (1 + gain) ** 2)
        return np.sum(jacobian * (inner + between), axis=-1)


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
        """Mean posterior variance ``E cosh^{-2}(q + sqrt(q) x)`` of an entry, with information q, by the trapezoidal rule."""
        root = np.sqrt(np.minimum(np.asarray(information, dtype=float), 2500.0))[
            ..., None
        ]
        unit = np.linspace(0, 1, 601)
        x = -root - 12 + (root + 24) * unit
        decay = np.exp(-2 * np.abs(root * (root + x)))
        inverse_square = 4 * decay / (1 + decay) ** 2
        density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        return np.sum(density * inverse_square, axis=-1) * (root[..., 0] + 24) / 600
