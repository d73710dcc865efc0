r"""Online descent at finite D: the overlaps are a Markov chain, whose law is known exactly and drawn from.

The equations of ``online`` hold as D goes to infinity. At finite D a step adds noise of order ``1/sqrt(D)`` to the overlaps, for
a batch is not the mean over all samples. Where overlaps are of that order themselves, as at a random start, the noise decides
when a run escapes, whatever D. Given the overlaps, nothing else of the student matters to a step: with an orthonormal frame of
teacher, student and velocity (R vectors), a fresh input has coordinates ``u ~ N(0, I_R)`` in the frame, which are all that
latents, label and gradient ``g`` see, and the rest of it, which is independent of them. So

.. math::

    \frac{G e_k}{D} = \frac1B \sum_{\mu c} g_{\mu c} u_{\mu c k}, \qquad
    \frac{G_\perp G_\perp^T}{D} = \frac1{B^2} L A A^T L^T, \qquad L L^T = \sum_{\mu c} g_{\mu c} g_{\mu c}^T,

with ``A A^T`` a Wishart matrix of ``D - R`` degrees of freedom (Bartlett). A step of a draw costs B samples of the channel and
nothing that grows with D. The mean over draws is the mean over runs, for every D, up to its standard error; with D the noise
vanishes, and what is left are the equations.

References
----------
Derived; checked by tests/algorithms/test_online.py against steps and runs. Bartlett (1933), Proc. R. Soc. Edinb. 53, 260.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.derive import observable, predict
from smimbench.numerics import monte_carlo_rng
from smimbench_algorithms.gradient import online
from smimbench_algorithms.gradient.loss import loss_of
from smimbench_algorithms.gradient.online import LARGEST, Diverges, Path, gram_of, turned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.interfaces import Overlaps
    from smimbench.problem import Problem
    from smimbench.theory import Host
    from smimbench_algorithms.gradient.online import Rule

__all__ = ["affordable", "draw_paths"]


def affordable(problem: Problem, steps: int, batch: int, starts: int, dimension: int) -> int:
    """Draws of every start that time allows; 0 where they are too few to estimate their error."""
    (fewest, most), sets = online.ACCURACY.draws, online.ACCURACY.sets
    a_draw = batch * problem.components * problem.model.sites
    within = (online.ACCURACY.draw_latents / steps - 1000) / (a_draw * starts)  # a step costs 1000 latents on top
    draws = int(min(within, max(most // starts, sets)))
    enough = draws >= sets and draws * starts >= fewest
    return draws if enough and dimension > 4 * problem.components else 0


def draw_paths(
    problem: Problem,
    loss: str,
    rule: Rule,
    starts: Sequence[Overlaps],
    wanted: Sequence[int],
    draws: int,
    batch: int,
    dimension: int,
) -> Path:
    """Overlaps after some numbers of steps, of several draws from every start.

    Parameters
    ----------
    wanted : sequence of int
        Steps, ascending, the first one 0.
    draws : int
        Of every start; the first axis of the path.

    Returns
    -------
    Path
        NaN from where on a draw has diverged.

    Raises
    ------
    Diverges
        If more than half of all draws do.
    """
    gram = gram_of(starts, rule.momentum)
    P, (count, R) = problem.components, gram.shape[:2]
    chain = _OverlapChain(problem, loss, rule, batch, dimension)
    rng = monte_carlo_rng("online descent: draws", dimension, batch)
    frame = np.tile(_triangle(gram), (draws, 1, 1))
    alive = np.ones(len(frame), dtype=bool)
    kept, marks = [], set(wanted)
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(int(wanted[-1]) + 1):
            if step in marks:
                found = frame @ turned(frame)
                found[~alive] = np.nan
                kept.append(found)
            if step == wanted[-1]:
                break
            frame = chain.step(frame, step, rng)
            lost = ~(np.abs(frame[:, : 2 * P]).max(axis=(1, 2)) ** 2 <= LARGEST)
            if lost.any():
                alive &= ~lost
                frame[lost] = 0.0
                if 2 * alive.sum() < len(alive):
                    raise Diverges("most draws grow without bound")
    return Path.of(wanted, np.stack(kept).reshape(len(kept), draws, count, R, R).swapaxes(0, 1), P)


class _OverlapChain:
    """One step of many draws at once; a draw is ``frame`` (R, R), the rows being teacher, student and velocity."""

    def __init__(self, problem: Problem, loss: str, rule: Rule, batch: int, dimension: int) -> None:
        self.channel: Any = problem.channel
        self.P, self.sites = problem.components, problem.model.sites
        self.loss, self.rule, self.batch, self.dimension = loss, rule, batch, dimension

    def step(self, frame: Host, step: int, rng: np.random.Generator) -> Host:
        n, R, _ = frame.shape
        P, rule = self.P, self.rule
        student = slice(P, 2 * P)
        inside, outside = self._gradient(frame, rng)
        # Columns: the old frame, and P new directions in which the noise of the gradient lies.
        before = np.concatenate([frame, np.zeros((n, R, P))], axis=-1)
        gradient = np.concatenate([inside, outside], axis=-1) + rule.decay * before[:, student]
        new = before.copy()
        along = gradient
        if rule.momentum:
            velocity = rule.momentum * before[:, 2 * P :] + gradient
            new[:, 2 * P :] = velocity
            along = gradient + rule.momentum * velocity if rule.nesterov else velocity
        new[:, student] = before[:, student] - rule.rate(step) * along
        if rule.spherical:
            new[:, student] /= np.sqrt(np.sum(new[:, student] ** 2, axis=-1, keepdims=True))
        return _triangle(new @ turned(new))

    def _gradient(self, frame: Host, rng: np.random.Generator) -> tuple[Host, Host]:
        """The gradient of a batch in the frame (n, P, R), and orthogonal to it (n, P, P)."""
        (n, R, _), P, B, C = frame.shape, self.P, self.batch, self.sites
        u = rng.standard_normal((n, R, B * C))
        fields = frame[:, : 2 * P] @ u
        truth, z = (
            np.ascontiguousarray(part.reshape(n, P, B, C).swapaxes(1, 2)).reshape(n * B, P, C)
            for part in (fields[:, :P], fields[:, P:])
        )
        labels = self.channel.forward(truth, rng=rng)
        cotangent = loss_of(np, self.loss, predict(self.channel, z), observable(self.channel, labels))[1]
        g = np.asarray(self.channel.vjp(z, cotangent)).reshape(n, B, P, C).swapaxes(1, 2).reshape(n, P, B * C)
        # Triangular roots of Wishart matrices of unit covariance (Bartlett).
        wishart = np.tril(rng.standard_normal((n, P, P)), -1)
        wishart[:, range(P), range(P)] = np.sqrt(rng.chisquare(self.dimension - R - np.arange(P), (n, P)))
        return g @ turned(u) / B, _triangle(g @ turned(g)) @ wishart / B


def _triangle(gram: Host) -> Host:
    """Triangular roots (..., R, R) of Gram matrices; a vector that depends on those before it has no direction of its own."""
    root = np.zeros_like(gram)
    for k in range(gram.shape[-1]):
        left = gram[..., k:, k] - np.einsum("...ij,...j->...i", root[..., k:, :k], root[..., k, :k])
        pivot = left[..., :1]
        known = pivot > 1e-12 * np.maximum(gram[..., k, k, None], 1e-300)
        root[..., k:, k] = np.where(known, left / np.sqrt(np.where(known, pivot, 1.0)), 0.0)
    return root
