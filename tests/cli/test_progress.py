"""What a run says of itself while it runs."""

import io
import re
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from smimbench.cli import progress
from smimbench.cli.options import Request
from smimbench.run.executor import RunningTask, Task
from smimbench.run.theory_solver import Progress, TheorySolver
from tests.helpers import SUITE, call, loaded, write_suite
from tests.records import record
from tests.report.rows import row


@dataclass
class Terminal:
    """A console of 80 columns that is taken for a terminal, and what it shows."""

    stream: io.StringIO = field(default_factory=io.StringIO)

    def console(self, **_):
        return Console(
            file=self.stream,
            force_terminal=True,
            width=80,
            highlight=False,
            _environ={"TERM": "xterm"},
        )

    @property
    def text(self):
        return self.stream.getvalue()


@pytest.fixture
def cells(tmp_path):
    return loaded(tmp_path).cells()


def underway(cell, seconds, iterations):
    return RunningTask(Task((cell,), frozenset()), seconds, iterations)


def campaign(cells):
    return SimpleNamespace(
        cells_to_run=cells, dask=None, workers=2, suite=SimpleNamespace(name="small")
    )


def test_a_log_is_told_of_a_long_cell_whenever_its_time_has_doubled(cells, capsys):
    with progress.run_progress(campaign(cells), silent=False) as callbacks:
        for seconds in range(0, 1000):
            callbacks.on_progress(
                [
                    underway(cells[0], float(seconds), seconds // 10),
                    underway(cells[1], 1.0, 3),
                ]
            )
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == f"small: running {len(cells)} cells, 2 at a time"
    assert [line.partition(":")[2].strip().partition(": ")[0] for line in lines] == [
        f"running for {clock}" for clock in ("1:00", "2:00", "4:00", "8:00", "16:00")
    ]
    cell = cells[0]
    assert (
        f"alpha {cell.alpha:g}, D {cell.dimension}, seed {cell.replicate}: 12 iterations"
        in lines[1]
    )


def test_a_terminal_shows_what_a_long_cell_is_at_and_no_longer_than_it_runs(
    cells, monkeypatch
):
    terminal = Terminal()
    monkeypatch.setattr(progress, "make_console", terminal.console)
    with progress.run_progress(campaign(cells), silent=False) as callbacks:
        callbacks.on_progress([underway(cells[0], 4.0, 1)])
        callbacks.on_progress([underway(cells[0], 3725.0, 17)])
        callbacks.on_progress([underway(cells[0], 3726.0, 18)])
    assert "18 iterations, 1:02:06" in terminal.text
    assert "1 iterations, 0:04" not in terminal.text
    terminal.stream = io.StringIO()
    with progress.run_progress(campaign(cells), silent=False) as callbacks:
        callbacks.on_progress([underway(cells[0], 60.0, 0)])
        callbacks.on_progress([])
        callbacks.on_record(
            record(
                status="diverged",
                algorithm="gamp",
                cell={"alpha": 0.5},
                reason="too far",
            )
        )
    assert "gamp at alpha 0.5: diverged: too far" in terminal.text
    assert "starting" not in terminal.text.partition("too far")[2]


def test_a_terminal_shows_which_curve_of_how_many_is_solved_before_anything_is_known(
    tmp_path, monkeypatch
):
    terminal = Terminal()
    monkeypatch.setattr(progress, "make_console", terminal.console)
    suite = loaded(tmp_path, SUITE.replace("noise = 0.2", "noise = [0.1, 0.2, 0.3]"))
    shown = progress.TheoryProgress(Request(quiet=False), suite, tmp_path)
    with shown:
        assert "curve 1 of 3" in terminal.text
        assert "curve 2 of 3" not in terminal.text
        shown.on_progress(suite.plans[1].problem, Progress(2, 7, nodes=31))
        time.sleep(0.3)  # until the next picture
    assert "curve 2 of 3" in terminal.text
    assert "2 / 7, 31 nodes" in terminal.text


def test_a_line_of_a_figure_is_told_before_it_is_solved(tmp_path):
    (plan,) = loaded(tmp_path).plans
    told = []
    solver = TheorySolver(on_progress=lambda *progress: told.append(progress))
    solver.line(plan.problem, [0.4, 0.5, 0.6])
    assert told[0] == (plan.problem, Progress(0, 1))


@pytest.mark.parametrize(
    "command",
    [("run", "--workers", "1"), ("theory",), ("score", "--estimate", "estimate.npz")],
)
def test_whatever_solves_theory_says_so(command, tmp_path, capsys, monkeypatch):
    """In a log, after a second; here, at once."""
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    monkeypatch.chdir(tmp_path)
    suite = write_suite(tmp_path, SUITE.replace("[0.5, 1.0]", "[0.5]"))
    np.savez("estimate.npz", estimate=np.ones((1, 30)))
    name, *options = command
    code, _, err = call(capsys, name, suite, *options)
    assert code == 0, err
    assert re.search(r"running for 0:0\d: curve 1 of 1: line: 0 / 1", err)
    for silent in ("--quiet", "--json"):
        assert call(capsys, name, suite, *options, silent)[2] == ""


def test_silence_is_silent(cells, capsys):
    with progress.run_progress(campaign(cells), silent=True) as callbacks:
        callbacks.on_progress([underway(cells[0], 1e4, 7)])
        callbacks.on_record(record(status="failed"))
    assert capsys.readouterr() == ("", "")


def test_a_failure_that_repeats_is_said_once(cells, capsys):
    """84 cells of one broken line are one line, whatever numbers their messages have; other failures are said, too."""

    def failed(alpha, reason, where):
        return record(
            status="failed",
            algorithm="muon",
            cell={"alpha": alpha},
            reason=reason,
            where=where,
        )

    with progress.run_progress(campaign(cells), silent=False) as callbacks:
        for seed in range(84):
            callbacks.on_record(
                failed(
                    0.1 * (seed % 3),
                    f"ValueError: bad seed {seed} [x]",
                    "muon.py, line 12",
                )
            )
        callbacks.on_record(failed(0.1, "ValueError: other", "muon.py, line 13"))
        for step in range(5):
            reason = f"not finite at iteration {step}"
            callbacks.on_record(
                record(status="diverged", algorithm="gd", reason=reason)
            )
    lines = capsys.readouterr().err.splitlines()[1:]
    assert [line.partition(" at")[0] for line in lines] == ["muon", "muon", "gd"]
    assert (
        lines[0]
        == "muon at alpha 0: failed: ValueError: bad seed 0 [x] (muon.py, line 12)"
    )


def test_the_table_counts_the_cells_of_a_failure():
    from smimbench.cli.results import _failure_reasons

    rows = [
        row(algorithm="muon", alpha=alpha, metric=metric, status_counts={"failed": 28},
            reasons=[f"failed: ValueError: bad seed {seed} (muon.py, line 12)" for seed in range(28)])
        for alpha in (0.3, 0.1, 0.2) for metric in ("mse", "overlap")
    ]  # fmt: skip
    assert _failure_reasons(rows) == [
        "muon: 84 cells failed, first at alpha 0.1: ValueError: bad seed 0 (muon.py, line 12)"
    ]
