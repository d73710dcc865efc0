"""Computes the Bayes-optimal error at finite dimension, from posterior chains: ``python tools/optimum.py SUITE PROBLEM``.

Prints the ``[[optimum]]`` tables of a problem of a suite, one for each dimension. It needs the package smimbench-samplers, and
a prior whose factor has Gaussian entries.

The error of the posterior mean m of an instance is estimated without bias by ``(S - a) . (S - b)`` with the signal S and the
means a and b of two independent groups of chains. It scatters between instances as that of gamp does, so the ratio of the two
on a few instances, times the mean error of gamp on many, has a small error.

Labels without noise have no density that chains can follow. Their latents get noise of the variances s and 2 s, the same
random numbers for both; every error e, that of gamp too, is extrapolated to ``2 e(s) - e(2 s)``. What is left is of order s^2
and large (12% of the error at alpha = 0.1), but it cancels in the ratio, which does not depend on s: for softmax labels at
d = 40, alpha = 0.1 it is 0.995(10), 0.997(8), 0.997(5) and 0.997(3) on 14 instances with s = 0.025, 0.05, 0.1 and 0.2.
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from smimbench_samplers.hmc import Hmc

import smimbench
from smimbench.backend.device import get_backend
from smimbench.derive import is_noisy
from smimbench.interfaces import Posterior
from smimbench.interfaces.item import Delegate
from smimbench.run.cell import run_cell
from smimbench.run.loop import run_algorithm

if TYPE_CHECKING:
    from smimbench.interfaces import Algorithm, Array
    from smimbench.problem import Instance, Problem
    from smimbench.suite.cells import Cell

LEAPFROG = 10
"""Steps of a trajectory."""
CHAINS = 4
"""Chains of a run, in two groups."""
MIXED = 1.2
"""Largest R-hat of a run that counts: what is left of the start is then small against the posterior's width."""
LATENT_NOISE = 0.1
"""Smaller variance s of the noise on the latents of labels without noise. Halved, chains mix more slowly."""


@dataclass(frozen=True)
class NoisyLatents(Delegate):
    """Channel whose labels are those of ``z + xi``, with noise xi of the variance ``noise`` on every latent z.

    Given a label, z + xi has the posterior of the ``channel`` under the prior covariance ``V + noise``; z follows linearly.
    """

    channel: Any
    noise: float

    _wrapped_attribute = "channel"
    log_likelihood = None

    def forward(self, z: Array, *, rng: np.random.Generator) -> Array:
        """Draw the labels of the latents z (n, P, C), with noise."""
        xi = math.sqrt(self.noise) * rng.standard_normal(z.shape)
        return self.channel.forward(z + xi, rng=rng)

    def log_partition(self, y: Array, omega: Array, V: Array) -> Array:
        """Compute the log-density (n,) of the labels y for ``z ~ N(omega, V)``."""
        return self.channel.log_partition(y, omega, self._widened(V))

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        rng: np.random.Generator | None = None,
    ) -> Posterior:
        """Compute the posterior of the latents given the labels y, for ``z ~ N(omega, V)``."""
        noisy = self.channel.posterior(y, omega, self._widened(V), rng=rng)
        shrinkage = np.linalg.solve(self._widened(V), V).T
        mean = omega + shrinkage @ (noisy.mean - omega)
        known = self._widened(V) - noisy.covariance
        return Posterior(mean, V - shrinkage @ known @ shrinkage.T)

    def _widened(self, V: Array) -> Array:
        """Return the covariance (P, P) of the latents with noise."""
        return V + self.noise * np.eye(len(V))


def posterior_error(
    problem: Problem, instance: Instance, steps: int, rng: np.random.Generator
) -> float:
    """Estimate the Bayes-optimal mean squared error on an instance from posterior means of HMC chains of this many steps,
    without bias by two halves of the chains; NaN if they have not mixed.
    """
    data = instance.data(get_backend("numpy"))
    chains = Hmc(samples=CHAINS, steps=steps, leapfrog=LEAPFROG)
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


def paired_errors(cell: Cell, steps: int) -> np.ndarray[Any, Any]:
    """Compute the errors (2,) of the posterior mean and of GAMP on the instance of a cell; for labels without noise, those
    extrapolated from noise on the latents.
    """
    problem, gamp = cell.rebuild()
    probe = np.ones((2, problem.components, problem.model.sites))
    if is_noisy(problem.channel, probe):
        return _errors(problem, gamp, cell, steps)
    channel, errors = problem.channel, []
    for noise in (LATENT_NOISE, 2 * LATENT_NOISE):
        problem.channel = cast("Any", NoisyLatents(channel, noise))
        errors.append(_errors(problem, gamp, cell, steps))
    return 2 * errors[0] - errors[1]


def _errors(
    problem: Problem, gamp: Algorithm, cell: Cell, steps: int
) -> np.ndarray[Any, Any]:
    """Compute the errors (2,) of the posterior mean and of GAMP on the instance of a cell, of a problem that may differ from
    the cell's by noise.
    """
    instance = problem.instance(
        cell.alpha, cell.dimension, cell.replicate, seed=cell.seed
    )
    backend = get_backend("numpy")

    def rng(*_: int) -> np.random.Generator:
        return np.random.default_rng([cell.dimension, cell.seed, cell.replicate])

    run = run_algorithm(
        problem, instance, instance.data(backend), gamp, rng, cell.run, backend
    )
    return np.array(
        [posterior_error(problem, instance, steps, rng()), run.metrics["mse"][0]]
    )


def main() -> None:
    """Print the ``[[optimum]]`` tables of a suite for one problem, and the errors of every instance with chains to stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite")
    parser.add_argument("problem")
    parser.add_argument("--only", action="append", default=[], help="dimension=80")
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--chains", type=int, default=8, help="instances with chains")
    parser.add_argument("--steps", type=int, default=4000)
    options = parser.parse_args()
    suite = smimbench.load_suite(
        options.suite,
        [f"grid.seeds={options.seeds}"],
        only=[f"problem={options.problem}", "algorithm=gamp", *options.only],
    )
    places: dict[tuple[int, float], list[Cell]] = {}
    for cell in suite.cells("numpy"):
        places.setdefault((cell.dimension, cell.alpha), []).append(cell)
    items = next(iter(places.values()))[0].problem
    problem = _inline({kind: dict(item) for kind, item in items.items()})
    command = shlex.join(["python", "tools/optimum.py", *sys.argv[1:]])
    for dimension in sorted({dimension for dimension, _ in places}):
        alphas = [alpha for size, alpha in sorted(places) if size == dimension]
        errors = [
            _mean_and_error(places[dimension, alpha], options) for alpha in alphas
        ]
        print(  # noqa: T201
            f"[[optimum]]\nproblem   = {problem}\ndimension = {dimension}\nalpha     = {alphas}\n"
            f"mse       = {[mean for mean, _ in errors]}\nerror     = {[error for _, error in errors]}\n"
            f'source    = "sampled"\ncommand   = "{command}"\n',
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
    errors = []
    for cell in cells[: options.chains]:
        errors.append(paired_errors(cell, options.steps))
        print(cell.dimension, cell.alpha, *errors[-1], file=sys.stderr, flush=True)  # noqa: T201
    optimal, paired = np.transpose(errors)
    is_mixed = np.isfinite(optimal)
    if is_mixed.sum() < 2:
        raise SystemExit(
            f"fewer than two instances have mixed chains at alpha {cells[0].alpha}, dimension {cells[0].dimension}: raise --steps"
        )
    gamp = np.array([run_cell(cell).metrics["mse"][0] for cell in cells])
    gamp_of_mixed = paired[is_mixed]
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
