"""Time of state evolution: a single point from nothing, and each further point of a curve."""

import numpy as np

from smimbench.problem.problem import Problem
from smimbench.run.theory_solver import TheorySolver

from .cases import Case, Timed, problems

POINTS = 32


class StateEvolution(Timed):
    """Points of a Bayes-optimal curve; every call begins with a problem that nothing is remembered of."""

    params = (problems(),)
    param_names = ("problem",)
    timeout = 600
    repeat = (2, 10, 5.0)

    def setup(self, problem):
        self.case = Case(problem)
        if self.case.problem.components > 1:
            raise NotImplementedError(
                "curves of several components take minutes; they are followed by the suites"
            )

    def _fresh(self):
        spec = self.case.problem.spec
        tables = []
        for kind in ("model", "channel", "prior"):
            table = {
                k: v
                for k, v in spec[kind].items()
                if k not in ("version", "distribution")
            }
            if "distribution" in spec[kind]:
                table["name"] = f"{spec[kind]['distribution']}:{table['name']}"
            tables.append(table)
        return Problem(*tables)

    def time_point(self, problem):
        """One sample ratio."""
        TheorySolver().points(self._fresh(), [self.case.alpha])

    def time_curve_of_32_points(self, problem):
        """The curve from a quarter to twice that sample ratio."""
        TheorySolver().points(
            self._fresh(), list(self.case.alpha * np.linspace(0.25, 2.0, POINTS))
        )


class CorrelatedProbit(Timed):
    """Noisy signs of two correlated tokens: each iteration of state evolution is an integral over two margins."""

    timeout = 300
    repeat = (2, 5, 10.0)

    def time_point(self):
        """One sample ratio, of a problem that nothing is remembered of."""
        problem = Problem(
            {"name": "sequence-multi-index", "tokens": 2},
            {"name": "probit", "noise": 0.5},
            {"name": "gaussian"},
            {"name": "correlated-tokens", "decay": 0.7},
        )
        TheorySolver().points(problem, [1.0])
