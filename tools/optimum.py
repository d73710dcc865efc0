"""Computes the Bayes-optimal error at finite dimension, from posterior chains: ``python tools/optimum.py SUITE PROBLEM``.

Prints the ``[[optimum]]`` tables of a problem of a suite, one for each dimension. It needs the package smimbench-samplers,
labels with noise, and a prior whose factor has Gaussian entries.

The error of the posterior mean m of an instance is estimated without bias by ``(S - a) . (S - b)`` with the signal S and the
means a and b of two independent groups of chains. It scatters between instances as that of gamp does, so the ratio of the two
on a few instances, times the mean error of gamp on many, has a small error.
"""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from smimbench_samplers.hmc import Hmc

import smimbench
from smimbench.backend.device import get_backend
from smimbench.run.cell import run_cell

if TYPE_CHECKING:
    from smimbench.suite.cells import Cell

CHAINS, LEAPFROG = 4, 10
"""Chains of a run, in two groups, and steps of a trajectory."""
MIXED = 1.2
"""Largest R-hat of a run that counts: what is left of the start is then small against the posterior's width."""


def posterior_error(cell: Cell, steps: int) -> float:
    """Estimate the Bayes-optimal mean squared error on the instance of a cell from posterior means of HMC chains of this
    many steps, without bias by two halves of the chains; NaN if they have not mixed.
    """
    problem, _ = cell.rebuild()
    instance = problem.instance(
        cell.alpha, cell.dimension, cell.replicate, seed=cell.seed
    )
    data = instance.data(get_backend("numpy"))
    chains = Hmc(samples=CHAINS, steps=steps, leapfrog=LEAPFROG)
    rng = np.random.default_rng([cell.dimension, cell.seed, cell.replicate])
    state: Any = chains.init(problem, data, rng)
    mean_sum, count = 0.0, 0
    for step in range(1, steps + 1):
        state, _ = chains.step(problem, data, state)
        if step > steps // 2 and step % LEAPFROG == 0:
            mean_sum, count = (
                mean_sum + state.target.factor.compose(state.factor),
                count + 1,
            )
    if state.r_hat > MIXED:
        return math.nan
    means: Any = np.asarray(mean_sum) / count
    half = CHAINS // 2
    error_of_first_half = instance.signal - means[:half].mean(axis=0)
    error_of_second_half = instance.signal - means[half:].mean(axis=0)
    error_of_all = instance.signal - means.mean(axis=0)
    # The metric's normalization, from the estimate that it measures.
    mse = instance.measure(["mse"], means.mean(axis=0), None).values["mse"][0]
    return float(
        mse
        * np.sum(error_of_first_half * error_of_second_half)
        / np.sum(error_of_all**2)
    )


def gamp_error(cell: Cell) -> float:
    """Return the mean squared error of a run of GAMP on the instance of a cell."""
    return run_cell(cell).metrics["mse"][0]


def main() -> None:
    """Print the ``[[optimum]]`` tables of a suite for one problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite")
    parser.add_argument("problem")
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--chains", type=int, default=8, help="instances with chains")
    parser.add_argument("--steps", type=int, default=4000)
    options = parser.parse_args()
    suite = smimbench.load_suite(
        options.suite,
        [f"grid.seeds={options.seeds}"],
        only=[f"problem={options.problem}", "algorithm=gamp"],
    )
    places: dict[tuple[int, float], list[Cell]] = {}
    for cell in suite.cells("numpy"):
        places.setdefault((cell.dimension, cell.alpha), []).append(cell)
    items = next(iter(places.values()))[0].problem
    problem = _inline({kind: dict(item) for kind, item in items.items()})
    for dimension in sorted({dimension for dimension, _ in places}):
        alphas = [alpha for size, alpha in sorted(places) if size == dimension]
        errors = [
            _mean_and_error(places[dimension, alpha], options) for alpha in alphas
        ]
        print(  # noqa: T201
            f"[[optimum]]\nproblem   = {problem}\ndimension = {dimension}\nalpha     = {alphas}\n"
            f"mse       = {[mean for mean, _ in errors]}\nerror     = {[error for _, error in errors]}\n"
            f'source    = "sampled"\ncommand   = "python tools/optimum.py {options.suite} {options.problem}"\n',
            flush=True,
        )


def _inline(value: Any) -> str:
    """Write a value as TOML on one line, without versions of items."""
    if isinstance(value, dict):
        entries = [
            f"{key} = {_inline(entry)}"
            for key, entry in value.items()
            if key != "version"
        ]
        return "{ " + ", ".join(entries) + " }"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _mean_and_error(
    cells: list[Cell], options: argparse.Namespace
) -> tuple[float, float]:
    """Estimate the Bayes-optimal error at one sample ratio and dimension, and its standard error: the mean error of GAMP
    (control variate) on all cells times the ratio of optimal and GAMP's errors on those with chains.
    """
    gamp = np.array([gamp_error(cell) for cell in cells])
    optimal = np.array(
        [posterior_error(cell, options.steps) for cell in cells[: options.chains]]
    )
    is_mixed = np.isfinite(optimal)
    if is_mixed.sum() < 2:
        raise SystemExit(
            f"fewer than two instances have mixed chains at alpha {cells[0].alpha}, dimension {cells[0].dimension}: raise --steps"
        )
    gamp_of_mixed = gamp[: options.chains][is_mixed]
    ratio = optimal[is_mixed].mean() / gamp_of_mixed.mean()
    residuals = optimal[is_mixed] - ratio * gamp_of_mixed
    ratio_error = (
        residuals.std(ddof=1) / math.sqrt(is_mixed.sum()) / gamp_of_mixed.mean()
    )
    mean = gamp.mean()
    error = math.hypot(
        ratio * gamp.std(ddof=1) / math.sqrt(len(gamp)), mean * ratio_error
    )
    return round(float(ratio * mean), 5), round(float(error), 5)


if __name__ == "__main__":
    main()
