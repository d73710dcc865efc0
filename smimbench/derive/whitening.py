r"""Gaussian inputs that are not iid: models, priors and channels in whitened coordinates.

**Features of different variances** ``lambda_k``, for signals of low rank. Whitened inputs ``u_k = x_k / sqrt(lambda_k)`` and
the signal ``S_k = sqrt(lambda_k) W_k`` have the same latents, so that

.. math::

    Q = \frac1D \sum_k \lambda_k \hat W_k \hat W_k^T, \qquad
    R_k = W_k + (\lambda_k \hat Q)^{-1/2} Z_k, \qquad
    V = \frac1D \sum_k \lambda_k\, \mathrm{Cov}(W_k | R_k):

all that is new are weights in products of signals and a denoiser for each feature. Arrays stay in the coordinates of W and x.
Derived, checked by tests/inputs/test_power_law.py.

**Correlated tokens** ``x_s = sum_t L_st u_t``, ``L L^T = C``, of independent ``u_t`` have the latents ``z = A zeta``, where
zeta are those of u, which are independent over sites again: ``A = L`` for low rank. For extensive rank ``h = L h' L^T`` with
``h'`` the bilinear forms of u, that is ``h_ab = (x_a^T S x_b - C_ab tr S) / sqrt(D)``, each less its mean. State evolution,
message passing and all that rests on them hold for the channel ``zeta -> y(A zeta)``. Derived, checked by
tests/inputs/test_correlated.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from smimbench.backend.arrays import asarray_like, matching, namespace, send, to_host
from smimbench.interfaces import (
    Array,
    Channel,
    Denoised,
    Host,
    Inputs,
    Model,
    Overlap,
    ParameterError,
    Prior,
    is_symmetric,
)
from smimbench.interfaces.item import Delegate, with_defaults
from smimbench.numerics.indexing import site_pairs, site_scales


class WeightedModel(Delegate):
    """Low-rank model for features of unequal variances, which weight overlaps and errors of signals.

    ``model`` is the one without weights.
    """

    _wrapped_attribute = "model"

    def __init__(self, model: Model, inputs: Inputs) -> None:
        """Wrap a model, with the feature variances lambda of the inputs."""
        self.model = model
        self.inputs = inputs

    def _roots(self, dimension: int) -> Array:
        """Square roots (D,) of the variances of the features, on the host."""
        assert self.inputs.feature_variances is not None
        return np.sqrt(self.inputs.feature_variances(dimension))

    def _weights(self, signal: Array) -> Array:
        """Square roots (D,) of the feature variances, as an array of the signal's library."""
        variance_roots = self._roots(signal.shape[-1])
        return asarray_like(variance_roots, signal)

    def weighted(self, signal: Array) -> Array:
        """Whitened signal: every feature (last axis) of the signal times the square root of its variance."""
        return signal * self._weights(signal)

    def inner(self, signal_1: Array, signal_2: Array) -> Array:
        """Overlaps ``sum_k lambda_k A_k B_k^T / D`` (..., P, P) of two signals A (``signal_1``) and B (``signal_2``), weighted by
        the feature variances.
        """
        return self.model.inner(self.weighted(signal_1), self.weighted(signal_2))

    def squared_error(self, signal: Array, estimate: Array) -> Array:
        """Squared error (..., P) of each component of an estimate, weighted by the feature variances."""
        return self.model.squared_error(self.weighted(signal), self.weighted(estimate))

    def overlap(self, signal: Array, estimate: Array) -> Array:
        """Squared cosine (..., P) between each component of signal and estimate, weighted by the feature variances."""
        return self.model.overlap(self.weighted(signal), self.weighted(estimate))

    def align(self, signal: Array, estimate: Array, symmetry: str) -> Array:
        """Move the estimate as close to the signal as the ``symmetry`` of the labels (such as sign flips) allows, with
        distances weighted by feature variances.
        """
        if symmetry == "none":
            return estimate
        feature_weights = self._weights(estimate)
        aligned = self.model.align(
            self.weighted(signal), estimate * feature_weights, symmetry
        )
        return aligned / feature_weights

    def draw_noise(
        self, rng: np.random.Generator, components: int, dimension: int
    ) -> Host:
        """Draw the noise Z (P, D) of the observation ``R = W + Qhat^(-1/2) Z`` of a signal W, of variance ``1 / lambda_k`` for
        feature k, where lambda_k is the feature's variance.
        """
        noise = self.model.draw_noise(rng, components, dimension)
        return np.asarray(noise / self._roots(dimension))


class WeightedPrior(Delegate):
    """Gaussian prior for features of unequal variances, denoised feature by feature.

    ``prior`` is the one for features of variance 1. The state-evolution map is a mean over the spectrum, whose number of
    features the inputs know.
    """

    _wrapped_attribute = "prior"

    def __init__(self, prior: Prior, inputs: Inputs) -> None:
        """Wrap a Gaussian prior, with the feature variances of the inputs."""
        self.prior = prior
        self.variances: Any = inputs.feature_variances
        self.features = inputs.shape[1]
        self.law = prior.law._replace(fluctuation=self._fluctuation)

    def _fluctuation(self, dimension: int) -> float:
        """Relative standard deviation, at finite dimension D, of the weighted overlap ``sum_k lambda_k W_k^2 / D`` of a signal
        W; lambda_k are the feature variances.
        """
        # The few leading features of a steep spectrum hold most of a product, which varies as much.
        squared_variances = self.variances(dimension) ** 2
        return float(np.sqrt(2 * np.mean(squared_variances) / dimension))

    def denoise(self, R: Array, Qhat: Array) -> Denoised:
        """Posterior mean (P, D) of the signal W, feature by feature, given ``R = W + Qhat^(-1/2) Z`` with noise weighted by
        feature, and its weighted error V (P, P).
        """
        xp = namespace(R)
        variances = self.variances(R.shape[-1])
        feature_gains, feature_covariances = self._posterior(
            variances, np.asarray(to_host(Qhat))
        )
        observation_rows = xp.matrix_transpose(R)[:, None, :]
        estimate = xp.matrix_transpose(
            xp.sum(send(feature_gains, R) * observation_rows, axis=-1)
        )
        V = np.mean(variances[:, None, None] * feature_covariances, axis=0)
        return Denoised(estimate, send(V, R))

    def overlap(self, Qhat: Array) -> Overlap:
        """State-evolution map from the information ``Qhat`` (..., P, P) to the overlap Q and error V (..., P, P) of the
        posterior mean, averaged over the spectrum of feature variances.
        """
        assert self.features is not None
        variances, feature_counts = np.unique(
            self.variances(self.features), return_counts=True
        )
        feature_weights = (variances * feature_counts)[:, None, None] / self.features
        Qhat = np.asarray(to_host(Qhat))
        Q = np.empty(Qhat.shape)
        V = np.empty(Qhat.shape)
        # One by one: a spectrum of many features for many Qhat would fill the memory.
        for index in np.ndindex(Qhat.shape[:-2]):
            feature_gains, feature_covariances = self._posterior(variances, Qhat[index])
            Q[index] = np.sum(feature_weights * feature_gains, axis=0)
            V[index] = np.sum(feature_weights * feature_covariances, axis=0)
        return Overlap(Q, V)

    def _posterior(self, variances: Host, Qhat: Host) -> Overlap:
        """Posterior gain (mean over observation) and covariance (D, P, P) of every feature, for D feature ``variances`` and
        information ``Qhat`` (P, P).

        The overlap of a Gaussian signal of variance 1 is its gain.
        """
        overlap: Overlap = self.prior.overlap(variances[:, None, None] * Qhat)
        return overlap


def weighted(model: Model, prior: Any, inputs: Inputs) -> tuple[Any, Any]:
    """Wrap model and prior for inputs whose features have unequal variances. The prior is wrapped if it is Gaussian, that is if
    its estimate at a test observation R is linear in R.

    A prior that is not Gaussian stays as it is, and has no theory. Entries that are independent N(0, 1) have a posterior mean
    that is linear, and no others do.
    """
    R = np.array([[-2.0, -0.7, 0.1, 1.0, 3.0]])
    estimate = prior.denoise(R, np.array([[0.8]])).estimate
    if np.allclose(estimate, R * 0.8 / 1.8, atol=1e-9):
        prior = WeightedPrior(prior, inputs)
    return WeightedModel(model, inputs), prior


def site_mixing(model: Model, token_root: Host) -> Host:
    """Matrix ``A`` (C, C) that mixes independent latents zeta into those of correlated tokens, ``z = A zeta``; ``token_root`` L
    (T, T) is a root of the token covariance. Rows and columns are sites: tokens, or for matrix signals pairs of tokens, (a, b)
    for a row and (c, d) for a column, with the scale of their latents.

    Raises
    ------
    ParameterError
        If the sites are neither tokens (low rank) nor pairs of tokens (extensive rank).
    """
    mixing = token_root
    if model.rank == "extensive":
        pairs_and_scales = list(
            zip(site_pairs(len(token_root)), site_scales(len(token_root)))
        )
        mixing = np.empty((len(pairs_and_scales), len(pairs_and_scales)))
        for row, ((token_a, token_b), row_scale) in enumerate(pairs_and_scales):
            for column, ((token_c, token_d), scale) in enumerate(pairs_and_scales):
                products = (
                    token_root[token_a, token_c] * token_root[token_b, token_d]
                    + token_root[token_a, token_d] * token_root[token_b, token_c]
                )
                mixing[row, column] = (
                    scale / row_scale * products / (1 + (token_c == token_d))
                )
    if len(mixing) != model.sites or not is_symmetric(model):
        raise ParameterError(
            "name",
            f"model {model.name!r} does not support correlated tokens: its {model.sites} sites are not tokens or pairs of tokens",
        )
    return mixing


class WhitenedModel(Delegate):
    """Model for correlated tokens whose latents are those of the whitened, independent tokens.

    Parameters
    ----------
    model : Model
    mixing : ndarray (C, C)
        ``site_mixing``.
    """

    _wrapped_attribute = "model"

    def __init__(self, model: Model, mixing: Host) -> None:
        """Wrap a model for tokens whose sites are mixed by the matrix ``mixing`` (C, C), and invert it; for matrix signals,
        whose sites are pairs of tokens (a, b), find how the trace of the signal shifts the sites with a = b.
        """
        self.model = model
        self._inverse = np.linalg.inv(mixing)
        # Models subtract the trace for independent tokens: for correlated ones a multiple of the trace is missing.
        self._shift = np.zeros(len(mixing))
        if model.rank == "extensive":
            diagonal = [a == b for a, b in site_pairs(model.tokens)]
            identity = np.array(diagonal) / math.sqrt(2)
            self._shift = self._inverse @ identity - identity

    def _whitened(self, z: Array, trace: Array | None = None) -> Array:
        """Whitened latents (..., n, P, C) from the latents z of the model, and, for matrix signals, the traces (..., P) of the
        signal, which shift the sites of a token with itself.
        """
        xp = namespace(z)
        whitened = xp.matmul(z, asarray_like(self._inverse.T, z))
        if trace is None:
            return whitened
        diagonal_shift = asarray_like(self._shift, z)
        return whitened + trace[..., None, :, None] * diagonal_shift

    def _mixed(self, g: Array) -> tuple[Array, Array]:
        """Transpose of ``_whitened``: from gradients g in the whitened latents to those in the model's latents and in the
        traces (..., P) of the signal.
        """
        xp = namespace(g)
        latent_gradient = xp.matmul(g, asarray_like(self._inverse, g))
        site_gradient = xp.matmul(g, asarray_like(self._shift, g))
        return latent_gradient, xp.sum(site_gradient, axis=-2)

    def forward(self, inputs: Array, signal: Array) -> Array:
        """Latents (..., n, P, C) that the whitened (independent) tokens would have, from correlated inputs and the signal; z are
        the model's latents, ``trace`` is that of a matrix signal.
        """
        z = self.model.forward(inputs, signal)
        if self.model.rank == "low":
            return self._whitened(z)
        trace = namespace(signal).linalg.trace(signal)
        return self._whitened(z, trace / math.sqrt(signal.shape[-1]))

    def adjoint(self, inputs: Array, g: Array) -> Array:
        """Adjoint of ``forward``: from gradients ``g`` (..., n, P, C) in whitened latents to a gradient in the signal, with the
        scale of the model's adjoint.
        """
        latent_gradient, trace_gradient = self._mixed(g)
        gradient = self.model.adjoint(inputs, latent_gradient)
        if self.model.rank == "low":
            return gradient
        dimension = gradient.shape[-1]
        trace_scale = self.model.adjoint_scale(dimension) / math.sqrt(dimension)
        identity = namespace(gradient).eye(dimension, **matching(gradient))
        return gradient + trace_scale * trace_gradient[..., None, None] * identity

    @property
    def forward_gram(
        self,
    ) -> Callable[[Array, Array], tuple[Array, Callable[[Array], Array]]] | None:
        """Function for the whitened latents of a matrix signal given by a factor (signal = factor times its transpose); None if
        the model has none.
        """
        return self._forward_gram if self.model.forward_gram else None

    def _forward_gram(
        self, inputs: Array, factor: Array
    ) -> tuple[Array, Callable[[Array], Array]]:
        """Whitened latents of the matrix signal ``factor`` times its transpose (z are the model's), and the function ``pull``
        that takes gradients in them back to gradients in the factor.
        """
        assert self.model.forward_gram is not None
        sqrt_dimension = math.sqrt(factor.shape[-2])
        z, model_pull = self.model.forward_gram(inputs, factor)
        trace = namespace(factor).sum(factor * factor, axis=(-2, -1)) / sqrt_dimension

        def pull(g: Array) -> Array:
            """Gradient in the signal's ``factor`` (the signal is factor times its transpose), from the gradient ``g`` in whitened
            latents, through the model's latents and the signal's trace.
            """
            latent_gradient, trace_gradient = self._mixed(g)
            return (
                model_pull(latent_gradient)
                + 2 / sqrt_dimension * trace_gradient[..., None, None] * factor
            )

        return self._whitened(z, trace), pull


class MixedChannel(Delegate, Channel):
    """Channel ``zeta -> y(A zeta)`` from whitened latents zeta, independent over sites, to the labels y of correlated tokens.
    ``A`` is the mixing matrix (C, C) of the sites.

    Subclasses add a posterior in closed form; without one the channel's ``log_likelihood`` is integrated.

    Parameters
    ----------
    channel : Channel
        The channel of correlated latents.
    mixing : array (C, C)
        A, invertible, on the host.
    """

    _wrapped_attribute = "channel"

    def __init__(self, channel: Any, mixing: Host) -> None:
        """Wrap a channel with the mixing matrix A (C, C) of its sites."""
        self.channel = channel
        self.mixing = np.asarray(mixing, dtype=float)
        self.inverse = np.linalg.inv(self.mixing)
        # what a contract has a default for is not looked up in the original
        self.components = channel.components
        self.symmetry = channel.symmetry
        self.observable = channel.observable
        self.equations = channel.equations

    def apply(self, matrix: Host, z: Array) -> Array:
        """Multiply latents ``z`` (..., C) along their last axis (the sites) by a host matrix (C, C)."""
        return namespace(z).matmul(z, asarray_like(matrix.T, z))

    def forward(self, z: Array, *, rng: np.random.Generator | None = None) -> Array:
        """Draw labels of the whitened latents ``z``; ``rng`` draws the noise."""
        return self.channel.forward(self.apply(self.mixing, z), rng=rng)

    @property
    def log_likelihood(self) -> Any:  # type: ignore[override]
        """Function for the log-likelihood of labels y given whitened latents z; None if the channel has none."""
        if self.channel.log_likelihood is None:
            return None
        return lambda y, z: self.channel.log_likelihood(y, self.apply(self.mixing, z))

    @property
    def predict(self) -> Any:  # type: ignore[override]
        """Function that predicts labels from whitened latents z; None if the channel has none."""
        if self.channel.predict is None:
            return None
        return lambda z: self.channel.predict(self.apply(self.mixing, z))

    @property
    def vjp(self) -> Any:  # type: ignore[override]
        """Function for the gradient of predicted labels with respect to whitened latents; None if the channel has none."""
        return self._vjp if self.channel.vjp else None

    def _vjp(self, z: Array, cotangent: Array) -> Array:
        """Gradient of ``sum(cotangent * predicted labels)`` in the whitened latents ``z``; ``cotangent`` is the derivative of a
        loss with respect to the labels.
        """
        gradient = self.channel.vjp(self.apply(self.mixing, z), cotangent)
        return self.apply(self.mixing.T, gradient)


def mixed_channel(channel: Channel, mixing: Host) -> Channel:
    """Channel of the whitened latents zeta for correlated tokens, ``zeta -> y(A zeta)`` with ``mixing`` A, in closed form
    where the channel has one.

    Raises
    ------
    ParameterError
        If it has neither that nor a likelihood.
    """
    with_defaults(Channel, type(channel))
    if channel.mixed is not None:
        return channel.mixed(mixing)
    if channel.log_likelihood is None:
        raise ParameterError(
            "name",
            f"channel {channel.name!r} has no posterior for correlated tokens (neither `mixed` nor `log_likelihood`): "
            "use inputs with independent tokens",
        )
    return MixedChannel(channel, mixing)
