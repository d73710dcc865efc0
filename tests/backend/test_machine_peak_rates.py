"""Ceilings: measured, remembered, and the fraction of them that a run reaches."""

import json

import numpy as np
import pytest

from smimbench.backend import machine
from smimbench.backend.device import get_backend
from smimbench.backend.machine import (
    measure_peak_rates,
    peak_fraction,
    stored_peak_rates,
)
from smimbench.interfaces.problem import placeholder_data
from smimbench.registry.registry import get_registry
from smimbench.report.statistics import peak_share as peak_share
from smimbench.suite.reader import load_suite
from tests import records
from tests.helpers import attention, call, output, sequence, write_suite

RATES = {"float64": 100.0, "float32": 200.0, "tf32": 800.0, "bandwidth": 10.0}


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """A cache of its own, and measurements of a moment."""
    monkeypatch.setenv("SMIMBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "REPEATS", 1)
    monkeypatch.setattr(machine, "LARGEST_READ", 1 << 23)
    return tmp_path / "cache"


def test_rates_are_measured_once_and_remembered(quick, monkeypatch):
    assert stored_peak_rates() is None
    rates = measure_peak_rates()
    assert set(rates) == {"float64", "float32", "bandwidth"}
    # No processor multiplies slower than this or faster than a petaflop.
    assert all(1e8 < rate < 1e15 for rate in rates.values())
    assert rates["float32"] > 1.2 * rates["float64"]
    monkeypatch.setattr(
        machine, "measure_peak_rates", lambda *a: pytest.fail("measured again")
    )
    assert stored_peak_rates() == rates
    assert machine.peak_rates("numpy", 1) == rates


def test_a_measurement_belongs_to_a_machine_and_a_number_of_threads(quick, monkeypatch):
    measure_peak_rates()
    assert stored_peak_rates("numpy", 2) is None
    monkeypatch.setattr(machine, "fingerprint", lambda: "another")
    assert stored_peak_rates() is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"version": 0, "rates": {}}',
        '{"version": 1}',
        '{"version": 1, "rates": {"float64": "x"}}',
    ],
)
def test_a_torn_measurement_is_none(quick, text):
    quick.mkdir()
    machine._rates_file("numpy", 1).write_text(text)
    assert stored_peak_rates() is None


def test_a_home_that_cannot_be_written_to_is_no_obstacle(quick, monkeypatch):
    quick.write_text("a file where a folder should be")
    assert measure_peak_rates()["bandwidth"] > 0
    assert stored_peak_rates() is None


def test_the_slower_of_the_two_bounds():
    assert peak_fraction(2.0, {"flops": 100.0, "bytes": 1.0}, RATES, "float64") == (
        0.5,
        "products",
    )
    assert peak_fraction(2.0, {"flops": 100.0, "bytes": 15.0}, RATES, "float64") == (
        0.75,
        "memory",
    )
    assert peak_fraction(2.0, {"flops": 100.0, "bytes": 1.0}, RATES, "float32") == (
        0.25,
        "products",
    )
    assert peak_fraction(
        2.0, {"flops": 100.0, "bytes": 0.5}, RATES, "float32", tf32=True
    ) == (0.0625, "products")
    assert (
        peak_fraction(2.0, {"flops": 1.0, "bytes": 1.0}, {"float64": 1.0}, "float64")
        is None
    )
    assert peak_fraction(0.0, {"flops": 1.0, "bytes": 1.0}, RATES, "float64") is None


def test_cost_counts_both_products_and_one_reading():
    for problem, expected in (
        (attention(tokens=3), 2 * 10 * 3 * 8 * 8),
        (sequence("linear", components=3), 4 * 10 * 2 * 8 * 3),
    ):
        n = 10
        cost = problem.model.cost(n, 8, problem.components, 4)
        assert cost.flops == expected
        assert cost.bytes == 4 * n * problem.model.tokens * 8
        instance = problem.instance(problem.model.sample_ratio(n, 8), 8)
        for dtype, width in (("float64", 8), ("float32", 4)):
            data = instance.data(get_backend("numpy", dtype))
            for name in ("gamp", "adam"):
                algorithm = get_registry().get("algorithm", name).item()
                assert algorithm.plan(data).cost(problem, data)[:2] == (
                    expected,
                    width / 4 * cost.bytes,
                )


@pytest.mark.parametrize("name", ["ridge", "nuclear", "spectral", "erm", "averaged"])
def test_no_ceiling_is_stated_where_a_step_is_more_than_a_pass_over_the_samples(name):
    entry = get_registry().get("algorithm", name)
    item = entry.item(**getattr(entry.item, "example", {}))
    assert item.plan(placeholder_data(30, 2, 20)).cost is None


def record(seconds, cost=True, ceilings=True, **cell):
    timing = {
        "per_iteration": seconds,
        "cost": {"flops": 100.0, "bytes": 1.0} if cost else None,
        "ceilings": RATES if ceilings else None,
    }
    return records.record(timing=timing, cell=cell)


def test_rows_average_what_is_known():
    found = peak_share(
        [
            record(2.0),
            record(4.0),
            record(9.0, cost=False),
            record(9.0, ceilings=False),
            records.record(),
        ]
    )
    assert found == (pytest.approx((0.5 + 0.25) / 2), "products")
    assert peak_share([record(2.0, dtype="float32", tf32=True)])[0] == pytest.approx(
        0.0625
    )
    assert peak_share([record(9.0, cost=False)]) == (None, None)


@pytest.mark.slow
def test_timing_mode_measures_and_records_them(quick, tmp_path, capsys):
    suite = write_suite(tmp_path)
    options = [
        "--timing",
        "--no-figure",
        "--only",
        "algorithm=gamp",
        "--only",
        "seed=0",
    ]
    output(capsys, "run", suite, "--results", tmp_path / "r", *options)
    assert (
        "peak"
        in call(
            capsys, "show", suite, "--full", "--results", tmp_path / "r", *options[2:]
        )[1]
    )
    cell = load_suite(suite, (), ["algorithm=gamp"]).cells()[0]
    (path,) = (tmp_path / "r" / "small").glob(f"{cell.key}.timing-*.json")
    timing = json.loads(path.read_text())["timing"]
    assert timing["ceilings"] == stored_peak_rates("numpy", 1)
    assert timing["cost"]["flops"] == 4 * 15 * 2 * 30
    assert timing["device_seconds"] is None
    assert np.isfinite(timing["per_iteration"])


def test_doctor_measures_on_request(quick, capsys):
    out = output(capsys, "doctor")
    assert "smimbench doctor --ceilings" in out
    out = output(capsys, "doctor", "--ceilings", "--json")
    measured = json.loads(out)["ceilings"]
    assert measured["1 thread"] == stored_peak_rates("numpy", 1)
    _, out, _ = call(capsys, "doctor")
    assert "GFLOP/s; reading" in out
