"""The fuzzing jobs, small: their full size is run by hand (``--cases 100000``, for ``stored.py`` 500)."""

import subprocess
import sys

import pytest

from tests.helpers import ROOT, environment


@pytest.mark.slow
def test_two_hundred_bad_inputs_are_refused_in_one_line_each():
    done = subprocess.run([sys.executable, "-W", "ignore", ROOT / "tests" / "fuzz" / "job.py", "--cases", "200", "--seed", "3"],
                          capture_output=True, text=True, env=environment(), timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.startswith("200 cases")
    assert "0 findings" in done.stdout


@pytest.mark.slow
def test_forty_changed_packs_and_forty_changed_files_are_refused_or_shown():
    job = ROOT / "tests" / "fuzz" / "stored.py"
    done = subprocess.run([sys.executable, "-W", "ignore", job, "--cases", "40", "--seed", "5"],
                          capture_output=True, text=True, env=environment(), timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.startswith("40 packs, 40 records and trajectories")
