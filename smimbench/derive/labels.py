"""Properties of a channel's labels: noise, smoothness, number of values, symmetries, and observable form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np

from smimbench.interfaces import Array, Channel, Host, ProblemLike
from smimbench.numerics.random_numbers import monte_carlo_rng


def observable(channel: Channel, y: Array) -> Array:
    """Labels in the form a user measures, such as probabilities instead of log-probabilities."""
    convert = channel.observable
    return y if convert is None else convert(y)


def predict(channel: Channel, z: Array) -> Array:
    """Noiseless labels of given latents in observable form; with an estimate as ``z`` this is the plug-in prediction."""
    direct = channel.predict
    return observable(channel, channel.forward(z)) if direct is None else direct(z)


def predict_twice(channel: Any, z: Array, *index: int) -> tuple[Array, Array]:
    """Predict labels twice such that the product is an unbiased squared prediction.

    The two are independent means over draws of the noise, or one exact value twice.
    Equal ``index`` means equal draws of the noise, so that differences of predictions have little of it.
    """
    if getattr(channel, "draws_predictions", False):  # a derived channel alone
        return cast("tuple[Array, Array]", channel.predict_twice(z, *index))
    once = predict(channel, z)
    return once, once


def log_likelihood(channel: Channel, y: Array, z: Array) -> Array:
    """Log-likelihood (n,) of labels given latents, for a channel that defines one."""
    assert channel.log_likelihood is not None
    return channel.log_likelihood(y, z)


def gives_probabilities(problem: ProblemLike) -> bool:
    """Whether the observable labels of a problem are rows of probabilities, as attention matrices are."""
    rng = monte_carlo_rng("label of a few latents")
    z = rng.standard_normal((4, problem.components, problem.model.sites))
    channel: Channel = problem.channel
    y = channel.forward(z, rng=rng)
    if channel.observable is None:
        return False
    p = np.asarray(channel.observable(y))
    return bool(p.ndim >= 2 and (p >= 0).all() and np.allclose(p.sum(axis=-1), 1.0))


def probe(channel: Channel, sites: int, count: int) -> Array:
    """Draw fixed latents (count, P, C) on which the properties of a channel are tested."""
    shape = (count, int(channel.components), sites)
    return monte_carlo_rng("symmetry: latents").standard_normal(shape)


def is_noisy(channel: Channel, z: Array) -> bool:
    """Whether ``forward`` draws random numbers: it fails without rng, or its labels depend on the seed."""
    try:
        channel.forward(z)
    except (
        ValueError,
        TypeError,
        AttributeError,
        AssertionError,
    ):  # rng is required, or None has no such method
        return True
    labels_0, labels_1 = (
        np.asarray(channel.forward(z, rng=np.random.default_rng(k))) for k in (0, 1)
    )
    return not np.array_equal(labels_0, labels_1)


def is_smooth(noiseless: Callable[[Array], Array], z: Array) -> bool:
    """Whether the noiseless label has a useful derivative; signs and positions of maxima have none."""
    direction = monte_carlo_rng("derivative: direction").standard_normal(z.shape)

    def slope(step: float) -> Array:
        up, down = (
            np.asarray(noiseless(z + s * direction), dtype=float) for s in (step, -step)
        )
        return np.reshape((up - down) / (2 * step), (len(z), -1))

    coarse = slope(1e-3)
    fine = slope(1e-4)
    size = np.abs(fine).max(axis=1)
    agree = np.abs(coarse - fine).max(axis=1) <= 1e-2 * np.maximum(size, 1e-6)
    return bool(
        np.isfinite(fine).all() and (size > 0).mean() > 0.5 and agree.mean() > 0.8
    )


def is_exact(channel: Channel, sites: int) -> bool:
    """Whether noiseless labels change with every small change of the latents, so that they have no density."""
    if is_noisy(channel, probe(channel, sites, 8)):
        return False
    z = probe(channel, sites, 64)
    move = 1e-6 * monte_carlo_rng("likelihood: step").standard_normal(z.shape)
    labels, moved_labels = (
        np.asarray(channel.forward(at)).reshape(len(z), -1) for at in (z, z + move)
    )
    return bool((labels != moved_labels).any(axis=1).mean() > 0.02)


def few_labels(channel: Channel, sites: int) -> Host | None:
    """Array of all possible labels, if there are few and their probabilities add up to one; otherwise None."""
    rng = monte_carlo_rng("likelihood: symmetry")
    z = probe(channel, sites, 4096)  # values of a smaller probability are not met
    y = np.asarray(channel.forward(z, rng=rng))
    values = np.unique(y.reshape(len(y), -1), axis=0)
    if len(values) > 64:
        return None
    values = values.reshape(-1, *y.shape[1:])
    some = z[:256]
    total = np.zeros(len(some))
    with np.errstate(all="ignore"):
        for value in values:
            repeated = np.broadcast_to(value, (len(some), *value.shape))
            total += np.exp(
                np.asarray(log_likelihood(channel, repeated, some), dtype=float)
            )
    # Without this the likelihood is not a probability, or a label was not met: sample y instead of adding up.
    return values if np.ptp(total) < 1e-6 * total.mean() else None


def symmetry_of_labels(channel: Channel, sites: int) -> str:
    """Name of the largest known group of transformations of the latents that leaves all labels unchanged."""
    rng = monte_carlo_rng("likelihood: which kind of label")
    P = int(channel.components)
    leaves_labels = partial(_is_symmetry, channel, sites)
    cycle = np.roll(np.eye(P), 1, axis=0)
    swap = np.eye(P)
    swap[:2] = swap[:2][::-1]
    rotation = np.linalg.qr(rng.standard_normal((P, P)))[0]
    rotation[0] *= np.linalg.det(rotation)  # a reflection is none
    if P > 1 and leaves_labels(rotation):
        return "rotations"
    flips = all(
        leaves_labels(np.diag(np.where(np.arange(P) == p, -1.0, 1.0))) for p in range(P)
    )
    permutes = P > 1 and leaves_labels(cycle) and leaves_labels(swap)
    if flips:
        return "signed-permutations" if permutes else "signs"
    if P > 1 and leaves_labels(-np.eye(P)):
        return "permutations-common-sign" if permutes else "common-sign"
    return "permutations" if permutes else "none"


def _is_symmetry(channel: Channel, sites: int, transformation: Array) -> bool:
    """Whether a transformation of the latents leaves the probability of all labels unchanged."""
    z = probe(channel, sites, 64)
    turned = transformation @ z
    if channel.log_likelihood is not None:
        y = np.asarray(channel.forward(z, rng=monte_carlo_rng("symmetry: labels")))
        with np.errstate(all="ignore"):
            original, transformed = (
                np.asarray(log_likelihood(channel, y, at), dtype=float)
                for at in (z, turned)
            )
        return bool(np.allclose(original, transformed, rtol=1e-6, atol=1e-6))
    original, transformed = (
        np.asarray(channel.forward(at, rng=monte_carlo_rng("symmetry: labels")))
        for at in (z, turned)
    )
    return bool(np.allclose(original, transformed, rtol=1e-6, atol=1e-9))
