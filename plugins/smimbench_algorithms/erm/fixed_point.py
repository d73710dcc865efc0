r"""What convex empirical risk minimisation achieves as D goes to infinity: the replica-symmetric fixed point.

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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.derive.channel import observable, predict
from smimbench.files import canonical_json
from smimbench.interfaces import Overlaps
from smimbench.numerics.linalg import symmetric_root
from smimbench.numerics.qmc import whitened_points
from smimbench.numerics.quadrature import gaussian_trapezoid
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.theory.information import prior_moments
from smimbench.theory.types import Host
from smimbench_algorithms.erm.losses import LOSSES, Loss, proximal

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.problem import Problem

__all__ = ["Minimum", "best_penalty", "minimum", "why_not"]

NODES = 301
"""Nodes of the integral over omega where labels are signs. Doubled: errors, below 1e-10 for smooth losses, vanish further."""

SCRAMBLES = 4
"""Independent sets of random points for other labels; their spread is the stated error. Doubled: 0.7 times the error."""

POINTS = 2**12
"""Points of each set. Doubled: about half the error, in twice the time."""

MOST = 10
"""Iterations before a root finder goes on from there. Doubled: it starts closer, later."""

ROUNDS = 20
"""How often that is tried. Doubled: fixed points at the edge of separability come closer."""

EASY = 1.0
"""Smaller penalties are reached from this one. Doubled: one more step on the way."""

STRIDE = 3.0
"""Factor of a step. Doubled: fewer steps, from further away."""

CLOSE = 1e-11
"""Relative change at which the iteration ends. Doubled: one iteration fewer."""

ROUGH = 1e-3
"""The same where labels are drawn: a label that flips moves the integrals by a jump. Doubled: so is that error."""

WEIGHT = 0.7
"""Weight of the new in every iteration. At 1 some fixed points are circled; halved, twice the iterations."""

PENALTIES = (1e-5, 1e3)
"""Between which the best penalty is looked for. A wider range: more trials for one that is almost zero or infinite."""

TRIALS = 17
"""Penalties tried first, evenly in the logarithm. Doubled: a second minimum would hardly be missed."""

EPSILON = float(np.finfo(float).eps)
"""Smallest difference of squared overlaps that is none of rounding."""


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
    return _fixed_point(problem, float(alpha), loss, float(penalty), scramble)


def evaluations(problem: Problem, loss: str) -> int:
    """Independent evaluations that ``minimum`` offers: one where integrals are deterministic."""
    return 1 if isinstance(_integrals(problem, LOSSES[loss], 0), (_Squares, _Signs)) else SCRAMBLES


def _fixed_point(problem: Problem, alpha: float, loss: str, penalty: float, scramble: int) -> Minimum:
    integrals = _integrals(problem, LOSSES[loss], scramble)
    here = None
    for step in _downwards(penalty):
        here = _settled(problem, alpha, integrals, step, here)
    assert here is not None
    T, (V, M, Q) = prior_moments(problem)[0], here
    training, test = integrals(T, M, Q, V)[3:]
    return Minimum(Overlaps(T, M, Q), V, float(training), float(test), penalty)


def _downwards(penalty: float) -> list[float]:
    """From a penalty at which the iteration always settles to this one."""
    if penalty >= EASY:
        return [penalty]
    count = int(np.ceil(np.log(EASY / penalty) / np.log(STRIDE)))
    return [float(x) for x in np.geomspace(EASY, penalty, count + 1)]


def _settled(problem: Problem, alpha: float, integrals: Any, penalty: float, here: Host | None) -> Host:
    """V, M and Q (3, P, P) at the fixed point, from those of a penalty near by."""
    P, T = problem.components, prior_moments(problem)[0]

    def after(parameters: Host) -> Host:
        V, M, Q = parameters
        V_hat, m_hat, Q_hat = (alpha * part for part in integrals(T, M, Q, V)[:3])
        V = np.linalg.inv(penalty * np.eye(P) + V_hat)
        return np.stack([V, V @ m_hat @ T, V @ (m_hat @ T @ m_hat.T + Q_hat) @ V.T])

    if here is None:
        here = np.stack([np.eye(P) / (1 + penalty), 0.1 * T, 0.1 * T + 0.1 * np.eye(P)])
    gap = np.inf
    for _ in range(ROUNDS):
        for _ in range(MOST):
            new = after(here)
            gap = float(np.max(np.abs(new - here).max(axis=(1, 2)) / np.abs(new).max(axis=(1, 2))))
            here = WEIGHT * new + (1 - WEIGHT) * here
            if not gap > integrals.close:
                break
        if gap <= integrals.close:
            return here
        if not np.isfinite(here).all():
            break
        here = _newton(after, here, T)
    raise ValueError(f"the fixed point at penalty {penalty:g} was not found (last relative change {gap:.1e})")


def _newton(after: Callable[[Host], Host], here: Host, T: Host) -> Host:
    """A fixed point near by, found as a root; the same point where there is none."""
    from scipy.optimize import root

    single = len(T) == 1
    size = np.abs(here).max(axis=(1, 2), keepdims=True) * np.ones_like(here)

    def free(point: Host) -> Host:
        """One component: logarithms of V, of Q and of the odds of the squared cosine, so that every step stays possible."""
        if not single:
            return np.asarray(point / size).ravel()
        V, M, Q = point.ravel()
        return np.array([np.log(V), np.log(M * M / max(T[0, 0] * Q - M * M, EPSILON * T[0, 0] * Q)), np.log(Q)])

    def back(x: Host) -> Host:
        if not single:
            return np.asarray(x.reshape(here.shape) * size)
        V, odds, Q = np.exp(np.clip(x, -60.0, 60.0))
        return np.array([V, np.sqrt(T[0, 0] * Q * odds / (1 + odds)), Q]).reshape(3, 1, 1)

    def gap(x: Host) -> Host:
        point = back(x)
        if min(np.linalg.eigvalsh(point[0]).min(), np.linalg.eigvalsh(point[2]).min()) <= 0:
            return np.full(len(x), 1e3)
        return free(after(point)) - x

    begin = free(here)
    found = root(gap, begin, method="hybr", options={"xtol": CLOSE})
    return back(found.x) if np.abs(found.fun).max() < np.abs(gap(begin)).max() else here


def best_penalty(problem: Problem, alpha: float, loss: str) -> float:
    """The penalty of the smallest error in the limit.

    The error is the MSE; where labels are signs, that of the estimate at its best length (which falls with the error of
    prediction, a function of the angle).
    """
    return _best_of(_Keyed(canonical_json(problem.spec), problem), float(alpha), loss)


@dataclass(frozen=True)
class _Keyed:
    """A problem that is equal to another one of the same names and parameters: cells make theirs anew."""

    key: str
    problem: Problem = field(compare=False)


@functools.lru_cache(maxsize=256)
def _best_of(keyed: _Keyed, alpha: float, loss: str) -> float:
    return _best_penalty(keyed.problem, alpha, loss)


def _best_penalty(problem: Problem, alpha: float, loss: str) -> float:
    from scipy.optimize import minimize_scalar

    integrals, T = _integrals(problem, LOSSES[loss], 0), prior_moments(problem)[0]
    free = labels_of(problem) == "signs"
    best: tuple[float, float, Host | None] = (np.inf, np.nan, None)

    def error(log_penalty: float, here: Host | None) -> tuple[float, Host]:
        found = _settled(problem, alpha, integrals, float(np.exp(log_penalty)), here)
        _, M, Q = found
        length = float(np.trace(M) / np.trace(Q)) if free else 1.0
        return float(np.trace(T - 2 * length * M + length**2 * Q)), found

    # From large penalties down, each from the last; past the minimum there is nothing to look for.
    smallest, largest = np.log(PENALTIES)
    grid = np.linspace(largest, smallest, TRIALS)
    here: Host | None = None
    for x in grid:
        try:
            value, here = error(x, here)
        except ValueError as why:  # at the edge of separability: the minimum lies before
            if best[2] is None:
                raise ValueError(
                    f"the best penalty is not found at alpha = {alpha:g} ({why}); give it as a number"
                ) from None
            break
        if value < best[0]:
            best = (value, x, here)
        elif value > 1.02 * best[0]:
            break
    width = abs(grid[1] - grid[0])
    bounds = (max(best[1] - width, grid[-1]), best[1] + width)
    try:
        found = minimize_scalar(
            lambda x: error(x, best[2])[0], bounds=bounds, method="bounded", options={"xatol": 1e-3}
        )
    except ValueError as why:
        raise ValueError(f"the best penalty is not found at alpha = {alpha:g} ({why}); give it as a number") from None
    return float(np.exp(found.x if found.fun <= best[0] else best[1]))


# -- the integrals over (z*, omega) ------------------------------------------------------------------------------------


def _integrals(problem: Problem, loss: Loss, scramble: int) -> Any:
    noise = _noise(problem)
    if noise is not None and loss.name == "square":
        return _Squares(problem, noise)
    if problem.components == 1 and labels_of(problem) == "signs" and _sites_apart(problem):
        return _Signs(problem, loss)
    return _Sampled(problem, loss, scramble)


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


class _Squares:
    """Square loss on labels ``z + noise``: closed form."""

    close = CLOSE

    def __init__(self, problem: Problem, noise: Host) -> None:
        self.C, self.noise = problem.model.sites, noise

    def __call__(self, T: Host, M: Host, Q: Host, V: Host) -> tuple[Any, ...]:
        gain = np.linalg.inv(np.eye(len(V)) + V)
        gap = T - M - M.T + Q + self.noise
        square = gain @ gap @ gain.T
        return self.C * gain, self.C * gain, self.C * square, self.C * np.trace(square) / 2, self.C * np.trace(gap) / 2


class _Signs:
    """Labels -1 and +1 that each depend on one latent: sum over the label, quadrature over omega."""

    close = CLOSE

    def __init__(self, problem: Problem, loss: Loss) -> None:
        self.channel: Any = problem.channel
        self.loss, self.C = loss, problem.model.sites
        self.nodes, self.weights = gaussian_trapezoid(NODES)

    def __call__(self, T: Host, M: Host, Q: Host, V: Host) -> tuple[Any, ...]:
        m, q, v = M[0, 0], Q[0, 0], V[0, 0]
        omega = np.sqrt(q) * self.nodes
        known, rest = m / q * omega, max(T[0, 0] - m * m / q, 1e-14)
        spread = np.repeat(known[:, None, None], self.C, axis=2)
        plus, minus = (
            np.asarray(self.channel.posterior(sign * np.ones_like(spread), spread, np.array([[rest]])).mean)[:, 0, 0]
            for sign in (1.0, -1.0)
        )
        # The two posterior means average to the prior mean.
        chance = np.clip((known - minus) / (plus - minus), 0.0, 1.0)
        total = np.zeros(5)
        for y, mean, p in ((1.0, plus, chance), (-1.0, minus, 1 - chance)):
            labels = np.full((len(omega), 1, 1), y)
            h = proximal(self.loss, labels, omega[:, None, None], V)[:, 0, 0]
            g, bend = (h - omega) / v, self.loss.curvature(labels[:, 0, 0], h)
            parts = bend / (1 + v * bend), g * (mean - known) / rest, g * g
            losses = self.loss.value(y, h), self.loss.value(y, omega)
            total += np.array([np.sum(self.weights * p * part) for part in (*parts, *losses)])
        total *= self.C
        return *(np.array([[value]]) for value in total[:3]), total[3], total[4]


class _Sampled:
    """Any other labels: randomised Sobol points for z* and omega, labels drawn."""

    close = ROUGH

    def __init__(self, problem: Problem, loss: Loss, scramble: int) -> None:
        P, C = problem.components, problem.model.sites
        self.channel: Any = problem.channel
        self.loss, self.scramble = loss, scramble
        points = whitened_points(2 * P * C, POINTS, "convex losses", scramble).reshape(-1, 2 * P, C)
        self.one, self.two = points[:, :P], points[:, P:]

    def __call__(self, T: Host, M: Host, Q: Host, V: Host) -> tuple[Any, ...]:
        root = symmetric_root(Q)
        mixing = M.T @ np.linalg.pinv(root)
        rest = symmetric_root(T - mixing @ mixing.T)
        omega, z = root @ self.one, mixing @ self.one + rest @ self.two
        labels = self.channel.forward(z, rng=monte_carlo_rng("convex losses: noise", self.scramble))
        y = np.asarray(observable(self.channel, labels), dtype=float)
        h = proximal(self.loss, y, omega, V)
        g = np.einsum("pq,nqc->npc", np.linalg.inv(V), h - omega)
        n, P = len(y), len(V)
        bend = self.loss.curvature(y, h)  # diagonal: dg/domega = -(V + bend^{-1})^{-1} = -(I + bend V)^{-1} bend
        sites = np.moveaxis(bend, 1, 2).reshape(-1, P)
        slope = np.linalg.solve(np.eye(P) + sites[:, :, None] * V, sites[:, :, None] * np.eye(P))
        m_hat = np.einsum("npc,nqc->pq", g, self.two) / n @ np.linalg.pinv(rest)
        losses = (float(np.sum(self.loss.value(y, at)) / n) for at in (h, omega))
        return slope.sum(axis=0) / n, m_hat, np.einsum("npc,nqc->pq", g, g) / n, *losses
