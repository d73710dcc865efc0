r"""The closed equations of online descent for signals of low rank: overlaps after every step, made one by one or integrated.

A step of ``sgd`` on B fresh samples moves the student W (P, D) by

.. math::

    G = \frac{D}{B} \sum_{\mu=1}^{B} \sum_c \frac{g_{\mu c} x_{\mu c}^T}{\sqrt D}, \qquad g = \frac{\partial l}{\partial z},
    \qquad v \leftarrow m v + G + \lambda W, \qquad W \leftarrow W - \eta v.

Fresh inputs are independent of W, so the local fields ``(z, z*)`` of student and teacher are Gaussian with the overlaps as
covariance, and G is ``A W + A* W*`` plus noise that is orthogonal to both (Stein's lemma). The overlaps
``T = W* W*^T / D``, ``M = W W*^T / D`` and ``Q = W W^T / D`` therefore close, up to terms that vanish with 1/D:

.. math::

    M' - M = -\eta (E[g z^{*T}] + \lambda M), \qquad
    Q' - Q = -\eta (E[g z^T] + E[z g^T] + 2 \lambda Q) + \eta^2 \Big(\frac{D}{B} E[g g^T] + \text{drift}^2\Big)

(without momentum; the sums over tokens are in the expectations). With momentum v joins W in the same way. For linear labels
the means of the overlaps obey it at every D, with ``drift^2`` larger by the factor ``1 + 1 / (B C)``: C the tokens, Wick's
theorem. With ``B / D = b`` fixed this recursion is the limit; as b vanishes at fixed ``eta / b`` it becomes the differential
equation in ``t = samples / D`` of Saad and Solla, with ``gamma = eta / b`` and noise ``gamma^2 E[g g^T]``. Steps are made one
by one where that takes seconds; of longer runs the first ones are, and the rest is integrated (``online_flow``).

References
----------
Saad and Solla (1995), Phys. Rev. E 52, 4225; Goldt et al., arXiv:1906.08632; batches and tokens derived, checked by
tests/algorithms/test_online.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.theory.types import Host
from smimbench_algorithms.gradient.online_fields import evaluations, latents_of_a_step, local_fields
from smimbench_algorithms.gradient.online_flow import follow
from smimbench_algorithms.gradient.online_recursion import FEWEST_STEPS, Path, Recursion, Rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.interfaces import Overlaps
    from smimbench.problem import Problem

__all__ = ["price", "solve"]

LATENTS = 1e8
"""Latents up to which all steps are made one by one, 5 to 40 seconds. Doubled: longer runs are, in up to twice the time."""

FIRST_STEPS = 300
"""Steps of longer runs that are made one by one. Doubled: they take seconds longer; what is left of a rate that falls like 1/t is
smoother, and its sum known four times better."""

OVERHEAD = 500
"""Latents that cost as much as what a step does besides. Doubled: long runs on few points are integrated earlier."""


def price(problem: Problem, loss: str, steps: int, starts: int) -> float:
    """Latents that cost as much as making all steps one by one."""
    return steps * (starts * latents_of_a_step(problem, loss) + OVERHEAD)


def solve(problem: Problem, loss: str, rule: Rule, starts: Sequence[Overlaps], wanted: Sequence[int]) -> Path:
    """Overlaps after some numbers of steps.

    Parameters
    ----------
    starts : sequence of Overlaps
        With the teacher, at step 0, for every run.
    wanted : sequence of int
        Steps, ascending, the first one 0.

    Raises
    ------
    Diverges, TooLong
    """
    truth, cross, own = (np.stack([np.asarray(start[i], dtype=float) for start in starts]) for i in range(3))
    P = truth.shape[-1]
    gram = np.block([[truth, _turned(cross)], [cross, own]])
    if rule.momentum:
        gram = np.pad(gram, ((0, 0), (0, P), (0, P)))
    recursion = Recursion(local_fields(problem, loss, truth), rule, P)
    state = np.broadcast_to(gram, (evaluations(problem, loss), *gram.shape)).copy()
    steps = np.asarray(wanted)
    affordable = int(LATENTS / price(problem, loss, 1, len(starts)))
    if steps[-1] <= max(affordable, FEWEST_STEPS):
        _, kept = recursion.iterate(state, 0, int(steps[-1]), set(steps.tolist()))
        return _path(steps, kept, P)
    state, first = recursion.iterate(state, 0, FIRST_STEPS, set(steps.tolist()))
    found, rougher = (
        _path(steps, first | follow(recursion, state, FIRST_STEPS, steps.tolist(), affordable, rough), P)
        for rough in (False, True)
    )
    return found._replace(own=_possible(found), rougher=rougher)


def _path(steps: np.ndarray[Any, Any], kept: dict[int, Host], P: int) -> Path:
    found = np.stack([kept[int(step)] for step in steps], axis=1)
    return Path(steps, found[..., :P, :P], found[..., P : 2 * P, :P], found[..., P : 2 * P, P : 2 * P])


def _possible(path: Path) -> Host:
    """Self-overlaps that vectors can have: what integration leaves below 0 beside the teacher is cut off."""
    mixing = path.cross @ np.linalg.pinv(path.truth, hermitian=True)
    known = mixing @ _turned(path.cross)
    values, vectors = np.linalg.eigh(path.own - known)
    return np.asarray(known + (vectors * np.maximum(values, 0.0)[..., None, :]) @ _turned(vectors))


def _turned(matrix: Host) -> Host:
    return np.swapaxes(matrix, -1, -2)
