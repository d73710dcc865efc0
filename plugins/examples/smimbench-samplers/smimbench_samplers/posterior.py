"""Log-likelihood of the labels as a function of the factor of the signal, with its gradient."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, cast

import numpy as np
from smimbench_attention.algorithms.gradient.loss import latent_gradient

from smimbench.backend import matching, namespace
from smimbench.derive import is_noisy
from smimbench.interfaces import Array, Data
from smimbench.problem import Problem


def why_not_sampled(problem: Problem) -> str | None:
    """Reason why hmc cannot sample the posterior of a problem (it has no differentiable density), or None."""
    channel: Any = problem.channel
    if not cast("Any", problem.prior).factor.gaussian:
        return f"prior {problem.prior.name!r} has no factor with independent Gaussian entries, which hmc needs"
    if not is_noisy(channel, np.ones((2, problem.components, problem.model.sites))):
        return f"labels of channel {channel.name!r} have no noise, so their likelihood is not a density that hmc can sample"
    if channel.log_partition is None and channel.log_likelihood is None:
        return f"channel {channel.name!r} has neither log_likelihood nor log_partition, one of which hmc needs"
    return None


class LogPosterior:
    r"""Log-likelihood of all labels as a function of the factors (chains, ...) of the signal, with its gradient.

    A ``log_likelihood`` is differenced. A channel without one gives ``log Z(y_mu, z_mu, s I)``, the likelihood under more noise
    of so small a variance s on the latents that it changes nothing, with the gradient ``(E[z | y, z_mu, s I] - z_mu) / s``.
    """

    def __init__(self, problem: Problem, data: Data) -> None:
        self.problem, self.data = problem, data
        self.precision = float(namespace(data.inputs).finfo(data.inputs.dtype).eps)
        self.factor = cast("Any", problem.prior).factor

    def factor_of(self, signal: Array, like: Array) -> Array:
        """Factor of the signal in the shape of ``like``, or of the closest matrix of that rank."""
        if self.factor.gram_scale is None:
            return signal
        xp = namespace(signal)
        U, values, Vh = xp.linalg.svd(signal)
        root = xp.sqrt(values / self.factor.gram_scale(like))[..., None, :]
        halves = U * root, xp.matrix_transpose(Vh) * root
        closest = (
            halves[0]
            if like.shape[-2] == signal.shape[-2]
            else xp.concat(halves, axis=-2)
        )
        if (missing_columns := like.shape[-1] - closest.shape[-1]) > 0:
            closest = xp.concat(
                [
                    closest,
                    xp.zeros(
                        (*closest.shape[:-1], missing_columns), **matching(closest)
                    ),
                ],
                axis=-1,
            )
        return closest[..., : like.shape[-1]]

    def __call__(self, factor: Array) -> tuple[Array, Array]:
        """Return the log-likelihoods (chains,) at the factors, and their gradients."""
        with np.errstate(
            all="ignore"
        ):  # a trajectory that left all bounds is not accepted
            value, gradient = latent_gradient(
                self.problem, self.data.inputs, factor, self._of_latents
            )
        return value, gradient

    def _of_latents(
        self, chunk: slice, z: Array, chains: tuple[int, ...]
    ) -> tuple[Array, Array]:
        """Return log-likelihoods (chains, samples) at the latents z (chains * samples, P, C), and their gradient in z."""
        xp = namespace(z)
        channel: Any = self.problem.channel
        y = self.data.labels[chunk, ...]
        y = xp.reshape(
            xp.broadcast_to(y, (*chains, *y.shape)), (z.shape[0], *y.shape[1:])
        )
        if channel.log_likelihood is None:
            s = math.sqrt(self.precision)
            V = s * xp.eye(z.shape[1], **matching(z))
            value, slope = (
                channel.log_partition(y, z, V),
                (channel.posterior(y, z, V).mean - z) / s,
            )
        else:
            of, step = partial(channel.log_likelihood, y), self.precision ** (1 / 3)
            value, slope = of(z), xp.zeros_like(z)
            for unit in np.eye(math.prod(z.shape[1:])).reshape(-1, *z.shape[1:]):
                direction = xp.asarray(unit, **matching(z))
                difference = (of(z + step * direction) - of(z - step * direction)) / (
                    2 * step
                )
                slope = slope + difference[:, None, None] * direction
        return xp.reshape(value, (*chains, -1)), slope
