"""Exact gradient of the squared loss through a channel, shared by the gradient methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from smimbench.backend import namespace
from smimbench.theory.prediction import observable, predict

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Data
    from smimbench.problem import Problem


class LossGradient(NamedTuple):
    """Loss (0-d array) and its gradient with respect to the factor."""

    loss: Array
    gradient: Array


def squared_loss(problem: Problem, data: Data, factor: Array) -> LossGradient:
    r"""Squared loss ``L = sum_mu |f(z_mu) - y_mu|^2 / D`` and its gradient.

    ``f`` is the noiseless output that a user would measure (probabilities for softmax). The chain is: channel ``vjp``
    to the latents, transpose of the model's ``forward`` to the signal (which brings the trace term of the
    attention-indexed model), the prior's ``pullback`` to the factor. Inputs are read once, chunk by chunk.

    Parameters
    ----------
    factor : array
        What the prior's ``compose`` turns into a signal: W of ``S = W W^T / sqrt(r D)``, or the signal itself.
    """
    xp = namespace(data.inputs)
    model, channel = problem.model, problem.channel
    n, _, dimension = data.inputs.shape
    signal = problem.prior.compose(factor)
    gradient = xp.zeros_like(signal)
    loss = xp.zeros((), dtype=signal.dtype, device=signal.device)
    for part in model.chunks(n, dimension, problem.components):
        inputs = data.inputs[part, ...]
        z = model.forward(inputs, signal)
        difference = predict(channel, z) - observable(channel, data.labels[part, ...])
        loss = loss + xp.sum(difference * difference)
        gradient = gradient + model.adjoint(inputs, channel.vjp(z, 2 * difference))
    gradient = gradient / (model.adjoint_scale(dimension) * dimension)
    return LossGradient(loss / dimension, problem.prior.pullback(factor, gradient))
