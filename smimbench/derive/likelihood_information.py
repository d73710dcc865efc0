"""Information about the latents ``E sum_c g_c g_c^T`` and its error, for channels given only by a likelihood.

A label with few values is summed over, in one dimension by nested quadrature; any other label is drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from smimbench.backend.arrays import NUMPY
from smimbench.derive.integrate import BLOCK, ONE_LINE, integrate
from smimbench.derive.sampled_information import Labels, label_means
from smimbench.derive.samples import PosteriorAccuracy, reflected
from smimbench.interfaces import Array, Host, Uncertain
from smimbench.numerics.linalg import inverse_root, symmetric, symmetric_root
from smimbench.numerics.line_integrals import IMPOSSIBLE, line_moments
from smimbench.numerics.memo import cached_on
from smimbench.numerics.qmc import whitened_points
from smimbench.numerics.quadrature import gauss_legendre
from smimbench.numerics.seeds import monte_carlo_rng

SCRAMBLES = 8
"""Independent scrambles, whose spread is the error; doubled, it costs twice as much and is known 1.4 times better."""
THINNEST = 1e-3
NARROWEST = 1e-7
"""V/Q below which sums over labels follow a power law, because few labels are in doubt, and quadratures, because no rule meets so
narrow a boundary; doubled, earlier."""
FAINT = 0.02
"""Relative overlap below which labels that see no sign are interpolated to zero; doubled, earlier."""
WIDTHS = ((1.0, 512), (1.6, 256), (2.6, 256))
"""Standard deviations of the Gaussians that points are drawn from, and numbers of points; the cost is proportional to these."""
OMITTED_SHARE = 4e-3
"""Share of the information in labels that too few points reach to be counted; it halves where points are doubled."""


@dataclass(frozen=True, eq=False)
class LikelihoodInformation:
    """Information of a channel with ``forward(z, rng=...)`` and ``log_likelihood(y, z)``, P components and C sites.

    ``labels`` are all values of a label that has few of them; ``blind_to_signs`` says that no label sees the common sign of
    the latents, so that labels tell nothing at zero overlap; ``target`` is the error of the posterior mean to aim at.
    """

    channel: Any
    components: int
    sites: int
    labels: Any
    blind_to_signs: bool
    target: float

    @property
    def dimension(self) -> int:
        """Number of latents per sample, P C."""
        return self.components * self.sites

    def __call__(self, Q: Array, V: Array) -> Uncertain:
        r"""``E sum_c g_c g_c^T`` (..., P, P) with ``omega ~ N(0, Q (x) I_C)``; leading axes are a batch.

        Quasi-random points in independent scrambles, whose spread is the error. A label with few values is summed over;
        any other is drawn, for ``label_means``.
        """
        Q, V = np.broadcast_arrays(
            np.asarray(Q, dtype=float), np.asarray(V, dtype=float)
        )
        P = self.components
        shape = Q.shape
        if P == 1:
            value, error = self._of_scalars(Q.ravel(), V.ravel())
        else:
            pairs = zip(Q.reshape(-1, P, P), V.reshape(-1, P, P))
            estimates = [self._estimate(*pair) for pair in pairs]
            value, error = (np.stack(column) for column in zip(*estimates))
        source = (
            "posterior integrated from the likelihood"
            if self.labels is None
            else "labels added up"
        )
        sampled = f"Monte Carlo ({SCRAMBLES} Sobol scrambles; {source})"
        method = "nested quadrature of the likelihood" if self.is_exact else sampled
        return Uncertain(value.reshape(shape), error.reshape(shape), method)

    @property
    def is_exact(self) -> bool:
        """Whether the information is computed by quadrature rather than by sampling."""
        return self.labels is not None and self.dimension == 1

    def _of_scalars(self, Q: Host, V: Host) -> tuple[Host, Host]:
        """Information and its error for overlaps (N,) of one component; close to 0 and 1 from the known limits."""
        narrowest = (
            0.0 if self.labels is None else NARROWEST if self.is_exact else THINNEST
        )
        far = narrowest * Q > V
        at = np.where(far, narrowest * Q, V)
        value, error = self._at(Q + V - at, at)
        if far.any():
            # So few labels are uncertain that none would be drawn; their share follows a power law towards this limit.
            wider, doubt = self._at((Q + V - 10 * at)[far], 10 * at[far])
            information = value[far]
            distance = np.log(at[far] / V[far])
            with np.errstate(all="ignore"):
                # Labels tell at most the width of the posterior, and never less of a narrower one.
                power = np.where(
                    (information > 0) & (wider > 0),
                    np.clip(np.log10(information / wider), 0.0, 1.0),
                    0.0,
                )
                spread = error[far] / information * (1 + distance / math.log(10))
                spread = spread + doubt / wider * distance / math.log(10)
            value[far] = information * np.exp(power * distance)
            error[far] = value[far] * np.minimum(np.nan_to_num(spread, nan=1.0), 1.0)
        total = Q + V
        for k in np.flatnonzero(
            (FAINT * total > Q) & self.blind_to_signs & (not self.is_exact)
        ):
            # Labels that see no sign tell nothing at first, and then in proportion to what is known.
            start = self.susceptibility(total[k])
            faint = FAINT * total[k]
            nearest = self._at(np.array([faint]), np.array([total[k] - faint]))
            end, doubt = (float(column[0]) / faint for column in nearest)
            share = Q[k] / faint
            value[k] = Q[k] * (start.value + (end - start.value) * share)
            error[k] = Q[k] * math.hypot(start.error, doubt * share)
        return value, error

    def _at(self, Q: Host, V: Host) -> tuple[Host, Host]:
        """Information and its error for scalars (N,) anywhere; sampled values are cached."""
        if self.is_exact:
            return self._by_quadrature(Q, V)

        def estimate(q: float, v: float) -> tuple[Host, Host]:
            return cached_on(
                self,
                "values",
                lambda: self._estimate(np.array([[q]]), np.array([[v]])),
                key=(q, v),
            )

        value, error = (
            np.array(column).reshape(-1)
            for column in zip(*map(estimate, Q.tolist(), V.tolist()))
        )
        return value, error

    def susceptibility(self, V: float) -> Uncertain:
        """``E sum_cc' ((E[z_c z_c' | y] - V delta_cc') / V^2)^2`` at omega = 0: the slope of the information in the overlap.

        Labels are drawn. One that is a single number, of a single latent, is integrated over, where its likelihood has one norm.
        """

        def strength(y: Host, V: float = V) -> tuple[Host, Host]:
            """Density (n,) of labels, up to a factor, and the square that is averaged over them."""
            omega = np.zeros((len(y), 1, self.sites))
            moments = integrate(
                self.channel,
                y,
                omega,
                np.array([[V]]),
                PosteriorAccuracy(self.target, effort=1),
            )
            G = (moments.square - np.eye(self.sites)) / V
            return np.exp(moments.log_norm), (G * G).sum((1, 2))

        def evaluate() -> Uncertain:
            drawn = []
            for scramble in range(SCRAMBLES):
                u = whitened_points(
                    self.dimension, 512, "slope: latents", scramble, paired=False
                )
                z = math.sqrt(V) * u.reshape(-1, 1, self.sites)
                drawn.append(
                    np.asarray(
                        self.channel.forward(
                            z, rng=monte_carlo_rng("slope: labels", scramble)
                        )
                    )
                )
            if self.dimension == drawn[0][0].size == 1:
                nodes, weights = _panels(np.concatenate(drawn).ravel())
                y = nodes.reshape(-1, *drawn[0].shape[1:])
                (density, square), (narrower_density, _) = (
                    strength(y),
                    strength(y, V / 2),
                )
                mass = weights * density
                # The likelihood may lack a factor; one that depends on y changes the norm with the law of the latents.
                unlike = abs(float(weights @ narrower_density / mass.sum()) - 1)
                if unlike < 1e-3:
                    value = float(mass @ square / mass.sum())
                    return Uncertain(value, value * (10 * unlike + 1e-6), "quadrature")
            estimates = [float(strength(y)[1].mean()) for y in drawn]
            error = float(np.std(estimates, ddof=1)) / math.sqrt(SCRAMBLES)
            return Uncertain(float(np.mean(estimates)), error, "Monte Carlo")

        return cached_on(self, "slopes", evaluate, key=V)

    def _estimate(self, Q: Host, V: Host) -> tuple[Host, Host]:
        """Information and its error (P, P), by sums over labels or by drawn labels; repeated with more points if too
        inaccurate.
        """
        method, points, tolerance = (
            (self._over_samples, 256, 1.5e-2)
            if self.labels is None
            else (self._sum_over_labels, 64, 1e-3)
        )
        # Several components are solved by iteration, which would not converge if the number of points changed.
        value, error = method(
            Q, V, points if self.components == 1 else max(points, 128)
        )
        if self.components == 1 and error[0, 0] > tolerance * value[0, 0]:
            value, error = method(Q, V, 4 * points)
        return value, error if self.labels is None else np.hypot(
            error, OMITTED_SHARE * value
        )

    def _sum_over_labels(self, Q: Host, V: Host, points: int) -> tuple[Host, Host]:
        """``E sum_y P(y | omega) g g^T`` and its error."""
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
            axes = monte_carlo_rng(
                "likelihood information: axes", scramble
            ).standard_normal((2, points, d))
            axes /= np.linalg.norm(axes, axis=2, keepdims=True)
            sets = [_wide_points(d, 2 * scramble + half) for half in range(2)]
            step = max(1, BLOCK // sets[0][0].size)
            chunks = [slice(start, start + step) for start in range(0, points, step)]
            total = sum(
                self._squares(omega[chunk], root_V, sets, axes[:, chunk])
                for chunk in chunks
            )
            blocks = symmetric(total / points).reshape(P, C, P, C)
            estimates.append(white @ np.einsum("pcqc->pq", blocks) @ white)
        return np.mean(estimates, axis=0), np.std(
            estimates, axis=0, ddof=1
        ) / math.sqrt(SCRAMBLES)

    def _squares(
        self, omega: Host, root_V: Host, sets: list[tuple[Host, Host]], axes: Host
    ) -> Host:
        """``sum_y P(y | omega) m m^T`` (d, d) summed over omegas (n, P, C), for m the mean of the whitened latents given y.

        Two independent sets of points give two means of each: noise has mean zero in their product, but not in a square.
        """
        masses = []
        means = []
        for (u, weight), axis in zip(sets, axes):
            # Turned for every omega, so that the errors of different omegas are independent.
            turned = reflected(np.broadcast_to(u, (len(omega), *u.shape)), axis, np)
            z = omega[:, None] + root_V @ turned.reshape(-1, len(u), *omega.shape[1:])
            z = z.reshape(-1, *omega.shape[1:])
            with np.errstate(all="ignore"):
                logs = [
                    self.channel.log_likelihood(
                        np.broadcast_to(y, (len(z), *y.shape)), z
                    )
                    for y in self.labels
                ]
            w = weight * np.exp(np.array(logs, dtype=float)).reshape(
                -1, len(omega), len(u)
            )
            masses.append(w.sum(axis=2))
            means.append((w[:, :, None, :] @ turned)[:, :, 0, :])
        return np.asarray(
            np.einsum("yn,yni,ynj->ij", 2 / np.maximum(sum(masses), 1e-300), *means)
        )

    def _by_quadrature(self, Q: Host, V: Host) -> tuple[Host, Host]:
        """Information in one dimension for all (Q, V) at once, by nested adaptive quadrature over omega and z."""
        scale = np.sqrt(Q)
        width = np.sqrt(V)
        labels = self.labels
        tolerance = ONE_LINE / 10

        def inner(omega: Array, spread: Array) -> Array:
            """Sum over labels ``sum_y P(y | omega) E[u | y, omega]^2`` (M,)."""

            def log_weight(u: Array, lines: Array) -> Array:
                at = lines // len(labels)
                z = omega[at][:, None] + spread[at][:, None] * u
                y = np.repeat(labels[lines % len(labels)], u.shape[1], axis=0)
                log_likelihood = np.asarray(
                    self.channel.log_likelihood(y, z.reshape(-1, 1, 1)), dtype=float
                )
                return np.maximum(log_likelihood, IMPOSSIBLE).reshape(u.shape)

            count = len(omega) * len(labels)
            moments = line_moments(
                log_weight, count, NUMPY, None, tolerance=tolerance, search=False
            )
            chance = np.exp(np.clip(moments.log_norm, -700, None))
            return (
                (chance * moments.mean**2).reshape(len(omega), len(labels)).sum(axis=1)
            )

        def log_square(t: Array, lines: Array) -> Array:
            omega = (scale[lines][:, None] * t).ravel()
            spread = np.broadcast_to(width[lines][:, None], t.shape).ravel()
            step = max(1, BLOCK // (80 * len(labels)))
            sums = [
                inner(omega[i : i + step], spread[i : i + step])
                for i in range(0, len(omega), step)
            ]
            return np.log(np.concatenate(sums)).reshape(t.shape)

        with np.errstate(all="ignore"):
            moments = line_moments(log_square, len(Q), NUMPY, None, tolerance=tolerance)
        value = np.exp(moments.log_norm) / V
        # The rule keeps the error of the norm below ten times that of the mean.
        return value, np.where(
            value > 0, value * np.clip(10 * moments.error, 0.0, 1.0), 0.0
        )

    def _over_samples(self, Q: Array, V: Array, points: int) -> tuple[Array, Array]:
        """Information and its error from drawn labels; each factor of the product uses an independent half of the points."""
        P = self.components
        C = self.sites
        root_Q = symmetric_root(Q)
        root_V = symmetric_root(V)

        def labels(scramble: int) -> Labels:
            normal = whitened_points(
                2 * self.dimension,
                points,
                "likelihood information: pairs of latents",
                scramble,
                paired=False,
            ).reshape(points, 2, P, C)
            omega = root_Q @ normal[:, 0]
            shift = root_V @ normal[:, 1]
            y = np.asarray(
                self.channel.forward(
                    omega + shift,
                    rng=monte_carlo_rng("likelihood information: labels", scramble),
                )
            )
            moments = integrate(
                self.channel, y, omega, V, PosteriorAccuracy(10 * self.target, effort=1)
            )
            means = (
                moments.half.reshape(points, P, C),
                moments.other_half.reshape(points, P, C),
            )
            return Labels(normal[:, 0], normal[:, 1], means)

        return label_means(labels, Q, V, scrambles=SCRAMBLES)[:2]


def _panels(draws: Host) -> tuple[Host, Host]:
    """Nodes and weights of Gauss-Legendre rules between 32 quantiles of draws, and of wider and wider ones beyond them."""
    quantiles = np.quantile(draws, np.linspace(0, 1, 33))
    beyond = np.ptp(draws) * np.array([0.05, 0.15, 0.4, 1.0, 2.0])
    ends = np.unique([*(quantiles[0] - beyond), *quantiles, *(quantiles[-1] + beyond)])
    nodes, weights = gauss_legendre(16, 0.0, 1.0)
    width = np.diff(ends)[:, None]
    return (ends[:-1, None] + width * nodes).ravel(), (width * weights).ravel()


@lru_cache(maxsize=64)
def _wide_points(dimension: int, seed: int) -> tuple[Array, Array]:
    """Points drawn from Gaussians of several widths, with their importance weights for the standard normal law."""
    u = np.concatenate(
        [
            scale * whitened_points(dimension, count, "likelihood: mixture", seed, i)
            for i, (scale, count) in enumerate(WIDTHS)
        ]
    )
    square = (u * u).sum(1)
    total = sum(count for _, count in WIDTHS)
    logs = [
        math.log(count / total) - dimension * math.log(scale) - square / (2 * scale**2)
        for scale, count in WIDTHS
    ]
    weight = np.exp(-square / 2 - np.logaddexp.reduce(logs))
    weight /= weight.sum()
    return u @ inverse_root((u * weight[:, None]).T @ u), weight
