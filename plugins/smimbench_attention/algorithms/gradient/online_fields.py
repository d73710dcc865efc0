r"""Averages over the local fields of online descent: the mean gradient of a batch and its mean square.

Fresh inputs are independent of the student, so the fields ``(z, z*)`` of student and teacher are Gaussian with the overlaps as
covariance. They are made of white ones, the teacher's first, so that averages are smooth functions of the overlaps and labels of
given points never change while the student moves:

.. math::

    z^* = T^{1/2} u_1, \qquad z = M T^{-1/2} u_1 + \rho u_2, \qquad \rho^2 = Q - M T^{-1} M^T.

Losses are affine in the label, hence ``E[g u^T]`` needs only its mean at every point, and ``E[g g^T]`` also its covariance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from smimbench.derive import observable, predict
from smimbench.interfaces import Channel, Host
from smimbench.numerics import (
    gauss_hermite,
    monte_carlo_rng,
    normal_points,
    symmetric_root,
)
from smimbench.problem import Problem
from smimbench_attention.algorithms.gradient.loss import latent_slopes, loss_of
from smimbench_attention.algorithms.least_squares import noise_of_identity


class FieldAccuracy(NamedTuple):
    """Numerical settings of the theory of online descent; time is measured in latents.

    Attributes
    ----------
    scrambles, points : int
        Independent sets of random points, whose spread is the stated error; points of each set per latent of a sample.
    one_field : int
        Factor of the points for a single noisy latent, which costs little.
    nodes : tuple of int
        Nodes per direction of two Gauss rules for a single latent without noise; their difference is the error.
    label_draws, fewest_label_draws : int
        Labels of each set over which noise is averaged, of all points together, and smallest number for each point.
    widening : float
        Variance of the points, which are weighted back to 1: gradients have heavy tails.
    latents : float
        Largest number of latents for all steps, some 5 to 40 seconds; longer runs get fewer points.
    fewest_steps, fewest_points : int
        Steps that get all points in any case, and smallest number of points of each set per latent.
    draws : tuple of int
        Smallest and largest number of draws at finite D, of all starts together.
    sets : int
        Smallest number of draws of every start: their spread is the stated error.
    draw_latents : float
        Largest number of latents of all draws, some ten seconds.
    sign_draws : tuple of int
        Smallest and largest number of draws of ``signsgd``.
    sign_sets : int
        Sets of them whose mean overlaps errors of prediction are computed for.
    sign_entries : float
        Largest number of entries of students in all steps of these draws, some ten seconds.
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
    sign_draws: tuple[int, int] = (64, 1024)
    sign_sets: int = 16
    sign_entries: float = 1e8
    limit_latents: float = 4e7
    starts: int = 16
    moments: int = 120


ACCURACY = FieldAccuracy()


class LocalFields(NamedTuple):
    """Mean gradient ``on_teacher W* + on_student W`` and its mean square ``E sum_c g_c g_c^T`` (sets, starts, P, P)."""

    on_teacher: Host
    on_student: Host
    square: Host


class _Points(NamedTuple):
    """Integration points: white Gaussian fields ``u`` (n, 2 P, C) and weights, optionally with a mirrored copy.

    The mirrored copy shares the labels and has ``u_2`` reversed.
    """

    fields: Host
    weights: Host
    copies: int


def local_fields(
    problem: Problem, loss: str, truth: Host, points: int | None = None
) -> Callable[[Host, Host], LocalFields]:
    """Build the function that maps overlaps to the mean gradient of a batch and its mean square.

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
    sites, identity = problem.model.sites, np.eye(truth.shape[-1])
    label_square = truth + float(noise.mean()) * identity
    slope = 2.0 * sites * identity

    def fields(cross: Host, gram: Host) -> LocalFields:
        """Mean gradient and mean square in closed form, for linear labels with ``g = 2 (z - z* - noise)``."""
        square = gram - cross - transposed(cross) + label_square
        return LocalFields(-slope, slope, 4 * sites * square)

    return fields


def evaluations(problem: Problem, loss: str) -> int:
    """Number of independent Monte Carlo evaluations of the expectations; one if they have a closed form."""
    if loss == "squared" and noise_of_identity(problem) is not None:
        return 1
    return len(_point_counts(problem, ACCURACY.points))


def latents_of_a_step(problem: Problem, loss: str) -> float:
    """Number of sampled latents per evaluation and initial state; 0 if the expectations have a closed form."""
    if evaluations(problem, loss) == 1:
        return 0.0
    latents = problem.components * problem.model.sites
    return float(latents * sum(_point_counts(problem, ACCURACY.points)))


class _SampledFields:
    """Mean gradient and mean square as weighted sums over sampled points; see ``local_fields``."""

    def __init__(self, problem: Problem, loss: str, truth: Host, points: int) -> None:
        self.channel = problem.channel
        self.loss, self.P, self.C = loss, problem.components, problem.model.sites
        self.root, self.inverse = _root(truth)
        self.sets = []
        for index, point_set in enumerate(_points_of_fields(problem, points)):
            mean, noise = self._labels(point_set, index)
            self.sets.append((point_set, mean, noise))

    def __call__(self, cross: Host, gram: Host) -> LocalFields:
        mixing = cross @ self.inverse
        student, free = _root(gram - mixing @ transposed(mixing))
        coefficients = np.concatenate([mixing, student], axis=-1)
        averages = [
            self._averages(matrix, *points)
            for matrix, points in zip(coefficients, self.sets)
        ]
        along, square = (np.stack(column) for column in zip(*averages))
        on_student = along[..., self.P :] @ free
        on_teacher = (along[..., : self.P] - on_student @ mixing) @ self.inverse
        return LocalFields(on_teacher, on_student, square)

    def _averages(
        self, coefficients: Host, points: _Points, mean: Host, noise: Host | None
    ) -> tuple[Host, Host]:
        """Averages ``E sum_c g_c u_c^T`` (starts, P, 2 P) and ``E sum_c g_c g_c^T`` from one set of points."""
        starts, P, C = len(coefficients), self.P, self.C
        u = points.fields.transpose(1, 0, 2).reshape(2 * P, -1)
        fields = (coefficients @ u).reshape(starts, P, -1, C)
        z = fields.swapaxes(1, 2).reshape(-1, P, C)
        output = predict(self.channel, z)

        def cotangent(labels: Host) -> Host:
            targets = labels.reshape(output.shape)
            return np.asarray(loss_of(np, self.loss, output, targets)[1])

        def gradient(cotangent: Host) -> Host:
            """Gradient of the loss with respect to the latents (starts, P, points and sites)."""
            g = np.asarray(latent_slopes(self.channel, z, cotangent))
            return g.reshape(starts, -1, P, C).swapaxes(1, 2).reshape(starts, P, -1)

        mean = np.concatenate([mean] * points.copies, axis=1)
        noiseless = cotangent(mean)
        g, weight = gradient(noiseless), np.repeat(points.weights, C)
        square = (g * weight) @ transposed(g)
        if noise is not None:
            noise = np.concatenate([noise] * points.copies, axis=1)
            of_noise = gradient(cotangent(mean + noise) - noiseless)
            square = square + (of_noise * weight) @ transposed(of_noise)
        return g @ (u * weight).T, square

    def _labels(self, points: _Points, index: int) -> tuple[Host, Host | None]:
        """Mean labels (starts, points, ...) at the points, and random vectors with the covariance of the label noise.

        Labels are those of the first copy of the points; the vectors are None without noise.
        """
        unmirrored = points.fields[: len(points.fields) // points.copies]
        truth = np.einsum("kij,njc->knic", self.root, unmirrored[:, : self.P])
        flat = truth.reshape(-1, self.P, self.C)
        rng = monte_carlo_rng("online descent: noise", index)

        def draw() -> Host:
            labels = self.channel.forward(flat, rng=rng)
            return np.asarray(observable(self.channel, labels), dtype=float)

        sample = draw()
        shape = (*truth.shape[:2], *sample.shape[1:])
        if not _is_noisy(self.channel, self.P, self.C):
            return sample.reshape(shape), None
        draws = max(ACCURACY.fewest_label_draws, ACCURACY.label_draws // len(flat))
        sample = draw().reshape(len(flat), -1)
        mean = np.zeros_like(sample)
        square = np.zeros((*sample.shape, sample.shape[1]))
        for _ in range(draws):
            label = draw().reshape(sample.shape)
            deviation = label - sample
            mean = mean + label / draws
            square = square + deviation[:, :, None] * deviation[:, None, :] / draws
        # Noise left in the mean, squared, plus this is the noise of a label, squared.
        deviation = mean - sample
        covariance = square - deviation[:, :, None] * deviation[:, None, :]
        signs = rng.choice([-1.0, 1.0], sample.shape)
        noise = (symmetric_root(covariance) @ signs[..., None])[..., 0]
        return mean.reshape(shape), np.asarray(noise).reshape(shape)


def _is_noisy(channel: Channel, P: int, C: int) -> bool:
    """Whether the channel is noisy: repeated labels of the same latents differ."""
    z = monte_carlo_rng("online descent: latents").standard_normal((64, P, C))
    labels = []
    for draw in range(2):
        rng = monte_carlo_rng("online descent: is there noise", draw)
        labels.append(np.asarray(observable(channel, channel.forward(z, rng=rng))))
    return not np.array_equal(labels[0], labels[1])


def _point_counts(problem: Problem, points: int) -> list[int]:
    """Number of integration points of every set; Gauss rules replace random points for one noiseless latent."""
    size = problem.components * problem.model.sites
    if size == 1 and not _is_noisy(problem.channel, 1, 1):
        return [count**2 for count in ACCURACY.nodes]
    return [points * (size if size > 1 else ACCURACY.one_field)] * ACCURACY.scrambles


def _points_of_fields(problem: Problem, points: int) -> list[_Points]:
    """Sets of integration points: two Gauss rules, or several scrambled Sobol sets."""
    P, C = problem.components, problem.model.sites
    counts, point_sets = _point_counts(problem, points), []
    if len(counts) == len(ACCURACY.nodes):
        for count in ACCURACY.nodes:
            x, w = gauss_hermite(count)
            grid = np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1)
            weights = np.outer(w, w).ravel()
            fields = grid.reshape(-1, 2, 1)
            point_sets.append(_Points(fields, weights / weights.sum(), 1))
        return point_sets
    # The student's own fields are mirrored: where there is no overlap, points of symmetric labels make none.
    mirror = np.concatenate([np.ones(P), -np.ones(P)])[:, None]
    for scramble, count in enumerate(counts):
        base = normal_points(2 * P * C, count // 2, "online descent", scramble)
        base = base.reshape(-1, 2 * P, C)
        fields = np.sqrt(ACCURACY.widening) * np.concatenate([base, base * mirror])
        exponent = np.sum(fields**2, axis=(1, 2)) * (1 / ACCURACY.widening - 1) / 2
        weights = np.exp(exponent)
        point_sets.append(_Points(fields, weights / weights.sum(), 2))
    return point_sets


def _root(matrix: Host) -> tuple[Host, Host]:
    """Symmetric root (..., P, P) of matrices and its pseudo-inverse."""
    root = np.asarray(symmetric_root(matrix))
    return root, np.linalg.pinv(root, rcond=1e-5, hermitian=True)


def transposed(matrix: Host) -> Host:
    """Transpose the last two axes of matrices (..., P, R)."""
    return np.swapaxes(matrix, -1, -2)
