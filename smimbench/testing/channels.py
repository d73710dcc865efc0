"""Checks of channels: likelihood, shapes, symmetry, posteriors against simulation with ``forward``, derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from smimbench.derive import predict
from smimbench.derive.labels import is_noisy, observable, symmetry_of_labels
from smimbench.interfaces import SYMMETRIES, Array, Channel, Model
from smimbench.interfaces.checks import (
    checked_posterior,
    describe_nonfinite,
    dtype_name,
    is_real,
)
from smimbench.testing.context import CheckContext
from smimbench.testing.core import (
    Call,
    CheckFailed,
    CheckSkipped,
    Draw,
    RefusedCall,
    each_model,
    expect_array,
    published,
)
from smimbench.theory.consistency import require_likelihood

OVERLAP, ERROR = 0.8, 0.4
"""Overlap and posterior variance of a component in the tests; any such numbers do."""


def _cases(context: CheckContext) -> Iterator[tuple[Model, Channel]]:
    """Yield test cases: each supported model with the channel, completed by the members that the engine derives. ``context``
    holds the channel under test.
    """
    for model in context.models:
        yield model, context.completed_item(model)


channel_check = partial(published, ("channel",), cases=_cases)


def draw_samples(
    context: CheckContext, model: Model, n: int, *key: int
) -> tuple[Array, Array, Array, Array]:
    """Draw n samples: covariance V (P, P), prior means omega (n, P, C), latents ``z ~ N(omega, V)`` and their labels y. The
    integers ``key`` seed them. ``context`` holds the channel under test.
    """
    P = int(context.item.components)
    rng = context.rng(*key)
    V = ERROR * (0.3 + 0.7 * np.eye(P))  # components are correlated
    omega = math.sqrt(OVERLAP) * rng.standard_normal((n, P, model.sites))
    z = omega + np.linalg.cholesky(V) @ rng.standard_normal(omega.shape)
    return V, omega, z, np.asarray(context.item.forward(z, rng=rng))


def _posterior(
    context: CheckContext,
    channel: Channel,
    field_name: str,
    y: Array,
    omega: Array,
    V: Array,
) -> Array:
    """Return one field (``field_name``: mean, covariance, ...) of the channel's posterior given labels y, for latents of
    prior mean omega and covariance V, always computed with the same random numbers, of the check's ``context``.
    """
    posterior = channel.posterior(
        y, omega, V, second_moment=field_name == "second_moment", rng=context.rng(42)
    )
    return getattr(posterior, field_name)


def calls(context: CheckContext) -> Iterator[Call]:
    """Yield calls of all methods of a channel that take arrays: latents z, their means omega and covariance V, labels y.
    ``own_error`` is the error that a sampled posterior states. ``context`` holds the channel under test.
    """
    for model, channel in _cases(context):
        V, omega, z, y = draw_samples(context, model, 30, 41)
        forward = partial(_seeded_labels, context, channel)
        yield Call(
            "forward: labels", forward, (z,), double_tolerance=1e-7, uses_median=True
        )
        own_error = 20 * float(_posterior(context, channel, "error", y, omega, V))
        posterior_width = math.sqrt(np.trace(V) / len(V))
        for field_name in ("mean", "covariance", "second_moment"):
            yield Call(
                f"posterior: {field_name}",
                partial(_posterior, context, channel, field_name),
                (y, omega, V),
                scale=posterior_width,
                own_error=own_error,
                single_tolerance=2e-3,
                double_tolerance=1e-6,
                uses_median=True,
                any_namespace=field_name != "second_moment",
            )
        host_methods: list[
            tuple[str, Callable[..., object] | None, tuple[Array, ...]]
        ] = [
            ("log_partition", channel.log_partition, (y, omega, V)),
            ("vjp", channel.vjp, (z, np.ones(observable(channel, y).shape))),
        ]
        for name, method, arrays in host_methods:
            if method is not None:
                yield Call(name, method, arrays, any_namespace=False)


def _seeded_labels(context: CheckContext, channel: Channel, z: Array) -> Array:
    """Draw the labels of latents z from the channel, always with the same random numbers, of the check's ``context``."""
    return _labels(channel, z, context.rng(42))


def draws(context: CheckContext) -> Iterator[Draw]:
    """Yield the methods of a channel that draw random numbers, as ``Draw`` functions of a generator: labels of latents z,
    and the posterior (mean omega, covariance V, labels y) if it is sampled. ``context`` holds the channel under test.
    """
    for model, channel in _cases(context):
        V, omega, z, y = draw_samples(context, model, 30, 31)
        yield Draw("forward: labels", partial(_labels, channel, z))
        yield Draw("posterior: mean", partial(_mean, channel, y, omega, V))


def _labels(channel: Channel, z: Array, rng: np.random.Generator) -> Array:
    """Draw the channel's labels of latents ``z`` with the generator ``rng``."""
    return channel.forward(z, rng=rng)


def _mean(
    channel: Channel, y: Array, omega: Array, V: Array, rng: np.random.Generator
) -> Array:
    """Return the mean of the channel's posterior of latents of prior mean omega and covariance V given labels y, with the
    generator ``rng``.
    """
    return channel.posterior(y, omega, V, rng=rng).mean


def refused(context: CheckContext) -> Iterator[RefusedCall]:
    """Yield calls that must raise an error: labels of latents z whose noise has no generator, and a posterior (labels y,
    means omega, covariance V) with fewer labels than samples. ``context`` holds the channel under test.
    """
    for model, channel in _cases(context):
        V, omega, z, y = draw_samples(context, model, 6, 71)
        if is_noisy(channel, z):
            yield "forward draws noise without rng", partial(channel.forward, z)
        yield (
            "posterior takes 3 labels with omega of 6 samples",
            partial(_posterior, context, channel, "mean", y[:3], omega, V),
        )


@published(
    ("channel",),
    "forward does not return one label for each sample, made of numbers.",
    cases=each_model,
    required=True,
)
def labels(context: CheckContext, model: Model) -> None:
    """Check that the labels y of n samples have shape (n, ...) and are finite real numbers, also for n = 1. ``context``
    holds the channel under test.
    """
    for n in (5, 1):
        y = draw_samples(context, model, n, n)[3]
        if y.shape[:1] != (n,) or not is_real(y) or describe_nonfinite(y):
            description = describe_nonfinite(y) if is_real(y) else dtype_name(y)
            raise CheckFailed(
                f"forward of {n} samples must return finite numbers of shape ({n}, ...), got {description or y.shape}"
            )


@published(
    ("channel",),
    "log_likelihood does not return one real number for each sample, so it cannot be integrated.",
    cases=each_model,
    required=True,
)
def log_likelihood(context: CheckContext, model: Model) -> None:
    """Check that ``log_likelihood`` of labels y given latents z returns real numbers of shape (n,) for n samples.
    ``context`` holds the channel under test.
    """
    channel = context.item
    if channel.log_likelihood is None:
        return
    _, _, z, y = draw_samples(context, model, 6, 51)
    log_likelihoods = np.asanyarray(channel.log_likelihood(y, z))
    if log_likelihoods.shape != (6,) or not is_real(log_likelihoods):
        description = f"{dtype_name(log_likelihoods)} {log_likelihoods.shape}"
        raise CheckFailed(
            f"log_likelihood of 6 samples must return real numbers of shape (6,), got {description}"
        )


@published(
    ("channel",),
    "log_likelihood does not match the labels that forward draws: a wrong sign, a wrong noise variance, or a missing factor. "
    "Numerical integration may not converge. 'smimbench run' makes the same test.",
    cases=each_model,
    required=True,
)
def likelihood(context: CheckContext, model: Model) -> None:
    """Check that ``E p(y | z') / p(y | z) = 1`` over labels y drawn given latents z, for shifted latents z', whatever the
    normalization in y. ``context`` holds the channel under test.
    """
    context.require_consistency(model, require_likelihood)


@channel_check(
    "posterior returns arrays of the wrong shape or type, or fails for a single sample.",
    required=True,
)
def shapes(context: CheckContext, model: Model, channel: Channel) -> None:
    """Check the shapes of the posterior of the channel in ``context`` for n samples of labels y and prior covariance V: mean
    (n, P, C), covariance (P, P), second moment (n, P, C, P, C). P are components, C sites.
    """
    for n in (5, 1):
        V, omega, _, y = draw_samples(context, model, n, n)
        posterior = channel.posterior(
            y, omega, V, second_moment=True, rng=context.rng(2)
        )
        try:
            checked_posterior(posterior, omega, second_moment=True)
        except ValueError as error:
            raise CheckFailed(str(error)) from None
        for field_name in ("mean", "covariance", "second_moment"):
            field_array = getattr(posterior, field_name)
            name = f"posterior: {field_name} ({model.name})"
            expect_array(name, field_array, field_array.shape, "float64", omega)
        error_estimate, covariance = posterior.error, posterior.covariance
        if not isinstance(error_estimate, float) or not 0 <= error_estimate < math.inf:
            raise CheckFailed(
                f"posterior: the field error must be a float >= 0, got {error_estimate!r}"
            )
        is_symmetric = np.allclose(covariance, covariance.T)
        if not is_symmetric or np.linalg.eigvalsh(covariance).min() < -1e-9:
            raise CheckFailed(
                "posterior: the covariance must be symmetric and positive semidefinite"
            )


@channel_check(
    "The channel declares another symmetry than its labels have: errors are measured after removing the declared "
    "symmetry, so they would be wrong, and algorithms would start where nothing can be learned."
)
def symmetry(context: CheckContext, model: Model, channel: Channel) -> None:
    """Check that the symmetry declared by the channel in ``context`` is the one found by flipping and permuting components
    of the latents.
    """
    declared_symmetry = channel.symmetry
    if declared_symmetry not in SYMMETRIES:
        raise CheckFailed(
            f"symmetry must be one of {', '.join(SYMMETRIES)}, or left out so that the engine finds it, got {declared_symmetry!r}"
        )
    detected_symmetry = symmetry_of_labels(channel, model.sites)
    # A single component has no permutations: only whether its sign can be seen matters.
    symmetries_with_signs = ("none", "permutations")
    if (declared_symmetry in symmetries_with_signs) != (
        detected_symmetry in symmetries_with_signs
    ) or (declared_symmetry != detected_symmetry and channel.components > 1):
        raise CheckFailed(
            f"the channel declares symmetry {declared_symmetry!r}, but its labels have symmetry {detected_symmetry!r}"
        )


DIFFERENCE_WEIGHTS = {1: 0.75, 2: -0.15, 3: 1 / 60, -1: -0.75, -2: 0.15, -3: -1 / 60}
"""Weights of central differences of sixth order, by the number of steps."""


def _expect_slope(
    name: str,
    function: Callable[[Array], Array],
    z: Array,
    step: Array,
    derivatives: Array,
    error: float,
    tolerance: float,
) -> None:
    """Check directional ``derivatives`` (n,) of a function (``name`` in messages) at latents ``z`` along a small ``step``
    (n, P, C) against finite differences of fourth order, up to ``tolerance``; ``error`` is that of the function.
    """
    differences = np.zeros(len(z))
    for step_multiple, difference_weight in DIFFERENCE_WEIGHTS.items():
        function_values = np.asarray(function(z + step_multiple * step), dtype=float)
        differences += difference_weight * function_values.reshape(len(z), -1).sum(
            axis=1
        )
    median_deviation = np.median(np.abs(differences - derivatives))
    root_mean_square = np.sqrt(np.mean(differences**2))
    if not median_deviation <= tolerance * root_mean_square + error:
        raise CheckFailed(
            f"{name} changes by {root_mean_square:.4g} along a small step, but its derivative is off by {median_deviation:.2g}"
        )


@published(
    ("channel",),
    "V^-1 (mean - omega) is not the gradient of log_partition: posterior mean and partition function belong to different models.",
    cases=each_model,
)
def gradient(context: CheckContext, model: Model) -> None:
    """Check that ``V^-1 (mean - omega)`` of the posterior is the gradient of ``log_partition`` in the prior means omega, by
    finite differences; V is the covariance, y are labels. ``context`` holds the channel under test.
    """
    channel = context.item
    standard_deviation = math.sqrt(ERROR)
    if channel.log_partition is None:
        raise CheckSkipped("the channel has no method log_partition")
    V, omega, _, y = draw_samples(context, model, 24, 91)
    omega = omega + 0.5 * standard_deviation * context.rng(92).standard_normal(
        omega.shape
    )
    posterior = channel.posterior(y, omega, V, rng=context.rng(93))
    step = context.rng(94).standard_normal(omega.shape)
    step *= 0.05 * standard_deviation / math.sqrt(step[0].size)
    derivatives = np.sum(
        np.linalg.inv(V) @ (posterior.mean - omega) * step, axis=(1, 2)
    )
    _expect_slope(
        "log_partition",
        lambda shifted_omega: channel.log_partition(y, shifted_omega, V),
        omega,
        step,
        derivatives,
        error=1e-9 + float(posterior.error),
        tolerance=1e-4,
    )


@channel_check("vjp, the derivative of the label that gradient methods use, is wrong.")
def vjp(context: CheckContext, model: Model, channel: Channel) -> None:
    """Check ``vjp(z, cotangent)``, the gradient of ``sum(cotangent * label)`` in latents z, against finite differences of
    the noiseless label along random directions. ``context`` holds the channel under test.
    """
    if channel.vjp is None:
        raise CheckSkipped("the channel has no vjp, and its labels have no derivative")
    z = draw_samples(context, model, 40, 111)[2]
    step = 1e-4 * context.rng(112).standard_normal(z.shape)
    cotangent = context.rng(113).standard_normal(np.shape(predict(channel, z)))
    product = channel.vjp(z, cotangent)
    expect_array("vjp", product, z.shape, "float64", z)
    _expect_slope(
        "vjp",
        lambda shifted_z: predict(channel, shifted_z) * cotangent,
        z,
        step,
        (product * step).sum((1, 2)),
        error=1e-16,
        tolerance=1e-5,
    )
