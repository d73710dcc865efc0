"""Channel of deep softmax attention with one direction per layer, for sequence multi-index models.

Which file serves which case:

=====================  ==========================================================================================
``network``            forward pass, its derivative, and ``u`` from the label; any number of layers and tokens
``one_layer``          closed forms of one layer
``two_layers/``        two layers of two tokens: adaptive quadrature, on the host and on a device
``deep/``              up to four layers of two tokens, and two layers of three: importance sampling
``last_layer/``        information of two tokens where the last layer, and at most one before it, has an overlap: tables
``information``        chooses how it is found; where there is no table, means over random labels
=====================  ==========================================================================================
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from smimbench.backend import namespace, read_together
from smimbench.interfaces import (
    Array,
    Host,
    ParameterError,
    Posterior,
    Sampling,
    Uncertain,
)
from smimbench.interfaces.checks import check_latents, check_number, check_whole
from smimbench_attention.channels.common import SequenceChannel, SoftmaxChannel
from smimbench_attention.channels.sequence.softmax import (
    deep,
    network,
    one_layer,
    two_layers,
)
from smimbench_attention.channels.sequence.softmax.deep import LayerMoments
from smimbench_attention.channels.sequence.softmax.information import (
    labels_for_differences,
    means_over_labels,
)
from smimbench_attention.channels.sequence.softmax.network import Network
from smimbench_attention.channels.sequence.softmax.one_layer import MixedSequenceSoftmax

MOST_LAYERS = {2: 4, 3: 2}
"""Largest number of layers by number of tokens, 1 for more tokens: what the integrators are made for."""


@dataclass(frozen=True)
class SequenceSoftmax(SoftmaxChannel, SequenceChannel):
    """Noiseless deep attention, one direction per layer, observed through its last attention matrix.
    ``skip`` is the weight c of the skip connections, ``accuracy`` the target error of a posterior mean, ``points`` the largest
    number of random points of a sampled posterior.

    Latents ``z`` (n, L, M) hold one row per layer. With ``S(v) = softmax_rows(v v^T)``::

        h_1 = z_1,   B_l = [c I + S(h_l)] B_{l-1},   h_{l+1} = B_l z_{l+1},   u = h_L,   y = log S(u)

    The label is kept as log-probabilities (n, M, M), from which ``u`` is recovered up to its sign;
    probabilities would lose every digit where attention saturates. ``observable`` gives the probabilities.
    The label does not change when any layer changes its sign.

    Parameters
    ----------
    tokens : int
        M, at least 2; filled in from the model. A single token attends to itself whatever the signal.
    layers : int
        L, the number of layers, each with its own direction to be learned.
    skip : float
        c >= 0, the weight of the skip connection of every layer before the last.
    accuracy : float
        Target for the error of the posterior mean: root mean square over samples, relative to ``sqrt(diag V)``.
        What was reached is reported in ``Posterior.error``. One layer is exact, two layers of two tokens reach
        any target; everything deeper is sampled, and ends between 1e-3 and 5e-2 with the default ``points``.
    points : int
        Most points per sample where the posterior is sampled (more than two layers, or more than two tokens).

    Raises
    ------
    ParameterError
        For values outside these ranges, and for sizes without an integrator: L = 1 takes any M, M = 2 up to
        four layers, M = 3 two.

    Notes
    -----
    Model of arXiv:2502.00901. The posterior is derived, checked by tests/channels/sequence/test_softmax.py. With four layers and
    c = 0, means over labels from tables and from samples differ by about a tenth (10% +- 6% at overlap .97): theory there is not
    sure to its stated error.
    """

    tokens: int
    layers: int = 1
    skip: float = 1.0  # weight of the skip connection
    accuracy: float = 1e-5  # target for the error of the posterior mean
    points: int = 2048  # most of a sampled posterior

    version = 5
    symmetry = "signs"
    _points_seed = 0

    def __post_init__(self) -> None:
        """Check the numbers of tokens, layers and points, skip and accuracy."""
        check_whole("tokens", self.tokens, 2)
        check_whole("layers", self.layers, 1)
        check_whole("points", self.points, 256, 1 << 24)
        check_number("skip", self.skip, positive=False)
        if self.layers > MOST_LAYERS.get(self.tokens, 1):
            allowed_layers = (
                "must be 1, or at most 4 with tokens = 2, or at most 2 with tokens = 3"
            )
            raise ParameterError(
                "layers",
                f"{allowed_layers}, got layers = {self.layers} with tokens = {self.tokens}",
            )
        if not isinstance(self.accuracy, float) or not 1e-12 <= self.accuracy <= 0.1:
            raise ParameterError(
                "accuracy", f"must be between 1e-12 and 0.1, got {self.accuracy!r}"
            )

    @property
    def components(self) -> int:
        """Number of layers L, with one direction per layer."""
        return self.layers

    @property
    def equations(self) -> float:
        """Number of independent equations in a noiseless label: the number M of tokens, as a label fixes the network's output
        ``u`` up to a sign.
        """
        return float(self.tokens)

    def forward(self, z: Array, *, rng: np.random.Generator | None = None) -> Array:
        """Label ``log softmax_rows(u u^T)`` (n, M, M) of the network's output u for the latents z (n, L, M);
        ``rng`` is not used.
        """
        return network.log_attention(network.output(z, self.skip))

    def vjp(self, z: Array, cotangent: Array) -> Array:
        """Gradient of ``sum(cotangent * observable(forward(z)))`` with respect to the latents ``z`` (n, L, M), by reverse mode;
        ``cotangent`` (n, M, M) is the derivative of a loss with respect to the attention matrix, u the network's output.

        ``z`` (n, L, M), ``cotangent`` (n, M, M), the derivative of a loss with respect to the probabilities.
        """
        u = network.output(z, self.skip)
        return network.output_vjp(
            z, self.skip, network.attention_vjp(u, network.attention(u), cotangent)
        )

    @property
    def mixed(self) -> Callable[[Host], MixedSequenceSoftmax] | None:  # type: ignore[override]
        """Channel ``zeta -> y(A zeta)`` for correlated latents ``z = A zeta``; None for several layers."""
        return (
            functools.partial(MixedSequenceSoftmax, self) if self.layers == 1 else None
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
        """Posterior of the latents ``z ~ N(omega, V (x) I_M)`` given the label y, for means omega (n, L, M) and covariance V (L,
        L) of the layers.

        The label fixes ``u`` up to its sign, so ``z_L = +- B^{-1} u`` is integrated out with the Jacobian
        ``1 / |det B|`` and an integral over the other layers remains: adaptive quadrature for two layers of
        two tokens, importance sampling with quasi-random points otherwise.

        ``y`` (n, M, M), ``omega`` (n, L, M), ``V`` (L, L), positive definite with any correlation, ``second_moment`` (n, L, M,
        L, M). ``rng`` is not needed: integration points are fixed, so that equal inputs give equal results.
        """
        check_latents(
            omega, self.layers, self.tokens
        )  # compiled code would read past the end of a shorter array
        if self.layers == 1:
            return one_layer.posterior(
                network.output_of_label(y), omega, V, second_moment
            )
        return self._moments(y, omega, V, second_moment).posterior(omega, second_moment)

    @property
    def sampling(self) -> Sampling:  # type: ignore[override]
        """Number of labels that finite differences of the information need, and how to sample posteriors with other random
        points.
        """
        return Sampling(
            functools.partial(labels_for_differences, self._network), self._resampled
        )

    def _resampled(self, index: int) -> SequenceSoftmax:
        """Copy of the channel that samples posteriors with another set of random points, of number ``index``; the channel itself
        if its posterior is not sampled.

        Points are shared by all samples of a call, and so is their error. Means over calls with several indices lose it.
        """
        if self.layers == 1 or self._network.is_exact:
            return self
        channel = copy.copy(self)
        # smaller seeds are for means over labels
        object.__setattr__(channel, "_points_seed", 1000 + index)
        return channel

    def log_partition(self, y: Array, omega: Array, V: Array) -> Array:
        """Log-density ``log Z_out`` (n,) of the label y for ``z ~ N(omega, V (x) I_M)``, in the coordinate ``u``, its network
        output modulo sign.

        ``Z_out = p(u) + p(-u)``, ``p`` the Lebesgue density of ``u(z)`` under ``z ~ N(omega, V (x) I)``; its
        integral over half of ``R^M`` is 1. The density of ``y`` differs by a Jacobian of ``y`` alone. The
        gradient with respect to ``omega`` is ``g = V^{-1} (E[z | y] - omega)``.
        """
        if self.layers == 1:
            return one_layer.log_partition(network.output_of_label(y), omega, V)
        return namespace(omega).astype(
            self._moments(y, omega, V, False).log_partition, omega.dtype
        )

    def _moments(
        self, y: Array, omega: Array, V: Array, second_moments: bool
    ) -> LayerMoments:
        """Posterior moments of ``z ~ N(omega, V (x) I_M)`` given labels y, for two layers or more, in float64, whole second
        moments if ``second_moments``, else traces over tokens; NaN where omega or V are not finite, as in a diverged run. ``u``
        is the network's output for a label, up to sign.
        """
        xp = namespace(omega)
        y = xp.astype(y, xp.float64)
        if self.layers > 2:
            self._check_digits(y)
        covariance, omega_finite = read_together(V, xp.all(xp.isfinite(omega)))
        covariance = np.asarray(covariance, dtype=np.float64)
        omega = xp.astype(omega, xp.float64)
        if not (np.all(np.isfinite(covariance)) and omega_finite):
            # A diverged run gives NaN, as arithmetic would.
            matrix_size = self.layers * (self.tokens if second_moments else 1)
            nan_shift = xp.full_like(omega, math.nan)
            nan_matrix = xp.broadcast_to(
                nan_shift[:, :1, :1], (omega.shape[0], matrix_size, matrix_size)
            )
            return LayerMoments(
                nan_shift[:, 0, 0], nan_shift, nan_matrix, nan_shift[:, 0, 0]
            )
        standard_deviations = np.sqrt(np.maximum(np.diagonal(covariance), 1e-300))
        # Layers may differ by many orders of magnitude, so the correlation matrix is checked.
        if (
            not np.linalg.eigvalsh(
                covariance / standard_deviations[:, None] / standard_deviations
            )[0]
            > 0.0
        ):
            raise ValueError(
                f"the covariance V of the latents must be positive definite, got {covariance.tolist()}"
            )
        u = network.output_of_label(y)
        if self._network.is_exact:
            return two_layers.integrate(
                u, omega, covariance, self.skip, self.accuracy, second_moments
            )
        return deep.integrate(
            u,
            omega,
            covariance,
            self.skip,
            self.accuracy,
            self.points,
            second_moments,
            self._points_seed,
        )[0]

    def _check_digits(self, y: Array) -> None:
        """Raise ParameterError if double precision cannot resolve many of the labels y, as many layers without skip connection
        make tokens alike.
        """
        lost_labels = int(
            namespace(y).sum(namespace(y).astype(network.is_unresolved(y), y.dtype))
        )
        # 1% of the labels may have lost their digits, plus three for the smallest batches
        if lost_labels > 1e-2 * y.shape[0] + 3:
            raise ParameterError(
                "skip",
                f"must be larger with {self.layers} layers, got {self.skip}: {lost_labels} of {y.shape[0]} labels are so "
                "close to 1/2 that double precision cannot resolve them (theory without labels still works)",
            )

    def information(
        self, Q: Array, V: Array, *, labels: int | None = None
    ) -> Uncertain:
        """Information ``E sum_m g_m g_m^T`` (..., L, L) of labels, g the score ``V^{-1} (E[z | y] - omega)``, with ``omega ~ N(0,
        Q (x) I)`` and ``z ~ N(omega, V (x) I)``, from so many ``labels`` where it is sampled.

        Quadrature for one layer. For more, a mean over quasi-random labels with control variates that are
        exact on the Nishimori line; the same labels for every (Q, V), so curves are smooth and equal
        arguments give equal results. The posterior of a label comes from a table where at most one layer
        before the last has an overlap.

        ``Q`` and ``V`` (..., L, L), leading axes are a batch; ``error`` has the shape of ``value``. ``labels`` says how many are
        drawn for each (Q, V) that has no closed form; default: where the posterior of a label is integrated exactly (two layers
        of two tokens) as many as an error of 7e-4 of the value takes, at most 131072 (2e-3 for overlaps of layer 1 below .1);
        65536 where it comes from a table, half as many for a table of two known layers, 4096 where it is sampled.
        """
        if self.layers == 1:
            return one_layer.information(Q, V, self.tokens)
        return means_over_labels(self._network, Q, V, labels, 0)

    def susceptibility(
        self, Q: Array, V: Array, *, labels: int | None = None
    ) -> Uncertain:
        """First-order coefficients ``I_ab = lambda_ab Q_ab`` of the information of layers without overlap, by ``labels`` draws.

        ``lambda_ab = E sum_mk G_a,mk G_b,mk`` with ``G_a = (E[z_a z_a^T | y, omega] - V_aa I) / V_aa^2``;
        the weak recovery of layer a happens where ``alpha lambda_aa`` reaches 1 (for a standard normal
        prior). ``M (M + 1)`` for one layer, and less for every layer of a deeper network. Entries of layers
        with an overlap are 0.

        Arguments as for ``information``.
        """
        if self.layers == 1:
            return one_layer.susceptibility(Q, V, self.tokens)
        return means_over_labels(self._network, Q, V, labels, 2)

    @property
    def _network(self) -> Network:
        """Numbers of layers and tokens and the weight of the skip connections, as the functions of this folder take them."""
        return Network(self.layers, self.tokens, self.skip)
