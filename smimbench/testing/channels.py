"""Checks of channels: likelihood, shapes, samples, determinism, bad input; what the posterior says, against simulation with
``forward``, Nishimori identities, symmetry and derivatives (``gradient``, ``vjp``).
"""

from __future__ import annotations

import math
import time
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.derive import predict
from smimbench.derive.labels import is_noisy, observable
from smimbench.files import attempt
from smimbench.interfaces import SYMMETRIES
from smimbench.interfaces.checks import checked_posterior
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.testing.arrays import Call, expect_array, expect_refused, private_randomness
from smimbench.testing.core import CheckFailed, CheckSkipped
from smimbench.testing.publish import NO_PROBLEM, each_model, judged, published
from smimbench.theory.consistency import require_likelihood

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smimbench.interfaces import Array
    from smimbench.testing.context import CheckContext
    from smimbench.testing.publish import MeanTest

POINTS = ((0.6, 0.7), (1.0, 0.15))
"""Overlap and error of a component at which posteriors are checked."""


def _cases(context: CheckContext) -> Iterator[tuple[Any, Any]]:
    """Every model, with the channel as the engine completes it."""
    for model in context.models:
        yield model, context.completed(model)


channel_check = partial(published, ("channel",), cases=_cases)


def latents(
    channel: Any, model: Any, n: int, q: float, v: float, rng: np.random.Generator
) -> tuple[Array, Array, Array, Array, Array]:
    """``Q, V, omega, z, y`` of n samples on the Nishimori line: ``omega ~ N(0, Q)``, ``z ~ N(omega, V)``."""
    P, C = int(channel.components), model.sites
    # Some correlation between components.
    Q, V = q * np.eye(P), v * (np.full((P, P), 0.3) + 0.7 * np.eye(P))
    omega = np.linalg.cholesky(Q) @ rng.standard_normal((n, P, C))
    z = omega + np.linalg.cholesky(V) @ rng.standard_normal((n, P, C))
    return Q, V, omega, z, np.asarray(channel.forward(z, rng=rng))


def calls(context: CheckContext) -> Iterator[Call]:
    """The methods that take arrays."""
    for model, channel in _cases(context):
        _, V, omega, z, y = latents(channel, model, 30, 0.5, 0.6, context.rng(41))
        yield Call(
            "forward: labels", lambda z, c=channel: c.forward(z, rng=context.rng(42)), (z,), double=1e-7, typical=True
        )
        error = float(channel.posterior(y, omega, V, rng=context.rng(42)).error)
        scale = math.sqrt(np.trace(V) / len(V))
        for part in ("mean", "covariance", "second_moment"):

            def posterior(y: Array, omega: Array, V: Array, c: Any = channel, part: str = part) -> Array:
                asked = part == "second_moment"
                found: Array = getattr(c.posterior(y, omega, V, second_moment=asked, rng=context.rng(42)), part)
                return found

            name, any_namespace = f"posterior: {part}", part != "second_moment"
            yield Call(name, posterior, (y, omega, V), scale, 20 * error, 2e-3, 1e-6, True, any_namespace)
        if channel.log_partition is not None:
            yield Call("log_partition", channel.log_partition, (y, omega, V), any_namespace=False)
        if channel.vjp is not None:
            yield Call("vjp", channel.vjp, (z, np.ones(observable(channel, y).shape)), any_namespace=False)


@published(
    ("channel",),
    "log_likelihood is not that of the labels that forward draws: a wrong sign, a wrong variance of the noise, a missing factor. "
    "Integrals of it need not end. 'smimbench run' makes the same test.",
    cases=each_model,
    required=True,
)
def likelihood(context: CheckContext, model: Any) -> None:
    """``E p(y | z') / p(y | z) = 1`` over labels y of z, whatever its normalization in y."""
    context.consistent(model, require_likelihood)


@published(
    ("channel",),
    "forward or posterior returns arrays of another shape or type than the contract says, or cannot take a "
    "single sample.",
    cases=_cases,
    required=True,
)
def shapes(context: CheckContext, model: Any, channel: Any) -> None:
    """Labels (n, ...), mean (n, P, C), covariance (P, P), second moment (n, P, C, P, C)."""
    P, C = int(channel.components), model.sites
    for n in (5, 1):
        _, V, omega, _, y = latents(channel, model, n, 0.5, 0.6, context.rng(n))
        if y.ndim < 1 or len(y) != n:
            raise CheckFailed(f"forward: labels of {n} samples must have shape ({n}, ...), got {y.shape}")
        if y.dtype.kind not in "fiub":
            raise CheckFailed(f"forward: labels must be real or whole numbers, got {y.dtype}")
        if y.dtype.kind == "f" and np.isnan(y).any():
            raise CheckFailed("forward: labels are not numbers")
        found = channel.posterior(y, omega, V, rng=context.rng(2))
        try:
            checked_posterior(found, omega)
        except ValueError as error:
            raise CheckFailed(str(error)) from None
        expect_array(f"posterior: mean ({model.name})", found.mean, (n, P, C), "float64", omega)
        expect_array(f"posterior: covariance ({model.name})", found.covariance, (P, P), "float64", omega)
        full = channel.posterior(y, omega, V, second_moment=True, rng=context.rng(2))
        if full.second_moment is None:
            raise CheckFailed("posterior(..., second_moment=True) gives no second moment")
        moment = f"posterior: second_moment ({model.name})"
        expect_array(moment, full.second_moment, (n, P, C, P, C), "float64", omega)
        if not (isinstance(found.error, float) and 0 <= found.error < math.inf):
            raise CheckFailed(f"posterior: error must be a float >= 0, got {found.error!r}")
        spectrum = np.linalg.eigvalsh(found.covariance)
        if spectrum.min() < -1e-9 or not np.allclose(found.covariance, found.covariance.T):
            raise CheckFailed("posterior: covariance must be symmetric and positive semidefinite")


@published(
    ("channel",),
    "A sample's label or posterior depends on its neighbours: then it also depends on how the data are cut into chunks.",
    cases=each_model,
)
def samples(context: CheckContext, model: Any) -> None:
    """A part of the samples gives the same as all of them."""
    _, V, omega, z, y = latents(context.item, model, 24, 0.5, 0.6, context.rng(21))
    if not is_noisy(context.item, z):
        part = np.asarray(context.item.forward(z[7:15]))
        if not np.allclose(part, np.asarray(context.item.forward(z))[7:15], rtol=1e-9, atol=1e-12):
            raise CheckFailed(
                "forward: the label of a sample depends on the other samples, or on a generator of its own"
            )
    channel = context.completed(model)
    whole = channel.posterior(y, omega, V, rng=context.rng(22))
    part = channel.posterior(y[7:15], omega[7:15], V, rng=context.rng(22))
    gap = np.linalg.norm(whole.mean[7:15] - part.mean) / math.sqrt(part.mean.size * np.trace(V) / len(V))
    slack = 1e-8 + 10 * (float(whole.error) + float(part.error))
    if gap > slack:
        raise CheckFailed(
            f"posterior: the mean of 8 samples among 24 differs from that of the 8 alone by {gap:.2g} of its width"
        )


@channel_check(
    "The same seed does not give the same numbers, or noise is drawn from somewhere else than the rng handed "
    "over: runs cannot be repeated, and algorithms are not compared on the same data."
)
def determinism(context: CheckContext, model: Any, channel: Any) -> None:
    """Equal seeds, equal labels and posteriors; different seeds, different noise; no global generator."""
    _, V, omega, z, _ = latents(channel, model, 30, 0.5, 0.6, context.rng(31))
    with private_randomness("forward or posterior"):
        one, two = (np.asarray(channel.forward(z, rng=context.rng(32))) for _ in range(2))
        if not np.array_equal(one, two, equal_nan=one.dtype.kind == "f"):
            raise CheckFailed("forward: the same seed gives different labels; draw all noise from rng")
        means = [channel.posterior(one, omega, V, rng=context.rng(34)).mean for _ in range(2)]
        if not np.array_equal(*means):
            raise CheckFailed("posterior: the same seed gives different means; draw from rng only")


@channel_check(
    "Latents of the wrong shape end in labels that mean nothing, or a noisy channel makes up a generator of its own."
)
def bad_input(context: CheckContext, model: Any, channel: Any) -> None:
    """Wrong shapes raise; a noisy channel without rng raises."""
    _, V, omega, z, y = latents(channel, model, 6, 0.5, 0.6, context.rng(71))
    if is_noisy(channel, z):
        (one, error), (two, _) = (attempt(channel.forward, z) for _ in range(2))
        if error is None:
            same = "and always the same" if np.array_equal(one, two) else "which nobody can repeat"
            raise CheckFailed(f"forward without rng draws noise all the same, {same}; raise ValueError")
    if len(y) > 3:
        what = "posterior takes 3 labels with omega of 6 samples and returns a mean of shape"
        expect_refused(what, lambda: channel.posterior(y[:3], omega, V, rng=context.rng(72)).mean)


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
    """``E[f(y, omega) (z - mean)] = 0`` and ``E[(z - mean)(z - mean)^T]`` as claimed, at three overlaps, and formulas."""
    context.consistent(model, kinds=("channel",), clock=time.process_time)  # other processes do not make it coarser


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
