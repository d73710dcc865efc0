"""A run that made all its steps says whether its error still moved at the end, and noise is no movement."""

import numpy as np
import pytest

from smimbench.report.columns import statuses
from smimbench.report.statistics import TracedRun, runs_still_moving
from tests import records

STEPS = np.arange(1, 1001)
OK = {"status": "ok", "reason": "all 1000 steps made"}


def found(*courses, record=OK, target=1e-3):
    runs = [
        TracedRun(
            records.record(**record),
            {"iteration": STEPS, "mse": np.asarray(course)[:, None]},
        )
        for course in courses
    ]
    return runs_still_moving(runs, target)


def noise(seed, memory, size):
    """A stationary course that forgets with ``memory`` steps."""
    rng, kept, values = np.random.default_rng(seed), np.exp(-1 / memory), [0.0]
    for draw in rng.normal(size=len(STEPS) - 1):
        values.append(kept * values[-1] + np.sqrt(1 - kept**2) * draw)
    return size * np.array(values)


@pytest.mark.parametrize(
    "course",
    [2 * STEPS**-0.5, np.exp(-STEPS / 800), 1.5 - STEPS / 1000],
    ids=["power", "exp", "line"],
)
def test_descent_that_goes_on_is_said(course):
    one = found(*(course * (1 + noise(seed, 5, 0.01)) for seed in range(4)))
    assert one.runs == 4
    assert one.change < -0.05


def test_an_error_that_rises_again_is_said_with_its_lowest():
    one = found(0.6 + 0.23 * ((STEPS - 300) / 700) ** 2)
    assert one.change > 0.05
    assert one.lowest == pytest.approx(0.6 / 0.83, rel=0.01)


def test_rest_is_not_said():
    assert found(0.3 + np.exp(-STEPS / 50)) is None
    assert found(np.exp(-STEPS / 50)) is None  # to perfect recovery, below the target
    rule = {"status": "ok", "reason": "residual below 1e-6"}
    assert (
        found(2 * STEPS**-0.5, record=rule) is None
    )  # a rule ended it, as it ends GAMP
    assert found(2 * STEPS**-0.5, record={**OK, "status": "timeout"}) is None


@pytest.mark.parametrize("memory", [1, 10, 50, 200])
@pytest.mark.parametrize("size", [0.02, 0.2])
def test_a_noise_floor_is_rarely_taken_for_movement(memory, size):
    """Rows of four runs about a floor, however slowly they swing."""
    rows = [
        found(*(0.5 * np.exp(noise(4 * row + seed, memory, size)) for seed in range(4)))
        for row in range(25)
    ]
    assert sum(one is not None for one in rows) <= 1


def test_runs_that_still_moved_are_counted_among_the_others():
    assert statuses({"ok": 24}, 8).plain == "24 ok (8 moving)"
