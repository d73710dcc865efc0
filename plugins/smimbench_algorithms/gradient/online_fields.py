r"""Averages over the local fields of online descent: what a step does to the overlaps in the mean, and the noise of a batch.

The fields ``(z, z*)`` of student and teacher are Gaussian with the overlaps as covariance. They are made of white fields, the
teacher's first,

.. math::

    z^* = T^{1/2} u_1, \qquad z = M T^{-1/2} u_1 + \rho u_2, \qquad \rho^2 = Q - M T^{-1} M^T,

so that labels of given points never change while the student moves: averages are smooth functions of the overlaps. Losses are
affine in the label, hence ``E[g u^T]`` needs only its mean at every point, which is taken over many draws, and ``E[g g^T]``
besides that its covariance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.derive.channel import observable, predict
from smimbench.numerics.linalg import symmetric_root
from smimbench.numerics.qmc import normal_points
from smimbench.numerics.quadrature import gauss_hermite
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.theory.types import Host
from smimbench_algorithms.gradient.loss import loss_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.problem import Problem

__all__ = ["LocalFields", "evaluations", "latents_of_a_step", "local_fields"]

SCRAMBLES = 4
"""Independent sets of random points; their spread is the stated error. Doubled: twice the time, 0.7 times the error."""

POINTS = 512
"""Points of each set for every latent of a sample, mirrored copies counted. Doubled: about half the error, in twice the time."""

ONE_FIELD = 4
"""By how much more points a single noisy latent has, as it costs little. Doubled: about half the error, in twice the time."""

NOISY_LABELS = 2**22
"""Labels of each set, of all starts together, over which the noise is averaged. Doubled: 0.7 times the error of noise, and half a
second more."""

FEWEST_LABELS = 16
"""The same, of each point at the least. Doubled: the same, for problems of many latents and starts."""

PARTS = 4
"""Parts of the points, of which one is enough for small terms. Doubled: those cost half and are less sure."""

WIDER = 1.3
"""Variance of the points, which are weighted back to 1: gradients have heavy tails. At 1 errors are three times as large; at 2
weights waste most points."""

NODES = (40, 56)
"""Nodes per direction of two Gauss rules where there are two fields only, and no noise; their difference is the stated error.
Doubled: polynomials of twice the degree are exact."""

ROUNDING = 1e-9
"""Relative difference of the noise of two latents that counts as rounding. Doubled: the same answer for all that ships."""

SMALLEST = 1e-10
"""Eigenvalue of a covariance, relative to the largest, below which a direction counts as absent. Doubled: nothing moves."""


class LocalFields(NamedTuple):
    """The gradient in the mean, ``on_teacher W* + on_student W``, and ``square = E sum_c g_c g_c^T`` (sets, starts, P, P)."""

    on_teacher: Host
    on_student: Host
    square: Host


class _Points(NamedTuple):
    """White fields ``u`` (n, 2 P, C) and weights; where ``mirrored``, the second half is the first with ``u_2`` mirrored."""

    fields: Host
    weights: Host
    mirrored: bool


class _Labels(NamedTuple):
    """Of the points of one set, for all starts: the mean label, and a vector whose square is the covariance (None: no noise)."""

    mean: Host
    noise: Host | None


def local_fields(problem: Problem, loss: str, truth: Host) -> Callable[[Host, Host, int | None], LocalFields]:
    """What a batch does to a student in the mean, for teachers of given overlaps.

    Parameters
    ----------
    truth : array (starts, P, P)
        ``T`` of every start.

    Returns
    -------
    callable
        ``fields(cross, own, part)`` of ``M`` and ``Q`` (sets, starts, P, P). The first axis has as many entries as there are
        sets of points: see ``evaluations``. ``part``: None, or which one of ``PARTS`` parts of the points is used.
    """
    noise = _noise_of_identity(problem) if loss == "squared" else None
    if noise is not None:
        return _linear_fields(problem, truth, noise)
    return _SampledFields(problem, loss, truth)


def evaluations(problem: Problem, loss: str) -> int:
    """Number of independent evaluations of the expectations: one where they are closed."""
    if loss == "squared" and _noise_of_identity(problem) is not None:
        return 1
    return len(_counts(problem))


def latents_of_a_step(problem: Problem, loss: str) -> float:
    """Latents of one evaluation of the fields for one start: 0 where they are closed."""
    if evaluations(problem, loss) == 1:
        return 0.0
    return float(problem.components * problem.model.sites * sum(_counts(problem)))


def _linear_fields(problem: Problem, truth: Host, noise: float) -> Callable[[Host, Host, int | None], LocalFields]:
    """``g = 2 (z - z* - noise)`` in closed form."""
    sites, one = problem.model.sites, np.eye(truth.shape[-1])
    rest, toward = truth + noise * one, 2.0 * sites * one

    def fields(cross: Host, own: Host, part: int | None) -> LocalFields:
        return LocalFields(-toward, toward, 4 * sites * (own - cross - _turned(cross) + rest))

    return fields


class _SampledFields:
    """Weighted sums over points; see ``local_fields``."""

    def __init__(self, problem: Problem, loss: str, truth: Host) -> None:
        self.channel: Any = problem.channel
        self.loss, self.P, self.C = loss, problem.components, problem.model.sites
        self.root, self.inverse = _root(truth)
        self.sets = _points_of_fields(problem)
        self.labels = [self._labels(points, index) for index, points in enumerate(self.sets)]

    def __call__(self, cross: Host, own: Host, part: int | None) -> LocalFields:
        mixing = cross @ self.inverse
        student, free = _root(own - mixing @ _turned(mixing))
        both = np.concatenate([mixing, student], axis=-1)
        found = [self._averages(one, index, part) for index, one in enumerate(both)]
        along, square = (np.stack(parts) for parts in zip(*found))
        on_student = along[..., self.P :] @ free
        return LocalFields((along[..., : self.P] - on_student @ mixing) @ self.inverse, on_student, square)

    def _averages(self, both: Host, index: int, part: int | None) -> tuple[Host, Host]:
        """``E sum_c g_c u_c^T`` (starts, P, 2 P) and ``E sum_c g_c g_c^T`` of one set of points."""
        points, labels = self.sets[index], self.labels[index]
        kept = _kept(labels.mean.shape[1], part if points.mirrored else None)
        fields, weights = (_of_both_halves(array, kept, points.mirrored) for array in (points.fields, points.weights))
        weights = weights / weights.sum()
        starts, P, C = len(both), self.P, self.C
        u = fields.transpose(1, 0, 2).reshape(2 * P, -1)
        z = (both @ u).reshape(starts, P, -1, C).swapaxes(1, 2).reshape(-1, P, C)
        mean = _for_both_halves(labels.mean[:, kept], points.mirrored)
        output = predict(self.channel, z)
        cotangent = loss_of(np, self.loss, output, mean.reshape(output.shape))[1]
        rows = self._rows(z, cotangent, starts)
        weight = np.repeat(weights, C)
        square = (rows * weight) @ _turned(rows)
        if labels.noise is not None:
            moved = mean + _for_both_halves(labels.noise[:, kept], points.mirrored)
            other = loss_of(np, self.loss, output, moved.reshape(output.shape))[1]
            added = self._rows(z, other - cotangent, starts)
            square = square + (added * weight) @ _turned(added)
        return rows @ (u * weight).T, square

    def _rows(self, z: Host, cotangent: Host, starts: int) -> Host:
        """The gradient with respect to the latents (starts, P, points and sites)."""
        g = np.asarray(self.channel.vjp(z, cotangent))
        return g.reshape(starts, -1, self.P, self.C).swapaxes(1, 2).reshape(starts, self.P, -1)

    def _labels(self, points: _Points, index: int) -> _Labels:
        """Labels of the first half of the points; the other half has the same."""
        first = points.fields[: len(points.fields) // 2] if points.mirrored else points.fields
        truth = np.einsum("kij,njc->knic", self.root, first[:, : self.P])
        flat = truth.reshape(-1, self.P, self.C)
        rng = monte_carlo_rng("online descent: noise", index)

        def draw() -> Host:
            return np.asarray(observable(self.channel, self.channel.forward(flat, rng=rng)), dtype=float)

        mean, noise = draw(), None
        if _noisy(self.channel, self.P, self.C):
            mean, noise = _moments(draw, max(FEWEST_LABELS, NOISY_LABELS // len(flat)), rng)
        shape = (*truth.shape[:2], *mean.shape[1:])
        return _Labels(mean.reshape(shape), None if noise is None else noise.reshape(shape))


def _moments(draw: Callable[[], Host], draws: int, rng: np.random.Generator) -> tuple[Host, Host]:
    """Mean of labels over their noise, and a vector of their covariance for every point: its root times random signs."""
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
    return mean, np.asarray((symmetric_root(covariance) @ signs[..., None])[..., 0].reshape(one.shape))


def _noisy(channel: Any, P: int, C: int) -> bool:
    """Whether labels of the same latents differ between draws."""
    z = monte_carlo_rng("online descent: latents").standard_normal((64, P, C))
    one, two = (
        np.asarray(observable(channel, channel.forward(z, rng=monte_carlo_rng("online descent: is there noise", draw))))
        for draw in range(2)
    )
    return not np.array_equal(one, two)


def _counts(problem: Problem) -> list[int]:
    """Number of points of every set."""
    size = problem.components * problem.model.sites
    if size == 1:
        noisy = _noisy(problem.channel, 1, 1)
        return [ONE_FIELD * POINTS] * SCRAMBLES if noisy else [count**2 for count in NODES]
    return [POINTS * size] * SCRAMBLES


def _points_of_fields(problem: Problem) -> list[_Points]:
    P, C = problem.components, problem.model.sites
    counts, found = _counts(problem), []
    if counts == [count**2 for count in NODES]:
        for count in NODES:
            x, w = gauss_hermite(count)
            grid = np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2, 1)
            found.append(_Points(grid, np.outer(w, w).ravel(), False))
        return found
    # The student's own part is mirrored: where there is no overlap, points of symmetric labels make none.
    mirror = np.concatenate([np.ones(P), -np.ones(P)])[:, None]
    for scramble, count in enumerate(counts):
        base = normal_points(2 * P * C, count // 2, "online descent", scramble).reshape(-1, 2 * P, C)
        points = np.sqrt(WIDER) * np.concatenate([base, base * mirror])
        weights = np.exp(np.sum(points**2, axis=(1, 2)) * (1 / WIDER - 1) / 2)
        found.append(_Points(points, weights / weights.sum(), True))
    return found


def _kept(count: int, part: int | None) -> slice:
    size = count // PARTS
    return slice(0, count) if part is None else slice(part * size, (part + 1) * size)


def _of_both_halves(array: Host, kept: slice, mirrored: bool) -> Host:
    """Some of the points and their mirrored copies."""
    if not mirrored:
        return array[kept]
    half = len(array) // 2
    return np.concatenate([array[:half][kept], array[half:][kept]])


def _for_both_halves(labels: Host, mirrored: bool) -> Host:
    return np.concatenate([labels, labels], axis=1) if mirrored else labels


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


def _root(matrix: Host) -> tuple[Host, Host]:
    """Symmetric root (..., P, P) and its inverse, 0 along directions that are absent."""
    root = np.asarray(symmetric_root(matrix))
    values, vectors = np.linalg.eigh(root)
    known = values > np.sqrt(SMALLEST) * np.maximum(np.abs(values).max(axis=-1, keepdims=True), 1e-30)
    inverse = np.where(known, 1 / np.where(known, values, 1.0), 0.0)
    return root, (vectors * inverse[..., None, :]) @ _turned(vectors)


def _turned(matrix: Host) -> Host:
    return np.swapaxes(matrix, -1, -2)
