"""What runs are worth in passes of the best first-order method, which passes are counted, and who is below the floor."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from smimbench_attention.algorithms.gamp import Gamp

import smimbench
from smimbench.backend import get_backend
from smimbench.report.first_order import (
    LESS_THAN_ONE,
    MINIBATCHES,
    NO_BETTER,
    OWN_OPTIMUM,
    UNCOUNTED,
    PassScale,
    mean_passes,
    worth_of_row,
)
from smimbench.report.prediction import (
    IMPOSSIBLE,
    SizeRuns,
    SizeSeries,
    deviation,
    is_below_floor,
)
from smimbench.report.results import ResultsTable
from smimbench.report.row import CLOSED_FORM, FITTED, PassesWorth
from smimbench.report.statistics import TracedRun
from smimbench.report.stored_table import verified_table
from smimbench.report.verdict import verdicts
from smimbench.report.wording import BELOW_FLOOR, agreement_words, contender_line
from smimbench.run.theory_solver import TheorySolver
from smimbench.theory.types import Floor
from tests.helpers import sequence, suite_text, write_suite
from tests.report.rows import row

FLOOR = Floor(np.array([[1.0], [0.5], [0.25], [0.2], [0.2]]), np.zeros(1), True)
SCALE = PassScale(FLOOR, 100, 1)


def errors(mean, scatter=0.0, n=8):
    """Errors of n runs, whose logarithms have this mean and scatter."""
    steps = scatter * np.linspace(-1, 1, n)
    return {f"0/{k}": mean * math.exp(step) for k, step in enumerate(steps)}


def worth(values, instance_errors=None, passes=300.0, **fields):
    fields = {"bayes": 0.2, "optimum": 0.2, "values": values, **fields}
    return worth_of_row(row(**fields), SCALE, passes, instance_errors or {})


@pytest.mark.parametrize(
    ("error", "passes", "remark"),
    [
        (14.0, 0.0, NO_BETTER),
        (1.0, 0.0, NO_BETTER),
        (math.sqrt(0.5), 0.5, LESS_THAN_ONE),
        (0.5, 1.0, None),
        (math.sqrt(0.125), 1.5, None),
        (0.25, 2.0, None),
        (0.2, None, "3 or more"),
        (0.19, None, "3 or more"),
    ],
)
def test_a_worth_is_read_off_the_logarithm_of_the_error(error, passes, remark):
    found = worth(errors(error))
    assert found.worth == pytest.approx(passes, abs=1e-9)
    assert found.remark == remark
    assert found.ratio == pytest.approx(error / 0.2)
    assert (found.passes, found.floor, found.is_proven) == (300, 0.2, True)


def test_the_distance_is_that_from_the_floor_after_as_many_passes():
    assert worth(errors(0.6), passes=1.0).ratio == pytest.approx(1.2)
    assert worth(errors(0.6), passes=1.5).ratio == pytest.approx(0.6 / math.sqrt(0.125))


def test_an_interval_holds_the_worth():
    found = worth(errors(0.3, 0.2))
    low, high = found.interval
    assert low < found.worth < high
    narrow = worth(errors(0.3, 0.02)).interval
    assert_allclose(np.diff(narrow), np.diff(found.interval) / 10, rtol=0.05)
    assert worth(errors(0.3, n=1)).interval is None
    assert worth(errors(0.21, 0.2)).interval[1] is None  # beyond the end of the floor


def test_at_finite_size_the_floor_ends_at_the_optimum_there():
    """The prior mean stays; the optimum of the size has no finite worth, nor what reaches it."""
    at_size = {"optimum": 0.22, "optimum_source": "sampled"}
    assert worth(errors(0.22), **at_size).worth is None
    assert worth(errors(0.22), **at_size).ratio == pytest.approx(1)
    assert worth(errors(1.0), **at_size).worth == 0
    assert worth(errors(0.26)).worth < worth(errors(0.26), **at_size).worth
    uncertain = worth(errors(0.3), **at_size, optimum_error=0.02)
    assert np.diff(uncertain.interval) > np.diff(worth(errors(0.3), **at_size).interval)


def test_instances_are_compared_in_pairs():
    """Where instances that are hard for the algorithm are as hard for the optimum, only the difference is uncertain."""
    at_size = {"optimum": 0.22, "optimum_source": f"{FITTED}gamp", "algorithm": "adam"}
    values = errors(0.26, 0.3)
    optimal = {name: np.array([error * 0.22 / 0.26]) for name, error in values.items()}
    paired = worth(values, optimal, **at_size)
    alone = worth(values, **at_size)
    assert paired.worth == alone.worth
    assert alone.interval[1] is None
    assert alone.interval[0] < paired.interval[0] < paired.worth < paired.interval[1]
    known = at_size | {"optimum_source": CLOSED_FORM}
    assert worth(values, optimal, **known).interval == paired.interval
    posterior_means = {name: np.array([error]) for name, error in values.items()}
    assert worth(values, posterior_means, **known).interval == alone.interval
    own = worth(values, optimal, **at_size | {"algorithm": "gamp"})
    assert (own.worth, own.ratio, own.reason) == (None, None, OWN_OPTIMUM)


# -- runs ------------------------------------------------------------------------------------------------------------------

PROBIT = """\
model   = { name = "sequence-multi-index", tokens = 1 }
channel = { name = "probit", noise = 0.5 }
prior   = { name = "gaussian" }"""
ALGORITHMS = (
    'name = "gamp"',
    'name = "adam"\nsteps = 40\nlearning_rate = 1.0',
    'name = "adam"\nlabel = "minibatches"\nsteps = 40\nbatch = 50',
    'name = "averaged"\nof = { name = "adam", steps = 20, learning_rate = 0.1 }\nstudents = 4',
    'name = "erm"',
    'name = "spectral"',
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("passes")
    text = suite_text(PROBIT, [3.0], 100, 4, *ALGORITHMS)
    suite = write_suite(folder, text)
    found = smimbench.run(suite, results=folder / "results", progress=False)
    return {row["algorithm"]: row for row in found if row["metric"] == "mse"}


def test_passes_are_counted(rows):
    """A step of message passing is a pass, and so is one of descent, for all students together."""
    assert rows["gamp"]["passes"] == rows["gamp"]["iterations"]
    assert (rows["adam"]["passes"], rows["averaged"]["passes"]) == (40, 20)
    assert rows["minibatches"]["no_worth"] == MINIBATCHES
    for name in ("erm", "spectral"):
        assert rows[name]["no_worth"] == UNCOUNTED
    for name in ("minibatches", "erm", "spectral"):
        assert rows[name]["passes"] is rows[name]["worth_passes"] is None


def test_an_untuned_optimizer_is_worth_nothing(rows):
    assert rows["adam"]["mean"] > 10
    assert (rows["adam"]["worth_passes"], rows["adam"]["worth_interval"]) == (0, [0, 0])
    assert rows["adam"]["worth_remark"] == NO_BETTER


def test_what_a_run_counted_comes_first():
    """Two gradients a step, and 137 samples of 100 where a run was stopped in between; steps where nothing was counted."""
    record = SimpleNamespace(iterations=20)
    counted = TracedRun(record, {"samples": np.array([math.nan, 2000.0, 4000.0])})
    stopped = TracedRun(record, {"samples": np.array([137.0])})
    uncounted = TracedRun(record, {"samples": np.array([math.nan])})
    assert mean_passes([counted], SCALE) == 40
    assert mean_passes([counted, stopped], SCALE) == pytest.approx((40 + 1.37) / 2)
    assert mean_passes([uncounted, TracedRun(record, None)], SCALE) == 20
    assert mean_passes([uncounted], SCALE._replace(passes_per_step=None)) is None


# -- below the floor -------------------------------------------------------------------------------------------------------

DIMENSION, RUNS = 1000, 16


@pytest.fixture(scope="module")
def message_passing():
    """Errors (runs, 13) of undamped message passing after every pass, and the floor, where 1 / (k + 1) is left after k passes."""
    problem, alpha, backend = (
        sequence("linear", tokens=1, noise=0.01),
        1.0,
        get_backend(),
    )
    algorithm, paths = Gamp(damping=0.0), []
    for seed in range(RUNS):
        instance = problem.instance(alpha, DIMENSION, seed)
        data = instance.data(backend)
        state = algorithm.init(problem, data, np.random.default_rng(seed))
        path = [1.0]
        for _ in range(12):
            state, _ = algorithm.step(problem, data, state)
            path.append(instance.metrics(algorithm.estimate(state))["mse"][0])
        paths.append(path)
    floor = TheorySolver(prediction_errors=False).floor(problem, alpha)
    return np.array(paths), floor


def row_after(message_passing, counted, made):
    """The row of runs that count so many passes and make others."""
    paths, floor = message_passing
    values = {f"0/{seed}": error for seed, error in enumerate(paths[:, made])}
    smallest = float(floor.after(counted))
    end = float(floor.mse[-1, 0])
    return row(
        values=values, n=RUNS, mean=paths[:, made].mean(), dimension=DIMENSION, bayes=end, optimum=end, passes=float(counted),
        floor=smallest, floor_error=0.0, ratio_to_floor=paths[:, made].mean() / smallest,
    )  # fmt: skip


@pytest.mark.parametrize("counted", [2, 3, 4, 5, 6])
def test_who_counts_every_second_pass_is_caught(message_passing, counted):
    """What is really left after twice as many passes is further below the floor than what is stated to be detectable."""
    honest, cheat = (row_after(message_passing, counted, counted * k) for k in (1, 2))
    floor = message_passing[1]
    relative = float(floor.after(2 * counted) / floor.after(counted)) - 1
    limit = cheat.first_order.floor
    runs = SizeRuns(
        DIMENSION,
        [*cheat.estimate.values.values()],
        [math.nan] * RUNS,
        limit,
        0.0,
        limit,
    )
    tested = deviation(SizeSeries("lower", None, [runs]))
    assert -relative > tested.smallest_detectable(2 * IMPOSSIBLE)
    assert is_below_floor([cheat], "mse")
    assert not is_below_floor([honest], "mse")


def test_below_the_floor_ranks_last(message_passing):
    cheat = row_after(message_passing, 3, 6)
    other = row(algorithm="other", values=errors(0.9, 0.1), mean=0.9, dimension=DIMENSION, bayes=cheat.optimum.limit,
                optimum=cheat.optimum.limit)  # fmt: skip
    (verdict,) = verdicts([cheat, other])
    best, last = verdict.contenders
    assert (best.algorithm, last.algorithm) == ("other", "gamp")
    assert (last.below_floor, last.below_optimum, best.below_floor) == (
        True,
        False,
        False,
    )
    assert agreement_words(last) == BELOW_FLOOR
    assert BELOW_FLOOR in contender_line(last)
    assert last.document()["below_floor"]


def test_in_a_hard_phase_nobody_is_caught():
    """Where another fixed point is better, runs of finite size may get there."""
    values = errors(0.1, 0.1)
    found = worth(values, bayes=0.05, optimum=0.05)
    assert (found.floor, found.floor_error) == (0.2, None)
    caught = {
        "values": values,
        "mean": 0.1,
        "dimension": 1000,
        "passes": 300.0,
        "floor": 0.2,
    }
    assert is_below_floor([row(**caught, floor_error=0.0)], "mse")
    assert not is_below_floor([row(**caught, floor_error=None)], "mse")


def test_where_the_optimum_is_zero_there_is_no_ratio():
    floor = Floor(np.array([[1.0], [0.1], [1e-4], [1e-8], [0.0]]), np.zeros(1), True)
    found = [
        worth_of_row(
            row(values=errors(error), bayes=0.0, optimum=0.0),
            SCALE._replace(floor=floor),
            passes,
            {},
        )
        for error, passes in ((0.01, 300.0), (0.01, 1.0))
    ]
    assert [entry.worth for entry in found] == [pytest.approx(4 / 3)] * 2
    assert [entry.ratio for entry in found] == [None, pytest.approx(0.1)]
    assert all(math.isfinite(entry.floor) for entry in found)


def test_tables_of_older_versions_lack_it():
    """They are read, and still agree with the rows that are made of their records."""
    old = row(values=errors(0.5))
    assert old.first_order == PassesWorth()
    new = row(values=errors(0.5), passes=300.0, worth_passes=1.0)
    written, computed = (
        ResultsTable("s", "", "", 1e-3, [found], {"ok": 4}, 0, [])
        for found in (old, new)
    )
    assert verified_table(Path(), written, computed) == []
    assert verified_table(Path(), computed, written) != []
