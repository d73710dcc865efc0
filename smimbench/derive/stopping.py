"""The default stopping rule: stop when the residual is small, or when overlaps are stationary and agree with each other.

It rests on the Nishimori identity: for a posterior mean, the overlap of the estimate with itself equals its overlap with the
signal, so that an algorithm that predicts the second can be checked against the first.
"""

from __future__ import annotations

import math

import numpy as np

from smimbench.interfaces import Host, Info, ProblemLike, StoppingRule

# Limits of the rule. "Error" is the predicted squared error of a component; "fluctuation" is its overlap's standard deviation at
# finite size.
WINDOW = 10
"""Iterations over which both overlaps must stand still. Doubled: every run that ends so is longer by as many."""
LONG_WINDOW = 40
"""Iterations whose two halves are compared where a residual lingers. Doubled: slower drifts are noticed, runs are longer."""
PATIENCE = 100
"""Iterations before which nothing ends while a component is not above chance. Doubled: slower growth is waited for."""
STILL = 1e-3
"""Change of the predicted overlap within the window, in errors. Doubled: ends sooner, further from the fixed point."""
LINGERING = 5e-3
"""The same for the two means over the long window, or an eighth of the relative fluctuation where that is more."""
LARGEST_STEP = 1e-2
"""Squared step, in errors, up to which a lingering residual is accepted. Doubled: wider cycles count as fixed points."""
AGREEMENT = 5.0
"""Largest difference between the two overlaps, in fluctuations. Doubled: worse predictions of an algorithm's own error pass."""
FLOOR = 1e-5
"""Error, in second moments of the signal, below which a run that falls slowly has recovered it. Doubled: it ends earlier."""
PRECISION = 2e-3
"""The floor for a run that has used all its iterations. Doubled: slower runs pass."""
SWING = 0.125
"""Largest drift over a window, in units of the range there, of a run that fluctuates about a mean. Doubled: more pass."""


class OverlapRule(StoppingRule):
    """A run ends when its residual is below the tolerance, or when its overlaps are stationary.

    Overlaps are stationary when, over ``WINDOW`` iterations, the predicted one changes by less than ``STILL`` of the error and
    the self-overlap by less than a quarter of its finite-size fluctuation; or when a small residual lingers, but the means over
    the two halves of ``LONG_WINDOW`` iterations agree that closely (at small sizes: within an eighth of the relative
    fluctuation) and no component that has been learned still moves by more than ``LARGEST_STEP`` of its own error in one step.
    In both cases the estimate must move by less than half of its self-overlap: a sign that flips every step is no fixed point,
    though both overlaps stand still. Where labels leave a symmetry, nothing ends a run before ``PATIENCE`` iterations while a
    component is predicted no more than chance: the prior mean is then a fixed point, and growth from it starts too small to see.

    A run above perfect recovery ends when its predicted error is below ``FLOOR`` and falls by less than half within ``WINDOW``
    iterations. ``settled`` says whether a run that has used all its iterations is as good as that.

    The end cannot be trusted where predicted overlap and self-overlap differ by more than ``AGREEMENT`` fluctuations, or where
    the data carry 8 times less information than predicted. The second is asked of components above chance only: below weak
    recovery the information is zero but for noise of either sign, and a ratio of two such numbers says nothing.

    Of algorithms that report no overlaps only the residual counts.

    Parameters
    ----------
    problem : ProblemLike
    dimension : int
        D, for the size of the fluctuations.
    """

    def __init__(self, problem: ProblemLike, dimension: int) -> None:
        components = problem.components
        second_moment = np.asarray(problem.prior.second_moment(components))
        self.second = np.diagonal(second_moment)
        size = problem.prior.law.fluctuation
        relative = (2 / dimension) ** 0.5 if size is None else size(dimension)
        self.relative = float(relative)
        self.fluctuation = self.relative * self.second
        self.chance = np.full_like(self.second, -math.inf)
        if problem.channel.symmetry not in (None, "none"):
            mean_overlap = np.asarray(problem.prior.mean_overlap(components))
            self.chance = np.diagonal(mean_overlap) + self.fluctuation
        self.low_rank = problem.model.rank == "low"
        self.history: list[tuple[Host, Host]] = []
        self.latest: Info | None = None

    def watch(self, info: Info) -> None:
        """Record what a step reported, on the host."""
        self.latest = info
        if info.predicted_overlap is not None and info.self_overlap is not None:
            self.history.append((info.predicted_overlap, info.self_overlap))

    def ending(self, tolerance: float) -> str | None:
        """Reason why the run may stop now, or None."""
        info = self.latest
        if info is None:
            return None
        iterations = len(self.history)
        if 0 < iterations < PATIENCE and (self.history[-1][0] <= self.chance).any():
            return None
        if info.residual <= tolerance:
            return f"residual {info.residual:.1e} below tolerance"
        if len(self.history) <= WINDOW or info.squared_step is None:
            return None
        predicted, self_overlap = self._latest(WINDOW + 1)
        if self._flips(info.squared_step):
            return None
        # Near perfect recovery rounding would decide.
        error = np.maximum(self.second - predicted[-1], 1e-5)
        drift = np.ptp(predicted, axis=0)
        self_drift = np.ptp(self_overlap, axis=0)
        quarter = self.fluctuation / 4
        if _steady(drift, self_drift, STILL * error, quarter):
            return f"overlaps stand still for {WINDOW} iterations"
        initial_error = self.second - predicted[0]
        final_error = self.second - predicted[-1]
        slow = (final_error <= initial_error) & (2 * final_error >= initial_error)
        precise = (final_error <= FLOOR * self.second) & (self_drift <= quarter)
        if (slow & precise).all():
            return f"the error falls slowly below a precision of {FLOOR:g}"
        if len(self.history) <= LONG_WINDOW:
            return None
        # Averages can be stationary while the estimate oscillates around a point that it never reaches.
        moves = info.squared_step > LARGEST_STEP * error
        if (moves & (predicted[-1] > self.chance)).any():
            return None
        predicted, self_overlap = self._latest(LONG_WINDOW)
        steady = _steady(
            _drift(predicted),
            _drift(self_overlap),
            self._close(error),
            self.fluctuation / 8,
        )
        if steady and (np.ptp(predicted, axis=0) <= error / 4).all():
            return f"overlaps stand still over {LONG_WINDOW} iterations though a residual of {info.residual:.0e} lingers"
        return None

    def _latest(self, window: int) -> list[Host]:
        """Predicted overlap and self-overlap (window, P) of the latest iterations."""
        return [np.stack(rows) for rows in zip(*self.history[-window:])]

    def _flips(self, squared_step: Host) -> bool:
        """Whether the estimate moves by more than half of its self-overlap: by four times that if a sign flips every step."""
        smallest = np.maximum(self.history[-1][1], self.fluctuation)
        return bool((squared_step > smallest / 2).any())

    def settled(self) -> str | None:
        """Reason why a run that used all its iterations counts as converged, or None.

        Either its error is below ``PRECISION`` and falls, or its overlaps stand still within their own fluctuation: over the
        long window, or for low rank over the second half of the run, where the fluctuation is slow. On matrices a slow
        oscillation means that V is underestimated.
        """
        info = self.latest
        if info is None or info.squared_step is None or len(self.history) < LONG_WINDOW:
            return None
        predicted, _ = self._latest(LONG_WINDOW)
        half = LONG_WINDOW // 2
        errors = self.second - predicted
        last_error = errors[-1]
        falls = (errors[half:].mean(0) < errors[:half].mean(0)).all()
        if falls and (last_error <= PRECISION * self.second).all():
            return f"the error falls, to {last_error.max():.1e} so far: below a precision of {PRECISION:g}"
        if self._flips(info.squared_step):
            return None
        longest = len(self.history) // 2 if self.low_rank else 0
        windows = {LONG_WINDOW, max(LONG_WINDOW, longest)}
        if any(map(self._fluctuates, windows)):
            return "overlaps stand still within their own fluctuation"
        return None

    def _fluctuates(self, window: int) -> bool:
        """Whether the overlaps fluctuate about a constant mean over the latest iterations.

        They range over less than the error (the self-overlap: or its finite-size fluctuation), and the difference of the means
        over the two halves is what may linger, or a small part, ``SWING``, of that range.
        """
        predicted, self_overlap = self._latest(window)
        error = self.second - predicted[-1]
        widest = np.maximum(error, self.fluctuation)
        return _fluctuates_about_mean(
            predicted, self._close(error), error
        ) and _fluctuates_about_mean(self_overlap, self.fluctuation / 8, widest)

    def _close(self, error: Host) -> Host:
        """Largest drift of the predicted overlap (P,) that counts as none while the residual stays above its tolerance."""
        return np.asarray(max(LINGERING, self.relative / 8) * error)

    def complaint(self) -> str | None:
        """Message on how the predicted overlap and the self-overlap disagree, or None if they agree."""
        info = self.latest
        if info is None or info.predicted_overlap is None or info.self_overlap is None:
            return None
        predicted = info.predicted_overlap
        self_overlap = info.self_overlap
        gap = np.abs(predicted - self_overlap) / self.fluctuation
        farthest = int(np.argmax(gap))
        ratio = np.zeros_like(gap)
        if info.log_information_ratio is not None:
            ratio[:] = info.log_information_ratio
        # A component that is predicted no more than chance has no information in the data: the ratio is 0 / 0.
        ratio[predicted <= self.chance] = -math.inf
        overconfident = int(np.argmax(ratio))
        if ratio[overconfident] > math.log(8):
            times = math.exp(min(ratio[overconfident], 50))
            return f"component {overconfident + 1} predicts {times:.2g} times the information in its data"
        if gap[farthest] > AGREEMENT:
            return (
                f"component {farthest + 1} predicts an overlap of {predicted[farthest]:.3g}, "
                f"but its estimate has {self_overlap[farthest]:.3g}"
            )
        return None


def _drift(rows: Host) -> Host:
    """Difference (P,) of the means over the two halves of a window (n, P)."""
    half = len(rows) // 2
    return np.asarray(np.abs(rows[:half].mean(0) - rows[half:].mean(0)))


def _fluctuates_about_mean(rows: Host, close: Host, widest: Host) -> bool:
    """Whether numbers (n, P) range over no more than ``widest``, and drift by no more than ``close`` or part of their range."""
    width = np.ptp(rows, axis=0)
    still = _drift(rows) <= np.maximum(close, SWING * width)
    return bool((still & (width <= widest)).all())


def _steady(
    predicted: Host, self_overlap: Host, close: Host, fluctuation: Host
) -> bool:
    """Whether the changes of both overlaps are at most ``close``, that of the self-overlap or a fluctuation."""
    still = (predicted <= close) & (self_overlap <= np.maximum(close, fluctuation))
    return bool(still.all())
