"""What tables look like at 80 columns, letter by letter; the option ``--snapshot-update`` writes them again."""

from __future__ import annotations

import numpy as np
import pytest

from smimbench.report.catalogue import print_info, print_items
from smimbench.report.comparison import compare_rows
from smimbench.report.tables import (
    comparison_tables,
    diagnostic_tables,
    error_tables,
    runtime_tables,
)
from smimbench.report.theory_tables import own_theory_tables, theory_tables
from tests.report.rows import on_screen, printed, row


def near(fast: float) -> dict[str, dict[str, float]]:
    """Times to come within 50, 20 and 5% of theory."""
    return {
        epsilon: {
            "seconds": fast * factor,
            "iterations": 3.0 * factor,
            "fraction": 0.75,
        }
        for epsilon, factor in (("0.5", 1.0), ("0.2", 2.0), ("0.05", 4.0))
    }


ROWS = [
    row(algorithm="gamp", mean=0.41, difference=0.01, z=1.0, ratio_to_bayes=1.025, time_to_theory=near(0.1)),
    row(algorithm="adam", mean=0.52, sem=None, n=1, z=None, difference=0.12, ratio_to_bayes=1.3, time_to_theory=near(0.5)),
    row(algorithm="ridge", mean=None, n=0, sem=None, difference=None, z=None, ratio_to_bayes=None,
        status_counts={"ok": 3, "diverged": 1}, time_to_theory=near(2.0), trusted=False),
]  # fmt: skip
LAYERS = [
    row(
        component=k,
        component_word="layer",
        algorithm=name,
        mean=0.1 * k,
        time_to_theory=near(0.1 * k),
    )
    for name in ("gamp", "adam", "sgd")
    for k in (1, 2)
]
EIGENVALUES = {
    "leading_eigenvalues": [
        {"mean": 1.25, "sem": 0.02, "found": 4, "runs": 4, "theory": 1.2},
        {"mean": None, "sem": None, "found": 0, "runs": 4, "theory": None},
    ]
}
CALIBRATION = [
    row(metric="calibration", mean=1.02, theory=1.0, theory_error=0.0, difference=0.02, z=2.0, ratio_to_bayes=None),
    row(metric="calibration", algorithm="adam", n=0, mean=None, sem=None, theory=1.0, difference=None, z=None,
        ratio_to_bayes=None, blank=["the algorithm claims no error"]),
]  # fmt: skip
CURVE = {
    "problem": {"label": "attention-indexed softmax wishart(rho=0.5)"},
    "points": [
        {"alpha": 0.1, "mse": 0.8, "mse_error": 1e-9, "overlap": [[0.7]], "branch": "unique", "method": "quadrature",
         "generalization_error": {"bayes": 0.2, "plugin": 0.25}},
        {"alpha": 0.2, "mse": 0.4, "mse_error": 0.0, "overlap": [[1.1]], "branch": "unique", "method": "quadrature",
         "generalization_error": {"bayes": 0.1, "plugin": 0.125}},
    ],
    "thresholds": {"weak_recovery": None, "perfect_recovery": {"value": 0.375, "error": 1e-8}},
}  # fmt: skip
SEQUENTIAL = {
    "problem": {"label": "two layers", "channel": {"name": "softmax", "layers": 2}},
    "points": [
        {"alpha": 1.0, "mse": [0.5, 0.9], "mse_error": [1e-3, 2e-3], "overlap": [[0.5, 0.0], [0.0, 0.1]],
         "branch": "uninformed", "method": "Monte Carlo"},
    ],
    "thresholds": {
        "weak_recovery": {"value": 0.5, "error": 1e-3, "informed": {"value": 0.4, "error": 1e-3}},
        "perfect_recovery": None,
        "sequential": [{"layer": 2, "value": 0.5, "error": 1e-3}, {"layer": 1, "value": 0.8, "error": 1e-3}],
    },
    "hard_phase": [0.4, 0.5],
}  # fmt: skip
MANY = {
    "problem": {"label": "five directions", "channel": {"name": "linear", "components": 5}},
    "points": [
        {"alpha": 0.4, "mse": [0.5] * 5, "mse_error": [1e-3] * 5, "alpha_error": [2e-3] * 5, "overlap": np.eye(5).tolist(),
         "branch": "unique", "method": "closed form", "generalization_error": {"bayes": 0.2, "plugin": 0.25}},
    ],
    "thresholds": {
        "weak_recovery": {"value": 0.0, "error": 0.0},
        "perfect_recovery": None,
        "sequential": [{"layer": k, "value": 0.0 if k < 5 else 0.1, "error": 0.0} for k in range(1, 6)],
    },
}  # fmt: skip
OWN = {
    "problem": {"label": "linear"},
    "algorithms": [
        {"algorithm": name, "alpha": alpha, "dimension": size, "dimension_letter": "D", "component_word": "component",
         "point": {"mse": [mse, 0.0], "mse_error": [1e-3, 0.0], "overlap": np.eye(2).tolist(), "method": "closed form"},
         "overlap": [1.0, 1.0]}
        for alpha, mse in ((0.1, 0.9), (0.2, 0.8)) for name in ("gamp", "sgd") for size in (100, 200)
    ] + [{"algorithm": "adam", "alpha": 0.1, "dimension": 100, "no_theory": "every step depends on all earlier ones"}],
}  # fmt: skip
ITEM = {
    "name": "mse", "kind": "metric", "summary": "Squared error of the signal.", "models": ["*"], "backends": ["*"],
    "dtypes": ["float64", "float32"], "version": 1, "reference": "the definition", "distribution": "smimbench",
    "derived": [], "parameters": [{"name": "scale", "type": "float", "required": False, "default": 1.0}],
    "documentation": "Squared error of the signal.",
}  # fmt: skip

TABLES = {
    "error": lambda: error_tables(ROWS),
    "error of layers": lambda: error_tables(LAYERS),
    "calibration": lambda: error_tables(CALIBRATION),
    "runtime": lambda: runtime_tables(ROWS, "here"),
    "diagnostics": lambda: diagnostic_tables(
        [row(algorithm="spectral", findings=EIGENVALUES)]
    ),
    "comparison": lambda: comparison_tables(
        compare_rows(ROWS[:2], [row(algorithm="gamp", mean=0.5), row(algorithm="new")])
    ),
    "theory": lambda: theory_tables([CURVE, SEQUENTIAL, MANY]),
    "theory of the algorithms": lambda: own_theory_tables([OWN]),
}


@pytest.mark.parametrize("name", TABLES)
def test_table(name, snapshot):
    assert printed(TABLES[name]()) == snapshot


def test_list(snapshot):
    assert (
        on_screen(lambda console: print_items(console, {"metrics": [ITEM]})) == snapshot
    )


def test_info(snapshot):
    assert on_screen(lambda console: print_info(console, [ITEM])) == snapshot
