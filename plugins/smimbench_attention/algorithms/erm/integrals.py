"""Losses that are convex in the latents, and the integrals in the fixed-point equations of their minimum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from smimbench.backend import namespace
from smimbench.derive import observable
from smimbench.interfaces import Array, Host
from smimbench.numerics import monte_carlo_rng, symmetric_root, whitened_points
from smimbench.problem import Problem
from smimbench.theory import prior_moments

ROUNDING = 4 * float(np.finfo(float).eps)
"""Relative size of a residual, or difference of two posterior means, that counts as rounding."""


@dataclass(frozen=True)
class Loss:
    """Loss ``l(y, z)`` of one label and one latent, convex in z; a sample's loss is the sum over its entries.

    Attributes
    ----------
    name : str
    binary : bool
        Whether labels are signs, -1 or +1.
    value, slope, curvature : callable
        ``(y, z) -> array`` of their common shape: l and its derivatives with respect to z, curvature >= 0.
    kinks : tuple of float
        Values of ``y z`` at which the curvature jumps.
    """

    name: str
    binary: bool
    value: Callable[[Array, Array], Array]
    slope: Callable[[Array, Array], Array]
    curvature: Callable[[Array, Array], Array]
    kinks: tuple[float, ...] = ()


def _softplus(x: Array) -> Array:
    xp = namespace(x)
    return xp.maximum(x, xp.zeros_like(x)) + xp.log1p(xp.exp(-xp.abs(x)))


def _sigmoid(x: Array) -> Array:
    xp = namespace(x)
    small = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _margin_shortfall(y: Array, z: Array) -> Array:
    """Amount ``max(0, 1 - y z)`` by which a prediction falls short of a margin of 1."""
    gap = 1 - y * z
    return namespace(gap).maximum(gap, namespace(gap).zeros_like(gap))


LOSSES = {
    loss.name: loss
    for loss in (
        Loss("square", False, lambda y, z: (y - z) ** 2 / 2, lambda y, z: z - y, lambda y, z: namespace(z).ones_like(z)),
        Loss(
            "logistic", True,
            lambda y, z: _softplus(-y * z),
            lambda y, z: -y * _sigmoid(-y * z),
            lambda y, z: _sigmoid(z) * _sigmoid(-z),
        ),
        Loss(
            "squared-hinge", True,
            lambda y, z: _margin_shortfall(y, z) ** 2 / 2,
            lambda y, z: -y * _margin_shortfall(y, z),
            lambda y, z: namespace(z).astype(y * z < 1, z.dtype),
            kinks=(1.0,),
        ),
    )
}  # fmt: skip
"""``(y - z)^2 / 2``, ``log(1 + exp(-y z))`` and ``max(0, 1 - y z)^2 / 2``."""


def proximal(loss: Loss, y: Host, omega: Host, v: Host) -> Host:
    """Proximal operator ``argmin_z l(y, z) + (z - omega)^2 / (2 v)`` of a loss, elementwise, for v > 0.

    Solves ``z + v l'(z) = omega`` by Newton steps in a bracket: the slope increases, so z is between omega and its step.
    """
    far = omega - v * loss.slope(y, omega)
    low, high = np.minimum(omega, far), np.maximum(omega, far)
    z = (low + high) / 2
    earlier_move, last_move = high - low, high - low
    for _ in range(100):  # usually about ten
        pull, rise = v * loss.slope(y, z), v * loss.curvature(y, z)
        gap = z + pull - omega
        # Change of the residual by a rounding of z.
        blur = ROUNDING * ((1 + rise) * (1 + np.abs(z)) + np.abs(pull) + np.abs(omega))
        gap = np.where(np.abs(gap) <= blur, 0.0, gap)
        low, high = np.where(gap <= 0, z, low), np.where(gap >= 0, z, high)
        move = -gap / (1 + rise)
        # Steps that do not halve within two rounds may oscillate forever: bisect instead.
        sound = (
            (z + move >= low) & (z + move <= high) & (np.abs(move) <= earlier_move / 2)
        )
        next_z = np.where(sound, z + move, (low + high) / 2)
        earlier_move, last_move, z = last_move, np.abs(next_z - z), next_z
        if np.all(last_move <= 1e-13 * (1 + np.abs(z))):
            break
    return np.asarray(z)


def proximal_force(loss: Loss, y: Host, omega: Host, z: Host, v: Host) -> Host:
    """Proximal force ``(z - omega) / v`` at the proximal point z.

    It equals minus the slope of the loss; of the two the one with less rounding error is taken.
    """
    return np.where(v < 1, -loss.slope(y, z), (z - omega) / v)


class IntegrationAccuracy(NamedTuple):
    """Numerical settings of the theory of convex risk minimization.

    Attributes
    ----------
    nodes, reach, finest : int, float, float
        Where labels are signs: Gauss-Legendre nodes of every panel of the integral over omega, which goes up to ``reach``
        standard deviations, and width of the innermost panel.
    scrambles, points : int
        For other labels: independent sets of random points, whose spread is the stated error, and their size.
    iterations, attempts : int
        Iterations before a root finder continues from there, and how often that is tried.
    effort : int
        Most evaluations of the root finder per unknown.
    close, stalled : float
        Relative change at which the fixed point is found; the second where a root finder achieves no less.
    weight : float
        Damping: weight of the new order parameters in every iteration; at 1 some iterations circle the fixed point.
    """

    nodes: int = 20
    reach: float = 9.0
    finest: float = 1e-12
    scrambles: int = 4
    points: int = 2**12
    iterations: int = 10
    attempts: int = 20
    effort: int = 30
    close: float = 1e-11
    stalled: float = 1e-8
    weight: float = 0.7


ACCURACY = IntegrationAccuracy()


class OrderParameters(NamedTuple):
    """Order parameters (P, P) on which the integrals of the fixed-point equations depend.

    Attributes
    ----------
    T, M, Q : ndarray
        Overlaps of the signal with itself, of the estimate with it, of the estimate with itself.
    V : ndarray
        Susceptibility; diagonal, as the loss is a sum over components.
    conditional : ndarray
        Covariance of z* where omega is known, ``T - M^T Q^-1 M``.
    blur : ndarray
        Covariance of omega where z* is known, ``Q - M T^-1 M^T``.
    """

    T: Host
    M: Host
    Q: Host
    V: Host
    conditional: Host
    blur: Host


class RiskMoments(NamedTuple):
    """Integrals of the fixed-point equations, and the mean losses of a sample.

    ``-E dg/domega``, ``E dg/dz*``, ``E g g^T`` and ``E g z*^T`` (P, P) are summed over sites.
    """

    V_hat: Host
    m_hat: Host
    Q_hat: Host
    along: Host
    training_loss: float
    test_loss: float


def labels_of(problem: Problem) -> str | None:
    """Type of a problem's labels: ``"signs"`` or ``"numbers"``; None if a label depends on more than one site."""
    rng = monte_carlo_rng("convex losses: what labels are")
    z = rng.standard_normal((64, problem.components, problem.model.sites))

    def labels(z: Host) -> Host:
        rng = monte_carlo_rng("convex losses: noise of labels")
        return np.asarray(
            observable(problem.channel, problem.channel.forward(z, rng=rng))
        )

    y, is_first = labels(z), np.arange(z.shape[-1]) == 0
    if y.shape != z.shape:
        return None
    for is_scaled in (is_first, ~is_first):
        moved = labels(np.where(is_scaled, 2 * z, z))
        if not np.array_equal(moved[..., ~is_scaled], y[..., ~is_scaled]):
            return None
    return "signs" if bool(np.isin(y, (-1, 1)).all()) else "numbers"


Integrals = Callable[[OrderParameters], RiskMoments]
"""The integrals of the fixed-point equations as a function of the order parameters."""


def integrals_of(problem: Problem, loss: Loss) -> Sequence[Integrals]:
    """Integrals of a problem and a loss: one by quadrature where possible, otherwise several independent samples."""
    has_signs = problem.components == 1 and labels_of(problem) == "signs"
    if has_signs and _sites_are_independent(problem):
        return [SignIntegrals(problem, loss)]
    scrambles = range(ACCURACY.scrambles)
    return [SampledIntegrals(problem, loss, scramble) for scramble in scrambles]


def _sites_are_independent(problem: Problem) -> bool:
    """Whether the posterior of one site does not depend on the labels of other sites."""
    C = problem.model.sites
    rng = monte_carlo_rng("convex losses: sites")
    omega, y = rng.standard_normal((8, 1, C)), np.sign(rng.standard_normal((8, 1, C)))
    flipped = y.copy()
    flipped[:, :, 1:] *= -1
    mean, flipped_mean = (
        np.asarray(problem.channel.posterior(labels, omega, np.eye(1)).mean)[:, :, 0]
        for labels in (y, flipped)
    )
    return bool(np.allclose(mean, flipped_mean, rtol=0, atol=1e-12))


class SignIntegrals:
    """Integrals for binary labels of a single latent, by quadrature over omega and a sum over the label."""

    def __init__(self, problem: Problem, loss: Loss) -> None:
        self.channel = problem.channel
        self.loss, self.C = loss, problem.model.sites
        self.panel = np.polynomial.legendre.leggauss(ACCURACY.nodes)

    def _nodes(self, step: float, edges: list[float]) -> tuple[Host, Host]:
        """Gauss-Legendre nodes and weights on panels that halve towards zero.

        The smallest panel is as wide as the range of omega over which the label's probability changes.
        """
        reach = ACCURACY.reach
        finest = min(max(step, ACCURACY.finest), reach / 2)
        halvings = int(np.ceil(np.log2(reach / finest)))
        panels = {0.0, *(reach / 2.0**k for k in range(halvings + 1))}
        positive = sorted(panels | {x for x in edges if 0 < x < reach})
        ends = np.array([*(-x for x in positive[:0:-1]), *positive])
        half, center = np.diff(ends) / 2, (ends[1:] + ends[:-1]) / 2
        x, w = self.panel
        nodes, weights = center[:, None] + half[:, None] * x, half[:, None] * w
        weights = weights * np.exp(-(nodes**2) / 2) / np.sqrt(2 * np.pi)
        return nodes.ravel(), weights.ravel()

    def _posterior_mean(self, y: float, omega: Host, V: Host) -> Host:
        """Posterior mean of a latent given its label y, for the prior N(omega, V)."""
        means = np.repeat(omega[:, None, None], self.C, axis=2)
        labels = y * np.ones_like(means)
        return np.asarray(self.channel.posterior(labels, means, V).mean)[:, 0, 0]

    def __call__(self, orders: OrderParameters) -> RiskMoments:
        """Integrals at given order parameters, by quadrature."""
        m, q, v, variance = (
            matrix[0, 0]
            for matrix in (orders.M, orders.Q, orders.V, orders.conditional)
        )
        size = np.sqrt(q)
        # The curvature of the loss as a function of omega jumps at the kink plus V times the slope there.
        signs = np.array([1.0, -1.0])
        edges: list[float] = []
        for kink in self.loss.kinks:
            z = signs * kink
            jumps = np.abs(z + v * self.loss.slope(signs, z)) / size
            edges += jumps.tolist()
        step = np.sqrt(variance) / max(abs(m) / size, ACCURACY.finest)
        nodes, weights = self._nodes(step, edges)
        omega, teacher_mean = size * nodes, m / size * nodes
        means = [
            self._posterior_mean(y, teacher_mean, orders.conditional) for y in signs
        ]
        # The two posterior means average to the prior mean; their distances from it, less rounding, give the chance of a label.
        blur = ROUNDING * np.abs(teacher_mean)
        above, below = (
            np.maximum(np.abs(mean - teacher_mean) - blur, 0.0) for mean in means
        )
        is_resolved = above + below > 1e4 * blur
        # Where no label moves the mean any more, the chance of a label stays what it was.
        chance = np.full_like(nodes, 0.5)
        if is_resolved.any():
            shares = below[is_resolved] / (above + below)[is_resolved]
            chance = np.interp(nodes, nodes[is_resolved], shares)
        integrals = np.zeros(6)
        for y, mean, p in zip(signs, means, (chance, 1 - chance)):
            labels = np.full_like(omega, y)
            h = proximal(self.loss, labels, omega, v)
            g = proximal_force(self.loss, labels, omega, h, v)
            curvature = self.loss.curvature(labels, h)
            integrands = (
                curvature / (1 + v * curvature),
                g * (mean - teacher_mean) / variance,
                g * g,
                g * mean,
                self.loss.value(y, h),
                self.loss.value(y, omega),
            )
            integrals += [np.sum(weights * p * integrand) for integrand in integrands]
        *moments, training, test = (self.C * integrals).tolist()
        V_hat, m_hat, Q_hat, along = (np.array([[moment]]) for moment in moments)
        return RiskMoments(V_hat, m_hat, Q_hat, along, training, test)


class SampledIntegrals:
    """Integrals for any labels, sampled with randomized Sobol points for z* and omega and with labels drawn once.

    Neither z* nor its labels move with the overlaps, so that the integrals are as smooth as the loss and a fixed point is found
    to rounding: what is left is the spread between sets of points.
    """

    def __init__(self, problem: Problem, loss: Loss, scramble: int) -> None:
        P, C = problem.components, problem.model.sites
        self.loss, self.inverse = loss, np.linalg.inv(prior_moments(problem)[0])
        points = whitened_points(
            2 * P * C, ACCURACY.points, "convex losses", scramble
        ).reshape(-1, 2 * P, C)
        self.z = symmetric_root(prior_moments(problem)[0]) @ points[:, :P]
        self.u = points[:, P:]
        rng = monte_carlo_rng("convex losses: noise", scramble)
        labels = problem.channel.forward(self.z, rng=rng)
        self.y = np.asarray(observable(problem.channel, labels), dtype=float)

    def __call__(self, orders: OrderParameters) -> RiskMoments:
        """Integrals at given order parameters, by sampling."""
        omega = (orders.M @ self.inverse) @ self.z + symmetric_root(
            orders.blur
        ) @ self.u
        y, n, v = self.y, len(self.y), np.diagonal(orders.V)[:, None]
        h = proximal(self.loss, y, omega, v)
        g = proximal_force(self.loss, y, omega, h, v)
        curvature = self.loss.curvature(y, h)
        V_hat = np.diag(np.sum(curvature / (1 + v * curvature), axis=(0, 2)) / n)
        training, test = (
            float(np.sum(self.loss.value(y, latents)) / n) for latents in (h, omega)
        )
        Q_hat, along = (
            np.einsum("npc,nqc->pq", g, factor) / n for factor in (g, self.z)
        )
        # Stein's lemma: E g z*^T = -V_hat M + m_hat T.
        m_hat = (along + V_hat @ orders.M) @ self.inverse
        return RiskMoments(V_hat, m_hat, Q_hat, along, training, test)
