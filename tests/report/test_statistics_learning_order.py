"""Order of learning from trajectories made by hand, and the tables that show it."""

import json
import math
from dataclasses import asdict, astuple

import numpy as np
import pytest

from smimbench.report.row import (
    HalfOverlap,
    LearnedSequence,
    LearningFactor,
    LearningOrder,
)
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
    steps = (80, 10), (40, 20), (90, 30), (5, 50)
    layers, order = learning_order([trajectory(*at) for at in steps], [1.0, 1.0], 100.0)
    assert [astuple(layer) for layer in layers] == [
        (0.5, 1.0, 60, 600, 6, 120),
        (0.5, 1.0, 25, 250, 2.5, 50),
    ]
    factors = np.log([8, 2, 3, 10])
    mean = math.exp(factors.mean())
    assert order == LearningOrder(
        [LearnedSequence([2, 1], 3), LearnedSequence([1, 2], 1)],
        1,
        LearningFactor(
            pytest.approx(mean),
            pytest.approx(mean * factors.std(ddof=1) / 2),
            4,
            "samples",
        ),
    )


def test_runs_that_fail_count_as_infinity():
    runs = [trajectory(1000, 10), trajectory(1000, 20), trajectory(50, 30), None]
    layers, order = learning_order(runs, [1.0, 1.0], 100.0)
    assert [layer.fraction for layer in layers] == [0.25, 0.75]
    assert [layer.iterations for layer in layers] == [None, 25]
    assert order.success == 0.25
    assert LearnedSequence([], 1) in order.sequences
    assert (order.factor.runs, order.factor.sem) == (1, None)
    json.dumps([*map(asdict, layers), asdict(order)], allow_nan=False)


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
    assert all(text in line for text in ("6.0", "1.5", "2 1 (2)", "4±", "100%"))
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize(
    ("iterations", "unit"), [(None, "epochs"), (40.0, "iterations")]
)
def test_a_layer_that_most_runs_never_learn_leaves_the_unit_alone(iterations, unit):
    layer, *others = rows()
    times = HalfOverlap(layer.runs.half_overlap.target, 0.5, iterations)
    text = printed(
        learning_tables([changed(layer, half_overlap=asdict(times)), *others])
    )
    assert f"median {unit}" in text
    assert ("never" in text) is (iterations is None)


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
    assert layers == [HalfOverlap(), HalfOverlap()]
    assert order == LearningOrder([LearnedSequence([], 2)], 1, None)
