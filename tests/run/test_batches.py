"""Cells that differ in their seeds and run together: their records are those of single runs, whatever happens to one of them."""

import zlib
from dataclasses import replace

import numpy as np
import pytest
from smimbench_attention.algorithms.sgd import Sgd

from smimbench.registry.registry import Registry, set_registry
from smimbench.run import cell as runner
from smimbench.run.batches import BATCH_BYTES, batches
from smimbench.run.campaign import run_cells
from smimbench.run.cell import run_cell, run_together
from smimbench.run.executor import NO_LIMITS, Limits
from smimbench.run.processes import ClaimFiles, run_in_processes
from smimbench.run.store import Store
from tests.helpers import call, loaded
from tests.records import numbers
from tests.report.test_rows_metrics import METRIC

PROBLEMS = {
    "softmax": """
model = { name = "attention-indexed", tokens = 2 }
channel = { name = "softmax" }
prior = { name = "wishart", rho = 0.5 }""",
    "wide factor, three tokens": """
model = { name = "attention-indexed", tokens = 3 }
channel = { name = "linear", noise = 0.1 }
prior = { name = "wishart", rho = 0.9 }""",
    "queries and keys": """
model = { name = "attention-indexed", tokens = 3, symmetric = false }
channel = { name = "softmax" }
prior = { name = "bilinear", rho = 0.5 }""",
    "hardmax": """
model = { name = "attention-indexed", tokens = 2 }
channel = { name = "hardmax" }
prior = { name = "wishart", rho = 0.5 }""",
    "correlated tokens": """
model = { name = "attention-indexed", tokens = 2 }
channel = { name = "softmax" }
prior = { name = "wishart", rho = 0.5 }
inputs = { name = "correlated-tokens" }""",
    "low rank": """
model = { name = "sequence-multi-index", tokens = 2 }
channel = { name = "softmax" }
prior = { name = "gaussian" }""",
}
ALGORITHMS = (
    'name = "adam"',
    'name = "adamw"\nweight_decay = 0.01\nschedule = "cosine"',
    'name = "sgd"\nlearning_rate = 0.001\nmomentum = 0.9\nweight_decay = 0.1',
    'name = "signsgd"\nspherical = true',
    'name = "muon"',
)


def cells_of(folder, problem, algorithm, *overrides, alpha="[0.7]", dimension="[12]"):
    text = f"""
[suite]
title = "Seeds"

[[problems]]
label = "it"{problem}
grid = {{ alpha = {alpha} }}

[grid]
dimension = {dimension}
seeds = 4

[[algorithms]]
{algorithm}
steps = 20
"""
    return loaded(folder, text, list(overrides)).cells()


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda text: text.split('"')[1])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_runs_together_have_the_bits_of_single_ones(tmp_path, problem, algorithm):
    rng = np.random.default_rng(zlib.crc32((problem + algorithm).encode()))
    sizes = {
        "alpha": f"[{rng.uniform(0.3, 2)}]",
        "dimension": f"[{rng.integers(6, 20)}]",
    }
    cells = cells_of(tmp_path, PROBLEMS[problem], algorithm, **sizes)
    assert batches(cells, 1, single=False) == [cells]
    together = run_together(cells)
    for cell, record in zip(cells, together):
        assert numbers(record.document) == numbers(run_cell(cell).document)


@pytest.mark.parametrize(
    ("factor", "second"), [(1e170, None), (np.nan, None), (np.nan, Sgd(steps=3))]
)
def test_a_run_that_diverges_touches_no_other(tmp_path, monkeypatch, factor, second):
    draw = runner._instance
    monkeypatch.setattr(Sgd, "retry", lambda self, problem, status: second)

    def broken_draw(cell, problem, backend):
        instance, checksum = draw(cell, problem, backend)
        if cell.replicate == 2:
            instance = replace(instance, labels=factor * instance.labels)
            checksum = instance.checksum()
        return instance, checksum

    monkeypatch.setattr(runner, "_instance", broken_draw)
    singles = []
    monkeypatch.setattr(
        runner, "run_cell", lambda cell, **how: singles.append(cell) or run_cell(cell)
    )
    cells = cells_of(
        tmp_path,
        PROBLEMS["wide factor, three tokens"],
        'name = "sgd"\nlearning_rate = 0.001',
    )
    together = run_together(cells)
    assert second is None or singles == cells  # of times of a batch it has no share
    assert [record.status for record in together] == ["ok", "ok", "diverged", "ok"]
    for cell, record in zip(cells, together):
        alone = run_cell(cell)
        assert numbers(record.document) == numbers(alone.document)
        assert record.document["warnings"] == alone.document["warnings"]
        assert record.reason == alone.reason


def test_an_error_in_one_run_is_in_its_record_alone(tmp_path, monkeypatch):
    measure = runner._measure

    def broken_measure(cell, *arguments):
        if cell.replicate == 1:
            raise ZeroDivisionError("of the metric")
        return measure(cell, *arguments)

    monkeypatch.setattr(runner, "_measure", broken_measure)
    records = run_together(cells_of(tmp_path, PROBLEMS["softmax"], 'name = "adam"'))
    assert [record.status for record in records] == ["ok", "failed", "ok", "ok"]
    assert records[1].reason == "ZeroDivisionError: of the metric"


def test_which_cells_run_together(tmp_path):
    adam = 'name = "adam"'
    softmax = PROBLEMS["softmax"]
    cells = cells_of(tmp_path, softmax, adam, alpha="[0.5, 0.7]")
    assert [len(batch) for batch in batches(cells, 1, single=False)] == [4, 4]
    assert [len(batch) for batch in batches(cells, 3, single=False)] == [2, 2, 2, 2]
    assert batches(cells, 1, single=True) == [[cell] for cell in cells]
    for algorithm, *overrides in (
        (adam + "\nbatch = 5",),
        (adam, "run.timeout=9"),
        (adam, 'run.dtype="float32"'),
        (adam, 'run.start="informed"'),
    ):
        others = cells_of(tmp_path, softmax, algorithm, *overrides)
        assert [len(batch) for batch in batches(others, 1, single=False)] == [1] * 4
    large = cells_of(tmp_path, softmax, adam, dimension="[60]")
    inputs = 8 * round(0.7 * 60**2) * 2 * 60
    assert 2 * inputs > BATCH_BYTES
    assert [len(batch) for batch in batches(large, 1, single=False)] == [1] * 4


def test_cells_with_a_trajectory_metric_of_somebody_else_run_alone(tmp_path):
    text = METRIC.replace("VERSION", "1").replace(
        "    def measure", "    in_trajectory = True\n\n    def measure"
    )
    (tmp_path / "share.py").write_text(text)
    set_registry(Registry([str(tmp_path / "share.py")]))
    cells = cells_of(tmp_path, PROBLEMS["softmax"], 'name = "adam"')
    assert [len(batch) for batch in batches(cells, 1, single=False)] == [1] * 4


PECULIAR = '''
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
from smimbench import Capabilities, hookimpl
from smimbench_attention.algorithms.adam import Adam
from smimbench_attention.channels.linear import SequenceLinear
from smimbench_attention.models.sequence_multi_index import SequenceMultiIndex
from smimbench_attention.priors.gaussian import Gaussian

class Marked:
    version: ClassVar[int] = 1
    reference: ClassVar[str] = "none"

@dataclass(frozen=True)
class Keeper(Marked, Adam):
    """Adam that claims an error that is a number of its data."""
    name: ClassVar[str] = "keeper"
    steps_jointly: ClassVar[bool] = True

    def init(self, problem, data, rng, students=None):
        object.__setattr__(self, "_scale", float(np.mean(data.inputs**2)))
        return super().init(problem, data, rng, students)

    def variance(self, state):
        return np.full((1, 1), self._scale)

@dataclass(frozen=True)
class Raiser(Marked, Adam):
    """Adam that cannot say what it refuses."""
    name: ClassVar[str] = "raiser"
    steps_jointly: ClassVar[bool] = True

    def refuses(self, problem):
        raise ZeroDivisionError("of the plugin")

@dataclass(frozen=True)
class Single(Marked, SequenceMultiIndex):
    """Model that measures one estimate."""
    name: ClassVar[str] = "single"

    def squared_error(self, signal, estimate):
        return np.sum((signal - estimate) ** 2, axis=1) / signal.shape[1]

@dataclass(frozen=True)
class SingleLinear(Marked, SequenceLinear):
    """Linear labels of that model."""
    name: ClassVar[str] = "single-linear"
    capabilities: ClassVar = Capabilities(models=("single",))

@dataclass(frozen=True)
class SingleGaussian(Marked, Gaussian):
    """Prior of that model."""
    name: ClassVar[str] = "single-gaussian"
    capabilities: ClassVar = Capabilities(models=("single",))

@hookimpl
def smimbench_register_algorithms(register):
    register(Keeper)
    register(Raiser)

@hookimpl
def smimbench_register_models(register):
    register(Single)

@hookimpl
def smimbench_register_channels(register):
    register(SingleLinear)

@hookimpl
def smimbench_register_priors(register):
    register(SingleGaussian)
'''
SINGLE = """
model = { name = "single", tokens = 2 }
channel = { name = "single-linear", noise = 0.1 }
prior = { name = "single-gaussian" }"""


@pytest.mark.parametrize(
    ("problem", "algorithm", "size"),
    [
        (PROBLEMS["softmax"], "keeper", 4),
        (PROBLEMS["softmax"], "raiser", 1),
        (SINGLE, "keeper", 1),
    ],
)
def test_what_plugins_may_do_is_no_different_in_a_batch(
    tmp_path, problem, algorithm, size
):
    """An algorithm may keep numbers of its data, and raise where it is asked; a model measures one estimate at a time."""
    (tmp_path / "peculiar.py").write_text(PECULIAR)
    set_registry(Registry([str(tmp_path / "peculiar.py")]))
    cells = cells_of(tmp_path, problem, f'name = "{algorithm}"')
    split = batches(cells, 1, single=False)
    assert [len(batch) for batch in split] == [size] * (4 // size)
    together = [record for batch in split for record in run_together(batch)]
    for cell, record in zip(cells, together):
        alone = run_cell(cell)
        assert (record.status, record.reason) == (alone.status, alone.reason)
        assert numbers(record.document) == numbers(alone.document)


KILLER = '''
import os, signal
from dataclasses import dataclass
from typing import ClassVar
from smimbench import hookimpl
from smimbench_attention.algorithms.adam import Adam

@dataclass(frozen=True)
class Killer(Adam):
    """Ends its process in the second step that it makes of several runs."""
    name: ClassVar[str] = "killer"
    version: ClassVar[int] = 1
    reference: ClassVar[str] = "none"
    steps_jointly: ClassVar[bool] = True

    def joint_step(self, problem):
        make_step = super().joint_step(problem)

        def fatal_step(data, states):
            if states[0].steps_made == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return make_step(data, states)

        return fatal_step

@hookimpl
def smimbench_register_algorithms(register):
    register(Killer)
'''


@pytest.mark.usefixtures("started_workers")
def test_cells_of_a_batch_that_was_killed_run_alone(tmp_path):
    (tmp_path / "killer.py").write_text(KILLER)
    set_registry(Registry([str(tmp_path / "killer.py")]))
    cells = cells_of(tmp_path, PROBLEMS["softmax"], 'name = "killer"')
    assert batches(cells, 1, single=False) == [cells]
    records = run_cells(cells, Store(tmp_path / "results"), in_subprocess=True)
    assert [record.key for record in records] == [cell.key for cell in cells]
    for cell, record in zip(cells, records):
        assert record.status == "ok"
        assert numbers(record.document) == numbers(run_cell(cell).document)


@pytest.mark.parametrize("limits", [NO_LIMITS, Limits(seconds=60.0)])
def test_cells_that_another_run_has_finished_are_left_out(tmp_path, limits):
    cells = cells_of(tmp_path, PROBLEMS["softmax"], 'name = "adam"')
    Store(tmp_path / "results").write(run_cell(cells[1]))
    claims = ClaimFiles(tmp_path / "results")
    records = run_in_processes(cells, 1, 1, claims=claims, limits=limits)
    assert [record.key for record in records] == [
        cells[index].key for index in (0, 2, 3)
    ]
    assert not claims.folder.exists()


def test_records_of_a_batch_verify(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cells = cells_of(tmp_path, PROBLEMS["softmax"], 'name = "adam"')
    suite = str(next(tmp_path.glob("*.toml")))
    assert call(capsys, "run", suite, "--no-figure", "--workers", "1")[0] == 0
    code, output, _ = call(capsys, "verify", suite)
    assert (code, len(cells)) == (0, 4), output
