"""Closed forms for softmax with one layer, whose label fixes ``u`` up to a sign: posterior, log-partition, information."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
from numpy.random import Generator

from smimbench.backend import namespace
from smimbench.derive import MixedChannel
from smimbench.interfaces import Array, Host, Posterior, Uncertain
from smimbench.numerics import gaussian_trapezoid
from smimbench_attention.channels.common import blocks, on_host, uncertain_like
from smimbench_attention.channels.sequence.softmax.network import output_of_label


def _sech_squared(xp: ModuleType, t: Array) -> Array:
    decay = xp.exp(-2.0 * xp.abs(t))
    return 4.0 * decay / ((1.0 + decay) * (1.0 + decay))


def posterior(
    u: Array, omega: Array, V: Array, second_moment: bool = False
) -> Posterior:
    """Two-point posterior with mean ``E[z | y] = u tanh(u . omega / V)``; ``u`` (n, M), ``omega`` (n, 1, M), ``V`` (1, 1)."""
    xp = namespace(u, omega, V)
    t = xp.sum(u * omega[:, 0, :], axis=-1) / V[0, 0]
    mean = u * xp.tanh(t)[:, None]
    covariance = xp.mean(u * u * _sech_squared(xp, t)[:, None])
    second = (
        (u[:, :, None] * u[:, None, :])[:, None, :, None, :] if second_moment else None
    )
    return Posterior(mean[:, None, :], xp.reshape(covariance, (1, 1)), second, 0.0)


def log_partition(u: Array, omega: Array, V: Array) -> Array:
    """Log-density (n,) of the label, ``log[N(u; omega, V) + N(-u; omega, V)]`` (n,)."""
    xp = namespace(u, omega, V)
    v = V[0, 0]
    center = omega[:, 0, :]
    t = xp.sum(u * center, axis=-1) / v
    nearest = xp.where(t[:, None] < 0, -u, u) - center
    constant = 0.5 * u.shape[-1] * (math.log(2.0 * math.pi) + xp.log(v))
    return (
        -0.5 * xp.sum(nearest * nearest, axis=-1) / v
        + xp.log1p(xp.exp(-2.0 * xp.abs(t)))
        - constant
    )


def _log_radius_rule(tokens: int, step: float) -> tuple[Host, Host]:
    # Trapezoid in log rho for E[rho^2 f(rho)], rho ~ chi_M. The law of rho weighted by rho^2 is chi_{M+2},
    # so the weights are normalized to M = E rho^2. Both tails decay, hence spectral accuracy.
    upper = math.log(math.sqrt(tokens + 2.0) + 9.0)
    lower = -40.0 / (tokens + 2.0)
    count = 2 * math.ceil((upper - lower) / (2.0 * step)) + 1
    grid = np.linspace(lower, upper, count)
    log_weight = (tokens + 2.0) * grid - 0.5 * np.exp(2.0 * grid)
    weight = np.exp(log_weight - log_weight.max())
    return np.exp(grid), tokens * weight / weight.sum()


def susceptibility(Q: Array, V: Array, tokens: int) -> Uncertain:
    """Susceptibility ``M (M + 1) / V^2`` where Q = 0, else 0; (..., 1, 1). The label leaves +-z, so ``G = (z z^T - V I) /
    V^2``.
    """
    value = (Q == 0.0) * (tokens * (tokens + 1.0)) / (V * V)
    return Uncertain(value, 0.0 * value, "closed form")


def information(Q: Array, V: Array, tokens: int) -> Uncertain:
    """Information ``Phi = E |g|^2`` for overlap ``Q`` and error ``V``, both (..., 1, 1).

    With ``tau = Q + V``, ``k = Q / V``, ``rho^2 ~ chi^2_M`` and ``x ~ N(0, 1)``::

        Phi V^2 = tau E[rho^2 tanh^2 t] - M Q = M V - tau E[rho^2 / cosh^2 t],   t = k rho^2 + sqrt(k) rho x

    The first form keeps its digits for small ``Q``, the second for small ``V`` (where ``V Phi -> M``).
    Trapezoidal rules in ``log rho`` and ``x``; the error is the change from half the nodes. Derived, checked
    by tests/channels/sequence/test_softmax.py.
    """
    q, v = (array.reshape(-1) for array in on_host(Q, V))
    tau = q + v
    k = q / v
    # spacing in log rho for few tokens (it falls as M^{-1/2})
    rho, fine_rho = _log_radius_rule(tokens, min(0.08, 0.35 / math.sqrt(tokens)))
    # points in x
    x, fine_x = gaussian_trapezoid(257)
    rules = []
    for stride in (1, 2):
        coarse_rho, coarse_x = (
            np.where(np.arange(len(w)) % stride == 0, w, 0.0)
            for w in (fine_rho, fine_x)
        )
        rules.append(
            (coarse_rho * (tokens / coarse_rho.sum()), coarse_x / coarse_x.sum())
        )
    results = np.empty((2, len(q)))
    # overlaps handled at once
    for block in blocks(len(q), 32):
        y = np.sqrt(k[block])[:, None, None] * rho[:, None]
        t = y * (y + x)
        small = k[block] <= 1.0
        response = np.where(small[:, None, None], np.tanh(t) ** 2, _sech_squared(np, t))
        for result, (weight_rho, weight_x) in zip(results, rules):
            learned = tau[block] * np.sum(
                np.sum(response * weight_x, axis=-1) * weight_rho, axis=-1
            )
            result[block] = (
                np.where(
                    small, learned - tokens * q[block], tokens * v[block] - learned
                )
                / v[block] ** 2
            )
    value, half = (result.reshape(Q.shape) for result in results)
    return uncertain_like(
        Q, value, np.abs(value - half) + 1e-14 * np.abs(value), "quadrature"
    )


class MixedSequenceSoftmax(MixedChannel):
    """One-layer softmax channel for correlated latents, in closed form; only the posterior differs from independent tokens."""

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: Generator | None = None,
    ) -> Posterior:
        """Two-point posterior of the whitened latents; arguments as in ``Channel.posterior``."""
        u = self.apply(self.inverse, output_of_label(y))
        return posterior(u, omega, V, second_moment)

    def information(self, Q: Array, V: Array) -> Uncertain:
        """Information of the labels, the same as for independent tokens."""
        return information(Q, V, len(self.mixing))

    def susceptibility(self, Q: Array, V: Array) -> Uncertain:
        """Susceptibility of the labels, the same as for independent tokens."""
        return susceptibility(Q, V, len(self.mixing))
