"""The check of a GPU, rehearsed on the host: its table is complete, and estimates that differ are noticed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from smimbench.backend import get_backend
from tests.gpu import table
from tests.helpers import ROOT, environment


@pytest.mark.slow
def test_one_command_prints_a_row_for_every_size_problem_and_precision(tmp_path):
    completed = subprocess.run(
        ["bash", str(ROOT / "tests" / "gpu" / "check.sh")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(
            PATH=os.pathsep.join(
                [str(Path(sys.executable).parent), os.environ["PATH"]]
            ),
            BACKEND="numpy",
            SIZES="8",
            PARTS="table",
            OUT=str(tmp_path),
        ),
        timeout=120,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert (tmp_path / "table.md").read_text() == completed.stdout
    rows = [
        dict(zip(table.COLUMNS, line.strip("| ").split(" | "), strict=True))
        for line in completed.stdout.splitlines()
        if line.startswith("| ") and not line.startswith("| problem")
    ]
    assert [row["dtype"] for row in rows] == 3 * list(table.ALLOWED_DIFFERENCES)
    assert {row["D"] for row in rows} == {"8", "80"}
    assert all(float(row["ms"]) > 0 and row["difference"] == "0e+00" for row in rows)


def test_estimates_that_differ_between_device_and_host_fail():
    *_, (_, problem, alpha, _) = table.problems()
    device = get_backend("numpy", "float32")
    entries, agree = table.row(problem, alpha, 40, "float64", device, (1e12, 1e11))
    assert not agree
    assert entries[-1].endswith("FAILED")
