"""The default stopping rule: stop when the residual is small, or when the predicted overlap and the self-overlap are stationary
and agree.

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
"""Iterations over which both overlaps must be stationary. Doubled: every run that ends so is longer by as many."""
LONG_WINDOW = 40
"""Iterations whose halves are compared while the residual exceeds its tolerance. Doubled: slower drifts are seen, longer runs."""
PATIENCE = 100
"""Iterations before which no run ends while a component is not above chance. Doubled: slower growth is waited for."""
LARGEST_DRIFT = 1e-3
"""Largest change of the predicted overlap in the window, in units of the error. Doubled: ends farther from the fixed point."""
LARGEST_LONG_DRIFT = 5e-3
"""Largest difference between the means over the two halves of the long window, in units of the error; an eighth of
the relative fluctuation where that is more."""
LARGEST_STEP = 1e-2
"""Largest squared step, in units of the error, of a run that ends above its tolerance. Doubled: wider cycles pass."""
LARGEST_GAP = 5.0
"""Largest difference between the two overlaps, in fluctuations. Doubled: worse predictions of an algorithm's own error pass."""
RECOVERED_ERROR = 1e-5
"""Error, in second moments of the signal, below which a run that falls slowly has recovered it. Doubled: it ends earlier."""
FINAL_PRECISION = 2e-3
"""Error below which a run that has used all its iterations has recovered the signal. Doubled: slower runs pass."""
DRIFT_SHARE = 0.125
"""Largest drift over a window, in units of the range there, of a run that fluctuates about a mean. Doubled: more pass."""


class OverlapRule(StoppingRule):
    """Default stopping rule: a run ends when its residual is below the tolerance, or when its overlaps (that predicted by the
    algorithm, and that of the estimate with itself) no longer drift.

    Overlaps are stationary when, over ``WINDOW`` iterations, the predicted one changes by less than ``LARGEST_DRIFT`` of the
    error and the self-overlap by less than a quarter of its finite-size fluctuation; or when a small residual lingers, but
    the means over the two halves of ``LONG_WINDOW`` iterations agree that closely (at small sizes: within an eighth of the
    relative fluctuation) and no component that has been learned still moves by more than ``LARGEST_STEP`` of its own error in
    one step. In both cases the estimate must move by less than half of its self-overlap: a sign that flips every step is no
    fixed point, though both overlaps stand still. Where labels leave a symmetry, nothing ends a run before ``PATIENCE``
    iterations while a component is predicted no more than chance: the prior mean is then a fixed point, and growth from it
    starts too small to see.

    A run above perfect recovery ends when its predicted error is below ``RECOVERED_ERROR`` and falls by less than half within
    ``WINDOW`` iterations. ``settled`` says whether a run that has used all its iterations is as good as that.

    The end cannot be trusted where predicted overlap and self-overlap differ by more than ``LARGEST_GAP`` fluctuations, or where
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
        """Compute the second moment of the signal, the ``fluctuation`` (standard deviation) of overlaps at this dimension, and
        ``chance``, the largest overlap (P,) that an estimate without knowledge reaches.
        """
        components = problem.components
        second_moment = np.asarray(problem.prior.second_moment(components))
        self.second_moment = np.diagonal(second_moment)
        fluctuation_at = problem.prior.law.fluctuation
        relative_fluctuation = (
            (2 / dimension) ** 0.5
            if fluctuation_at is None
            else fluctuation_at(dimension)
        )
        self.relative = float(relative_fluctuation)
        self.fluctuation = self.relative * self.second_moment
        self.chance = np.full_like(self.second_moment, -math.inf)
        if problem.channel.symmetry not in (None, "none"):
            mean_overlap = np.asarray(problem.prior.mean_overlap(components))
            self.chance = np.diagonal(mean_overlap) + self.fluctuation
        self.low_rank = problem.model.rank == "low"
        self.history: list[Host] = []  # overlaps (2, P), predicted and of the estimate
        self.latest: Info | None = None

    def watch(self, info: Info) -> None:
        """Record what the latest iteration reported: residual, overlaps and step size. ``info`` is the report that the step
        returned.
        """
        self.latest = info
        if info.predicted_overlap is not None and info.self_overlap is not None:
            self.history.append(np.array((info.predicted_overlap, info.self_overlap)))

    def ending(self, tolerance: float) -> str | None:
        """Reason why the run may stop now, or None; judged by the residual against ``tolerance``, and by the drift of predicted
        overlap and self-overlap (P,) over a window of iterations.
        """
        info = self.latest
        if info is None:
            return None
        iterations = len(self.history)
        if 0 < iterations < PATIENCE and any(self.history[-1][0] <= self.chance):
            return None
        if info.residual <= tolerance:
            return (
                f"the residual {info.residual:.1e} is below the tolerance {tolerance:g}"
            )
        if len(self.history) <= WINDOW or info.squared_step is None:
            return None
        if self._sign_flips(info.squared_step):
            return None
        overlaps = self._latest(WINDOW + 1)
        predicted_drift, self_drift = np.ptp(overlaps, axis=1)
        initial_error = self.second_moment - overlaps[0, 0]
        final_error = self.second_moment - overlaps[0, -1]
        # Near perfect recovery rounding would decide.
        predicted_error = np.maximum(final_error, 1e-5)
        allowed_self_drift = self.fluctuation / 4
        if _steady(
            predicted_drift,
            self_drift,
            LARGEST_DRIFT * predicted_error,
            allowed_self_drift,
        ):
            return f"the overlaps have been stationary for {WINDOW} iterations"
        error_falls_slowly = (final_error <= initial_error) & (
            2 * final_error >= initial_error
        )
        signal_is_recovered = (final_error <= RECOVERED_ERROR * self.second_moment) & (
            self_drift <= allowed_self_drift
        )
        if all(error_falls_slowly & signal_is_recovered):
            return (
                f"the error is below the precision {RECOVERED_ERROR:g} and falls slowly"
            )
        if len(self.history) <= LONG_WINDOW:
            return None
        # Averages can be stationary while the estimate oscillates around a point that it never reaches.
        estimate_still_moves = info.squared_step > LARGEST_STEP * predicted_error
        if any(estimate_still_moves & (overlaps[0, -1] > self.chance)):
            return None
        predicted_overlaps, self_overlaps = self._latest(LONG_WINDOW)
        is_stationary = _steady(
            _drift(predicted_overlaps),
            _drift(self_overlaps),
            self._allowed_drift(predicted_error),
            self.fluctuation / 8,
        )
        if (
            is_stationary
            and (np.ptp(predicted_overlaps, axis=0) <= predicted_error / 4).all()
        ):
            return (
                f"the overlaps have been stationary for {LONG_WINDOW} iterations, "
                f"though the residual is still {info.residual:.0e}"
            )
        return None

    def _latest(self, window: int) -> Host:
        """Predicted overlaps and self-overlaps (2, window, P) of the latest ``window`` iterations."""
        return np.array(self.history[-window:]).swapaxes(0, 1)

    def _sign_flips(self, squared_step: Host) -> bool:
        """Whether the estimate's squared step (P,) exceeds half of its squared norm (self-overlap), as it does if its sign flips
        every step.
        """
        self_overlap = np.maximum(self.history[-1][1], self.fluctuation)
        return any(squared_step > self_overlap / 2)

    def settled(self) -> str | None:
        """Reason why a run that used all its iterations counts as converged, or None: its predicted error is tiny and falls, or
        predicted overlap and self-overlap fluctuate about a constant mean over one of the ``tested_windows`` of iterations.

        Either its error is below ``FINAL_PRECISION`` and falls, or its overlaps stand still within their own fluctuation:
        over the long window, or for low rank over the second half of the run, where the fluctuation is slow. On matrices a
        slow oscillation means that V is underestimated.
        """
        info = self.latest
        if info is None or info.squared_step is None or len(self.history) < LONG_WINDOW:
            return None
        predicted_overlaps, _ = self._latest(LONG_WINDOW)
        half_window = LONG_WINDOW // 2
        predicted_errors = self.second_moment - predicted_overlaps
        last_predicted_error = predicted_errors[-1]
        error_falls = (
            predicted_errors[half_window:].mean(0)
            < predicted_errors[:half_window].mean(0)
        ).all()
        if (
            error_falls
            and (last_predicted_error <= FINAL_PRECISION * self.second_moment).all()
        ):
            return f"the error has fallen to {last_predicted_error.max():.1e}, below the precision {FINAL_PRECISION:g}"
        if self._sign_flips(info.squared_step):
            return None
        longest_window = len(self.history) // 2 if self.low_rank else 0
        tested_windows = {LONG_WINDOW, max(LONG_WINDOW, longest_window)}
        if any(map(self._fluctuates, tested_windows)):
            return "the overlaps fluctuate about a constant mean"
        return None

    def _fluctuates(self, window: int) -> bool:
        """Whether predicted overlap and self-overlap fluctuate about a constant mean (no drift) over the latest ``window``
        iterations.

        They range over less than the error (the self-overlap: or its finite-size fluctuation), and the difference of the means
        over the two halves is what may linger, or a small part, ``DRIFT_SHARE``, of that range.
        """
        predicted_overlaps, self_overlaps = self._latest(window)
        predicted_error = self.second_moment - predicted_overlaps[-1]
        largest_range = np.maximum(predicted_error, self.fluctuation)
        return _fluctuates_about_mean(
            predicted_overlaps, self._allowed_drift(predicted_error), predicted_error
        ) and _fluctuates_about_mean(self_overlaps, self.fluctuation / 8, largest_range)

    def _allowed_drift(self, error: Host) -> Host:
        """Largest drift (P,) of the predicted overlap that counts as none while the residual is above its tolerance; ``error``
        (P,) is the predicted error.
        """
        return np.asarray(max(LARGEST_LONG_DRIFT, self.relative / 8) * error)

    def complaint(self) -> str | None:
        """Message on how the predicted overlap and the self-overlap disagree, or None if they agree."""
        info = self.latest
        if info is None or info.predicted_overlap is None or info.self_overlap is None:
            return None
        predicted_overlap = info.predicted_overlap
        self_overlap = info.self_overlap
        overlap_gap = np.abs(predicted_overlap - self_overlap) / self.fluctuation
        worst_component = int(np.argmax(overlap_gap))
        log_information_ratio = np.zeros_like(overlap_gap)
        if info.log_information_ratio is not None:
            log_information_ratio[:] = info.log_information_ratio
        # A component that is predicted no more than chance has no information in the data: the ratio is 0 / 0.
        log_information_ratio[predicted_overlap <= self.chance] = -math.inf
        overconfident_component = int(np.argmax(log_information_ratio))
        if log_information_ratio[overconfident_component] > math.log(8):
            information_factor = math.exp(
                min(log_information_ratio[overconfident_component], 50)
            )
            return (
                f"component {overconfident_component + 1}: "
                f"the predicted information is {information_factor:.2g} times that in the data"
            )
        if overlap_gap[worst_component] > LARGEST_GAP:
            return (
                f"component {worst_component + 1}: the predicted overlap is {predicted_overlap[worst_component]:.3g}, "
                f"but the overlap of the estimate with itself is {self_overlap[worst_component]:.3g}"
            )
        return None


def _drift(overlaps: Host) -> Host:
    """Absolute difference (P,) between the means of overlaps (n, P) over the first and the second half of n iterations."""
    half_length = len(overlaps) // 2
    return np.asarray(
        np.abs(overlaps[:half_length].mean(0) - overlaps[half_length:].mean(0))
    )


def _fluctuates_about_mean(
    overlaps: Host, allowed_drift: Host, largest_range: Host
) -> bool:
    """Whether overlaps (n, P) of n iterations stay within ``largest_range`` and drift by at most ``allowed_drift`` or a share
    of their range; all bounds are (P,).
    """
    overlap_range = np.ptp(overlaps, axis=0)
    has_small_drift = _drift(overlaps) <= np.maximum(
        allowed_drift, DRIFT_SHARE * overlap_range
    )
    return bool((has_small_drift & (overlap_range <= largest_range)).all())


def _steady(
    drift: Host, self_drift: Host, allowed_drift: Host, fluctuation: Host
) -> bool:
    """Whether, over a window of iterations, the predicted overlap drifts by at most ``allowed_drift``, and the self-overlap
    (``self_drift``) by at most that or ``fluctuation``; all are (P,).
    """
    has_small_drift = (drift <= allowed_drift) & (
        self_drift <= np.maximum(allowed_drift, fluctuation)
    )
    return all(has_small_drift)
