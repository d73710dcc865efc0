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
    outer_product,
    symmetric_root,
)
from smimbench.problem import Problem
from smimbench_attention.algorithms.gradient.loss import (
    latent_derivatives,
    loss_derivative,
)
from smimbench_attention.algorithms.least_squares import linear_observation


class FieldAccuracy(NamedTuple):
    """Numerical settings of the theory of online descent: numbers of integration points and draws, and the largest costs, counted
    in latents that are sampled. A set is one of several independent sets of random points.

    Attributes
    ----------
    scrambles, points : int
        Independent sets of random points, whose spread is the stated error; points of each set per latent of a sample.
    single_latent_factor : int
        Factor of the points for a single noisy latent, which costs little.
    gauss_nodes : tuple of int
        Nodes per direction of two Gauss rules for a single latent without noise; their difference is the error.
    label_draws, fewest_label_draws : int
        Labels of each set over which noise is averaged, of all points together, and smallest number for each point.
    point_variance : float
        Variance of the points, which are weighted back to 1: gradients have heavy tails.
    largest_latents : float
        Largest number of latents for all steps, some 5 to 40 seconds; longer runs get fewer points.
    fewest_steps, fewest_points : int
        Steps that get all points in any case, and smallest number of points of each set per latent.
    draw_range : tuple of int
        Smallest and largest number of draws at finite D, of all starts together.
    fewest_draws_per_start : int
        Smallest number of draws of every start: their spread is the stated error.
    largest_draw_latents : float
        Largest number of latents of all draws, some ten seconds.
    signsgd_draw_range : tuple of int
        Smallest and largest number of draws of ``signsgd``.
    signsgd_draw_sets : int
        Sets of them whose mean overlaps errors of prediction are computed for.
    largest_signsgd_entries : float
        Largest number of entries of students in all steps of these draws, some ten seconds.
    largest_limit_latents : float
        Latents for which the limit of large D is added to a trajectory that is drawn for one D.
    random_starts, recorded_step_count : int
        Random starts where nothing has been run, and points of a trajectory.
    """

    scrambles: int = 4  # independent sets of random points
    points: int = 512  # random points per latent and set
    single_latent_factor: int = 4  # times as many points if the only latent is noisy
    gauss_nodes: tuple[int, int] = (40, 56)  # two rules for one noiseless latent
    label_draws: int = 2**22  # random labels of each set, over all points
    fewest_label_draws: int = 16  # label draws for each point
    point_variance: float = 1.3  # variance of the random points
    largest_latents: float = 1e8  # latents of all steps together
    fewest_steps: int = 1000  # shorter runs get all points
    fewest_points: int = 64  # random points per latent and set
    draw_range: tuple[int, int] = (64, 256)  # draws at finite D, all starts
    fewest_draws_per_start: int = 4  # at finite D
    largest_draw_latents: float = 6e7  # latents of all draws together
    signsgd_draw_range: tuple[int, int] = (64, 1024)  # fewest and most draws of signsgd
    signsgd_draw_sets: int = 16  # sets of draws with mean overlaps
    largest_signsgd_entries: float = 1e8  # entries of all students and steps
    largest_limit_latents: float = 4e7  # latents of a limit next to draws
    random_starts: int = 16  # starts where nothing has been run
    recorded_step_count: int = 120  # points of a trajectory


ACCURACY = FieldAccuracy()


class GradientAverages(NamedTuple):
    """Mean gradient ``on_teacher W* + on_student W`` of teacher W* and student W, by its coefficients, and the mean square
    ``E sum_c g_c g_c^T`` of the derivatives g in the latents, summed over sites c; (evaluations, starts, P, P) each.
    """

    on_teacher: Host
    on_student: Host
    square: Host  # mean square of g


class _IntegrationPoints(NamedTuple):
    """Integration points: white Gaussian fields ``u`` (n, 2 P, C) of teacher and student, P each, at C sites, with weights
    (n,); ``mirrored_copies`` is 2 if the second half repeats the first with the student's fields reversed, else 1; ``set_index``
    is the number of their set.

    The mirrored copy shares the labels and has ``u_2`` reversed.
    """

    white_fields: Host  # u (n, 2 P, C)
    weights: Host
    mirrored_copies: int
    set_index: int


def gradient_averages(
    problem: Problem,
    loss: str,
    teacher_overlaps: Host,
    point_count: int | None = None,
    sets: range | None = None,
) -> Callable[[Host, Host], GradientAverages]:
    """Build the function that maps overlaps (student with teacher, student with itself) to the mean gradient of a batch and its
    mean square, for the ``teacher_overlaps`` T (starts, P, P), with ``point_count`` integration points per latent in each of
    several independent ``sets``.

    Parameters
    ----------
    teacher_overlaps : array (starts, P, P) or (sets, starts, P, P)
        ``T`` of every start.
    point_count : int, optional
        Points of each set per latent; default: ``ACCURACY.points``.
    sets : range, optional
        Numbers of the sets of points; default: as many as ``evaluation_count`` says, from 0.

    Returns
    -------
    callable
        ``averages(cross_overlap, student_overlap)`` of ``M`` and ``Q`` (sets, starts, P, P), with one entry of the first axis
        for each of the ``evaluation_count``.
    """
    labels = _linear_labels(problem) if loss == "squared" else None
    if labels is None:
        point_sets = _points_of_fields(problem, point_count or ACCURACY.points, sets)
        return _SampledFields(problem, loss, teacher_overlaps, point_sets)
    P, sites = problem.components, problem.model.sites
    response = labels.response.reshape(P, sites, P, sites)
    gradient_per_latent = 2.0 * np.einsum("pcqc->pq", response)
    noise_square = np.einsum(
        "pcqc->pq", labels.noise_covariance.reshape(P, sites, P, sites)
    )

    def averages(cross_overlap: Host, student_overlap: Host) -> GradientAverages:
        """Mean gradient and mean square in closed form at the overlaps of student with teacher (``cross_overlap``) and with
        itself, for linear labels, where the derivative of the loss is ``g = 2 A^T (A (z - z*) - noise)`` for latents z of the
        student and z* of the teacher; ``residual`` is the covariance of ``z - z*``.
        """
        cross_terms = cross_overlap + transposed(cross_overlap)
        residual = student_overlap - cross_terms + teacher_overlaps
        square = np.einsum("pcid,...ij,qcjd->...pq", response, residual, response)
        on_student = np.broadcast_to(gradient_per_latent, square.shape)
        return GradientAverages(-on_student, on_student, 4 * (square + noise_square))

    return averages


class LinearLabels(NamedTuple):
    """Labels ``A z + noise`` of latents z, P C entries of components and sites: the ``response`` ``A^T A`` and, with the
    covariance N of the noise, ``noise_covariance`` ``A^T N A``, (P C, P C) each.
    """

    response: Host
    noise_covariance: Host


def _linear_labels(problem: Problem) -> LinearLabels | None:
    """Labels of a problem, if they are invertible linear functions of the latents plus noise, else None."""
    P, C = problem.components, problem.model.sites
    rng = monte_carlo_rng("online descent: linear labels")
    unit_latents = np.eye(P * C)
    latents = rng.standard_normal((4, P * C))
    weights, output = (
        np.asarray(predict(problem.channel, z.reshape(-1, P, C))).reshape(len(z), -1)
        for z in (unit_latents, latents)
    )
    if weights.shape != unit_latents.shape or not np.allclose(
        output, latents @ weights, rtol=0, atol=1e-12
    ):
        return None
    observation = linear_observation(problem)
    if isinstance(observation, str) or len(observation.combinations) < P * C:
        return None
    response = weights @ weights.T
    # Noise in units of the latents, A^-1 N A^-T.
    latent_noise = (
        observation.combinations.T * observation.noise
    ) @ observation.combinations
    return LinearLabels(response, response @ latent_noise @ response)


def evaluation_count(problem: Problem, loss: str) -> int:
    """Number of independent Monte Carlo evaluations of the expectations; one if they have a closed form."""
    if loss == "squared" and _linear_labels(problem) is not None:
        return 1
    return len(_point_counts(problem, ACCURACY.points))


def latents_of_a_step(problem: Problem, loss: str) -> float:
    """Number of latents sampled in a step for one initial state, over all evaluations; 0 if the expectations have a closed
    form.
    """
    if evaluation_count(problem, loss) == 1:
        return 0.0
    latent_count = problem.components * problem.model.sites
    return float(latent_count * sum(_point_counts(problem, ACCURACY.points)))


class _LabeledPoints(NamedTuple):
    """Integration points of some sets and the labels there: white fields ``u`` (sets, 2 P, points and sites), their ``weights``
    (sets, points and sites), mean labels and random vectors with the covariance of the label noise (sets, starts, points, ...),
    None without noise.
    """

    white_fields: Host
    weights: Host
    mean_labels: Host
    label_noise: Host | None

    @classmethod
    def of(
        cls, points: _IntegrationPoints, mean_labels: Host, label_noise: Host | None
    ) -> _LabeledPoints:
        """One set of points with the labels (starts, points, ...) of its first copy."""
        _, fields, sites = points.white_fields.shape

        def repeated(labels: Host) -> Host:
            """Labels of all copies of the points, as those of one set."""
            return np.concatenate([labels] * points.mirrored_copies, axis=1)[None]

        return cls(
            points.white_fields.transpose(1, 0, 2).reshape(1, fields, -1),
            np.repeat(points.weights, sites)[None],
            repeated(mean_labels),
            None if label_noise is None else repeated(label_noise),
        )


def _stacked(sets: list[_LabeledPoints]) -> _LabeledPoints:
    """Several sets of equally many points as one."""
    fields, weights, labels, noise = zip(*sets, strict=True)
    return _LabeledPoints(
        np.concatenate(fields),
        np.concatenate(weights),
        np.concatenate(labels),
        None if noise[0] is None else np.concatenate(noise),
    )


class _SampledFields:
    """Mean gradient and mean square of the loss's derivatives as weighted sums over sampled fields of teacher and student;
    see ``gradient_averages``.
    """

    def __init__(
        self,
        problem: Problem,
        loss: str,
        teacher_overlaps: Host,
        point_sets: list[_IntegrationPoints],
    ) -> None:
        """Compute mean labels once, at the points of every set, for the teacher overlaps T (starts, P, P), the same in all sets
        or with these as first axis, of root and inverse root ``T^(1/2)`` and ``T^(-1/2)``.
        """
        self.channel = problem.channel
        self.loss, self.P, self.C = loss, problem.components, problem.model.sites
        self.root, self.inverse_root = _root_and_pseudo_inverse(teacher_overlaps)
        roots_of_sets = np.broadcast_to(
            self.root, (len(point_sets), *self.root.shape[-3:])
        )
        sets = [
            _LabeledPoints.of(points, *self._labels(points, root))
            for points, root in zip(point_sets, roots_of_sets)
        ]
        # A call for all sets at once has less overhead; with many starts its arrays would leave the processor's caches.
        starts = roots_of_sets.shape[1]
        is_alike = len({points.weights.shape for points in sets}) == 1
        self.batches = [_stacked(sets)] if starts == 1 and is_alike else sets

    def __call__(self, cross_overlap: Host, student_overlap: Host) -> GradientAverages:
        """Mean gradient, by its coefficients in teacher and student, and its mean square at the overlaps ``cross_overlap`` M of
        student and teacher and ``student_overlap`` Q of the student with itself, (evaluations, starts, P, P) each; student fields
        are ``teacher_coefficients`` times the teacher's white fields plus ``student_root`` times the student's own.
        """
        teacher_coefficients = cross_overlap @ self.inverse_root
        student_root, inverse_student_root = _root_and_pseudo_inverse(
            student_overlap - teacher_coefficients @ transposed(teacher_coefficients)
        )
        field_coefficients = np.concatenate(
            [teacher_coefficients, student_root], axis=-1
        )
        averages_of_batches = [
            self._averages(coefficients, points)
            for coefficients, points in zip(
                np.split(field_coefficients, len(self.batches)), self.batches
            )
        ]
        mean_products, mean_square = (
            np.concatenate(averages_over_points)
            for averages_over_points in zip(*averages_of_batches)
        )
        gradient_on_student = mean_products[..., self.P :] @ inverse_student_root
        gradient_on_teacher = (
            mean_products[..., : self.P] - gradient_on_student @ teacher_coefficients
        ) @ self.inverse_root
        return GradientAverages(gradient_on_teacher, gradient_on_student, mean_square)

    def _averages(
        self, coefficients: Host, points: _LabeledPoints
    ) -> tuple[Host, Host]:
        """Averages ``E sum_c g_c u_c^T`` (sets, starts, P, 2 P) and ``E sum_c g_c g_c^T`` (sets, starts, P, P) over sets of
        points and C sites c, where g is the derivative of the loss in the student's latents z and u are the white fields, of
        which z has the ``coefficients`` (sets, starts, P, 2 P).
        """
        sets_and_starts = coefficients.shape[:2]
        P = self.P
        C = self.C
        student_fields = coefficients @ points.white_fields[:, None]
        student_fields = student_fields.reshape(*sets_and_starts, P, -1, C)
        z = student_fields.swapaxes(2, 3).reshape(-1, P, C)
        output = predict(self.channel, z)

        def cotangent(labels: Host) -> Host:
            """Derivative of the loss with respect to the channel's ``output`` at the student's latents, for these labels."""
            # Labels of a teacher that all starts share are repeated.
            labels_of_starts = np.broadcast_to(
                labels, (*sets_and_starts, *labels.shape[2:])
            )
            targets = labels_of_starts.reshape(output.shape)
            return np.asarray(loss_derivative(self.loss, output, targets))

        def gradient(cotangent: Host) -> Host:
            """Derivative g of the loss with respect to the latents z (sets, starts, P, points and sites), from ``cotangent``, its
            derivative in the channel's output.
            """
            g = np.asarray(latent_derivatives(self.channel, z, cotangent))
            return (
                g.reshape(*sets_and_starts, -1, P, C)
                .swapaxes(2, 3)
                .reshape(*sets_and_starts, P, -1)
            )

        noiseless_derivative = cotangent(points.mean_labels)
        g = gradient(noiseless_derivative)
        weights = points.weights[:, None, None]
        mean_square = (g * weights) @ transposed(g)
        if points.label_noise is not None:
            g_of_noise = gradient(
                cotangent(points.mean_labels + points.label_noise)
                - noiseless_derivative
            )
            mean_square = mean_square + (g_of_noise * weights) @ transposed(g_of_noise)
        weighted_fields = points.white_fields[:, None] * weights
        return g @ transposed(weighted_fields), mean_square

    def _labels(
        self, points: _IntegrationPoints, root: Host
    ) -> tuple[Host, Host | None]:
        """Mean labels (starts, points, ...) at one set of points, for the ``root`` of the teacher's overlaps, and random vectors
        with the covariance of the label noise, None without noise; ``label_deviation`` is the difference of labels from
        ``reference_labels``, one draw of them.

        Labels are those of the first copy of the points.
        """
        unmirrored_fields = points.white_fields[
            : len(points.white_fields) // points.mirrored_copies
        ]
        teacher_latents = np.einsum(
            "kij,njc->knic", root, unmirrored_fields[:, : self.P]
        )
        flat_latents = teacher_latents.reshape(-1, self.P, self.C)
        rng = monte_carlo_rng("online descent: noise", points.set_index)

        def draw_labels() -> Host:
            """Random labels of all points, with fresh noise, as a user would measure them (after ``observable``)."""
            labels = self.channel.forward(flat_latents, rng=rng)
            return np.asarray(observable(self.channel, labels), dtype=float)

        reference_labels = draw_labels()
        label_shape = (*teacher_latents.shape[:2], *reference_labels.shape[1:])
        if not _is_noisy(self.channel, self.P, self.C):
            return reference_labels.reshape(label_shape), None
        draw_count = max(
            ACCURACY.fewest_label_draws, ACCURACY.label_draws // len(flat_latents)
        )
        reference_labels = draw_labels().reshape(len(flat_latents), -1)
        mean_labels = np.zeros_like(reference_labels)
        mean_square = np.zeros((*reference_labels.shape, reference_labels.shape[1]))
        for _ in range(draw_count):
            labels = draw_labels().reshape(reference_labels.shape)
            label_deviation = labels - reference_labels
            mean_labels = mean_labels + labels / draw_count
            squared_deviation = outer_product(label_deviation, label_deviation)
            mean_square = mean_square + squared_deviation / draw_count
        # Noise left in the mean, squared, plus this is the noise of a label, squared.
        label_deviation = mean_labels - reference_labels
        label_covariance = mean_square - outer_product(label_deviation, label_deviation)
        random_signs = rng.choice([-1.0, 1.0], reference_labels.shape)
        noise_vectors = (symmetric_root(label_covariance) @ random_signs[..., None])[
            ..., 0
        ]
        noise_vectors = np.asarray(noise_vectors).reshape(label_shape)
        return mean_labels.reshape(label_shape), noise_vectors


def _is_noisy(channel: Channel, P: int, C: int) -> bool:
    """Whether the channel is noisy: repeated labels of the same latents z (P components, C sites) differ."""
    z = monte_carlo_rng("online descent: latents").standard_normal((64, P, C))
    labels = []
    for draw in range(2):
        rng = monte_carlo_rng("online descent: is there noise", draw)
        labels.append(np.asarray(observable(channel, channel.forward(z, rng=rng))))
    return not np.array_equal(labels[0], labels[1])


def _point_counts(problem: Problem, points_per_latent: int) -> list[int]:
    """Number of integration points of every set, from ``points_per_latent``; two Gauss rules replace random points for one
    noiseless latent.
    """
    latent_count = problem.components * problem.model.sites
    if latent_count == 1 and not _is_noisy(problem.channel, 1, 1):
        return [node_count**2 for node_count in ACCURACY.gauss_nodes]
    points_factor = latent_count if latent_count > 1 else ACCURACY.single_latent_factor
    return [points_per_latent * points_factor] * ACCURACY.scrambles


def _points_of_fields(
    problem: Problem, points_per_latent: int, sets: range | None
) -> list[_IntegrationPoints]:
    """Sets of integration points for the white fields of P components at C sites: two Gauss rules, or several scrambled Sobol
    sets whose points are mirrored in the student's own fields. ``points_per_latent`` is their number per latent,
    ``sets`` are the numbers of other sets, of which each is the finer one of the Gauss rules where those apply.
    """
    P, C = problem.components, problem.model.sites
    point_counts = _point_counts(problem, points_per_latent)
    point_sets = []
    if len(point_counts) == len(ACCURACY.gauss_nodes):
        for point_count in ACCURACY.gauss_nodes:
            gauss_nodes, node_weights = gauss_hermite(point_count)
            node_pairs = np.stack(
                np.meshgrid(gauss_nodes, gauss_nodes, indexing="ij"), axis=-1
            )
            point_weights = np.outer(node_weights, node_weights).ravel()
            white_fields = node_pairs.reshape(-1, 2, 1)
            point_sets.append(
                _IntegrationPoints(
                    white_fields, point_weights / point_weights.sum(), 1, 0
                )
            )
        return [point_sets[-1] for _ in sets] if sets else point_sets
    # The student's own fields are mirrored: where there is no overlap, points of symmetric labels make none.
    mirror_signs = np.concatenate([np.ones(P), -np.ones(P)])[:, None]
    for scramble in sets or range(len(point_counts)):
        sobol_points = normal_points(
            2 * P * C, point_counts[0] // 2, "online descent", scramble
        )
        sobol_points = sobol_points.reshape(-1, 2 * P, C)
        white_fields = np.sqrt(ACCURACY.point_variance) * np.concatenate(
            [sobol_points, sobol_points * mirror_signs]
        )
        log_weights = (
            np.sum(white_fields**2, axis=(1, 2)) * (1 / ACCURACY.point_variance - 1) / 2
        )
        point_weights = np.exp(log_weights)
        point_sets.append(
            _IntegrationPoints(
                white_fields, point_weights / point_weights.sum(), 2, scramble
            )
        )
    return point_sets


def _root_and_pseudo_inverse(matrix: Host) -> tuple[Host, Host]:
    """Symmetric roots (..., P, P) of positive matrices and the pseudo-inverses of these roots."""
    matrix_root = np.asarray(symmetric_root(matrix))
    return matrix_root, np.linalg.pinv(matrix_root, rcond=1e-5, hermitian=True)


def transposed(matrix: Host) -> Host:
    """Transpose the last two axes of matrices (..., P, R)."""
    return np.swapaxes(matrix, -1, -2)
