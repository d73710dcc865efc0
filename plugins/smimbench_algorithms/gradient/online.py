r"""The closed equations of online descent for signals of low rank, integrated: averages over local fields, and overlaps
as a function of samples / D.

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

(without momentum; the sums over tokens are in the expectations). With momentum v joins W in the same way. With
``B / D = b`` fixed this recursion is the limit; as b vanishes at fixed ``eta / b`` it becomes the differential equation in
``t = samples / D`` of Saad and Solla, with ``gamma = eta / b`` and noise ``gamma^2 E[g g^T]``. A few steps are made one by one,
many are integrated: as the flow whose map after one step is the recursion's, to second order in the size of a step.

References
----------
Saad and Solla (1995), Phys. Rev. E 52, 4225; Goldt et al., arXiv:1906.08632; batches and tokens derived, checked by
tests/algorithms/test_online.py.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.derive.channel import observable, predict
from smimbench.interfaces import Overlaps
from smimbench.numerics.linalg import symmetric_root
from smimbench.numerics.qmc import normal_points
from smimbench.numerics.quadrature import gauss_hermite
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.theory.types import Host
from smimbench_algorithms.gradient.loss import loss_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smimbench.problem import Problem

__all__ = ["Diverges", "LocalFields", "Path", "Rule", "evaluations", "local_fields", "price", "solve"]

SCRAMBLES = 4
"""Independent sets of random points; their spread is the stated error. Doubled: twice the time, 0.7 times the error."""

POINTS = 512
"""Points of each set for every latent of a sample, mirrored copies counted. Doubled: about half the error, in twice the time."""

COARSE = 4
"""Every so many points are used for the small second-order term. Doubled: that term costs half and is less sure."""

WIDER = 1.3
"""Variance of the points, which are weighted back to 1: gradients have heavy tails. At 1 errors are three times as large; at 2
weights waste most points."""

NODES = (40, 56)
"""Nodes per direction of two Gauss rules where there are two fields only; their difference is the stated error. Doubled:
polynomials of twice the degree are exact."""

MOST_STEPS = 1000
"""Steps up to which the recursion itself is iterated. Doubled: the integrator takes over at half the error, in twice the time."""

TOLERANCE = 1e-3
"""Relative error of a step of the integrator. Doubled: twice that error, which is small beside that of the points."""

SLOPES = 400
"""Times that an integrator asks for the slope, about. Doubled: the equations are solved beside draws for fewer problems."""

LARGEST = 1e4
"""Self-overlap from which on a run counts as diverged. Doubled: diverging equations are followed a step longer."""

ROUNDING = 1e-9
"""Relative difference of the noise of two latents that counts as rounding. Doubled: the same answer for all that ships."""

SMALLEST = 1e-10
"""Eigenvalue of a covariance, relative to the largest, below which a direction counts as absent. Doubled: nothing moves."""


class Diverges(ValueError):
    """The overlaps grow without bound at this learning rate."""


@dataclass(frozen=True)
class Rule:
    """How the student moves.

    Attributes
    ----------
    rate : callable
        Learning rate eta of step s (0, 1, ...).
    decay, momentum : float
        lambda and m.
    nesterov, spherical : bool
    fraction : float
        ``b = B / D``.
    breaks : tuple of int
        Steps at which the learning rate jumps.
    """

    rate: Callable[[float], float]
    fraction: float
    decay: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    spherical: bool = False
    breaks: tuple[int, ...] = ()


class LocalFields(NamedTuple):
    """``E sum_c g_c u_c^T`` and ``E sum_c g_c g_c^T`` (..., P, P), ``u`` the white fields of student (1) and teacher (2)."""

    along_student: Host
    along_rest: Host
    square: Host


class Path(NamedTuple):
    """Overlaps at some steps: arrays (scrambles, steps, starts, P, P)."""

    steps: np.ndarray[Any, Any]
    truth: Host
    cross: Host
    own: Host


def local_fields(problem: Problem, loss: str) -> Callable[[Host, Host, Host, bool], LocalFields]:
    """What the gradient of a loss does to white local fields.

    Returns
    -------
    callable
        ``fields(student, mixing, rest, coarse)`` (scrambles, starts, P, P) each: ``z = student u1`` and ``z* = mixing u1 +
        rest u2``. The first axis has as many entries as there are sets of points: see ``evaluations``. ``coarse``: with a few
        of the points only.
    """
    channel: Any = problem.channel
    P, C = problem.components, problem.model.sites
    noise = _noise_of_identity(problem) if loss == "squared" else None
    if noise is not None:
        return lambda student, mixing, rest, coarse: _linear_fields(student, mixing, rest, C, noise)
    sets, few = _points_of_fields(P, C), _points_of_fields(P, C, COARSE)

    def fields(student: Host, mixing: Host, rest: Host, coarse: bool) -> LocalFields:
        found = []
        for index, (u, weights) in enumerate(few if coarse else sets):
            one, two = u[:, :P], u[:, P:]
            z = np.einsum("kij,njc->knic", student[index], one)
            truth = np.einsum("kij,njc->knic", mixing[index], one) + np.einsum("kij,njc->knic", rest[index], two)
            flat = z.reshape(-1, P, C)
            # The same noise at every call: what is integrated is then a smooth function of the overlaps.
            labels = channel.forward(truth.reshape(-1, P, C), rng=monte_carlo_rng("online descent: noise", index))
            cotangent = loss_of(np, loss, predict(channel, flat), observable(channel, labels))[1]
            g = np.asarray(channel.vjp(flat, cotangent)).reshape(z.shape)
            weighted = (g * weights[:, None, None]).transpose(0, 2, 1, 3).reshape(len(g), P, -1)
            rows = g.transpose(0, 2, 1, 3).reshape(len(g), P, -1)
            first, second = (half.transpose(0, 2, 1).reshape(-1, P) for half in (one, two))
            found.append(LocalFields(weighted @ first, weighted @ second, weighted @ _turned(rows)))
        return LocalFields(*(np.stack(parts) for parts in zip(*found)))

    return fields


def evaluations(problem: Problem, loss: str) -> int:
    """Number of independent evaluations of the expectations: one where they are closed."""
    if loss == "squared" and _noise_of_identity(problem) is not None:
        return 1
    return len(_points_of_fields(problem.components, problem.model.sites))


def price(problem: Problem, loss: str, steps: int, starts: int) -> float:
    """Latents that are drawn to solve the equations: 0 where they are closed."""
    if evaluations(problem, loss) == 1:
        return 0.0
    P, C = problem.components, problem.model.sites
    slopes = steps if steps <= MOST_STEPS else SLOPES
    return float(slopes * starts * P * C * sum(len(weights) for _, weights in _points_of_fields(P, C)))


def _points_of_fields(P: int, C: int, every: int = 1) -> list[tuple[Host, Host]]:
    """Sets of points (n, 2 P, C) of the fields with their weights (n,)."""
    found = []
    if P * C == 1:
        for count in NODES:
            x, w = gauss_hermite(count)
            grid = np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2, 1)
            found.append((grid, np.outer(w, w).ravel()))
        return found
    # The teacher's own part is mirrored: where there is no overlap, the points make none.
    mirror = np.concatenate([np.ones(P), -np.ones(P)])[:, None]
    for scramble in range(SCRAMBLES):
        base = normal_points(2 * P * C, POINTS * P * C // 2, "online descent", scramble)
        base = base[: len(base) // every].reshape(-1, 2 * P, C)
        points = np.sqrt(WIDER) * np.concatenate([base, base * mirror])
        weights = np.exp(np.sum(points**2, axis=(1, 2)) * (1 / WIDER - 1) / 2)
        found.append((points, weights / weights.sum()))
    return found


def _noise_of_identity(problem: Problem) -> float | None:
    """Variance of the noise of labels ``z + noise``; None for all others."""
    from smimbench_algorithms.least_squares import seen_by_labels

    if problem.channel.name != "linear":
        return None
    z = np.random.default_rng(0).standard_normal((4, problem.components, problem.model.sites))
    if not np.array_equal(np.asarray(predict(problem.channel, z)), z):
        return None
    seen = seen_by_labels(problem)
    if isinstance(seen, str) or np.ptp(seen.noise) > ROUNDING * seen.noise.max():
        return None
    return float(seen.noise.mean())


def _linear_fields(student: Host, mixing: Host, rest: Host, sites: int, noise: float) -> LocalFields:
    """``g = 2 (z - z* - noise)`` in closed form."""
    gap = student - mixing
    square = gap @ _turned(gap) + rest @ _turned(rest) + noise * np.eye(gap.shape[-1])
    return LocalFields(2 * sites * gap, -2 * sites * rest, 4 * sites * square)


def solve(
    fields: Callable[[Host, Host, Host, bool], LocalFields],
    rule: Rule,
    starts: Sequence[Overlaps],
    wanted: Sequence[int],
    sets: int,
) -> Path:
    """Overlaps after some numbers of steps.

    Parameters
    ----------
    starts : sequence of Overlaps
        With the teacher, at step 0, for every run.
    wanted : sequence of int
        Steps, ascending, the first one 0.
    sets : int
        ``evaluations`` of the problem.

    Raises
    ------
    Diverges
    """
    truth, cross, own = (np.stack([np.asarray(start[i], dtype=float) for start in starts]) for i in range(3))
    P = truth.shape[-1]
    gram = np.block([[truth, _turned(cross)], [cross, own]])
    total = int(wanted[-1])
    few = total <= MOST_STEPS
    if few and rule.momentum:
        gram = np.pad(gram, ((0, 0), (0, P), (0, P)))
    state = np.broadcast_to(gram, (sets, *gram.shape)).copy()
    march = _iterate_steps if few else _integrate_equations
    found = np.stack(march(fields, rule, state, [int(step) for step in wanted]), axis=1)
    blocks = slice(0, P), slice(P, 2 * P)
    return Path(
        np.asarray(wanted),
        found[..., blocks[0], blocks[0]],
        found[..., blocks[1], blocks[0]],
        found[..., blocks[1], blocks[1]],
    )


def _iterate_steps(fields: Any, rule: Rule, state: Host, wanted: list[int]) -> list[Host]:
    kept = []
    for step in range(wanted[-1] + 1):
        if step in wanted:
            kept.append(state)
        if step < wanted[-1]:
            state = _checked(_overlaps_after_step(fields, rule, state, step))
    return kept


def _integrate_equations(fields: Any, rule: Rule, state: Host, wanted: list[int]) -> list[Host]:
    """The flow ``log(map)`` to second order: ``d - d'/2 + ...`` with d the change of one step and d' that of d."""
    from scipy.integrate import solve_ivp

    if rule.momentum:  # over many steps v follows G at once, and every gradient acts 1 / (1 - m) times
        slow, gain = rule.rate, 1 / (1 - rule.momentum)
        rule = Rule(
            lambda step: gain * slow(step), rule.fraction, rule.decay, spherical=rule.spherical, breaks=rule.breaks
        )
    shape = state.shape

    def slope(step: float, flat: Host) -> Host:
        here = flat.reshape(shape)
        there = _overlaps_after_step(fields, rule, here, step)
        if not np.isfinite(there).all() or np.abs(there).max() > LARGEST:
            return np.asarray(there - here).ravel()
        once = _overlaps_after_step(fields, rule, here, step, coarse=True)
        twice = _overlaps_after_step(fields, rule, once, step, coarse=True)
        return np.asarray((there - here) - 0.5 * (twice - 2 * once + here)).ravel()

    def too_large(step: float, flat: Host) -> float:
        return float(LARGEST - np.nan_to_num(np.abs(flat), nan=2 * LARGEST).max())

    too_large.terminal = True  # type: ignore[attr-defined]
    ends = sorted({0, *(b for b in rule.breaks if 0 < b < wanted[-1]), wanted[-1]})
    kept, flat = [state], state.ravel()
    for first, last in itertools.pairwise(ends):
        inside = [step for step in wanted if first < step <= last]
        times = sorted({*inside, last})
        found = solve_ivp(slope, (first, last), flat, "RK45", times, rtol=TOLERANCE, atol=1e-9, events=too_large)
        if found.status != 0:
            raise Diverges(found.message)
        flat = found.y[:, -1]
        kept += [column.reshape(shape) for step, column in zip(found.t, found.y.T) if int(step) in inside]
    return kept


def _checked(state: Host) -> Host:
    if not np.isfinite(state).all() or np.abs(state).max() > LARGEST:
        raise Diverges("overlaps grow without bound")
    return state


def _overlaps_after_step(fields: Any, rule: Rule, gram: Host, step: float, coarse: bool = False) -> Host:
    """The Gram matrix (..., R, R) of teacher, student and, with momentum, velocity after one more step."""
    R, moving = gram.shape[-1], rule.momentum > 0
    P = R // (3 if moving else 2)
    T, M, Q = gram[..., :P, :P], gram[..., P : 2 * P, :P], gram[..., P : 2 * P, P : 2 * P]
    student, inverse = _root(Q)
    mixing = _turned(M) @ inverse
    rest, free = _root(T - mixing @ _turned(mixing))
    found = fields(student, mixing, rest, coarse)
    on_teacher = found.along_rest @ free
    on_student = (found.along_student - on_teacher @ mixing) @ inverse
    eta, one = rule.rate(step), np.broadcast_to(np.eye(P), Q.shape)
    # Rows: new vectors. Columns: teacher, student, velocity, and the noise of the gradient.
    gradient = np.concatenate([on_teacher, on_student + rule.decay * one, *([0 * one] if moving else []), one], axis=-1)
    before = np.concatenate([np.broadcast_to(np.eye(R), gram.shape), np.zeros((*gram.shape[:-1], P))], axis=-1)
    new = before.copy()
    if moving:
        velocity = rule.momentum * before[..., 2 * P :, :] + gradient
        new[..., 2 * P :, :] = velocity
        along = gradient + rule.momentum * velocity if rule.nesterov else velocity
    else:
        along = gradient
    new[..., P : 2 * P, :] = before[..., P : 2 * P, :] - eta * along
    covariance = np.zeros((*gram.shape[:-2], R + P, R + P))
    covariance[..., :R, :R] = gram
    covariance[..., R:, R:] = found.square / rule.fraction
    after = new @ covariance @ _turned(new)
    if rule.spherical:
        scale = np.ones(after.shape[:-1])
        scale[..., P : 2 * P] = 1 / np.sqrt(np.diagonal(after, axis1=-2, axis2=-1)[..., P : 2 * P])
        after = scale[..., :, None] * after * scale[..., None, :]
    return after


def _root(matrix: Host) -> tuple[Host, Host]:
    """Symmetric root (..., P, P) and its inverse, 0 along directions that are absent."""
    root = np.asarray(symmetric_root(matrix))
    values, vectors = np.linalg.eigh(root)
    known = values > np.sqrt(SMALLEST) * np.maximum(np.abs(values).max(axis=-1, keepdims=True), 1e-30)
    inverse = np.where(known, 1 / np.where(known, values, 1.0), 0.0)
    return root, (vectors * inverse[..., None, :]) @ _turned(vectors)


def _turned(matrix: Host) -> Host:
    return np.swapaxes(matrix, -1, -2)
