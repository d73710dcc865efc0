"""What the labels tell about the signal: ``E sum_c g_c g_c^T``, by the channel's closed form or by QMC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.interfaces import Uncertain
from smimbench.numerics.seeds import monte_carlo_rng

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Model

__all__ = ["channel_information", "sampled_information"]

SCRAMBLES = 8
POINTS = 2**12


def channel_information(channel: Any, model: Model, Q: Array, V: Array) -> Uncertain:
    r"""``\mathcal{I}(Q) = E \sum_c g_c g_c^T`` with ``omega ~ N(0, Q (x) I_C)``, ``z | omega ~ N(omega, V (x) I_C)``.

    Parameters
    ----------
    Q, V : ndarray (..., P, P)
        Host arrays; leading axes are a batch.

    Returns
    -------
    Uncertain
        ``value`` (..., P, P), ``error`` broadcastable to it.
    """
    if hasattr(channel, "information"):
        found: Uncertain = channel.information(Q, V)
        return found
    shape = Q.shape
    flat_Q, flat_V = Q.reshape(-1, *shape[-2:]), V.reshape(-1, *shape[-2:])
    pairs = [sampled_information(channel, model.sites, q, v) for q, v in zip(flat_Q, flat_V)]
    value = np.stack([p.value for p in pairs]).reshape(shape)
    error = np.stack([p.error for p in pairs]).reshape(shape)
    return Uncertain(value, error, pairs[0].method)


def sampled_information(channel: Any, sites: int, Q: Array, V: Array) -> Uncertain:
    r"""The same number for one (Q, V) by scrambled Sobol points over (omega, z).

    Both ``g g^T`` and ``g (z - omega)^T V^{-1}`` have the wanted mean (Nishimori), so their difference is a control
    variate; its coefficient is fitted on the other scrambles, which keeps the estimate unbiased. The error is the
    standard error over ``SCRAMBLES`` scrambles. The same points are used for every (Q, V): curves are smooth.
    """
    from scipy.special import ndtri
    from scipy.stats import qmc

    components = Q.shape[-1]
    dimension = 2 * components * sites
    root_Q, root_V = _root(Q), _root(V)
    inverse = np.linalg.inv(V)
    primary, control = [], []
    for scramble in range(SCRAMBLES):
        points = qmc.Sobol(
            dimension, scramble=True, rng=monte_carlo_rng("information: latents", scramble)
        ).random(POINTS)
        normal = ndtri(np.clip(points, 1e-16, 1 - 1e-16)).reshape(POINTS, 2, components, sites)
        omega = root_Q @ normal[:, 0]
        shift = root_V @ normal[:, 1]
        rng = monte_carlo_rng("information: labels", scramble)
        y = channel.forward(omega + shift, rng=rng)
        g = inverse @ (channel.posterior(y, omega, V, rng=rng).mean - omega)
        primary.append(np.einsum("npc,nqc->pq", g, g) / POINTS)
        cross = np.einsum("npc,nqc->pq", g, inverse @ shift) / POINTS
        control.append(primary[-1] - (cross + cross.T) / 2)
    a, b = np.stack(primary), np.stack(control)
    estimates = np.empty_like(a)
    for k in range(SCRAMBLES):
        others = np.delete(np.arange(SCRAMBLES), k)
        spread = b[others] - b[others].mean(0)
        power = (spread**2).sum(0)
        slope = np.where(
            power > 0, (spread * (a[others] - a[others].mean(0))).sum(0) / np.where(power > 0, power, 1), 0
        )
        estimates[k] = a[k] - slope * b[k]
    error = estimates.std(axis=0, ddof=1) / np.sqrt(SCRAMBLES)
    return Uncertain(estimates.mean(0), error, f"Monte Carlo ({SCRAMBLES} Sobol scrambles of {POINTS})")


def _root(matrix: Array) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
