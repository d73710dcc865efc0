r"""The closed equations of online descent for signals of low rank: one step as a map of overlaps, and the averages in it.

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
equation in ``t = samples / D`` of Saad and Solla, with ``gamma = eta / b`` and noise ``gamma^2 E[g g^T]``.

The fields are made of white ones, the teacher's first, so that averages are smooth functions of the overlaps and labels of given
points never change while the student moves:

.. math::

    z^* = T^{1/2} u_1, \qquad z = M T^{-1/2} u_1 + \rho u_2, \qquad \rho^2 = Q - M T^{-1} M^T.

Losses are affine in the label, hence ``E[g u^T]`` needs only its mean at every point, and ``E[g g^T]`` also its covariance.

References
----------
Saad and Solla (1995), Phys. Rev. E 52, 4225; Goldt et al., arXiv:1906.08632; batches and tokens derived, checked by
tests/algorithms/test_online.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.derive import observable, predict
from smimbench.numerics import gauss_hermite, monte_carlo_rng, normal_points, symmetric_root
from smimbench.theory import Host
from smimbench_algorithms.gradient.loss import loss_of
from smimbench_algorithms.least_squares import noise_of_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smimbench.interfaces import Overlaps
    from smimbench.problem import Problem

LARGEST = 1e4
"""Self-overlap above which a run counts as diverged."""


class Accuracy(NamedTuple):
    """Numerical choices of the theory of online descent; latents are counted as a measure of time.

    Attributes
    ----------
    scrambles, points : int
        Independent sets of random points, whose spread is the stated error; points of each set per latent of a sample.
    one_field : int
        Factor of the points for a single noisy latent, which costs little.
    nodes : tuple of int
        Nodes per direction of two Gauss rules for a single latent without noise; their difference is the error.
    label_draws, fewest_label_draws : int
        Labels of each set over which noise is averaged, of all points together, and of each point at least.
    widening : float
        Variance of the points, which are weighted back to 1: gradients have heavy tails.
    latents : float
        Most latents for all steps, some 5 to 40 seconds; longer runs get fewer points.
    fewest_steps, fewest_points : int
        Steps that get all points in any case, and points of each set per latent at least.
    draws : tuple of int
        Least and most draws at finite D, of all starts together.
    sets : int
        Least draws of every start: their spread is the stated error.
    draw_latents : float
        Most latents of all draws, some ten seconds.
    limit_latents : float
        Latents for which the limit of large D is added to a trajectory that is drawn for one D.
    starts, moments : int
        Random starts where nothing has been run, and points of a trajectory.
    """

    scrambles: int = 4
    points: int = 512
    one_field: int = 4
    nodes: tuple[int, int] = (40, 56)
    label_draws: int = 2**22
    fewest_label_draws: int = 16
    widening: float = 1.3
    latents: float = 1e8
    fewest_steps: int = 1000
    fewest_points: int = 64
    draws: tuple[int, int] = (64, 256)
    sets: int = 4
    draw_latents: float = 6e7
    limit_latents: float = 4e7
    starts: int = 16
    moments: int = 120


ACCURACY = Accuracy()


class Diverges(ValueError):
    """The overlaps grow without bound at this learning rate."""


class TooLong(ValueError):
    """There are too many steps to solve within a minute."""


@dataclass(frozen=True)
class Rule:
    """How the student moves.

    Attributes
    ----------
    rate : callable
        Learning rate eta of step s (0, 1, ...).
    fraction : float
        ``b = B / D``.
    decay, momentum : float
        lambda and m.
    nesterov, spherical : bool
    spread : float
        ``1 / (B C)``, by which the square of the mean gradient of linear labels is larger in a batch; 0 in the limit.
    """

    rate: Callable[[float], float]
    fraction: float
    decay: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    spherical: bool = False
    spread: float = 0.0


class Path(NamedTuple):
    """Overlaps at some steps: arrays (sets of points or draws, steps, starts, P, P)."""

    steps: np.ndarray[Any, Any]
    truth: Host
    cross: Host
    own: Host

    @classmethod
    def of(cls, steps: Sequence[int], gram: Host, P: int) -> Path:
        """From Gram matrices (sets, steps, starts, R, R) of teacher, student and anything else."""
        teacher, student = slice(0, P), slice(P, 2 * P)
        truth, cross, own = (gram[..., a, b] for a, b in ((teacher, teacher), (student, teacher), (student, student)))
        return cls(np.asarray(steps), truth, cross, own)


def gram_of(starts: Sequence[Overlaps], momentum: float) -> Host:
    """Gram matrices (starts, R, R) of teacher, student and, with momentum, a velocity of 0."""
    truth, cross, own = (np.stack([np.asarray(start[i], dtype=float) for start in starts]) for i in range(3))
    P = truth.shape[-1]
    gram = np.block([[truth, turned(cross)], [cross, own]])
    return np.pad(gram, ((0, 0), (0, P), (0, P))) if momentum else gram


class Recursion:
    """The map of one step on Gram matrices (sets, starts, R, R) of teacher, student and, with momentum, velocity."""

    def __init__(self, fields: Any, rule: Rule, components: int) -> None:
        self.fields, self.rule, self.P = fields, rule, components

    def after(self, gram: Host, rate: float) -> Host:
        """The Gram matrix after one more step."""
        P, rule = self.P, self.rule
        R = gram.shape[-1]
        found = self.fields(gram[..., P : 2 * P, :P], gram[..., P : 2 * P, P : 2 * P])
        # Rows: new vectors. Columns: the old ones. The gradient also has noise, which is orthogonal to them.
        new = np.broadcast_to(np.eye(R), gram.shape).copy()
        gradient = np.zeros((*gram.shape[:-2], P, R))
        gradient[..., :P] = found.on_teacher
        gradient[..., P : 2 * P] = found.on_student
        noise = found.square / rule.fraction + rule.spread * (gradient @ gram @ turned(gradient))
        gradient[..., P : 2 * P] += rule.decay * np.eye(P)
        along, share = gradient, np.array([1.0])
        if rule.momentum:
            new[..., 2 * P :, 2 * P :] *= rule.momentum
            new[..., 2 * P :, : 2 * P] = gradient[..., : 2 * P]
            velocity = new[..., 2 * P :, :]
            along = gradient + rule.momentum * velocity if rule.nesterov else velocity
            share = np.array([1 + rule.momentum if rule.nesterov else 1.0, 1.0])
        share[0] *= -rate
        new[..., P : 2 * P, :] -= rate * along
        after = new @ gram @ turned(new)
        after[..., P:, P:] += np.kron(np.outer(share, share), noise)
        if rule.spherical:
            scale = np.ones(after.shape[:-1])
            scale[..., P : 2 * P] = 1 / np.sqrt(np.diagonal(after, axis1=-2, axis2=-1)[..., P : 2 * P])
            after = scale[..., :, None] * after * scale[..., None, :]
        return after

    def iterate(self, state: Host, wanted: Sequence[int]) -> Host:
        """The states (sets, steps, starts, R, R) after ``wanted`` steps, ascending, the first one 0.

        Raises
        ------
        Diverges
        """
        kept, marks = [state], set(wanted)
        for step in range(wanted[-1]):
            state = self.after(state, self.rule.rate(step))
            # NaN and infinity fail, too. Velocities are as much larger as they are slow to change.
            if not np.abs(state[..., : 2 * self.P, : 2 * self.P]).max() <= LARGEST:
                raise Diverges("overlaps grow without bound")
            if step + 1 in marks:
                kept.append(state)
        return np.stack(kept, axis=1)


# -- averages over the local fields --------------------------------------------------------------------------------------


class LocalFields(NamedTuple):
    """The mean gradient, ``on_teacher W* + on_student W``, and ``square = E sum_c g_c g_c^T`` (sets, starts, P, P)."""

    on_teacher: Host
    on_student: Host
    square: Host


class _Points(NamedTuple):
    """White fields ``u`` (n, 2 P, C) and weights, in ``copies`` (1 or 2) equal parts that share their labels: the second is the
    first with ``u_2`` mirrored.
    """

    fields: Host
    weights: Host
    copies: int


def local_fields(
    problem: Problem, loss: str, truth: Host, points: int | None = None
) -> Callable[[Host, Host], LocalFields]:
    """Mean effect of a batch on a student, for teachers of given overlaps.

    Parameters
    ----------
    truth : array (starts, P, P)
        ``T`` of every start.
    points : int, optional
        Points of each set per latent; default: ``ACCURACY.points``.

    Returns
    -------
    callable
        ``fields(cross, own)`` of ``M`` and ``Q`` (sets, starts, P, P), with one entry of the first axis for each of the
        ``evaluations``.
    """
    noise = noise_of_identity(problem) if loss == "squared" else None
    if noise is None:
        return _SampledFields(problem, loss, truth, points or ACCURACY.points)
    sites, one = problem.model.sites, np.eye(truth.shape[-1])
    rest, toward = truth + float(noise.mean()) * one, 2.0 * sites * one

    def fields(cross: Host, own: Host) -> LocalFields:
        """``g = 2 (z - z* - noise)``."""
        return LocalFields(-toward, toward, 4 * sites * (own - cross - turned(cross) + rest))

    return fields


def evaluations(problem: Problem, loss: str) -> int:
    """Number of independent evaluations of the expectations: one where they are closed."""
    if loss == "squared" and noise_of_identity(problem) is not None:
        return 1
    return len(_counts(problem, ACCURACY.points))


def latents_of_a_step(problem: Problem, loss: str) -> float:
    """Latents of one evaluation of the fields for one start: 0 where they are closed."""
    if evaluations(problem, loss) == 1:
        return 0.0
    return float(problem.components * problem.model.sites * sum(_counts(problem, ACCURACY.points)))


class _SampledFields:
    """Weighted sums over points; see ``local_fields``."""

    def __init__(self, problem: Problem, loss: str, truth: Host, points: int) -> None:
        self.channel: Any = problem.channel
        self.loss, self.P, self.C = loss, problem.components, problem.model.sites
        self.root, self.inverse = _root(truth)
        self.sets = _points_of_fields(problem, points)
        self.labels = [self._labels(points, index) for index, points in enumerate(self.sets)]

    def __call__(self, cross: Host, own: Host) -> LocalFields:
        mixing = cross @ self.inverse
        student, free = _root(own - mixing @ turned(mixing))
        both = np.concatenate([mixing, student], axis=-1)
        found = [self._averages(one, index) for index, one in enumerate(both)]
        along, square = (np.stack(parts) for parts in zip(*found))
        on_student = along[..., self.P :] @ free
        return LocalFields((along[..., : self.P] - on_student @ mixing) @ self.inverse, on_student, square)

    def _averages(self, both: Host, index: int) -> tuple[Host, Host]:
        """``E sum_c g_c u_c^T`` (starts, P, 2 P) and ``E sum_c g_c g_c^T`` of one set of points."""
        (fields, weights, copies), (mean, noise) = self.sets[index], self.labels[index]
        weights = weights / weights.sum()
        starts, P, C = len(both), self.P, self.C
        u = fields.transpose(1, 0, 2).reshape(2 * P, -1)
        z = (both @ u).reshape(starts, P, -1, C).swapaxes(1, 2).reshape(-1, P, C)
        output = predict(self.channel, z)

        def gradient(label: Host) -> Host:
            return np.asarray(loss_of(np, self.loss, output, label.reshape(output.shape))[1])

        def rows(cotangent: Host) -> Host:
            """The gradient with respect to the latents (starts, P, points and sites)."""
            g = np.asarray(self.channel.vjp(z, cotangent))
            return g.reshape(starts, -1, P, C).swapaxes(1, 2).reshape(starts, P, -1)

        label = np.concatenate([mean] * copies, axis=1)
        cotangent = gradient(label)
        g, weight = rows(cotangent), np.repeat(weights, C)
        square = (g * weight) @ turned(g)
        if noise is not None:
            moved = gradient(label + np.concatenate([noise] * copies, axis=1))
            added = rows(moved - cotangent)
            square = square + (added * weight) @ turned(added)
        return g @ (u * weight).T, square

    def _labels(self, points: _Points, index: int) -> tuple[Host, Host | None]:
        """Mean label (starts, points, ...) of the first copy of the points, and a vector whose square is the covariance of the
        labels: its root times random signs (None: no noise).
        """
        first = points.fields[: len(points.fields) // points.copies]
        truth = np.einsum("kij,njc->knic", self.root, first[:, : self.P])
        flat = truth.reshape(-1, self.P, self.C)
        rng = monte_carlo_rng("online descent: noise", index)

        def draw() -> Host:
            return np.asarray(observable(self.channel, self.channel.forward(flat, rng=rng)), dtype=float)

        one = draw()
        shape = (*truth.shape[:2], *one.shape[1:])
        if not _noisy(self.channel, self.P, self.C):
            return one.reshape(shape), None
        draws = max(ACCURACY.fewest_label_draws, ACCURACY.label_draws // len(flat))
        one = draw()
        total = np.zeros_like(one)
        square: Host = np.zeros((len(one), one[0].size, one[0].size))
        for _ in range(draws):
            label = draw()
            total += label
            rows = (label - one).reshape(len(one), -1)
            square += rows[:, :, None] * rows[:, None, :]
        mean = total / draws
        rows = (mean - one).reshape(len(one), -1)
        # The square of the noise that is left in the mean, and this: that of a label.
        covariance = square / draws - rows[:, :, None] * rows[:, None, :]
        signs = rng.choice([-1.0, 1.0], rows.shape)
        noise = np.asarray((symmetric_root(covariance) @ signs[..., None])[..., 0].reshape(one.shape))
        return mean.reshape(shape), noise.reshape(shape)


def _noisy(channel: Any, P: int, C: int) -> bool:
    """Whether labels of the same latents differ between draws."""
    z = monte_carlo_rng("online descent: latents").standard_normal((64, P, C))
    one, two = (
        np.asarray(observable(channel, channel.forward(z, rng=monte_carlo_rng("online descent: is there noise", draw))))
        for draw in range(2)
    )
    return not np.array_equal(one, two)


def _counts(problem: Problem, points: int) -> list[int]:
    """Number of points of every set, for so many per latent."""
    size = problem.components * problem.model.sites
    if size > 1:
        return [points * size] * ACCURACY.scrambles
    if _noisy(problem.channel, 1, 1):
        return [ACCURACY.one_field * points] * ACCURACY.scrambles
    return [count**2 for count in ACCURACY.nodes]


def _points_of_fields(problem: Problem, points: int) -> list[_Points]:
    P, C = problem.components, problem.model.sites
    counts, found = _counts(problem, points), []
    if counts == [count**2 for count in ACCURACY.nodes]:
        for count in ACCURACY.nodes:
            x, w = gauss_hermite(count)
            grid = np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2, 1)
            found.append(_Points(grid, np.outer(w, w).ravel(), 1))
        return found
    # The student's own part is mirrored: where there is no overlap, points of symmetric labels make none.
    mirror = np.concatenate([np.ones(P), -np.ones(P)])[:, None]
    for scramble, count in enumerate(counts):
        base = normal_points(2 * P * C, count // 2, "online descent", scramble).reshape(-1, 2 * P, C)
        fields = np.sqrt(ACCURACY.widening) * np.concatenate([base, base * mirror])
        weights = np.exp(np.sum(fields**2, axis=(1, 2)) * (1 / ACCURACY.widening - 1) / 2)
        found.append(_Points(fields, weights / weights.sum(), 2))
    return found


def _root(matrix: Host) -> tuple[Host, Host]:
    """Symmetric root (..., P, P) and its inverse, 0 along directions that are absent."""
    root = np.asarray(symmetric_root(matrix))
    values, vectors = np.linalg.eigh(root)
    known = values > 1e-5 * np.maximum(np.abs(values).max(axis=-1, keepdims=True), 1e-30)
    inverse = np.where(known, 1 / np.where(known, values, 1.0), 0.0)
    return root, (vectors * inverse[..., None, :]) @ turned(vectors)


def turned(matrix: Host) -> Host:
    """Transposed matrices (..., P, R)."""
    return np.swapaxes(matrix, -1, -2)
