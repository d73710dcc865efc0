"""The table of a GPU's results, made from records of the host."""

import json
import subprocess
import sys

from smimbench.run.cell import run_cell
from tests.helpers import ATTENTION, ROOT, environment, loaded


def table(*arguments):
    call = [
        sys.executable,
        str(ROOT / "tests" / "gpu" / "table.py"),
        *map(str, arguments),
    ]
    return subprocess.run(
        call, capture_output=True, text=True, env=environment(), timeout=60
    )


def test_a_row_for_every_trusted_record_with_machine_and_versions(tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    for dtype in ("float64", "mixed"):
        cell, *_ = loaded(
            tmp_path, ATTENTION, [f"run.dtype={dtype}"], ["algorithm=gamp"]
        ).cells()
        record = run_cell(cell).document
        record["timing"] |= {
            "trusted": True,
            "ceilings": {"float64": 1e12, "bandwidth": 1e11},
        }
        (results / f"{dtype}.json").write_text(json.dumps({"record": record}))
    record["timing"]["trusted"] = False
    (results / "untrusted.json").write_text(json.dumps({"record": record}))
    probe = tmp_path / "probe.json"
    probe.write_text(
        json.dumps(
            {f"eigh {cell.dimension} float64 s": record["timing"]["per_iteration"] / 4}
        )
    )
    found = table(results, probe, "--into", tmp_path / "reference")
    assert found.returncode == 0, found.stderr
    rows = [
        line
        for line in found.stdout.splitlines()
        if line.startswith(f"| {record['problem']} |")
    ]
    assert ["| mixed |" in line for line in rows] == [False, True]
    assert "| 25% |" in rows[1]
    assert all("% of " in line for line in rows)
    assert f"numpy: {record['versions']['numpy']}" in found.stdout
    assert (tmp_path / "reference" / "README.md").read_text() == found.stdout
    assert (tmp_path / "reference" / "mixed.json").exists()


def test_nothing_measured_is_said_not_invented(tmp_path):
    found = table(tmp_path)
    assert found.returncode == 1
    assert "no record with trusted times" in found.stderr
