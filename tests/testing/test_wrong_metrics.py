"""Every check of a metric fails for a metric that breaks what it checks, and for no other reason."""

from __future__ import annotations

import math

import numpy as np
import pytest
from smimbench_metrics.mse import MSE

from smimbench.interfaces import NotMeasured
from smimbench.testing.catalogue import all_checks, contexts
from smimbench.testing.core import run_check


def outcomes(metric):
    (subject,) = contexts(metric)
    return {check.id: run_check(check, subject) for check in all_checks("metric")}


class OneNumber(MSE):
    def measure(self, instance, estimate, claims):
        return [*super().measure(instance, estimate, claims), 0.0]


class Endless(MSE):
    def measure(self, instance, estimate, claims):
        return [math.inf for _ in estimate]


class Writes(MSE):
    def measure(self, instance, estimate, claims):
        estimate *= 0
        return super().measure(instance, estimate, claims)


class Silent(MSE):
    def measure(self, instance, estimate, claims):
        raise NotMeasured


class Raw(MSE):
    """Forgets to remove the symmetry."""

    def measure(self, instance, estimate, claims):
        return [float(np.mean((a - b) ** 2)) for a, b in zip(instance.signal, estimate)]


class Backwards(MSE):
    direction = "higher"


class Short(MSE):
    def theory(self, problem, point):
        return [], []


class Infinite(MSE):
    def theory(self, problem, point):
        return [math.inf] * problem.components, [0.0] * problem.components


@pytest.mark.parametrize(
    ("metric", "check", "message"),
    [
        (OneNumber, "values", "per_component says"),
        (Endless, "values", "JSON cannot hold"),
        (Writes, "values", "writes to the estimate"),
        (Silent, "values", "without saying why"),
        (Raw, "invariance", "moved by a symmetry"),
        (Backwards, "truth", "worse than"),
        (Short, "theory", "theory returns 0 values"),
        (Infinite, "theory", "theory says inf"),
    ],
)
def test_what_is_wrong_is_found(metric, check, message):
    found = outcomes(metric())[check]
    assert found.status == "failed"
    assert message in found.message


def test_what_ships_is_right():
    assert {outcome.status for outcome in outcomes(MSE()).values()} == {"passed"}
