r"""The limit of convex empirical risk minimization: the replica-symmetric fixed point.

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
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from smimbench.interfaces import Host, Overlaps
from smimbench.numerics import spectral_function
from smimbench.problem import Problem
from smimbench.theory import prior_moments
from smimbench_attention.algorithms.erm.integrals import (
    ACCURACY,
    LOSSES,
    Integrals,
    Loss,
    OrderParameters,
    integrals_of,
    labels_of,
)
from smimbench_attention.algorithms.least_squares import (
    noise_of_identity,
    ridge_overlaps,
    ridge_shares,
)

PENALTIES = (1e-12, 1e12)
"""Smallest and largest penalty: beyond these an estimate is practically unpenalized, or zero."""


class Minimum(NamedTuple):
    """Overlaps, losses and errors at the minimum of the risk in the limit.

    Attributes
    ----------
    overlaps : Overlaps
    training_loss, test_loss : float
        Mean loss of a sample, of those that were fitted and of others; without the penalty.
    uncertain : Overlaps
        How far the overlaps are from the fixed point, from one step of Newton's method.
    """

    overlaps: Overlaps
    training_loss: float
    test_loss: float
    uncertain: Overlaps


def best_length(overlaps: Sequence[Overlaps]) -> float:
    """Factor ``tr M / tr Q`` that rescales an estimate to the smallest squared error."""
    cross = sum(float(np.trace(evaluation.cross)) for evaluation in overlaps)
    return cross / sum(float(np.trace(evaluation.own)) for evaluation in overlaps)


def why_not_convex(problem: Problem, loss: Loss | None) -> str | None:
    """Reason why convex risk minimization does not apply to a problem with this loss, or with any loss if None; else None."""
    if problem.model.rank != "low":
        return "erm is for low-rank signals; nuclear and ridge fit matrices"
    if problem.channel.symmetry != "none":
        name = problem.channel.name
        return f"labels of channel {name!r} do not depend on the sign of the signal: no loss is convex in the latents"
    kind = labels_of(problem)
    if kind is None:
        reason = f"labels of channel {problem.channel.name!r} are not one number for each latent"
        if problem.mixing is not None:
            reason += " of independent tokens, as tokens are correlated"
        return reason
    if loss is not None and loss.binary and kind != "signs":
        return f"loss {loss.name!r} needs labels -1 and +1, those of channel {problem.channel.name!r} are not"
    return None


@functools.lru_cache(maxsize=256)
def minima(problem: Problem, alpha: float, loss: str, penalty: float) -> list[Minimum]:
    """Minima of the risk in the limit at one penalty > 0, one for every independent evaluation of the integrals.

    Raises
    ------
    ValueError
        If the iteration does not converge.
    """
    return [path.minimum(penalty) for path in _paths(problem, alpha, LOSSES[loss])]


def _paths(
    problem: Problem, alpha: float, loss: Loss
) -> Sequence[ClosedForm | PenaltyPath]:
    """Solvers of the fixed point at any penalty, one for every independent evaluation of the integrals."""
    noise = noise_of_identity(problem) if loss.name == "square" else None
    if noise is not None:
        return [ClosedForm(problem, alpha, noise[0] * np.eye(problem.components))]
    return [
        PenaltyPath(problem, alpha, integrals)
        for integrals in integrals_of(problem, loss)
    ]


class ClosedForm:
    """Closed-form minimum for the square loss on labels ``z + noise``: ridge regression."""

    def __init__(self, problem: Problem, alpha: float, noise: Host) -> None:
        self.T, self.noise = prior_moments(problem)[0], noise
        self.sites = problem.model.sites
        self.ratio, self.features = alpha * self.sites, problem.features

    def overlaps(self, penalty: float) -> Overlaps:
        """Overlaps of signal and estimate at the minimum of the risk."""
        return ridge_overlaps(self.T, self.noise, self.ratio, penalty, self.features)

    def minimum(self, penalty: float) -> Minimum:
        """Exact minimum of the risk at a given penalty; a fitted label keeps ``1 / (1 + v)`` of its residual."""
        T, M, Q = overlaps = self.overlaps(penalty)
        test = self.sites * float(np.trace(T - M - M.T + Q + self.noise)) / 2
        residual_share = 1 - ridge_shares(self.ratio, penalty, self.features).fitted
        exact = Overlaps(0 * T, 0 * T, 0 * T)
        return Minimum(overlaps, residual_share**2 * test, test, exact)


def order_parameters(
    parameters: Host, T: Host, penalty: float = 0.0, features: Host | None = None
) -> OrderParameters:
    """Overlaps M, Q and susceptibility V that follow from V, m_hat and Q_hat (3, P, P), without cancellation."""
    V, m_hat, Q_hat = parameters
    gains, variances = V[None], np.ones((1, 1, 1))
    identity = np.eye(len(T))
    if features is not None:
        variances = features[:, None, None]
        V_hat = stiffness(V, penalty, features)
        gains = variances * np.linalg.inv(penalty * identity + variances * V_hat)
    slopes = gains @ m_hat
    mean = np.mean(variances * slopes, axis=0)
    deviation = slopes - mean
    from_signal = deviation @ T @ deviation.swapaxes(1, 2)
    from_noise = gains @ Q_hat @ gains.swapaxes(1, 2)
    blur = np.mean(variances * from_signal + from_noise, axis=0)
    information = mean.T @ np.linalg.solve(blur, mean)
    conditional = T @ np.linalg.inv(identity + information @ T)
    M, Q = mean @ T, mean @ T @ mean.T + blur
    return OrderParameters(T, M, Q, V, conditional, blur)


def stiffness(V: Host, penalty: float, features: Host) -> Host:
    """Stiffness V_hat >= 0 that gives the susceptibility V (P, P): the mean of ``lambda / (penalty + lambda V_hat)``."""
    from scipy.optimize import brentq

    def scalar_stiffness(v: float) -> float:
        # Between the curves of equal features and of features that are all learned.
        def excess(x: float) -> float:
            return float(np.mean(features / (penalty + features * np.exp(x)))) - v

        high = -np.log(v)
        low = high - 60.0
        if excess(low) <= 0:
            return 0.0
        return float(np.exp(brentq(excess, low, high, xtol=1e-14)))

    def stiffness_of_eigenvalues(values: Host) -> Host:
        return np.array([scalar_stiffness(v) for v in values])

    return np.asarray(spectral_function(V, stiffness_of_eigenvalues))


class PenaltyPath:
    r"""Fixed points of one problem as a function of the penalty; known fixed points give the next initial guess.

    Features of variance lambda have ``G = (penalty + lambda V_hat)^{-1}``, and means over them,

    .. math::

        V = E \lambda G, \qquad M = E \lambda^2 G \hat m T, \qquad
        Q = E \lambda^2 G (\lambda \hat m T \hat m^T + \hat Q) G,

    take the place of the equations for features of variance 1. The product of estimate and signal without the weights lambda is
    ``V m_hat T`` in both cases.
    """

    def __init__(self, problem: Problem, alpha: float, integrals: Integrals) -> None:
        self.P, self.T = problem.components, prior_moments(problem)[0]
        self.alpha, self.integrals, self.features = alpha, integrals, problem.features
        self.solutions: list[tuple[float, Host]] = []

    @property
    def safe_penalty(self) -> float:
        """Large penalty at which the iteration always converges; smaller ones are reached in factors of at most 10."""
        return max(self.alpha, 1.0)

    def minimum(self, penalty: float) -> Minimum:
        """Minimum of the risk at a given penalty, with its losses and numerical errors."""
        steps = int(np.ceil(np.log10(self.safe_penalty / penalty)))
        if steps > 0:
            for larger in np.geomspace(self.safe_penalty, penalty, steps + 1)[:-1]:
                self.solve(float(larger))
        parameters = self.solve(penalty)
        orders = self._orders(parameters, penalty)
        moments = self.integrals(orders)
        return Minimum(
            Overlaps(orders.T, orders.M, orders.Q),
            moments.training_loss,
            moments.test_loss,
            self.uncertain(penalty, parameters),
        )

    def overlaps(self, penalty: float) -> Overlaps:
        """Overlaps of signal and estimate at the fixed point."""
        orders = self._orders(self.solve(penalty), penalty)
        return Overlaps(orders.T, orders.M, orders.Q)

    def solve(self, penalty: float) -> Host:
        """Order parameters V, m_hat and Q_hat (3, P, P) at the fixed point."""
        parameters, gap = self._guess(penalty), np.inf
        if self.solutions:
            parameters, gap = self._root(penalty, parameters)
        for attempt in range(ACCURACY.attempts):
            if not gap <= ACCURACY.close:
                parameters, gap = self._iterated(penalty, parameters)
            if gap <= ACCURACY.close or (attempt and gap <= ACCURACY.stalled):
                self.solutions.append((float(np.log(penalty)), parameters))
                return parameters
            if not np.isfinite(parameters).all():
                break
            parameters, gap = self._root(penalty, parameters)
        raise ValueError(
            f"the fixed point at penalty {penalty:g} was not found (last relative change {gap:.1e})"
        )

    def _iterated(self, penalty: float, parameters: Host) -> tuple[Host, float]:
        """Run some fixed-point iterations; return the last relative change as well."""
        for _ in range(ACCURACY.iterations):
            updated = self._updated(penalty, parameters)
            change = np.abs(updated - parameters).max(axis=(1, 2))
            gap = float(np.max(change / np.abs(updated).max(axis=(1, 2))))
            parameters = ACCURACY.weight * updated + (1 - ACCURACY.weight) * parameters
            if not gap > ACCURACY.close:
                break
        return parameters, gap

    def _orders(self, parameters: Host, penalty: float) -> OrderParameters:
        """Overlaps and susceptibility that follow from V, m_hat and Q_hat."""
        return order_parameters(parameters, self.T, penalty, self.features)

    def _susceptibility(self, V_hat: Host, penalty: float) -> Host:
        """Susceptibility V (P, P) for a stiffness V_hat (P, P)."""
        penalties = penalty * np.eye(self.P)
        if self.features is None:
            return np.asarray(np.linalg.inv(penalties + V_hat))
        variances = self.features[:, None, None]
        gains = variances * np.linalg.inv(penalties + variances * V_hat)
        return np.asarray(np.mean(gains, axis=0))

    def _updated(self, penalty: float, parameters: Host) -> Host:
        """Order parameters after one iteration of the equations."""
        moments = self.integrals(self._orders(parameters, penalty))
        V_hat, m_hat, Q_hat = (self.alpha * moment for moment in moments[:3])
        return np.stack([self._susceptibility(V_hat, penalty), m_hat, Q_hat])

    def _equations(
        self, penalty: float, parameters: Host
    ) -> tuple[Host, Callable[[Host], Host], Callable[[Host], Host]]:
        """Root problem of the fixed point: initial unknowns, the map from unknowns to order parameters, the residual."""
        is_positive = self.P == 1 and bool((parameters > 0).all())
        size = np.abs(parameters).max(axis=(1, 2), keepdims=True)
        size = size * np.ones_like(parameters)
        impossible = np.full(parameters.size, 1e3)

        def point(x: Host) -> Host:
            """Order parameters from the unknowns, which for one component are logarithms, so that all values are valid."""
            if is_positive:
                positive = np.exp(np.clip(x, -100.0, 100.0))
                return np.asarray(positive.reshape(parameters.shape))
            return np.asarray(x.reshape(parameters.shape) * size)

        def gap(x: Host) -> Host:
            trial = point(x)
            orders = self._orders(trial, penalty)
            eigenvalues = (
                np.linalg.eigvalsh(matrix) for matrix in (orders.V, orders.Q)
            )
            if min(values.min() for values in eigenvalues) <= 0:
                return impossible
            if not is_positive:
                return np.asarray((self._updated(penalty, trial) / size).ravel() - x)
            moments = self.integrals(orders)
            # alpha E g z* = lambda M is equivalent to the equation of M, without the terms that cancel there; in units of that
            # equation it is as close to linear.
            V_hat = np.array([[self.alpha * moments.V_hat.item()]])
            V = self._susceptibility(V_hat, penalty).item()
            Q_hat = self.alpha * moments.Q_hat.item()
            if not (V > 0 and Q_hat > 0):
                return impossible
            cross = (trial[0] @ trial[1] @ self.T).item()
            excess = self.alpha * moments.along.item() - penalty * cross
            return np.array(
                [np.log(V) - x[0], excess * V / cross, np.log(Q_hat) - x[2]]
            )

        initial_unknowns = np.log(parameters) if is_positive else parameters / size
        return initial_unknowns.ravel(), point, gap

    def _root(self, penalty: float, parameters: Host) -> tuple[Host, float]:
        """Find a nearby fixed point with a root finder; return it (or the input, if none is found) and its residual."""
        from scipy.optimize import root

        initial_unknowns, point, gap = self._equations(penalty, parameters)
        options = {
            "xtol": ACCURACY.close,
            "maxfev": ACCURACY.effort * len(initial_unknowns),
        }
        solution = root(gap, initial_unknowns, method="hybr", options=options)
        final_gap = float(np.abs(solution.fun).max())
        initial_gap = float(np.abs(gap(initial_unknowns)).max())
        if final_gap < initial_gap:
            return point(solution.x), final_gap
        return parameters, initial_gap

    def uncertain(self, penalty: float, parameters: Host) -> Overlaps:
        """Numerical errors of the overlaps: their change in one Newton step towards the fixed point."""
        x, point, gap = self._equations(penalty, parameters)
        residual, nudge = gap(x), 1e-5
        columns = [
            (gap(x + nudge * unit) - residual) / nudge for unit in np.eye(len(x))
        ]
        slopes = np.stack(columns, axis=1)
        step = np.linalg.lstsq(slopes, -residual, rcond=None)[0]
        start, stepped = (
            self._orders(point(unknowns), penalty) for unknowns in (x, x + step)
        )
        M_error, Q_error = np.abs(stepped.M - start.M), np.abs(stepped.Q - start.Q)
        return Overlaps(np.zeros_like(self.T), M_error, Q_error)

    def _guess(self, penalty: float) -> Host:
        """Initial guess at a penalty: power-law extrapolation through the two nearest known points (one component)."""
        x = float(np.log(penalty))
        near = sorted(self.solutions, key=lambda solution: abs(solution[0] - x))[:2]
        if not near:  # a small overlap and a small norm
            identity, start = np.eye(self.P), 1 + penalty
            Q_hat = start**2 * (0.1 * identity + 0.09 * self.T)
            return np.stack([identity / start, 0.1 * start * identity, Q_hat])
        points = np.stack([parameters for _, parameters in near])
        if len(near) == 1 or self.P > 1 or not (points > 0).all():
            return near[0][1]
        (x_1, point_1), (x_2, point_2) = near
        return np.asarray(point_1 * (point_2 / point_1) ** ((x - x_1) / (x_2 - x_1)))


@functools.lru_cache(maxsize=256)
def best_penalty(problem: Problem, alpha: float, loss: str, length: str) -> float:
    """Penalty that minimizes the predicted MSE, summed over components, of the rescaled estimate.

    Parameters
    ----------
    length : {"posterior", "loss"}
        Whether the estimate is rescaled to its best length, or keeps the length of the minimizer.

    Raises
    ------
    ValueError
        If no fixed point is found.
    """
    from scipy.optimize import minimize_scalar

    paths = _paths(problem, alpha, LOSSES[loss])
    prior = float(np.trace(paths[0].T))
    excess_mse: dict[float, float] = {}
    reasons = ["the error is not finite"]

    def excess(x: float) -> float:
        """MSE minus the MSE of a zero estimate, at the log-penalty x; infinite where no fixed point is found."""
        try:
            overlaps = [path.overlaps(float(np.exp(x))) for path in paths]
        except ValueError as error:
            # An overlap or an error too close to its limit for float64.
            reasons.append(str(error))
            return np.inf
        scale = best_length(overlaps) if length == "posterior" else 1.0
        M = np.mean([np.trace(evaluation.cross) for evaluation in overlaps])
        Q = np.mean([np.trace(evaluation.own) for evaluation in overlaps])
        excess_mse[x] = float(scale * (scale * Q - 2 * M))
        return excess_mse[x]

    def best() -> float:
        return min(excess_mse, key=excess_mse.__getitem__)

    # Decrease the penalty from one at which the iteration always converges until the minimum is passed; increase it if the
    # minimum is at the start.
    (smallest, largest), distance = np.log(PENALTIES), float(np.log(10.0))
    x = start = float(np.log(max(alpha, 1.0)))
    if not np.isfinite(excess(start)):
        raise ValueError(
            f"theory did not find the best penalty at alpha = {alpha:g} ({reasons[-1]}); give it as a number"
        )
    while x > smallest:
        x = max(x - distance, smallest)
        reached, lowest = excess(x), min(excess_mse.values())
        if prior + reached > 1.02 * (prior + lowest) or reached > 0.98 * lowest:
            break
    x = start
    while x < largest and best() == x:
        previous, x = excess_mse[x], min(x + distance, largest)
        if not excess(x) < previous - 1e-12 * abs(previous):
            break
    bounds = max(best() - distance, smallest), min(best() + distance, largest)
    minimize_scalar(excess, bounds=bounds, method="bounded", options={"xatol": 1e-5})
    return float(np.exp(best()))
