"""What runs are worth: their errors on the scale of the best first-order method, and the passes over the data that they made.

The floor is the smallest error of a first-order method after k passes (``smimbench.theory.first_order``), and a run is worth
the k at which the floor falls below its error. At dimension D the floor ends at the optimum of that size instead of the limit:
where both are known, its logarithm is multiplied by the ratio of theirs, which leaves the prior mean where it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from smimbench.files import error_line
from smimbench.interfaces import Host, ParameterError
from smimbench.interfaces.algorithm import plan_of
from smimbench.interfaces.problem import placeholder_data
from smimbench.numerics.statistics import quantile
from smimbench.registry.registry import RegistryError
from smimbench.report.row import (
    CLOSED_FORM,
    FITTED,
    LIMIT,
    ZERO,
    OptimalValue,
    Optimum,
    PassesWorth,
    Row,
)
from smimbench.report.statistics import TracedRun, mean_and_error
from smimbench.run.answers import THEORY_ERRORS, Answers, NotStored
from smimbench.suite.cells import Cell, build_algorithm
from smimbench.theory.types import Floor

if TYPE_CHECKING:
    from smimbench.problem.problem import Problem

LEVEL = 0.95
"""Confidence level of the interval of a worth. Nearer to 1, intervals are wider."""
SAME = 1e-3
"""Relative difference from the end of the floor that counts as reaching it. Halved, a worth may be two or three passes larger."""

NOT_STORED = "the best first-order method is not stored; 'smimbench theory' solves it"
FRESH = "it draws fresh samples"
MINIBATCHES = "it learns from minibatches"
UNCOUNTED = "its passes over the data are not counted, as those of a direct method"
STARTED = "the passes of its start are not counted"
OWN_OPTIMUM = "the optimum at this size is fitted to its own runs"
NO_BETTER = "no better than the prior mean"
LESS_THAN_ONE = "less than one pass"
NO_ESTIMATE = "no run has an estimate"


class PassScale(NamedTuple):
    """The floor for an algorithm's runs at one place, of data sets with this number of ``samples``, and the passes that its plan
    states for a step (None: the samples that it counts tell).
    """

    floor: Floor
    samples: int
    passes_per_step: int | None


def pass_scale(
    cell: Cell, problem: Problem, ratio: float, answers: Answers
) -> PassScale | str:
    """Look up in ``answers`` the floor for the runs of a cell's algorithm at the sample ratio ``ratio``; return the reason if
    they cannot be compared with it.
    """
    if cell.run.start != "uninformed":
        return STARTED
    samples = problem.model.sample_count(cell.alpha, cell.dimension)
    shapes = placeholder_data(samples, problem.model.tokens, cell.dimension)
    try:
        plan = plan_of(build_algorithm(cell.algorithm, problem), shapes)
        if plan.draws_fresh:
            return FRESH
        if plan.batch is not None and plan.batch < samples:
            return MINIBATCHES
        if plan.steps == 1 and plan.passes is None:
            return UNCOUNTED  # its only step may hide any number of passes
        floor = answers.floor(problem, ratio)
    except (RegistryError, ParameterError) as error:
        return f"the algorithm is not installed: {error}"
    except NotStored:
        return NOT_STORED
    except THEORY_ERRORS as error:
        return f"theory raised {error_line(error)}"
    return floor if isinstance(floor, str) else PassScale(floor, samples, plan.passes)


def mean_passes(runs: Sequence[TracedRun], scale: PassScale) -> float | None:
    """Return the mean number of passes over the data that runs have made; None if it is not known."""
    passes = [_passes_of(run, scale) for run in runs]
    counted_passes = [count for count in passes if count is not None]
    return float(np.mean(counted_passes)) if counted_passes else None


def _passes_of(run: TracedRun, scale: PassScale) -> float | None:
    """Return the number of passes of a run: the samples that it counted over those of the data set, or its steps times the passes
    of each.
    """
    counted = np.ravel((run.trajectory or {}).get("samples", ()))
    if len(counted) and np.isfinite(counted[-1]):
        return float(counted[-1]) / scale.samples
    if scale.passes_per_step is None or run.record.iterations is None:
        return None
    return float(scale.passes_per_step * run.record.iterations)


class FloorAtSize:
    """Floor of one component at the dimension of runs, relative to the error of the prior mean.

    Parameters
    ----------
    optimal : OptimalValue
        Bayes-optimal error: its limit, and its value at this dimension, in which the floor ends.
    """

    def __init__(self, floor: Floor, component: int, optimal: OptimalValue) -> None:
        """Compute the logarithms of the floor after 0, 1, 2, ... passes."""
        self.prior_error, self.limit_error = floor.mse[[0, -1], component]
        log_floor = np.log(np.maximum(floor.mse[:, component], 1e-300))
        limit, value = optimal.limit, optimal.value
        exponent = 1.0
        # In a hard phase the floor does not end at the optimum.
        if (
            limit
            and value
            and optimal.source != LIMIT
            and value < self.prior_error
            and math.isclose(limit, self.limit_error, rel_tol=SAME)
        ):
            exponent = math.log(value / self.prior_error) / (
                math.log(limit / self.prior_error)
            )
        self.log_floor = exponent * np.minimum.accumulate(log_floor - log_floor[0])
        self.end = int(np.argmax(self.log_floor <= self.log_floor[-1] + SAME))

    def after(self, passes: float) -> float:
        """Return the smallest error after a number of passes."""
        log_error = np.interp(passes, np.arange(len(self.log_floor)), self.log_floor)
        return float(self.prior_error * np.exp(log_error))

    def passes_at(self, log_error: float) -> float:
        """Return the number of passes after which the floor is at an error, given by its logarithm relative to that of the prior
        mean; infinite if the floor ends there or above.
        """
        if log_error <= self.log_floor[self.end]:
            return math.inf
        falling = slice(self.end, None, -1)
        passes = np.arange(len(self.log_floor))
        return float(np.interp(log_error, self.log_floor[falling], passes[falling]))


def with_worth(
    rows: Sequence[Row],
    scale: PassScale | str,
    runs: Sequence[TracedRun],
    optimum: Optimum | None,
) -> list[Row]:
    """Return the rows of one place, those of the squared error with what the ``runs`` are worth; ``optimum`` is the Bayes-optimal
    error at their dimension.
    """
    passes = None if isinstance(scale, str) else mean_passes(runs, scale)
    instance_errors = {} if optimum is None else optimum.instance_errors
    return [
        replace(row, first_order=worth_of_row(row, scale, passes, instance_errors))
        if row.metric == "mse"
        else row
        for row in rows
    ]


def worth_of_row(
    row: Row,
    scale: PassScale | str,
    passes: float | None,
    instance_errors: Mapping[str, Host],
) -> PassesWorth:
    """Compute what the runs of a row are worth, and their distance from the floor after ``passes``. Where the optimum at their
    dimension is the mean of ``instance_errors`` (P,), those of other runs, instances are compared in pairs.
    """
    optimal = row.optimum
    component = (row.component or 1) - 1
    errors = {name: error for name, error in row.estimate.values.items() if error > 0}
    if isinstance(scale, str):
        return PassesWorth(reason=scale)
    if passes is None or not errors:
        return PassesWorth(reason=UNCOUNTED if errors else NO_ESTIMATE)
    floor = scale.floor
    limit = float(floor.after(passes, component))
    end = float(floor.mse[-1, component])
    end_error = float(floor.mse_error[component])
    theory_error = end_error / max(end, end_error, 1e-300)
    has_better_branch = optimal.limit is not None and optimal.limit < (1 - SAME) * end
    floor_error = None if has_better_branch else limit * theory_error
    worth = PassesWorth(passes, limit, floor_error, floor.is_proven)
    if row.is_fitted_to_itself:
        return replace(worth, reason=OWN_OPTIMUM)
    at_size = FloorAtSize(floor, component, optimal)
    logs = {
        name: math.log(error / at_size.prior_error) for name, error in errors.items()
    }
    mean = math.fsum(logs.values()) / len(logs)
    # An error as large as the prior mean's does not depend on the optimum, one at the optimum moves with it.
    share = min(max(mean / at_size.log_floor[-1], 0.0), 1.0)
    error = theory_error
    optima = {name: float(instance_errors[name][component]) for name in instance_errors}
    are_other_runs = optimal.source.startswith(FITTED) or (
        optimal.source == CLOSED_FORM and optima.items() != errors.items()
    )
    if optimal.value and are_other_runs:
        for name in logs.keys() & optima.keys():
            logs[name] -= share * math.log(max(optima[name], 1e-300) / optimal.value)
        mean = math.fsum(logs.values()) / len(logs)
    elif optimal.value and optimal.error:
        error = math.hypot(error, share * optimal.error / optimal.value)
    worth_passes = at_size.passes_at(mean)
    sem = mean_and_error(np.array([*logs.values()])).sem
    interval = None
    if sem is not None:
        half_width = quantile((1 + LEVEL) / 2, len(logs) - 1) * math.hypot(sem, error)
        ends = [at_size.passes_at(mean + half_width * sign) for sign in (1, -1)]
        interval = [end if math.isfinite(end) else None for end in ends]
    remark = None
    if worth_passes < 1:
        remark = LESS_THAN_ONE if worth_passes else NO_BETTER
    elif not math.isfinite(worth_passes):
        remark = f"{at_size.end} or more"
    floor_at_size, ratio = at_size.after(passes), None
    if floor_at_size > ZERO * row.target:
        ratio = float(np.mean([*errors.values()])) / floor_at_size
    return replace(
        worth,
        ratio=ratio,
        worth=worth_passes if math.isfinite(worth_passes) else None,
        interval=interval,
        remark=remark,
    )
