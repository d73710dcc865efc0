r"""Theory of online gradient descent for low-rank signals: closed equations of the overlaps, and draws at finite D.

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

At finite D a step adds noise of order ``1/sqrt(D)`` to the overlaps, for a batch is not the mean over all samples. Where
overlaps are of that order themselves, as at a random start, the noise decides when a run escapes, whatever D. Given the
overlaps, nothing else of the student matters to a step: with an orthonormal frame of teacher, student and velocity (R vectors),
a fresh input has coordinates ``u ~ N(0, I_R)`` in the frame, which are all that latents, label and gradient ``g`` see, and the
rest of it, which is independent of them. So

.. math::

    \frac{G e_k}{D} = \frac1B \sum_{\mu c} g_{\mu c} u_{\mu c k}, \qquad
    \frac{G_\perp G_\perp^T}{D} = \frac1{B^2} L A A^T L^T, \qquad L L^T = \sum_{\mu c} g_{\mu c} g_{\mu c}^T,

with ``A A^T`` a Wishart matrix of ``D - R`` degrees of freedom (Bartlett). A step of a draw costs B samples of the channel and
nothing that grows with D. The mean over draws is the mean over runs, for every D, up to its standard error; with D the noise
vanishes, and what is left are the equations.

References
----------
Saad and Solla (1995), Phys. Rev. E 52, 4225; Goldt et al., arXiv:1906.08632; Bartlett (1933), Proc. R. Soc. Edinb. 53, 260;
batches, tokens and the law at finite D derived, checked by tests/algorithms/test_online.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from smimbench.derive import observable, predict
from smimbench.interfaces import Conditions, Host, Overlaps
from smimbench.numerics import monte_carlo_rng
from smimbench.problem import Problem
from smimbench_attention.algorithms.gradient.loss import (
    fitting_loss,
    latent_derivatives,
    loss_derivative,
)
from smimbench_attention.algorithms.gradient.online import fields
from smimbench_attention.algorithms.gradient.online.fields import (
    evaluation_count,
    gradient_averages,
    latents_of_a_step,
    transposed,
)

if TYPE_CHECKING:
    from smimbench_attention.algorithms.gradient import Descent, MomentumDescent

DIVERGED_OVERLAP = 1e4
"""Self-overlap above which a run counts as diverged."""


class OverlapsDiverge(ValueError):
    """Error that the overlaps of teacher and student grow without bound at this learning rate."""


class TooExpensive(ValueError):
    """Error that solving the equations takes more than a minute, or too much memory."""


class OnlineRun(NamedTuple):
    """What theory needs to know of a run on fresh samples: its ``dimension`` D, number of ``steps`` and of samples in a batch
    (``batch_size``), and the name of the ``loss``.
    """

    dimension: int
    steps: int
    batch_size: int
    loss: str


def online_run(
    algorithm: Descent, problem: Problem, conditions: Conditions
) -> OnlineRun | str:
    """Return the parameters of an online run under the conditions of the runs, or the reason why they are not complete."""
    if conditions.dimension is None:
        unit = "D" if problem.model.rank == "low" else "D^2"
        return f"the number of steps is counted in samples / {unit}: theory needs the dimension D of the runs"
    return OnlineRun(
        conditions.dimension,
        int(algorithm.steps or 0),
        int(algorithm.batch or 0),
        algorithm.loss or fitting_loss(problem),
    )


def divergence_reason(learning_rate: float) -> str:
    """Say that there is no theory because the equations diverge at this initial learning rate."""
    return f"the equations diverge at learning rate {learning_rate:g}; a smaller rate may converge"


@dataclass(frozen=True)
class DescentRule:
    """Update rule of the student: learning rate as a function of the step, samples of a batch over D, weight decay, momentum,
    constraint, and ``direction``, the function that turns a velocity into the direction of a step (None: the velocity itself).

    Attributes
    ----------
    learning_rate : callable
        Learning rate eta of step s (0, 1, ...).
    batch_ratio : float
        ``b = B / D``.
    decay, momentum : float
        lambda and m.
    nesterov, spherical : bool
    inverse_batch_rows : float
        ``1 / (B C)``, by which the square of the mean gradient of linear labels is larger in a batch; 0 in the limit.
    direction : callable or None
        ``direction(velocity, metric)``: what the student moves along in place of the velocity, in the same coordinates.
    """

    learning_rate: Callable[[int], float]  # as a function of the step
    batch_ratio: float  # B / D
    decay: float = 0.0  # weight decay lambda
    momentum: float = 0.0
    nesterov: bool = False  # step along the next velocity
    spherical: bool = False  # keep the norm of every component
    inverse_batch_rows: float = 0.0  # 1 / (B C)
    direction: Callable[[Host, Host | None], Host] | None = None  # velocity to step

    @classmethod
    def of_algorithm(
        cls,
        algorithm: MomentumDescent,
        steps: int,
        batch_ratio: float,
        inverse_batch_rows: float = 0.0,
    ) -> DescentRule:
        """Update rule of an algorithm in a run with this number of steps, of batches with ``batch_ratio`` samples per
        dimension; ``inverse_batch_rows`` is 1 over the rows (tokens) of a batch, 0 in the limit.
        """
        return cls(
            lambda step: algorithm.learning_rate_at(step, steps),
            batch_ratio,
            algorithm.weight_decay,
            algorithm.momentum,
            algorithm.nesterov,
            algorithm.spherical,
            inverse_batch_rows,
        )


def recorded_steps_of(steps: int) -> list[int]:
    """Steps at which the trajectory of a run with so many ``steps`` is recorded: 0, and a geometric series up to the last."""
    geometric_series = np.geomspace(1, steps, fields.ACCURACY.recorded_step_count)
    return [0, *np.unique(geometric_series.round().astype(int)).tolist()]


class OverlapPath(NamedTuple):
    """Overlaps of teacher and student at the recorded steps of a run: arrays (evaluations, steps, starts, P, P), an
    evaluation being a set of integration points or a draw.
    """

    steps: Host
    truth: Host  # teacher with teacher
    cross: Host  # student with teacher
    self_overlap: Host  # student with student

    @classmethod
    def from_grams(cls, steps: Sequence[int], gram: Host, P: int) -> OverlapPath:
        """Overlaps of P components at the recorded ``steps``, from Gram matrices (evaluations, steps, starts, R, R) of R
        vectors: P of the teacher, P of the student and further ones.
        """
        teacher_rows = slice(0, P)
        student_rows = slice(P, 2 * P)
        teacher_overlaps = gram[..., teacher_rows, teacher_rows]
        cross_overlaps = gram[..., student_rows, teacher_rows]
        return cls(
            np.asarray(steps),
            teacher_overlaps,
            cross_overlaps,
            gram[..., student_rows, student_rows],
        )


def gram_of(starts: Sequence[Overlaps], momentum: float) -> Host:
    """Gram matrices (starts, R, R) of the R vectors of teacher, student and, with momentum, a velocity of 0, for P
    components, from the initial overlaps ``starts``.
    """
    teacher_overlap, cross_overlap, student_overlap = (
        np.stack(matrices).astype(float) for matrices in zip(*starts)
    )
    P = teacher_overlap.shape[-1]
    gram = np.block(
        [[teacher_overlap, transposed(cross_overlap)], [cross_overlap, student_overlap]]
    )
    return np.pad(gram, ((0, 0), (0, P), (0, P))) if momentum else gram


def vectors_after(
    rule: DescentRule,
    vectors: Host,
    gradient: Host,
    step: int,
    metric: Host | None = None,
) -> Host:
    """Update the R vectors of teacher, student and velocity (..., R, K) of P components, in K coordinates, by one step (number
    ``step``) of an update rule with this gradient (..., P, K), before the projection to a sphere; ``metric`` (K, K) holds the
    inner products of the coordinate directions (None: orthonormal).

    Parameters
    ----------
    vectors, gradient : array (..., R, K), (..., P, K)
        The vectors before, and the gradient of a batch, in some coordinates.
    metric : array (..., K, K), optional
        Inner products of the coordinates, if they are not orthonormal.
    """
    P = gradient.shape[-2]
    student_rows = slice(P, 2 * P)
    search_direction = gradient = gradient + rule.decay * vectors[..., student_rows, :]
    next_vectors = vectors.copy()
    if rule.momentum:
        velocity = rule.momentum * vectors[..., 2 * P :, :] + gradient
        next_vectors[..., 2 * P :, :] = velocity
        search_direction = velocity
        if rule.nesterov:
            search_direction = gradient + rule.momentum * velocity
    if rule.direction is not None:
        search_direction = rule.direction(search_direction, metric)
    next_vectors[..., student_rows, :] -= rule.learning_rate(step) * search_direction
    return next_vectors


def gram_after(
    rule: DescentRule,
    vectors: Host,
    gradient: Host,
    step: int,
    metric: Host | None = None,
) -> Host:
    """Gram matrix (..., R, R) of the R vectors of teacher, student and velocity after one more step of an update rule with this
    gradient (..., P, K), including the projection to a sphere; ``metric`` (K, K) holds the inner products of the K coordinate
    directions. See ``vectors_after``.
    """
    P = gradient.shape[-2]
    next_vectors = vectors_after(rule, vectors, gradient, step, metric)
    vectors_times_metric = next_vectors if metric is None else next_vectors @ metric
    gram = vectors_times_metric @ transposed(next_vectors)
    if rule.spherical:
        inverse_norms = np.ones(gram.shape[:-1])
        squared_norms = np.diagonal(gram, axis1=-2, axis2=-1)[..., P : 2 * P]
        inverse_norms[..., P : 2 * P] = 1 / np.sqrt(squared_norms)
        gram = inverse_norms[..., :, None] * gram * inverse_norms[..., None, :]
    return gram


def gram_after_noise(
    rule: DescentRule,
    gram: Host,
    mean_gradient_coefficients: Host,
    noise_covariance: Host,
    step: int,
) -> Host:
    """Gram matrix of the R vectors (teacher, student, velocity) after a step of an update rule whose gradient is
    ``mean_gradient_coefficients @ vectors`` plus noise of covariance ``noise_covariance`` (P, P) that is orthogonal to all
    vectors; ``metric`` holds the inner products of vectors and noise, which serve as coordinates.

    Parameters
    ----------
    gram, mean_gradient_coefficients, noise_covariance : array (..., R, R), (..., P, R), (..., P, P)
        ``noise_covariance`` is the covariance of the noise.
    """
    R, P = gram.shape[-1], noise_covariance.shape[-1]
    gradient = np.zeros((*gram.shape[:-2], P, R + P))
    gradient[..., :R], gradient[..., R:] = mean_gradient_coefficients, np.eye(P)
    metric = np.zeros((*gram.shape[:-2], R + P, R + P))
    metric[..., :R, :R], metric[..., R:, R:] = gram, noise_covariance
    vectors = np.broadcast_to(np.eye(R, R + P), (*gram.shape[:-1], R + P))
    return gram_after(rule, vectors, gradient, step, metric)


def iterate_grams(
    next_gram: Callable[[Host, int], Host],
    gram: Host,
    P: int,
    recorded_steps: Sequence[int],
    least_bounded_fraction: float,
    readout: Callable[[Host], Host] = lambda gram: gram,
) -> OverlapPath:
    """Iterate Gram matrices (sets, starts, R, R) of teacher and student, P vectors each, with the function ``next_gram(gram,
    step)`` and record at ``recorded_steps`` the overlaps in ``readout(gram)``; fail if fewer than the fraction
    ``least_bounded_fraction`` of them stay bounded.

    Diverged ones are NaN. The path records ``readout(gram)``.

    Raises
    ------
    OverlapsDiverge
        If the fraction that has not diverged falls below ``least_bounded_fraction``.
    """
    recorded_grams = [readout(gram)]
    overlaps_are_bounded = np.ones(gram.shape[:2], dtype=bool)
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(int(recorded_steps[-1])):
            gram = next_gram(gram, step)
            # NaN and infinity fail, too. Velocities are not checked: those that change slowly are legitimately large.
            largest_overlap = np.abs(gram[..., : 2 * P, : 2 * P]).max(axis=(-2, -1))
            overlaps_are_bounded &= largest_overlap <= DIVERGED_OVERLAP
            if overlaps_are_bounded.mean() < least_bounded_fraction:
                raise OverlapsDiverge(
                    "the overlaps of teacher and student grow without bound; a smaller learning rate may converge"
                )
            gram = np.where(overlaps_are_bounded[..., None, None], gram, 0.0)
            if step + 1 in recorded_steps:
                gram_or_nan = np.where(
                    overlaps_are_bounded[..., None, None], gram, np.nan
                )
                recorded_grams.append(readout(gram_or_nan))
    return OverlapPath.from_grams(recorded_steps, np.stack(recorded_grams, axis=1), P)


# -- the recursion of the mean -------------------------------------------------------------------------------------------


def cost_of_all_steps(
    problem: Problem, loss: str, steps: int, start_count: int
) -> float:
    """Cost of computing all steps for ``start_count`` starts, counted in latents that are evaluated; every step costs as much as
    500 latents besides.
    """
    return steps * (start_count * latents_of_a_step(problem, loss) + 500)


def solve(
    problem: Problem,
    loss: str,
    rule: DescentRule,
    starts: Sequence[Overlaps],
    recorded_steps: Sequence[int],
) -> OverlapPath:
    """Solve the closed equations of descent by a rule for the overlaps at the recorded steps, from the initial overlaps
    ``starts`` (with the teacher, one for each run), with fewer integration points for many steps. P is the number of
    components.

    Parameters
    ----------
    starts : sequence of Overlaps
        With the teacher, at step 0, for every run.
    recorded_steps : sequence of int
        Steps, ascending, the first one 0.

    Raises
    ------
    OverlapsDiverge, TooExpensive
    """
    field_accuracy, P = fields.ACCURACY, problem.components
    last_step = int(recorded_steps[-1])
    point_count = field_accuracy.points
    if last_step > field_accuracy.fewest_steps:
        latent_cost = cost_of_all_steps(problem, loss, last_step, len(starts))
        point_count = min(
            point_count, int(point_count * field_accuracy.largest_latents / latent_cost)
        )
    if point_count < field_accuracy.fewest_points:
        raise TooExpensive(
            f"{last_step} steps take more than a minute to solve; use fewer steps"
        )
    initial_grams = gram_of(starts, rule.momentum)
    field_averages = gradient_averages(
        problem, loss, initial_grams[:, :P, :P], point_count
    )
    student_rows = slice(P, 2 * P)

    def next_gram(gram: Host, step: int) -> Host:
        """Gram matrix (sets, starts, R, R) of teacher, student and velocity after one step of the mean recursion, from the
        mean gradient, whose coefficients in these R vectors are ``mean_gradient_coefficients``, and its noise.
        """
        mean_gradient = field_averages(
            gram[..., student_rows, :P], gram[..., student_rows, student_rows]
        )
        mean_gradient_coefficients = np.zeros((*gram.shape[:-2], P, gram.shape[-1]))
        mean_gradient_coefficients[..., :P] = mean_gradient.on_teacher
        mean_gradient_coefficients[..., student_rows] = mean_gradient.on_student
        drift_covariance = (
            mean_gradient_coefficients @ gram @ transposed(mean_gradient_coefficients)
        )
        noise_covariance = (
            mean_gradient.square / rule.batch_ratio
            + rule.inverse_batch_rows * drift_covariance
        )
        return gram_after_noise(
            rule, gram, mean_gradient_coefficients, noise_covariance, step
        )

    initial_grams_of_sets = np.stack([initial_grams] * evaluation_count(problem, loss))
    return iterate_grams(next_gram, initial_grams_of_sets, P, recorded_steps, 1.0)


# -- the law at finite D -------------------------------------------------------------------------------------------------


def affordable_draws(
    problem: Problem, steps: int, batch_size: int, start_count: int, dimension: int
) -> int:
    """Number of draws per start, for ``start_count`` starts and a number of steps on batches of ``batch_size`` samples in
    ``dimension`` D, that the time limit allows; 0 if too few to estimate their error. Costs are counted in sampled latents.
    """
    field_accuracy = fields.ACCURACY
    fewest_draws, most_draws = field_accuracy.draw_range
    latents_of_a_draw = batch_size * problem.components * problem.model.sites
    # A step costs 1000 latents on top.
    affordable_latents = field_accuracy.largest_draw_latents / steps - 1000
    draws_per_start = max(
        most_draws // start_count, field_accuracy.fewest_draws_per_start
    )
    draws_per_start = int(
        min(affordable_latents / (latents_of_a_draw * start_count), draws_per_start)
    )
    if (
        draws_per_start < field_accuracy.fewest_draws_per_start
        or draws_per_start * start_count < fewest_draws
    ):
        return 0
    return draws_per_start if dimension > 4 * problem.components else 0


def draw_paths(
    problem: Problem,
    loss: str,
    rule: DescentRule,
    starts: Sequence[Overlaps],
    recorded_steps: Sequence[int],
    draws_per_start: int,
    batch_size: int,
    dimension: int,
) -> OverlapPath:
    """Draw random overlap trajectories of descent by an update rule in ``dimension`` D at the recorded steps, ``draws_per_start``
    for each of the initial overlaps ``starts``; see ``solve``. Gram matrices are of R vectors (teacher, student, velocity), with
    P components, B samples (``batch_size``) of C sites in a batch.

    Raises
    ------
    OverlapsDiverge
        If more than half of all draws do.
    """
    initial_grams = gram_of(starts, rule.momentum)
    P = problem.components
    B = batch_size
    C = problem.model.sites
    R = initial_grams.shape[-1]
    path_count = draws_per_start * len(initial_grams)
    channel = problem.channel
    rng = monte_carlo_rng("online descent: draws", dimension, batch_size)
    degrees_of_freedom = dimension - R - np.arange(P)

    def next_gram(gram: Host, step: int) -> Host:
        """Gram matrix after one random step of every path, in a basis (frame) of the previous R vectors and P new directions of
        the gradient; z are the student's latents, g the derivatives of the loss in them. ``vector_set`` runs over teacher and
        student.
        """
        vectors_in_frame = triangular_root(gram.reshape(path_count, R, R))
        white_inputs = rng.standard_normal((path_count, R, B * C))
        local_fields = vectors_in_frame[:, : 2 * P] @ white_inputs
        latents = local_fields.reshape(path_count, 2, P, B, C).swapaxes(2, 3)
        teacher_latents, z = (
            np.ascontiguousarray(latents[:, vector_set]).reshape(path_count * B, P, C)
            for vector_set in range(2)
        )
        targets = observable(channel, channel.forward(teacher_latents, rng=rng))
        output_derivatives = loss_derivative(loss, predict(channel, z), targets)
        derivatives_in_latents = np.asarray(
            latent_derivatives(channel, z, output_derivatives)
        )
        derivatives_in_latents = derivatives_in_latents.reshape(
            path_count, B, P, C
        ).swapaxes(1, 2)
        g = derivatives_in_latents.reshape(path_count, P, B * C)
        gradient_in_frame = g @ transposed(white_inputs) / B
        noise_root = wishart_root(rng, degrees_of_freedom, path_count)
        gradient_outside_frame = triangular_root(g @ transposed(g)) @ noise_root / B
        gradient = np.concatenate([gradient_in_frame, gradient_outside_frame], axis=-1)
        vectors = np.concatenate(
            [vectors_in_frame, np.zeros((path_count, R, P))], axis=-1
        )
        return gram_after(rule, vectors, gradient, step).reshape(gram.shape)

    return iterate_grams(
        next_gram, np.stack([initial_grams] * draws_per_start), P, recorded_steps, 0.5
    )


def wishart_root(
    rng: np.random.Generator, degrees_of_freedom: Host, *leading_shape: int
) -> Host:
    """Random triangular roots L (``leading_shape``, P, P) of Wishart matrices ``L L^T`` of unit covariance, by Bartlett's
    decomposition, from chi-squared diagonals of these degrees of freedom (P,).

    ``degrees_of_freedom`` (P,) are the degrees of freedom less 0, 1, ..., P - 1.
    """
    P = len(degrees_of_freedom)
    triangular_roots = np.tril(rng.standard_normal((*leading_shape, P, P)), -1)
    squared_diagonal = 2 * rng.standard_gamma(
        degrees_of_freedom / 2, (*leading_shape, P)
    )
    triangular_roots[..., range(P), range(P)] = np.sqrt(squared_diagonal)
    return triangular_roots


def triangular_root(gram: Host) -> Host:
    """Triangular (Cholesky) roots (..., R, R) of Gram matrices of R vectors, column by column; linearly dependent vectors are
    allowed.
    """
    triangular_roots = np.zeros_like(gram)
    for column in range(gram.shape[-1]):
        remaining_column = gram[..., column:, column] - np.einsum(
            "...ij,...j->...i",
            triangular_roots[..., column:, :column],
            triangular_roots[..., column, :column],
        )
        squared_pivot = remaining_column[..., :1]
        vector_is_independent = squared_pivot > 1e-12 * np.maximum(
            gram[..., column, column, None], 1e-300
        )
        triangular_roots[..., column:, column] = np.where(
            vector_is_independent,
            remaining_column
            / np.sqrt(np.where(vector_is_independent, squared_pivot, 1.0)),
            0.0,
        )
    return triangular_roots
