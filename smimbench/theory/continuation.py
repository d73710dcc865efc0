r"""The way up of a problem whose components are learned one after the other.

Where no label sees the sign of a component, or components do not mix for another reason, overlaps that start diagonal stay
diagonal, and at a fixed point every component tells the sample ratio by itself:

.. math::

    \hat Q_{aa} = \kappa \alpha I_{aa}(Q)
    \quad\Longleftrightarrow\quad
    \alpha = \alpha_a(Q) := \frac{\hat Q_{aa}}{\kappa I_{aa}(Q)} \quad\text{for every learned } a.

A component that is not learned (``Q_aa`` at its lowest value) is stable below ``alpha_a``, the limit of the same ratio: with
``I_aa = lambda_a Q_aa`` and ``Q_aa = chi_a Qhat_aa`` it is ``1 / (kappa lambda_a chi_a)``. So fixed points are curves on which
the ``alpha_a`` of all learned components agree: no iteration in alpha, no critical slowing down. The curve is followed by a
predictor and a corrector in the logarithms of ``Qhat``; where ``alpha`` reaches the ``alpha_b`` of another component, b is
learned from there on, and the curve goes on in one dimension more: which one is next is found, not assumed. Where alpha
falls along the curve branches compete.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.theory.free_entropy import along_path, information_of
from smimbench.theory.information import channel_information
from smimbench.theory.sampling import sampled_moments
from smimbench.theory.scalar import NOTHING, Prediction, Threshold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.problem.problem import Problem

__all__ = ["Event", "Staircase", "components_are_apart", "perfect_limit"]

Host = np.ndarray[Any, np.dtype[np.float64]]

_START = 1e-6
_SMALLEST_ERROR = 1e-4
_HIGHEST = 1e8
_FARTHEST = 1e3
_MOST_NODES = 200
_DIFFERENCE = 0.1
_SHORTEST, _SAMPLED_SHORTEST, _LONGEST = 2e-3, 0.02, 1.5
_FIRST_STEP = 0.04
_MISMATCH, _SAMPLED_MISMATCH = 5e-4, 1e-2
_CORRECTION = 0.03
_GAP = 2e-4
_DENSE = 16
_BALANCING = 40


@dataclass(frozen=True)
class Event:
    """Component ``component`` (from 0) starts to be learned at ``alpha``."""

    component: int
    alpha: float
    error: float


@dataclass
class _Node:
    """A fixed point: coordinates of Qhat (P,), log alpha of each component and its error (P,), d(log alpha)/dx (P, P)."""

    x: Host
    rho: Host
    error: Host
    slope: Host
    log_alpha: float


@dataclass
class _Stage:
    """Part of the curve on which the components ``known`` are learned; ``new`` are the ones that set the direction.

    The components ``perfect`` among them have reached their end before the others; they stay where they are.
    """

    known: list[int]
    new: list[int]
    nodes: list[_Node]
    perfect: list[int] = field(default_factory=list)
    step: float = _FIRST_STEP
    direction: Host | None = None
    tables: dict[str, Any] = field(default_factory=dict)

    @property
    def moving(self) -> list[int]:
        """The learned components that are not at their end."""
        return [a for a in self.known if a not in self.perfect]

    def arrays(self) -> tuple[Host, Host, Host]:
        """Distance along the curve (n,), coordinates (n, P), log alpha (n,)."""
        x = np.array([node.x for node in self.nodes])
        s = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(x, axis=0), axis=1))])
        return s, x, np.array([node.log_alpha for node in self.nodes])

    def interpolants(self) -> tuple[Any, Any]:
        """The curve (x and log alpha) as a function of its length: smooth, and a cautious one to compare with."""
        from scipy.interpolate import CubicSpline, PchipInterpolator

        if self.tables.get("size") != len(self.nodes):
            s, x, log_alpha = self.arrays()
            values = np.column_stack([x, log_alpha])
            if len(s) == 2:
                middle = (s[0] + s[1]) / 2
                s, values = np.insert(s, 1, middle), np.insert(values, 1, values.mean(0), axis=0)
            cautious = PchipInterpolator(s, values)
            smooth = CubicSpline(s, values) if len(s) > 3 else cautious
            self.tables = {"size": len(self.nodes), "both": (smooth, cautious)}
        found: tuple[Any, Any] = self.tables["both"]
        return found


class Staircase:
    """The curve of fixed points that starts at the prior mean.

    Parameters
    ----------
    problem : Problem
        Its components must be apart, see ``components_are_apart``.

    Attributes
    ----------
    events : list of Event
        The components in the order in which they are learned; those that are learned from the beginning have alpha 0.
    finished : bool
        Whether the end of the curve has been reached.
    """

    def __init__(self, problem: Problem) -> None:
        P = problem.components
        self.problem = problem
        self.kappa = float(problem.model.kappa)
        self.second = np.diagonal(np.asarray(problem.prior.second_moment(P), dtype=float))
        self.bottom = np.diagonal(np.asarray(problem.prior.mean_overlap(P), dtype=float))
        self.methods: dict[str, None] = {}
        self.events: list[Event] = []
        self.stages: list[_Stage] = []
        self.finished = False
        self.departure, self.response = self._prior_at_bottom()
        self.perfect = perfect_limit(problem)
        self._highest = -np.inf
        self._informative: set[int] = set()
        self._read: dict[str, Any] = {}
        self._begin()

    # -- the functions alpha_a ----------------------------------------------------------------------------------------

    def _prior_at_bottom(self) -> tuple[Host, Host]:
        """Largest Qhat that teaches nothing, and dQ/dQhat at the lowest overlap, of every component."""
        P = self.problem.components

        def gain(information: float) -> Host:
            # V keeps its digits where Q - bottom does not
            V = np.diagonal(np.asarray(self.problem.prior.overlap(information * np.eye(P)).V))
            found: Host = np.maximum(self.second - self.bottom - V, 0.0)
            return found

        response = 2 * gain(5e-5) / 5e-5 - gain(1e-4) / 1e-4
        departure = np.zeros(P)
        for a in np.flatnonzero(response == 0):
            low, high = 1e-5, 1.0
            while gain(high)[a] == 0 and high < _HIGHEST:
                low, high = high, 4 * high
            while high - low > 1e-14 * high:
                middle = (low + high) / 2
                low, high = (low, middle) if gain(middle)[a] > 0 else (middle, high)
            departure[a] = high
        return departure, response

    def _qhat(self, x: Host, known: Sequence[int]) -> Host:
        qhat = np.zeros(x.shape)
        for a in known:
            qhat[..., a] = (
                np.exp(x[..., a]) if a in self._informative else self.departure[a] + np.expm1(x[..., a])
            )
        return qhat

    def _overlap(self, qhat: Host) -> tuple[Host, Host]:
        P = qhat.shape[-1]
        found = self.problem.prior.overlap(qhat[..., :, None] * np.eye(P))
        return np.asarray(found.Q), np.asarray(found.V)

    def _evaluate(self, x: Host, known: Sequence[int]) -> tuple[Host, Host]:
        """Log alpha_a (P,) and its error: of the learned components at ``x``, and where the others become unstable."""
        P = len(x)
        channel, model = self.problem.channel, self.problem.model
        qhat = self._qhat(x, known)
        Q, V = self._overlap(qhat)
        known = [a for a in known if qhat[a] > 0]
        waiting = [a for a in range(P) if a not in known and self.departure[a] == 0]
        sampled = None
        if not hasattr(channel, "information") or (waiting and not hasattr(channel, "susceptibility")):
            sampled = sampled_moments(channel, model.sites, Q, V)
        if hasattr(channel, "information") or sampled is None:
            information = channel_information(channel, model, Q, V)
        else:
            information = sampled[0]
        self.methods[information.method] = None
        value, error = _diagonals(information.value, information.error)
        rate, rate_error = np.zeros(P), np.zeros(P)
        for a in range(P):
            if a in known:
                rate[a], rate_error[a] = value[a] / qhat[a], error[a] / qhat[a]
            elif self.departure[a] > 0:
                rate[a], rate_error[a] = value[a] / self.departure[a], error[a] / self.departure[a]
        if waiting:
            found = channel.susceptibility(Q, V) if hasattr(channel, "susceptibility") else sampled[1]  # type: ignore[index]
            self.methods[found.method] = None
            response, response_error = _diagonals(found.value, found.error)
            for a in waiting:
                rate[a], rate_error[a] = response[a] * self.response[a], response_error[a] * self.response[a]
        rate, rate_error = self.kappa * rate, self.kappa * rate_error
        seen = rate > np.maximum(3 * rate_error, 1e-300)
        seen[known] = rate[known] > 0
        safe = np.where(seen, rate, 1.0)
        return np.where(seen, -np.log(safe), np.inf), np.where(seen, rate_error / safe, np.inf)

    # -- beginning ----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        P = self.problem.components
        Q, V = self._overlap(np.zeros(P))
        information = information_of(self.problem, Q, V)
        value, error = _diagonals(information.value, information.error)
        at_once = [a for a in range(P) if self.departure[a] == 0 and value[a] > max(NOTHING, 3 * error[a])]
        self._informative = set(at_once)
        x = np.zeros(P)
        if at_once:
            x[at_once] = np.log(_START * value[at_once] / value[at_once].max())
            rho, doubt = self._evaluate(x, at_once)
            self.events += [Event(a, 0.0, 0.0) for a in sorted(at_once, key=lambda a: -value[a])]
            slope = np.zeros((P, P))
            slope[at_once, at_once] = 1.0
            node = _Node(x, rho, doubt, slope, float(rho[at_once].mean()))
            self.stages.append(_Stage(list(at_once), list(at_once), [node]))
            return
        rho, doubt = self._evaluate(x, [])
        new = int(np.argmin(rho))
        self._learn(
            _Node(x, rho, doubt, np.zeros((P, P)), float(rho[new])),
            _Stage([], [], []),
            new,
            float(doubt[new]),
        )

    def _learn(self, node: _Node, stage: _Stage, new: int, error: float) -> None:
        """Component ``new`` becomes unstable at ``node``: a stage with one dimension more starts there."""
        if not np.isfinite(node.log_alpha):
            self.finished = True
            return
        self._highest = max(self._highest, node.log_alpha)
        alpha = float(np.exp(self._highest))
        self.events.append(Event(new, alpha, alpha * error))
        x = node.x.copy()
        x[new] = 0.0
        start = _Node(x, node.rho.copy(), node.error.copy(), node.slope.copy(), node.log_alpha)
        start.slope[:, new] = 0.0
        self.stages.append(_Stage([*stage.known, new], [new], [start], list(stage.perfect)))

    # -- following the curve ------------------------------------------------------------------------------------------

    def follow(self, *, until: float | None = None) -> None:
        """Follow the curve to its end, or until alpha has passed ``until``."""
        while not self.finished:
            if until is not None and self._passed(until):
                return
            self._advance(self.stages[-1])

    def follow_events(self) -> None:
        """Follow the curve until every component has been learned or the curve ends."""
        while not self.finished and len(self.stages[-1].known) < self.problem.components:
            self._advance(self.stages[-1])

    def _passed(self, alpha: float) -> bool:
        node = self.stages[-1].nodes[-1]
        return (
            len(self.stages[-1].nodes) > 1
            and node.log_alpha > np.log(alpha) + 0.02
            and node.log_alpha >= self._highest
        )

    @property
    def _sampled(self) -> bool:
        return any("Monte Carlo" in method for method in self.methods)

    def _differentiate(self, stage: _Stage, node: _Node) -> None:
        """Finite differences of the log alpha_a at a node."""
        step = _DIFFERENCE if self._sampled else 1e-3
        for a in stage.moving:
            x = node.x.copy()
            x[a] += step
            rho, _ = self._evaluate(x, stage.known)
            node.slope[:, a] = _change(node.rho, rho) / step

    def _tangent(self, stage: _Stage, slope: Host) -> Host:
        moving = stage.moving
        tangent = np.zeros(len(slope))
        if len(moving) == 1:
            tangent[moving] = 1.0
            return tangent
        block = slope[np.ix_(moving, moving)]
        _, _, vectors = np.linalg.svd(block[1:] - block[:1])
        tangent[moving] = vectors[-1]
        forward = tangent[stage.new].sum() if stage.direction is None else tangent @ stage.direction
        return tangent if forward > 0 else -tangent

    def _correction(self, moving: list[int], rho: Host, slope: Host, tangent: Host) -> Host:
        """Newton step across the curve that makes the moving components agree."""
        step = np.zeros(len(rho))
        if len(moving) > 1:
            block = slope[np.ix_(moving, moving)]
            system = np.vstack([block[1:] - block[:1], tangent[moving]])
            wanted = np.append(rho[moving[0]] - rho[moving[1:]], 0.0)
            step[moving] = np.linalg.lstsq(system, wanted, rcond=1e-10)[0]
        return step

    def _attempt(self, stage: _Stage, origin: _Node, x: Host, tangent: Host) -> tuple[_Node, float]:
        """The point of the curve near ``x``, and the size of the largest correction that it took."""
        moving, largest = stage.moving, 0.0
        slope, last_x, last_rho = origin.slope.copy(), origin.x, origin.rho
        for _ in range(5):
            rho, error = self._evaluate(x, stage.known)
            move = x - last_x
            if move @ move > 0:
                slope = slope + np.outer(_change(last_rho, rho) - slope @ move, move) / (move @ move)
            step = self._correction(moving, rho, slope, tangent)
            size = float(np.abs(step).max())
            if not np.isfinite(size):
                return _Node(x, rho, error, slope, np.nan), np.inf
            largest = max(largest, size)
            if size <= (_CORRECTION if self._sampled else 1e-6):
                break
            last_x, last_rho = x, rho
            x = x + step * min(1.0, 1.0 / size)
        else:
            step, largest = np.zeros_like(step), np.inf
        # What is left of the correction is small enough for the linear model.
        rho = np.where(np.isfinite(rho), rho + slope @ step, rho)
        node = _Node(x + step, rho, error, slope, float(rho[moving].mean()))
        return node, largest

    def _advance(self, stage: _Stage) -> None:
        first = len(stage.nodes) == 1
        last = stage.nodes[-1]
        if first and self._immediate(stage):
            return
        if first and (len(stage.moving) > 1 or not self._sampled):
            self._differentiate(stage, last)
        tangent = self._tangent(stage, last.slope)
        low, high = _SAMPLED_SHORTEST if self._sampled else _SHORTEST, _LONGEST
        while True:
            step = stage.step
            node, correction = self._attempt(stage, last, last.x + step * tangent, tangent)
            tolerance = max(
                _SAMPLED_MISMATCH if self._sampled else _MISMATCH, float(np.max(node.error[stage.moving]))
            )
            mismatch = self._mismatch(stage, last, node)
            if first and len(stage.moving) == 1 and self._sampled:
                mismatch = tolerance  # there is no slope yet to compare with
            backwards = float((node.x - last.x) @ tangent) <= 0
            poor = (
                not np.isfinite(node.log_alpha) or correction > 4 * max(_CORRECTION, 0.3 * step) or backwards
            )
            factor = np.sqrt(tolerance / max(mismatch, 1e-12)) if np.isfinite(mismatch) else 0.3
            stage.step = float(np.clip(step * np.clip(factor, 0.3, 2.0), low, high))
            if (not poor and mismatch <= 3 * tolerance) or step <= low:
                break
            stage.step = max(low, min(stage.step, step / 2))
        if not np.isfinite(node.log_alpha):
            self.finished = True
            return
        if not self._sampled:
            self._differentiate(stage, node)
        stage.direction = (node.x - last.x) / np.linalg.norm(node.x - last.x)
        if self._event_between(stage, last, node, tangent):
            return
        stage.nodes.append(node)
        self._highest = max(self._highest, node.log_alpha)
        self._check_end(stage, node)

    def _mismatch(self, stage: _Stage, last: _Node, node: _Node) -> float:
        """How far log alpha at a new node is from what the nodes before it foretold."""
        line = last.log_alpha + float((last.slope @ (node.x - last.x))[stage.moving].mean())
        found = abs(node.log_alpha - line)
        if len(stage.nodes) > 2:
            s, _, log_alpha = stage.arrays()
            t = s[-3:] - s[-1] - float(np.linalg.norm(node.x - last.x))
            a, b, c = log_alpha[-3:]
            parabola = (
                a * t[1] * t[2] / ((t[0] - t[1]) * (t[0] - t[2]))
                + b * t[0] * t[2] / ((t[1] - t[0]) * (t[1] - t[2]))
                + c * t[0] * t[1] / ((t[2] - t[0]) * (t[2] - t[1]))
            )
            found = min(found, abs(node.log_alpha - parabola))
        return float(found)

    def _immediate(self, stage: _Stage) -> bool:
        """Another component may be unstable already where a stage starts, or may have to wait for its own alpha."""
        node = stage.nodes[0]
        if stage.moving:
            waiting = self._waiting(stage, node)
            if not waiting or self._highest == -np.inf:
                return False
            self._learn(node, stage, waiting[0], float(node.error[waiting[0]]))
            return True
        others = [a for a in range(len(node.rho)) if a not in stage.known]
        new = min(others, key=lambda a: node.rho[a])
        node = _Node(node.x, node.rho, node.error, node.slope, float(node.rho[new]))
        self._learn(node, stage, new, float(node.error[new]))
        return True

    def _waiting(self, stage: _Stage, node: _Node) -> list[int]:
        """Components that are unstable at a node, the most unstable first."""
        others = [a for a in range(len(node.rho)) if a not in stage.known]
        return sorted((a for a in others if node.rho[a] <= node.log_alpha), key=lambda a: node.rho[a])

    def _event_between(self, stage: _Stage, last: _Node, node: _Node, tangent: Host) -> bool:
        """Look for a component that becomes unstable between two nodes, on the part that is reached from below."""
        if node.log_alpha < self._highest:
            return False  # alpha falls here: the curve is an unstable branch
        unstable = self._waiting(stage, node)
        if not unstable:
            return False
        landing = 0.0
        if last.log_alpha < self._highest - 1e-12:
            landing = (self._highest - last.log_alpha) / max(node.log_alpha - last.log_alpha, 1e-300)

        def crossing(a: int) -> float:
            gaps = [n.log_alpha - n.rho[a] for n in (last, node)]
            where = -gaps[0] / (gaps[1] - gaps[0]) if np.isfinite(gaps[0]) and gaps[1] > gaps[0] else 0.0
            return float(np.clip(where, landing, 1.0))

        new = min(unstable, key=crossing)
        positions = [0.0, 1.0]
        gaps = [last.log_alpha - last.rho[new], node.log_alpha - node.rho[new]]
        where, found = crossing(new), node
        for _ in range(4):
            found, _ = self._attempt(stage, last, last.x + where * (node.x - last.x), tangent)
            gap = found.log_alpha - found.rho[new]
            positions, gaps = [*positions, where], [*gaps, gap]
            if (
                not np.isfinite(gap)
                or abs(gap) <= max(_GAP if self._sampled else 1e-8, 0.1 * found.error[new])
                or (where <= landing and gap > 0)
            ):
                break
            where = float(np.clip(_root(positions, gaps), landing, 1.0))
        # What is left of the gap is removed along the line through the two nearest points.
        order = np.argsort(np.abs(gaps))[:2]
        (s0, s1), (g0, g1) = ([v[i] for i in order] for v in (positions, gaps))
        length = float(np.linalg.norm(node.x - last.x))
        steep = (g0 - g1) / ((s0 - s1) * length) if s0 != s1 else np.inf
        rise = (node.log_alpha - last.log_alpha) / length
        share = float(np.clip(rise / steep, -10, 10)) if np.isfinite(steep) and steep != 0 else 0.0
        own = float(np.sqrt((found.error[stage.moving] ** 2).mean()))
        error = float(np.hypot((1 - share) * own, share * found.error[new]) + abs(share * gaps[-1]))
        log_alpha = found.log_alpha - share * gaps[-1]
        if where > 0:
            stage.nodes.append(found)
        self._highest = max(self._highest, found.log_alpha)
        start = _Node(
            found.x,
            found.rho,
            found.error,
            found.slope,
            float(max(log_alpha, self._highest if landing else -np.inf)),
        )
        self._learn(start, stage, new, error)
        return True

    def _check_end(self, stage: _Stage, node: _Node) -> None:
        P = self.problem.components
        qhat = self._qhat(node.x, stage.known)
        V = np.diagonal(self._overlap(qhat)[1], axis1=-2, axis2=-1)
        highest = (1e-2 if self._sampled else 1.0) * _HIGHEST
        small = (
            self.perfect is not None
            and len(stage.known) == P
            and bool((self.second * _SMALLEST_ERROR > V).all())
        )
        if (
            small
            or np.exp(node.log_alpha) > _FARTHEST
            or sum(len(s.nodes) for s in self.stages) > _MOST_NODES
        ):
            self.finished = True
            return
        done = [a for a in stage.moving if qhat[a] > highest]
        together = len(stage.known) == P and hasattr(self.problem.channel, "equations")
        if done and together and self.perfect is not None and bool((self.second * 1e-2 > V).all()):
            # Components that share their equations reach the end together, whatever the ratio of their errors.
            self.finished = True
            return
        if done:
            # Recovered, as far as numbers go, before the others: it stays behind.
            perfect = [*stage.perfect, *done]
            if len(perfect) == P:
                self.finished = True
                return
            start = _Node(node.x, node.rho, node.error, node.slope.copy(), node.log_alpha)
            start.slope[:, done] = 0.0
            rest = [a for a in stage.moving if a not in done]
            self.stages.append(_Stage(list(stage.known), rest, [start], perfect, stage.step))

    # -- reading the curve --------------------------------------------------------------------------------------------

    def _dense(self) -> tuple[Host, Host, Host]:
        """The whole curve finely: number of the stage, length along it, log alpha."""
        size = sum(len(stage.nodes) for stage in self.stages)
        if self._read.get("size") != size:
            self._read = {"size": size, "dense": self._sampled_finely()}
        found: tuple[Host, Host, Host] = self._read["dense"]
        return found

    def _sampled_finely(self) -> tuple[Host, Host, Host]:
        parts = []
        for number, stage in enumerate(self.stages):
            if len(stage.nodes) < 2:
                continue
            s, _, _ = stage.arrays()
            fine = np.unique(
                np.concatenate([np.linspace(a, b, _DENSE + 1) for a, b in itertools.pairwise(s)])
            )
            parts.append((np.full(len(fine), number), fine, stage.interpolants()[0](fine)[:, -1]))
        if not parts:
            return np.zeros(0), np.zeros(0), np.zeros(0)
        first, second, third = (np.concatenate([part[k] for part in parts]) for k in range(3))
        return first, second, third

    def predict(self, alpha: float, branch: str = "uninformed") -> Prediction:
        """The fixed point of one branch; the informed one asks for the whole curve."""
        self.follow(until=alpha if branch == "uninformed" else None)
        P = self.problem.components
        number, s, log_alpha = self._dense()
        target = np.log(alpha)
        end = None if self.perfect is None or not self.finished else np.log(self.perfect.value)
        if branch == "uninformed":
            above = np.flatnonzero(log_alpha >= target)
            k = int(above[0]) if len(above) else len(log_alpha)
        else:
            below = np.flatnonzero(log_alpha < target)
            k = int(below[-1]) + 1 if len(below) else 0
            if end is not None and target >= end:
                return self._pack(alpha, np.full(P, np.inf), np.zeros(P), branch)
        if k == 0:
            if self._informative and len(log_alpha):
                # far below the first node everything is proportional to alpha
                node = self.stages[0].nodes[0]
                qhat = self._qhat(node.x, self.stages[0].known) * np.exp(target - node.log_alpha)
                return self._pack(alpha, qhat, np.zeros(P), branch)
            return self._pack(alpha, np.zeros(P), self._doubt_below(0, target), branch)
        if k == len(log_alpha):
            return self._beyond(alpha, target, end, branch)
        stage = self.stages[int(number[k])]
        smooth, cautious = stage.interpolants()
        if number[k - 1] == number[k] and (log_alpha[k - 1] - target) * (log_alpha[k] - target) <= 0:
            from scipy.optimize import brentq

            where = brentq(lambda t: float(smooth(t)[-1]) - target, s[k - 1], s[k], xtol=1e-13)
            slope = abs(float(smooth(where, 1)[-1]))
            shift = abs(float(cautious(where)[-1]) - target) / max(slope, 1e-3)
        else:  # between two stages, while a component waits for its own sample ratio
            where, shift = s[k], 0.0
        x = smooth(where)[:-1]
        spread = np.abs(x - cautious(where)[:-1]) + shift * np.abs(smooth(where, 1)[:-1])
        doubt = self._doubt(stage, where, spread) + self._doubt_below(int(number[k]) + 1, target)
        return self._pack(alpha, self._qhat(x, stage.known), doubt, branch, x, stage.known)

    def _doubt(self, stage: _Stage, where: float, spread: Host) -> Host:
        """Error of x at fixed alpha, from the errors of the alpha_a and the interpolation."""
        s, _, _ = stage.arrays()
        k = int(np.clip(np.searchsorted(s, where), 1, len(s) - 1))
        share = np.clip((where - s[k - 1]) / (s[k] - s[k - 1]), 0, 1)
        one, two = stage.nodes[k - 1], stage.nodes[k]
        known = stage.moving
        block = ((1 - share) * one.slope + share * two.slope)[np.ix_(known, known)]
        error = ((1 - share) * one.error + share * two.error)[known]
        result = np.zeros(len(one.x))
        result[known] = np.sqrt((np.linalg.pinv(block, rcond=1e-6) ** 2) @ error**2) + spread[known]
        return np.minimum(result, 2.0)

    def _doubt_below(self, number: int, target: float) -> Host:
        """A component that is about to be learned may be so already, within the error of its threshold."""
        result = np.zeros(self.problem.components)
        fresh = 0 < number < len(self.stages) and len(self.stages[number].known) > len(
            self.stages[number - 1].known
        )
        if (fresh or number == 0 < len(self.stages)) and len(self.stages[number].nodes) > 1:
            stage = self.stages[number]
            one, two = stage.nodes[:2]
            new = stage.new[0]
            event = next((e for e in self.events if e.component == new and e.alpha > 0), None)
            rise = two.log_alpha - one.log_alpha
            if event is not None and rise > 0:
                missing = np.log(event.alpha) - target
                result[new] = max(0.0, event.error / event.alpha - missing) * (two.x - one.x)[new] / rise
        return result

    def _beyond(self, alpha: float, target: float, end: float | None, branch: str) -> Prediction:
        P = self.problem.components
        if not self.stages or not len(self.stages[-1].nodes) > 1:
            return self._pack(alpha, np.zeros(P), np.zeros(P), branch)
        stage = self.stages[-1]
        node = stage.nodes[-1]
        qhat = self._qhat(node.x, stage.known)
        if end is not None and len(stage.known) == P:
            left = (end - target) / (end - node.log_alpha) if end > node.log_alpha else 0.0
            if left <= 0:
                return self._pack(alpha, np.full(P, np.inf), np.zeros(P), branch)
            return self._pack(alpha, qhat / left, np.full(P, 0.5), branch)
        # The curve ends where numbers do: the error that is left is as uncertain as it is small.
        return self._pack(alpha, qhat, np.where(np.isin(np.arange(P), stage.known), 1.0, 0.0), branch)

    def _pack(
        self,
        alpha: float,
        qhat: Host,
        doubt: Host,
        branch: str,
        x: Host | None = None,
        known: Sequence[int] = (),
    ) -> Prediction:
        P = len(qhat)
        if np.isinf(qhat).all():
            second = np.asarray(self.problem.prior.second_moment(P), dtype=float)
            return Prediction(
                float(alpha), second, np.zeros((P, P)), np.zeros(P), branch, "counting of equations"
            )
        Q, V = self._overlap(qhat)
        error = np.zeros(P)
        if x is None:
            grown = self._overlap(qhat * np.exp(doubt) + np.expm1(doubt) * (qhat == 0))[1]
            error = np.abs(np.diagonal(grown) - np.diagonal(V))
        else:
            widened = [*known, *(a for a in range(P) if a not in known and doubt[a] > 0)]
            for sign in (1.0, -1.0):
                moved = x + sign * doubt
                for a in widened:
                    if a not in self._informative:
                        moved[a] = max(moved[a], 0.0)
                    elif a not in known:
                        moved[a] = x[a]
                other = np.diagonal(self._overlap(self._qhat(moved, widened))[1])
                error = np.maximum(error, np.abs(other - np.diagonal(V)))
        return Prediction(float(alpha), Q, V, error + 1e-10 * np.diagonal(V), branch, ", ".join(self.methods))

    # -- competing branches -------------------------------------------------------------------------------------------

    def folds(self) -> bool:
        """Whether alpha falls somewhere along the curve by more than its numerical error."""
        self.follow()
        highest, doubt = -np.inf, 0.0
        for stage in self.stages:
            for node in stage.nodes if len(stage.nodes) > 1 else []:
                error = float(np.sqrt((node.error[stage.moving] ** 2).mean()))
                if highest - node.log_alpha > 1e-6 + 3 * np.hypot(error, doubt):
                    return True
                if node.log_alpha > highest:
                    highest, doubt = node.log_alpha, error
        if self.perfect is None:
            return False
        error = 3 * float(np.hypot(doubt, self.perfect.error / self.perfect.value))
        return highest - float(np.log(self.perfect.value)) > 1e-6 + error

    def error_at_top(self) -> float:
        """Numerical error of the largest alpha along the curve."""
        nodes = [
            (node, stage.moving) for stage in self.stages if len(stage.nodes) > 1 for node in stage.nodes
        ]
        if not nodes:
            return 0.0
        node, moving = max(nodes, key=lambda pair: pair[0].log_alpha)
        return float(np.exp(node.log_alpha) * np.sqrt((node.error[moving] ** 2).mean()))

    def path(self) -> tuple[Host, Host, Host]:
        """The curve for integrals along it: Qhat (n, P), V (n, P), log alpha (n,)."""
        number, s, log_alpha = self._dense()
        if "path" in self._read:
            found: tuple[Host, Host, Host] = self._read["path"]
            return found
        P = self.problem.components
        qhat = np.zeros((len(s), P))
        for k in np.unique(number).astype(int):
            here = number == k
            stage = self.stages[k]
            qhat[here] = self._qhat(stage.interpolants()[0](s[here])[:, :-1], stage.known)
        V = np.diagonal(self._overlap(qhat)[1], axis1=-2, axis2=-1) if len(s) else np.zeros((0, P))
        self._read["path"] = qhat, V, log_alpha
        return qhat, V, log_alpha

    def free_entropy(self, prediction: Prediction) -> float:
        """Free entropy of a point of the curve, less that of the prior mean; infinite for perfect recovery."""
        V_end = np.diagonal(prediction.V)
        if not V_end.any():
            return float("inf")
        qhat, V, log_alpha = self.path()
        # V falls along the curve in every component: the sum orders its points.
        below = V.sum(1) > V_end.sum()
        count = len(below) if below.all() else int(np.argmin(below))
        return along_path(
            np.vstack([qhat[:count]]),
            np.vstack([V[:count], V_end]),
            log_alpha[:count],
            prediction.alpha,
            self.second - self.bottom,
        )

    def weak_recovery(self) -> Threshold | None:
        """Where the first component leaves its lowest overlap; None where it starts above it or never leaves."""
        if not self.events:
            return None
        first = self.events[0]
        if first.alpha == 0 and self.bottom[first.component] > 0:
            return None
        return Threshold(first.alpha, first.error)


def _change(first: Host, second: Host) -> Host:
    """Difference where both are finite, 0 elsewhere."""
    both = np.isfinite(first) & np.isfinite(second)
    return np.where(both, np.where(both, second, 0.0) - np.where(both, first, 0.0), 0.0)


def _diagonals(value: Any, error: Any) -> tuple[Host, Host]:
    matrix = np.asarray(value, dtype=float)
    return np.diagonal(matrix), np.diagonal(np.broadcast_to(np.asarray(error, dtype=float), matrix.shape))


def _root(positions: Sequence[float], gaps: Sequence[float]) -> float:
    """Root of the parabola through the three points nearest to zero, or of the line through the two that bracket it."""
    s, g = np.asarray(positions), np.asarray(gaps)
    left = max((i for i in range(len(g)) if g[i] <= 0), key=lambda i: g[i], default=int(np.argmin(s)))
    right = min((i for i in range(len(g)) if g[i] > 0), key=lambda i: g[i], default=int(np.argmax(s)))
    line = s[left] - g[left] * (s[right] - s[left]) / (g[right] - g[left]) if g[right] != g[left] else s[left]
    order = np.argsort(np.abs(g))[:3]
    if len(order) == 3 and len(set(g[order])) == 3:
        a, b, c = g[order]
        inverse = (
            s[order[0]] * b * c / ((a - b) * (a - c))
            + s[order[1]] * a * c / ((b - a) * (b - c))
            + s[order[2]] * a * b / ((c - a) * (c - b))
        )
        if min(s[left], s[right]) <= inverse <= max(s[left], s[right]):
            return float(inverse)
    return float(line)


def components_are_apart(problem: Problem) -> bool:
    """Whether overlaps that start diagonal stay diagonal, and components at their lowest stay there when others are learned.

    The first by symmetry, where no label sees the sign of a component. Otherwise the information is probed at the prior mean
    and at two diagonal overlaps: its off-diagonal part has to vanish within its error. The second is what a channel claims
    that knows its ``susceptibility``; of any other it is probed. A product of two components is learned by both at once:
    knowing one teaches the other.
    """
    P = problem.components
    bottom = np.asarray(problem.prior.mean_overlap(P))
    if np.any(bottom != np.diag(np.diagonal(bottom))):
        return False
    if P > 1 and not hasattr(problem.channel, "susceptibility") and _teach_each_other(problem):
        return False
    if problem.channel.symmetry in ("signs", "signed-permutations"):
        return True
    for probe in (np.zeros(P), 0.7 * 1.9 ** np.arange(P), 5.0 / 1.7 ** np.arange(P)):
        found = problem.prior.overlap(np.diag(probe))
        information = channel_information(
            problem.channel, problem.model, np.asarray(found.Q), np.asarray(found.V)
        )
        value = np.asarray(information.value)
        error = np.broadcast_to(np.asarray(information.error, dtype=float), value.shape)
        scale = np.sqrt(np.outer(np.diagonal(value), np.diagonal(value)))
        mixed = np.abs(value) > 4 * error + 1e-6 * scale + 1e-12
        if np.any(mixed & ~np.eye(P, dtype=bool)):
            return False
    return True


def _teach_each_other(problem: Problem) -> bool:
    """Whether a component that has no information at the prior mean gets some from another one."""
    P = problem.components

    def diagonals(probe: Host) -> tuple[Host, Host]:
        found = problem.prior.overlap(np.diag(probe))
        information = channel_information(
            problem.channel, problem.model, np.asarray(found.Q), np.asarray(found.V)
        )
        return _diagonals(information.value, information.error)

    value, error = diagonals(np.zeros(P))
    silent = value <= np.maximum(NOTHING, 4 * error)
    for a in range(P):
        value, error = diagonals(np.where(np.arange(P) == a, 1.0, 0.0))
        taught = silent & (np.arange(P) != a) & (value > 4 * error + 1e-4 * value.max())
        if taught.any():
            return True
    return False


def perfect_limit(problem: Problem) -> Threshold | None:
    r"""Above which sample ratio an error of zero is stable; None where errors never vanish.

    As V -> 0 noiseless labels become linear equations, ``kappa alpha tr(V I) -> kappa alpha E`` with E their number, and the
    prior allows ``tr(V Qhat) -> U``, its number of unknowns. Where all components share the equations, ``alpha = U / (kappa
    E)``. Otherwise the directions in which V vanishes are balanced by ``V_a <- V_a (U_a / E_a)``, ``E_a = V_aa I_aa``, and the
    component that is served worst decides.
    """
    P = problem.components
    kappa = float(problem.model.kappa)

    def at(qhat: Host) -> tuple[Any, Host]:
        found = problem.prior.overlap(np.diag(qhat))
        return found, np.diagonal(np.asarray(found.V)) * qhat

    _, unknowns = at(np.full(P, 1e9))
    if not np.all(unknowns < 1e3):
        return None
    equations = getattr(problem.channel, "equations", None)
    if equations is not None:
        value = float(unknowns.sum()) / (kappa * float(equations))
        drift = abs(float(at(np.full(P, 1e7))[1].sum() / unknowns.sum()) - 1)
        return Threshold(value, value * min(drift, 1e-2))
    tilt = np.ones(P)

    def measure(scale: float) -> tuple[Host, float, float] | None:
        """Sample ratio that each component asks for, its relative error, and the equations in all."""
        found, _ = at(scale / tilt)
        Q, V = np.asarray(found.Q), np.asarray(found.V)
        information = information_of(problem, Q, V)
        value, error = _diagonals(information.value, information.error)
        shares = np.diagonal(V) * value
        if not (np.isfinite(shares).all() and (shares > 0).all()):
            return None
        return (
            unknowns / (kappa * shares),
            float(np.max(error / value)),
            float(np.trace(V @ np.asarray(information.value))),
        )

    rates = np.zeros(P)
    for _ in range(_BALANCING):
        balanced = measure(1e5)
        if balanced is None:
            return None
        previous, rates = rates, balanced[0]
        # Components with equations of their own do not feel the balance.
        if np.ptp(np.log(rates)) < 1e-4 or np.allclose(rates, previous, rtol=1e-4, atol=0):
            break
        tilt = np.clip(tilt * rates / rates.max(), 1e-6, 1.0)
    below, above = measure(1e4), measure(1e6)
    # Errors that vanish leave the number of equations where it is; otherwise it goes down with them.
    if below is None or balanced is None or above is None or above[2] < 0.8 * below[2]:
        return None
    noise = above[1]
    low, middle, high = (float(found[0].max()) for found in (below, balanced, above))
    bend = (high - middle) - (middle - low)
    limit = high - (high - middle) ** 2 / bend if abs(bend) > 1e-13 * high else high
    if abs(limit - high) > abs(high - middle):
        limit = high
    return Threshold(limit, abs(limit - high) + limit * noise)
