"""Completes channels: derives predictions and gradients from ``forward``, and integrates posteriors from a likelihood."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import array_api_compat
import numpy as np
from numpy.random import Generator

from smimbench.backend.arrays import asarray_like, clip, matching, namespace
from smimbench.derive.labels import (
    few_labels,
    is_exact,
    is_noisy,
    is_smooth,
    log_likelihood,
    observable,
    probe,
    symmetry_of_labels,
)
from smimbench.derive.likelihood_information import LikelihoodInformation
from smimbench.derive.likelihood_posterior import PosteriorMoments, integrate
from smimbench.interfaces import (
    Array,
    Channel,
    Host,
    ParameterError,
    Posterior,
    Uncertain,
)
from smimbench.interfaces.item import Delegate
from smimbench.numerics.linalg import outer_product, symmetric, symmetric_root
from smimbench.numerics.random_numbers import monte_carlo_rng


class DerivedChannel(Delegate):
    """A channel (law of labels y given latents z) with the members (methods, attributes) that it lacks derived from its
    ``forward``; members that it implements are kept.
    """

    _wrapped_attribute = "channel"

    def __init__(self, channel: Channel, sites: int) -> None:
        """Wrap a channel for samples of C = ``sites`` latents per component of the signal."""
        self.channel = channel
        self.sites = int(sites)
        self.components = int(channel.components)

    @cached_property
    def noisy(self) -> bool:
        """Whether ``forward`` draws random numbers, so that equal latents may get different labels."""
        return is_noisy(self.channel, probe(self.channel, self.sites, 8))

    @cached_property
    def smooth(self) -> bool:
        """Whether the noiseless label has a useful derivative with respect to the latents."""
        return is_smooth(self._predict, probe(self.channel, self.sites, 64))

    @cached_property
    def symmetry(self) -> str:
        """Symmetry of the labels: declared by the channel, or the largest group of maps that leave all labels unchanged."""
        if self.channel.symmetry is None:
            return symmetry_of_labels(self.channel, self.sites)
        return str(self.channel.symmetry)

    @property
    def predict(self) -> Any:
        """Function from latents to noiseless labels: the channel's own, the mean label if labels are noisy, or None."""
        if self.channel.predict is None and self.noisy:
            return self._mean_label
        return self.channel.predict

    @property
    def vjp(self) -> Any:
        """Function for the gradient of ``sum(cotangent * predict(z))`` in the latents z: the channel's own, finite differences
        if labels are smooth, or None.
        """
        if self.channel.vjp is None and self.smooth:
            return self._vjp
        return self.channel.vjp

    def _predict(self, z: Array) -> Array:
        """Noiseless labels of the latents ``z`` (n, P, C), in observable form (as a user measures them)."""
        if self.predict is None:
            return observable(self.channel, self.channel.forward(z))
        return self.predict(z)

    @property
    def draws_predictions(self) -> bool:
        """Whether predicted labels are averages over random draws of the noise, so that their squares are biased."""
        return self.channel.predict is None and self.noisy

    def predict_twice(self, z: Array, *index: int) -> tuple[Array, Array]:
        """Predict the labels of latents ``z`` twice, from independent draws of the noise, so that the product of the two is an
        unbiased estimate of the squared prediction. The integers ``index`` seed the draws.

        Equal ``index`` takes equal draws, others independent ones.
        """
        # A product of two means needs no small noise, only many latents.
        mean = self._mean_of_draws(z, 8, 0, *index)
        return mean, self._mean_of_draws(z, 8, 1, *index)

    def _mean_label(self, z: Array) -> Array:
        """Mean label ``E[y | z]`` of latents ``z``, averaged over 64 fixed draws of the noise."""
        return self._mean_of_draws(z, 64)

    def _mean_of_draws(self, z: Array, count: int, *index: int) -> Array:
        """Observable label of latents ``z``, averaged over ``count`` draws of the noise; the integers ``index`` seed the
        draws.
        """
        label_sum: Array = 0.0
        for draw in range(count):
            rng = monte_carlo_rng("prediction: labels", *index, draw)
            label = observable(self.channel, self.channel.forward(z, rng=rng))
            label_sum = label_sum + namespace(z).astype(label, z.dtype)
        return label_sum / count

    def _vjp(self, z: Array, cotangent: Array) -> Array:
        """Gradient of ``sum(cotangent * predict(z))`` in the latents z (n, P, C), by fourth-order finite differences in
        float64; ``cotangent`` holds a weight for every label. ``y`` are the labels predicted after one latent is shifted.
        """
        xp = namespace(z, cotangent)
        n = z.shape[0]
        z_float64 = xp.astype(z, xp.float64)
        flat_cotangent = xp.reshape(xp.astype(cotangent, xp.float64), (n, -1))
        step = 1e-3
        derivatives = []
        for latent_index in range(self.components * self.sites):
            step_array = np.zeros((1, self.components, self.sites))
            step_array.flat[latent_index] = step
            latent_shift = asarray_like(step_array, z_float64)
            cotangent_difference = xp.zeros((n,), **matching(z_float64))
            for shift_factor, coefficient in (
                (1, 8.0),
                (-1, -8.0),
                (2, -1.0),
                (-2, 1.0),
            ):
                y = xp.astype(
                    self._predict(z_float64 + shift_factor * latent_shift), xp.float64
                )
                y = xp.reshape(y, (n, -1))
                cotangent_difference = cotangent_difference + coefficient * xp.sum(
                    flat_cotangent * y, axis=1
                )
            derivatives.append(cotangent_difference / (12 * step))
        return xp.astype(xp.reshape(xp.stack(derivatives, axis=1), z.shape), z.dtype)


LARGEST_DIMENSION = 12
"""Largest latent dimension in which a likelihood is integrated; at twice this, hardly any point would be effective."""


class IntegratedChannel(DerivedChannel):
    """A channel given by ``forward`` and ``log_likelihood(y, z)`` of labels y and latents z, with posterior, log-partition
    function and information by numerical integration.

    Everything else (name, version, symmetry, parameters, any optional method) is the channel's own. ``vjp`` is there if
    the noiseless label is smooth, by finite differences; ``predict`` of a noisy channel is a mean over draws of the noise.

    Parameters
    ----------
    channel : object
        With ``forward(z, rng=...)``, ``log_likelihood(y, z) -> (n,)`` (up to a constant that may depend on y; ``-inf`` for
        impossible latents) and ``components``. The error of the posterior mean that is aimed at (``ACCURACY``) is the root mean
        square over samples, relative to ``sqrt(diag V)``. More than sixteen times the usual points are not spent on it; what
        was reached is reported in ``Posterior.error``.
    sites : int
        C.

    Raises
    ------
    ParameterError
        If there are more than 12 latent dimensions.

    Notes
    -----
    A label that is a continuous noiseless function of the latents has no likelihood that can be integrated: such a
    channel needs a ``posterior`` of its own.

    References
    ----------
    Derived, checked by tests/derive/test_likelihood_channel.py.
    """

    def __init__(self, channel: Channel, sites: int) -> None:
        """Wrap a channel for samples of C = ``sites`` latents per component; raise ParameterError if there are too many to
        integrate.
        """
        super().__init__(channel, sites)
        self.dimension = self.components * self.sites
        if self.dimension > LARGEST_DIMENSION:
            raise ParameterError(
                "name",
                f"channel {getattr(channel, 'name', '?')!r} has a log_likelihood but no posterior, which can be "
                f"integrated in at most {LARGEST_DIMENSION} latent dimensions: {self.components} components * {self.sites} sites "
                "are too many; define a posterior",
            )

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: Generator | None = None,
    ) -> Posterior:
        """Posterior of latents ``z ~ N(omega, V (x) I_C)`` given the labels ``y``, by numerical integration: omega (n, P, C)
        and V (P, P) are their prior mean and covariance, and V may be singular. ``root_of_all_sites``, ``V^{1/2} (x) I_C``,
        takes moments of whitened latents to those of z.

        Integration points are fixed, so that ``rng`` is not used. Where no point was compatible with the
        label, the prior is returned and counted as an error of one width.
        """
        whitened_moments = self._integrate(y, omega, V)
        xp = namespace(omega)
        n, P, C = omega.shape
        root_V = symmetric_root(xp.astype(V, xp.float64))
        # V^{1/2} (x) I_C takes whitened latents (P C,) to z - omega.
        site_identity = xp.eye(C, **matching(root_V))
        root_of_all_sites = root_V[:, None, :, None] * site_identity[None, :, None, :]
        root_of_all_sites = xp.reshape(root_of_all_sites, (P * C, P * C))
        mean_shift = xp.reshape(
            xp.matmul(whitened_moments.mean, root_of_all_sites), (n, P, C)
        )
        mean = omega + xp.astype(mean_shift, omega.dtype)
        whitened_covariance = whitened_moments.square - outer_product(
            whitened_moments.mean, whitened_moments.mean
        )
        mean_covariance_blocks = xp.matmul(
            xp.matmul(root_of_all_sites, xp.mean(whitened_covariance, axis=0)),
            root_of_all_sites,
        )
        mean_covariance_blocks = xp.reshape(mean_covariance_blocks, (P, C, P, C))
        site_blocks = xp.stack(
            [mean_covariance_blocks[:, site, :, site] for site in range(C)]
        )
        covariance = symmetric(xp.sum(site_blocks, axis=0) / C)
        second_moments = None
        if second_moment:
            flat_mean = xp.astype(xp.reshape(mean, (n, P * C)), xp.float64)
            second_moments = xp.matmul(
                xp.matmul(root_of_all_sites, whitened_covariance), root_of_all_sites
            )
            second_moments = second_moments + outer_product(flat_mean, flat_mean)
            second_moments = xp.astype(
                xp.reshape(second_moments, (n, P, C, P, C)), omega.dtype
            )
        error = float(xp.sqrt(xp.mean(clip(whitened_moments.error, 0.0, 1.0) ** 2)))
        return Posterior(
            mean, xp.astype(covariance, omega.dtype), second_moments, error
        )

    def log_partition(self, y: Array, omega: Array, V: Array) -> Array:
        """Log-partition function ``log int N(z; omega, V (x) I_C) exp(log_likelihood(y, z)) dz`` (n,) of labels ``y`` whose
        latents z have prior mean ``omega`` (n, P, C) and covariance ``V`` (P, P).
        """
        log_norm = self._integrate(y, omega, V).log_norm
        return namespace(omega).astype(log_norm, omega.dtype)

    def information(self, Q: Array, V: Array) -> Uncertain:
        """Information ``E sum_c g_c g_c^T`` (..., P, P) that labels carry about latents of overlap Q and error V, with g the
        gradient of the log-partition function in the prior means; by the channel's own method or from its likelihood.

        Leading axes of Q and V are a batch.
        """
        if self.channel.information is not None:
            return self.channel.information(Q, V)
        return self._information(Q, V)

    @property
    def susceptibility(self) -> object:
        """Function for the susceptibility (derivative of the information with respect to the overlap at zero overlap): the
        channel's own, one by the likelihood, or None.

        The slope is for one component with labels that do not see its sign.
        """
        information = self._information
        can_be_derived = information.blind_to_signs and not information.is_exact
        if self.channel.susceptibility is None and can_be_derived:
            return self._slope
        return self.channel.susceptibility

    def _slope(self, Q: Array, V: Array) -> Uncertain:
        """Derivative of the information with respect to the overlap at zero overlap, where ``V`` (1, 1) is the variance of the
        latents; ``Q`` is not used.
        """
        value, error, method = self._information.susceptibility(float(V[0, 0]))
        return Uncertain(np.array([[value]]), np.array([[error]]), method)

    @cached_property
    def _information(self) -> LikelihoodInformation:
        """Function of overlap Q and error V for the information of the labels, computed from the likelihood."""
        blind_to_signs = self.components == 1 and self.symmetry not in (
            "none",
            "permutations",
        )
        return LikelihoodInformation(
            self.channel, self.components, self.sites, self.labels, blind_to_signs
        )

    @cached_property
    def labels(self) -> Host | None:
        """Array of all possible labels, if there are few and their probabilities add up to one; otherwise None."""
        return few_labels(self.channel, self.sites)

    def check(self) -> None:
        """Raise ParameterError if ``forward`` and ``log_likelihood`` do not describe the same channel. ``z`` are test
        latents and ``y`` labels drawn from them.
        """

        def error_about(reason: str) -> ParameterError:
            """ParameterError that names the channel and the reason why it is rejected."""
            channel_name = getattr(self.channel, "name", type(self.channel).__name__)
            return ParameterError("name", f"channel {channel_name!r}: {reason}")

        z = probe(self.channel, self.sites, 16)
        y = np.asarray(
            self.channel.forward(z, rng=monte_carlo_rng("likelihood: few labels"))
        )
        if y.ndim < 1 or len(y) != len(z):
            raise error_about(
                f"forward must return one label per sample, shape (16, ...), got {y.shape}"
            )
        with np.errstate(all="ignore"):
            log_likelihoods = np.asarray(
                log_likelihood(self.channel, y, z), dtype=float
            )
        if is_exact(self.channel, self.sites):
            raise error_about(
                "the label is a continuous function of the latents without noise, so its likelihood is a delta "
                "function that cannot be integrated; define a posterior instead of log_likelihood, or add noise to forward"
            )
        if log_likelihoods.shape != (len(z),):
            raise error_about(
                f"log_likelihood must return one number per sample, shape (16,), got {log_likelihoods.shape}"
            )
        if not np.isfinite(log_likelihoods).all():
            raise error_about(
                "log_likelihood must be finite for labels that forward has drawn from the same latents, "
                f"got {log_likelihoods[~np.isfinite(log_likelihoods)][0]}"
            )

    @property
    def draws_predictions(self) -> bool:
        """Whether predicted labels are averages over random draws; labels with few values are summed exactly instead."""
        return self.labels is None and super().draws_predictions

    def _mean_label(self, z: Array) -> Array:
        """Mean label ``E[y | z]`` of latents ``z``: a sum over all possible labels where these are few, otherwise a mean over
        fixed draws of the noise. ``y`` repeats one possible label for all samples.
        """
        possible_labels = self.labels
        if possible_labels is None:
            return super()._mean_label(z)
        xp = namespace(z)
        weighted_sum: Array = 0.0
        probability_sum: Array = 0.0
        for label_value in possible_labels:
            label = xp.asarray(label_value, device=array_api_compat.device(z))
            y = xp.broadcast_to(label, (z.shape[0], *label.shape))
            observable_label = xp.astype(observable(self.channel, y), z.dtype)
            with np.errstate(all="ignore"):
                probability = xp.astype(
                    xp.exp(log_likelihood(self.channel, y, z)), z.dtype
                )
            probability_sum = probability_sum + probability
            weighted_sum = weighted_sum + observable_label * xp.reshape(
                probability, (-1, *([1] * (observable_label.ndim - 1)))
            )
        return weighted_sum / xp.reshape(
            probability_sum, (-1, *([1] * (weighted_sum.ndim - 1)))
        )

    def _integrate(self, y: Array, omega: Array, V: Array) -> PosteriorMoments:
        """Posterior moments of the whitened latents given labels ``y``, for latents of prior mean ``omega`` (n, P, C), whose
        shape is checked, and covariance ``V`` (P, P).
        """
        if omega.ndim != 3 or tuple(omega.shape[1:]) != (self.components, self.sites):
            raise ValueError(
                f"the prior means omega must have shape (n, {self.components}, {self.sites}), got {tuple(omega.shape)}"
            )
        return integrate(self.channel, y, omega, V, refine=True)
