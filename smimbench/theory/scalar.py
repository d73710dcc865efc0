"""State evolution of a single overlap: the Bayes-optimal error as a function of the sample ratio.

Solved without iterating. The fixed point ``Qhat = kappa alpha I(Q(Qhat))`` is linear in alpha, so the whole curve is known as
``alpha(Qhat) = Qhat / (kappa I(Q(Qhat)))`` and alpha is read off. Where alpha falls with Qhat, branches compete: the
uninformed one (from the prior mean upwards) ends at the first Qhat whose alpha reaches the one asked for, the informed one
(from the signal downwards) at the last.

Several components are one, too, where labels do not see rotations of them: the map is monotone and keeps multiples of the
identity, so that its lowest and its highest fixed point are such multiples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from smimbench.files import JsonObject
from smimbench.interfaces import Array, Host, Uncertain
from smimbench.numerics.memo import kept
from smimbench.numerics.roots import bracketed_roots
from smimbench.problem.problem import Problem
from smimbench.theory.component_ratios import ComponentRatios
from smimbench.theory.curve import HELD, NEVER, Curve, branch_ends, threshold_document
from smimbench.theory.information import information_at, overlap_at, overlap_error_at, prior_moments
from smimbench.theory.types import NOTHING, HardPhase, Prediction, Threshold

UNSURE = 0.5
"""Relative error of sampled information with which a curve ends; doubled, it ends later, at values that may be wrong."""
INTERPOLATION = 1e-3
"""Relative error of alpha that is aimed at between nodes of a sampled curve, where chance leaves less; doubled, half as sure."""
LATE, RISING = 3.0, 1.02
"""Whether the error falls to 0 at a finite alpha: by how much alpha may rise along the last factor of Qhat. The first doubled,
earlier values count; the second, slower rises are taken for noise."""
ROUNDING = 1e-13
"""Relative error of a root of a closed form; doubled, so is the smallest error that is stated."""
SMALL, SLOWEST, FAINTEST = 1e-3, 0.5, 1e-150
"""Errors below the first (of what the prior mean leaves) fall at least with this power of Qhat, down to the third; else the
curve ends."""


class ScalarCurve(Curve):
    """Parametric curve alpha(Qhat) of a problem with one component, or with several that share one overlap.

    Attributes
    ----------
    log_qhat : ndarray
        Nodes to begin with, which are evaluated when they are needed.
    nodes, alpha, alpha_error : ndarray (G,)
        log Qhat, the sample ratio and its error (interpolation included) at all nodes.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.kappa, self.identity = float(problem.model.kappa), np.eye(problem.components)
        self.second, self.bottom = (float(moment[0, 0]) for moment in prior_moments(self.problem))
        self.unknown = self.second - self.bottom  # what the prior mean leaves; a wide Wishart matrix is nearly its mean
        self.method = self._information(np.array(0.0)).method
        # A fit through sampled values is smooth, and evaluated where it is asked.
        self.sampled = self.method.startswith(("Monte Carlo", "nested"))
        # Sampling costs thousands of times more than a formula, and its curve is interpolated anyway. It ends where a posterior
        # mean no longer differs from its omega.
        low, high, per_decade, faintest = (1e-4, 1e8, 4, 1e-11) if self.sampled else (1e-9, 1e15, 8, FAINTEST)
        nodes = np.linspace(np.log(low), np.log(high), round(np.log10(high / low) * per_decade) + 1)
        end = resolved(self._overlap(nodes)[1], nodes, self.unknown, faintest)
        beyond, self.log_qhat = nodes[end : end + 1], nodes[:end]
        if self.sampled and len(beyond) and self._overlap(beyond)[1][0] < faintest * self.unknown:
            # The error of a discrete signal falls by many orders of magnitude from one node to the next.
            last = bracketed_roots(
                lambda x, _: np.log(np.maximum(self._overlap(x)[1], 1e-300) / (faintest * self.unknown)),
                self.log_qhat[-1:], beyond,
            )  # fmt: skip
            self.log_qhat = np.append(self.log_qhat, last)

    @classmethod
    def of(cls, problem: Problem) -> ScalarCurve | None:
        """The curve of a problem, computed once per problem; None if components do not share one overlap."""
        return kept(problem, "scalar_curve", lambda: cls(problem) if shares_overlap(problem) else None)

    @cached_property
    def _evaluated(self) -> tuple[Host, ...]:
        """Nodes of the curve, alpha and its error; a sampled curve gets as many nodes as its interpolation needs."""
        nodes = self.log_qhat
        alpha, error = self.alpha_of(nodes)
        if not self.sampled:
            return nodes, alpha, error
        sure = np.flatnonzero(np.isfinite(alpha) & (error < UNSURE * alpha))
        end = int(sure[-1]) + 1 if len(sure) else len(nodes)
        table = np.array([nodes, alpha, error])[:, :end]
        for _ in range(3):
            nodes, alpha, error = table
            doubt = interpolation_error(nodes, alpha)
            poor = doubt > np.maximum(INTERPOLATION, error / np.where(np.isfinite(alpha), alpha, 1.0))
            gaps = np.flatnonzero(poor[:-1] | poor[1:])
            if not len(gaps):
                break
            between = (nodes[gaps] + nodes[gaps + 1]) / 2
            table = np.hstack([table, [between, *self.alpha_of(between)]])
            table = table[:, np.argsort(table[0])]
        nodes, alpha, error = table
        unknown = np.where(np.isfinite(alpha), alpha, 0.0) * interpolation_error(nodes, alpha)
        return nodes, alpha, np.hypot(error, unknown)

    nodes = property(lambda self: self._evaluated[0])
    alpha = property(lambda self: self._evaluated[1])
    alpha_error = property(lambda self: self._evaluated[2])

    def _overlap(self, log_qhat: Array) -> tuple[Array, Array]:
        Q, V = overlap_at(self.problem, np.exp(np.asarray(log_qhat, dtype=float))[..., None, None] * self.identity)
        return Q[..., 0, 0], V[..., 0, 0]

    def _information(self, log_qhat: Array) -> Uncertain:
        return self._information_at(*self._overlap(log_qhat))

    def _information_at(self, Q: Array, V: Array) -> Uncertain:
        found = information_at(self.problem, *(part[..., None, None] * self.identity for part in (Q, V)))
        return Uncertain(found.value[..., 0, 0], found.error[..., 0, 0], found.method)

    @cached_property
    def _at_bottom(self) -> Uncertain:
        """Information at the lowest overlap, that of the prior mean."""
        return self._information_at(np.asarray(self.bottom), np.asarray(self.unknown))

    def alpha_of(self, log_qhat: Array) -> tuple[Array, Array]:
        """Sample ratio alpha(Qhat) and its numerical error."""
        info = self._information(log_qhat)
        with np.errstate(divide="ignore", invalid="ignore"):
            alpha = np.exp(log_qhat) / (self.kappa * info.value)
            relative = np.abs(info.error / info.value)
        alpha = np.where(info.value > 0, alpha, np.inf)
        return alpha, np.where(np.isfinite(relative), relative, 1.0) * np.where(np.isfinite(alpha), alpha, 0) + 0.0

    def _alpha_at(self, log_qhat: float) -> float:
        return float(self.alpha_of(np.array([log_qhat]))[0][0])

    def _alpha(self, log_qhat: Array) -> Array:
        """Sample ratio alpha(Qhat), interpolated between the nodes of a sampled curve."""
        if not self.sampled:
            return self.alpha_of(log_qhat)[0]
        curve = self._interpolant
        return np.exp(curve(np.clip(log_qhat, curve.x[0], curve.x[-1])))

    @cached_property
    def _interpolant(self) -> Any:
        from scipy.interpolate import PchipInterpolator

        finite = np.isfinite(self.alpha)
        return PchipInterpolator(self.nodes[finite], np.log(self.alpha[finite]))

    @cached_property
    def _along(self) -> tuple[Host, Host]:
        """Nodes of log Qhat with their alpha; alpha is monotonic in between, as turning points are nodes.

        Sampled curves are interpolated, and turn at nodes only.
        """
        turning = [] if self.sampled else [point[:2] for point in self.turning_points()]
        nodes, ratios = np.hstack([[self.nodes, self.alpha], np.reshape(turning, (-1, 2)).T])
        order = np.argsort(nodes)
        return nodes[order], ratios[order]

    # -- branches -----------------------------------------------------------------------------------------------

    def predict(self, alphas: Sequence[float], branch: str = "uninformed") -> list[Prediction]:
        """The fixed point of one branch at every sample ratio."""
        wanted = np.asarray(alphas, dtype=float)
        nodes, ratios = self._along
        upper = branch_ends(ratios, wanted, branch)
        perfect = self.perfect_limit() if branch == "informed" else None
        if perfect is not None:  # counting says where V = 0 is stable, whatever the last node is
            upper[wanted >= perfect.value] = len(ratios)
        log_qhat = np.where(upper == 0, -np.inf, np.inf)
        inside = (upper > 0) & (upper < len(ratios))
        if inside.any():
            targets, end = np.log(wanted[inside]), upper[inside]
            log_qhat[inside] = bracketed_roots(
                lambda x, index: np.log(self._alpha(x)) - targets[index],
                nodes[end - 1],
                nodes[end],
                values=None if self.sampled else (np.log(ratios[end - 1]) - targets, np.log(ratios[end]) - targets),
                tolerance=ROUNDING,
            )
        finite = np.isfinite(log_qhat)
        found = iter(self._on_curve(wanted[finite], log_qhat[finite], branch) if finite.any() else ())
        return [
            next(found) if on_curve else self._beyond(alpha, bool(x > 0), branch)
            for alpha, x, on_curve in zip(wanted, log_qhat, finite)
        ]

    def _beyond(self, alpha: float, informed: bool, branch: str) -> Prediction:
        """Prediction at a sample ratio beyond an end of the curve."""
        if informed:
            Q, V = self._overlap(self.nodes[-1])
            if self.perfect_limit() is not None:
                return self._pack(alpha, self.second, 0.0, 0.0, 0.0, branch)
            return self._pack(alpha, Q, V, V, 1.0, branch)
        # Either the prior mean is the fixed point, or alpha is so small that nothing was learned yet.
        info = self._at_bottom
        if info.value > NOTHING:
            Q, V = self._overlap(np.log(alpha * self.kappa * info.value))
            relative = info.error / info.value
            return self._pack(alpha, Q, V, abs(Q - self.bottom) * relative, relative, branch)
        return self._pack(alpha, self.bottom, self.unknown, 0.0, 0.0, branch)

    def _on_curve(self, alphas: Array, x: Array, branch: str) -> list[Prediction]:
        """Predictions at roots of the curve; the error of V is that of log alpha over the curve's slope."""
        Q, V = self._overlap(x)
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
        stated = np.array([overlap_error_at(self.problem, qhat * self.identity) for qhat in np.exp(x)])
        if stated.any():
            move = np.minimum(stated, 0.5) * V
            here, there = self._information_at(Q, V).value, self._information_at(Q - move, V + move).value
            with np.errstate(divide="ignore", invalid="ignore"):
                relative = relative + np.nan_to_num(np.abs(there / here - 1))
        relative = relative + ROUNDING
        error = response * relative / np.maximum(np.abs(slope), 1e-12) + (stated + 1e-10) * V
        return [self._pack(*row, branch) for row in zip(alphas, Q, V, error, relative)]

    def _pack(self, alpha: Array, Q: Array, V: Array, error: Array, relative: Array, branch: str) -> Prediction:
        """Prediction at an overlap; ``relative`` is the error of log alpha there."""
        each = np.ones(len(self.identity))
        error, ratio_error = float(error) * each, float(alpha * relative) * each
        point = float(Q) * self.identity, float(V) * self.identity
        return Prediction(float(alpha), *point, error, branch, self.method, alpha_error=ratio_error)

    def folds(self) -> bool:
        """Whether alpha decreases somewhere along the curve."""
        return bool(self.turning_points())

    def meet(self, low: Prediction, high: Prediction) -> bool:
        """Whether two predictions are the same fixed point within their errors."""
        return bool(abs(low.V[0, 0] - high.V[0, 0]) <= 1e-6 * self.unknown + low.error[0] + high.error[0])

    def free_entropy(self, point: Prediction) -> tuple[float, float]:
        r"""``(P/2) \int (kappa alpha I(Q) - Qhat(Q)) dQ`` from the prior mean to the point, and its numerical error.

        The rule of equal areas: the gradient of the replica-symmetric potential with respect to Q vanishes at fixed points, so
        its integral along the curve is the difference of free entropies; no normaliser of the channel is needed. Where labels
        state equations, ``kappa I -> E / V`` makes it infinite at V = 0.
        """
        V = float(point.V[0, 0])
        if V == 0.0 and self.equations > 0:
            return float("inf"), 0.0
        x, log_V, integrals = self._potential
        end = float(np.interp(-np.log(max(V, np.exp(log_V[-1]))), -log_V, x))
        labels, prior, labels_coarse, prior_coarse, noise = (float(integral(end)) for integral in integrals)
        half = 0.5 * len(self.identity)
        value, other = half * (point.alpha * labels - prior), half * (point.alpha * labels_coarse - prior_coarse)
        rounding = 2e-12 * half * (point.alpha * abs(labels) + abs(prior))
        return value, abs(value - other) / 8 + half * point.alpha * noise + rounding

    @cached_property
    def _potential(self) -> tuple[Array, Array, list[Any]]:
        r"""Log Qhat, log V, splines of ``\int kappa I dQ`` and ``\int Qhat dQ``, also from half the points, and of the error.

        The free entropy is linear in the sample ratio, so these two integrals are all that there is.
        """
        from scipy.interpolate import CubicSpline

        x = np.linspace(self.nodes[0], self.nodes[-1], 2001)  # odd
        log_V = np.minimum.accumulate(np.log(self._overlap(x)[1]))
        relative = np.interp(x, self.nodes, self.alpha_error / np.where(np.isfinite(self.alpha), self.alpha, 1.0))
        prior_term = -np.exp(x + log_V) * CubicSpline(x, log_V)(x, 1)
        label_term = prior_term / self._alpha(x)

        def integral(values: Array, every: int = 1) -> Any:
            # From Q at the bottom to the first node both integrands are proportional to the square of Qhat.
            found = CubicSpline(x[::every], values[::every]).antiderivative()
            found.c[-1] += values[0] / 2
            return found

        integrals = [integral(values, every) for every in (1, 2) for values in (label_term, prior_term)]
        return x, log_V, [*integrals, integral(label_term * relative)]

    # -- thresholds ---------------------------------------------------------------------------------------------

    def thresholds(self) -> JsonObject:
        """All critical sample ratios, see ``threshold_document``."""
        weak = self.weak_limit()
        reasons = {"weak_recovery": HELD if self.bottom > 0 else NEVER}
        sequential = [{"layer": 1, **weak.document()}] if weak else []
        if len(self.identity) > 1:
            sequential, reasons["sequential"] = (
                [],
                "components are learned at once: labels do not see rotations of them",
            )
        return threshold_document(weak, self.perfect_limit(), sequential, self._hard_phase(weak), reasons)

    def _hard_phase(self, weak: Threshold | None) -> HardPhase | None:
        """Sample ratios at which the Bayes-optimal error is below the uninformed branch; None if it never is."""
        extrema = {"max": [], "min": []}  # type: dict[str, list[Threshold]]
        for _, alpha, error, kind in self.turning_points():
            extrema[kind].append(Threshold(alpha, error))
        peaks = extrema["max"]
        if not peaks and weak and weak.value > 0 and self.alpha[-1] < weak.value:
            peaks = [weak]  # the curve falls from the very beginning: the prior mean itself is the branch that is stuck
        if not peaks:
            return None
        top = max(peaks, key=lambda peak: peak.value)
        perfect = self.perfect_limit()
        lows = [*extrema["min"], *([] if perfect is None else [perfect])]
        low = min((one for one in lows if one.value < top.value), key=lambda one: one.value, default=None)
        optimal = None if low is None else self.transition(low, top.value)
        return None if low is None or optimal is None else HardPhase(low, optimal, top)

    def weak_limit(self) -> Threshold | None:
        """Weak-recovery threshold, where the prior mean becomes unstable: the limit of alpha at the lowest overlap.

        0 when the prior mean itself is informative and holds nothing (a linear channel); None when the prior mean holds
        something from the beginning, so that learning starts smoothly at alpha = 0.
        """
        info, ratios = self._at_bottom, ComponentRatios(self.problem)
        if ratios.critical[0] > 0:  # the overlap stays at its lowest value up to a finite Qhat (small-width limit)
            value = ratios.critical[0] / (self.kappa * info.value)
            return Threshold(float(value), float(value * info.error / info.value))
        if info.value > max(NOTHING, 3 * info.error):
            return None if self.bottom > 0 else Threshold(0.0, 0.0)
        if self.bottom == 0 and len(self.identity) == 1 and self.problem.channel.susceptibility is not None:
            log_ratio, error = ratios.log_ratios(np.zeros(1), [])
            value = float(np.exp(log_ratio[0]))
            return Threshold(value, value * float(error[0] + ratios.response_error[0])) if np.isfinite(value) else None
        if self.sampled:
            return Threshold(float(self.alpha[0]), float(self.alpha_error[0] + abs(self.alpha[1] - self.alpha[0])))
        faint = np.log([1e-4, 1e-5, 1e-6, 1e-7])
        limit = limit_of([self._alpha_at(x) for x in faint])
        return replace(limit, error=limit.error + limit.value * float(self._rounding(faint[-1])))

    def _rounding(self, log_qhat: Array) -> Array:
        """Relative rounding error of small overlaps and their alpha, which are differences of numbers of order 1."""
        gained = np.maximum(self._overlap(log_qhat)[0] - self.bottom, np.finfo(float).tiny)
        return 4 * np.finfo(float).eps * self.second / gained

    def perfect_limit(self) -> Threshold | None:
        """Threshold of perfect recovery: the limit of alpha as the error goes to 0. None if the error never vanishes."""
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
        values = [self._alpha_at(np.log(end / 10**k)) for k in range(5, -1, -1)]
        if not (np.isfinite(values).all() and values[-1] <= 1.5 * values[-4]):
            return None
        limit = limit_of(values)
        # A smooth sequence does not show an error of the prior's map that all of its terms share.
        return replace(limit, error=limit.error + limit.value * overlap_error_at(self.problem, end * self.identity))

    @cached_property
    def equations(self) -> float:
        """Number of equations that a label gives for its latents: the limit of V I; 0 for noisy and for rounded labels."""
        known = self.problem.channel.equations
        if known is not None:
            return float(known)
        V = self.second * np.array([1e-6, 1e-8])
        stated = V * self._information_at(self.second - V, V).value
        return float(stated[1]) if stated[1] > 0.5 * stated[0] else 0.0

    def turning_points(self) -> list[tuple[float, float, float, str]]:
        """Local extrema of alpha(Qhat): (log Qhat, alpha, its error, ``"max"`` or ``"min"``); none where the branch is unique."""
        found = []
        finite = np.isfinite(self.alpha)
        nodes, alpha, error = self.nodes[finite], self.alpha[finite], self.alpha_error[finite]
        for j, kind in turns(alpha, 3 * error + (1e-9 + self._rounding(nodes)) * alpha):
            if self.sampled:
                # Between the nodes the curve goes on: by the parabola, as far as that may be trusted.
                a, b, c = alpha[j - 1 : j + 2]
                vertex = b - (c - a) ** 2 / (8 * (a - 2 * b + c))
                found.append((float(nodes[j]), float(vertex), float(error[j] + abs(vertex - b)), kind))
                continue
            from scipy.optimize import minimize_scalar

            sign = -1.0 if kind == "max" else 1.0
            best = minimize_scalar(
                lambda x, sign=sign: sign * min(self._alpha_at(x), 1e300),
                bounds=nodes[[j - 1, j + 1]],
                method="bounded",
                options={"xatol": 1e-9},
            )
            value = sign * best.fun
            spread = self.alpha_of(np.array([best.x]))[1][0] + 1e-12 * value
            found.append((float(best.x), float(value), float(spread), kind))
        return found


def shares_overlap(problem: Problem) -> bool:
    """Whether overlaps are multiples of the identity: one component, or labels and a prior that do not see rotations."""
    if problem.components == 1:
        return True
    identity = np.eye(problem.components)
    V = overlap_at(problem, identity)[1]
    return problem.channel.symmetry == "rotations" and np.allclose(V, V[0, 0] * identity, rtol=1e-9, atol=1e-12)


def turns(values: Array, noise: Array) -> list[tuple[int, str]]:
    """Interior local extrema of a sequence, ``(index, "max" or "min")``.

    From each of them it moves away by more than its noise on both sides.
    """
    found: list[tuple[int, str]] = []
    direction, highest, lowest = 0, 0, 0
    for j in range(1, len(values)):
        if direction >= 0:
            if values[j] > values[highest]:
                highest = j
            elif values[j] < values[highest] - max(noise[j], noise[highest]):
                found += [(highest, "max")] if direction else []
                direction, lowest = -1, j
                continue
        if direction <= 0:
            if values[j] < values[lowest]:
                lowest = j
            elif values[j] > values[lowest] + max(noise[j], noise[lowest]):
                found += [(lowest, "min")] if direction else []
                direction, highest = 1, j
    return found


def interpolation_error(nodes: Array, alpha: Array) -> Array:
    """Relative error (G,) of interpolating alpha between nodes: distance of each node from its neighbours' interpolation.

    Without a node, the gap is twice as wide, and a cubic interpolant about eight times worse.
    """
    from scipy.interpolate import PchipInterpolator

    found, finite = np.zeros(len(nodes)), np.flatnonzero(np.isfinite(alpha))
    x, y = nodes[finite], np.log(alpha[finite])
    for i in range(1, len(x) - 1):
        others = np.delete(np.arange(max(0, i - 4), min(len(x), i + 5)), i - max(0, i - 4))
        if len(others) > 3:
            found[finite[i]] = abs(float(PchipInterpolator(x[others], y[others])(x[i])) - y[i]) / 8
    return found


def resolved(V: Array, log_qhat: Array, unknown: float, faintest: float = FAINTEST) -> int:
    """Nodes up to which V still decreases; beyond them double precision cannot resolve it."""
    if not (SMALL * unknown > V).any():
        return len(V)
    with np.errstate(divide="ignore", invalid="ignore"):
        fall = -np.diff(np.log(V)) / np.diff(log_qhat)
    bad = (V[1:] < SMALL * unknown) & ~((fall > SLOWEST) & (V[1:] > faintest * unknown))
    return int(np.argmax(bad)) + 1 if bad.any() else len(V)


def limit_of(values: Sequence[float]) -> Threshold:
    """Limit of a sequence taken at geometrically spaced points, by Aitken's extrapolation; error from its last step."""
    terms = np.asarray(values, dtype=float)
    first, second = np.diff(terms)[:-1], np.diff(terms)[1:]
    bend = second - first
    usable = np.abs(bend) > 1e-13 * np.abs(terms[2:])
    limits = np.where(usable, terms[2:] - second**2 / np.where(usable, bend, 1.0), terms[2:])
    # An extrapolation that moves further than the sequence itself did is noise.
    limits = np.where(np.abs(limits - terms[2:]) <= 3 * np.abs(second) + 1e-300, limits, terms[2:])
    spread = abs(limits[-1] - limits[-2]) if len(limits) > 1 else abs(limits[-1] - terms[-1])
    return Threshold(float(limits[-1]), float(spread + 1e-12 * abs(limits[-1])))
