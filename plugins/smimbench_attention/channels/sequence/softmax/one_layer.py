"""Closed forms for softmax with one layer, whose label fixes its output ``u`` up to a sign: posterior, log-partition,
information.
"""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
from numpy.random import Generator

from smimbench.backend import namespace
from smimbench.derive import MixedChannel
from smimbench.interfaces import Array, Host, Posterior, Uncertain
from smimbench.numerics import gaussian_trapezoid, outer_product
from smimbench_attention.channels.common import blocks, on_host, uncertain_like
from smimbench_attention.channels.sequence.softmax.network import output_of_label


def _sech_squared(xp: ModuleType, t: Array) -> Array:
    """Squared hyperbolic secant ``1 / cosh^2 t``, without overflow; ``xp`` is the array namespace."""
    decay = xp.exp(-2.0 * xp.abs(t))
    return 4.0 * decay / ((1.0 + decay) * (1.0 + decay))


def posterior(
    u: Array, omega: Array, V: Array, second_moment: bool = False
) -> Posterior:
    """Posterior of ``z ~ N(omega, V I_M)`` given a one-layer label, which leaves z = u or z = -u, with mean ``E[z | y] = u tanh(u
    . omega / V)``; ``u`` (n, M) is the output of the label up to sign, ``omega`` (n, 1, M), ``V`` (1, 1), and ``scaled_overlap``
    (n,) is ``u . omega / V``.
    """
    xp = namespace(u, omega, V)
    scaled_overlap = xp.sum(u * omega[:, 0, :], axis=-1) / V[0, 0]
    mean = u * xp.tanh(scaled_overlap)[:, None]
    covariance = xp.mean(u * u * _sech_squared(xp, scaled_overlap)[:, None])
    second_moment_of_z = (
        outer_product(u, u)[:, None, :, None, :] if second_moment else None
    )
    return Posterior(
        mean[:, None, :], xp.reshape(covariance, (1, 1)), second_moment_of_z, 0.0
    )


def log_partition(u: Array, omega: Array, V: Array) -> Array:
    """Log-density (n,) of the label's output u (n, M), known up to sign: ``log[N(u; omega, V) + N(-u; omega, V)]``, for latents
    ``z ~ N(omega, V I_M)``.
    """
    xp = namespace(u, omega, V)
    variance = V[0, 0]
    omega_row = omega[:, 0, :]
    scaled_overlap = xp.sum(u * omega_row, axis=-1) / variance
    residual = xp.where(scaled_overlap[:, None] < 0, -u, u) - omega_row
    log_normalization = 0.5 * u.shape[-1] * (math.log(2.0 * math.pi) + xp.log(variance))
    return (
        -0.5 * xp.sum(residual * residual, axis=-1) / variance
        + xp.log1p(xp.exp(-2.0 * xp.abs(scaled_overlap)))
        - log_normalization
    )


def _log_radius_rule(tokens: int, step: float) -> tuple[Host, Host]:
    """Radii rho and weights for ``E[rho^2 f(rho)]`` of any function f, where rho is the length of a standard normal vector of M =
    ``tokens`` entries; the radii are ``step`` apart in log rho.

    The law of rho weighted by rho^2 is chi_{M+2}, so the weights are normalized to M = E rho^2. Both tails decay, hence spectral
    accuracy.
    """
    log_rho_max = math.log(math.sqrt(tokens + 2.0) + 9.0)
    log_rho_min = -40.0 / (tokens + 2.0)
    node_count = 2 * math.ceil((log_rho_max - log_rho_min) / (2.0 * step)) + 1
    log_rho = np.linspace(log_rho_min, log_rho_max, node_count)
    log_weight = (tokens + 2.0) * log_rho - 0.5 * np.exp(2.0 * log_rho)
    weight = np.exp(log_weight - log_weight.max())
    return np.exp(log_rho), tokens * weight / weight.sum()


def susceptibility(Q: Array, V: Array, tokens: int) -> Uncertain:
    """Susceptibility ``M (M + 1) / V^2`` of labels of M = ``tokens`` tokens at error V where the overlap Q is 0, else 0; (..., 1,
    1). The label leaves +-z, so ``E[g g^T]`` responds to omega by ``G = (z z^T - V I) / V^2``.
    """
    value = (Q == 0.0) * (tokens * (tokens + 1.0)) / (V * V)
    return Uncertain(value, 0.0 * value, "closed form")


def information(Q: Array, V: Array, tokens: int) -> Uncertain:
    """Information ``Phi = E |g|^2``, g the score ``(E[z | y] - omega) / V``, of labels of M = ``tokens`` tokens at overlap ``Q``
    and error ``V``, both (..., 1, 1), by quadrature over rho, the length of z / sqrt(Q + V), and a normal number x along it, by
    the full quadrature rule and, for the error, by every second node.

    With ``tau = Q + V``, ``k = Q / V``, ``rho^2 ~ chi^2_M`` and ``x ~ N(0, 1)``::

        Phi V^2 = tau E[rho^2 tanh^2 t] - M Q = M V - tau E[rho^2 / cosh^2 t],   t = k rho^2 + sqrt(k) rho x

    The first form keeps its digits for small ``Q``, the second for small ``V`` (where ``V Phi -> M``).
    Trapezoidal rules in ``log rho`` and ``normal_nodes``; the error is the change from half the nodes. Derived, checked
    by tests/channels/sequence/test_softmax.py.
    """
    q, v = (array.reshape(-1) for array in on_host(Q, V))
    variance = q + v
    overlap_ratio = q / v
    # spacing in log rho for few tokens (it falls as M^{-1/2})
    rho, fine_rho_weights = _log_radius_rule(
        tokens, min(0.08, 0.35 / math.sqrt(tokens))
    )
    # points in x
    normal_nodes, fine_x_weights = gaussian_trapezoid(257)
    weights_by_rule = []
    for node_stride in (1, 2):
        coarse_rho_weights, coarse_x_weights = (
            np.where(np.arange(len(weights)) % node_stride == 0, weights, 0.0)
            for weights in (fine_rho_weights, fine_x_weights)
        )
        weights_by_rule.append(
            (
                coarse_rho_weights * (tokens / coarse_rho_weights.sum()),
                coarse_x_weights / coarse_x_weights.sum(),
            )
        )
    values_by_rule = np.empty((2, len(q)))
    # overlaps handled at once
    for block in blocks(len(q), 32):
        scaled_radius = np.sqrt(overlap_ratio[block])[:, None, None] * rho[:, None]
        tanh_argument = scaled_radius * (scaled_radius + normal_nodes)
        is_small_overlap = overlap_ratio[block] <= 1.0
        squared_response = np.where(
            is_small_overlap[:, None, None],
            np.tanh(tanh_argument) ** 2,
            _sech_squared(np, tanh_argument),
        )
        for rule_values, (rho_weights, x_weights) in zip(
            values_by_rule, weights_by_rule
        ):
            mean_response = variance[block] * np.sum(
                np.sum(squared_response * x_weights, axis=-1) * rho_weights, axis=-1
            )
            rule_values[block] = (
                np.where(
                    is_small_overlap,
                    mean_response - tokens * q[block],
                    tokens * v[block] - mean_response,
                )
                / v[block] ** 2
            )
    fine_value, coarse_value = (
        rule_values.reshape(Q.shape) for rule_values in values_by_rule
    )
    return uncertain_like(
        Q,
        fine_value,
        np.abs(fine_value - coarse_value) + 1e-14 * np.abs(fine_value),
        "quadrature",
    )


class MixedSequenceSoftmax(MixedChannel):
    """One-layer softmax channel for latents that are correlated over tokens, in closed form; only the posterior differs from
    independent ones.
    """

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: Generator | None = None,
    ) -> Posterior:
        """Posterior of the whitened latents zeta ~ N(omega, V I) given the label y, which leaves two points; arguments as in
        ``Channel.posterior``.
        """
        u = self.apply(self.inverse, output_of_label(y))
        return posterior(u, omega, V, second_moment)

    def information(self, Q: Array, V: Array) -> Uncertain:
        """Information of the labels at overlap Q and error V, the same as for independent tokens."""
        return information(Q, V, len(self.mixing))

    def susceptibility(self, Q: Array, V: Array) -> Uncertain:
        """Susceptibility of the labels at overlap Q and error V, the same as for independent tokens."""
        return susceptibility(Q, V, len(self.mixing))
