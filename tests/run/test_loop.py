"""The loop, driven by tiny algorithms whose every number is scripted."""

import math

import numpy as np
import pytest

from smimbench.backend.device import Backend, get_backend
from smimbench.derive.stopping import LONG_WINDOW, PATIENCE, WINDOW, OverlapRule
from smimbench.interfaces import Algorithm, Info, Plan, StoppingRule
from smimbench.problem.instance import Instance
from smimbench.run.loop import Status, run_algorithm
from smimbench.suite.schema import RunOptions
from tests.helpers import sequence

D = 50


@pytest.fixture(scope="module")
def problem():
    return sequence("linear")


@pytest.fixture(scope="module")
def instance(problem):
    return problem.instance(1.0, D)


class Scripted(Algorithm):
    """An algorithm that reports what ``script(iteration)`` says and holds ``hold(iteration)`` times the first draw."""

    def __init__(
        self,
        script,
        hold=lambda i: 1.0,
        *,
        steps=None,
        cautious=None,
        cost=0.0,
        clock=None,
        shape=(1, D),
    ):
        self.script, self.hold, self.cautious, self.cost, self.clock = (
            script,
            hold,
            cautious,
            cost,
            clock,
        )
        self.shape = shape
        self.draws = []
        self.offers = 0
        if steps is not None:
            self.steps = steps

    def init(self, problem, data, rng):
        self.draws.append(rng.random())
        if self.clock:
            self.clock.now += self.cost
        return 0

    def step(self, problem, data, state):
        if self.clock:
            self.clock.now += self.cost
        return state + 1, self.script(state + 1)

    def estimate(self, state):
        return np.full(self.shape, self.hold(state))

    def retry(self, problem, outcome):
        assert problem.components == 1
        if outcome == "unsettled":
            return None
        self.offers += 1
        return self.cautious


class SlowClock(Backend):
    """A backend whose clock only moves when told to."""

    def __init__(self):
        plain = get_backend("numpy")
        super().__init__("numpy", plain.xp, "float64")
        object.__setattr__(self, "now", 100.0)

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)

    def clock(self):
        return self.now


def go(problem, instance, algorithm, backend=None, make_rng=None, **settings):
    backend = backend or get_backend("numpy")
    make_rng = make_rng or (lambda attempt: np.random.default_rng([5, attempt]))
    data = instance.data(get_backend("numpy"))
    return run_algorithm(
        problem, instance, data, algorithm, make_rng, RunOptions(**settings), backend
    )


def claims(
    predicted_overlap, self_overlap=None, squared_step=0.0, residual=1.0, **more
):
    """An Info of one component."""
    own = predicted_overlap if self_overlap is None else self_overlap
    return Info(
        residual,
        *(np.array([value]) for value in (predicted_overlap, own, squared_step)),
        **more,
    )


def finite(where, bad):
    """Sound numbers, one of which is bad at the third iteration."""
    sound = {
        "predicted_overlap": 0.5,
        "self_overlap": 0.5,
        "squared_step": 0.1,
        "residual": 1.0,
    }
    return lambda i: claims(**(sound | ({where: bad} if i == 3 else {})))


def wobble(drift, squared_step=0.004):
    """Swings about a mean within the fluctuation of small sizes."""
    return lambda i: claims(
        0.5 + drift * i + 0.04 * math.sin(2.4 * i), squared_step=squared_step
    )


def swing(drift):
    """As near a threshold, over hundreds of iterations: within forty that is a drift."""
    return lambda i: claims(0.5 + drift * i + 0.05 * math.sin(i / 20), squared_step=0.1)


def falling(factor):
    """An error that falls: perfect recovery to a precision."""
    return lambda i: claims(1.0 - 1e-2 * factor**i)


OK, NOT, DIVERGED = Status.OK, Status.NOT_CONVERGED, Status.DIVERGED
ENDS = {
    "a small residual": (lambda i: Info(residual=10.0**-i), 300, OK, 4, "the residual 1.0e-04 is below the tolerance"),
    "too many iterations": (lambda i: Info(residual=1.0), 17, NOT, 17, "17 iterations reached"),
    "a small residual at the last": (lambda i: Info(residual=1.0 if i < 9 else 0.0), 9, OK, 9, ""),
    # A residual that lingers does not matter when what is claimed and what is held no longer move, and agree.
    "overlaps stand still": (lambda i: claims(0.7 * (1 - 10.0**-i), squared_step=0.1), 200, OK, None, "stationary"),
    "a slow drift": (lambda i: claims(0.004 * i), 100, NOT, 100, ""),
    # The same wobble of a claim is rest at an error of one half and unrest near perfect recovery.
    "a wobble far from recovery": (lambda i: claims(0.5 + 1e-4 * (-1) ** i), 50, OK, None, ""),
    "a wobble near recovery": (lambda i: claims(0.9998 + 1e-4 * (-1) ** i), 50, NOT, 50, ""),
    "a fluctuation about a mean": (wobble(0.0), 200, OK, None, "the residual is still"),
    "a fluctuation about a mean that moves": (wobble(1e-3), 200, NOT, 200, ""),
    "an estimate that swings": (wobble(0.0, 0.1), 200, OK, 200, "about a constant mean"),
    "a slow fluctuation": (swing(0.0), 1000, OK, 1000, "about a constant mean"),
    "a slow fluctuation that moves": (swing(2e-4), 1000, NOT, 1000, ""),
    "an error that falls": (falling(0.97), 120, OK, 120, "precision 0.002"),
    "an error that falls slowly": (falling(0.99), 120, NOT, 120, ""),
    "an error that fell": (falling(0.97), 400, OK, 227, "precision 1e-05 and falls slowly"),
    "an error that falls fast": (falling(0.8), 400, OK, None, "stationary"),
    # The fluctuation of an overlap at D = 50 is 0.2: a gap of 0.9 is one of them, a gap of 1.2 is not tolerated.
    "a claim that nearly holds": (lambda i: claims(0.95, 0.05, residual=0.0), 300, OK, None, ""),
    "a claim that does not hold": (
        lambda i: claims(0.99, -0.21, residual=0.0), 300, NOT, None,
        "component 1: the predicted overlap is 0.99, but the overlap of the estimate with itself is -0.21",
    ),
    "a broken claim at the last": (
        lambda i: claims(1.0, -0.5 + 0.01 * i), 30, NOT, 30, "30 iterations reached; component 1: the predicted"
    ),
    # Claiming eight times the information that the data carry is too much; claiming too little is no harm.
    **{
        f"{math.exp(ratio):.2g} times the information": (
            lambda i, s=ratio: claims(0.5, residual=0.0, log_information_ratio=np.array([s])), 300, status, None,
            "" if status is OK else f"information is {math.exp(ratio):.2g} times that",
        )
        for ratio, status in ((2.0, OK), (2.2, NOT), (-5.0, OK))
    },
    **{
        f"{where} {bad}": (finite(where, bad), 300, DIVERGED, 3, f"{name} is not a finite number at iteration 3")
        for where in ("residual", "predicted_overlap", "self_overlap", "squared_step")
        for name in (where if where != "residual" else "the residual (change of the estimate)",)
        for bad in (math.nan, math.inf)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_how_a_run_ends(problem, instance, name):
    script, most, status, iterations, reason = ENDS[name]
    result = go(problem, instance, Scripted(script), max_iterations=most)
    assert result.status is status
    assert iterations in (None, result.iterations)
    assert reason in result.reason
    assert result.restarts == 0
    assert result.broken_claim == ("the predicted" in result.reason)
    assert ("mse_spread" in result.final) == (status is OK and "after" in result.reason)
    if name == "overlaps stand still":
        assert WINDOW < result.iterations < 3 * WINDOW
    if "the residual is still" in reason:
        assert result.iterations >= LONG_WINDOW


def test_an_algorithm_with_a_schedule_gets_all_of_it_and_no_more(problem, instance):
    """Neither a residual of zero nor the engine's own largest number of iterations cuts a recipe short."""
    result = go(
        problem,
        instance,
        Scripted(lambda i: Info(residual=0.0), steps=23),
        max_iterations=5,
    )
    assert (result.status, result.iterations, result.reason) == (
        Status.OK,
        23,
        "all 23 steps made",
    )


def test_a_sign_that_flips_every_step_is_no_rest(problem, instance):
    """Both overlaps are constant on a cycle of period two; only what moved tells."""
    script = Scripted(
        lambda i: claims(0.7, squared_step=4 * 0.7), lambda i: (-1.0) ** i
    )
    result = go(problem, instance, script, max_iterations=60)
    assert (result.status, result.iterations) == (Status.NOT_CONVERGED, 60)


def test_standing_still_is_measured_by_the_fluctuation_of_small_sizes(problem):
    """A drift by a percent of the error is nothing at D = 50, where another draw changes as much, and much at D = 2000."""
    for dimension, status in ((D, Status.OK), (2000, Status.NOT_CONVERGED)):
        drifting = Scripted(
            lambda i: claims(0.5 + 2e-4 * i, squared_step=0.004), shape=(1, dimension)
        )
        found = go(
            problem, problem.instance(0.5, dimension), drifting, max_iterations=60
        )
        assert found.status is status


def test_growth_out_of_a_symmetric_start_is_waited_for():
    """A thousandth of what can be seen, growing by a tenth a step: at rest by every measure but patience."""
    blind = sequence()
    growing = Scripted(
        lambda i: claims(min(0.5, 2e-4 * 1.1**i), residual=1e-9 if i < 5 else 1.0)
    )
    result = go(blind, blind.instance(1.0, D), growing)
    assert result.status is Status.OK
    assert result.final["predicted_overlap"] == [0.5]
    nothing = go(blind, blind.instance(1.0, D), Scripted(lambda i: claims(1e-4)))
    assert (nothing.status, nothing.iterations) == (Status.OK, PATIENCE)
    learned = go(blind, blind.instance(1.0, D), Scripted(lambda i: claims(0.5)))
    assert learned.iterations == WINDOW + 1


def test_an_estimate_must_be_finite_and_of_the_right_shape(problem, instance):
    result = go(
        problem,
        instance,
        Scripted(lambda i: Info(residual=0.0), lambda i: math.nan if i else 1.0),
    )
    assert (result.status, result.reason) == (
        Status.DIVERGED,
        "the estimate is not made of finite numbers",
    )
    with pytest.raises(
        ValueError, match=r"must have the signal's shape \(1, 50\), got \(50, 1\)"
    ):
        go(problem, instance, Scripted(lambda i: Info(residual=1.0), shape=(D, 1)))


class Third(StoppingRule):
    """Ends at the third step, and trusts an end where the residual is below one."""

    def __init__(self, problem, dimension):
        assert (problem.components, dimension) == (1, D)
        self.seen = []

    def watch(self, info):
        assert isinstance(info.residual, float)
        assert isinstance(info.self_overlap, np.ndarray)
        self.seen.append(info.residual)

    def ending(self, tolerance):
        return (
            f"the third step, tolerance {tolerance:g}" if len(self.seen) == 3 else None
        )

    def complaint(self):
        return "too large" if self.seen[-1] >= 1 else None

    def settled(self):
        return None


@pytest.mark.parametrize(
    ("residual", "status", "reason"),
    [
        (0.0, Status.OK, "the third step, tolerance 0.01"),
        (2.0, Status.NOT_CONVERGED, "too large"),
    ],
)
def test_an_algorithm_may_bring_its_own_rule(
    problem, instance, residual, status, reason
):
    script = Scripted(lambda i: Info(residual, self_overlap=0.3))
    script.plan = lambda data: Plan(stopping_rule=Third)
    attempt = go(problem, instance, script, tolerance=0.01)
    assert (attempt.status, attempt.iterations, attempt.reason) == (status, 3, reason)


def test_the_information_of_what_is_not_learned_is_no_claim():
    """Below weak recovery both estimates of the information are noise, and the floor of one is far below the other."""
    problem = sequence(layers=2)

    def complaint(first, second):
        rule = OverlapRule(problem, 1000)  # fluctuations of sqrt(2 / 1000) = 0.045
        ratio = np.array([first[1], second[1]])
        overlaps = np.array([first[0], second[0]])
        rule.watch(
            Info(
                0.0,
                predicted_overlap=overlaps,
                self_overlap=overlaps + 0.1,
                log_information_ratio=ratio,
            )
        )
        return rule.complaint()

    assert complaint((0.5, 0.0), (0.0, 20.0)) is None
    assert complaint((0.04, 20.0), (0.5, 2.0)) is None
    assert "component 1: the predicted information is 22 times" in complaint(
        (0.05, math.log(22)), (0.0, 20.0)
    )


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (
            lambda i: Info(residual=math.nan),
            "diverged: the residual (change of the estimate) is not a finite number at iteration 1",
        ),
        (
            lambda i: claims(1.0, -0.5, residual=0.0),
            "not-converged: component 1: the predicted overlap is",
        ),
        (lambda i: Info(residual=1.0), "not-converged: 50 iterations reached"),
    ],
)
def test_a_run_that_went_wrong_is_started_once_more(problem, instance, first, reason):
    cautious = Scripted(lambda i: Info(residual=0.0))
    bold = Scripted(first, cautious=cautious)
    result = go(problem, instance, bold, max_iterations=50)
    assert (result.status, result.restarts) == (Status.OK, 1)
    assert result.restart_reason.startswith(reason)
    assert bold.offers == 1
    assert cautious.offers == 0
    assert bold.draws == [np.random.default_rng([5, 0]).random()]
    assert cautious.draws == [np.random.default_rng([5, 1]).random()]


def test_there_is_no_second_restart(problem, instance):
    last = Scripted(lambda i: Info(residual=math.nan))
    middle = Scripted(lambda i: Info(residual=math.nan), cautious=last)
    result = go(
        problem, instance, Scripted(lambda i: Info(residual=math.nan), cautious=middle)
    )
    assert (result.status, result.restarts) == (Status.DIVERGED, 1)
    assert last.draws == []


class Resumable(Scripted):
    """Goes on as another version."""

    version = None

    def retry(self, problem, outcome):
        if outcome != "unsettled":
            return super().retry(problem, outcome)
        self.offers += 1
        return self.version


def test_a_run_that_has_not_come_to_rest_is_resumed_where_it_stands(problem, instance):
    first, second = (
        Resumable(lambda i: Info(residual=1.0 if i < 8 else 0.0)) for _ in range(2)
    )
    first.version = second
    result = go(problem, instance, first, max_iterations=5)
    assert (result.status, result.restarts, result.lost_seconds) == (Status.OK, 1, 0.0)
    assert result.restart_reason == "not-converged: 5 iterations reached, then resumed"
    assert result.iterations == 8
    assert result.trajectory["iteration"] == list(range(9))
    assert (first.offers, second.offers, len(first.draws), len(second.draws)) == (
        1,
        0,
        1,
        0,
    )


def test_a_run_is_resumed_once_and_not_restarted_after_that(problem, instance):
    first, second, third = (Resumable(lambda i: Info(residual=1.0)) for _ in range(3))
    first.version, second.version, second.cautious = second, third, third
    result = go(problem, instance, first, max_iterations=5)
    assert (result.status, result.restarts, result.iterations) == (
        Status.NOT_CONVERGED,
        1,
        10,
    )
    assert result.reason == "10 iterations reached"
    assert (second.offers, third.offers) == (0, 0)


def test_what_ended_is_not_resumed(problem, instance):
    """Neither a run that came to rest, nor one that diverged, nor one with a number of steps of its own."""
    for script, steps in ((0.0, None), (math.nan, None), (1.0, 3)):
        algorithm = Resumable(
            lambda i, script=script: Info(residual=script), steps=steps
        )
        algorithm.version = algorithm
        go(problem, instance, algorithm, max_iterations=5)
        assert algorithm.offers == (
            1 if math.isnan(script) else 0
        )  # that one is asked for a restart


def test_a_run_that_ended_well_or_late_is_not_restarted(
    problem, instance, slow_metrics
):
    other = Scripted(lambda i: Info(residual=0.0))
    fine = Scripted(lambda i: Info(residual=0.0), cautious=other)
    late = Scripted(
        lambda i: Info(residual=1.0), cautious=other, cost=5.0, clock=slow_metrics
    )
    assert go(problem, instance, fine).status is Status.OK
    assert (
        go(problem, instance, late, slow_metrics, timeout=7.0).status is Status.TIMEOUT
    )
    assert (fine.offers, late.offers) == (0, 0)


@pytest.fixture
def slow_metrics(monkeypatch):
    """Metrics that would take a thousand seconds each."""
    backend = SlowClock()
    real = Instance.metrics

    def metrics(self, *arguments):
        backend.now += 1000.0
        return real(self, *arguments)

    monkeypatch.setattr(Instance, "metrics", metrics)
    return backend


def test_the_clock_stands_still_while_metrics_are_computed(
    problem, instance, slow_metrics
):
    script = Scripted(lambda i: Info(residual=1.0), cost=0.5, clock=slow_metrics)
    attempt = go(problem, instance, script, slow_metrics, max_iterations=8)
    assert attempt.clock.seconds == pytest.approx(0.5 + 8 * 0.5)
    assert attempt.durations == pytest.approx([0.5] * 8)
    np.testing.assert_allclose(attempt.trajectory["seconds"], 0.5 * np.arange(1, 10))
    assert slow_metrics.now > 9000


def test_the_time_limit_counts_the_algorithm_only(problem, instance, slow_metrics):
    script = Scripted(lambda i: Info(residual=1.0), cost=0.5, clock=slow_metrics)
    result = go(problem, instance, script, slow_metrics, timeout=3.2)
    assert (result.status, result.reason) == (
        Status.TIMEOUT,
        "3.2 s reached after 6 iterations",
    )
    assert result.trajectory["iteration"][-1] == result.iterations == 6
    at_once = Scripted(
        lambda i: Info(residual=0.0), cost=5.0, clock=slow_metrics
    )  # an end in time beats the limit
    assert go(problem, instance, at_once, slow_metrics, timeout=3.2).status is Status.OK


def test_time_lost_before_a_restart_is_counted_apart(problem, instance, slow_metrics):
    cautious = Scripted(lambda i: Info(residual=0.0), cost=0.25, clock=slow_metrics)
    bold = Scripted(
        lambda i: Info(residual=math.nan if i == 4 else 1.0),
        cost=0.5,
        clock=slow_metrics,
        cautious=cautious,
    )
    result = go(problem, instance, bold, slow_metrics)
    assert result.lost_seconds == pytest.approx(2.5)
    assert result.clock.seconds == pytest.approx(0.5)


def test_every_iteration_of_a_short_run_is_logged_and_the_last_one_is_the_result(
    problem, instance
):
    result = go(
        problem,
        instance,
        Scripted(lambda i: Info(residual=1.0 / i), lambda i: 0.1 * i),
        max_iterations=12,
    )
    path = result.trajectory
    assert path["iteration"] == list(range(13))
    assert path["residual"][1:] == [1.0 / i for i in range(1, 13)]
    signal = instance.signal[0]
    for i, value in enumerate(path["mse"]):
        assert value[0] == pytest.approx(np.sum((signal - 0.1 * i) ** 2) / D)
    assert result.metrics["mse"] == path["mse"][-1]
    np.testing.assert_array_equal(result.estimate, np.full((1, D), 0.1 * 12))


def test_a_long_run_is_logged_often_enough_to_time_a_target_to_two_percent(
    problem, instance
):
    result = go(problem, instance, Scripted(lambda i: Info(residual=1.0), steps=3001))
    logged = np.array(result.trajectory["iteration"])
    assert len(logged) < 500
    assert logged[-1] == 3001
    assert (np.diff(logged[1:]) <= np.maximum(1, 0.02 * logged[1:-1] + 1e-9)).all()


def test_a_run_that_diverges_keeps_the_last_sound_metrics(problem, instance):
    result = go(
        problem,
        instance,
        Scripted(lambda i: Info(residual=math.nan if i == 4 else 1.0)),
    )
    assert result.trajectory["iteration"] == [0, 1, 2, 3]
    assert all(math.isfinite(v[0]) for v in result.trajectory["mse"])
