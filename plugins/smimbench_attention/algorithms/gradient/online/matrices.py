r"""Theory of online gradient descent for matrices of extensive rank: the law of a run at finite D.

A step of ``sgd`` on B fresh samples moves the factor W of the student ``S = S(W)``. The gradient of the batch's loss by S is

.. math::

    G = \frac{D^2}{B} \sum_{\mu=1}^{B} \sum_c g_{\mu c} Z_{\mu c}, \qquad g = \frac{\partial l}{\partial z}, \qquad
    z_{\mu c} = \langle Z_{\mu c}, S \rangle, \qquad
    E \langle Z_c, A \rangle \langle Z_c, A' \rangle = \frac{\operatorname{tr} A A'^T}{D},

``Z_c`` being the matrix of the site c (a pair of tokens). Fresh inputs are independent of the student, and as D grows the
latents ``(z, z*)`` of student and teacher are Gaussian and independent between sites, with the overlaps
``Q = tr(S S^T) / D``, ``M = tr(S S*^T) / D`` as covariance. Hence, by Stein's lemma,

.. math::

    G = D\,(A\,S + A^* S^*) + \text{noise}, \qquad
    \langle \text{noise}, A \rangle \sim N\Big(0, \frac{D^3}{B} v\, |A|_F^2\Big),

with the coefficients of ``E sum_c g z`` in the fields, and ``v = E sum_c g_c^2``, that ``fields`` computes. The noise is a
sum over many samples, so a symmetric Gaussian matrix takes its place. A draw of a run is then a recursion of D x r matrices, in
which a step costs no sample: it has rate, schedule, momentum and decay as the run has them, and a noise that is exact for any
batch, up to terms of relative order ``1/D``.

Without symmetry sites are pairs of different tokens, so that latents have no mean, and of two time scales, a fast one of means
and a slow one of overlaps (arXiv:2609.03858, section 4), only the slow one is left. The latents of the pairs ab and ba have the
covariance ``tr(S S) / D``, which vanishes at the start. It stays so if no derivative ``g_ab`` depends on the latents of ba, as
in rows of attention: rotating S and S* from the left then changes nothing, so their left and right singular vectors stay
independent. Labels that couple the two pairs are refused (``couples_opposite_pairs``).

Checked by tests/algorithms/test_online_matrices.py and test_online_untied.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.derive import predict
from smimbench.interfaces import Host, is_symmetric
from smimbench.numerics import monte_carlo_rng, site_pairs, symmetric_root
from smimbench.problem import Problem
from smimbench_attention.algorithms.gradient.loss import (
    factor_of,
    latent_derivatives,
    loss_derivative,
)
from smimbench_attention.algorithms.gradient.online.direct import is_direct
from smimbench_attention.algorithms.gradient.online.equations import (
    DIVERGED_OVERLAP,
    OverlapPath,
    OverlapsDiverge,
    TooExpensive,
)
from smimbench_attention.algorithms.gradient.online.fields import gradient_averages

if TYPE_CHECKING:
    from smimbench_attention.algorithms.gradient import Descent

DRAWS = (4, 12)
"""Fewest and most draws of a run; with fewer their spread says little about the error of their mean."""

LARGEST_OPERATIONS = 5e11
"""Floating-point operations of all draws, some twenty seconds of a core. Doubled: longer runs have a prediction."""

OPERATIONS_PER_ENTRY = 100
"""Operations that a step costs per entry of a (D, D) matrix beside its products: random numbers and sums."""

POINTS_PER_LATENT = 128
"""Integration points per latent of each draw. Doubled: errors of softmax labels of three tokens change by 1% (D = 100)."""

POINTS_OF_A_SINGLE_LATENT = 1024
"""The same where a sample has one latent: its label may be a steep polynomial. Four times as many change overlaps by 1e-2."""

EXCESS_SAMPLES = 4096
"""Samples from which the excess of derivatives is estimated. Doubled: it changes by a few per cent where it is near 1."""


def couples_opposite_pairs(problem: Problem, loss: str) -> bool:
    """Whether, in a model without symmetry, the derivative of the named ``loss`` in the latents of a pair of tokens (a, b)
    depends on the latents of (b, a), of student or teacher.
    """
    if is_symmetric(problem.model):
        return False
    channel = problem.channel
    pairs = site_pairs(problem.model.tokens, False)
    rng = monte_carlo_rng("online descent: opposite pairs")
    latents = rng.standard_normal((2, 16, problem.components, len(pairs)))

    def derivatives(student_latents: Host, teacher_latents: Host) -> Host:
        """Derivatives of the loss in the student's latents."""
        output = predict(channel, student_latents)
        target = predict(channel, teacher_latents)
        cotangent = loss_derivative(loss, output, target)
        return np.asarray(latent_derivatives(channel, student_latents, cotangent))

    undisturbed = derivatives(*latents)
    for site, (a, b) in enumerate(pairs):
        disturbed_latents = latents.copy()
        disturbed_latents[0, ..., pairs.index((b, a))] += 1.0
        disturbed_latents[1, ..., pairs.index((b, a))] -= 1.0
        disturbed = derivatives(*disturbed_latents)
        if not np.allclose(disturbed[..., site], undisturbed[..., site]):
            return True
    return False


def excess_of_derivatives(problem: Problem, loss: str, dimension: int) -> float:
    """Mean square of the derivatives of the named ``loss`` in the latents of a random start, over what it is for Gaussian latents
    of the same overlaps: 1 as the ``dimension`` D grows, far more where labels are steep and D is small.
    """
    P = problem.components
    factorization = factor_of(problem)
    channel = problem.channel
    rng = monte_carlo_rng("online descent: excess", dimension)
    student = factorization.compose(factorization.draw(rng, P, dimension))
    teacher = problem.prior.sample(rng, P, dimension)
    inputs = rng.standard_normal((EXCESS_SAMPLES, problem.model.tokens, dimension))
    student_latents, teacher_latents = (
        problem.model.forward(inputs, signal) for signal in (student, teacher)
    )
    both = np.concatenate([student, teacher])[None]
    root = symmetric_root(inner_products(both, both))[0]
    white = rng.standard_normal((2 * P, *student_latents.swapaxes(0, 1).shape[1:]))
    gaussian = np.tensordot(root, white, axes=1).swapaxes(0, 1)

    def mean_square(latents: Host, targets: Host) -> float:
        """Mean square of the derivatives, with the noiseless labels of these latents of the teacher as targets."""
        cotangent = loss_derivative(
            loss, predict(channel, latents), predict(channel, targets)
        )
        return float(np.mean(latent_derivatives(channel, latents, cotangent) ** 2))

    return mean_square(student_latents, teacher_latents) / mean_square(
        gaussian[:, :P], gaussian[:, P:]
    )


class MatrixPath(NamedTuple):
    """Overlaps of teacher and student along draws of a run (the evaluations of ``overlaps``), with one start for each batch size,
    and the normalized trace ``tr(S) / D`` of the student, (draws, steps, batch sizes, P).
    """

    overlaps: OverlapPath
    traces: Host

    def of_first_batch_size(self) -> MatrixPath:
        """Draws for the first of the batch sizes."""
        steps, *overlaps = self.overlaps
        of_first = (matrices[:, :, :1] for matrices in overlaps)
        return MatrixPath(OverlapPath(steps, *of_first), self.traces[:, :, :1])

    def with_further(self, draws: MatrixPath) -> MatrixPath:
        """These draws and further ones of the same run."""
        steps, *overlaps = self.overlaps
        joined = map(np.concatenate, zip(overlaps, draws.overlaps[1:]))
        traces = np.concatenate([self.traces, draws.traces])
        return MatrixPath(OverlapPath(steps, *joined), traces)


def affordable_matrix_draws(problem: Problem, steps: int, dimension: int) -> int:
    """Number of draws of a run of ``steps`` steps in ``dimension`` D that the time limit allows.

    Raises
    ------
    TooExpensive
        If there are too few to estimate their error.
    """
    rng = monte_carlo_rng("online descent: width")
    factor_entries = factor_of(problem).draw(rng, problem.components, dimension).size
    operations_per_step = (
        0.0 if is_direct(problem) else 4.0 * factor_entries * dimension
    )
    operations_per_step += OPERATIONS_PER_ENTRY * problem.components * dimension**2
    fewest_draws, most_draws = DRAWS
    affordable_draws = int(LARGEST_OPERATIONS / (steps * operations_per_step))
    if affordable_draws < fewest_draws:
        raise TooExpensive(f"{steps} steps take more than a minute to draw")
    return min(affordable_draws, most_draws)


def draw_matrix_paths(
    problem: Problem,
    algorithm: Descent,
    loss: str,
    recorded_steps: list[int],
    batch_sizes: Sequence[float],
    dimension: int,
    draws: range,
) -> MatrixPath:
    """Draw runs of online descent on matrices in ``dimension`` D: random teachers and starts, then steps along the mean
    gradient of the named ``loss`` plus the noise of so many samples (infinity: none). Overlaps are recorded at the given
    steps. ``draws`` are the numbers of the draws; each has the same teacher, start and noise for all ``batch_sizes``.

    Raises
    ------
    OverlapsDiverge
        If the students of most draws grow without bound.
    """
    P = problem.components
    factorization = factor_of(problem)
    generators = [
        monte_carlo_rng("online descent: matrices", dimension, draw) for draw in draws
    ]
    teachers = np.stack([problem.prior.sample(rng, P, dimension) for rng in generators])
    teachers = teachers[:, None]
    # A factor for each draw and batch size.
    factors = [
        factor
        for rng in generators
        for factor in [factorization.draw(rng, P, dimension, algorithm.width)]
        * len(batch_sizes)
    ]
    memories = [algorithm.first_memory(factor) for factor in factors]
    teacher_overlaps = inner_products(teachers, teachers)
    has_single_latent = P * problem.model.sites == 1
    point_count = POINTS_OF_A_SINGLE_LATENT if has_single_latent else POINTS_PER_LATENT
    # Every draw has points of its own, so that their error is part of the scatter of the draws.
    averages = gradient_averages(problem, loss, teacher_overlaps, point_count, draws)
    relative_noise = dimension**2 / (np.array(batch_sizes) * problem.model.kappa)
    noise_scales = dimension * np.sqrt(relative_noise)[:, None, None, None]
    # Of the data, methods read the dimension alone where every step draws fresh samples.
    data: Any = SimpleNamespace(dimension=dimension)
    batch = int(algorithm.batch or 1)
    normalization = algorithm.normalisation(problem, data, batch)
    normalization *= problem.model.sample_ratio(batch, dimension)
    penalty = algorithm.penalty(data)
    total_steps = recorded_steps[-1]
    cross_overlaps = []
    student_overlaps = []
    traces = []
    for step in range(total_steps + 1):
        students = np.stack([factorization.compose(factor) for factor in factors])
        students = students.reshape(len(draws), len(batch_sizes), *students.shape[1:])
        cross = inner_products(students, teachers)
        self_overlap = inner_products(students, students)
        is_bounded = np.abs(self_overlap).max(axis=(-2, -1)) <= DIVERGED_OVERLAP
        if is_bounded.mean(axis=0).min() < 0.5:
            raise OverlapsDiverge("the student grows without bound")
        if step in recorded_steps:
            cross_overlaps.append(cross)
            student_overlaps.append(self_overlap)
            traces.append(np.trace(students, axis1=-2, axis2=-1) / dimension)
        if step == total_steps:
            break
        means = averages(cross, self_overlap)
        noise_roots = symmetric_root(means.square)
        rate = algorithm.learning_rate_at(step, total_steps)
        noise = np.stack(
            [problem.model.draw_noise(rng, P, dimension) for rng in generators]
        )
        gradients_by_signal = dimension * (
            combined(means.on_student, students) + combined(means.on_teacher, teachers)
        ) + noise_scales * combined(noise_roots, noise[:, None])
        for run, gradient_by_signal in enumerate(
            gradients_by_signal.reshape(-1, *noise.shape[1:])
        ):
            gradient = factorization.pullback(factors[run], gradient_by_signal)
            gradient = normalization * gradient + penalty * factors[run]
            factors[run], memories[run] = algorithm.move(
                factors[run], gradient, memories[run], rate, step + 1
            )
    cross_path, student_path = (
        np.stack(overlaps, axis=1) for overlaps in (cross_overlaps, student_overlaps)
    )
    teacher_path = np.broadcast_to(teacher_overlaps[:, None], cross_path.shape)
    overlap_path = OverlapPath(
        np.asarray(recorded_steps), teacher_path, cross_path, student_path
    )
    return MatrixPath(overlap_path, np.stack(traces, axis=1))


def inner_products(matrices: Host, other_matrices: Host) -> Host:
    """Overlaps ``tr(A_p B_q^T) / D`` (..., P, P) of matrices A and B, (..., P, D, D) each."""
    rows, columns = (
        matrix.reshape(*matrix.shape[:-2], -1) for matrix in (matrices, other_matrices)
    )
    return np.asarray(rows @ np.swapaxes(columns, -1, -2) / matrices.shape[-1])


def combined(coefficients: Host, matrices: Host) -> Host:
    """Linear combinations ``sum_q c_pq A_q`` (..., P, D, D) of matrices A with the coefficients c (..., P, P)."""
    rows = matrices.reshape(*matrices.shape[:-2], -1)
    sums = coefficients @ rows
    return np.asarray(sums.reshape(*sums.shape[:-1], *matrices.shape[-2:]))
