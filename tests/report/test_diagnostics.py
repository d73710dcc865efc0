"""What runs report beside their estimate: means over the runs that found it, next to theory."""

from __future__ import annotations

import pytest
from rich.console import Console

from smimbench.report.statistics import mean_diagnostics as _findings
from smimbench.report.tables import diagnostic_tables


def record(values):
    return {"final": {"residual": 0.0, "predicted_overlap": [0.5], "leading_eigenvalues": values}}


def row(findings, algorithm="spectral", metric="mse"):
    return {
        "problem": "two layers",
        "algorithm": algorithm,
        "backend": "numpy",
        "alpha": 0.4,
        "dimension": 50,
        "metric": metric,
        "component": 1,
        "findings": findings,
    }


def test_what_was_not_found_is_counted_and_left_out_of_the_mean():
    found = _findings(
        [record([1.0, None]), record([1.2, None]), record([1.4, 0.9]), {"final": {"residual": 1.0}}],
        {"leading_eigenvalues": [1.25, None]},
    )
    first, second = found["leading_eigenvalues"]
    assert set(found) == {"leading_eigenvalues"}  # the loop's own readings are no findings
    assert first["mean"] == pytest.approx(1.2)
    assert first["sem"] == pytest.approx(0.2 / 3**0.5)
    assert (first["found"], first["runs"], first["theory"]) == (3, 3, 1.25)
    assert (second["mean"], second["sem"], second["found"], second["theory"]) == (0.9, None, 1, None)
    assert _findings([{}, {"final": None}], {}) == {}


def test_table_has_one_line_for_each_number():
    found = _findings([record([1.0, None]), record([1.2, None])], {"leading_eigenvalues": [1.25, None]})
    rows = [row(found), row({}, "gamp"), row(found, metric="overlap")]
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for table in diagnostic_tables(rows):
        console.print(table)
    console.file.close()
    text = console.export_text()
    lines = [line for line in text.splitlines() if line.startswith("spectral")]
    assert "two layers: leading eigenvalues" in text
    assert [line.split()[1:] for line in lines] == [
        ["0.4", "1", "1.1000±0.1000", "1.2500", "2/2"],
        ["0.4", "2", "none", "none", "0/2"],
    ]
    assert all(len(line) <= 80 for line in text.splitlines())
    assert diagnostic_tables([row({})]) == []
