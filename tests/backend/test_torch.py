"""``--backend torch``: the same cells as on NumPy, to rounding. Skipped where PyTorch is not installed."""

import math

import pytest

from tests.helpers import sequence

torch = pytest.importorskip("torch")

import smimbench  # noqa: E402
from smimbench.run.cell import run_cell  # noqa: E402

CELLS = [
    ("quickstart", ["grid.dimension=24", "algorithms.adam.steps=6"]),
    ("aim-softmax", ["grid.dimension=20"]),
    ("aim-hardmax", ["grid.dimension=20"]),
    ("aim-linear", ["grid.dimension=20"]),
    ("aim-hardmax-small-width", ["grid.dimension=30"]),
    ("spectral", ["grid.dimension=40"]),
    ("optimizers", ["grid.dimension=16"]),
]
"""Suites whose cells take a fraction of a second at these sizes."""

ITERATIONS = 4
"""So few that rounding is not carried on: an iteration that runs away doubles it at every step."""


@pytest.mark.parametrize(("suite", "overrides"), CELLS, ids=[name for name, _ in CELLS])
def test_cells_agree_with_numpy(suite, overrides):
    short = [*overrides, f"run.max_iterations={ITERATIONS}", "grid.seeds=1"]
    loaded = smimbench.load_suite(suite, short)
    compared = 0
    for here, there in zip(loaded.cells("numpy"), loaded.cells("torch"), strict=True):
        if (here.algorithm.get("steps") or 0) > 100 or here.algorithm.get("epochs"):
            continue  # the long runs of gradient methods; quickstart has short ones
        wanted, found = run_cell(here), run_cell(there)
        assert found.status == wanted.status, found.traceback or found.reason
        for metric, values in wanted.metrics.items():
            assert found.metrics[metric] == pytest.approx(
                values, rel=1e-10, abs=1e-10
            ), (metric, here)
            compared += len(values)
    assert compared


def test_data_of_an_instance_is_the_same_and_locked_memory_is_copied():
    from smimbench.backend import get_backend

    problem = sequence()
    instance = problem.instance(1.0, 30)
    data = instance.data(get_backend("torch"))
    assert isinstance(data.inputs, torch.Tensor)
    assert (data.inputs.numpy() == instance.inputs).all()
    data.inputs[0, 0, 0] = math.pi
    assert instance.inputs[0, 0, 0] != math.pi
