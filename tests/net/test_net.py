"""Moving code changes nothing: see ``collect.py``. A number that has to change is written anew, and the commit says why."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.net import collect

REFERENCE = json.loads((Path(__file__).parent / "reference.json").read_text())
ROUNDING = 1e-7
"""Relative; processors add up matrix products in different orders, and iterations carry that on."""


def _agree(found: Any, wanted: Any, where: str) -> None:
    if isinstance(wanted, dict):
        assert sorted(found) == sorted(wanted), where
        for key in wanted:
            _agree(found[key], wanted[key], f"{where}.{key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for i, (one, other) in enumerate(zip(found, wanted)):
            _agree(one, other, f"{where}[{i}]")
    elif isinstance(wanted, float) and not isinstance(found, bool) and isinstance(found, (int, float)):
        assert math.isclose(found, wanted, rel_tol=ROUNDING, abs_tol=ROUNDING), f"{where}: {found} != {wanted}"
    else:
        assert found == wanted, f"{where}: {found} != {wanted}"


@pytest.mark.parametrize("suite", sorted(REFERENCE["cells"]))
def test_keys_of_cells(suite: str) -> None:
    assert collect.cell_keys()[suite] == REFERENCE["cells"][suite]


@pytest.mark.parametrize("suite", sorted(REFERENCE["theory"]))
def test_theory(suite: str) -> None:
    import smimbench

    _agree(smimbench.theory(suite), REFERENCE["theory"][suite], suite)


def test_small_runs() -> None:
    _agree(collect.small_runs(), REFERENCE["runs"], "runs")


def test_names_and_checks() -> None:
    import importlib

    assert collect.check_ids() == REFERENCE["checks"]
    for module, names in REFERENCE["names"].items():
        assert set(names) <= set(importlib.import_module(module).__all__), module
