"""Properties of a channel's labels: noise, smoothness, number of values, symmetries, and observable form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np

from smimbench.interfaces import Array, Channel, Host, ProblemLike
from smimbench.numerics.random_numbers import monte_carlo_rng


def observable(channel: Channel, y: Array) -> Array:
    """Labels ``y`` of a channel in the form a user measures, such as probabilities instead of log-probabilities."""
    to_observable = channel.observable
    return y if to_observable is None else to_observable(y)


def predict(channel: Channel, z: Array) -> Array:
    """Noiseless labels of latents ``z`` (n, P, C) in observable form; if z are the latents of an estimate, this is the plug-in
    prediction.
    """
    predict_of_channel = channel.predict
    return (
        observable(channel, channel.forward(z))
        if predict_of_channel is None
        else predict_of_channel(z)
    )


def predict_twice(channel: Any, z: Array, *index: int) -> tuple[Array, Array]:
    """Predict the labels of latents ``z`` twice, so that the product of the two is an unbiased estimate of the squared
    prediction: from independent draws of the noise if predictions are averages over draws (the integers ``index`` seed them),
    else the same twice.

    The two are independent means over draws of the noise, or one exact value twice.
    Equal ``index`` means equal draws of the noise, so that differences of predictions have little of it.
    """
    if getattr(channel, "draws_predictions", False):  # only derived channels have it
        return cast("tuple[Array, Array]", channel.predict_twice(z, *index))
    prediction = predict(channel, z)
    return prediction, prediction


def log_likelihood(channel: Channel, y: Array, z: Array) -> Array:
    """Log-likelihood (n,) of labels ``y`` (n, ...) given latents ``z`` (n, P, C), for a channel that defines one."""
    assert channel.log_likelihood is not None
    return channel.log_likelihood(y, z)


def gives_probabilities(problem: ProblemLike) -> bool:
    """Whether the observable labels of a problem are rows of probabilities, as attention matrices are. ``y`` are the channel's
    labels of a few random latents ``z``.
    """
    rng = monte_carlo_rng("label of a few latents")
    z = rng.standard_normal((4, problem.components, problem.model.sites))
    channel: Channel = problem.channel
    y = channel.forward(z, rng=rng)
    if channel.observable is None:
        return False
    observable_labels = np.asarray(channel.observable(y))
    return bool(
        observable_labels.ndim >= 2
        and (observable_labels >= 0).all()
        and np.allclose(observable_labels.sum(axis=-1), 1.0)
    )


def probe(channel: Channel, sites: int, count: int) -> Array:
    """Draw fixed latents (count, P, C) on which the properties of a channel are tested; P counts components, C = ``sites``."""
    shape = (count, int(channel.components), sites)
    return monte_carlo_rng("symmetry: latents").standard_normal(shape)


def is_noisy(channel: Channel, z: Array) -> bool:
    """Whether ``forward`` draws random numbers: it fails without rng, or its labels of the latents ``z`` depend on the seed."""
    try:
        channel.forward(z)
    except (
        ValueError,
        TypeError,
        AttributeError,
        AssertionError,
    ):  # forward requires rng, or calls a method of it
        return True
    labels_of_seed_0, labels_of_seed_1 = (
        np.asarray(channel.forward(z, rng=np.random.default_rng(seed)))
        for seed in (0, 1)
    )
    return not np.array_equal(labels_of_seed_0, labels_of_seed_1)


def is_smooth(noiseless: Callable[[Array], Array], z: Array) -> bool:
    """Whether the function ``noiseless`` from latents to labels has a useful derivative at the latents ``z``: finite and equal
    for two finite-difference steps. Signs and positions of maxima have none.
    """
    direction = monte_carlo_rng("derivative: direction").standard_normal(z.shape)

    def directional_derivative(step: float) -> Array:
        """Derivatives (n, label entries) of the labels along one fixed random direction of the latents, by central differences
        of this ``step``.
        """
        labels_ahead, labels_behind = (
            np.asarray(noiseless(z + shift * direction), dtype=float)
            for shift in (step, -step)
        )
        return np.reshape((labels_ahead - labels_behind) / (2 * step), (len(z), -1))

    slope_of_large_step = directional_derivative(1e-3)
    slope_of_small_step = directional_derivative(1e-4)
    largest_slope = np.abs(slope_of_small_step).max(axis=1)
    is_slope_stable = np.abs(slope_of_large_step - slope_of_small_step).max(
        axis=1
    ) <= 1e-2 * np.maximum(largest_slope, 1e-6)
    return bool(
        np.isfinite(slope_of_small_step).all()
        and (largest_slope > 0).mean() > 0.5
        and is_slope_stable.mean() > 0.8
    )


def is_exact(channel: Channel, sites: int) -> bool:
    """Whether labels have no noise and change with every small change of the latents z, so that they have no density; ``sites``
    is the number of latents per component.
    """
    if is_noisy(channel, probe(channel, sites, 8)):
        return False
    z = probe(channel, sites, 64)
    small_shift = 1e-6 * monte_carlo_rng("likelihood: step").standard_normal(z.shape)
    labels, labels_of_shifted = (
        np.asarray(channel.forward(latents)).reshape(len(z), -1)
        for latents in (z, z + small_shift)
    )
    return bool((labels != labels_of_shifted).any(axis=1).mean() > 0.02)


def few_labels(channel: Channel, sites: int) -> Host | None:
    """Array of all possible labels, if there are few and their probabilities under a likelihood add up to one; otherwise None.
    ``y`` are labels drawn from test latents ``z`` (n, P, C) with C = ``sites``.
    """
    rng = monte_carlo_rng("likelihood: symmetry")
    z = probe(channel, sites, 4096)  # rarer labels are not met
    y = np.asarray(channel.forward(z, rng=rng))
    label_values = np.unique(y.reshape(len(y), -1), axis=0)
    if len(label_values) > 64:
        return None
    label_values = label_values.reshape(-1, *y.shape[1:])
    test_latents = z[:256]
    probability_sum = np.zeros(len(test_latents))
    with np.errstate(all="ignore"):
        for label_value in label_values:
            repeated_label = np.broadcast_to(
                label_value, (len(test_latents), *label_value.shape)
            )
            probability_sum += np.exp(
                np.asarray(
                    log_likelihood(channel, repeated_label, test_latents), dtype=float
                )
            )
    # If the sum is not constant, the likelihood is no probability or a label was not met: labels are sampled instead.
    return (
        label_values
        if np.ptp(probability_sum) < 1e-6 * probability_sum.mean()
        else None
    )


def symmetry_of_labels(channel: Channel, sites: int) -> str:
    """Name of the largest known group of transformations of the components (such as sign flips, permutations, rotations) that
    leaves the labels of all latents unchanged. P is the number of components, ``sites`` that of latents per component.
    """
    rng = monte_carlo_rng("likelihood: which kind of label")
    P = int(channel.components)
    is_symmetry = partial(_is_symmetry, channel, sites)
    cyclic_permutation = np.roll(np.eye(P), 1, axis=0)
    transposition = np.eye(P)
    transposition[:2] = transposition[:2][::-1]
    random_rotation = np.linalg.qr(rng.standard_normal((P, P)))[0]
    random_rotation[0] *= np.linalg.det(random_rotation)  # a rotation has determinant 1
    if P > 1 and is_symmetry(random_rotation):
        return "rotations"
    has_sign_flips = all(
        is_symmetry(np.diag(np.where(np.arange(P) == component, -1.0, 1.0)))
        for component in range(P)
    )
    has_permutations = (
        P > 1 and is_symmetry(cyclic_permutation) and is_symmetry(transposition)
    )
    if has_sign_flips:
        return "signed-permutations" if has_permutations else "signs"
    if P > 1 and is_symmetry(-np.eye(P)):
        return "permutations-common-sign" if has_permutations else "common-sign"
    return "permutations" if has_permutations else "none"


def _is_symmetry(channel: Channel, sites: int, transformation: Array) -> bool:
    """Whether the ``transformation`` (P, P) of the components of the latents leaves the probability of all labels unchanged.
    ``sites`` is the number of latents per component, ``y`` are labels drawn from test latents ``z``; for channels without a
    likelihood, labels of z and of transformed z (same noise) are compared instead.
    """
    z = probe(channel, sites, 64)
    transformed_z = transformation @ z
    if channel.log_likelihood is not None:
        y = np.asarray(channel.forward(z, rng=monte_carlo_rng("symmetry: labels")))
        with np.errstate(all="ignore"):
            numbers_at_z, numbers_at_transformed_z = (
                np.asarray(log_likelihood(channel, y, latents), dtype=float)
                for latents in (z, transformed_z)
            )
        return bool(
            np.allclose(numbers_at_z, numbers_at_transformed_z, rtol=1e-6, atol=1e-6)
        )
    numbers_at_z, numbers_at_transformed_z = (
        np.asarray(channel.forward(latents, rng=monte_carlo_rng("symmetry: labels")))
        for latents in (z, transformed_z)
    )
    return bool(
        np.allclose(numbers_at_z, numbers_at_transformed_z, rtol=1e-6, atol=1e-9)
    )
