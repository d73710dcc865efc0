"""State evolution of one component: the Bayes-optimal error as a function of the sample ratio.

Solved without iterating. The fixed point ``Qhat = kappa alpha I(Q(Qhat))`` is linear in alpha, so the whole curve is known as
``alpha(Qhat) = Qhat / (kappa I(Q(Qhat)))`` and alpha is read off. Where alpha falls with Qhat, branches compete: the
uninformed one (from the prior mean upwards) ends at the first Qhat whose alpha reaches the one asked for, the informed one
(from the signal downwards) at the last.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.interfaces import Uncertain
from smimbench.numerics.memo import kept
from smimbench.numerics.roots import bracketed_roots
from smimbench.theory.component_ratios import ComponentRatios
from smimbench.theory.curve import HELD, NEVER, Curve, threshold_document
from smimbench.theory.curve_values import FAINTEST, interpolation_error, limit_of, resolved, turns
from smimbench.theory.information import information_at, overlap_at, overlap_error_at, prior_moments
from smimbench.theory.types import NOTHING, HardPhase, Prediction, Threshold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.interfaces import Array
    from smimbench.problem.problem import Problem

__all__ = ["ScalarCurve"]

UNSURE = 0.5
"""Relative error of sampled information with which a curve ends; doubled, it ends later, at values that may be wrong."""
INTERPOLATION = 1e-3
"""Relative error of alpha that is aimed at between nodes of a sampled curve, where chance leaves less; doubled, half as sure."""
LATE, RISING = 3.0, 1.02
"""Whether the error falls to 0 at a finite alpha: by how much alpha may rise along the last factor of Qhat. The first doubled,
earlier values count; the second, slower rises are taken for noise."""
ROUNDING = 1e-13
"""Relative error of a root of a closed form; doubled, so is the smallest error that is stated."""


class ScalarCurve(Curve):
    """The parametric curve alpha(Qhat) of a problem with one component.

    Attributes
    ----------
    log_qhat : ndarray
        Nodes to begin with, which are evaluated when they are needed.
    nodes, alpha, alpha_error : ndarray (G,)
        log Qhat, the sample ratio and its error (interpolation included) at all nodes.
    """

    def __init__(self, problem: Problem) -> None:
        if problem.components != 1:
            raise ValueError(f"a scalar curve needs one component, this problem has {problem.components}")
        self.problem = problem
        self.kappa = float(self.problem.model.kappa)
        self.second, self.bottom = (float(moment[0, 0]) for moment in prior_moments(self.problem))
        self.unknown = self.second - self.bottom  # what the prior mean leaves; a wide Wishart matrix is nearly its mean
        probe = self._information(np.array(0.0))
        self.method = probe.method
        # A fit through sampled values is smooth, and evaluated where it is asked.
        self.sampled = probe.method.startswith(("Monte Carlo", "nested"))
        # Sampling costs thousands of times more than a formula, and its curve is interpolated anyway. It ends where a posterior
        # mean no longer differs from its omega.
        low, high, self.per_decade, faintest = (1e-4, 1e8, 4, 1e-11) if self.sampled else (1e-9, 1e15, 8, FAINTEST)
        count = round(np.log10(high / low) * self.per_decade) + 1
        self.log_qhat = np.linspace(np.log(low), np.log(high), count)
        end = resolved(self._overlap(self.log_qhat)[1], self.log_qhat, self.unknown, faintest)
        beyond, self.log_qhat = self.log_qhat[end : end + 1], self.log_qhat[:end]
        if self.sampled and len(beyond) and self._overlap(beyond)[1][0] < faintest * self.unknown:
            # The error of a discrete signal falls by many orders of magnitude from one node to the next.
            last = bracketed_roots(
                lambda x, _: np.log(np.maximum(self._overlap(x)[1], 1e-300) / (faintest * self.unknown)),
                self.log_qhat[-1:], beyond,
            )  # fmt: skip
            self.log_qhat = np.append(self.log_qhat, last)

    @classmethod
    def of(cls, problem: Problem) -> ScalarCurve:
        """The curve of a problem, computed once per problem."""
        return kept(problem, "scalar_curve", lambda: cls(problem))

    @cached_property
    def _evaluated(self) -> tuple[np.ndarray[Any, Any], ...]:
        """Nodes, alpha and its error; a sampled curve gets as many nodes as its interpolation needs."""
        if not self.sampled:
            return self.log_qhat, *self.alpha_of(self.log_qhat)
        nodes = self.log_qhat
        alpha, error = self.alpha_of(nodes)
        sure = np.flatnonzero(np.isfinite(alpha) & (error < UNSURE * alpha))
        end = int(sure[-1]) + 1 if len(sure) else len(nodes)
        nodes, alpha, error = nodes[:end], alpha[:end], error[:end]
        for _ in range(3):
            doubt = interpolation_error(nodes, alpha)
            poor = doubt > np.maximum(INTERPOLATION, error / np.where(np.isfinite(alpha), alpha, 1.0))
            gaps = np.flatnonzero(poor[:-1] | poor[1:])
            if not len(gaps):
                break
            between = (nodes[gaps] + nodes[gaps + 1]) / 2
            found = self.alpha_of(between)
            order = np.argsort(np.concatenate([nodes, between]))
            nodes, alpha, error = (
                np.concatenate(parts)[order] for parts in ((nodes, between), (alpha, found[0]), (error, found[1]))
            )
        unknown = np.where(np.isfinite(alpha), alpha, 0.0) * interpolation_error(nodes, alpha)
        return nodes, alpha, np.hypot(error, unknown)

    nodes = property(lambda self: self._evaluated[0])
    alpha = property(lambda self: self._evaluated[1])
    alpha_error = property(lambda self: self._evaluated[2])

    def _overlap(self, log_qhat: Array) -> tuple[Array, Array]:
        Q, V = overlap_at(self.problem, np.exp(np.asarray(log_qhat, dtype=float))[..., None, None])
        return Q[..., 0, 0], V[..., 0, 0]

    def _information(self, log_qhat: Array) -> Uncertain:
        return self._information_at(*self._overlap(log_qhat))

    def _information_at(self, Q: Array, V: Array) -> Uncertain:
        found = information_at(self.problem, Q[..., None, None], V[..., None, None])
        return Uncertain(found.value[..., 0, 0], found.error[..., 0, 0], found.method)

    def _at_bottom(self) -> Uncertain:
        """Information at the prior mean."""
        found = self._information_at(np.asarray(self.bottom), np.asarray(self.second - self.bottom))
        return Uncertain(float(found.value), float(found.error), found.method)

    def alpha_of(self, log_qhat: Array) -> tuple[Array, Array]:
        """alpha(Qhat) and its numerical error."""
        info = self._information(log_qhat)
        with np.errstate(divide="ignore", invalid="ignore"):
            alpha = np.exp(log_qhat) / (self.kappa * info.value)
            relative = np.abs(info.error / info.value)
        alpha = np.where(info.value > 0, alpha, np.inf)
        return alpha, np.where(np.isfinite(relative), relative, 1.0) * np.where(np.isfinite(alpha), alpha, 0) + 0.0

    @cached_property
    def _along(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Nodes of log Qhat with their alpha, between which alpha is monotonic: turning points are nodes, too.

        Sampled curves are interpolated, and turn at nodes only.
        """
        turns = [] if self.sampled else [(where, value) for where, value, _, _ in self.turning_points()]
        nodes = np.concatenate([self.nodes, [where for where, _ in turns]])
        ratios = np.concatenate([self.alpha, [value for _, value in turns]])
        order = np.argsort(nodes)
        return nodes[order], ratios[order]

    # -- branches -----------------------------------------------------------------------------------------------

    def predict(self, alphas: Sequence[float], branch: str = "uninformed") -> list[Prediction]:
        """Solve for every alpha on one branch."""
        wanted = np.asarray(alphas, dtype=float)
        ratios = self._along[1]
        reached = ratios[None, :] >= wanted[:, None]
        if branch == "uninformed":
            upper = np.where(reached.any(1), reached.argmax(1), len(ratios))
        else:
            below = ~reached
            perfect = self.perfect_limit()
            if perfect is not None:  # counting says where V = 0 is stable, whatever the last node is
                below[wanted >= perfect.value, -1] = True
            upper = np.where(below.any(1), len(ratios) - below[:, ::-1].argmax(1), 0)
        log_qhat = np.empty_like(wanted)
        inside = (upper > 0) & (upper < len(ratios))
        log_qhat[upper == 0] = -np.inf
        log_qhat[upper == len(ratios)] = np.inf
        if inside.any():
            log_qhat[inside] = self._roots(wanted[inside], upper[inside])
        finite = np.isfinite(log_qhat)
        Q, V, error, shift = (np.zeros_like(wanted) for _ in range(4))
        if finite.any():
            Q[finite], V[finite] = self._overlap(log_qhat[finite])
            error[finite], shift[finite] = self._errors(log_qhat[finite], Q[finite], V[finite])
        found = []
        for i, alpha in enumerate(wanted):
            if finite[i]:
                found.append(self._pack(alpha, float(Q[i]), float(V[i]), float(error[i]), branch, shift[i]))
            else:
                found.append(self._beyond(alpha, bool(log_qhat[i] > 0), branch))
        return found

    def _roots(self, alphas: Array, upper: Array) -> Array:
        targets = np.log(alphas)
        nodes, ratios = self._along
        ends = (np.log(ratios[upper - 1]) - targets, np.log(ratios[upper]) - targets)
        return bracketed_roots(
            lambda x, index: np.log(self._alpha(x)) - targets[index],
            nodes[upper - 1],
            nodes[upper],
            values=None if self.sampled else ends,
            tolerance=ROUNDING,
        )

    def _beyond(self, alpha: float, informed: bool, branch: str) -> Prediction:
        """Prediction beyond an end of the curve."""
        if informed:
            Q, V = (float(v) for v in self._overlap(self.nodes[-1]))
            if self.perfect_limit() is not None:
                return self._pack(alpha, self.second, 0.0, 0.0, branch)
            return self._pack(alpha, Q, V, V, branch, 1.0)
        # Either the prior mean is the fixed point, or alpha is so small that nothing was learned yet.
        info = self._at_bottom()
        if info.value > NOTHING:
            Q, V = (float(v) for v in self._overlap(np.log(alpha * self.kappa * info.value)))
            relative = float(info.error / info.value)
            return self._pack(alpha, Q, V, abs(Q - self.bottom) * relative, branch, relative)
        return self._pack(alpha, self.bottom, self.second - self.bottom, 0.0, branch)

    def _errors(self, x: Array, Q: Array, V: Array) -> tuple[Array, Array]:
        """Error of V at roots, and of log alpha there: the first is the second over the slope of the curve."""
        step = 0.5 / 8 if self.sampled else 1e-3
        points = x + step * np.array([-1.0, 1.0])[:, None]
        if self.sampled:
            grid = np.isfinite(self.alpha)
            alpha = self._alpha(points)
            relative = np.interp(x, self.nodes[grid], (self.alpha_error / self.alpha)[grid])
        else:
            alpha, errors = (values.reshape(points.shape) for values in self.alpha_of(points.ravel()))
            relative = np.max(errors / alpha, axis=0)
        slope = (np.log(alpha[1]) - np.log(alpha[0])) / (2 * step)
        values = self._overlap(points.ravel())[1].reshape(points.shape)
        response = np.abs(values[1] - values[0]) / (2 * step)
        # Priors that the engine integrates or simulates say how well they know V at a Qhat; closed forms have nothing to say.
        # What that makes of the information is an error of alpha, too.
        stated = np.array([overlap_error_at(self.problem, np.array([[qhat]])) for qhat in np.exp(x)])
        if stated.any():
            move = np.minimum(stated, 0.5) * V
            here, there = self._information_at(Q, V).value, self._information_at(Q - move, V + move).value
            with np.errstate(divide="ignore", invalid="ignore"):
                relative = relative + np.nan_to_num(np.abs(there / here - 1))
        relative = relative + ROUNDING
        return response * relative / np.maximum(np.abs(slope), 1e-12) + (stated + 1e-10) * V, relative

    def _pack(self, alpha: float, Q: float, V: float, error: float, branch: str, shift: float = 0.0) -> Prediction:
        """``shift`` is the error of log alpha at this overlap."""
        matrices, errors = (np.array([[Q]]), np.array([[V]])), (np.array([error]), np.array([alpha * shift]))
        return Prediction(float(alpha), *matrices, errors[0], branch, self.method, alpha_error=errors[1])

    def folds(self) -> bool:
        """Whether alpha falls somewhere along the curve."""
        return bool(self.turning_points())

    def meet(self, low: Prediction, high: Prediction) -> bool:
        """Whether two predictions are the same fixed point within their errors."""
        return bool(abs(low.V[0, 0] - high.V[0, 0]) <= 1e-6 * self.unknown + low.error[0] + high.error[0])

    def free_entropy(self, point: Prediction) -> tuple[float, float]:
        r"""``(1/2) \int (kappa alpha I(Q) - Qhat(Q)) dQ`` from the prior mean to the point, and its numerical error.

        The rule of equal areas: the gradient of the replica-symmetric potential with respect to Q vanishes at fixed points, so
        its integral along the curve is the difference of free entropies; no normaliser of the channel is needed. Where labels
        state equations, ``kappa I -> E / V`` makes it infinite at V = 0.
        """
        V = float(point.V[0, 0])
        if V == 0.0 and self.equations > 0:
            return float("inf"), 0.0
        log_V, fine, coarse, noise = self._potential
        x = float(np.interp(-np.log(max(V, np.exp(log_V[-1]))), -log_V, fine[0].x))
        labels, prior = (float(f(x)) for f in fine)
        value, other = (0.5 * (point.alpha * float(f[0](x)) - float(f[1](x))) for f in (fine, coarse))
        rounding = 1e-12 * (point.alpha * abs(labels) + abs(prior))
        return value, abs(value - other) / 8 + 0.5 * point.alpha * float(noise(x)) + rounding

    @cached_property
    def _potential(self) -> tuple[Any, ...]:
        r"""Along log Qhat: log V, and ``\int kappa I dQ``, ``\int Qhat dQ`` as splines; the same from half the points; the error.

        The free entropy is linear in the sample ratio, so these two integrals are all that there is.
        """
        from scipy.interpolate import CubicSpline

        x = np.linspace(self.nodes[0], self.nodes[-1], 2001)  # odd
        log_V = np.minimum.accumulate(np.log(self._overlap(x)[1]))
        alpha = self._alpha(x)
        relative = np.interp(x, self.nodes, self.alpha_error / np.where(np.isfinite(self.alpha), self.alpha, 1.0))
        prior_term = -np.exp(x + log_V) * CubicSpline(x, log_V)(x, 1)

        def integral(values: Array, every: int = 1) -> Any:
            # From Q at the bottom to the first node both integrands are proportional to the square of Qhat.
            found = CubicSpline(x[::every], values[::every]).antiderivative()
            found.c[-1] += values[0] / 2
            return found

        fine = integral(prior_term / alpha), integral(prior_term)
        return (
            log_V,
            fine,
            (integral(prior_term / alpha, 2), integral(prior_term, 2)),
            integral(prior_term / alpha * relative),
        )

    def _alpha(self, log_qhat: Array) -> Array:
        """alpha(Qhat); between the nodes of a sampled curve interpolated."""
        if not self.sampled:
            return self.alpha_of(log_qhat)[0]
        from scipy.interpolate import PchipInterpolator

        finite = np.isfinite(self.alpha)
        nodes = self.nodes[finite]
        curve = PchipInterpolator(nodes, np.log(self.alpha[finite]))
        return np.exp(curve(np.clip(log_qhat, nodes[0], nodes[-1])))

    def hard_phase(self) -> HardPhase | None:
        """Where the Bayes-optimal error is below what the uninformed branch reaches; None if it never is."""
        extrema = self.turning_points()
        peaks = [Threshold(alpha, error) for _, alpha, error, kind in extrema if kind == "max"]
        if not peaks:
            # The curve may fall from the very beginning: then the prior mean itself is the branch that is stuck.
            weak = self.weak_limit()
            peaks = [weak] if weak and weak.value > 0 and self.alpha[-1] < weak.value else []
        if not peaks:
            return None
        top = max(peaks, key=lambda peak: peak.value)
        lows = [Threshold(alpha, error) for _, alpha, error, kind in extrema if kind == "min"]
        perfect = self.perfect_limit()
        if perfect is not None:
            lows.append(perfect)
        low = min((one for one in lows if one.value < top.value), key=lambda one: one.value, default=None)
        if low is None:
            return None

        optimal = self.transition(low, top.value)
        return None if optimal is None else HardPhase(low, optimal, top)

    def thresholds(self) -> dict[str, Any]:
        """All critical sample ratios, see ``threshold_document``."""
        weak = self.weak_limit()
        sequential = [{"layer": 1, **weak.document()}] if weak else []
        reasons = {"weak_recovery": HELD if self.bottom > 0 else NEVER}
        return threshold_document(weak, self.perfect_limit(), sequential, self.hard_phase(), reasons)

    # -- limits and turning points ------------------------------------------------------------------------------

    def weak_limit(self) -> Threshold | None:
        """Where the prior mean becomes unstable: the limit of alpha as the overlap leaves its lowest value.

        0 when the prior mean itself is informative and holds nothing (a linear channel); None when the prior mean holds
        something from the beginning, so that learning starts smoothly at alpha = 0.
        """
        info = self._at_bottom()
        start = self._critical_information()
        if info.value > max(NOTHING, 3 * info.error) and start == 0.0:
            return None if self.bottom > 0 else Threshold(0.0, 0.0)
        if start > 0:  # the overlap stays at its lowest value up to a finite Qhat (small-width limit)
            value = start / (self.kappa * info.value)
            return Threshold(value, value * info.error / info.value)
        if self.bottom == 0 and self.problem.channel.susceptibility is not None:
            ratios = ComponentRatios(self.problem)
            log_ratio, error = ratios.log_ratios(np.zeros(1), [])
            value = float(np.exp(log_ratio[0]))
            return Threshold(value, value * float(error[0] + ratios.response_error[0])) if np.isfinite(value) else None
        if self.sampled:
            return Threshold(float(self.alpha[0]), float(self.alpha_error[0] + abs(self.alpha[1] - self.alpha[0])))
        faint = np.log([1e-4, 1e-5, 1e-6, 1e-7])
        limit = limit_of([self.alpha_of(np.array([x]))[0][0] for x in faint])
        return replace(limit, error=limit.error + limit.value * float(self._rounding(faint[-1])))

    def _rounding(self, log_qhat: Array) -> Array:
        """Relative error of small overlaps, and of an alpha that goes with them: they are differences of numbers of order 1."""
        gained = np.maximum(self._overlap(log_qhat)[0] - self.bottom, np.finfo(float).tiny)
        return 4 * np.finfo(float).eps * self.second / gained

    def _critical_information(self) -> float:
        """Largest Qhat at which the overlap still has its lowest value."""
        Q, _ = self._overlap(self.nodes)
        stuck = self.bottom >= Q
        if not stuck.any() or self._overlap(np.log(0.5))[0] > self.bottom:
            return 0.0
        from scipy.optimize import brentq

        last = int(np.flatnonzero(stuck)[-1])
        edge = brentq(
            lambda x: -1.0 if self._overlap(x)[0] <= self.bottom else 1.0,
            self.nodes[last],
            self.nodes[last + 1],
            xtol=1e-15,
        )
        return float(np.exp(edge))

    def perfect_limit(self) -> Threshold | None:
        """Limit of alpha as the error goes to 0: where V = 0 becomes stable. None where the error never vanishes."""
        if self.alpha[-1] < NOTHING and self._overlap(self.nodes[-1])[1] < NOTHING:
            return Threshold(0.0, 0.0)  # a discrete signal: once known, it stays known at any sample ratio
        if self.sampled:
            last, before = (float(value) for value in self._alpha(self.nodes[-1] - np.log(np.array([1.0, LATE]))))
            error = float(self.alpha_error[-1])
            if not np.isfinite([last, before]).all() or last > max(RISING * before, before + 3 * error):
                return None
            # The limit lies below what has been reached, by about as much as the last factor of Qhat has made.
            lowest = max(0.0, last - abs(before - last))
            return Threshold((last + lowest) / 2, error + (last - lowest) / 2)
        # A prior may not know more than rounding allows: the sequence ends where it does.
        end = min(1e10, float(np.exp(self.nodes[-1])))
        last, before = (float(value) for value in self.alpha_of(np.log(end / np.array([1.0, LATE])))[0])
        if not last <= RISING * before:
            return None  # noise decides at last, however little there is of it
        values = [self.alpha_of(np.log(np.array([end / 10**k])))[0][0] for k in range(5, -1, -1)]
        if not np.isfinite(values).all() or values[-1] > 1.5 * values[-4]:
            return None
        return limit_of(values)

    @cached_property
    def equations(self) -> float:
        """Number of equations that a label states about its latents: the limit of V I; 0 of noisy and of rounded labels."""
        known = self.problem.channel.equations
        if known is not None:
            return float(known)
        V = self.second * np.array([1e-6, 1e-8])
        stated = V * self._information_at(self.second - V, V).value
        return float(stated[1]) if stated[1] > 0.5 * stated[0] else 0.0

    def turning_points(self) -> list[tuple[float, float, float, str]]:
        """Local extrema of alpha(Qhat): (log Qhat, alpha, its error, ``"max"`` or ``"min"``); none where the branch is unique."""
        found = []
        finite = np.flatnonzero(np.isfinite(self.alpha))
        noise = 3 * self.alpha_error[finite] + (1e-9 + self._rounding(self.nodes[finite])) * self.alpha[finite]
        for middle, kind in turns(self.alpha[finite], noise):
            i, j, k = finite[middle - 1 : middle + 2]
            a, b, c = self.alpha[i], self.alpha[j], self.alpha[k]
            if self.sampled:
                where, value, error = self.nodes[j], b, self.alpha_error[j]
                bend = a - 2 * b + c
                vertex = b - (c - a) ** 2 / (8 * bend)
                # Between the nodes the curve goes on: by the parabola, as far as that may be trusted.
                value, error = vertex, error + abs(vertex - b)
            else:
                from scipy.optimize import minimize_scalar

                sign = -1.0 if kind == "max" else 1.0
                best = minimize_scalar(
                    lambda x, sign=sign: sign * min(self.alpha_of(np.array([x]))[0][0], 1e300),
                    bounds=(self.nodes[i], self.nodes[k]),
                    method="bounded",
                    options={"xatol": 1e-9},
                )
                where, value = best.x, sign * best.fun
                error = self.alpha_of(np.array([where]))[1][0] + 1e-12 * value
            found.append((float(where), float(value), float(error), kind))
        return found
