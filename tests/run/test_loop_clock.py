"""The clock sees the work of an algorithm wherever it is done, and CPU time that of threads which work while it stands still."""

import pytest

from smimbench.registry.registry import Registry, set_registry
from smimbench.report.results import Results
from smimbench.run.cell import run_cell
from smimbench.run.store import Store
from tests.helpers import LINE, ROOT, loaded, suite_text

WORK = 0.1
ON_THE_CLOCK = (
    "in-step",
    "in-estimate",
    "in-variance",
    "in-plan",
    "by-content",
    "by-identity",
    "by-random-numbers",
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Records of a run with ``--timing``, and their rows, by algorithm."""
    folder = tmp_path_factory.mktemp("clock")
    set_registry(Registry([str(ROOT / "tests" / "hidden_work.py")]))
    try:
        algorithms = [f'name = "{name}"' for name in (*ON_THE_CLOCK, "in-thread")]
        suite = loaded(folder, suite_text(LINE, [0.5], 20, 1, *algorithms))
        store = Store(folder / "results")
        for cell in suite.cells():
            store.write(run_cell(cell, timing=True))
        documents = (row.document() for row in Results(suite, store).rows)
        yield {row["algorithm"]: row for row in documents if row["metric"] == "mse"}
    finally:
        set_registry(None)


@pytest.mark.parametrize("name", ON_THE_CLOCK)
def test_work_is_on_the_clock_wherever_it_is_done(rows, name):
    """A busy machine makes the clock show more, never less."""
    assert rows[name]["status_counts"] == {"ok": 1}
    assert rows[name]["seconds"] >= WORK
    assert rows[name]["cpu_seconds"] >= WORK
    assert not [
        line for line in rows[name]["warnings"] if "other threads computed" in line
    ]


def test_a_thread_that_works_while_the_clock_stands_still_is_said(rows):
    row = rows["in-thread"]
    assert row["cpu_seconds"] > 0.9 * WORK
    assert [
        line for line in row["warnings"] if "other threads computed outside" in line
    ]
