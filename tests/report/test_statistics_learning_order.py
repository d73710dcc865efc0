"""Order of learning from trajectories made by hand, and the tables that show it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest

from smimbench.report.row import LearnedSequence
from smimbench.report.statistics import learning_order
from smimbench.report.tables import learning_tables
from tests.report.rows import changed, printed, row


def trajectory(first, second, samples=True):
    """Overlaps of two layers that jump from 0 to 0.8 at given iterations; 10 samples and 2 s a step."""
    t = np.arange(101.0)
    overlap = np.stack(
        [np.where(t >= first, 0.8, 0.0), np.where(t >= second, 0.8, 0.0)], axis=1
    )
    seen = 10 * t if samples else np.full_like(t, math.nan)
    if samples:
        seen[0] = math.nan
    return {"iteration": t, "samples": seen, "seconds": 2 * t, "overlap": overlap}


def test_medians_order_and_factor():
    runs = [
        trajectory(80, 10),
        trajectory(40, 20),
        trajectory(90, 30),
        trajectory(5, 50),
    ]
    layers, order = learning_order(runs, [1.0, 1.0], 100.0)
    assert [layer.target for layer in layers] == [0.5, 0.5]
    assert [layer.iterations for layer in layers] == [60, 25]
    assert [layer.samples for layer in layers] == [600, 250]
    assert [layer.epochs for layer in layers] == [6, 2.5]
    assert [layer.seconds for layer in layers] == [120, 50]
    assert order.sequences == [LearnedSequence([2, 1], 3), LearnedSequence([1, 2], 1)]
    assert order.success == 1
    factors = np.log([8, 2, 3, 10])
    assert order.factor.mean == pytest.approx(math.exp(factors.mean()))
    assert order.factor.sem == pytest.approx(
        math.exp(factors.mean()) * factors.std(ddof=1) / 2
    )
    assert order.factor.runs == 4
    assert order.factor.axis == "samples"


def test_runs_that_fail_count_as_infinity():
    runs = [trajectory(1000, 10), trajectory(1000, 20), trajectory(50, 30), None]
    layers, order = learning_order(runs, [1.0, 1.0], 100.0)
    assert layers[0].fraction == 0.25
    assert layers[0].iterations is None
    assert layers[1].iterations == 25
    assert layers[1].fraction == 0.75
    assert order.success == 0.25
    assert LearnedSequence([], 1) in order.sequences
    assert order.factor.runs == 1
    assert order.factor.sem is None
    json.dumps([*map(asdict, layers), asdict(order)], allow_nan=False)


def test_half_is_half_of_what_can_be_held():
    layers, order = learning_order([trajectory(60, 10)], [0.0, 0.4], 100.0)
    assert layers[0].target is None
    assert layers[0].fraction is None
    assert layers[1].target == 0.2
    assert order.sequences == [LearnedSequence([2], 1)]
    assert order.success == 1
    assert order.factor is None


def test_algorithms_that_do_not_count_samples():
    layers, order = learning_order(
        [trajectory(60, 10, samples=False)], [1.0, 1.0], 100.0
    )
    assert layers[0].samples is None
    assert layers[0].epochs is None
    assert layers[0].iterations == 60
    assert order.factor.mean == pytest.approx(6)
    assert order.factor.axis == "iterations"


def test_a_start_that_holds_everything_has_no_factor():
    layers, order = learning_order([trajectory(0, 0)], [1.0, 1.0], 100.0)
    assert layers[0].samples == 0
    assert order.factor is None
    assert order.success == 1


def rows():
    layers, order = learning_order(
        [trajectory(80, 10), trajectory(40, 20)], [1.0, 1.0], 100.0
    )
    return [
        row(problem="two layers", algorithm="sgd", alpha=15.0, metric=metric, component=component, learning_order=asdict(order),
            half_overlap=asdict(layers[component - 1]), component_word="layer")
        for metric in ("mse", "overlap") for component in (1, 2)
    ]  # fmt: skip


def test_table_shows_epochs_order_and_factor():
    text = printed(learning_tables(rows()))
    assert "two layers: order of learning" in text
    line = next(line for line in text.splitlines() if line.startswith("sgd"))
    assert "6.0" in line
    assert "1.5" in line
    assert "2 1 (2)" in line
    assert "4±" in line
    assert "100%" in line
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_layer_that_most_runs_never_learn_leaves_the_unit_alone():
    lost = {
        "fraction": 0.5,
        "iterations": None,
        "samples": None,
        "epochs": None,
        "seconds": None,
    }
    first, *rest = rows()
    text = printed(
        learning_tables(
            [
                changed(
                    first, half_overlap={**asdict(first.runs.half_overlap), **lost}
                ),
                *rest,
            ]
        )
    )
    assert "median epochs" in text
    assert "never" in text
    uncounted = {**lost, "iterations": 40.0}
    text = printed(
        learning_tables(
            [
                changed(
                    first, half_overlap={**asdict(first.runs.half_overlap), **uncounted}
                ),
                *rest,
            ]
        )
    )
    assert "median iterations" in text


def test_one_component_has_no_order():
    single = [
        changed(row, component=None, learning_order=None, half_overlap=None)
        for row in rows()
    ]
    assert learning_tables(single) == []
    assert learning_tables([]) == []


def test_where_nothing_can_be_learned_nothing_is_in_order():
    """Below the first weak recovery all optimal overlaps are 0."""
    layers, order = learning_order([trajectory(60, 10), None], [0.0, 0.0], 100.0)
    assert [one.target for one in layers] == [None, None]
    assert order.sequences == [LearnedSequence([], 2)]
    assert order.factor is None
