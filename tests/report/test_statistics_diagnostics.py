"""What runs report next to their estimate: means over the runs that found it, next to theory."""

from dataclasses import asdict

import pytest

from smimbench.report.row import Finding
from smimbench.report.statistics import mean_diagnostics
from smimbench.report.tables import diagnostic_tables
from tests import records
from tests.report.rows import printed, row


def record(values):
    final = {"residual": 0.0, "predicted_overlap": [0.5], "leading_eigenvalues": values}
    return records.record(final=final)


def test_what_was_not_found_is_counted_and_left_out_of_the_mean():
    found = mean_diagnostics(
        [
            record([1.0, None]),
            record([1.2, None]),
            record([1.4, 0.9]),
            records.record(final={"residual": 1.0}),
        ],
        {"leading_eigenvalues": [1.25, None]},
    )
    # The loop's own readings are no findings.
    assert found == {
        "leading_eigenvalues": [
            Finding(pytest.approx(1.2), pytest.approx(0.2 / 3**0.5), 3, 3, 1.25),
            Finding(0.9, None, 1, 3, None),
        ]
    }
    assert mean_diagnostics([records.record()], {}) == {}


def test_table_has_one_line_for_each_number():
    found = mean_diagnostics(
        [record([1.0, None]), record([1.2, None])],
        {"leading_eigenvalues": [1.25, None]},
    )
    found = {name: list(map(asdict, findings)) for name, findings in found.items()}
    about = {
        "problem": "two layers",
        "alpha": 0.4,
        "component": 1,
        "algorithm": "spectral",
    }
    rows = [
        row(**about, findings=found),
        row(problem="two layers"),
        row(**about, metric="overlap", findings=found),
    ]
    text = printed(diagnostic_tables(rows))
    lines = [line for line in text.splitlines() if line.startswith("spectral")]
    assert "two layers: leading eigenvalues" in text
    assert [line.split()[1:] for line in lines] == [
        ["0.4", "1", "1.1000±0.1000", "1.2500", "2/2"],
        ["0.4", "2", "none", "none", "0/2"],
    ]
    assert all(len(line) <= 80 for line in text.splitlines())
    assert diagnostic_tables([row()]) == []
