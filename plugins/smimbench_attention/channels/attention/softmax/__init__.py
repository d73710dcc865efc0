"""Softmax attention channels of extensive rank: one layer, tied or untied; see ``two_layers`` for two."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.random import Generator

from smimbench.backend import namespace, scalar_products, shared_constants
from smimbench.derive import MixedChannel
from smimbench.interfaces import (
    Array,
    Host,
    ParameterError,
    Posterior,
    Sampling,
    Uncertain,
)
from smimbench.interfaces.checks import (
    LARGEST_PARAMETER,
    check_latents,
    check_number,
    check_whole,
)
from smimbench.numerics import gauss_legendre, site_entries, site_pairs, site_values
from smimbench_attention.channels.attention.softmax.two_layers import (
    LARGEST_BETA,
    TwoLayerAttention,
)
from smimbench_attention.channels.common import (
    AttentionChannel,
    SoftmaxChannel,
    identity_like,
    log_softmax,
    normal_density,
    on_host,
    raw_second_moment,
    softmax_vjp,
    uncertain_like,
)

# Labels of two layers for differences of the information. Doubled: 1.6 times the time of one, and seldom an accurate value fewer.
LABELS_FOR_DIFFERENCES = 1 << 11


@dataclass(frozen=True)
class AttentionSoftmax(SoftmaxChannel, AttentionChannel):
    r"""Softmax attention channel: row-wise softmax of the matrix of logits of all pairs of tokens.
    ``beta`` is the inverse temperature, ``skip`` the weight of the skip connection between layers.

    .. math::

        y_{ab} = \log \frac{e^{\beta h_{ab}}}{\sum_{b'} e^{\beta h_{ab'}}}, \qquad
        h_{ab} = h_{ba} = \sqrt{1 + \delta_{ab}}\, z_{ab}.

    Labels are log-probabilities (n, T, T): probabilities underflow at large beta, their logarithms do not.
    The label fixes h up to one common constant, so the posterior is Gaussian along that one direction and
    every result but the generalization error is free of beta.

    Without symmetry (untied queries and keys, one layer) the softmax is over the T - 1 other tokens, labels are (n, T, T - 1),
    and each row leaves a constant of its own open.

    Parameters
    ----------
    tokens : int
        T, at least 2, without symmetry 3; filled in from the model.
    layers : int
        Number of attention layers: 1, or 2 for two tokens.
    beta : float
        Inverse temperature, positive.
    skip : float
        Weight of the skip connection of the layers before the last. With a single layer there is none, and
        any value but the default is refused.
    symmetric : bool
        Filled in from the model.

    Notes
    -----
    A label stores the differences of ``beta h``, hence h with an absolute error of about ``1e-16 / beta``
    when ``beta h`` is small: with beta far below 1 perfect recovery ends at ``sqrt(V)`` of that size.

    References
    ----------
    Model: arXiv:2506.01582. Posterior and information: derived, checked by
    tests/channels/attention/test_attention_softmax.py.
    """

    tokens: int
    layers: int = 1
    beta: float = 1.0
    skip: float = 1.0  # weight of the skip connection
    symmetric: bool = True  # whether queries and keys are tied

    def __post_init__(self) -> None:
        """Check the numbers of tokens and layers, beta (inverse temperature), skip (weight of the skip connection), and which of
        them go together.
        """
        check_whole("tokens", self.tokens, 2)
        check_whole("layers", self.layers, 1, 2)
        if self.layers == 2 and self.tokens != 2:
            raise ParameterError(
                "layers",
                f"must be 1 for more than two tokens (tokens = {self.tokens}), got 2",
            )
        if self.layers == 2 and not self.symmetric:
            raise ParameterError("layers", "must be 1 with symmetric = false, got 2")
        check_number(
            "beta",
            self.beta,
            positive=True,
            maximum=LARGEST_BETA if self.layers == 2 else LARGEST_PARAMETER,
        )
        check_number("skip", self.skip, positive=False)
        if self.layers == 1 and self.skip != 1.0:
            raise ParameterError(
                "skip",
                f"has no effect with layers = 1 and must be left out, got {self.skip}",
            )
        _ = self._separate_channel  # checks the number of tokens

    @property
    def _separate_channel(self) -> TwoLayerAttention | RowSoftmax | None:
        """Separate implementation for two layers, or for untied queries and keys; None for one layer with symmetry."""
        if not self.symmetric:
            return RowSoftmax(self.tokens, self.beta)
        return (
            TwoLayerAttention(beta=self.beta, skip=self.skip)
            if self.layers == 2
            else None
        )

    @property
    def components(self) -> int:
        """Number of components: one matrix per layer."""
        return self.layers

    def forward(self, z: Array, *, rng: np.random.Generator | None = None) -> Array:
        """Log-probabilities ``y = log softmax_rows(beta h)`` (..., n, T, T), h the symmetric matrix of logits, of the latents z
        (..., n, 1, C).

        ``rng`` is not used: the channel is noiseless. ValueError if z has another shape.
        """
        if separate_channel := self._separate_channel:
            return separate_channel.forward(z)
        check_latents(z, 1, self.sites)
        return log_softmax(self.beta * self._logit_matrix(z[..., 0, :]))

    def vjp(self, z: Array, cotangent: Array, output: Array | None = None) -> Array:
        r"""Gradient of ``sum(cotangent * observable(forward(z)))`` with respect to the latents z (..., n, 1, C); ``cotangent``
        (..., n, T, T) is the derivative of a loss with respect to the probabilities.

        With p the probabilities, ``A_ab = beta p_ab (G_ab - sum_b' G_ab' p_ab')`` and
        ``gradient_ab = sqrt(1 + delta_ab) (A_ab + (1 - delta_ab) A_ba)``.

        ``z`` (..., n, 1, C) and ``cotangent`` G (..., n, T, T), the derivative of a loss with respect to the probabilities;
        ``output`` are the probabilities p, if they are known.
        """
        if separate_channel := self._separate_channel:
            return separate_channel.vjp(z, cotangent)
        probabilities = self.predict(z) if output is None else output
        logit_gradient = softmax_vjp(probabilities, cotangent, self.beta)
        return self._latent_gradient(logit_gradient)[..., None, :]

    @property
    def mixed(self) -> Callable[[Host], MixedAttentionSoftmax] | None:  # type: ignore[override]
        """Channel ``zeta -> y(A zeta)`` for correlated latents ``z = A zeta``; None for two layers, or without symmetry."""
        return None if self._separate_channel else partial(MixedAttentionSoftmax, self)

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: Generator | None = None,
    ) -> Posterior:
        r"""Posterior of ``z ~ N(omega, V I_C)`` given the label y, in closed form: all but one direction u of the latents are
        known.

        With ``u_ab = 1 / sqrt(1 + delta_ab)`` the label says ``z = z0 + c u`` for an unknown number c, so

        .. math::

            E[z] = \omega + \Big(I - \frac{u u^T}{|u|^2}\Big) (z_0 - \omega), \qquad
            \mathrm{Cov}(z) = V \frac{u u^T}{|u|^2}, \qquad |u|^2 = \frac{T^2}{2}.

        ``y`` (n, T, T), ``omega`` (n, 1, C), ``V`` (1, 1), ``second_moment`` (n, 1, C, 1, C); the ``covariance`` is V / C.
        ``rng`` is not used.
        """
        if separate_channel := self._separate_channel:
            return separate_channel.posterior(
                y, omega, V, second_moment=second_moment, rng=rng
            )
        xp = namespace(y, omega, V)
        check_latents(omega, 1, self.sites)
        u, orthogonal_shift = self._orthogonal_shift(y, omega)
        mean = omega + orthogonal_shift
        second_moment_of_z = None
        if second_moment:
            line_projection = (u[:, None] * u[None, :]) * (2.0 / self.tokens**2)
            second_moment_of_z = raw_second_moment(
                mean, V[..., None, :, :] * line_projection
            )
        return Posterior(xp.asarray(mean), V / self.sites, second_moment_of_z)

    def log_partition(self, y: Array, omega: Array, V: Array) -> Array:
        r"""Log-density (n,) of the label y for ``z ~ N(omega, V I_C)``, up to the volume element of label space.

        .. math::

            \log Z = -\frac{|(I - u u^T / |u|^2)(z_0 - \omega)|^2}{2 V} - \frac{C - 1}{2} \log(2 \pi V)

        The reference measure is Lebesgue's on the hyperplane orthogonal to u, which the labels map onto one
        to one; the Jacobian between the two depends on y alone.

        ``y`` (n, T, T), ``omega`` (n, 1, C), ``V`` (1, 1), result (n,).
        """
        if separate_channel := self._separate_channel:
            return separate_channel.log_partition(y, omega, V)
        xp = namespace(y, omega, V)
        check_latents(omega, 1, self.sites)
        _, orthogonal_shift = self._orthogonal_shift(y, omega)
        variance = V[0, 0]
        squared_shift = (
            xp.sum(orthogonal_shift * orthogonal_shift, axis=(-2, -1)) / variance
        )
        return -0.5 * squared_shift - 0.5 * (self.sites - 1) * xp.log(
            2 * math.pi * variance
        )

    def information(
        self, Q: Array, V: Array, *, labels: int | None = None
    ) -> Uncertain:
        """Information ``E sum_c g_c^2 = (T^2 + T - 2) / (2 V)`` of labels of one layer, g the score ``(E[z | y] - omega) / V``,
        for every Q: labels fix all directions of the latents but one. With two layers it is sampled, from so many ``labels``.

        ``Q`` and ``V`` (..., 1, 1), leading axes are a batch; the result has their common shape.
        """
        if separate_channel := self._separate_channel:
            return separate_channel.information(Q, V, labels=labels)
        xp = namespace(Q, V)
        V = xp.broadcast_arrays(Q, V)[1]
        return Uncertain((self.sites - 1) / V, 0.0, "closed form")

    @property
    def sampling(self) -> Sampling | None:  # type: ignore[override]
        """Number of labels that sampled information needs for finite differences; None for one layer."""
        return (
            None if self.layers == 1 else Sampling(lambda Q, V: LABELS_FOR_DIFFERENCES)
        )

    @property
    def equations(self) -> float:
        """Number of independent equations in a label: differences of one layer's latents, or two margins for two layers.

        With two layers, either one known, the margins still depend on two numbers of the other: both share the equations.
        """
        if self.layers == 2:
            return 2.0
        return (
            float(self.sites - 1)
            if self.symmetric
            else RowSoftmax(self.tokens, self.beta).equations
        )

    @property
    def generalization_error(  # type: ignore[override]
        self,
    ) -> Callable[[Array, Array], dict[str, Uncertain]] | None:
        """Prediction errors on a new label for two tokens and one layer; None otherwise, as quadrature has too many
        dimensions.
        """
        return (
            self._two_token_error
            if self.tokens == 2 and not self._separate_channel
            else None
        )

    def _two_token_error(self, Q: Array, V: Array) -> dict[str, Uncertain]:
        r"""Squared error of the predicted probabilities of two tokens, summed over the four entries of the label, at overlap Q
        and error V (..., 1, 1), by predictor (Bayes, plug-in, constant), by quadrature with a finer and a coarser number of nodes
        per panel.

        With ``m ~ N(0, 3 Q)``, ``u | m ~ N(m, 3 V)`` and the logistic function s, both rows being alike,

        .. math::

            \mathrm{bayes} = 4 E_m \mathrm{Var}_u s(\beta u), \quad
            \mathrm{plugin} = 4 E (s(\beta u) - s(\beta m))^2, \quad
            \mathrm{constant} = 4 \mathrm{Var} s(\beta u).

        Panels of Gauss-Legendre nodes follow the step of s, so that the cost does not grow with beta; the
        error is the difference of two orders.

        ``Q`` and ``V`` (..., 1, 1), results (...).
        """
        q, v = (array[..., 0, 0] for array in on_host(Q, V))
        overlap_pairs = zip(q.ravel().tolist(), v.ravel().tolist())
        error_by_nodes = np.array(
            [
                [
                    _two_token_errors(*overlap_pair, self.beta, node_count)
                    for node_count in PANEL_NODES
                ]
                for overlap_pair in overlap_pairs
            ]
        )
        by_predictor = {}
        for predictor, fine_value, coarse_value in zip(
            ("bayes", "plugin", "constant"),
            error_by_nodes[:, 0].T,
            error_by_nodes[:, 1].T,
            strict=True,
        ):
            error = np.abs(fine_value - coarse_value) + 1e-14 * fine_value
            by_predictor[predictor] = uncertain_like(
                V, fine_value.reshape(q.shape), error.reshape(q.shape), "quadrature"
            )
        return by_predictor

    def _orthogonal_shift(self, y: Array, omega: Array) -> tuple[Array, Array]:
        """Direction u (C,) of the latents that the label y leaves unknown, and the part orthogonal to it of the shift ``z0 -
        omega`` (n, 1, C) from the mean to latents z0 that have this label.
        """
        u, z0 = self._line_of_label(y, omega)
        shift = z0 - omega[..., 0, :]
        projection = scalar_products(shift, u)[..., None] * (2.0 / self.tokens**2)
        return u, (shift - projection * u)[..., None, :]

    def _line_of_label(self, y: Array, omega: Array) -> tuple[Array, Array]:
        """Direction u (C,) and a point z0 (n, C) of the line ``z0 + c u`` of latents that all have the label y (n, T, T): z0 is
        ``(y_ab - y_aT + y_Ta) u_ab / beta``, with the label's entry of each pair and those in its last column and last row. Of
        ``omega`` only the kind of array matters.
        """
        xp = namespace(y, omega)
        T = self.tokens
        u = shared_constants(
            site_values(T, 1 / math.sqrt(2.0), 1.0), omega, omega.dtype
        )
        # The normalization of row a cancels against that of the last row: h_aT = h_Ta appears in both.
        normalizations = y[..., :, -1] - y[..., -1, :]
        flat_label = xp.reshape(y, (*y.shape[:-2], T * T))
        entries, rows = (
            shared_constants(indices, y, xp.int64)
            for indices in (site_entries(T), _rows_of_sites(T))
        )
        logits = xp.take(flat_label, entries, axis=-1) - xp.take(
            normalizations, rows, axis=-1
        )
        return u, logits * (u / self.beta)


@cache
def _rows_of_sites(tokens: int) -> tuple[int, ...]:
    """Row of the matrix of logits in which the entry of each site is, the first token of its pair."""
    return tuple(a for a, _ in site_pairs(tokens))


@dataclass(frozen=True)
class RowSoftmax:
    r"""Softmax over the T - 1 other tokens, ``y_ab = log softmax_b(beta h_ab)`` for ``b != a``, with untied queries and keys:
    labels (n, T, T - 1); ``tokens`` is T, ``beta`` the inverse temperature.

    A row fixes its T - 1 latents up to one common constant: the posterior is Gaussian along the T directions of these
    constants, and T (T - 2) combinations of the latents are known. Methods and arguments are those of ``AttentionSoftmax``.
    """

    tokens: int
    beta: float

    def __post_init__(self) -> None:
        """Check that there are at least three tokens."""
        if self.tokens < 3:
            raise ParameterError(
                "tokens",
                "must be at least 3 with symmetric = false: rows with a single entry carry no information",
            )

    @property
    def equations(self) -> float:
        """Number of independent equations in a label, ``T (T - 2)``."""
        return float(self.tokens * (self.tokens - 2))

    def _rows(self, z: Array) -> Array:
        """Rows (..., n, T, T - 1) of logits, one for each token, from the latents z (..., n, 1, C)."""
        check_latents(z, 1, self.tokens * (self.tokens - 1))
        return namespace(z).reshape(z, (*z.shape[:-2], self.tokens, self.tokens - 1))

    def forward(self, z: Array) -> Array:
        """Log-probabilities (..., n, T, T - 1) of attention to the other tokens, from the latents z (..., n, 1, C)."""
        return log_softmax(self.beta * self._rows(z))

    def vjp(self, z: Array, cotangent: Array) -> Array:
        """Gradient of ``sum(cotangent * exp(forward(z)))`` with respect to the latents z (..., n, 1, C); ``cotangent`` is (...,
        n, T, T - 1).
        """
        probabilities = namespace(z).exp(self.forward(z))
        return namespace(z).reshape(
            softmax_vjp(probabilities, cotangent, self.beta), z.shape
        )

    def _observed_shift(self, y: Array, omega: Array) -> Array:
        """Shift (n, 1, C) of the mean omega by the label y: ``z0 - omega``, where z0 = y / beta has the label, minus its mean
        over each row.
        """
        xp = namespace(y, omega)
        logit_shift = y / self.beta - self._rows(omega)
        return xp.reshape(
            logit_shift - xp.mean(logit_shift, axis=-1, keepdims=True), omega.shape
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
        """Posterior of ``z ~ N(omega, V I_C)`` given the label y (n, T, T - 1), which latents z0 have: mean ``omega + (I - 1 1^T
        / (T - 1)) (z0 - omega)`` and covariance ``V 1 1^T / (T - 1)``, row by row.
        """
        mean = omega + self._observed_shift(y, omega)
        second_moment_of_z = None
        if second_moment:
            xp = namespace(y, omega, V)
            T = self.tokens
            row_projection = xp.reshape(identity_like(T, omega), (T, 1, T, 1)) / (T - 1)
            line_projection = xp.reshape(
                xp.broadcast_to(row_projection, (T, T - 1, T, T - 1)),
                (T * (T - 1), T * (T - 1)),
            )
            second_moment_of_z = raw_second_moment(
                mean, V[..., None, :, :] * line_projection
            )
        return Posterior(mean, V / (self.tokens - 1), second_moment_of_z)

    def log_partition(self, y: Array, omega: Array, V: Array) -> Array:
        """Log-density (n,) of the label y (n, T, T - 1) with respect to the T (T - 2) combinations of the latents z ~ N(omega, V)
        that it fixes: each row less its mean.
        """
        xp = namespace(y, omega, V)
        variance = V[0, 0]
        observed_shift = self._observed_shift(y, omega)
        return -0.5 * (
            xp.sum(observed_shift * observed_shift, axis=(-2, -1)) / variance
            + self.equations * xp.log(2 * math.pi * variance)
        )

    def information(
        self, Q: Array, V: Array, *, labels: int | None = None
    ) -> Uncertain:
        """Information ``E sum_c g_c^2 = T (T - 2) / V`` of the labels about the latents, g the score ``(E[z | y] - omega) / V``,
        for every Q and beta; ``labels`` is not used, as nothing is sampled.
        """
        V = namespace(Q, V).broadcast_arrays(Q, V)[1]
        return Uncertain(self.equations / V, 0.0, "closed form")


class MixedAttentionSoftmax(MixedChannel):
    """Softmax attention channel for correlated latents ``z = A zeta``: the label leaves the direction ``A^(-1) u`` unknown."""

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: Generator | None = None,
    ) -> Posterior:
        """Posterior of the whitened latents zeta ~ N(omega, V I) given the label y, Gaussian along the unit vector
        ``free_direction``, ``A^(-1) u``, that it leaves free; ``u, z0`` are direction and point of the line of latents ``z = A
        zeta`` with this label. Arguments are as in ``Channel.posterior``.
        """
        xp = namespace(y, omega, V)
        u, z0 = self.channel._line_of_label(y, omega)
        free_direction = self.apply(self.inverse, u)
        mean_shift = self.apply(self.inverse, z0) - omega[..., 0, :]
        free_direction = free_direction / xp.sqrt(
            xp.sum(free_direction * free_direction)
        )
        mean = (
            omega
            + (
                mean_shift
                - xp.sum(mean_shift * free_direction, axis=-1, keepdims=True)
                * free_direction
            )[..., None, :]
        )
        second_moment_of_zeta = (
            raw_second_moment(
                mean,
                V[..., None, :, :]
                * (free_direction[:, None] * free_direction[None, :]),
            )
            if second_moment
            else None
        )
        return Posterior(mean, V / len(self.mixing), second_moment_of_zeta)

    def information(self, Q: Array, V: Array) -> Uncertain:
        """Information of the labels at overlap Q and error V, the same as for independent tokens: labels fix all directions but
        one.
        """
        information: Uncertain = self.channel.information(Q, V)
        return information


# Gauss-Legendre nodes of a panel: the first count is the answer, the second gives the error. Doubled: errors are rounding
# already, three times the time.
PANEL_NODES = (12, 10)


def _two_token_errors(q: float, v: float, beta: float, node_count: int) -> Host:
    """Bayes, plug-in and constant error (3,) of the predicted probabilities of two tokens at overlap q, error v and inverse
    temperature beta, by ``node_count`` nodes per panel, for ``m ~ N(0, 3 q)`` and ``u ~ N(m, 3 v)``, the estimated and true
    difference of logits.

    The formulas are those of ``AttentionSoftmax._two_token_error``.
    """
    deviation_u = math.sqrt(3 * v)
    deviation_m = math.sqrt(3 * q)
    # As a function of m the integrand has the steepness of s itself and of s smoothed over u.
    scales_of_m = [1 / beta, deviation_u]
    (m_nodes,), (m_weights,) = _graded_normal_rule(
        np.zeros(1), deviation_m, scales_of_m, node_count
    )
    m_nodes, m_weights = (
        m_nodes[m_weights > 0],
        m_weights[m_weights > 0],
    )  # about half of the panels lie beyond the reach and are empty
    logistic_variance, squared_logistic_error = _logistic_errors(
        deviation_m * m_nodes, deviation_u, beta, node_count
    )
    bayes_error = m_weights @ logistic_variance
    plugin_error = m_weights @ squared_logistic_error
    constant_error = _logistic_errors(
        np.zeros(1), math.sqrt(3 * (q + v)), beta, node_count
    )[0][0]
    return 4 * np.array([bayes_error, plugin_error, constant_error])


def _logistic_errors(
    m: Host, deviation: float, beta: float, node_count: int
) -> tuple[Host, Host]:
    """Variance of ``s(beta u)``, and ``E (s(beta u) - s(beta m))^2``, each (k,), for the logistic function s, means m (k,) and
    ``u ~ N(m, deviation^2)``, by ``node_count`` Gauss-Legendre nodes per panel; ``logistic_difference`` is ``s(beta u) - s(beta
    m)`` at the nodes.
    """
    from scipy.special import expit

    nodes, weights = _graded_normal_rule(m, deviation, [1 / beta], node_count)
    scaled_mean = beta * m[:, None]
    scaled_deviation = beta * deviation * nodes
    deviation_sign = np.sign(scaled_deviation)
    # s(high) - s(low) as a product: the difference of two numbers near 1 would keep no digits.
    logistic_difference = (
        expit(deviation_sign * (scaled_mean + scaled_deviation))
        * np.where(scaled_deviation > 0, expit(-scaled_mean), expit(scaled_mean))
        * -np.expm1(-np.abs(scaled_deviation))
        * deviation_sign
    )
    mean_difference = np.sum(weights * logistic_difference, axis=1)
    mean_squared_difference = np.sum(weights * logistic_difference**2, axis=1)
    return mean_squared_difference - mean_difference**2, mean_squared_difference


def _graded_normal_rule(
    center: Host, deviation: float, step_widths: list[float], node_count: int
) -> tuple[Host, Host]:
    """Quadrature nodes x (k, N) and weights for ``N(0, 1)``, for k values of ``center``: panels of ``node_count`` nodes grow, in
    units of each of ``step_widths``, from the point where ``center + deviation x`` is 0 and the integrand has a step; 8 equal
    panels between +-``half_range`` are added.
    """
    half_range = 9.0  # leaves out 1e-19
    step_distances = np.outer(
        step_widths, (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    ).ravel()  # distances from the step, in its widths
    distance_from_center = (
        np.concatenate([-step_distances, step_distances]) - center[:, None]
    )
    with np.errstate(over="ignore"):
        panel_ends = (
            distance_from_center / deviation
            if deviation > 0
            else np.where(distance_from_center > 0, half_range, -half_range)
        )
    even_ends = np.broadcast_to(
        np.linspace(-half_range, half_range, 9), (len(center), 9)
    )
    panel_edges = np.sort(
        np.concatenate(
            [even_ends, np.clip(panel_ends, -half_range, half_range)], axis=1
        ),
        axis=1,
    )
    nodes, weights = gauss_legendre(node_count)
    half_lengths = np.diff(panel_edges, axis=1)[:, :, None] / 2
    panel_nodes = panel_edges[:, :-1, None] + half_lengths * (1 + nodes)
    return panel_nodes.reshape(len(center), -1), (
        half_lengths * weights * normal_density(panel_nodes)
    ).reshape(len(center), -1)
