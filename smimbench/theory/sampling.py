"""Information and susceptibility of a channel without formulas: moments sampled over random labels, with control variates.

Monte Carlo noise is an error of theory like any other, so every mean comes with its standard error. It is taken over
independent scrambles, and the coefficients of the control variates of a scramble are fitted on the other ones: neither the
mean nor its error is flattered by the fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.interfaces import Uncertain
from smimbench.interfaces.checks import checked_posterior
from smimbench.numerics.control_variates import controlled_mean
from smimbench.numerics.linalg import symmetric_root
from smimbench.numerics.memo import by_value
from smimbench.numerics.qmc import normal_points
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.numerics.telling import FEWEST_TELLING, telling

if TYPE_CHECKING:
    from smimbench.interfaces import Array

__all__ = ["SCRAMBLES", "sampled_moments"]

SCRAMBLES = 16
"""Independent scrambles, whose spread is the error; doubled, that spread is known 1.4 times better."""
ROUNDED = 1e-6
"""V, in units of the second moment, below which second moments are no control variates; doubled, errors there are a little larger
for it."""
POINTS = 2**10
"""Labels in each; doubled, errors fall by 1.4 to 2 and the cost doubles."""


@by_value(maxsize=256)
def sampled_moments(channel: Any, sites: int, Q: Array, V: Array) -> tuple[Uncertain, Uncertain]:
    r"""Information and susceptibility of one (Q, V) through the channel's posterior, by quasi-random labels.

    .. math::

        I = E \sum_c g_c g_c^T, \qquad
        \lambda_{ab} = E \sum_{cc'} G_{a,cc'} G_{b,cc'}, \quad
        G_{a,cc'} = (E[z_{ac} z_{ac'} | y, \omega] - V_{aa} \delta_{cc'}) / V_{aa}^2

    The susceptibility is given for components with ``Q_aa = 0`` whose sign no label can see; other entries are 0. Control
    variates are the other expressions that have the same mean on the Nishimori line, and the known second moments.

    Parameters
    ----------
    sites : int
        C.
    Q, V : ndarray (P, P)

    Returns
    -------
    information, susceptibility : Uncertain
        (P, P) each. The error holds the bias that the reported error of the posterior can cause. The susceptibility of a
        channel without second moments is 0 with an infinite error.
    """
    Q, V = np.asarray(Q, dtype=float), np.asarray(V, dtype=float)
    P = len(Q)
    root_Q, root_V = symmetric_root(Q), symmetric_root(V)
    free, without = [a for a in range(P) if Q[a, a] == 0], False
    upper = np.triu_indices(P)
    pairs = [(a, b) for a in free for b in free if a <= b]
    identity = sites * np.eye(P)
    # Second moments lose what they say of small V: as a control they would repeat others, but for rounding of nonzero mean.
    exact = np.diagonal(V).min() > ROUNDED * np.diagonal(Q + V).max()
    samples, controls, posterior_error = [], [], 0.0
    for scramble in range(SCRAMBLES):
        normal = normal_points(2 * P * sites, POINTS, "information: latents", scramble).reshape(POINTS, 2, P, sites)
        omega, shift = root_Q @ normal[:, 0], root_V @ normal[:, 1]
        rng = monte_carlo_rng("information: labels", scramble)
        z = omega + shift
        y = channel.forward(z, rng=rng)
        found = checked_posterior(channel.posterior(y, omega, V, second_moment=True, rng=rng), omega)
        if found.second_moment is None:
            without, free, pairs = True, [], []  # a channel may do without, where signs are seen
        else:
            checked_posterior(found, omega, second_moment=True)
        posterior_error = max(posterior_error, float(found.error))
        # In units of V: h = V^{-1/2} (z - omega), E[h h^T] = I
        white = np.linalg.inv(root_V)
        mean = white @ (found.mean - omega)
        square = mean @ np.swapaxes(mean, 1, 2)
        cross = mean @ np.swapaxes(normal[:, 1], 1, 2)
        known = [
            (square - (cross + np.swapaxes(cross, 1, 2)) / 2)[:, *upper],
            (normal[:, 0] @ np.swapaxes(mean, 1, 2)).reshape(POINTS, -1),
            (normal[:, 0] @ np.swapaxes(normal[:, 0], 1, 2) - identity)[:, *upper],
        ]
        if found.second_moment is not None and exact:
            moment = np.einsum("npcqc->npq", found.second_moment)
            product = found.mean @ np.swapaxes(omega, 1, 2)
            moment = moment - product - np.swapaxes(product, 1, 2) + omega @ np.swapaxes(omega, 1, 2)
            known.append((white @ moment @ white - identity)[:, *upper])
        rows = [square[:, *upper]]
        full: Any = found.second_moment
        G = {a: full[:, a, :, a, :] / V[a, a] - np.eye(sites) for a in free}
        for a, b in pairs:
            rows.append((G[a] * G[b]).sum((1, 2))[:, None])
        for a in free:
            outer = z[:, a, :, None] * z[:, a, None, :] / V[a, a] - np.eye(sites)
            known.append((G[a] * (outer - G[a])).sum((1, 2))[:, None])
            known.append(((outer * outer).sum((1, 2)) - sites * (sites + 1))[:, None])
        samples.append(np.concatenate(rows, axis=1))
        controls.append(np.concatenate(known, axis=1))
    value, error = controlled_mean(samples, controls)
    # An error of the posterior mean adds its square to the mean square.
    bias = sites * posterior_error**2
    count = len(upper[0])
    information, information_error = np.zeros((P, P)), np.zeros((P, P))
    # A mean that hardly any labels carry, or none, may have missed those that would: neither is its error known.
    carriers = np.concatenate([part[:, :count] for part in samples])
    few = telling(carriers) < FEWEST_TELLING
    error[:count] = np.where(few, np.maximum(error[:count], np.abs(value[:count])), error[:count])
    information[upper], information_error[upper] = value[:count], error[:count] + bias
    information = information + np.triu(information, 1).T
    information_error = information_error + np.triu(information_error, 1).T
    outside = np.linalg.inv(root_V)
    unknown = np.inf if without else 0.0
    susceptibility, susceptibility_error = np.zeros((P, P)), np.full((P, P), unknown)
    for (a, b), one, sem in zip(pairs, value[count:], error[count:]):
        unit = V[a, a] * V[b, b]
        susceptibility[a, b] = susceptibility[b, a] = one / unit
        susceptibility_error[a, b] = susceptibility_error[b, a] = (sem + sites * bias) / unit
    method = f"Monte Carlo ({SCRAMBLES} Sobol scrambles of {POINTS} labels)"
    size = np.abs(outside)
    return (
        Uncertain(outside @ information @ outside, size @ information_error @ size, method),
        Uncertain(susceptibility, susceptibility_error, method),
    )
