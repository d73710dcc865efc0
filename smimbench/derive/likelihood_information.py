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
    """Information that labels carry about the latents, for channels with ``forward`` and ``log_likelihood``.

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
        r"""Information ``E sum_c g_c g_c^T`` (..., P, P) at overlap Q and error V, with its error; leading axes are a batch.

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
            source = "labels added up"
            if self.labels is None:
                source = "posterior integrated from the likelihood"
            method = f"Monte Carlo ({SCRAMBLES} Sobol scrambles; {source})"
        return Uncertain(value, error, method)

    @property
    def is_exact(self) -> bool:
        """Whether the information is computed by quadrature rather than by sampling."""
        return self.labels is not None and self.dimension == 1

    def _for_one_component(self, Q: Host, V: Host) -> tuple[Host, Host]:
        """Information and its error for one component at Q and V (N,); extrapolated where Q or V is nearly zero."""
        narrowest = SMALLEST_INTEGRATED if self.is_exact else SMALLEST_SUMMED
        far = (narrowest * Q > V) & (self.labels is not None)
        at = np.where(far, narrowest * Q, V)
        value, error = self._without_extrapolation(Q + V - at, at)
        if far.any():
            # So few labels are uncertain that none would be drawn; their share follows a power law towards this limit.
            wider, wider_error = self._without_extrapolation(
                (Q + V - 10 * at)[far], 10 * at[far]
            )
            information = value[far]
            distance = np.log(at[far] / V[far])
            with np.errstate(all="ignore"):
                # Labels tell at most the width of the posterior, and never less of a narrower one.
                power = np.clip(np.log10(information / wider), 0.0, 1.0)
                power = np.where((information > 0) & (wider > 0), power, 0.0)
                relative_error = (
                    error[far] / information * (1 + distance / math.log(10))
                )
                relative_error = (
                    relative_error + wider_error / wider * distance / math.log(10)
                )
            value[far] = information * np.exp(power * distance)
            error[far] = value[far] * np.minimum(
                np.nan_to_num(relative_error, nan=1.0), 1.0
            )
        if not self.blind_to_signs or self.is_exact:
            return value, error
        total = Q + V
        for k in np.flatnonzero(FAINT_OVERLAP * total > Q):
            # Labels that see no sign tell nothing at first, and then in proportion to what is known.
            start = self.susceptibility(total[k])
            faint = FAINT_OVERLAP * total[k]
            nearest = self._without_extrapolation(
                np.array([faint]), np.array([total[k] - faint])
            )
            end, end_error = (float(column[0]) / faint for column in nearest)
            share = Q[k] / faint
            value[k] = Q[k] * (start.value + (end - start.value) * share)
            error[k] = Q[k] * math.hypot(start.error, end_error * share)
        return value, error

    def _without_extrapolation(self, Q: Host, V: Host) -> tuple[Host, Host]:
        """Information and its error for one component at Q and V (N,), without extrapolation; sampled values are cached."""
        if self.is_exact:
            return self._by_quadrature(Q, V)
        value = np.empty(len(Q))
        error = np.empty(len(Q))
        for k, (q, v) in enumerate(zip(Q.tolist(), V.tolist())):

            def estimate(q: float = q, v: float = v) -> tuple[Host, Host]:
                return self._estimate(np.array([[q]]), np.array([[v]]))

            estimates = cached_on(self, "values", estimate, key=(q, v))
            value[k], error[k] = (matrix[0, 0] for matrix in estimates)
        return value, error

    def susceptibility(self, V: float) -> Uncertain:
        """Derivative of the information with respect to the overlap, at zero overlap, for one component.

        It is ``E sum_cc' ((E[z_c z_c' | y] - V delta_cc') / V^2)^2`` at omega = 0. Labels are drawn. One that is a single
        number, of a single latent, is integrated over, where its likelihood has one norm.
        """
        return cached_on(self, "slopes", lambda: self._susceptibility(V), key=V)

    def _susceptibility(self, V: float) -> Uncertain:
        labels = []
        for scramble in range(SCRAMBLES):
            u = whitened_points(
                self.dimension, 512, "slope: latents", scramble, paired=False
            )
            z = math.sqrt(V) * u.reshape(-1, 1, self.sites)
            rng = monte_carlo_rng("slope: labels", scramble)
            labels.append(np.asarray(self.channel.forward(z, rng=rng)))
        if self.dimension == labels[0][0].size == 1:
            nodes, weights = _panels(np.concatenate(labels).ravel())
            y = nodes.reshape(-1, *labels[0].shape[1:])
            density, square = self._squared_response(y, V)
            narrower_density, _ = self._squared_response(y, V / 2)
            mass = weights * density
            # The likelihood may lack a factor; one that depends on y changes the norm with the law of the latents.
            norm_change = abs(float(weights @ narrower_density / mass.sum()) - 1)
            if norm_change < 1e-3:
                value = float(mass @ square / mass.sum())
                return Uncertain(value, value * (10 * norm_change + 1e-6), "quadrature")
        means = [float(self._squared_response(y, V)[1].mean()) for y in labels]
        error = float(np.std(means, ddof=1)) / math.sqrt(SCRAMBLES)
        return Uncertain(float(np.mean(means)), error, "Monte Carlo")

    def _squared_response(self, y: Host, V: float) -> tuple[Host, Host]:
        """Density (n,) of labels at omega = 0, up to a factor, and their squared responses, whose mean is the susceptibility."""
        omega = np.zeros((len(y), 1, self.sites))
        moments = integrate(self.channel, y, omega, np.array([[V]]), refine=False)
        G = (moments.square - np.eye(self.sites)) / V
        return np.exp(moments.log_norm), (G * G).sum((1, 2))

    def _estimate(self, Q: Host, V: Host) -> tuple[Host, Host]:
        """Information and its error (P, P), by sums over all labels or by drawn labels, with enough points."""
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
        """Information and its error by ``method``, with four times the points if one component misses the tolerance."""
        if self.components > 1:
            # Iteration would not converge if the number of points changed.
            return method(Q, V, max(points, 128))
        value, error = method(Q, V, points)
        if error[0, 0] > tolerance * value[0, 0]:
            value, error = method(Q, V, 4 * points)
        return value, error

    def _sum_over_labels(self, Q: Host, V: Host, points: int) -> tuple[Host, Host]:
        """Information ``E sum_y P(y | omega) g g^T`` and its error, by sums over all labels at random omega."""
        P = self.components
        C = self.sites
        d = self.dimension
        root_Q = symmetric_root(Q)
        root_V = symmetric_root(V)
        white = np.linalg.inv(root_V)
        estimates = []
        for scramble in range(SCRAMBLES):
            normal = whitened_points(
                d, points, "likelihood information: latents", scramble, paired=False
            )
            omega = root_Q @ normal.reshape(points, P, C)
            rng = monte_carlo_rng("likelihood information: axes", scramble)
            axes = rng.standard_normal((2, points, d))
            axes /= np.linalg.norm(axes, axis=2, keepdims=True)
            sets = [_wide_points(d, 2 * scramble + half) for half in range(2)]
            step = max(1, BLOCK // sets[0][0].size)
            total: Array = 0.0
            for start in range(0, points, step):
                chunk = slice(start, start + step)
                total = total + self._sum_of_squares(
                    omega[chunk], root_V, sets, axes[:, chunk]
                )
            blocks = symmetric(total / points).reshape(P, C, P, C)
            estimates.append(white @ np.einsum("pcqc->pq", blocks) @ white)
        error = np.std(estimates, axis=0, ddof=1) / math.sqrt(SCRAMBLES)
        return np.mean(estimates, axis=0), error

    def _sum_of_squares(
        self, omega: Host, root_V: Host, sets: list[tuple[Host, Host]], axes: Host
    ) -> Host:
        """Sum over labels and omegas of ``P(y | omega) m m^T`` (d, d), with m the posterior mean of the whitened latents.

        ``omega`` (n, P, C). Two independent sets of points give two means of each: noise has mean zero in their product, but
        not in a square.
        """
        n, P, C = omega.shape
        labels: Array = self.labels
        masses = []
        means = []
        for (u, weight), axis in zip(sets, axes):
            # Turned for every omega, so that the errors of different omegas are independent.
            turned = reflected(np.broadcast_to(u, (n, *u.shape)), axis, np)
            z = omega[:, None] + root_V @ turned.reshape(-1, len(u), P, C)
            z = z.reshape(-1, P, C)
            logs = []
            with np.errstate(all="ignore"):
                for label in labels:
                    y = np.broadcast_to(label, (len(z), *label.shape))
                    logs.append(log_likelihood(self.channel, y, z))
            chances = np.exp(np.array(logs, dtype=float))
            w = weight * chances.reshape(-1, n, len(u))
            masses.append(w.sum(axis=2))
            means.append((w[:, :, None, :] @ turned)[:, :, 0, :])
        inverse = 2 / np.maximum(sum(masses), 1e-300)
        return np.asarray(np.einsum("yn,yni,ynj->ij", inverse, *means))

    def _by_quadrature(self, Q: Host, V: Host) -> tuple[Host, Host]:
        """Information in one dimension for all (Q, V) at once, by nested adaptive quadrature over omega and z."""
        labels: Array = self.labels
        scale = np.sqrt(Q)
        width = np.sqrt(V)
        tolerance = SCALAR_TOLERANCE / 10
        step = max(1, BLOCK // (80 * len(labels)))

        def log_square(t: Array, lines: Array) -> Array:
            omega = (scale[lines][:, None] * t).ravel()
            widths = np.broadcast_to(width[lines][:, None], t.shape).ravel()
            chunks = [slice(i, i + step) for i in range(0, len(omega), step)]
            sums = [
                self._mean_squares(omega[chunk], widths[chunk], tolerance)
                for chunk in chunks
            ]
            return np.log(np.concatenate(sums)).reshape(t.shape)

        with np.errstate(all="ignore"):
            moments = line_moments(log_square, len(Q), NUMPY, None, tolerance=tolerance)
        value = np.exp(moments.log_norm) / V
        # The rule keeps the error of the norm below ten times that of the mean.
        error = value * np.clip(10 * moments.error, 0.0, 1.0)
        return value, np.where(value > 0, error, 0.0)

    def _mean_squares(self, omega: Host, width: Host, tolerance: float) -> Host:
        """Mean square ``sum_y P(y | omega) E[u | y, omega]^2`` (M,) of a whitened latent's posterior mean, by quadrature."""
        labels: Array = self.labels

        def log_weight(u: Array, lines: Array) -> Array:
            at = lines // len(labels)
            z = omega[at][:, None] + width[at][:, None] * u
            y = np.repeat(labels[lines % len(labels)], u.shape[1], axis=0)
            logs = log_likelihood(self.channel, y, z.reshape(-1, 1, 1))
            logs = np.asarray(logs, dtype=float)
            return np.maximum(logs, IMPOSSIBLE).reshape(u.shape)

        count = len(omega) * len(labels)
        moments = line_moments(
            log_weight, count, NUMPY, None, tolerance=tolerance, search=False
        )
        chance = np.exp(np.clip(moments.log_norm, -700, None))
        squares = (chance * moments.mean**2).reshape(len(omega), len(labels))
        return np.asarray(squares.sum(axis=1))

    def _from_drawn_labels(self, Q: Host, V: Host, points: int) -> tuple[Host, Host]:
        """Information and its error from drawn labels; each factor of the product uses an independent half of the points."""
        root_Q = symmetric_root(Q)
        root_V = symmetric_root(V)
        shape = points, self.components, self.sites

        def labels(scramble: int) -> Labels:
            normal = whitened_points(
                2 * self.dimension,
                points,
                "likelihood information: pairs of latents",
                scramble,
                paired=False,
            ).reshape(points, 2, *shape[1:])
            omega = root_Q @ normal[:, 0]
            z = omega + root_V @ normal[:, 1]
            rng = monte_carlo_rng("likelihood information: labels", scramble)
            y = np.asarray(self.channel.forward(z, rng=rng))
            moments = integrate(self.channel, y, omega, V, refine=False)
            means = moments.half.reshape(shape), moments.other_half.reshape(shape)
            return Labels(normal[:, 0], normal[:, 1], means)

        return label_means(labels, Q, V, scrambles=SCRAMBLES)[:2]


def _panels(draws: Host) -> tuple[Host, Host]:
    """Gauss-Legendre nodes and weights on panels between 32 quantiles of ``draws``, and on wider panels beyond them."""
    quantiles = np.quantile(draws, np.linspace(0, 1, 33))
    beyond = np.ptp(draws) * np.array([0.05, 0.15, 0.4, 1.0, 2.0])
    ends = np.unique([*(quantiles[0] - beyond), *quantiles, *(quantiles[-1] + beyond)])
    nodes, weights = gauss_legendre(16, 0.0, 1.0)
    width = np.diff(ends)[:, None]
    return (ends[:-1, None] + width * nodes).ravel(), (width * weights).ravel()


@lru_cache(maxsize=64)
def _wide_points(dimension: int, seed: int) -> tuple[Host, Host]:
    """Points drawn from Gaussians of several widths, with their importance weights for the standard normal law."""
    total = sum(count for _, count in WIDTHS)
    points = []
    for i, (scale, count) in enumerate(WIDTHS):
        normal = whitened_points(dimension, count, "likelihood: mixture", seed, i)
        points.append(scale * normal)
    u = np.concatenate(points)
    square = (u * u).sum(1)
    densities = []
    for scale, count in WIDTHS:
        log_share = math.log(count / total) - dimension * math.log(scale)
        densities.append(log_share - square / (2 * scale**2))
    weight = np.exp(-square / 2 - np.logaddexp.reduce(densities))
    weight /= weight.sum()
    return u @ inverse_root((u * weight[:, None]).T @ u), weight
