r"""What convex empirical risk minimisation achieves as D goes to infinity: the replica-symmetric fixed point, with
integrals for squares, signs or sampled labels, and the best penalty.

The minimum of ``sum_mu l(y_mu, z_mu) + (lambda / 2) |W|^2`` has overlaps ``M = W W*^T / D``, ``Q = W W^T / D`` and a
susceptibility V (all P x P) with

.. math::

    V = (\lambda + \hat V)^{-1}, \qquad M = V \hat m T, \qquad Q = V (\hat m T \hat m^T + \hat Q) V,

    \hat V = -\alpha E \sum_c \frac{\partial g_c}{\partial \omega_c}, \qquad
    \hat m = \alpha E \sum_c \frac{\partial g_c}{\partial z^*_c}, \qquad \hat Q = \alpha E \sum_c g_c g_c^T,

``g = V^{-1} (prox(y, omega) - omega)`` with the proximal operator of the loss, over Gaussian ``(z*, omega)`` of covariance
``(T, M, Q)`` and the labels of z*. A convex problem has one minimum, so that replica symmetry is exact.

References
----------
Aubin, Krzakala, Lu and Zdeborova, arXiv:2006.06560; Thrampoulidis, Abbasi and Hassibi, arXiv:1601.06233 (proof); several
components derived, checked by tests/algorithms/test_erm.py.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.derive.channel import observable, predict
from smimbench.files import canonical_json
from smimbench.interfaces import Overlaps
from smimbench.numerics.linalg import symmetric_root
from smimbench.numerics.memo import Named
from smimbench.numerics.qmc import whitened_points
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.theory.information import prior_moments
from smimbench.theory.types import Host
from smimbench_algorithms.erm.losses import LOSSES, Loss, proximal

if TYPE_CHECKING:
    from smimbench.problem import Problem

__all__ = ["Minimum", "best_penalty", "minimum", "why_not"]

NODES = 20
"""Gauss-Legendre nodes of every panel of the integral over omega where labels are signs. Doubled: errors, below 1e-10, vanish
further."""

REACH = 9.0
"""Standard deviations of omega up to which is integrated. Doubled: nothing is added, the weight beyond is 1e-19."""

FINEST = 1e-12
"""Width of the innermost panel at the least, in units of that of omega. Doubled: nothing changes above angles of that size."""

ROUNDING = 4 * float(np.finfo(float).eps)
"""Relative difference of two posterior means that counts as rounding. Doubled: labels of a chance of 1e-15 are left out."""

TOLD = 1e4
"""Difference of two posterior means, in units of its rounding, that tells the chance of a label. Doubled: labels that are flipped
at random have the chance of their last node a little sooner."""

SCRAMBLES = 4
"""Independent sets of random points for other labels; their spread is the stated error. Doubled: 0.7 times the error."""

POINTS = 2**12
"""Points of each set. Doubled: about half the error, in twice the time."""

MOST = 10
"""Iterations before a root finder goes on from there. Doubled: it starts closer, later."""

ROUNDS = 20
"""How often that is tried. Doubled: fixed points at the edge of separability come closer."""

EFFORT = 30
"""Evaluations of a root finder for every unknown at the most; it takes four. Doubled: hopeless starts are given up later."""

EASY = 1.0
"""Smaller penalties are reached from this one, times the sample ratio where that is above 1. Doubled: one more step."""

STRIDE = 10.0
"""Factor of a step at the most. Doubled: fewer steps, from further away."""

CLOSE = 1e-11
"""Relative change at which the iteration ends. Doubled: one iteration fewer."""

STALLED = 1e-8
"""Relative change that is enough where a root finder brings no less: the rest is rounding. Doubled: so is that."""

ROUGH = 1e-3
"""The same where labels are drawn: a label that flips moves the integrals by a jump. Doubled: so is that error."""

WEIGHT = 0.7
"""Weight of the new in every iteration. At 1 some fixed points are circled; halved, twice the iterations."""

PENALTIES = (1e-12, 1e3)
"""Between which the best penalty is looked for. A wider range: more trials for one that is almost zero or infinite."""

TRIALS = 16
"""Penalties tried at most, evenly in the logarithm. Doubled: a second minimum would hardly be missed."""


@dataclass(frozen=True)
class Minimum:
    """The minimum in the limit.

    Attributes
    ----------
    overlaps : Overlaps
    V : ndarray (P, P)
        Susceptibility.
    training_loss, test_loss : float
        Mean loss of a sample, of those that were fitted and of others; without the penalty.
    penalty : float
    """

    overlaps: Overlaps
    V: Host
    training_loss: float
    test_loss: float
    penalty: float

    @property
    def length(self) -> float:
        """Factor that brings the estimate closest to the signal, ``tr M / tr Q``: the length of a posterior mean."""
        return float(np.trace(self.overlaps.cross) / max(float(np.trace(self.overlaps.own)), 1e-300))


def why_not(problem: Problem, loss: Loss | None) -> str | None:
    """Why a problem's labels have no loss that is convex in the latents; ``loss`` None: any."""
    if problem.model.rank != "low":
        return "erm is for signals of low rank; nuclear and ridge fit matrices"
    if problem.channel.symmetry != "none":
        return f"labels of channel {problem.channel.name!r} do not see the sign of the signal: no loss is convex in the latents"
    kind = labels_of(problem)
    if kind is None:
        return f"labels of channel {problem.channel.name!r} are not one number for each latent"
    if loss is not None and loss.binary and kind != "signs":
        return f"loss {loss.name!r} needs labels -1 and +1, those of channel {problem.channel.name!r} are not"
    return None


def labels_of(problem: Problem) -> str | None:
    """``"signs"``, ``"numbers"``, or None where labels do not have the shape of the latents."""
    rng = monte_carlo_rng("convex losses: what labels are")
    z = rng.standard_normal((64, problem.components, problem.model.sites))
    y = np.asarray(observable(problem.channel, problem.channel.forward(z, rng=rng)))
    if y.shape != z.shape:
        return None
    return "signs" if bool(np.isin(y, (-1, 1)).all()) else "numbers"


def minimum(problem: Problem, alpha: float, loss: str, penalty: float, scramble: int = 0) -> Minimum:
    """The fixed point for one penalty > 0.

    Raises
    ------
    ValueError
        If the iteration does not come to rest.
    """
    return _fixed_point(_keyed(problem), float(alpha), loss, float(penalty), scramble)


def evaluations(problem: Problem, loss: str) -> int:
    """Independent evaluations that ``minimum`` offers: one where integrals are deterministic."""
    return 1 if isinstance(_integrals(problem, LOSSES[loss], 0), (_SquareLossIntegrals, _SignIntegrals)) else SCRAMBLES


class _Moments(NamedTuple):
    """``-E dg/domega``, ``E dg/dz*``, ``E g g^T`` and ``E g z*^T`` (P, P), summed over sites; mean losses of a sample."""

    V_hat: Host
    m_hat: Host
    Q_hat: Host
    along: Host
    training_loss: float
    test_loss: float


def _keyed(problem: Problem) -> Named[Problem]:
    return Named(canonical_json(problem.spec), problem)


@functools.lru_cache(maxsize=256)
def _fixed_point(keyed: Named[Problem], alpha: float, loss: str, penalty: float, scramble: int) -> Minimum:
    problem = keyed.value
    integrals = _integrals(problem, LOSSES[loss], scramble)
    path = _PenaltyPath(problem, alpha, integrals)
    for step in _downwards(penalty, EASY * max(alpha, 1.0)):
        here = path.settled(step)
    T = prior_moments(problem)[0]
    V, M, Q, rest = _overlaps(here, T)
    found = integrals(T, M, Q, V, rest)
    return Minimum(Overlaps(T, M, Q), V, float(found.training_loss), float(found.test_loss), penalty)


def _downwards(penalty: float, easy: float) -> list[float]:
    """From a penalty at which the iteration always settles to this one."""
    if penalty >= easy:
        return [penalty]
    count = int(np.ceil(np.log(easy / penalty) / np.log(STRIDE)))
    return [float(x) for x in np.geomspace(easy, penalty, count + 1)]


def _overlaps(here: Host, T: Host) -> tuple[Host, Host, Host, Host]:
    """V, M, Q, and the covariance of z* where omega is known, ``T - M^T Q^-1 M`` without its cancellation."""
    V, m_hat, Q_hat = here
    known = m_hat.T @ np.linalg.solve(Q_hat, m_hat)
    return V, V @ m_hat @ T, V @ (m_hat @ T @ m_hat.T + Q_hat) @ V.T, T @ np.linalg.inv(np.eye(len(T)) + known @ T)


class _PenaltyPath:
    """Fixed points of one problem along penalties: each is looked for where those that are known point to."""

    def __init__(self, problem: Problem, alpha: float, integrals: Any) -> None:
        self.P, self.T = problem.components, prior_moments(problem)[0]
        self.alpha, self.integrals = alpha, integrals
        self.known: list[tuple[float, Host]] = []

    def settled(self, penalty: float) -> Host:
        """V, m_hat and Q_hat (3, P, P) at the fixed point."""
        if isinstance(self.integrals, _SquareLossIntegrals):
            return self.integrals.fixed_point(self.alpha, penalty, self.T)
        close = self.integrals.close
        after = functools.partial(self._after, penalty)
        here = self._guess(penalty)
        if self.known and close <= CLOSE:
            here = self._root(penalty, here)
        gap = np.inf
        for attempt in range(ROUNDS):
            for _ in range(MOST):
                new = after(here)
                gap = float(np.max(np.abs(new - here).max(axis=(1, 2)) / np.abs(new).max(axis=(1, 2))))
                here = WEIGHT * new + (1 - WEIGHT) * here
                if not gap > close:
                    break
            if gap <= close or (attempt and gap <= STALLED):
                self.known.append((float(np.log(penalty)), here))
                return here
            if not np.isfinite(here).all():
                break
            here = self._root(penalty, here)
        raise ValueError(f"the fixed point at penalty {penalty:g} was not found (last relative change {gap:.1e})")

    def _after(self, penalty: float, parameters: Host) -> Host:
        V, M, Q, rest = _overlaps(parameters, self.T)
        V_hat, m_hat, Q_hat = (self.alpha * part for part in self.integrals(self.T, M, Q, V, rest)[:3])
        return np.stack([np.linalg.inv(penalty * np.eye(self.P) + V_hat), m_hat, Q_hat])

    def _root(self, penalty: float, here: Host) -> Host:
        """A fixed point near by, found as a root; the same point where there is none."""
        from scipy.optimize import root

        positive = self.P == 1 and bool((here > 0).all())
        size = np.abs(here).max(axis=(1, 2), keepdims=True) * np.ones_like(here)

        def point(x: Host) -> Host:
            """One component: from logarithms, so that every step stays possible."""
            moved = np.exp(np.clip(x, -100.0, 100.0)).reshape(here.shape) if positive else x.reshape(here.shape) * size
            return np.asarray(moved, dtype=float)

        def gap(x: Host) -> Host:
            V, M, Q, rest = _overlaps(point(x), self.T)
            if min(np.linalg.eigvalsh(V).min(), np.linalg.eigvalsh(Q).min()) <= 0:
                return np.full(len(x), 1e3)
            if not positive:
                return np.asarray((self._after(penalty, point(x)) / size).ravel() - x)
            found = self.integrals(self.T, M, Q, V, rest)
            # alpha E g z* = lambda M says the same as the equation of M, and stays sharp where lambda is small beside V_hat.
            push, pull = self.alpha * found.along.item(), penalty * M.item()
            V_new, Q_new = 1 / (penalty + self.alpha * found.V_hat.item()), self.alpha * found.Q_hat.item()
            if not (V_new > 0 and Q_new > 0):
                return np.full(len(x), 1e3)
            return np.array([np.log(V_new) - x[0], (push - pull) / (abs(push) + pull), np.log(Q_new) - x[2]])

        begin = np.log(here.ravel()) if positive else (here / size).ravel()
        found = root(gap, begin, method="hybr", options={"xtol": CLOSE, "maxfev": EFFORT * len(begin)})
        return point(found.x) if np.abs(found.fun).max() < np.abs(gap(begin)).max() else here

    def _guess(self, penalty: float) -> Host:
        """A power of the penalty through the two nearest that are known; of one component only."""
        x = float(np.log(penalty))
        near = sorted(self.known, key=lambda point: abs(point[0] - x))[:2]
        if not near:  # a small overlap and a small norm
            one, start = np.eye(self.P), 1 + penalty
            return np.stack([one / start, 0.1 * start * one, start**2 * (0.1 * one + 0.09 * self.T)])
        if len(near) == 1 or self.P > 1 or not (np.stack([near[0][1], near[1][1]]) > 0).all():
            return near[0][1]
        (first, one), (second, two) = near
        return np.asarray(one * (two / one) ** ((x - first) / (second - first)))


def best_penalty(problem: Problem, alpha: float, loss: str) -> float:
    """The penalty of the smallest error in the limit.

    The error is the MSE; where labels are signs, that of the estimate at its best length (which falls with the error of
    prediction, a function of the angle).
    """
    return _best_of(_keyed(problem), float(alpha), loss)


@functools.lru_cache(maxsize=256)
def _best_of(keyed: Named[Problem], alpha: float, loss: str) -> float:
    return _best_penalty(keyed.value, alpha, loss)


def _best_penalty(problem: Problem, alpha: float, loss: str) -> float:
    from scipy.optimize import minimize_scalar

    way, T = _PenaltyPath(problem, alpha, _integrals(problem, LOSSES[loss], 0)), prior_moments(problem)[0]
    free = labels_of(problem) == "signs"

    def error(log_penalty: float) -> float:
        M, Q = _overlaps(way.settled(float(np.exp(log_penalty))), T)[1:3]
        length = float(np.trace(M) / np.trace(Q)) if free else 1.0
        return float(np.trace(T - 2 * length * M + length**2 * Q))

    def tried(log_penalty: float) -> float:
        try:
            return error(log_penalty)
        except ValueError:  # where an overlap or an error is too close to its end for doubles
            return 2 * values[0]

    # From large penalties down; past the minimum there is nothing to look for.
    smallest, largest = np.log(PENALTIES)
    grid = np.linspace(largest, smallest, TRIALS)
    try:
        values = [error(grid[0])]
    except ValueError as why:
        raise ValueError(f"the best penalty is not found at alpha = {alpha:g} ({why}); give it as a number") from None
    for x in grid[1:]:
        values.append(tried(x))
        if values[-1] > 1.02 * min(values):
            break
    best, width = grid[int(np.argmin(values))], abs(grid[1] - grid[0])
    bounds = max(best - width, grid[-1]), best + width
    found = minimize_scalar(tried, bounds=bounds, method="bounded", options={"xatol": 1e-3})
    return float(np.exp(found.x if found.fun <= min(values) else best))


# -- the integrals over (z*, omega) ------------------------------------------------------------------------------------


def _integrals(problem: Problem, loss: Loss, scramble: int) -> Any:
    noise = _noise(problem)
    if noise is not None and loss.name == "square":
        return _SquareLossIntegrals(problem, noise)
    if problem.components == 1 and labels_of(problem) == "signs" and _sites_apart(problem):
        return _SignIntegrals(problem, loss)
    return _SampledIntegrals(problem, loss, scramble)


def _noise(problem: Problem) -> Host | None:
    """Variance of the noise of every component, where labels are the latents and noise."""
    from smimbench_algorithms.least_squares import seen_by_labels

    P, C = problem.components, problem.model.sites
    z = monte_carlo_rng("convex losses: what labels are").standard_normal((4, P, C))
    shown = np.asarray(predict(problem.channel, z))
    if shown.shape != z.shape or not np.allclose(shown, z, rtol=0, atol=1e-12):
        return None
    seen = seen_by_labels(problem)
    if isinstance(seen, str) or np.ptp(seen.noise) > 1e-9 or len(seen.rows) != P * C:
        return None
    return np.asarray(seen.noise[0] * np.eye(P))


def _sites_apart(problem: Problem) -> bool:
    """Whether the posterior of one site does not depend on the labels of others."""
    C = problem.model.sites
    rng = monte_carlo_rng("convex losses: sites")
    omega, y = rng.standard_normal((8, 1, C)), np.sign(rng.standard_normal((8, 1, C)))
    other = y.copy()
    other[:, :, 1:] *= -1
    one, two = (np.asarray(problem.channel.posterior(labels, omega, np.eye(1)).mean)[:, :, 0] for labels in (y, other))
    return bool(np.allclose(one, two, rtol=0, atol=1e-12))


class _SquareLossIntegrals:
    """Square loss on labels ``z + noise``: closed form."""

    def __init__(self, problem: Problem, noise: Host) -> None:
        self.C, self.noise = problem.model.sites, noise

    def fixed_point(self, alpha: float, penalty: float, T: Host) -> Host:
        """V, m_hat and Q_hat (3, P, P): V is a number, the root of a quadratic equation, and Q_hat is linear in it."""
        one, ratio = np.eye(len(T)), alpha * self.C
        b = penalty + ratio - 1
        root = np.sqrt(b * b + 4 * penalty)
        v = 2 / (b + root) if b > 0 else (root - b) / (2 * penalty)
        # z - omega shrinks by 1 + v, the signal that is not seen is lambda v of it: V m_hat = 1 - lambda v.
        shrunk = ratio / (1 + v) ** 2
        Q_hat = shrunk * ((penalty * v) ** 2 * T + self.noise) / (1 - shrunk * v * v)
        return np.stack([v * one, ratio / (1 + v) * one, Q_hat])

    def __call__(self, T: Host, M: Host, Q: Host, V: Host, rest: Host) -> _Moments:
        gain = np.asarray(np.linalg.inv(np.eye(len(V)) + V), dtype=float)
        gap = T - M - M.T + Q + self.noise
        square = gain @ gap @ gain.T
        training, test = (float(self.C * np.trace(each) / 2) for each in (square, gap))
        return _Moments(self.C * gain, self.C * gain, self.C * square, self.C * gain @ (T - M), training, test)


class _SignIntegrals:
    """Labels -1 and +1 that each depend on one latent: sum over the label, quadrature over omega."""

    close = CLOSE

    def __init__(self, problem: Problem, loss: Loss) -> None:
        self.channel: Any = problem.channel
        self.loss, self.C = loss, problem.model.sites
        self.panel = np.polynomial.legendre.leggauss(NODES)

    def _nodes(self, step: float, edges: list[float]) -> tuple[Host, Host]:
        """Gauss-Legendre on panels that halve towards zero, down to the width of a step of the chance of a label there."""
        halvings = int(np.ceil(np.log2(REACH / min(max(step, FINEST), REACH / 2))))
        positive = sorted({0.0, *(REACH / 2.0**k for k in range(halvings + 1)), *(x for x in edges if 0 < x < REACH)})
        ends = np.array([*(-x for x in positive[:0:-1]), *positive])
        half, middle = np.diff(ends) / 2, (ends[1:] + ends[:-1]) / 2
        x, w = self.panel
        nodes, weights = middle[:, None] + half[:, None] * x, half[:, None] * w
        return nodes.ravel(), (weights * np.exp(-(nodes**2) / 2) / np.sqrt(2 * np.pi)).ravel()

    def __call__(self, T: Host, M: Host, Q: Host, V: Host, rest: Host) -> _Moments:
        m, q, v, left = M[0, 0], Q[0, 0], V[0, 0], rest[0, 0]
        size = np.sqrt(q)
        # Where the curvature of the loss jumps as a function of omega: at the kink plus V times the slope there.
        signs = np.array([1.0, -1.0])
        kinks = [signs * k for k in self.loss.kinks]
        edges = [float(x) for z in kinks for x in np.abs(z + v * self.loss.slope(signs, z)) / size]
        nodes, weights = self._nodes(np.sqrt(left) * size / max(abs(m), FINEST), edges)
        omega, known = size * nodes, m / size * nodes
        spread = np.repeat(known[:, None, None], self.C, axis=2)
        plus, minus = (
            np.asarray(self.channel.posterior(sign * np.ones_like(spread), spread, rest).mean)[:, 0, 0]
            for sign in (1.0, -1.0)
        )
        # The two posterior means average to the prior mean; what of their difference from it is rounding is no chance.
        blur = ROUNDING * np.abs(known)
        above, below = (np.maximum(np.abs(mean - known) - blur, 0.0) for mean in (plus, minus))
        told = above + below > TOLD * blur
        # Where no label moves the mean any more, the chance of a label is what it was last.
        shares = below[told] / (above + below)[told]
        chance = np.interp(nodes, nodes[told], shares) if told.any() else np.full_like(nodes, 0.5)
        total = np.zeros(6)
        for y, mean, p in ((1.0, plus, chance), (-1.0, minus, 1 - chance)):
            labels = np.full((len(omega), 1, 1), y)
            h = proximal(self.loss, labels, omega[:, None, None], V)[:, 0, 0]
            g, bend = (h - omega) / v, self.loss.curvature(labels[:, 0, 0], h)
            parts = bend / (1 + v * bend), g * (mean - known) / left, g * g, g * mean
            losses = self.loss.value(y, h), self.loss.value(y, omega)
            total += np.array([np.sum(weights * p * part) for part in (*parts, *losses)])
        total *= self.C
        V_hat, m_hat, Q_hat, along = (np.array([[value]]) for value in total[:4])
        return _Moments(V_hat, m_hat, Q_hat, along, float(total[4]), float(total[5]))


class _SampledIntegrals:
    """Any other labels: randomised Sobol points for z* and omega, labels drawn."""

    close = ROUGH

    def __init__(self, problem: Problem, loss: Loss, scramble: int) -> None:
        P, C = problem.components, problem.model.sites
        self.channel: Any = problem.channel
        self.loss, self.scramble = loss, scramble
        points = whitened_points(2 * P * C, POINTS, "convex losses", scramble).reshape(-1, 2 * P, C)
        self.one, self.two = points[:, :P], points[:, P:]

    def __call__(self, T: Host, M: Host, Q: Host, V: Host, rest: Host) -> _Moments:
        root = symmetric_root(Q)
        mixing = M.T @ np.linalg.pinv(root)
        apart = symmetric_root(rest)
        omega, z = root @ self.one, mixing @ self.one + apart @ self.two
        labels = self.channel.forward(z, rng=monte_carlo_rng("convex losses: noise", self.scramble))
        y = np.asarray(observable(self.channel, labels), dtype=float)
        h = proximal(self.loss, y, omega, V)
        g = np.einsum("pq,nqc->npc", np.linalg.inv(V), h - omega)
        n, P = len(y), len(V)
        bend = self.loss.curvature(y, h)  # diagonal: dg/domega = -(V + bend^{-1})^{-1} = -(I + bend V)^{-1} bend
        sites = np.moveaxis(bend, 1, 2).reshape(-1, P)
        slope = np.linalg.solve(np.eye(P) + sites[:, :, None] * V, sites[:, :, None] * np.eye(P))
        m_hat = np.einsum("npc,nqc->pq", g, self.two) / n @ np.linalg.pinv(apart)
        losses = (float(np.sum(self.loss.value(y, at)) / n) for at in (h, omega))
        square, along = (np.einsum("npc,nqc->pq", g, other) / n for other in (g, z))
        return _Moments(slope.sum(axis=0) / n, m_hat, square, along, *losses)
