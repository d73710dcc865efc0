"""Information about the latents in labels that are given by their likelihood alone: ``E sum_c g_c g_c^T`` and its error.

A label with few values is summed over, in one dimension by nested quadrature; any other label is drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend.arrays import namespace
from smimbench.derive.integrate import BLOCK, ONE_LINE, integrate
from smimbench.derive.sampled_information import Labels, label_means
from smimbench.derive.samples import Accuracy, reflected
from smimbench.interfaces import Uncertain
from smimbench.numerics.linalg import inverse_root, symmetric_root
from smimbench.numerics.line_integrals import IMPOSSIBLE, line_moments
from smimbench.numerics.memo import kept
from smimbench.numerics.qmc import whitened_points
from smimbench.numerics.seeds import monte_carlo_rng

if TYPE_CHECKING:
    from smimbench.interfaces import Array

__all__ = ["LikelihoodInformation"]

SCRAMBLES = 8
"""Independent scrambles, whose spread is the error; doubled, it costs twice as much and is known 1.4 times better."""
THINNEST = 1e-3
"""V/Q below which sums over labels follow a power law, because few labels are in doubt; doubled, earlier."""
FAINT = 0.02
"""Relative overlap below which labels that see no sign are interpolated to zero; doubled, earlier."""
NARROWEST = 1e-7
"""V/Q below which quadratures follow a power law, because no rule meets so narrow a boundary; doubled, earlier."""
WIDTHS = ((1.0, 256), (1.6, 128), (2.6, 128))
"""Standard deviations of the Gaussians from which points come, and their numbers; more points cost as much more."""
TRUSTED = 20.0
"""Effective points from which two independent means are multiplied; doubled, pairs are counted more often."""


@dataclass(frozen=True, eq=False)
class LikelihoodInformation:
    """Information of one channel that gives ``forward(z, rng=...)`` and ``log_likelihood(y, z)``, with P components and C sites.

    ``labels`` are all values of a label that has few of them; ``blind_to_signs`` says that no label sees the common sign of
    the latents, so that labels tell nothing at zero overlap; ``target`` is the error of the posterior mean to aim at.
    """

    channel: Any
    components: int
    sites: int
    labels: np.ndarray[Any, Any] | None
    blind_to_signs: bool
    target: float

    @property
    def dimension(self) -> int:
        """P C."""
        return self.components * self.sites

    def __call__(self, Q: Array, V: Array) -> Uncertain:
        r"""``E sum_c g_c g_c^T`` (..., P, P) with ``omega ~ N(0, Q (x) I_C)``; leading axes are a batch.

        Quasi-random points in independent scrambles, whose spread is the error. A label with few values is summed over;
        any other is drawn, for ``label_means``.
        """
        Q, V = (np.asarray(a, dtype=float) for a in (Q, V))
        Q, V = np.broadcast_arrays(Q, V)
        flat = self._informations(list(zip(Q.reshape(-1, *Q.shape[-2:]), V.reshape(-1, *V.shape[-2:]))))
        value = np.stack([f.value for f in flat]).reshape(Q.shape)
        error = np.stack([f.error for f in flat]).reshape(Q.shape)
        return Uncertain(value, error, flat[0].method)

    def _informations(self, pairs: list[tuple[Array, Array]]) -> list[Uncertain]:
        labels = self.labels
        if labels is not None and self.dimension == 1:
            Q, V = (np.array([pair[i][0, 0] for pair in pairs]) for i in range(2))
            far = V < NARROWEST * Q
            if not far.any():
                return self._by_quadrature(Q, V, labels)
            # No rule meets a boundary that is this narrow unless it knows where: follow the power law on the way to it.
            near = [np.where(far, factor * NARROWEST * Q, V) for factor in (1.0, 10.0)]
            found, wider = (self._by_quadrature(Q, np.maximum(v, V), labels) for v in near)
            return [_continued(f, w, v, low) if out else f for f, w, v, low, out in zip(found, wider, V, near[0], far)]
        return [self._sampled(q, v, labels) for q, v in pairs]

    def _sampled(self, Q: Array, V: Array, labels: Array | None) -> Uncertain:
        """By sampling, except near both ends, where it follows the known limits."""
        if self.components > 1:
            return self._information(Q, V)
        q, v = float(Q[0, 0]), float(V[0, 0])
        if labels is not None and v < THINNEST * q:
            # So few labels are in doubt that none would be met; their share falls like the width of the posterior.
            at = THINNEST * q
            found, wider = (self._kept(q + v - e, e) for e in (at, 10 * at))
            return _continued(found, wider, v, at)
        faint = FAINT * (q + v)
        if q < faint and self.blind_to_signs:
            # Labels that see no sign tell nothing at first, and then in proportion to what is known.
            start = self.susceptibility(q + v)
            near = self._kept(faint, q + v - faint)
            end = float(near.value[0, 0]) / faint
            value = q * (start.value + (end - start.value) * q / faint)
            error = q * math.hypot(start.error, float(near.error[0, 0]) / faint * q / faint)
            return Uncertain(np.array([[value]]), np.array([[error]]), near.method)
        return self._information(Q, V)

    def _kept(self, q: float, v: float) -> Uncertain:
        """The information at an anchor point, from which other values are extrapolated."""
        return kept(self, "anchors", lambda: self._information(np.array([[q]]), np.array([[v]])), key=(q, v))

    def susceptibility(self, V: float) -> Uncertain:
        """``E sum_cc' ((E[z_c z_c' | y] - V delta_cc') / V^2)^2`` at omega = 0: the slope of the information in the overlap."""

        def sample() -> Uncertain:
            C, estimates = self.sites, []
            for scramble in range(SCRAMBLES):
                u = whitened_points(self.dimension, 512, "slope: latents", scramble, paired=False)
                z = math.sqrt(V) * u.reshape(-1, 1, C)
                y = np.asarray(self.channel.forward(z, rng=monte_carlo_rng("slope: labels", scramble)))
                found = integrate(self.channel, y, np.zeros_like(z), np.array([[V]]), Accuracy(self.target, effort=1))
                G = (found.square - np.eye(C)) / V
                estimates.append(float((G * G).sum((1, 2)).mean()))
            error = float(np.std(estimates, ddof=1)) / math.sqrt(SCRAMBLES)
            return Uncertain(float(np.mean(estimates)), error, "Monte Carlo")

        return kept(self, "slopes", sample, key=V)

    def _information(self, Q: Array, V: Array) -> Uncertain:
        """By sums over labels or by labels that are drawn; with four times the points if the error is too large."""
        labels = self.labels
        points, good = (256, 1.5e-2) if labels is None else (64, 1e-3)
        # Several components are found by iterating: a number of points that changed on the way would never settle.
        attempts = 2 if self.components == 1 else 1
        points = points if attempts == 2 else max(points, 128)
        for attempt in range(attempts):
            if labels is None:
                value, error = self._over_samples(Q, V, points)
            else:
                estimates = np.stack([self._sum_over_labels(Q, V, labels, points, k) for k in range(SCRAMBLES)])
                value, error = estimates.mean(0), estimates.std(axis=0, ddof=1) / math.sqrt(SCRAMBLES)
            if np.trace(error) <= good * abs(np.trace(value)) or attempt == attempts - 1:
                break
            points *= 4
        what = "labels added up" if labels is not None else "posterior integrated from the likelihood"
        return Uncertain(value, error, f"Monte Carlo ({SCRAMBLES} Sobol scrambles of {points}; {what})")

    def _sum_over_labels(self, Q: Array, V: Array, labels: Array, points: int, scramble: int) -> Array:
        """``E sum_y P(y | omega) g g^T``, one scramble."""
        P, C, d = self.components, self.sites, self.dimension
        omega = symmetric_root(Q) @ whitened_points(
            d, points, "likelihood information: latents", scramble, paired=False
        ).reshape(points, P, C)
        root_V = symmetric_root(V)
        axes = monte_carlo_rng("likelihood information: axes", scramble).standard_normal((2, points, d))
        axes /= np.linalg.norm(axes, axis=2, keepdims=True)
        sets = [_wide_points(d, 2 * scramble + i) for i in (0, 1)]
        total = np.zeros((d, d))
        step = max(1, BLOCK // sets[0][0].size)
        for start in range(0, points, step):
            part = slice(start, start + step)
            parts = []
            for (u, weight), axis in zip(sets, axes):
                # Turned for every omega, so that the errors of different omegas are independent.
                turned = reflected(np.broadcast_to(u, (len(omega[part]), *u.shape)), axis[part], np)
                z = omega[part, None] + root_V @ turned.reshape(-1, len(u), P, C)
                likelihood = self._likelihoods(z.reshape(-1, P, C), labels).reshape(len(labels), -1, len(u))
                parts.append((weight * likelihood, turned))
            total += _sum_of_squares(*parts[0], *parts[1])
        total = (total + total.T) / (2 * points)
        blocks = total.reshape(P, C, P, C)
        white = np.linalg.inv(root_V)
        found: np.ndarray[Any, Any] = white @ sum(blocks[:, c, :, c] for c in range(C)) @ white
        return found

    def _by_quadrature(self, Q: Array, V: Array, labels: Array) -> list[Uncertain]:
        """The same in one dimension for all (Q, V) at once: adaptive quadrature over omega, and inside it over z."""
        xp = namespace(Q)
        scale, width = np.sqrt(Q), np.sqrt(V)
        tolerance = ONE_LINE / 10

        def inner(omega: Array, spread: Array) -> Array:
            """``sum_y P(y | omega) E[u | y, omega]^2`` (M,)."""

            def log_weight(u: Array, lines: Array) -> Array:
                at = lines // len(labels)
                z = omega[at][:, None] + spread[at][:, None] * u
                y = np.repeat(labels[lines % len(labels)], u.shape[1], axis=0)
                found = np.asarray(self.channel.log_likelihood(y, z.reshape(-1, 1, 1)), dtype=float)
                return np.maximum(found, IMPOSSIBLE).reshape(u.shape)

            count = len(omega) * len(labels)
            found = line_moments(log_weight, count, xp, None, tolerance=tolerance, search=False)
            chance = np.exp(np.clip(found.log_norm, -700, None))
            return (chance * found.mean**2).reshape(len(omega), len(labels)).sum(axis=1)

        def log_square(t: Array, lines: Array) -> Array:
            omega = (scale[lines][:, None] * t).ravel()
            spread = np.broadcast_to(width[lines][:, None], t.shape).ravel()
            step = max(1, BLOCK // (80 * len(labels)))
            parts = [inner(omega[i : i + step], spread[i : i + step]) for i in range(0, len(omega), step)]
            return np.log(np.concatenate(parts)).reshape(t.shape)

        with np.errstate(all="ignore"):
            found = line_moments(log_square, len(Q), xp, None, tolerance=tolerance)
        value = np.exp(found.log_norm) / V
        # The rule keeps the error of the norm below ten times that of the mean.
        error = value * np.clip(10 * found.error, 0.0, 1.0)
        method = "nested quadrature of the likelihood"
        return [Uncertain(np.array([[v]]), np.array([[e if v > 0 else 0.0]]), method) for v, e in zip(value, error)]

    def _likelihoods(self, z: Array, labels: Array) -> Array:
        """``P(y | z)`` of every label, (Y, n)."""
        with np.errstate(all="ignore"):
            repeated = (np.broadcast_to(value, (len(z), *value.shape)) for value in labels)
            return np.stack([np.exp(np.asarray(self.channel.log_likelihood(y, z), dtype=float)) for y in repeated])

    def _over_samples(self, Q: Array, V: Array, points: int) -> tuple[Array, Array]:
        """Value and error from labels that are drawn: two independent halves of the points give two means of each."""
        P, C = self.components, self.sites
        root_Q, root_V = symmetric_root(Q), symmetric_root(V)

        def labels(scramble: int) -> Labels:
            normal = whitened_points(
                2 * self.dimension, points, "likelihood information: pairs of latents", scramble, paired=False
            ).reshape(points, 2, P, C)
            omega, shift = root_Q @ normal[:, 0], root_V @ normal[:, 1]
            y = np.asarray(
                self.channel.forward(omega + shift, rng=monte_carlo_rng("likelihood information: labels", scramble))
            )
            found = integrate(self.channel, y, omega, V, Accuracy(10 * self.target, effort=1))
            one, two = (half.reshape(points, P, C) for half in (found.half, found.other_half))
            return Labels(normal[:, 0], normal[:, 1], (one, two))

        return label_means(labels, Q, V, scrambles=SCRAMBLES)[:2]


def _sum_of_squares(w: Array, u: Array, other_w: Array, other_u: Array) -> Array:
    """``sum_y P(y) m m^T`` (d, d) summed over omegas, for ``m`` the mean of u given y, free of the noise of the means.

    Weights (Y, n, K) and points (n, K, d) come in two independent sets. One mean from each makes an unbiased square
    where both have points to speak of. Where a label was met by few points of either, pairs of different points are
    counted, which loses singles only.
    """
    mass, other_mass = w.sum(2), other_w.sum(2)
    first, second = np.einsum("ynk,nki->yni", w, u), np.einsum("ynk,nki->yni", other_w, other_u)
    both = mass + other_mass
    squares = (w * w).sum(2) + (other_w * other_w).sum(2)
    few = both * both < TRUSTED * 2 * squares
    safe = np.where(both > 0, both, 1.0)
    share = np.where(few, 0.0, 2 / safe)[..., None]
    total = np.einsum("yni,ynj->ij", first * share, second)
    label, sample = np.nonzero(few & (both > 0))
    if len(label):
        weight = np.concatenate([w[label, sample], other_w[label, sample]], axis=1)
        points = np.concatenate([u[sample], other_u[sample]], axis=1)
        rest = both[label, sample][:, None] - weight
        # Rounding can leave something of a single: it has no partner.
        portion = np.where(rest > 1e-9 * weight, weight / np.where(rest > 0, rest, 1.0), 0.0)
        moved = (first + second)[label, sample]
        pairs = np.einsum("mk,mki,mj->ij", portion, points, moved)
        total = total + (pairs - np.einsum("mk,mki,mkj->ij", portion * weight, points, points)) / 2
    return total


@lru_cache(maxsize=64)
def _wide_points(dimension: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Points from Gaussians of several widths at once, and their weights as points of the standard normal law."""
    parts = [
        scale * whitened_points(dimension, count, "likelihood: mixture", seed, i, paired=True)
        for i, (scale, count) in enumerate(WIDTHS)
    ]
    u = np.concatenate(parts)
    square = (u * u).sum(1)
    total = sum(count for _, count in WIDTHS)
    logs = [math.log(count / total) - dimension * math.log(scale) - square / (2 * scale**2) for scale, count in WIDTHS]
    weight = np.exp(-square / 2 - np.logaddexp.reduce(np.stack(logs), axis=0)) / total
    weight /= weight.sum()
    return u @ inverse_root((u * weight[:, None]).T @ u), weight


def _continued(found: Uncertain, wider: Uncertain, V: float, at: float) -> Uncertain:
    """The power law through the information at the error ``at`` and at ten times that, continued to V."""
    value, other = float(found.value[0, 0]), float(wider.value[0, 0])
    if not (value > 0 and other > 0):
        return found
    # Labels tell at most the width of the posterior, and never less of a narrower one.
    power = min(max(math.log10(value / other), 0.0), 1.0)
    distance = math.log(at / V)
    relative = [float(f.error[0, 0]) / float(f.value[0, 0]) for f in (found, wider)]
    spread = relative[0] + sum(relative) * distance / math.log(10)
    grown = np.array([[value * math.exp(power * distance)]])
    return Uncertain(grown, grown * min(spread, 1.0), f"{found.method}, continued as a power law")
