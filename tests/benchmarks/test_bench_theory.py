"""Whole curves of theory, from nothing, as ratios to a million exponentials.

They take minutes, so that they run only where ``SMIMBENCH_BENCH_CURVES=1`` says so. Each is a process of its own, for nothing
may be remembered; its CPU seconds hold the start of Python, the loading of compiled code, but no compiling
where that has been done before.

    SMIMBENCH_BENCH_CURVES=1 python -m pytest -o addopts=--import-mode=importlib tests/benchmarks/test_bench_theory.py
"""

import os
import resource
import subprocess
import sys

import pytest

from tests.benchmarks.conftest import best_pair

pytestmark = [
    pytest.mark.benchmark(group="curves of theory"),
    pytest.mark.skipif(os.environ.get("SMIMBENCH_BENCH_CURVES") != "1", reason="SMIMBENCH_BENCH_CURVES=1 runs them"),
]

THRESHOLDS = """
from smimbench.problem.problem import Problem
from smimbench.theory.continuation import Continuation

model = {{"name": "sequence-multi-index", "tokens": 2}}
problem = Problem(model, {{"name": "softmax", "layers": {layers}, "skip": 1.0}}, "gaussian")
curve = Continuation(problem)
curve.follow_bifurcations({count})
print([(b.component + 1, b.alpha, b.error) for b in curve.bifurcations])
"""


def suite(*arguments: str) -> list[str]:
    """Theory of a suite; the folder of results comes last."""
    return ["-m", "smimbench", "theory", *arguments, "--quiet", "--results"]


CURVES = {
    "smi-two-layers": suite("smi-two-layers"),
    "smi-skip": suite("smi-skip"),
    "aim-two-layers, one point": suite("aim-two-layers", "--alpha", "0.2", "--no-thresholds"),
    "aim-two-layers, one point and thresholds": suite("aim-two-layers", "--alpha", "0.2"),
    "three layers, all thresholds": ["-c", THRESHOLDS.format(layers=3, count=3)],
    "four layers, two thresholds": ["-c", THRESHOLDS.format(layers=4, count=2)],
}


@pytest.mark.parametrize("name", CURVES)
def test_curve(benchmark, calibration, tmp_path, name):
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, *CURVES[name], str(tmp_path)]

    def run() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, env=os.environ | one_thread, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    first = best_pair(calibration.exp, calibration.exp)
    seconds = benchmark.pedantic(run, rounds=1)
    second = best_pair(calibration.exp, calibration.exp)
    unit = (first.seconds + second.seconds) / 2
    benchmark.extra_info.update(calibration="exp", cpu_seconds=seconds, unit=unit, ratio=seconds / unit)
    assert seconds > 0
