"""Two result folders side by side."""

import numpy as np
import pytest

from smimbench.report.comparison import compare_rows, exceeds_limit, overall_changes
from smimbench.report.tables import comparison_tables, missing_values
from tests.helpers import flat
from tests.report.rows import printed, values_of
from tests.report.rows import row as any_row


def row(mean, **more):
    return any_row(
        **{"mean": mean, "alpha": 0.1, "dimension": 10, "theory": None, **more}
    )


@pytest.mark.parametrize(
    ("before", "after", "verdict", "fails"),
    [
        (row(1.0), row(1.2), "worse", True),
        (row(1.2), row(1.0), "better", False),
        (
            row(1.0),
            row(1.02, values=values_of(1.02, 0.01, 4, root=1)),
            "within noise",
            False,
        ),
        (row(1.0), row(1.02), "worse", False),
        (row(1.0, metric="overlap"), row(1.2, metric="overlap"), "better", False),
        (row(1.2, metric="overlap"), row(1.0, metric="overlap"), "worse", True),
        (row(1.0), row(1.0), "unchanged", False),
        (row(1.0), row(1.0 + 4e-16), "unchanged", False),
        (row(1.0), row(1.0, per_iteration=2.0), "unchanged", True),
        (row(1.0), row(1.0, per_iteration=2.0, machines=["other"]), "unchanged", False),
        (row(1.0), row(None), "no estimate any more", True),
        (row(1.0, sem=None, n=1), row(1.2), "differs", True),
    ],
)
def test_a_change_is_judged(before, after, verdict, fails):
    (entry,) = compare_rows([before], [after])
    assert entry.judgment.verdict == verdict
    assert exceeds_limit(entry.judgment, 10.0, entry.time_percent) is fails


def coded(source, mean=1.0, settings="default", **more):
    """A row of an algorithm of a third party, whose code has this hash."""
    algorithm = {
        "name": "mine",
        "source": source,
        "distribution": "mine.py",
        "rate": 0.1,
        **more,
    }
    identity = {"problem": {"channel": {"name": "linear"}}, "algorithm": algorithm}
    return row(mean, algorithm="mine", identity=identity, settings=settings)


def test_rows_of_other_code_belong_together_and_the_change_of_code_is_said():
    for after in (
        coded("b", 1.2),
        coded("b", 1.2, distribution="renamed.py"),
        coded("b", 1.2, momentum=0.5),
    ):
        (entry,) = compare_rows([coded("a")], [after])
        assert (entry.judgment.verdict, entry.changed_code) == (
            "worse",
            ["algorithm mine"],
        )
    (entry,) = compare_rows([coded("a")], [coded("a", 1.2)])
    assert entry.changed_code == []


@pytest.mark.parametrize(
    "other", [{"rate": 0.2}, {"name": "other"}, {"assumed": {"channel": {"noise": 1}}}]
)
def test_other_parameters_are_another_algorithm(other):
    entries = compare_rows([coded("a")], [coded("b", **other)])
    assert [entry.judgment.verdict for entry in entries] == [
        "only before",
        "only after",
    ]
    assert all(
        exceeds_limit(entry.judgment, 10.0, entry.time_percent) for entry in entries
    )


def test_of_two_that_agree_none_is_taken_for_the_other():
    """What has lost a parameter may be either of two that had it."""
    before = [coded("a", momentum=momentum) for momentum in (0.0, 0.5)]
    assert len(compare_rows(before, [coded("b")])) == 3


def test_a_start_near_the_teacher_is_not_compared_with_one_that_is_not():
    rows = [coded("a", 1.0), coded("a", 0.1, settings="oracle")]
    assert [entry.baseline.estimate.mean for entry in compare_rows(rows, rows)] == [
        1.0,
        0.1,
    ]


def test_failures_are_no_improvement():
    """The mean over the runs that are left is smaller; on the same instances nothing has changed."""
    before = row(1.0, values={"0/0": 0.5, "0/1": 0.5, "0/2": 2.0}, n=3)
    counts = {"ok": 2, "failed": 1}
    after = row(0.5, values={"0/0": 0.5, "0/1": 0.5}, n=2, status_counts=counts)
    (entry,) = compare_rows([before], [after])
    assert (entry.judgment.verdict, entry.judgment.percent) == ("more runs fail", 0.0)
    assert exceeds_limit(entry.judgment, 1000.0)
    assert not exceeds_limit(compare_rows([after], [before])[0].judgment, 0.0)


def test_shared_instances_alone_are_compared():
    """With more seeds the mean moves, the code has not."""
    before = row(1.0, values={"0/0": 0.9, "0/1": 1.1}, n=2)
    after = row(2.0, values={"0/0": 0.9, "0/1": 1.1, "0/2": 4.0}, n=3)
    assert compare_rows([before], [after])[0].judgment.verdict == "unchanged"


def test_worse_on_every_shared_instance_is_not_noise():
    before = {f"0/{k}": 1.0 for k in range(3)}
    rows = [row(np.mean([*v.values()]), values=v, n=3) for v in (
        before, {"0/0": 1.1, "0/1": 1.4, "0/2": 1.2}, {"0/0": 0.99, "0/1": 1.4, "0/2": 1.2})]  # fmt: skip
    assert [compare_rows([rows[0]], [one])[0].judgment.verdict for one in rows[1:]] == [
        "differs",
        "within noise",
    ]


def test_a_change_that_no_row_shows_is_clear_in_all_of_them():
    def table(shift):
        rng = np.random.default_rng(0)
        rows = []
        for alpha in (0.1, 0.2, 0.3, 0.4, 0.5):
            values = {
                f"0/{k}": 1.0 + shift * (1 + 0.7 * rng.standard_normal())
                for k in range(5)
            }
            rows.append(
                row(np.mean([*values.values()]), values=values, n=5, alpha=alpha)
            )
        return rows

    before = table(0.0)
    for shift, verdict in ((0.1, "worse"), (-0.1, "better")):
        entries = compare_rows(before, table(shift))
        assert sum(entry.judgment.verdict == verdict for entry in entries) <= 1
        (mean,) = overall_changes(entries)
        assert (mean.judgment.verdict, mean.rows) == (verdict, 5)
        assert exceeds_limit(mean.judgment, 3.0) is (verdict == "worse")
    assert overall_changes(compare_rows(before, before)) == []


def test_both_verdicts_stand_beside_a_change():
    theory = {"theory": 1.1, "own_theory": 1.1, "own_z": -2.0, "bayes": 0.5}
    none = {
        "theory": 0.5,
        "no_theory": "it has none",
        "bayes": 0.5,
        "algorithm": "adam",
    }
    before = [row(1.0, **theory, ratio_to_bayes=2.0), row(0.9, **none)]
    after = [
        row(1.12, **{**theory, "own_z": 0.4}, ratio_to_bayes=2.24),
        row(0.9, **none),
    ]
    gamp, adam = compare_rows(before, after)
    document = gamp.document()
    expected = {
        "own_theory": 1.1,
        "bayes": 0.5,
        "before_own_z": -2.0,
        "after_own_z": 0.4,
        "after_ratio_to_bayes": 2.24,
        "verdict": "worse",  # nearer to theory, too, which is no excuse
    }
    assert {key: document[key] for key in expected} == expected
    text = flat(printed(comparison_tables([gamp, adam])))
    assert "predicted score optimal" in text
    assert "1.1000 +0.4* 0.5000" in text
    assert "adam: no prediction: it has none" in text
    assert missing_values([*after, row(1.0, **{**none, "algorithm": "sgd"})]) == [
        "adam; sgd: no prediction: it has none"
    ]


def test_sizes_and_backends_are_told_apart():
    before = [row(1.0), row(1.0, dimension=20), row(1.0, backend="torch")]
    text = printed(comparison_tables(compare_rows(before, before)))
    assert [
        line.split()[:3] for line in text.splitlines() if line.startswith("gamp")
    ] == [
        ["gamp@numpy", "0.1", "10"],
        ["gamp@numpy", "0.1", "20"],
        ["gamp@torch", "0.1", "10"],
    ]
