"""Exact gradients of a loss through model, channel and prior, shared by the gradient methods."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from smimbench.backend import clip, matching, namespace, sample_chunks
from smimbench.derive import MixedChannel, gives_probabilities, observable, predict
from smimbench.interfaces import Array, Channel, Factor, takes
from smimbench.problem import Problem
from smimbench.registry import RegistryError, build, get_registry

LOSSES = ("squared", "cross-entropy")


NARROW = 0.75
"""Width of a factor over the dimension up to which products with it cost less than those with the signal."""


@functools.lru_cache(maxsize=8)
def fitting_loss(problem: Problem) -> str:
    """Name of the loss that suits the labels: cross-entropy for probabilities, else the squared distance."""
    return "cross-entropy" if gives_probabilities(problem) else "squared"


class LossGradient(NamedTuple):
    """Loss summed over samples, one number per student, and its gradient with respect to the factor that is learned."""

    loss: Array  # summed over samples
    gradient: Array


def loss_gradient(
    problem: Problem,
    inputs: Array,
    targets: Array,
    factor: Array,
    *,
    channel: Channel | None = None,
    loss: str = "squared",
    signal: Array | None = None,
    with_loss: bool = True,
) -> LossGradient:
    r"""Compute the loss ``L = sum_mu l(f(z_mu), t_mu)`` of the factor, over samples mu with latents z and ``targets`` t, with
    f the channel's output and l the named ``loss``, and its gradient. With students, shapes have one more axis in front.

    ``f`` is the noiseless output that a user would measure (probabilities for softmax), ``t`` the same of the label,
    ``l`` the squared distance or ``- sum t log f``. The chain is: channel ``vjp`` to the latents, transpose of the
    model's ``forward`` to the signal (which brings the trace term of the attention-indexed model), the prior's
    ``pullback`` to the factor; or, for matrices ``F F^T`` of small width, straight to F. Inputs are read once, chunk by
    chunk.

    Parameters
    ----------
    inputs : array (n, T, D)
        With the axis of the students in front: each has its own samples.
    targets : array (n, ...)
        Labels as a user would measure them (the channel's ``observable``).
    factor : array
        What the prior's ``compose`` turns into a signal: W of ``S = W W^T / sqrt(r D)``, or the signal itself. One
        more axis in front: several students that learn from the same samples.
    channel : Channel, optional
        Another channel than the problem's (a surrogate that has a derivative).
    loss : {"squared", "cross-entropy"}
    signal : array, optional
        ``compose(factor)``, if it is known already.
    with_loss : bool
        Compute the loss, too.

    Returns
    -------
    LossGradient
        ``loss`` () or (students,), NaN unless asked for, ``gradient`` shaped like the factor.
    """
    xp = namespace(factor)
    differentiable_channel = problem.channel if channel is None else channel
    leading_slices = (slice(None),) * (inputs.ndim - 3)

    def loss_of_chunk(
        chunk: slice, z: Array, students: tuple[int, ...]
    ) -> tuple[Array, Array]:
        """Losses (students, samples, ...) of a ``chunk`` of samples with latents z (students times samples, P, C), NaN without
        ``with_loss``, and their derivatives with respect to z; ``cotangent`` is the derivative of the loss in the channel's
        output. ``students`` is the shape of the axes of students.
        """
        output = predict(differentiable_channel, z)
        predictions = xp.reshape(output, (*students, -1, *output.shape[1:]))
        labels = targets[(*leading_slices, chunk, ...)]
        cotangent = loss_derivative(loss, predictions, labels)
        cotangent = xp.reshape(cotangent, (-1, *cotangent.shape[len(students) + 1 :]))
        losses = (
            loss_values(loss, predictions, labels)
            if with_loss
            else xp.full(students, math.nan, **matching(z))
        )
        return losses, latent_derivatives(differentiable_channel, z, cotangent, output)

    return latent_gradient(problem, inputs, factor, loss_of_chunk, signal)


def latent_gradient(
    problem: Problem,
    inputs: Array,
    factor: Array,
    loss_of_chunk: Callable[[slice, Array, tuple[int, ...]], tuple[Array, Array]],
    signal: Array | None = None,
) -> LossGradient:
    """Sum a function of the latents z, ``loss_of_chunk``, over all samples, and compute its gradient with respect to the
    factor, through the signal or, for narrow factors (few columns), directly from the factor. ``gram_root`` is the root of
    the scale between ``F F^T`` and the signal.

    ``loss_of_chunk(chunk, z, students)`` gives the values (students, samples, ...) and their gradient, shaped like ``z``, of
    the samples ``chunk``, whose latents stand in ``z`` (students times samples, P, C) student by student; for the rest see
    ``loss_gradient``.
    """
    xp = namespace(factor)
    model = problem.model
    factorization = factor_of(problem)
    dimension = inputs.shape[-1]
    signal = factorization.compose(factor) if signal is None else signal
    student_axes = signal.ndim - len(model.signal_shape(problem.components, dimension))
    student_shape = signal.shape[:student_axes]
    has_own_samples = inputs.ndim > 3
    leading_slices = (slice(None),) * (inputs.ndim - 3)
    samples_of_one = inputs[0, ...] if has_own_samples else inputs
    # Components whose latents take as much memory per chunk as the intermediate arrays; a student with samples of its own has
    # the chunks that it has alone.
    students_of_samples = 1 if has_own_samples else math.prod(student_shape)
    simultaneous_components = students_of_samples * problem.components
    gram_root, scaled_factor = 1.0, None
    forward_gram = model.forward_gram
    gram_scale = factorization.gram_scale
    is_narrow_factor = factor.shape[-1] <= NARROW * dimension
    if forward_gram is not None and gram_scale is not None and is_narrow_factor:
        gram_root = math.sqrt(gram_scale(factor))
        scaled_factor = gram_root * factor
        if simultaneous_components > 1:
            products_per_latent = factor.shape[-1] * model.tokens / (2 * model.sites)
            simultaneous_components *= math.ceil(products_per_latent)

    def latents(x: Array, source: Array) -> tuple[Array, Callable[[Array], Array]]:
        """Latents of samples x and the map of gradients in them back to their ``source``, factor or signal."""
        if forward_gram is not None and scaled_factor is not None:
            return forward_gram(x, source)
        if x.ndim > 3:  # samples of each student
            students_latents, maps = zip(*map(latents, x, source))
            return xp.stack(students_latents), lambda g: xp.stack(
                [back(student_g) for back, student_g in zip(maps, g)]
            )
        return model.forward(x, source), functools.partial(model.adjoint, x)

    losses: Array = None
    gradient: Array = None
    source = signal if scaled_factor is None else scaled_factor
    for chunk in sample_chunks(model, samples_of_one, simultaneous_components):
        z, adjoint = latents(inputs[(*leading_slices, chunk, ...)], source)
        # Channels know nothing of students, whose samples are concatenated.
        chunk_loss, latent_derivative = loss_of_chunk(
            chunk, xp.reshape(z, (-1, *z.shape[-2:])), student_shape
        )
        chunk_gradient = adjoint(xp.reshape(latent_derivative, z.shape))
        chunk_loss = xp.sum(
            chunk_loss, axis=tuple(range(student_axes, chunk_loss.ndim))
        )
        losses = chunk_loss if losses is None else losses + chunk_loss
        gradient = chunk_gradient if gradient is None else gradient + chunk_gradient
    if gradient is None:
        raise ValueError(
            "gradient descent needs at least one sample, but the data set is empty"
        )
    if scaled_factor is not None:
        return LossGradient(losses, gram_root * gradient)
    gradient = gradient / model.adjoint_scale(dimension)
    return LossGradient(losses, factorization.pullback(factor, gradient))


def factor_of(problem: Problem) -> Factor:
    """Factorization of the signal, as declared by the prior, whose factor gradient descent optimizes."""
    factorization = problem.prior.factor
    assert factorization is not None
    return factorization


def latent_derivatives(
    channel: Channel, z: Array, cotangent: Array, output: Array | None = None
) -> Array:
    """Derivatives of a loss in the latents z, from ``cotangent``, its derivative in the channel's output, by the channel's
    ``vjp`` (vector-Jacobian product), which must exist. It is given the ``output``, if that is known, where it asks for it.
    """
    vjp = channel.vjp
    assert vjp is not None
    if output is not None and takes(vjp, "output"):
        return vjp(z, cotangent, output=output)
    return vjp(z, cotangent)


def loss_values(loss: str, output: Array, target: Array) -> Array:
    """Loss of every entry of the ``output``, given the ``target``; ``loss`` is its name."""
    if loss == "squared":
        output_error = output - target
        return output_error * output_error
    return -target * namespace(output).log(_positive(output))


def loss_derivative(loss: str, output: Array, target: Array) -> Array:
    """Derivative of the named ``loss`` in every entry of the ``output``, given the ``target``."""
    if loss == "squared":
        return 2 * (output - target)
    return -target / _positive(output)


def _positive(probability: Array) -> Array:
    """Probabilities above 0: one that has underflowed would make 0/0 of its share in the gradient."""
    smallest_normal = namespace(probability).finfo(probability.dtype).smallest_normal
    return clip(probability, float(smallest_normal))


# -- surrogates of channels without a derivative ---------------------------------------------------------------------


class _TemperedChannel(Channel):
    """A softmax channel whose latents are multiplied by an inverse temperature."""

    def __init__(self, channel: Channel, inverse_temperature: float) -> None:
        """Store the softmax channel and its inverse temperature."""
        self.channel = channel
        self.inverse_temperature = inverse_temperature

    def forward(self, z: Array, *, rng: np.random.Generator | None = None) -> Array:
        """Labels of the softmax channel at latents z times the inverse temperature."""
        return self.channel.forward(self.inverse_temperature * z)

    def observable(self, y: Array) -> Array:
        """Labels y as a user would measure them: those of the softmax channel."""
        return observable(self.channel, y)

    def vjp(self, z: Array, cotangent: Array, output: Array | None = None) -> Array:
        """Backpropagate ``cotangent``, the derivative in the ``output``, to the latents z, through the inverse temperature."""
        derivatives = latent_derivatives(
            self.channel, self.inverse_temperature * z, cotangent, output
        )
        return self.inverse_temperature * derivatives


def surrogate(problem: Problem, beta: float) -> Channel | None:
    """Softmax channel with inverse temperature ``beta`` that replaces the hardmax channel of a problem, or None for other
    channels. Its latents are multiplied by beta, or by the root of beta where the channel squares them.

    Attention-indexed matrices are linear in the latents, so beta multiplies them; those of one sequence layer are
    ``z z^T``, so its root does.
    """
    if problem.channel.name != "hardmax" or problem.components > 1:
        return None
    softmax = _softmax_channel(problem.model.name, problem.model.tokens)
    if softmax is None:
        return None
    if problem.mixing is not None:
        softmax = MixedChannel(softmax, problem.mixing)
    has_extensive_rank = problem.model.rank == "extensive"
    return _TemperedChannel(softmax, beta if has_extensive_rank else math.sqrt(beta))


@functools.lru_cache(maxsize=32)
def _softmax_channel(model: str, tokens: int) -> Channel | None:
    """Softmax channel of a model by name and its number of tokens, or None if the model has none."""
    try:
        registry_entry = get_registry().get("channel", "softmax", model)
    except RegistryError:
        return None
    channel: Channel = build(registry_entry.item, "channel", {}, {"tokens": tokens})
    return channel
