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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from smimbench.derive import observable, predict
from smimbench.interfaces import AlgorithmPrediction, Conditions, Host, Overlaps
from smimbench.numerics import monte_carlo_rng, normal_points
from smimbench.problem import Problem
from smimbench.theory import limit_point
from smimbench_attention.algorithms.gradient import NO_REUSE_THEORY
from smimbench_attention.algorithms.gradient.loss import (
    fitting_loss,
    latent_slopes,
    loss_of,
)
from smimbench_attention.algorithms.gradient.online import (
    LARGEST,
    DescentRule,
    Diverges,
    Path,
    TooLong,
    gram_of,
    recorded_steps_of,
    triangle,
    vectors_after,
)
from smimbench_attention.algorithms.gradient.online_theory import (
    no_equations,
    standard_error,
    trajectory_of,
    typical_starts,
)
from smimbench_attention.algorithms.least_squares import noise_of_identity

if TYPE_CHECKING:
    from smimbench_attention.algorithms.gradient import MomentumDescent


class MeanFieldAccuracy(NamedTuple):
    """Numerical settings of mean-field dynamics.

    A row is a site of a sample.

    Attributes
    ----------
    rows : int
        Largest number of rows of all draws together: 3 s for 100 steps. Doubled, the stated error is 1.4 times smaller.
    sets, smallest : int
        Draws for the limit, whose spread gives the stated error; the smallest n and D allowed: a finite D changes values by a
        relative amount of order 1 / D.
    draws : tuple of int
        Smallest and largest number of draws at the dimension of runs.
    work, overhead : float
        Largest number of products of rows, directions and steps of all draws together, 40 s; what a step costs on top.
    memory : float
        Largest number of entries of the vectors of a draw.
    tolerance : float
        Share of a gradient's length below which its new direction is left out.
    fresh : int
        Fresh samples for the test error of all draws together.
    """

    rows: int = 2**17
    sets: int = 8
    smallest: int = 200
    draws: tuple[int, int] = (8, 256)
    work: float = 1.2e10
    overhead: float = 1e5
    memory: float = 3e7
    tolerance: float = 1e-8
    fresh: int = 2**16


ACCURACY = MeanFieldAccuracy()

EVERYTHING = slice(None)


class System(NamedTuple):
    """Sizes of the simulated system: samples, batch size, dimension D; label noise for the exact linear limit."""

    samples: int
    batch: int
    dimension: float
    noise: float | None = None


class _Columns:
    """A growing set of vectors, stored as columns (rows, count)."""

    def __init__(self, vectors: Host) -> None:
        self._storage, self.count = vectors, vectors.shape[1]

    @property
    def filled(self) -> Host:
        """View of all columns stored so far."""
        return self._storage[:, : self.count]

    def of(self, n: int, samples: slice | Host) -> Host:
        """Entries (rows, count) of the stored vectors at a subset of the n samples."""
        rows = self.filled.reshape(n, len(self._storage) // n, self.count)[samples]
        return np.asarray(rows.reshape(len(rows) * rows.shape[1], self.count))

    def add(self, vector: Host) -> None:
        """Append a vector (rows,)."""
        if self.count == self._storage.shape[1]:
            if 2 * self._storage.size > ACCURACY.memory:
                raise TooLong("memory")
            room = np.empty((len(vector), self.count // 2 + 32))
            self._storage = np.concatenate([self._storage, room], axis=1)
        self._storage[:, self.count] = vector
        self.count += 1


class Directions:
    """Orthonormal directions ``p_j`` of samples and the images ``h_k`` of feature directions under the data.

    ``is_exact``: all vectors are orthonormal, as in the limit of linear labels.
    """

    def __init__(
        self, normals: Host, P: int, system: System, rng: np.random.Generator
    ) -> None:
        self.n, self.D, self.rng = system.samples, system.dimension, rng
        self.rows, self.is_exact = len(normals), system.noise is not None
        if self.is_exact:
            self.basis = _Columns(np.linalg.qr(normals)[0])
            normals = self.basis.filled * math.sqrt(self.rows)
        self.noise = normals[:, 2 * P :]
        self.h, self.p = _Columns(normals[:, : 2 * P]), _Columns(normals[:, :0].copy())

    def add(self, g: Host, samples: slice | Host) -> bool:
        """Add the direction of a gradient to the basis; return False if it is not new or the features are exhausted."""
        norm = np.linalg.norm(g)
        remainder = self._perpendicular(g, samples)
        if np.linalg.norm(remainder) < norm / 2:  # rounding along the p would grow
            remainder = self._perpendicular(remainder)
        length = np.linalg.norm(remainder)
        if length <= ACCURACY.tolerance * norm or self.p.count == self.rows:
            return False
        self.p.add(remainder / length)
        if self.is_exact and self.basis.count >= self.rows:
            raise TooLong("the gradients span more directions than there are samples")
        if not self.is_exact and self.h.count >= self.D:  # all features are used
            return False
        square = self.D
        if not self.is_exact:
            square = self.rng.chisquare(self.D - self.h.count)
        self.h.add(math.sqrt(square) * self.p.filled[:, -1] + self._fresh())
        return True

    def _perpendicular(self, vector: Host, samples: slice | Host = EVERYTHING) -> Host:
        """Remove the components along all p_j from a vector that vanishes outside the given samples."""
        remainder: Host = -(self.p.filled @ (self.p.of(self.n, samples).T @ vector))
        by_sample = remainder.reshape(self.n, -1)
        by_sample[samples] += vector.reshape(-1, by_sample.shape[1])
        return remainder

    def _fresh(self) -> Host:
        """Draw a new Gaussian column ``a_k`` orthogonal to all p_j (in the exact limit, to all previous vectors)."""
        a = self.rng.standard_normal(self.rows)
        if not self.is_exact:
            return self._perpendicular(a)
        for _ in range(2):  # the basis spans all p
            a -= self.basis.filled @ (self.basis.filled.T @ a)
        self.basis.add(a / np.linalg.norm(a))
        return math.sqrt(self.rows) * self.basis.filled[:, -1]


def descend(
    problem: Problem,
    loss: str,
    rule: DescentRule,
    start: Overlaps,
    recorded_steps: Sequence[int],
    system: System,
    rng: np.random.Generator,
) -> tuple[Host, Host]:
    """Simulate descent; return Gram matrices (steps, R, R) of teacher, student, velocity, and the training loss (steps,).

    Parameters
    ----------
    start : Overlaps
        Of the teacher with the student's first factor.
    recorded_steps : sequence of int
        Steps, ascending, the first one 0.

    Raises
    ------
    Diverges, TooLong
    """
    channel = problem.channel
    n, batch = system.samples, system.batch
    P, C = problem.components, problem.model.sites
    student, steps = slice(P, 2 * P), recorded_steps[-1]
    directions = Directions(rng.standard_normal((n * C, 3 * P)), P, system, rng)
    vectors = triangle(gram_of([start], rule.momentum))[0][:, : 2 * P]

    def latents(fields: Host, coefficients: Host) -> Host:
        return (fields @ coefficients.T).reshape(-1, C, P).swapaxes(1, 2)

    def loss_at(z: Host, labels: Host) -> tuple[Host, Host]:
        return loss_of(np, loss, predict(channel, z), labels)

    truth = latents(directions.h.filled, vectors[:P])
    if system.noise is None:
        labels = np.asarray(observable(channel, channel.forward(truth, rng=rng)))
    else:
        noise = latents(directions.noise, np.eye(P))
        labels = truth + math.sqrt(system.noise) * noise
    grams: list[Host] = []
    losses: list[float] = []
    order = np.empty(0, dtype=np.int64)
    work = 0.0
    for step in range(steps + 1):
        gram = vectors @ vectors.T
        if not np.abs(gram[: 2 * P, : 2 * P]).max() <= LARGEST:  # NaN, too
            raise Diverges("the overlaps grow without bound")
        if step == recorded_steps[len(grams)]:
            grams.append(gram)
            z = latents(directions.h.filled, vectors[student])
            losses.append(loss_at(z, labels)[0].sum() / n)
        if len(grams) == len(recorded_steps):
            break
        samples: slice | Host = EVERYTHING
        if batch < n:
            order = order if len(order) else rng.permutation(n)
            samples, order = order[:batch], order[batch:]
        fields = directions.h.of(n, samples)
        z = latents(fields, vectors[student])
        slopes = np.asarray(latent_slopes(channel, z, loss_at(z, labels[samples])[1]))
        g = slopes.swapaxes(1, 2).reshape(-1, P)
        gradient = g.T @ fields / len(z)
        for k in range(P):
            if directions.add(g[:, k], samples):
                field = directions.h.filled[:, -1].reshape(n, C)[samples]
                along = g.T @ field.reshape(-1, 1) / len(z)
                gradient = np.concatenate([gradient, along], axis=1)
                vectors = np.pad(vectors, ((0, 0), (0, 1)))
        vectors = vectors_after(rule, vectors, gradient, step)
        if rule.spherical:
            norms = np.linalg.norm(vectors[student], axis=1, keepdims=True)
            vectors[student] /= norms
        work += n * C * directions.p.count
        if work > ACCURACY.work:
            raise TooLong(f"{steps} steps take more than a minute")
    return np.stack(grams), np.array(losses)


def _test_error(problem: Problem, loss: str, grams: Host) -> Host:
    """Mean test loss (draws, steps) on fresh samples, from Gram matrices (draws, steps, R, R) of teacher and student."""
    channel = problem.channel
    P, C = problem.components, problem.model.sites
    count, losses = ACCURACY.fresh // len(grams), []
    for index, roots in enumerate(triangle(grams[..., : 2 * P, : 2 * P])):
        stream = "mean-field dynamics: fresh samples"
        points = normal_points(2 * P * C, count, stream, index).reshape(count, 2 * P, C)
        rng = monte_carlo_rng("mean-field dynamics: fresh labels", index)
        # The teacher never changes.
        labels = channel.forward((roots[0] @ points)[:, :P], rng=rng)
        targets = np.asarray(observable(channel, labels))
        outputs = (predict(channel, (root @ points)[:, P:]) for root in roots)
        sums = [loss_of(np, loss, output, targets)[0].sum() for output in outputs]
        losses.append(np.array(sums) / count)
    return np.stack(losses)


class Draws(NamedTuple):
    """Random draws of the mean-field dynamics: system, number of draws, initial overlaps, method.

    ``in_limit``: what is drawn is the limit and not the law at the dimension of the runs; then no draw may diverge.
    """

    system: System
    repeats: int
    starts: Sequence[Overlaps]
    method: str
    in_limit: bool


def mean_field_theory(
    algorithm: MomentumDescent, problem: Problem, alpha: float, conditions: Conditions
) -> AlgorithmPrediction | str:
    """Predict descent on reused samples, with its trajectory, or return the reason why there is no theory.

    With all samples in every step, and labels that leave no sign open, it is the limit. Else the law at the dimension of the
    runs, from their starts: it decides how large the overlap of a random start is, and how random a batch.
    """
    if problem.model.rank != "low":
        return NO_REUSE_THEORY
    if (why := no_equations(problem)) is not None:
        return why
    if problem.variances is not None:
        return (
            "the equations of descent on reused samples need features of equal variance"
        )
    if alpha <= 0:
        return "gradient descent needs at least one sample"
    D = conditions.dimension
    sign_is_open = problem.channel.symmetry != "none"
    if D is None and (sign_is_open or algorithm.batch is not None):
        return "random starts or batches change with the dimension: theory needs the dimension D of the runs"
    n = problem.model.sample_count(alpha, D) if D else 0
    batch = min(algorithm.batch or n, n)
    steps = algorithm.steps
    if steps is None:
        steps = (algorithm.epochs or 0) * (1 if batch == n else math.ceil(n / batch))
    loss = algorithm.loss or fitting_loss(problem)
    rule = DescentRule.of(algorithm, steps, 1.0)
    if algorithm.moves == "polar":
        rule = replace(rule, direction=lambda along, metric: _polar(algorithm, along))
    if batch == n and not sign_is_open:
        draws = _draws_of_limit(problem, alpha, loss, steps)
    else:
        draws = _draws_at_size(
            algorithm, problem, System(n, batch, D or 0), steps, conditions
        )
    advice = ", or larger batches" if algorithm.epochs and batch < n else ""
    too_long = f"theory of {steps} steps takes more than a minute or too much memory; ask for fewer steps{advice}"
    if draws is None:
        return too_long
    recorded_steps = recorded_steps_of(steps)
    try:
        grams, train_error = _draw_all(problem, loss, rule, draws, recorded_steps)
    except TooLong:
        return too_long
    except Diverges:
        return f"the equations diverge at learning rate {algorithm.learning_rate:g}; a smaller rate may converge"
    method = f"mean-field dynamics, {draws.method}"
    if len(grams) < draws.repeats:
        diverged_share = 1 - len(grams) / draws.repeats
        method += f"; {diverged_share:.1%} of the draws diverged and were left out"
    path = Path.of(recorded_steps, grams[:, :, None], problem.components)
    ends = zip(path.truth[:, -1, 0], path.cross[:, -1, 0], path.self_overlap[:, -1, 0])
    overlaps = [[Overlaps(*matrices)] for matrices in ends]
    prediction = limit_point(problem, alpha, overlaps, method=method, branch="descent")
    trajectory = trajectory_of(problem, path, 1)
    del trajectory["samples"]
    if batch < n:
        epochs, remainder = np.divmod(recorded_steps, math.ceil(n / batch))
        trajectory["samples"] = (n * epochs + batch * remainder).tolist()
    if draws.system.noise is None:
        test_error = _test_error(problem, loss, grams)
    else:
        mse = np.reshape(trajectory["mse"], (1, len(recorded_steps), -1))
        test_error = np.sum(mse, axis=2) + problem.components * draws.system.noise
        test_error = problem.model.sites * test_error
    for name, losses in (("train_error", train_error), ("test_error", test_error)):
        trajectory[name] = losses.mean(axis=0).tolist()
        trajectory[f"{name}_error"] = standard_error(losses).tolist()
    at_size = bool(conditions.starts) and not draws.in_limit
    return replace(prediction, trajectory=trajectory, at_size=at_size)


def _draw_all(
    problem: Problem,
    loss: str,
    rule: DescentRule,
    draws: Draws,
    recorded_steps: Sequence[int],
) -> tuple[Host, Host]:
    """Gram matrices (draws, steps, R, R) and losses (draws, steps) of all draws, without diverged ones at finite D."""
    drawn = []
    for i in range(draws.repeats):
        start = draws.starts[i % len(draws.starts)]
        rng = monte_carlo_rng("mean-field dynamics", i)
        with suppress(*(() if draws.in_limit else (Diverges,))):
            drawn.append(
                descend(problem, loss, rule, start, recorded_steps, draws.system, rng)
            )
    if 2 * len(drawn) < draws.repeats:
        raise Diverges("more than half of the draws diverge")
    grams, losses = (np.stack(column) for column in zip(*drawn))
    return grams, losses


def _polar(algorithm: MomentumDescent, along: Host) -> Host:
    """Direction of a ``muon`` step, the polar factor, in orthonormal coordinates."""
    return np.asarray(algorithm.direction(along) / max(along.shape) ** 0.5)


def _draws_of_limit(
    problem: Problem, alpha: float, loss: str, steps: int
) -> Draws | None:
    """Draws for the limit: one exact system for linear labels, else several large systems; None if too costly."""
    P, C = problem.components, problem.model.sites
    second = np.asarray(problem.prior.second_moment(P))
    starts = [Overlaps(second, 0 * second, np.eye(P))]
    noise = noise_of_identity(problem) if loss == "squared" else None
    if noise is not None:
        samples = math.ceil(((3 + min(steps, 1000)) * P + 1) / C)
        system = System(samples, samples, samples / alpha, float(noise.mean()))
        return Draws(system, 1, starts, "closed form", True)
    count, smallest = ACCURACY.sets, ACCURACY.smallest
    minimum = min(math.ceil(smallest * max(1.0, alpha)) + 1, 2**20 // C)
    maximum = 2 * ACCURACY.work / (P * steps**2) / (count * C)
    samples = int(min(max(ACCURACY.rows / (count * C), minimum), maximum))
    D = round(samples / alpha)
    if min(samples, D) < smallest:
        return None
    system = System(samples, samples, D)
    return Draws(system, count, starts, f"{count} draws at D = {D}", True)


def _draws_at_size(
    algorithm: MomentumDescent,
    problem: Problem,
    system: System,
    steps: int,
    conditions: Conditions,
) -> Draws | None:
    """Draws at the dimension of the runs, equally many for every initial state; None if they take too long."""
    P, rows = problem.components, system.samples * problem.model.sites
    columns = min(P * steps, rows)
    work = rows * columns * (steps - columns / (2 * P)) + ACCURACY.overhead * steps
    smallest, largest = ACCURACY.draws
    starts_of_runs = max(1, len(conditions.starts))
    count = int(min(ACCURACY.rows / rows, ACCURACY.work / work, largest))
    count = max(smallest, count)
    per_start = max(math.ceil(smallest / starts_of_runs), count // starts_of_runs)
    count = starts_of_runs * per_start
    if count * work > ACCURACY.work:
        return None
    D = int(system.dimension)
    starts = conditions.starts or typical_starts(problem, D, algorithm.spherical, count)
    return Draws(system, count, starts, f"{count} draws at this dimension", False)
