r"""Mean-field dynamics of descent on reused samples: the law of all overlaps at every D, and its limit.

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
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from smimbench.derive import observable, predict
from smimbench.interfaces import AlgorithmPrediction, Conditions, Host, Overlaps
from smimbench.numerics import monte_carlo_rng, normal_points
from smimbench.problem import Problem
from smimbench.theory import limit_point
from smimbench_attention.algorithms.gradient import SEEN_AGAIN, online_fields
from smimbench_attention.algorithms.gradient.loss import fitting_loss, loss_of
from smimbench_attention.algorithms.gradient.online import (
    LARGEST,
    DescentRule,
    Diverges,
    Path,
    TooLong,
    gram_of,
    triangle,
    vectors_after,
)
from smimbench_attention.algorithms.gradient.online_theory import (
    no_equations,
    trajectory_of,
    typical_starts,
)
from smimbench_attention.algorithms.least_squares import noise_of_identity


class MeanFieldAccuracy(NamedTuple):
    """Numerical settings of mean-field dynamics; a row is a site of a sample.

    Attributes
    ----------
    rows : int
        Most rows of all draws together: 3 s for 100 steps. Doubled, the stated error is 1.4 times smaller.
    sets, smallest : int
        Draws for the limit, whose spread gives the stated error; the smallest n and D allowed: a finite D changes values by a
        relative amount of order 1 / D.
    draws : tuple of int
        Least and most draws at the dimension of runs.
    work, overhead : float
        Most products of rows, directions and steps of all draws together, 40 s; what a step costs on top.
    memory : float
        Most numbers in the vectors of a draw.
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
    """Numbers of samples and of samples per batch, and D; noise of linear labels if second moments are those of the limit."""

    samples: int
    batch: int
    dimension: float
    noise: float | None = None


class _Columns:
    """A growing set of vectors, stored as columns (rows, count)."""

    def __init__(self, vectors: Host) -> None:
        self._room, self.count = vectors, vectors.shape[1]

    @property
    def filled(self) -> Host:
        """All vectors so far, a view."""
        return self._room[:, : self.count]

    def of(self, n: int, samples: Any) -> Host:
        """Entries (rows, count) of the vectors that belong to some of the n samples."""
        rows = self.filled.reshape(n, len(self._room) // n, self.count)[samples]
        return np.asarray(rows.reshape(len(rows) * rows.shape[1], self.count))

    def add(self, vector: Host) -> None:
        """Append a vector (rows,)."""
        if self.count == self._room.shape[1]:
            if 2 * self._room.size > ACCURACY.memory:
                raise TooLong("memory")
            self._room = np.concatenate(
                [self._room, np.empty((len(vector), self.count // 2 + 32))], axis=1
            )
        self._room[:, self.count] = vector
        self.count += 1


def descend(
    problem: Problem,
    loss: str,
    rule: DescentRule,
    start: Overlaps,
    recorded_steps: Host,
    system: System,
    rng: np.random.Generator,
) -> tuple[Host, Host]:
    """Gram matrices (steps, R, R) of teacher, student and velocity, and the mean loss (steps,) of the samples, at given steps.

    Parameters
    ----------
    start : Overlaps
        Of the teacher with the student's first factor.
    wanted : ndarray
        Steps, ascending, the first one 0.

    Raises
    ------
    Diverges, TooLong
    """
    channel: Any = problem.channel
    n, batch, D, noise = system
    P, C = problem.components, problem.model.sites
    rows, work, exact = n * C, 0.0, noise is not None
    normals = rng.standard_normal((rows, 3 * P))
    if exact:
        basis = _Columns(np.linalg.qr(normals)[0])
        normals = basis.filled * math.sqrt(rows)
    h, p = _Columns(normals[:, : 2 * P]), _Columns(np.empty((rows, 0)))
    vectors = triangle(gram_of([start], rule.momentum))[0][:, : 2 * P]

    def latents(fields: Host, of: Host) -> Host:
        return (fields @ of.T).reshape(-1, C, P).swapaxes(1, 2)

    truth = latents(h.filled, vectors[:P])
    if noise is None:
        labels = np.asarray(observable(channel, channel.forward(truth, rng=rng)))
    else:
        labels = truth + math.sqrt(noise) * latents(normals[:, 2 * P :], np.eye(P))

    def loss_at(z: Host, labels: Host) -> tuple[Host, Host]:
        return loss_of(np, loss, predict(channel, z), labels)

    def perpendicular(vector: Host, samples: Any = EVERYTHING) -> Host:
        """Remove the components along all p from a vector that vanishes outside the given samples."""
        remainder: Host = -(p.filled @ (p.of(n, samples).T @ vector))
        remainder.reshape(n, C)[samples] += vector.reshape(-1, C)
        return remainder

    def fresh() -> Host:
        """Draw a column ``a_k``, orthogonal to all p, or with ``exact`` to all previous vectors."""
        a = rng.standard_normal(rows)
        if not exact:
            return perpendicular(a)
        for _ in range(2):  # the basis spans all p
            a -= basis.filled @ (basis.filled.T @ a)
        basis.add(a / np.linalg.norm(a))
        return math.sqrt(rows) * basis.filled[:, -1]

    grams: list[Host] = []
    losses: list[float] = []
    order = np.empty(0, dtype=np.int64)
    for step in range(int(recorded_steps[-1]) + 1):
        gram = vectors @ vectors.T
        if not np.abs(gram[: 2 * P, : 2 * P]).max() <= LARGEST:  # NaN, too
            raise Diverges("the overlaps grow without bound")
        if step == recorded_steps[len(grams)]:
            grams.append(gram)
            losses.append(
                loss_at(latents(h.filled, vectors[P : 2 * P]), labels)[0].sum() / n
            )
        if len(grams) == len(recorded_steps):
            break
        samples: Any = EVERYTHING
        if batch < n:
            order = order if len(order) else rng.permutation(n)
            samples, order = order[:batch], order[batch:]
        batch_fields = h.of(n, samples)
        z = latents(batch_fields, vectors[P : 2 * P])
        size = len(z)
        g = (
            np.asarray(channel.vjp(z, loss_at(z, labels[samples])[1]))
            .swapaxes(1, 2)
            .reshape(-1, P)
        )
        gradient = g.T @ batch_fields / size
        for k in range(P):
            norm = np.linalg.norm(g[:, k])
            remainder = perpendicular(g[:, k], samples)
            if (
                np.linalg.norm(remainder) < norm / 2
            ):  # rounding errors along the p would grow
                remainder = perpendicular(remainder)
            length = np.linalg.norm(remainder)
            if length <= ACCURACY.tolerance * norm or p.count == rows:
                continue
            p.add(remainder / length)
            if exact and basis.count >= rows:
                raise TooLong("more directions than rows")
            if not exact and h.count >= D:  # all features are used
                continue
            h.add(
                math.sqrt(D if exact else rng.chisquare(D - h.count)) * p.filled[:, -1]
                + fresh()
            )
            onto = g.T @ h.filled[:, -1].reshape(n, C)[samples].reshape(-1, 1) / size
            gradient = np.concatenate([gradient, onto], axis=1)
            vectors = np.concatenate([vectors, np.zeros((len(vectors), 1))], axis=1)
        vectors = vectors_after(rule, vectors, gradient, step)
        if rule.spherical:
            vectors[P : 2 * P] /= np.linalg.norm(
                vectors[P : 2 * P], axis=1, keepdims=True
            )
        work += rows * p.count
        if work > ACCURACY.work:
            raise TooLong(f"{recorded_steps[-1]} steps")
    return np.stack(grams), np.array(losses)


def _test_error(
    problem: Problem, loss: str, gram: Host, count: int, index: int
) -> Host:
    """Mean loss (steps,) of fresh samples for Gram matrices (steps, R, R) of teacher and student."""
    channel: Any = problem.channel
    P, C = problem.components, problem.model.sites
    points = normal_points(
        2 * P * C, count, "mean-field dynamics: fresh samples", index
    ).reshape(count, 2 * P, C)
    latents = [root @ points for root in triangle(gram[:, : 2 * P, : 2 * P])]
    rng = monte_carlo_rng("mean-field dynamics: fresh labels", index)
    labels = np.asarray(
        observable(channel, channel.forward(latents[0][:, :P], rng=rng))
    )  # the teacher never changes
    return np.array(
        [
            loss_of(np, loss, predict(channel, z[:, P:]), labels)[0].sum() / count
            for z in latents
        ]
    )


def mean_field_theory(
    algorithm: Any, problem: Problem, alpha: float, conditions: Conditions
) -> AlgorithmPrediction | str:
    """Prediction for descent on reused samples, with its trajectory, or the reason why there is none.

    With all samples in every step, and labels that leave no sign open, it is the limit. Else the law at the dimension of the
    runs, from their starts: it decides how large the overlap of a random start is, and how random a batch.
    """
    if problem.model.rank != "low":
        return SEEN_AGAIN
    if (why := no_equations(problem)) is not None:
        return why
    if problem.variances is not None:
        return "features of different variances have other equations"
    prior: Any = problem.prior
    P, C, D = problem.components, problem.model.sites, conditions.dimension or 0
    if alpha <= 0:
        return "without samples there is no descent"
    open_sign = problem.channel.symmetry != "none"
    if not D and (open_sign or algorithm.batch is not None):
        return "its random starts or batches are counted in samples: it needs the dimension of the runs"
    n = problem.model.sample_count(alpha, D) if D else 0
    batch = n if algorithm.batch is None else min(algorithm.batch, n)
    steps = algorithm.steps or algorithm.epochs * (
        1 if batch == n else math.ceil(n / batch)
    )
    loss = algorithm.loss or fitting_loss(problem)
    limit = batch == n and not open_sign
    noise = noise_of_identity(problem) if limit and loss == "squared" else None
    rule = DescentRule(
        rate=lambda step: algorithm._rate(step, steps),
        fraction=1.0,
        decay=algorithm.weight_decay,
        momentum=algorithm.momentum,
        nesterov=algorithm.nesterov,
        spherical=algorithm.spherical,
    )
    if algorithm.moves == "polar":
        rule = replace(
            rule,
            direction=lambda along, metric: (
                algorithm.direction(along) / max(along.shape) ** 0.5
            ),
        )
    accuracy, second = ACCURACY, np.asarray(prior.second_moment(P))
    advice = ", or larger batches" if algorithm.epochs and batch < n else ""
    too_long = f"its {steps} steps need more than a minute, or too much memory; ask for fewer steps{advice}"
    starts: Any = [Overlaps(second, 0 * second, np.eye(P))]
    if noise is not None:
        sets, samples = 1, math.ceil(((3 + min(steps, 1000)) * P + 1) / C)
        system = System(samples, samples, samples / alpha, float(noise.mean()))
        method = "closed form"
    elif limit:
        sets = accuracy.sets
        minimum = min(math.ceil(accuracy.smallest * max(1.0, alpha)) + 1, 2**20 // C)
        maximum = 2 * accuracy.work / (P * steps**2) / (sets * C)
        samples = int(min(max(accuracy.rows / (sets * C), minimum), maximum))
        system = System(samples, samples, round(samples / alpha))
        method = f"{sets} draws at D = {system.dimension}"
        if min(samples, system.dimension) < accuracy.smallest:
            return too_long
    else:
        columns = min(P * steps, n * C)
        price = (
            n * C * columns * (steps - columns / (2 * P)) + accuracy.overhead * steps
        )
        fewest, maximum = accuracy.draws
        start_count = max(1, len(conditions.starts))
        sets = max(
            fewest, int(min(accuracy.rows / (n * C), accuracy.work / price, maximum))
        )
        sets = start_count * max(
            math.ceil(fewest / start_count), sets // start_count
        )  # the same number for every start
        system = System(n, batch, D)
        method = f"{sets} draws at this dimension"
        if sets * price > accuracy.work:
            return too_long
        starts = conditions.starts or typical_starts(
            problem, D, algorithm.spherical, sets
        )
    recorded_steps = np.unique(
        [0, *np.geomspace(1, steps, online_fields.ACCURACY.moments).round().astype(int)]
    )
    try:
        drawn: list[tuple[Host, Host]] = []
        for i in range(sets):
            rng = monte_carlo_rng("mean-field dynamics", i)
            with suppress(*(() if limit else (Diverges,))):
                drawn.append(
                    descend(
                        problem,
                        loss,
                        rule,
                        starts[i % len(starts)],
                        recorded_steps,
                        system,
                        rng,
                    )
                )
        if 2 * len(drawn) < sets:
            raise Diverges("more than half of the draws diverge")
        if len(drawn) < sets:
            method += f"; {1 - len(drawn) / sets:.1%} of them diverge and are left out"
            sets = len(drawn)
    except TooLong:
        return too_long
    except Diverges:
        return f"at learning rate {algorithm.learning_rate:g} its equations diverge: the steps are too long"
    grams, train = (np.stack(column) for column in zip(*drawn))
    path = Path.of(recorded_steps.tolist(), grams[:, :, None], P)
    at_end = [
        [Overlaps(*(overlaps[i, -1, 0] for overlaps in path[1:]))] for i in range(sets)
    ]
    point = limit_point(
        problem,
        alpha,
        at_end,
        method=f"mean-field dynamics, {method}",
        branch="descent",
    )
    trajectory = trajectory_of(problem, path, 1)
    del trajectory["samples"]
    if batch < n:
        epochs, remainder = np.divmod(recorded_steps, math.ceil(n / batch))
        trajectory["samples"] = (n * epochs + batch * remainder).tolist()
    if noise is None:
        test = np.stack(
            [
                _test_error(problem, loss, gram, accuracy.fresh // sets, i)
                for i, gram in enumerate(grams)
            ]
        )
    else:
        test = C * (
            np.sum(np.reshape(trajectory["mse"], (1, len(recorded_steps), P)), axis=2)
            + P * float(noise.mean())
        )
    for name, values in (("train_error", train), ("test_error", test)):
        spread = (
            values.std(axis=0, ddof=1) / math.sqrt(sets) if sets > 1 else 0 * values[0]
        )
        trajectory |= {
            name: values.mean(axis=0).tolist(),
            f"{name}_error": spread.tolist(),
        }
    return replace(
        point, trajectory=trajectory, at_size=bool(conditions.starts) and not limit
    )
