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

from smimbench.derive.channel import observable, predict
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench_algorithms.gradient.loss import loss_of
from smimbench_algorithms.gradient.online_recursion import LARGEST, Diverges, Path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.interfaces import Overlaps
    from smimbench.problem import Problem
    from smimbench.theory.types import Host
    from smimbench_algorithms.gradient.online_recursion import Rule

__all__ = ["affordable", "draw_paths"]

MOST_DRAWS = 256
"""Draws of all starts together. Doubled: the mean is known 1.4 times better, in twice the time."""

FEWEST = 64
"""Draws of all starts together at the least, as the mean would be too unsure. Doubled: fewer problems are drawn for."""

SETS = 4
"""Draws of every start at the least: their spread is the stated error. Doubled: that error is better known."""

LATENTS = 6e7
"""Latents that may be drawn for one answer, some ten seconds. Doubled: runs of twice the length are drawn for."""

OVERHEAD = 1000
"""Latents that cost as much as what a step does besides. Doubled: long runs on small batches get fewer draws."""

SMALLEST = 1e-12
"""Pivot of a Gram matrix, relative to its diagonal, below which a direction counts as absent. Doubled: nothing moves."""


def affordable(problem: Problem, steps: int, batch: int, starts: int, dimension: int) -> int:
    """Draws of every start that are within ``LATENTS`` and ``MOST_DRAWS``; 0 where they are too few to tell their error."""
    a_draw = batch * problem.components * problem.model.sites
    within = (LATENTS / steps - OVERHEAD) / (a_draw * starts)
    draws = int(min(within, max(MOST_DRAWS // starts, SETS)))
    enough = draws >= SETS and draws * starts >= FEWEST
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
    truth, cross, own = (np.stack([np.asarray(start[i], dtype=float) for start in starts]) for i in range(3))
    P, count = truth.shape[-1], len(starts)
    R = P * (3 if rule.momentum else 2)
    gram = np.zeros((count, R, R))
    gram[:, : 2 * P, : 2 * P] = np.block([[truth, np.swapaxes(cross, -1, -2)], [cross, own]])
    chain = _OverlapChain(problem, loss, rule, batch, dimension)
    rng = monte_carlo_rng("online descent: draws", dimension, batch)
    frame = np.tile(_triangle(gram), (draws, 1, 1))
    alive = np.ones(len(frame), dtype=bool)
    kept, marks = [], set(wanted)
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(int(wanted[-1]) + 1):
            if step in marks:
                found = frame @ np.swapaxes(frame, -1, -2)
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
    overlaps = np.stack(kept).reshape(len(kept), draws, count, R, R).swapaxes(0, 1)
    blocks = slice(0, P), slice(P, 2 * P)
    return Path(
        np.asarray(wanted),
        overlaps[..., blocks[0], blocks[0]],
        overlaps[..., blocks[1], blocks[0]],
        overlaps[..., blocks[1], blocks[1]],
    )


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
        return _triangle(new @ np.swapaxes(new, -1, -2))

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
        inside = g @ np.swapaxes(u, -1, -2) / B
        return inside, _triangle(g @ np.swapaxes(g, -1, -2)) @ self._wishart(n, self.dimension - R, rng) / B

    def _wishart(self, n: int, freedom: int, rng: np.random.Generator) -> Host:
        """Triangular roots (n, P, P) of Wishart matrices of unit covariance (Bartlett)."""
        P = self.P
        root = np.tril(rng.standard_normal((n, P, P)), -1)
        root[:, range(P), range(P)] = np.sqrt(rng.chisquare(freedom - np.arange(P), (n, P)))
        return np.asarray(root)


def _triangle(gram: Host) -> Host:
    """Triangular roots (..., R, R) of Gram matrices; a vector that depends on those before it has no direction of its own."""
    root = np.zeros_like(gram)
    for k in range(gram.shape[-1]):
        left = gram[..., k:, k] - np.einsum("...ij,...j->...i", root[..., k:, :k], root[..., k, :k])
        pivot = left[..., :1]
        known = pivot > SMALLEST * np.maximum(gram[..., k, k, None], 1e-300)
        root[..., k:, k] = np.where(known, left / np.sqrt(np.where(known, pivot, 1.0)), 0.0)
    return root
