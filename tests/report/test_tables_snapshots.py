"""What tables look like at 80 columns, letter by letter; the option ``--snapshot-update`` writes them again."""

import numpy as np
import pytest

from smimbench.interfaces import AlgorithmPrediction
from smimbench.report.catalogue import print_info, print_items
from smimbench.report.comparison import compare_rows
from smimbench.report.tables import (
    comparison_tables,
    diagnostic_tables,
    error_tables,
    runtime_tables,
)
from smimbench.report.theory_document import AlgorithmTheory, ProblemTheory
from smimbench.report.theory_tables import prediction_tables, theory_tables
from smimbench.theory.types import (
    Bifurcation,
    HardPhase,
    TheoryPoint,
    Threshold,
    Thresholds,
)
from tests.report.rows import on_screen, printed, row


def near(fast):
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
        ratio_to_bayes=None, blank=["the algorithm states no error of its estimate"]),
]  # fmt: skip


def at(alpha, mse, error, overlap, branch, method, in_alpha=0.0, **more):
    errors = [np.full(len(mse), size) for size in (error, in_alpha)]
    return TheoryPoint(
        alpha, np.array(mse), *errors, np.array(overlap), branch, method, **more
    )


CURVE = ProblemTheory(
    "attention-indexed softmax wishart(rho=0.5)",
    {},
    [
        at(0.1, [0.8], 1e-9, [[0.7]], "unique", "quadrature", generalization_error={"bayes": 0.2, "plugin": 0.25}),
        at(0.2, [0.4], 0.0, [[1.1]], "unique", "quadrature", generalization_error={"bayes": 0.1, "plugin": 0.125}),
    ],
    Thresholds(None, Threshold(0.375, 1e-8)),
)  # fmt: skip
SEQUENTIAL = ProblemTheory(
    "two layers",
    {"channel": {"name": "softmax", "layers": 2}},
    [at(1.0, [0.5, 0.9], [1e-3, 2e-3], np.diag([0.5, 0.1]), "uninformed", "Monte Carlo")],
    Thresholds(
        Threshold(0.5, 1e-3),
        Threshold(0.4, 1e-3),
        (Bifurcation(1, 0.5, 1e-3), Bifurcation(0, 0.8, 1e-3)),
        HardPhase(Threshold(0.3, 1e-3), Threshold(0.4, 1e-3), Threshold(0.5, 1e-3)),
    ),
)  # fmt: skip
MANY = ProblemTheory(
    "five directions",
    {"channel": {"name": "linear", "components": 5}},
    [
        at(0.4, [0.5] * 5, 1e-3, np.eye(5), "unique", "closed form", 2e-3, generalization_error={"bayes": 0.2, "plugin": 0.25}),
    ],
    Thresholds(Threshold(0.0, 0.0), None, tuple(Bifurcation(k, 0.0 if k < 4 else 0.1, 0.0) for k in range(5))),
)  # fmt: skip


def predicted(name, alpha, size, mse):
    prediction = AlgorithmPrediction([mse, 0.0], [1e-3, 0.0], np.eye(2), "closed form")
    reason = "every step depends on all earlier ones"
    prediction, overlap = (reason, []) if mse is None else (prediction, [1.0, 1.0])
    return AlgorithmTheory(
        name, alpha, size, "D", "component", False, prediction, overlap
    )


PREDICTED = ProblemTheory(
    "linear",
    {},
    algorithms=[
        *(predicted(name, alpha, size, 1 - alpha) for alpha in (0.1, 0.2) for name in ("gamp", "sgd") for size in (100, 200)),
        predicted("adam", 0.1, 100, None),
    ],
)  # fmt: skip
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
    "theory of the algorithms": lambda: prediction_tables([PREDICTED]),
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
