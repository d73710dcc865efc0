"""Checks of what a channel's posterior says: against simulation with ``forward``, Nishimori and other identities,
symmetry, derivatives (``gradient``, ``vjp``), information.
"""

from __future__ import annotations

import math
import time
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.derive import predict
from smimbench.interfaces import SYMMETRIES
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.testing.arrays import expect_array
from smimbench.testing.channels import channel_check, latents
from smimbench.testing.core import CheckFailed, CheckSkipped
from smimbench.testing.publish import NO_PROBLEM, each_model, judged, published

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smimbench.interfaces import Array
    from smimbench.testing.context import CheckContext
    from smimbench.testing.statistics import MeanTest

POINTS = ((0.6, 0.7), (1.0, 0.15))
"""Overlap and error of a component at which posteriors are checked."""


@channel_check(
    "The symmetry that it states is not the one that its labels have: errors are measured after removing that "
    "symmetry, so they would be wrong, and algorithms would start where nothing can be learned."
)
def symmetry(context: CheckContext, model: Any, channel: Any) -> None:
    """Labels do not change under the stated transformations, and do under sign changes if none are stated."""
    own = context.item.symmetry
    if own is not None and own not in SYMMETRIES:
        raise CheckFailed(f"symmetry must be one of {', '.join(SYMMETRIES)}, or left out to be found, got {own!r}")
    stated = channel.symmetry
    P = int(channel.components)
    z = latents(channel, model, 40, 0.5, 0.6, context.rng(81))[3]

    def same(transformation: Array) -> bool:
        one, two = (np.asarray(channel.forward(a, rng=context.rng(82))) for a in (z, transformation @ z))
        return bool(np.allclose(one, two, rtol=1e-7, atol=1e-9))

    def expect(kept: bool, transformation: Array, complaint: str) -> None:
        if same(transformation) is not kept:
            raise CheckFailed(f"symmetry is {stated!r}, but {complaint}")

    flips = [np.diag(np.where(np.arange(P) == p, -1.0, 1.0)) for p in range(P)]
    if stated in ("signs", "signed-permutations"):
        for p, flip in enumerate(flips, 1):
            expect(True, flip, f"labels change with the sign of component {p}")
    if stated.endswith("common-sign"):
        expect(True, -np.eye(P), "labels change with the sign of all components")
    if "permutations" in stated and P > 1:
        expect(True, np.roll(np.eye(P), 1, axis=0), "labels change when components change places")
    if stated == "rotations":
        turn = np.linalg.qr(context.rng(83).standard_normal((P, P)))[0]
        turn[0] *= np.sign(np.linalg.det(turn))  # a reflection is none
        expect(True, turn, "labels change with a rotation of the components")
    if stated in ("none", "permutations"):
        for p, flip in enumerate(flips, 1):
            unseen = f"no label sees the sign of component {p}: it can be learned up to its sign only. Say 'signs'"
            expect(False, flip, unseen)
        if P > 1:
            unseen = "no label sees the sign of all components at once. Say 'common-sign' or 'permutations-common-sign'"
            expect(False, -np.eye(P), unseen)


def _log_partitions(context: CheckContext) -> Iterator[tuple[Any, tuple[float, float]]]:
    if context.item.log_partition is None:
        raise CheckSkipped("it has no log_partition")
    yield from product(context.models, POINTS)


@published(
    ("channel",),
    "g = V^-1 (mean - omega) is not the gradient of log_partition: mean and partition function belong to "
    "different laws.",
    cases=_log_partitions,
)
def gradient(context: CheckContext, model: Any, point: tuple[float, float]) -> None:
    """Central differences of sixth order, also for labels that are improbable under omega."""
    channel, (q, v) = context.item, point
    _, V, omega, _, y = latents(channel, model, 24, q, v, context.rng(91))
    omega = omega + 0.5 * math.sqrt(v) * context.rng(92).standard_normal(omega.shape)
    found = channel.posterior(y, omega, V, rng=context.rng(93))
    g = np.linalg.inv(V) @ (found.mean - omega)
    direction = context.rng(94).standard_normal(omega.shape)
    step = 0.05 * math.sqrt(v) / math.sqrt(direction[0].size)

    def along(k: int) -> Array:
        return np.asarray(channel.log_partition(y, omega + k * (step * direction), V), dtype=float)

    slope = (0.75 * (along(1) - along(-1)) - 0.15 * (along(2) - along(-2)) + (along(3) - along(-3)) / 60) / step
    gap = np.median(np.abs(slope - np.sum(g * direction, axis=(1, 2)))) * step
    size = np.sqrt(np.mean(slope**2)) * step
    if not gap <= 1e-4 * size + 1e-9 + 20 * float(found.error) * 0.05:
        raise CheckFailed(
            f"along a random direction log_partition changes by {np.median(np.abs(slope)):.4g} (median), "
            f"g says otherwise by {gap / step:.2g} ({model.name}, V = {v})"
        )


@published(
    ("channel",),
    "The posterior is not the one that belongs to forward: with z drawn from N(omega, V) and its label, the "
    "error z - E[z|y] must be uncorrelated with everything known, and its covariance must be the one that is "
    "claimed. Algorithms that use this posterior are not Bayes-optimal and miss the theory. 'smimbench run' makes the same test.",
    cases=each_model,
)
def nishimori(context: CheckContext, model: Any) -> None:
    """``E[f(y, omega) (z - mean)] = 0`` and ``E[(z - mean)(z - mean)^T]`` as claimed, at three overlaps; formulas beside them."""
    # Processor time, a quarter of it: other processes do not decide how many samples are drawn, which are four times as many.
    context.consistent(model, kinds=("channel",), clock=lambda: time.process_time() / 4)


@channel_check(
    "The posterior mean or second moment of single samples is wrong: brute force (drawing latents until the "
    "label fits, or weighing them by log_likelihood) finds another one.",
    around=judged,
)
def posterior(context: CheckContext, model: Any, channel: Any, test: MeanTest) -> None:
    """Rejection with forward where labels have few values, importance sampling where there is a likelihood."""
    for point, (q, v) in enumerate(POINTS):
        _, V, omega, _, y = latents(channel, model, 8, q, v, context.rng(101, point))
        found = channel.posterior(y, omega, V, second_moment=True, rng=context.rng(102))
        root = np.linalg.cholesky(V)
        slack = 8 * float(found.error) * math.sqrt(v)
        for i in range(len(y)):
            z = omega[i] + root @ context.rng(103, point, i).standard_normal((20_000, *omega.shape[1:]))
            weights = _importance_weights(context, channel, z, y[i], context.rng(104, point, i))
            if weights.sum() ** 2 < 200 * np.sum(weights**2):
                continue  # too few draws fit this label to say anything
            label = np.array2string(y[i], precision=3, threshold=6).replace("\n", " ")
            where = f"of a sample with label {label} at {model.name}, V = {v}"
            flat = z.reshape(len(z), -1)
            outer = flat[:, :, None] * flat[:, None, :]
            target = found.second_moment[i].reshape(outer.shape[1:])
            _test_importance_weighted_posterior(test, f"E[z | y] {where}", flat, weights, found.mean[i].ravel(), slack)
            size = 1 + np.abs(omega[i]).max()
            _test_importance_weighted_posterior(test, f"E[z z^T | y] {where}", outer, weights, target, 4 * slack * size)


def _importance_weights(context: CheckContext, channel: Any, z: Array, y: Array, rng: np.random.Generator) -> Array:
    if np.asarray(y).dtype.kind in "iub" or _few_values(channel, z[:200]):
        drawn = np.asarray(channel.forward(z, rng=rng)).reshape(len(z), -1)
        return np.all(drawn == np.reshape(y, (1, -1)), axis=1).astype(float)
    if context.item.log_likelihood is not None:
        repeated = np.broadcast_to(y, (len(z), *np.shape(y)))
        logs = np.asarray(context.item.log_likelihood(repeated, z), dtype=float)
        return np.asarray(np.exp(logs - logs.max()))
    raise CheckSkipped(
        "labels are continuous and there is no log_likelihood to weigh latents with; 'nishimori' tests the posterior"
    )


def _few_values(channel: Any, z: Array) -> bool:
    drawn = np.asarray(channel.forward(z, rng=monte_carlo_rng("checks: prediction"))).reshape(len(z), -1)
    return len(np.unique(drawn, axis=0)) < len(z) // 4


def _test_importance_weighted_posterior(
    test: MeanTest, what: str, values: Array, weights: Array, target: Array, slack: float
) -> None:
    """Self-normalised importance sampling, with the usual standard error of a ratio."""
    share = weights / weights.sum()
    flat = values.reshape(len(values), -1)
    mean = share @ flat
    error = np.sqrt(share**2 @ (flat - mean) ** 2)
    # A ratio is biased by about its variance over the mean; the effective number of draws says how much.
    bias = np.sqrt(share @ (flat - mean) ** 2) * np.sum(share**2)
    effective = 1 / np.sum(share**2)
    for value, goal, one, off in zip(mean, np.ravel(target), error, bias):
        test.add(what, float(value), float(goal), float(one), slack + float(off), effective - 1)


@channel_check("The derivative of the label that gradient methods use is wrong.")
def vjp(context: CheckContext, model: Any, channel: Any) -> None:
    """``vjp(z, cotangent)`` against differences of the noiseless observable label along random directions."""
    if channel.vjp is None:
        raise CheckSkipped("it has no vjp, and its labels have no derivative to take")
    _, _, _, z, _ = latents(channel, model, 40, 0.5, 0.6, context.rng(111))
    direction = context.rng(112).standard_normal(z.shape)
    cotangent = context.rng(113).standard_normal(np.shape(predict(channel, z)))
    pulled = channel.vjp(z, cotangent)
    expect_array("vjp", pulled, z.shape, "float64", z)
    step = 1e-4

    def label(k: int) -> Array:
        return np.asarray(predict(channel, z + k * (step * direction)), dtype=float)

    slope = (2 / 3 * (label(1) - label(-1)) - (label(2) - label(-2)) / 12) / step
    axes = tuple(range(1, slope.ndim))
    wanted = np.sum(slope * cotangent, axis=axes)
    got = np.sum(pulled * direction, axis=(1, 2))
    gap, size = np.median(np.abs(got - wanted)), np.sqrt(np.mean(wanted**2))
    if not gap <= 1e-5 * size + 1e-12:
        raise CheckFailed(f"along a random direction it differs from finite differences by {gap / size:.2g}")


@channel_check(NO_PROBLEM)
def problem(context: CheckContext, model: Any, channel: Any) -> None:
    """A small instance of every model, with labels that are numbers."""
    made = context.problem(model)
    found = made.instance(0.5, 12, seed=context.seed)
    if len(found.labels) != len(found.inputs):
        raise CheckFailed(f"{len(found.inputs)} inputs but {len(found.labels)} labels ({model.name})")
    metrics = found.metrics(made.prior.mean(made.components, 12))
    if not np.isfinite(metrics["mse"]).all():
        raise CheckFailed(f"the error of the prior mean is {metrics['mse']} ({model.name})")
