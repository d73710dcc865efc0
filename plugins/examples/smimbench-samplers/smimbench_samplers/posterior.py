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
    """Reason why ``hmc`` cannot sample the posterior of a problem (prior not Gaussian, or labels without a density), or None."""
    channel: Any = problem.channel
    if not cast("Any", problem.prior).factor.gaussian:
        return f"prior {problem.prior.name!r} has no factor with independent Gaussian entries, which hmc needs"
    if not is_noisy(channel, np.ones((2, problem.components, problem.model.sites))):
        return f"labels of channel {channel.name!r} have no noise, so their likelihood is not a density that hmc can sample"
    if channel.log_partition is None and channel.log_likelihood is None:
        return f"channel {channel.name!r} has neither log_likelihood nor log_partition, one of which hmc needs"
    return None


class LogPosterior:
    r"""Log-likelihood of all labels as a function of the factors (chains, ...) of the signal, with its gradient; ``factor`` is
    the prior's factorization, ``precision`` the rounding of the dtype.

    A ``log_likelihood`` is differenced. A channel without one gives ``log Z(y_mu, z_mu, s I)``, the likelihood under more noise
    of so small a variance s on the latents that it changes nothing, with the gradient ``(E[z | y, z_mu, s I] - z_mu) / s``.
    """

    def __init__(self, problem: Problem, data: Data) -> None:
        """Store problem and data, the rounding of the dtype and the prior's factorization."""
        self.problem, self.data = problem, data
        self.precision = float(namespace(data.inputs).finfo(data.inputs.dtype).eps)
        self.factor = cast("Any", problem.prior).factor

    def factor_of(self, signal: Array, like: Array) -> Array:
        """Factor, in the shape of the factor ``like``, of the given signal or of the closest matrix of that rank, from the
        signal's singular values.
        """
        if self.factor.gram_scale is None:
            return signal
        xp = namespace(signal)
        left_vectors, singular_values, right_vectors = xp.linalg.svd(signal)
        scaled_roots = xp.sqrt(singular_values / self.factor.gram_scale(like))[
            ..., None, :
        ]
        query_and_key = (
            left_vectors * scaled_roots,
            xp.matrix_transpose(right_vectors) * scaled_roots,
        )
        closest_factor = (
            query_and_key[0]
            if like.shape[-2] == signal.shape[-2]
            else xp.concat(query_and_key, axis=-2)
        )
        if (missing_columns := like.shape[-1] - closest_factor.shape[-1]) > 0:
            closest_factor = xp.concat(
                [
                    closest_factor,
                    xp.zeros(
                        (*closest_factor.shape[:-1], missing_columns),
                        **matching(closest_factor),
                    ),
                ],
                axis=-1,
            )
        return closest_factor[..., : like.shape[-1]]

    def __call__(self, factor: Array) -> tuple[Array, Array]:
        """Return the log-likelihoods (chains,) at the factors, and their gradients with respect to the factors."""
        with np.errstate(
            all="ignore"
        ):  # a trajectory that left all bounds is not accepted
            log_likelihoods, gradient = latent_gradient(
                self.problem, self.data.inputs, factor, self._log_likelihood_of_latents
            )
        return log_likelihoods, gradient

    def _log_likelihood_of_latents(
        self, chunk: slice, z: Array, chains: tuple[int, ...]
    ) -> tuple[Array, Array]:
        """Return log-likelihoods (chains, samples) of the labels y of a ``chunk`` of samples at the latents z (chains * samples,
        P, C), and their gradient in z: from the channel's log-partition at a tiny variance V, or by differences of its
        log-likelihood. ``chains`` is the shape of the axis of chains.
        """
        xp = namespace(z)
        channel: Any = self.problem.channel
        y = self.data.labels[chunk, ...]
        y = xp.reshape(
            xp.broadcast_to(y, (*chains, *y.shape)), (z.shape[0], *y.shape[1:])
        )
        if channel.log_likelihood is None:
            tiny_variance = math.sqrt(self.precision)
            V = tiny_variance * xp.eye(z.shape[1], **matching(z))
            log_likelihood, gradient_in_z = (
                channel.log_partition(y, z, V),
                (channel.posterior(y, z, V).mean - z) / tiny_variance,
            )
        else:
            log_likelihood_at, difference_step = (
                partial(channel.log_likelihood, y),
                self.precision ** (1 / 3),
            )
            log_likelihood, gradient_in_z = log_likelihood_at(z), xp.zeros_like(z)
            for unit_array in np.eye(math.prod(z.shape[1:])).reshape(-1, *z.shape[1:]):
                direction = xp.asarray(unit_array, **matching(z))
                difference = (
                    log_likelihood_at(z + difference_step * direction)
                    - log_likelihood_at(z - difference_step * direction)
                ) / (2 * difference_step)
                gradient_in_z = gradient_in_z + difference[:, None, None] * direction
        return xp.reshape(log_likelihood, (*chains, -1)), gradient_in_z
