"""``start = "both"``: every run once more from an informed start, and which of the two ends at the lower free energy.

The informed run knows the teacher and is no contender: where it ends at a smaller error and a lower free energy, the posterior
lies there, and the run from an uninformed start, which ends above, is stuck at a fixed point that only an algorithm reaches.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.run.loop import Status

if TYPE_CHECKING:
    from smimbench.problem.instance import Instance
    from smimbench.problem.problem import Problem
    from smimbench.run.loop import Attempt

__all__ = ["BESIDE_OVERLAP", "LEAST_ODDS", "compared_starts"]

BESIDE_OVERLAP = 0.999
"""Overlap with the teacher of the informed run. Nearer to 1 small basins are found, too, as that of perfect recovery just above
its threshold, and the way to other fixed points is some iterations longer."""

LEAST_ODDS = math.log(100)
"""Logarithm of the odds from which on one fixed point has the posterior. Doubled: needs a free energy lower by twice as much."""


STANDING = 0.5
"""Residual up to which a run counts as standing at a fixed point, where alone its free entropy means something. Doubled: those of
runs on their way to perfect recovery, which may be anything, would count."""

RECOVERED = 1e-4
"""Error, in second moments, below which a run that does not stand is on its way to perfect recovery. Doubled: it counts as that
some iterations earlier."""


def compared_starts(problem: Problem, instance: Instance, uninformed: Attempt, informed: Attempt) -> dict[str, Any]:
    """What a record keeps of the informed run under ``informed``.

    ``log_odds`` is the logarithm of the posterior weight of its fixed point over that of the uninformed run, from their free
    entropies; None where one of them is not known or does not stand still. ``recovers`` says that it is on its way to perfect
    recovery, where its free energy falls without bound, as the error does. ``ahead``: its error is smaller, and the odds are
    large or have no bound.
    """
    size = instance.inputs.shape[0] / instance.sample_ratio / problem.model.kappa
    before, after = (_entropy(attempt) for attempt in (uninformed, informed))
    odds = None if before is None or after is None else size * (after - before)
    second = np.trace(np.asarray(problem.prior.second_moment(problem.components)))
    own, other = (sum(attempt.metrics.get("mse") or [math.nan]) for attempt in (uninformed, informed))
    sound = informed.status is not Status.DIVERGED
    moving = after is None and informed.final.get("residual", math.inf) > STANDING
    recovers = bool(sound and moving and other < RECOVERED * second)
    return {
        "status": informed.status.value,
        "reason": informed.reason,
        "iterations": informed.iterations,
        "seconds": informed.seconds,
        "metrics": informed.metrics,
        "log_odds": odds,
        "recovers": recovers,
        "ahead": bool(sound and other < own and (own > RECOVERED * second if recovers else (odds or 0.0) > LEAST_ODDS)),
    }


def _entropy(attempt: Attempt) -> float | None:
    """Free entropy where the attempt ended, if it stands there."""
    found = attempt.final.get("free_entropy")
    return float(found[0]) if found and attempt.final["residual"] <= STANDING else None
