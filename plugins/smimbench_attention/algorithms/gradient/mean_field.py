r"""Mean-field dynamics of gradient descent on reused samples: the law of the overlaps at finite D and in the limit.

Descent on n samples meets the data X (rows ``x_mu / sqrt(D)``) only in products ``X w`` and ``X^T g``. Let ``q_k`` be
orthonormal vectors of features (teacher, start, then what a gradient adds), and ``p_j`` of samples (what the ``g_s`` of step
s adds to the earlier ones, ``g = dl/dz``, zero outside the batch B). Then ``W_s = sqrt(D) sum_k c_sk q_k``, and

.. math::

    z_s = \sum_k c_{sk} h_k, \qquad c_{s+1, k} = c_{sk} - \frac{\eta}{|B|}\, g_s \cdot h_k, \qquad
    h_k = \sqrt D\, X q_k = \chi_k\, p_j + \Big(1 - \sum_{i \le j} p_i p_i^T\Big) a_k

for the direction k that ``p_j`` has added. What X does in a new direction is independent of all that has been seen of it:
``a_k`` is a fresh N(0, 1) vector, ``chi_k^2`` has the chi-squared law of ``D - k`` degrees of freedom. No data are drawn and
no features written down, and the overlaps have the law of those of the runs, at every n and D and with any batches
(Householder dice, arXiv:2101.07464).

As D grows at fixed ``alpha = n / D``, ``chi_k^2 / D`` is 1, and all samples follow one random process: ``z_s`` is a Gaussian
process of covariance ``W_s . W_t / D`` plus the memory of earlier g in ``p_j``, and products over n are expectations. These
are the equations of dynamical mean-field theory in discrete time (arXiv:2112.07572, 2210.06591); their responses are in
``E[g_s a_k]``, by Stein's lemma. They are solved by draws at a large D, from which the limit differs by some 1/D. For linear
labels and full batches only second moments matter: with ``a_k`` orthonormal to all other vectors, and ``chi_k^2 = D``, a few
rows for each step have exactly those of the limit.

Rates, momentum, decay, spheres and polar factors act on the coordinates c as they do on W.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.derive import observable, predict
from smimbench.interfaces import AlgorithmPrediction, Conditions, Host, Overlaps
from smimbench.numerics import cached_on, map_in_threads, monte_carlo_rng, normal_points
from smimbench.problem import Problem
from smimbench.theory import limit_point
from smimbench_attention.algorithms.gradient import NO_REUSE_THEORY
from smimbench_attention.algorithms.gradient.loss import (
    fitting_loss,
    latent_derivatives,
    loss_derivative,
    loss_values,
)
from smimbench_attention.algorithms.gradient.online.equations import (
    DIVERGED_OVERLAP,
    DescentRule,
    OverlapPath,
    OverlapsDiverge,
    TooExpensive,
    gram_of,
    recorded_steps_of,
    triangular_root,
    vectors_after,
)
from smimbench_attention.algorithms.gradient.online.fields import transposed
from smimbench_attention.algorithms.gradient.online.theory import (
    mean_trajectory,
    standard_error,
    typical_starts,
    why_no_equations,
)
from smimbench_attention.algorithms.least_squares import additive_noise

if TYPE_CHECKING:
    from smimbench_attention.algorithms.gradient import MomentumDescent


class MeanFieldAccuracy(NamedTuple):
    """Numerical settings of mean-field dynamics: numbers of draws and largest costs. A row is one site of one sample, a direction
    the new vector that a gradient adds.

    A row is a site of a sample.

    Attributes
    ----------
    largest_rows : int
        Largest number of rows of all draws together: 1 s for 100 steps. Doubled, the stated error is 1.4 times smaller.
    limit_draws, smallest_system : int
        Draws for the limit, whose spread gives the stated error; the smallest n and D allowed: a finite D changes values by a
        relative amount of order 1 / D.
    draw_range : tuple of int
        Smallest and largest number of draws at the dimension of runs.
    largest_work, work_per_step : float
        Largest number of products of rows, directions and steps of all draws together, 20 s; what a step costs on top.
    largest_memory : float
        Largest number of entries of the vectors of a draw.
    tolerance, single_tolerance : float
        Share of a gradient's length below which its new direction is left out, in double and in single precision.
    rows_at_once : int
        Rows of the draws that are simulated together: more do not fit a processor's cache.
    fresh_samples : int
        Fresh samples for the test error of all draws together.
    """

    largest_rows: int = 2**17  # rows of all draws together
    limit_draws: int = 8  # draws for the limit of large D
    smallest_system: int = 200  # smallest n and D
    draw_range: tuple[int, int] = (8, 256)  # draws at the dimension of runs
    largest_work: float = 1.2e10  # rows times directions times steps
    work_per_step: float = 1e5  # cost of a step, in units of work
    largest_memory: float = 3e7  # entries of the vectors of a draw
    tolerance: float = 1e-8  # relative length of a new direction
    single_tolerance: float = 1e-5  # the same in single precision
    rows_at_once: int = 2**14  # rows of the draws that are simulated together
    fresh_samples: int = 2**16  # fresh samples for the test error


ACCURACY = MeanFieldAccuracy()


class SimulatedSystem(NamedTuple):
    """Sizes of the simulated system: n samples, samples of a batch, dimension D; and, for the exact limit with linear labels,
    the variance of the label noise (else None).
    """

    samples: int  # number n
    batch: int  # samples of a step
    dimension: float
    exact_noise: float | None = None  # label noise in the exact limit


class _GrowingVectors:
    """A growing set of vectors of every draw (draws, count, rows), of which ``count`` are in use."""

    def __init__(self, vectors: Host) -> None:
        """Store the first vectors, an array (draws, count, rows)."""
        self._storage = vectors
        self.count = vectors.shape[1]

    @property
    def vectors(self) -> Host:
        """View of all vectors stored so far."""
        return self._storage[:, : self.count]

    def append(self, vector: Host) -> None:
        """Append a vector (draws, rows)."""
        draws, capacity, rows = self._storage.shape
        if self.count == capacity:
            if 2 * capacity * rows > ACCURACY.largest_memory:
                raise TooExpensive(
                    "the mean-field dynamics of so many steps need too much memory; use fewer steps"
                )
            empty_vectors = np.empty(
                (draws, capacity // 2 + 32, rows), self._storage.dtype
            )
            self._storage = np.concatenate([self._storage, empty_vectors], axis=1)
        self._storage[:, self.count] = vector
        self.count += 1


class Directions:
    """Orthonormal directions ``p_j`` in the space of samples, and images ``h_k = sqrt(D) X q_k`` under the data X of orthonormal
    directions ``q_k`` in the space of features, of several draws; every new gradient adds one of each, or zeros in draws where
    it has no new direction.

    ``is_exact``: all vectors are orthonormal, as in the limit of linear labels. Else they are stored in single precision, whose
    rounding is far below the spread of draws.
    """

    def __init__(
        self,
        normal_vectors: Host,
        P: int,
        system: SimulatedSystem,
        rngs: Sequence[np.random.Generator],
    ) -> None:
        """Start every draw from normal vectors (draws, 3 P, rows) of a ``system`` of given sizes: images h of P teacher and P
        student vectors, then noise of labels; no directions p yet. In the exact limit ``basis`` spans all vectors.
        """
        self.D, self.rngs = system.dimension, rngs
        self.rows = normal_vectors.shape[-1]
        self.is_exact = system.exact_noise is not None
        if self.is_exact:
            orthonormal = np.linalg.qr(transposed(normal_vectors))[0]
            self.basis = _GrowingVectors(transposed(orthonormal))
            normal_vectors = self.basis.vectors * math.sqrt(self.rows)
        else:
            normal_vectors = normal_vectors.astype(np.float32)
        self.noise = normal_vectors[:, 2 * P :]
        self.h = _GrowingVectors(normal_vectors[:, : 2 * P].copy())
        self.p = _GrowingVectors(normal_vectors[:, :0])
        self.used_features = np.full(len(rngs), 2 * P)

    def add(self, g: Host) -> None:
        """Add the direction of a gradient g (draws, rows) as a new p_j, with the image h_k of the feature direction that it adds,
        in draws where g has a new direction (h_k: and features are left); zeros in the others.
        """
        g_norm = np.linalg.norm(g, axis=1)
        orthogonal_part = self._orthogonal_part(g)
        # Rounding along the p would grow.
        if (np.linalg.norm(orthogonal_part, axis=1) < g_norm / 2).any():
            orthogonal_part = self._orthogonal_part(orthogonal_part)
        norm_of_orthogonal_part = np.linalg.norm(orthogonal_part, axis=1)
        tolerance = ACCURACY.tolerance if self.is_exact else ACCURACY.single_tolerance
        is_new = norm_of_orthogonal_part > tolerance * g_norm
        if not is_new.any():
            return
        p = orthogonal_part / np.where(is_new, norm_of_orthogonal_part, np.inf)[:, None]
        self.p.append(p)
        if self.is_exact:
            self.h.append(math.sqrt(self.D) * p + self._exact_fresh_vector())
            return
        chi, fresh_vectors = np.zeros((len(g), 1)), np.zeros_like(p)
        for draw in np.flatnonzero(is_new & (self.used_features < self.D)):
            rng = self.rngs[int(draw)]
            chi[draw] = math.sqrt(rng.chisquare(self.D - self.used_features[draw]))
            fresh_vectors[draw] = rng.standard_normal(self.rows)
            self.used_features[draw] += 1
        self.h.append(chi * p + self._orthogonal_part(fresh_vectors))

    def _orthogonal_part(self, vectors: Host) -> Host:
        """Parts (draws, rows) of vectors that are orthogonal to all stored directions p_j."""
        p = self.p.vectors
        parallel_part: Host = (transposed(p @ vectors[:, :, None]) @ p)[:, 0]
        return vectors - parallel_part

    def _exact_fresh_vector(self) -> Host:
        """Vector (1, rows) of a single draw, of squared length ``rows``, orthogonal to all previous vectors."""
        if self.basis.count >= self.rows:
            raise TooExpensive(
                "the gradients of so many steps span more directions than there are rows of data; use fewer steps"
            )
        basis = self.basis.vectors[0]
        fresh_vector: Host = self.rngs[0].standard_normal(self.rows)
        for _ in range(2):  # the basis spans all p
            fresh_vector -= (basis @ fresh_vector) @ basis
        fresh_vector /= np.linalg.norm(fresh_vector)
        self.basis.append(fresh_vector)
        return math.sqrt(self.rows) * fresh_vector[None]


def _flat(arrays: Host) -> Host:
    """Samples of all draws (draws, n, ...) as one leading axis, which is the last one in memory: loops over it are long."""
    return np.asfortranarray(arrays.reshape(-1, *arrays.shape[2:]))


def descend(
    problem: Problem,
    loss: str,
    rule: DescentRule,
    starts: Sequence[Overlaps],
    recorded_steps: Sequence[int],
    system: SimulatedSystem,
    rngs: Sequence[np.random.Generator],
) -> tuple[Host, Host]:
    """Simulate descent by an update rule in a ``system`` of given sizes, with P components and C sites, in several draws at once;
    return Gram matrices (draws, steps, R, R) of the R vectors of teacher, student and velocity, NaN for draws that diverge, and
    the mean training loss (draws, steps), at the recorded steps. ``vectors`` are their coordinates in the feature directions, z
    latents of the student, g the loss's derivatives in them (component k in row k).

    Parameters
    ----------
    starts : sequence of Overlaps
        Initial overlaps of the teacher with the student's first factor, for every draw.
    recorded_steps : sequence of int
        Steps, ascending, the first one 0.
    rngs : sequence of Generator
        One for every draw.

    Raises
    ------
    OverlapsDiverge
        If all draws diverge.
    TooExpensive
    """
    channel = problem.channel
    n, draws = system.samples, len(starts)
    P, C = problem.components, problem.model.sites
    student_rows = slice(P, 2 * P)
    last_step = recorded_steps[-1]
    normal_vectors = [rng.standard_normal((n * C, 3 * P)).T for rng in rngs]
    directions = Directions(np.stack(normal_vectors), P, system, rngs)
    vectors = triangular_root(gram_of(starts, rule.momentum))[..., : 2 * P]

    def latents(fields: Host, coefficients: Host) -> Host:
        """Latents (draws, samples, P, C) of P vectors with the given ``coefficients`` in the feature directions, whose images
        under the data are ``fields`` (draws, directions, samples times C).
        """
        z = coefficients.astype(fields.dtype) @ fields
        return z.reshape(draws, P, -1, C).swapaxes(1, 2)

    teacher_latents = latents(directions.h.vectors, vectors[:, :P])
    if system.exact_noise is None:
        labels = np.stack(
            [
                np.asarray(observable(channel, channel.forward(z, rng=rng)))
                for z, rng in zip(teacher_latents, rngs)
            ]
        )
    else:
        label_noise = latents(directions.noise, np.eye(P)[None])
        labels = teacher_latents + math.sqrt(system.exact_noise) * label_noise
    labels = labels.astype(teacher_latents.dtype)
    flat_labels = _flat(labels)
    grams: list[Host] = []
    training_losses: list[Host] = []
    remaining_samples = np.empty((draws, 0), dtype=np.int64)
    total_work = 0.0
    for step in range(last_step + 1):
        gram = vectors @ transposed(vectors)
        largest_overlap = np.abs(gram[:, : 2 * P, : 2 * P]).max(axis=(1, 2))
        has_diverged = ~(largest_overlap <= DIVERGED_OVERLAP)  # NaN, too
        if has_diverged.all():
            raise OverlapsDiverge(
                "the overlaps of teacher and student grow without bound; a smaller learning rate may converge"
            )
        vectors[has_diverged] = gram[has_diverged] = np.nan
        z = latents(directions.h.vectors, vectors[:, student_rows])
        is_recorded = step == recorded_steps[len(grams)]
        if is_recorded or system.batch == n:
            flat_z, targets = _flat(z), flat_labels
            output = predict(channel, flat_z)
        if is_recorded:
            grams.append(gram)
            losses = loss_values(loss, output, targets)
            training_losses.append(losses.reshape(draws, -1).sum(axis=1) / n)
        if len(grams) == len(recorded_steps):
            break
        batch: tuple[Any, Any] = (slice(None), slice(None))
        if system.batch < n:
            if not remaining_samples.size:
                remaining_samples = np.stack([rng.permutation(n) for rng in rngs])
            batch = np.arange(draws)[:, None], remaining_samples[:, : system.batch]
            remaining_samples = remaining_samples[:, system.batch :]
            flat_z, targets = _flat(z[batch]), _flat(labels[batch])
            output = predict(channel, flat_z)
        output_derivatives = loss_derivative(loss, output, targets)
        derivatives_in_latents = np.zeros_like(z)
        batch_shape = derivatives_in_latents[batch].shape
        derivatives_in_latents[batch] = np.reshape(
            latent_derivatives(channel, flat_z, output_derivatives), batch_shape
        )
        g = derivatives_in_latents.swapaxes(1, 2).reshape(draws, P, n * C)
        for k in range(P):
            directions.add(g[:, k])
        gradient = g @ transposed(directions.h.vectors) / batch_shape[1]
        added_coordinates = directions.h.count - vectors.shape[-1]
        zeros = np.zeros((*vectors.shape[:2], added_coordinates))
        vectors = np.concatenate([vectors, zeros], axis=2)
        vectors = vectors_after(rule, vectors, gradient, step)
        if rule.spherical:
            norms = np.linalg.norm(vectors[:, student_rows], axis=2, keepdims=True)
            vectors[:, student_rows] /= norms
        total_work += n * C * directions.p.count
        if total_work > ACCURACY.largest_work:
            raise TooExpensive(
                f"{last_step} steps take more than a minute to solve; use fewer steps"
            )
    return np.stack(grams, axis=1), np.stack(training_losses, axis=1)


def _test_error(problem: Problem, loss: str, grams: Host) -> Host:
    """Mean test loss (draws, steps) on fresh samples, from Gram matrices (draws, steps, R, R) whose first 2 P vectors are
    teacher and student; ``roots_of_steps`` are their triangular roots, which turn normal numbers into latents. C is the
    number of sites.
    """
    channel = problem.channel
    P, C = problem.components, problem.model.sites
    sample_count = ACCURACY.fresh_samples // len(grams)
    losses_of_draws = []
    for draw, roots_of_steps in enumerate(
        triangular_root(grams[..., : 2 * P, : 2 * P])
    ):
        normal_rows = normal_points(
            2 * P * C, sample_count, "mean-field dynamics: fresh samples", draw
        ).T.reshape(2 * P, -1)
        latents = (roots_of_steps @ normal_rows).reshape(-1, 2 * P, C, sample_count)
        z = np.moveaxis(latents, -1, 1)
        rng = monte_carlo_rng("mean-field dynamics: fresh labels", draw)
        # The teacher never changes.
        labels = channel.forward(z[0, :, :P], rng=rng)
        targets = np.asarray(observable(channel, labels), dtype=np.float32)
        outputs = predict(channel, _flat(z[:, :, P:].astype(np.float32)))
        targets_of_steps = _flat(np.broadcast_to(targets, (len(z), *targets.shape)))
        losses = loss_values(loss, outputs, targets_of_steps)
        summed_losses = losses.reshape(len(z), -1).sum(axis=1, dtype=np.float64)
        losses_of_draws.append(summed_losses / sample_count)
    return np.stack(losses_of_draws)


class DrawPlan(NamedTuple):
    """Plan of random draws of the mean-field dynamics: the system's sizes, the number of draws, the initial overlaps of the draws
    (``starts``, taken in turn), a name of the method, and whether the limit of large D is drawn or the law at the dimension of
    the runs.

    ``in_limit``: what is drawn is the limit and not the law at the dimension of the runs; then no draw may diverge.
    """

    system: SimulatedSystem
    draw_count: int  # number of draws
    starts: Sequence[Overlaps]
    method: str
    in_limit: bool  # what is drawn is the limit


def mean_field_theory(
    algorithm: MomentumDescent, problem: Problem, alpha: float, conditions: Conditions
) -> AlgorithmPrediction | str:
    """Predict descent on reused samples, with its trajectory, at sample ratio alpha under the conditions of the runs (starts,
    dimension D), or return the reason why there is no theory. ``draw_plan`` says what is drawn to solve the equations.

    With all samples in every step, and labels that leave no sign open, it is the limit. Else the law at the dimension of the
    runs, from their starts: it decides how large the overlap of a random start is, and how random a batch.
    """
    if problem.model.rank != "low":
        return NO_REUSE_THEORY
    if (reason := why_no_equations(problem)) is not None:
        return reason
    if problem.variances is not None:
        return (
            "the equations of descent on reused samples need features of equal variance"
        )
    if alpha <= 0:
        return "gradient descent needs at least one sample"
    D = conditions.dimension
    has_free_sign = problem.channel.symmetry != "none"
    if D is None and (has_free_sign or algorithm.batch is not None):
        return "random starts or batches change with the dimension: theory needs the dimension D of the runs"
    sample_count = problem.model.sample_count(alpha, D) if D else 0
    batch_size = min(algorithm.batch or sample_count, sample_count)
    in_limit = batch_size == sample_count and not has_free_sign
    if in_limit and D is not None:  # it is the same for runs of all dimensions
        of_any_batch = replace(algorithm, batch=None)
        return cached_on(
            problem,
            "mean-field limit",
            lambda: mean_field_theory(of_any_batch, problem, alpha, Conditions()),
            (of_any_batch, alpha),
        )
    steps = algorithm.steps
    if steps is None:
        steps = algorithm.epochs or 0
        if batch_size < sample_count:
            steps *= math.ceil(sample_count / batch_size)
    loss = algorithm.loss or fitting_loss(problem)
    rule = DescentRule.of_algorithm(algorithm, steps, 1.0)
    if algorithm.direction_kind == "polar":
        rule = replace(
            rule, direction=lambda velocity, _: _polar_directions(algorithm, velocity)
        )
    if in_limit:
        draw_plan = _draws_of_limit(problem, alpha, loss, steps)
    else:
        system = SimulatedSystem(sample_count, batch_size, D or 0)
        draw_plan = _draws_at_dimension(algorithm, problem, system, steps, conditions)
    batch_advice = ""
    if algorithm.epochs and batch_size < sample_count:
        batch_advice = ", or larger batches"
    too_long_reason = f"theory of {steps} steps takes more than a minute or too much memory; ask for fewer steps{batch_advice}"
    if draw_plan is None:
        return too_long_reason
    recorded_steps = recorded_steps_of(steps)
    try:
        grams_of_draws, train_error = _descend_all_draws(
            problem, loss, rule, draw_plan, recorded_steps
        )
    except TooExpensive:
        return too_long_reason
    except OverlapsDiverge:
        return f"the equations diverge at learning rate {algorithm.learning_rate:g}; a smaller rate may converge"
    method = f"mean-field dynamics, {draw_plan.method}"
    if len(grams_of_draws) < draw_plan.draw_count:
        diverged_fraction = 1 - len(grams_of_draws) / draw_plan.draw_count
        method += f"; {diverged_fraction:.1%} of the draws diverged and were left out"
    overlap_path = OverlapPath.from_grams(
        recorded_steps, grams_of_draws[:, :, None], problem.components
    )
    final_matrices = zip(
        overlap_path.truth[:, -1, 0],
        overlap_path.cross[:, -1, 0],
        overlap_path.self_overlap[:, -1, 0],
    )
    final_overlaps = [
        [Overlaps(*final_overlap_matrices)] for final_overlap_matrices in final_matrices
    ]
    prediction = limit_point(
        problem, alpha, final_overlaps, method=method, branch="descent"
    )
    trajectory = mean_trajectory(problem, overlap_path, 1)
    del trajectory["samples"]
    if batch_size < sample_count:
        batches_per_epoch = math.ceil(sample_count / batch_size)
        completed_epochs, batches_of_epoch = np.divmod(
            recorded_steps, batches_per_epoch
        )
        processed_samples = (
            sample_count * completed_epochs + batch_size * batches_of_epoch
        )
        trajectory["samples"] = processed_samples.tolist()
    if draw_plan.system.exact_noise is None:
        test_error = _test_error(problem, loss, grams_of_draws)
    else:
        mse = np.reshape(trajectory["mse"], (1, len(recorded_steps), -1))
        summed_noise = problem.components * draw_plan.system.exact_noise
        test_error = problem.model.sites * (np.sum(mse, axis=2) + summed_noise)
    for name, error_of_draws in zip(
        ("train_error", "test_error"), (train_error, test_error)
    ):
        trajectory[name] = error_of_draws.mean(axis=0).tolist()
        trajectory[f"{name}_error"] = standard_error(error_of_draws).tolist()
    is_at_size = bool(conditions.starts) and not draw_plan.in_limit
    return replace(prediction, trajectory=trajectory, at_size=is_at_size)


def _descend_all_draws(
    problem: Problem,
    loss: str,
    rule: DescentRule,
    draw_plan: DrawPlan,
    recorded_steps: Sequence[int],
) -> tuple[Host, Host]:
    """Gram matrices (draws, steps, R, R) of teacher, student and velocity and training losses (draws, steps) at the recorded
    steps of descent by an update rule, for all draws of the ``draw_plan``, without diverged ones if they are at finite D.
    """
    draw_count = draw_plan.draw_count
    rows = draw_plan.system.samples * problem.model.sites
    draws_at_once = max(1, ACCURACY.rows_at_once // rows)

    def descend_some(first_draw: int) -> tuple[Host, Host] | None:
        """Gram matrices and training losses of the draws from ``first_draw`` on that fit a processor's cache; None if all of them
        diverge.
        """
        draws = range(first_draw, min(first_draw + draws_at_once, draw_count))
        with suppress(*(() if draw_plan.in_limit else (OverlapsDiverge,))):
            return descend(
                problem,
                loss,
                rule,
                [draw_plan.starts[draw % len(draw_plan.starts)] for draw in draws],
                recorded_steps,
                draw_plan.system,
                [monte_carlo_rng("mean-field dynamics", draw) for draw in draws],
            )
        return None

    grams_and_losses = filter(
        None, map_in_threads(descend_some, range(0, draw_count, draws_at_once))
    )
    grams, losses = (
        np.concatenate(arrays_of_draws) for arrays_of_draws in zip(*grams_and_losses)
    )
    is_bounded = np.isfinite(grams).all(axis=(1, 2, 3))
    if is_bounded.sum() < (draw_count if draw_plan.in_limit else draw_count / 2):
        raise OverlapsDiverge(
            "more than half of the draws diverge; a smaller learning rate may converge"
        )
    return grams[is_bounded], losses[is_bounded]


def _polar_directions(algorithm: MomentumDescent, velocities: Host) -> Host:
    """Directions of a ``muon`` step, the polar factors of the velocities (draws, P, K) without their scale, in K orthonormal
    coordinates.
    """
    scale = max(velocities.shape[1:]) ** 0.5
    return np.stack([algorithm.direction(velocity) / scale for velocity in velocities])


def _draws_of_limit(
    problem: Problem, alpha: float, loss: str, steps: int
) -> DrawPlan | None:
    """Plan the draws that give the limit of large D at sample ratio alpha after a number of steps: one exact system for linear
    labels, else several large ones of dimension D; None if too costly. P and C are the numbers of components and sites.
    """
    P, C = problem.components, problem.model.sites
    second_moment = np.asarray(problem.prior.second_moment(P))
    starts = [Overlaps(second_moment, 0 * second_moment, np.eye(P))]
    noise_variances = additive_noise(problem) if loss == "squared" else None
    if noise_variances is not None:
        sample_count = math.ceil(((3 + min(steps, 1000)) * P + 1) / C)
        system = SimulatedSystem(
            sample_count,
            sample_count,
            sample_count / alpha,
            float(noise_variances.mean()),
        )
        return DrawPlan(system, 1, starts, "closed form", True)
    draw_count, smallest_system_size = ACCURACY.limit_draws, ACCURACY.smallest_system
    fewest_samples = min(
        math.ceil(smallest_system_size * max(1.0, alpha)) + 1, 2**20 // C
    )
    most_samples = 2 * ACCURACY.largest_work / (P * steps**2) / (draw_count * C)
    sample_count = int(
        min(max(ACCURACY.largest_rows / (draw_count * C), fewest_samples), most_samples)
    )
    D = round(sample_count / alpha)
    if min(sample_count, D) < smallest_system_size:
        return None
    system = SimulatedSystem(sample_count, sample_count, D)
    return DrawPlan(system, draw_count, starts, f"{draw_count} draws at D = {D}", True)


def _draws_at_dimension(
    algorithm: MomentumDescent,
    problem: Problem,
    system: SimulatedSystem,
    steps: int,
    conditions: Conditions,
) -> DrawPlan | None:
    """Plan draws of the system at the dimension of the runs, equally many for every initial state of their conditions; None if
    they take too long. A row is one site of one sample, a direction the new vector that a gradient adds. P is the number of
    components.
    """
    P = problem.components
    row_count = system.samples * problem.model.sites
    direction_count = min(P * steps, row_count)
    work_per_draw = (
        row_count * direction_count * (steps - direction_count / (2 * P))
        + ACCURACY.work_per_step * steps
    )
    fewest_draws, most_draws = ACCURACY.draw_range
    start_count = max(1, len(conditions.starts))
    draw_count = int(
        min(
            ACCURACY.largest_rows / row_count,
            ACCURACY.largest_work / work_per_draw,
            most_draws,
        )
    )
    draw_count = max(fewest_draws, draw_count)
    draws_per_start = max(
        math.ceil(fewest_draws / start_count), draw_count // start_count
    )
    draw_count = start_count * draws_per_start
    if draw_count * work_per_draw > ACCURACY.largest_work:
        return None
    D = int(system.dimension)
    starts = conditions.starts or typical_starts(
        problem, D, algorithm.spherical, draw_count
    )
    return DrawPlan(
        system, draw_count, starts, f"{draw_count} draws at this dimension", False
    )
