"""Checks of how a channel behaves: shapes, samples, dtypes and namespaces, determinism, inputs left as they were, bad input."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.derive.labels import is_noisy, observable
from smimbench.interfaces.checks import checked_posterior
from smimbench.testing.arrays import Call, expect_array, expect_refused, private_randomness
from smimbench.testing.core import CheckFailed
from smimbench.testing.publish import each_model, published
from smimbench.theory.consistency import require_likelihood

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smimbench.interfaces import Array
    from smimbench.testing.context import CheckContext


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
        yield Call("forward: labels", lambda z, c=channel: c.forward(z, rng=context.rng(42)), (z,), double=1e-7)
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
        try:
            one, two = (np.asarray(channel.forward(z)) for _ in range(2))
        except Exception:  # refused, as it should be
            pass
        else:
            same = "and always the same" if np.array_equal(one, two) else "which nobody can repeat"
            raise CheckFailed(f"forward without rng draws noise all the same, {same}; raise ValueError")
    if len(y) > 3:
        what = "posterior takes 3 labels with omega of 6 samples and returns a mean of shape"
        expect_refused(what, lambda: channel.posterior(y[:3], omega, V, rng=context.rng(72)).mean)
