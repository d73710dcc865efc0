"""Information about the latents ``E sum_c g_c g_c^T`` and its error, for channels given only by a likelihood.

A label with few values is summed over, in one dimension by nested quadrature; any other label is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from smimbench.backend.arrays import NUMPY
from smimbench.derive.labels import log_likelihood
from smimbench.derive.likelihood_posterior import (
    BLOCK,
    SCALAR_TOLERANCE,
    integrate,
    reflected,
)
from smimbench.derive.sampled_information import Labels, label_means
from smimbench.interfaces import Array, Channel, Host, Uncertain
from smimbench.numerics.linalg import inverse_root, symmetric, symmetric_root
from smimbench.numerics.memo import cached_on
from smimbench.numerics.quadrature import IMPOSSIBLE, gauss_legendre, line_moments
from smimbench.numerics.random_numbers import monte_carlo_rng, whitened_points

SCRAMBLES = 8
"""Independent scrambles of the points, whose spread is the error; doubled, twice the cost, and it is known 1.4 times better."""
SMALLEST_SUMMED = 1e-3
SMALLEST_INTEGRATED = 1e-7
"""Smallest V/Q at which the information is computed, by sums over labels and by quadrature: below, few labels are in doubt, or
no rule meets so narrow a boundary, and a power law is used; doubled, earlier."""
FAINT_OVERLAP = 0.02
"""Relative overlap below which the information of sign-blind labels is interpolated to zero; doubled, earlier."""
WIDTHS = ((1.0, 512), (1.6, 256), (2.6, 256))
"""Standard deviations of the Gaussians that points are drawn from, and numbers of points; the cost is proportional to these."""
OMITTED_SHARE = 4e-3
"""Share of the information in labels that too few points reach; it halves where the number of points is doubled."""


@dataclass(frozen=True, eq=False)
class LikelihoodInformation:
    """Information ``E sum_c g_c g_c^T``, with g the score of prior means, that labels carry about the latents, as a function of
    overlap Q and error V, for channels with ``forward`` and ``log_likelihood``. ``labels`` are all possible labels if there are
    few, and ``blind_to_signs`` says that labels do not see the sign of the latents.

    There are P components and C sites.
    ``labels`` are all values of a label that has few of them; ``blind_to_signs`` says that no label sees the common sign of
    the latents, so that labels tell nothing at zero overlap.
    """

    channel: Channel
    components: int
    sites: int
    labels: Host | None
    blind_to_signs: bool

    @property
    def dimension(self) -> int:
        """Number of latents per sample, P C."""
        return self.components * self.sites

    def __call__(self, Q: Array, V: Array) -> Uncertain:
        r"""Information ``E sum_c g_c g_c^T`` (..., P, P) at overlap Q and error V, with its error. g_c is the posterior mean of
        site c's latents minus their prior mean, times ``V^-1``; leading axes of Q and V are a batch.

        The prior mean is ``omega ~ N(0, Q (x) I_C)``. Quasi-random points in independent scrambles, whose spread is the
        error. A label with few values is summed over; any other is drawn, for ``label_means``.
        """
        Q = np.asarray(Q, dtype=float)
        V = np.asarray(V, dtype=float)
        Q, V = np.broadcast_arrays(Q, V)
        if self.components == 1:
            value, error = self._for_one_component(Q.ravel(), V.ravel())
            value = value.reshape(Q.shape)
            error = error.reshape(Q.shape)
        else:
            value = np.empty(Q.shape)
            error = np.empty(Q.shape)
            for index in np.ndindex(Q.shape[:-2]):
                value[index], error[index] = self._estimate(Q[index], V[index])
        method = "nested quadrature of the likelihood"
        if not self.is_exact:
            averaging_method = "labels added up"
            if self.labels is None:
                averaging_method = "posterior integrated from the likelihood"
            method = f"Monte Carlo ({SCRAMBLES} Sobol scrambles; {averaging_method})"
        return Uncertain(value, error, method)

    @property
    def is_exact(self) -> bool:
        """Whether the information is computed by quadrature rather than by sampling."""
        return self.labels is not None and self.dimension == 1

    def _for_one_component(self, Q: Host, V: Host) -> tuple[Host, Host]:
        """Information and its error for one component at N overlaps Q and errors V. Where V is nearly zero it is extrapolated
        by a power law in V; where Q is nearly zero, by the susceptibility as slope in Q. ``faint`` names belong to the smallest
        overlap that is still integrated.
        """
        smallest_ratio = SMALLEST_INTEGRATED if self.is_exact else SMALLEST_SUMMED
        is_extrapolated = (smallest_ratio * Q > V) & (self.labels is not None)
        computed_V = np.where(is_extrapolated, smallest_ratio * Q, V)
        information_at_V, information_error = self._without_extrapolation(
            Q + V - computed_V, computed_V
        )
        if is_extrapolated.any():
            # So few labels are uncertain that none would be drawn; their share follows a power law towards this limit.
            information_at_wider_V, error_at_wider_V = self._without_extrapolation(
                (Q + V - 10 * computed_V)[is_extrapolated],
                10 * computed_V[is_extrapolated],
            )
            information_at_smallest = information_at_V[is_extrapolated]
            log_ratio_of_V = np.log(computed_V[is_extrapolated] / V[is_extrapolated])
            with np.errstate(all="ignore"):
                # Labels tell at most the width of the posterior, and never less of a narrower one.
                power_of_V = np.clip(
                    np.log10(information_at_smallest / information_at_wider_V), 0.0, 1.0
                )
                power_of_V = np.where(
                    (information_at_smallest > 0) & (information_at_wider_V > 0),
                    power_of_V,
                    0.0,
                )
                relative_error = (
                    information_error[is_extrapolated]
                    / information_at_smallest
                    * (1 + log_ratio_of_V / math.log(10))
                )
                relative_error = (
                    relative_error
                    + error_at_wider_V
                    / information_at_wider_V
                    * log_ratio_of_V
                    / math.log(10)
                )
            information_at_V[is_extrapolated] = information_at_smallest * np.exp(
                power_of_V * log_ratio_of_V
            )
            information_error[is_extrapolated] = information_at_V[
                is_extrapolated
            ] * np.minimum(np.nan_to_num(relative_error, nan=1.0), 1.0)
        if not self.blind_to_signs or self.is_exact:
            return information_at_V, information_error
        latent_variance = Q + V
        for index in np.flatnonzero(FAINT_OVERLAP * latent_variance > Q):
            # Labels that see no sign tell nothing at first, and then in proportion to what is known.
            initial_slope = self.susceptibility(latent_variance[index])
            faint_Q = FAINT_OVERLAP * latent_variance[index]
            faint_estimate = self._without_extrapolation(
                np.array([faint_Q]), np.array([latent_variance[index] - faint_Q])
            )
            faint_slope, faint_slope_error = (
                float(number[0]) / faint_Q for number in faint_estimate
            )
            overlap_over_faint = Q[index] / faint_Q
            information_at_V[index] = Q[index] * (
                initial_slope.value
                + (faint_slope - initial_slope.value) * overlap_over_faint
            )
            information_error[index] = Q[index] * math.hypot(
                initial_slope.error, faint_slope_error * overlap_over_faint
            )
        return information_at_V, information_error

    def _without_extrapolation(self, Q: Host, V: Host) -> tuple[Host, Host]:
        """Information and its error for one component at N overlaps Q and errors V, without extrapolation; sampled values are
        cached. ``q`` and ``v`` are one of these pairs.
        """
        if self.is_exact:
            return self._by_quadrature(Q, V)
        value = np.empty(len(Q))
        error = np.empty(len(Q))
        for index, (q, v) in enumerate(zip(Q.tolist(), V.tolist())):

            def estimate(q: float = q, v: float = v) -> tuple[Host, Host]:
                """Information and its error at one overlap q and error v."""
                return self._estimate(np.array([[q]]), np.array([[v]]))

            estimates = cached_on(self, "values", estimate, key=(q, v))
            value[index], error[index] = (matrix[0, 0] for matrix in estimates)
        return value, error

    def susceptibility(self, V: float) -> Uncertain:
        """Derivative of the information with respect to the overlap, at zero overlap, for one component; ``V`` is the variance
        of its latents.

        It is ``E sum_cc' ((E[z_c z_c' | y] - V delta_cc') / V^2)^2`` at omega = 0. Labels are drawn. One that is a single
        number, of a single latent, is integrated over, where its likelihood has one norm.
        """
        return cached_on(self, "slopes", lambda: self._susceptibility(V), key=V)

    def _susceptibility(self, V: float) -> Uncertain:
        """Derivative of the information with respect to the overlap at zero overlap, not cached; ``V`` is the variance of the
        latents. It is a mean over labels ``y``: quadrature nodes if labels are single numbers, otherwise labels drawn from
        latents ``z``.
        """
        drawn_labels = []
        for scramble in range(SCRAMBLES):
            whitened_latents = whitened_points(
                self.dimension, 512, "slope: latents", scramble, paired=False
            )
            z = math.sqrt(V) * whitened_latents.reshape(-1, 1, self.sites)
            rng = monte_carlo_rng("slope: labels", scramble)
            drawn_labels.append(np.asarray(self.channel.forward(z, rng=rng)))
        if self.dimension == drawn_labels[0][0].size == 1:
            nodes, weights = _panels(np.concatenate(drawn_labels).ravel())
            y = nodes.reshape(-1, *drawn_labels[0].shape[1:])
            density, squared_response = self._squared_response(y, V)
            narrower_density, _ = self._squared_response(y, V / 2)
            weighted_density = weights * density
            # The likelihood may lack a factor; one that depends on y changes the norm with the law of the latents.
            norm_change = abs(
                float(weights @ narrower_density / weighted_density.sum()) - 1
            )
            if norm_change < 1e-3:
                value = float(
                    weighted_density @ squared_response / weighted_density.sum()
                )
                return Uncertain(value, value * (10 * norm_change + 1e-6), "quadrature")
        scramble_means = [
            float(self._squared_response(y, V)[1].mean()) for y in drawn_labels
        ]
        error = float(np.std(scramble_means, ddof=1)) / math.sqrt(SCRAMBLES)
        return Uncertain(float(np.mean(scramble_means)), error, "Monte Carlo")

    def _squared_response(self, y: Host, V: float) -> tuple[Host, Host]:
        """Density (n,) of labels ``y``, up to a factor, for latents of prior mean omega = 0 and variance V; and the sums of
        squares (n,) of the entries of ``(<u u^T> - I) / V`` with u the whitened latents, whose mean is the susceptibility.
        """
        omega = np.zeros((len(y), 1, self.sites))
        posterior_moments = integrate(
            self.channel, y, omega, np.array([[V]]), refine=False
        )
        response = (posterior_moments.square - np.eye(self.sites)) / V
        return np.exp(posterior_moments.log_norm), (response * response).sum((1, 2))

    def _estimate(self, Q: Host, V: Host) -> tuple[Host, Host]:
        """Information and its error (P, P) at one overlap Q and error V (P, P): by sums over all labels if these are few, else
        by drawn labels.
        """
        if self.labels is None:
            return self._with_enough_points(self._from_drawn_labels, Q, V, 256, 1.5e-2)
        value, error = self._with_enough_points(self._sum_over_labels, Q, V, 64, 1e-3)
        return value, np.hypot(error, OMITTED_SHARE * value)

    def _with_enough_points(
        self,
        method: Callable[[Host, Host, int], tuple[Host, Host]],
        Q: Host,
        V: Host,
        points: int,
        tolerance: float,
    ) -> tuple[Host, Host]:
        """Information and its error by ``method(Q, V, points)``, again with four times the points if the relative error for one
        component exceeds ``tolerance``. ``points`` is their number in each scramble.
        """
        if self.components > 1:
            # Iteration would not converge if the number of points changed.
            return method(Q, V, max(points, 128))
        value, error = method(Q, V, points)
        if error[0, 0] > tolerance * value[0, 0]:
            value, error = method(Q, V, 4 * points)
        return value, error

    def _sum_over_labels(self, Q: Host, V: Host, points: int) -> tuple[Host, Host]:
        """Information ``E sum_y P(y | omega) g g^T`` at overlap Q and error V, and its error, by sums over all labels y at
        random prior means omega (``points`` of them per scramble). The posterior mean in each of the two factors g is
        integrated over one of two independent ``point_sets``, reflected along random ``reflection_axes``.
        """
        P = self.components
        C = self.sites
        dimension = self.dimension
        root_Q = symmetric_root(Q)
        root_V = symmetric_root(V)
        inverse_root_V = np.linalg.inv(root_V)
        estimates = []
        for scramble in range(SCRAMBLES):
            normal_latents = whitened_points(
                dimension,
                points,
                "likelihood information: latents",
                scramble,
                paired=False,
            )
            omega = root_Q @ normal_latents.reshape(points, P, C)
            rng = monte_carlo_rng("likelihood information: axes", scramble)
            reflection_axes = rng.standard_normal((2, points, dimension))
            reflection_axes /= np.linalg.norm(reflection_axes, axis=2, keepdims=True)
            point_sets = [
                _wide_points(dimension, 2 * scramble + set_index)
                for set_index in range(2)
            ]
            chunk_size = max(1, BLOCK // point_sets[0][0].size)
            square_sum: Array = 0.0
            for start in range(0, points, chunk_size):
                chunk = slice(start, start + chunk_size)
                square_sum = square_sum + self._sum_of_squares(
                    omega[chunk], root_V, point_sets, reflection_axes[:, chunk]
                )
            site_blocks = symmetric(square_sum / points).reshape(P, C, P, C)
            estimates.append(
                inverse_root_V @ np.einsum("pcqc->pq", site_blocks) @ inverse_root_V
            )
        error = np.std(estimates, axis=0, ddof=1) / math.sqrt(SCRAMBLES)
        return np.mean(estimates, axis=0), error

    def _sum_of_squares(
        self,
        omega: Host,
        root_V: Host,
        point_sets: list[tuple[Host, Host]],
        reflection_axes: Host,
    ) -> Host:
        """Sum over labels y and prior means ``omega`` (n, P, C) of ``P(y | omega) m m^T`` (d, d), with m the posterior mean of
        the d = P C whitened latents. Each factor m is an importance-weighted mean over one of two independent sets of points u
        (latents ``z = omega + root_V u``), reflected along ``reflection_axes``.

        ``omega`` (n, P, C). Two independent sets of points give two means of each: noise has mean zero in their product, but
        not in a square.
        """
        n, P, C = omega.shape
        labels: Array = self.labels
        probability_sums = []
        weighted_means = []
        for (u, importance_weights), reflection_axis in zip(
            point_sets, reflection_axes
        ):
            # Points are reflected for every omega, so that the errors of different omegas are independent.
            reflected_points = reflected(
                np.broadcast_to(u, (n, *u.shape)), reflection_axis, np
            )
            z = omega[:, None] + root_V @ reflected_points.reshape(-1, len(u), P, C)
            z = z.reshape(-1, P, C)
            log_likelihoods = []
            with np.errstate(all="ignore"):
                for label in labels:
                    y = np.broadcast_to(label, (len(z), *label.shape))
                    log_likelihoods.append(log_likelihood(self.channel, y, z))
            probabilities = np.exp(np.array(log_likelihoods, dtype=float))
            posterior_weights = importance_weights * probabilities.reshape(
                -1, n, len(u)
            )
            probability_sums.append(posterior_weights.sum(axis=2))
            weighted_means.append(
                (posterior_weights[:, :, None, :] @ reflected_points)[:, :, 0, :]
            )
        inverse_masses = 2 / np.maximum(sum(probability_sums), 1e-300)
        return np.asarray(np.einsum("yn,yni,ynj->ij", inverse_masses, *weighted_means))

    def _by_quadrature(self, Q: Host, V: Host) -> tuple[Host, Host]:
        """Information for one latent per sample at N overlaps Q and errors V at once, with its error, by nested adaptive
        quadrature over the prior mean omega and the latent z.
        """
        labels: Array = self.labels
        omega_scale = np.sqrt(Q)
        root_V = np.sqrt(V)
        tolerance = SCALAR_TOLERANCE / 10
        chunk_size = max(1, BLOCK // (80 * len(labels)))

        def log_square(t: Array, problem_indices: Array) -> Array:
            """Logarithm of the mean square, over labels, of the posterior mean of the whitened latent at prior means ``omega =
            sqrt(Q) t``, each t on a row. ``problem_indices`` are the numbers of the pairs (Q, V), one for every row of t.
            """
            omega = (omega_scale[problem_indices][:, None] * t).ravel()
            root_V_of_point = np.broadcast_to(
                root_V[problem_indices][:, None], t.shape
            ).ravel()
            chunks = [
                slice(start, start + chunk_size)
                for start in range(0, len(omega), chunk_size)
            ]
            mean_squares = [
                self._mean_squares(omega[chunk], root_V_of_point[chunk], tolerance)
                for chunk in chunks
            ]
            return np.log(np.concatenate(mean_squares)).reshape(t.shape)

        with np.errstate(all="ignore"):
            moments = line_moments(log_square, len(Q), NUMPY, None, tolerance=tolerance)
        value = np.exp(moments.log_norm) / V
        # The rule keeps the error of the norm below ten times that of the mean.
        error = value * np.clip(10 * moments.error, 0.0, 1.0)
        return value, np.where(value > 0, error, 0.0)

    def _mean_squares(self, omega: Host, root_V: Host, tolerance: float) -> Host:
        """Mean square ``sum_y P(y | omega) E[u | y, omega]^2`` (M,) of the posterior mean of a whitened latent u, at M prior
        means omega, by quadrature over u with this ``tolerance``. ``root_V`` (M,) is ``sqrt(V)``.
        """
        labels: Array = self.labels

        def log_weight(u: Array, pair_indices: Array) -> Array:
            """Log-likelihood of one label ``y`` at latents ``z = omega + sqrt(V) u``. ``pair_indices`` number the pairs of a
            prior mean omega and a label, one for every row of u.
            """
            omega_index = pair_indices // len(labels)
            z = omega[omega_index][:, None] + root_V[omega_index][:, None] * u
            y = np.repeat(labels[pair_indices % len(labels)], u.shape[1], axis=0)
            log_likelihoods = log_likelihood(self.channel, y, z.reshape(-1, 1, 1))
            log_likelihoods = np.asarray(log_likelihoods, dtype=float)
            return np.maximum(log_likelihoods, IMPOSSIBLE).reshape(u.shape)

        count = len(omega) * len(labels)
        moments = line_moments(
            log_weight, count, NUMPY, None, tolerance=tolerance, search=False
        )
        label_probability = np.exp(np.clip(moments.log_norm, -700, None))
        weighted_squares = (label_probability * moments.mean**2).reshape(
            len(omega), len(labels)
        )
        return np.asarray(weighted_squares.sum(axis=1))

    def _from_drawn_labels(self, Q: Host, V: Host, points: int) -> tuple[Host, Host]:
        """Information and its error at overlap Q and error V (P, P), from labels drawn at random, ``points`` per scramble; each
        factor of the product ``g g^T`` is computed from an independent half of the integration points.
        """
        root_Q = symmetric_root(Q)
        root_V = symmetric_root(V)
        latent_shape = points, self.components, self.sites

        def labels(scramble: int) -> Labels:
            """Labels y drawn in one scramble, from latents z of random prior mean omega, with two independent estimates of
            their posterior means.
            """
            normal_latents = whitened_points(
                2 * self.dimension,
                points,
                "likelihood information: pairs of latents",
                scramble,
                paired=False,
            ).reshape(points, 2, *latent_shape[1:])
            omega = root_Q @ normal_latents[:, 0]
            z = omega + root_V @ normal_latents[:, 1]
            rng = monte_carlo_rng("likelihood information: labels", scramble)
            y = np.asarray(self.channel.forward(z, rng=rng))
            moments = integrate(self.channel, y, omega, V, refine=False)
            means = (
                moments.half.reshape(latent_shape),
                moments.other_half.reshape(latent_shape),
            )
            return Labels(normal_latents[:, 0], normal_latents[:, 1], means)

        return label_means(labels, Q, V, scrambles=SCRAMBLES)[:2]


def _panels(drawn_labels: Host) -> tuple[Host, Host]:
    """Gauss-Legendre nodes and weights on panels between 32 quantiles of ``drawn_labels``, and on wider panels beyond them."""
    quantiles = np.quantile(drawn_labels, np.linspace(0, 1, 33))
    outer_distances = np.ptp(drawn_labels) * np.array([0.05, 0.15, 0.4, 1.0, 2.0])
    panel_ends = np.unique(
        [
            *(quantiles[0] - outer_distances),
            *quantiles,
            *(quantiles[-1] + outer_distances),
        ]
    )
    nodes, weights = gauss_legendre(16, 0.0, 1.0)
    panel_widths = np.diff(panel_ends)[:, None]
    return (panel_ends[:-1, None] + panel_widths * nodes).ravel(), (
        panel_widths * weights
    ).ravel()


@lru_cache(maxsize=64)
def _wide_points(dimension: int, seed: int) -> tuple[Host, Host]:
    """Points (count, dimension) drawn from Gaussians of several widths, with their importance weights for the standard normal
    law; ``seed`` numbers the set.
    """
    total_count = sum(count for _, count in WIDTHS)
    points = []
    for mixture_index, (gaussian_width, count) in enumerate(WIDTHS):
        normal_latents = whitened_points(
            dimension, count, "likelihood: mixture", seed, mixture_index
        )
        points.append(gaussian_width * normal_latents)
    stacked_points = np.concatenate(points)
    squared_norms = (stacked_points * stacked_points).sum(1)
    log_densities = []
    for gaussian_width, count in WIDTHS:
        log_factor = math.log(count / total_count) - dimension * math.log(
            gaussian_width
        )
        log_densities.append(log_factor - squared_norms / (2 * gaussian_width**2))
    importance_weights = np.exp(-squared_norms / 2 - np.logaddexp.reduce(log_densities))
    importance_weights /= importance_weights.sum()
    return stacked_points @ inverse_root(
        (stacked_points * importance_weights[:, None]).T @ stacked_points
    ), importance_weights
