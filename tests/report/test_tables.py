"""Tables stay readable whatever stands in their rows."""

import re

import numpy as np
import pytest

from smimbench.report.columns import (
    Column,
    make_table,
    marked_z,
    number,
    seconds,
    uncertain,
)
from smimbench.report.results import Results
from smimbench.report.row import Nearness
from smimbench.report.rows import draws_fresh_samples
from smimbench.report.statistics import (
    compared_with_theory,
    mean_and_error,
    ratio_to_bayes,
    time_near_optimum,
)
from smimbench.report.tables import (
    _without_shared_items,
    error_tables,
    ranking_tables,
    runtime_tables,
    status_line,
)
from smimbench.report.text_files import as_markdown
from smimbench.report.verdict import verdicts
from smimbench.report.wording import note
from smimbench.run.store import Store
from smimbench.run.theory_solver import TheorySolver
from tests.helpers import ATTENTION, flat, loaded
from tests.records import record
from tests.report.rows import printed, row

EXTREME = {
    "run away": row(
        mean=5.4e51, sem=5.3e51, difference=5.4e51, z=1.0, ratio_to_bayes=1e52
    ),
    "nothing": row(
        n=0,
        mean=None,
        sem=None,
        difference=None,
        z=None,
        ratio_to_bayes=None,
        status_counts={"failed": 4},
    ),
    "one run": row(n=1, sem=None, z=None),
    "perfect": row(
        theory=0.0,
        theory_error=0.0,
        mean=3e-12,
        sem=1e-12,
        difference=3e-12,
        z=None,
        ratio_to_bayes=None,
    ),
    "sharp": row(z=-123456.0, sem=1e-9),
    "mixed": row(
        status_counts={"ok": 12, "not-converged": 1, "diverged": 2, "timeout": 1}
    ),
    "negative": row(difference=-0.25, z=-25.0),
}


@pytest.mark.parametrize("width", [120, 75, 67, 30])
def test_long_labels_take_the_room_that_numbers_leave(width):
    """Numbers are whole on any screen, and words of up to 16 letters; a table is no wider than that asks for."""
    rows = [
        {"name": "adam, learning_rate 0.3, beta 0.8", "mean": "0.1234±0.0001234"},
        {"name": "averaged_optimizer_of_all_lengths", "mean": "123456789.123"},
    ]
    columns = [
        Column("algorithm", fields="name", words=True),
        *(Column(f"number {index}", fields="mean") for index in range(3)),
    ]
    lines = printed([make_table("", columns, rows)], width).splitlines()
    assert max(map(len, lines)) <= max(width, 67)
    assert sum(line.count("0.1234±0.0001234") for line in lines) == 3
    assert any("learning_rate" in line for line in lines)


@pytest.mark.parametrize("name", EXTREME)
def test_no_row_breaks_its_table(name):
    text = printed(error_tables([row(), EXTREME[name]]))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len([line for line in lines if line.startswith("gamp")]) == 2
    assert "…" not in text
    for full in ("mean ± s.e.m.", "optimal", "mean -", "error", "status"):
        assert full in text


def test_every_status_is_shown_in_short():
    assert "12 ok 1 n.c. 2 div. 1 t/o" in printed(
        error_tables([EXTREME["mixed"]]), width=120
    )
    narrow = printed(error_tables([EXTREME["mixed"]]))
    assert all(
        word in narrow.split() for word in ("12", "ok", "n.c.", "2", "div.", "t/o")
    )


def test_a_number_is_never_cut():
    """Words give way first; if that is not enough the table is wider than the screen, for half a number is a wrong one."""
    wide = row(
        mean=5.4e51,
        sem=5.3e51,
        component=2,
        dimension=100_000,
        algorithm="a-long-name-of-an-algorithm",
        z=-123456.0,
    )
    text = printed(error_tables([row(component=1), wide]), width=60)
    for whole in ("5.4e51±5e51", "100000", "0.40000", "+0.1000", "-1e+05", "1.25"):
        assert whole in text


def test_the_worst_row_comes_first():
    rows = [
        row(algorithm="close", difference=0.001),
        row(algorithm="far", difference=-0.3),
        row(algorithm="failed", status_counts={"ok": 3, "failed": 1}, difference=0.0),
        row(algorithm="skipped", status_counts={"skipped": 4}, difference=0.01),
    ]
    text = printed(error_tables(rows))
    order = sorted(("close", "far", "failed", "skipped"), key=text.index)
    assert order == ["failed", "far", "skipped", "close"]


def test_columns_appear_only_where_they_tell_something():
    plain = printed(error_tables([row(), row()]))
    assert "D = 100" in plain
    assert "component" not in plain
    several = printed(
        error_tables(
            [row(component=1, backend="cupy"), row(component=2, dimension=200)]
        ),
        width=100,
    )
    assert "component" in several
    assert "layer" in printed(
        error_tables([row(component=1, component_word="layer"), row(component=2)])
    )
    assert "gamp@cupy" in several
    assert "D = 100" not in several
    overlap = printed(error_tables([row(metric="overlap", ratio_to_bayes=None)]))
    assert "error" not in overlap


def test_one_run_has_no_standard_error():
    text = printed(error_tables([EXTREME["one run"]]))
    assert "0.5000±" not in text


def test_the_runtime_table_orders_by_time_to_theory_and_says_what_it_may_notagainst_theory():
    never = {
        key: {"seconds": None, "iterations": None, "fraction": 0.25}
        for key in ("0.05", "0.2", "0.5")
    }
    rows = [
        row(algorithm="quick"),
        row(algorithm="lost", time_to_theory=never, trusted=False, machines=["there"]),
    ]
    text = printed(runtime_tables(rows, "here"))
    assert text.index("lost") < text.index("quick")
    assert "never" in text
    assert "25%" in text
    assert "250 ms" in text
    assert "64 MB" in text
    assert "untrusted" in text
    assert "another machine (there)" in flat(text)
    sound = printed(runtime_tables([row()], "here"))
    assert "untrusted" not in sound
    assert "another machine" not in sound


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0, "0"),
        (0.5, "0.5000"),
        (12.3456, "12.35"),
        (1e-7, "1.0e-7"),
        (2e5, "2.0e5"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


def test_values_with_errors():
    assert uncertain(0.5, None) == "0.5000"
    assert uncertain(0.5, 1e-9) == "0.50000"
    assert uncertain(0.5, 0.01) == "0.5000±0.0100"
    assert uncertain(None, 0.1) == ""
    assert [seconds(v) for v in (None, 2.5, 0.0025, 2.5e-6)] == [
        "",
        "2.5 s",
        "2.5 ms",
        "2.5 us",
    ]
    assert [seconds(v) for v in (999, 999.6, 3483, 5999, 6000, 86400)] == [
        "999 s", "16.7 min", "58 min", "100 min", "1.67 h", "24 h"
    ]  # fmt: skip


def test_the_status_line_counts_everything():
    assert (
        status_line({"ok": 3, "failed": 1}, 2).plain
        == "cells: 3 ok, 1 failed, 2 not run yet"
    )
    assert status_line({}).plain == "cells: none"


def test_markdown_keeps_its_columns_whatever_a_label_holds():
    lines = as_markdown([row(problem="a|b").document()], []).splitlines()
    assert lines[2].count("|") - lines[2].count("\\|") == lines[0].count("|")


# -- the numbers behind the tables --------------------------------------------------------------------------------


def test_a_standard_error_is_that_of_the_mean_and_z_joins_both_errors():
    values = np.array([1.0, 2.0, 4.0, 5.0])
    estimate = mean_and_error(values)
    found = compared_with_theory(estimate, 2.5, 0.3)
    assert estimate.sem == pytest.approx(np.sqrt(((values - 3.0) ** 2).sum() / 3 / 4))
    assert found.difference == pytest.approx(0.5)
    assert found.z == pytest.approx(0.5 / np.hypot(estimate.sem, 0.3))
    assert mean_and_error(values[:1]).sem is None
    assert compared_with_theory(estimate, 0.0, 0.0).z is None
    assert mean_and_error(np.array([])).mean is None


def test_runs_that_differ_by_rounding_have_no_z():
    for values in ([1.0, 1.0, 1.0], [1.0, 1.0 + 2e-16, 1.0], [0.1 + 0.2, 0.3]):
        assert (
            compared_with_theory(mean_and_error(np.array(values)), 1.1, 0.0).z is None
        )
    assert compared_with_theory(
        mean_and_error(np.array([1.0, 1.0 + 2e-16])), 1.1, 0.01
    ).z == pytest.approx(-10)


def test_a_ratio_is_blank_where_theory_is_zero():
    assert ratio_to_bayes(0.3, 0.1, 1e-3) == pytest.approx(3.0)
    assert ratio_to_bayes(0.2, 0.0, 1e-3) is None
    assert ratio_to_bayes(None, 0.1, 1e-3) is None


def test_time_to_a_target_waits_for_every_component():
    path = {
        "mse": np.array([[1.0, 1.0], [0.1, 0.9], [0.3, 0.1], [0.1, 0.1]]),
        "seconds": np.array([0.0, 1.0, 2.0, 3.0]),
        "iteration": np.array([0.0, 10.0, 20.0, 30.0]),
    }
    for course, goal, seconds_to in ((path, [0.2, 0.2], 3.0), (path, [0.2, 0.95], 1.0), (path, [0.01, 0.2], np.inf),
                                  (None, [0.2], np.inf)):  # fmt: skip
        found = time_near_optimum(course, np.array(goal))
        assert (found.seconds, found.iteration) == (seconds_to, 10 * seconds_to)


def test_who_draws_fresh_samples():
    assert draws_fresh_samples({"name": "sgd", "online": True, "batch": 3})
    assert draws_fresh_samples(
        {"name": "averaged", "of": {"name": "adam", "online": True, "batch": 3}}
    )
    assert not draws_fresh_samples({"name": "averaged", "of": "adam"})
    assert not draws_fresh_samples({"name": "sgd", "online": False})
    assert not draws_fresh_samples(
        {"name": "of-a-package-that-is-gone", "online": True}
    )


def test_what_was_lost_is_no_arrival_and_what_was_given_up_takes_time(tmp_path):
    """A run that diverges after it came near has not arrived; the time of an attempt that failed is part of the next."""
    suite = loaded(tmp_path, ATTENTION)
    trajectory = {
        "iteration": [0, 1, 2], "seconds": [0.0, 0.25, 1.0], "residual": [1.0, 1.0, 1.0], "samples": [None, 90, 180],
        "mse": [[1.0], [0.0], [0.0]], "overlap": [[0.5], [1.5], [1.5]],
    }  # fmt: skip
    for lost, status, near in (
        (0.0, "ok", Nearness(0.25, 1.0, 1.0)),
        (5.0, "ok", Nearness(5.25, 1.0, 1.0)),
        (0.0, "diverged", Nearness(None, None, 0.0)),
    ):
        store = Store(tmp_path / f"{lost} {status}")
        for cell in suite.cells():
            store.write(
                record(
                    cell=cell.identity(), problem=cell.problem_label, algorithm=cell.algorithm_label, status=status,
                    metrics={"mse": [0.0], "overlap": [1.5]}, iterations=2, samples=90, trajectory=trajectory,
                    timing={"seconds": 1.0, "cpu_seconds": 1.0, "lost_seconds": lost, "trusted": False},
                )
            )  # fmt: skip
        (first, *_) = Results(suite, store, answers=TheorySolver()).rows
        assert first.cost.near["0.05"] == near


def test_a_screen_shows_the_ranking_on_all_problems_in_one_table():
    rows = [
        row(problem=problem, algorithm=name, mean=mean)
        for problem in ("p", "q")
        for name, mean in (("gamp", 0.5), ("adam", 0.8))
    ]
    text = printed(ranking_tables(verdicts(rows)))
    assert re.findall("([pq]) +(gamp|adam)", text) == [
        *(("p", "gamp"), ("p", "adam"), ("q", "gamp"), ("q", "adam"))
    ]
    assert "D = 100, best first; smimbench show --full has all tables" in text
    assert ranking_tables(verdicts(rows[:1])) == []


def test_a_sign_is_not_that_of_rounding():
    assert [marked_z(z, 8) for z in (-1e-15, 1e-15, -0.04, -0.06)] == [
        "+0.0",
        "+0.0",
        "+0.0",
        "-0.1",
    ]


def test_a_note_is_cut_after_a_whole_remark():
    remarks = ["adam: tuned by hand", "gamp: " + "a longer remark, " * 9]
    assert note(remarks, max_lines=2) == (
        "note: adam: tuned by hand ... (all: smimbench show --full)"
    )
    long_note = note(remarks[1:], max_lines=2)
    assert long_note.count("\n") == 1
    assert long_note.endswith(" ... (all: smimbench show --full)")
    assert "..." not in note(remarks)


def test_long_labels_of_problems_are_without_what_they_share():
    start = "attention-indexed(tokens=3) softmax(beta=1.0, skip=0.5)"
    labels = [f"{start} wishart(rho={rho})" for rho in (0.2, 0.8)]
    short_labels = ["wishart(rho=0.2)", "wishart(rho=0.8)"]
    assert _without_shared_items(labels) == dict(zip(labels, short_labels))
    for whole in (labels[:1], [start, labels[0]], ["two layers", "three layers"]):
        assert _without_shared_items(whole) == dict(zip(whole, whole))
