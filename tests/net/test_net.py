"""Moving code changes nothing: see ``collect.py``. A number that has to change is written again, and the commit says why.

Much of it is slow: ``pytest tests/net -m ''`` holds all of it.
"""

import json

import pytest

from tests.net import collect

REFERENCE = collect.read_reference()
ROUNDING = 1e-7
"""Relative; processors add up matrix products in different orders, and iterations carry that on."""
ROUNDING_OF_FLOAT32 = 1e-5
"""The same in single precision."""


def _assert_same(found, wanted, rounding=ROUNDING):
    found = collect.condensed(json.loads(json.dumps(found)))
    assert not list(collect.differences(found, wanted, rounding))


def test_keys_of_cells():
    _assert_same(collect.cell_keys(), REFERENCE["cells"])


SUITES = [
    pytest.param(name, marks=[] if name in collect.QUICK else pytest.mark.slow)
    for name in sorted(REFERENCE["theory"])
]


@pytest.mark.parametrize("name", SUITES)
def test_theory_and_figure(name, solved):
    # A curve is traced as far as a suite asks: answers of another suite to the same question differ within their errors.
    folder = solved / name
    _assert_same(collect.theory_of(name, folder), REFERENCE["theory"][name])
    _assert_same(collect.reference_figure(name, folder), REFERENCE["figures"][name])


@pytest.mark.slow
@pytest.mark.parametrize("name", REFERENCE["runs"])
def test_runs(name):
    rounding = ROUNDING_OF_FLOAT32 if name == "figures" else ROUNDING
    _assert_same(collect.run_of(name), REFERENCE["runs"][name], rounding)


def test_names_and_checks():
    assert collect.check_ids() == REFERENCE["checks"]
    for module, names in collect.public_names().items():
        assert set(REFERENCE["names"][module]) <= set(names), module
