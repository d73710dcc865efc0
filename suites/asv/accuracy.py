"""The error of a run relative to theory. asv takes smaller for better, and here it is."""

import numpy as np

from smimbench.backend.arrays import to_host
from smimbench.run.theory_solver import TheorySolver

from .cases import SEEDS, STEPS, Case, problems


def _errors(case):
    """Mean squared errors (replicates, components) of GAMP after a fixed number of steps."""
    errors = []
    item = case.algorithm("gamp")
    for replicate in range(SEEDS):
        instance, data = case.data(replicate)
        state = item.init(case.problem, data, np.random.default_rng(replicate))
        for _ in range(STEPS):
            state, _ = item.step(case.problem, data, state)
        errors.append(instance.metrics(to_host(item.estimate(state)))["mse"])
    return np.array(errors)


class Accuracy:
    """GAMP after 40 steps on four instances, against state evolution at the sample ratio really used."""

    params = (problems(),)
    param_names = ("problem",)
    timeout = 900

    def setup_cache(self):
        """Errors and theory of every problem, computed once for the two tracks."""
        accuracy = {}
        for name in self.params[0]:
            try:
                case = Case(name)
                if case.problem.components > 1:
                    continue
                n = case.problem.model.sample_count(case.alpha, case.dimension)
                ratio = case.problem.model.sample_ratio(n, case.dimension)
                point = TheorySolver().points(case.problem, [ratio])[0][0]
                errors = _errors(case)[:, 0]
            except Exception:  # the track is blank for what this commit cannot do
                continue
            accuracy[name] = (float(point.mse[0]), float(point.mse_error[0]), errors)
        return accuracy

    setup_cache.timeout = 1800

    def setup(self, accuracy, problem):
        if problem not in accuracy:
            raise NotImplementedError("no theory or no run at this commit")

    def track_error_over_theory(self, accuracy, problem):
        """Mean error over the Bayes-optimal one; blank where theory says 0."""
        theory, _, errors = accuracy[problem]
        return float(np.mean(errors) / theory) if theory > 1e-6 else np.nan

    track_error_over_theory.unit = "times the Bayes-optimal error (smaller is better)"

    def track_absolute_z(self, accuracy, problem):
        """Distance of the mean error from theory in standard errors of both."""
        theory, error, errors = accuracy[problem]
        spread = np.hypot(np.std(errors, ddof=1) / np.sqrt(len(errors)), error)
        return (
            float(abs(np.mean(errors) - theory) / spread)
            if theory > 1e-6 and spread > 0
            else np.nan
        )

    track_absolute_z.unit = "standard errors (smaller is better)"
