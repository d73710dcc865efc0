r"""Correlated Gaussian tokens: the model and the channel in whitened latents, which are independent over sites again.

Tokens ``x_s = sum_t L_st u_t``, ``L L^T = C``, of independent ``u_t`` have the latents ``z = A zeta``, where zeta are those
of u: ``A = L`` for low rank. For extensive rank ``h = L h' L^T`` with ``h'`` the bilinear forms of u, that is
``h_ab = (x_a^T S x_b - C_ab tr S) / sqrt(D)``, each less its mean. State evolution, message passing and all that
rests on them hold for the channel ``zeta -> y(A zeta)``. Derived, checked by tests/inputs/test_correlated.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import array_api_compat
import numpy as np

from smimbench.backend.arrays import matching, namespace
from smimbench.interfaces import (
    Array,
    Channel,
    Host,
    Model,
    ParameterError,
    is_symmetric,
)
from smimbench.interfaces.item import with_defaults
from smimbench.numerics.token_pairs import site_pairs, site_scales


def site_mixing(model: Model, root: Host) -> Host:
    """Matrix ``A`` (C, C) of ``z = A zeta`` for a root L (T, T) of the tokens' covariance.

    Raises
    ------
    ParameterError
        If the sites are neither tokens (low rank) nor pairs of tokens (extensive rank).
    """
    if model.rank == "low":
        A = root
    else:
        pairs = site_pairs(len(root))
        scales = site_scales(len(root))
        A = np.array([
            [t / s * (root[a, c] * root[b, d] + root[a, d] * root[b, c]) / (1 + (c == d)) for t, (c, d) in zip(scales, pairs)]
            for s, (a, b) in zip(scales, pairs)
        ])  # fmt: skip
    if len(A) != model.sites or not is_symmetric(model):
        raise ParameterError(
            "name",
            f"model {model.name!r} has {model.sites} sites: no correlated tokens are known for it",
        )
    return A


class WhitenedModel:
    """A model whose latents are those of the whitened tokens; inputs are the correlated ones.

    Parameters
    ----------
    model : Model
    mixing : ndarray (C, C)
        ``site_mixing``.
    """

    def __init__(self, model: Model, mixing: Host) -> None:
        self.model = model
        self._inverse = np.linalg.inv(mixing)
        # Models subtract the trace for independent tokens: for correlated ones a multiple of the trace is missing.
        self._shift = np.zeros(len(mixing))
        if model.rank == "extensive":
            identity = np.array(
                [(a == b) / math.sqrt(2) for a, b in site_pairs(model.tokens)]
            )
            self._shift = self._inverse @ identity - identity

    def __getattr__(self, name: str) -> Any:
        if name in ("model", "_inverse", "_shift") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.model, name)

    def _whitened(self, z: Array, trace: Array | None) -> Array:
        """Latents (..., n, P, C) from those of the model and traces (..., P) of the signal."""
        xp = namespace(z)
        whitened = xp.matmul(z, xp.asarray(self._inverse.T, **matching(z)))
        if trace is None:
            return whitened
        return whitened + trace[..., None, :, None] * xp.asarray(
            self._shift, **matching(z)
        )

    def _mixed(self, g: Array) -> tuple[Array, Array]:
        """The transpose: gradients with respect to the model's latents, and (..., P) to the traces."""
        xp = namespace(g)
        back = xp.matmul(g, xp.asarray(self._inverse, **matching(g)))
        return back, xp.sum(
            xp.matmul(g, xp.asarray(self._shift, **matching(g))), axis=-2
        )

    def forward(self, inputs: Array, signal: Array) -> Array:
        """Latents of the whitened tokens."""
        z = self.model.forward(inputs, signal)
        if self.model.rank == "low":
            return self._whitened(z, None)
        dimension = signal.shape[-1]
        return self._whitened(
            z, namespace(signal).linalg.trace(signal) / math.sqrt(dimension)
        )

    def adjoint(self, inputs: Array, g: Array) -> Array:
        """Adjoint of ``forward``, in the units of the model's adjoint."""
        back, trace = self._mixed(g)
        gradient = self.model.adjoint(inputs, back)
        if self.model.rank == "low":
            return gradient
        dimension = gradient.shape[-1]
        scale = self.model.adjoint_scale(dimension) / math.sqrt(dimension)
        eye = namespace(gradient).eye(
            dimension, dtype=gradient.dtype, device=array_api_compat.device(gradient)
        )
        return gradient + scale * trace[..., None, None] * eye

    @property
    def forward_gram(
        self,
    ) -> Callable[[Array, Array], tuple[Array, Callable[[Array], Array]]] | None:
        """The model's ``forward_gram`` for whitened latents; None without one."""
        forward_gram = self.model.forward_gram
        if forward_gram is None:
            return None

        def forward(
            inputs: Array, factor: Array
        ) -> tuple[Array, Callable[[Array], Array]]:
            root = math.sqrt(factor.shape[-2])
            z, pull = forward_gram(inputs, factor)

            def pulled(g: Array) -> Array:
                back, trace = self._mixed(g)
                return pull(back) + 2 / root * trace[..., None, None] * factor

            return self._whitened(
                z, namespace(factor).sum(factor * factor, axis=(-2, -1)) / root
            ), pulled

        return forward


class MixedChannel(Channel):
    """The channel ``zeta -> y(A zeta)`` of latents zeta that are independent over sites.

    Subclasses add a posterior in closed form; without one the channel's ``log_likelihood`` is integrated.

    Parameters
    ----------
    channel : Channel
        The channel of correlated latents.
    mixing : array (C, C)
        A, invertible, on the host.
    """

    def __init__(self, channel: Any, mixing: Host) -> None:
        self.channel = channel
        self.mixing = np.asarray(mixing, dtype=float)
        self.inverse = np.linalg.inv(self.mixing)
        self.components = channel.components
        self.symmetry = channel.symmetry
        self.observable = channel.observable
        self.equations = channel.equations

    def __getattr__(self, name: str) -> Any:
        if name in ("channel", "mixing") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(
            self.channel, name
        )  # name, version and parameters: what a contract knows is an attribute here

    def apply(self, matrix: Host, z: Array) -> Array:
        """Product of a matrix on the host with the sites of latents, their last axis."""
        return namespace(z).matmul(z, namespace(z).asarray(matrix.T, **matching(z)))

    def forward(self, z: Array, *, rng: np.random.Generator | None = None) -> Array:
        """Labels of the whitened latents."""
        return self.channel.forward(self.apply(self.mixing, z), rng=rng)

    @property
    def log_likelihood(self) -> Any:  # type: ignore[override]
        """The channel's own, of the whitened latents; None without one."""
        log_likelihood = self.channel.log_likelihood
        return (
            None
            if log_likelihood is None
            else lambda y, z: log_likelihood(y, self.apply(self.mixing, z))
        )

    @property
    def predict(self) -> Any:  # type: ignore[override]
        """The channel's own, of the whitened latents; None without one."""
        predict = self.channel.predict
        return (
            None if predict is None else lambda z: predict(self.apply(self.mixing, z))
        )

    @property
    def vjp(self) -> Any:  # type: ignore[override]
        """The channel's own, of the whitened latents; None without one."""
        vjp = self.channel.vjp
        mixing = self.mixing
        return (
            None
            if vjp is None
            else lambda z, g: self.apply(mixing.T, vjp(self.apply(mixing, z), g))
        )


def mixed_channel(channel: Any, mixing: Host) -> Any:
    """The channel of whitened latents, in closed form where the channel has one.

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
            "its tokens must be independent",
        )
    return MixedChannel(channel, mixing)
