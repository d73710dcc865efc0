"""Roots in brackets, against closed forms and SciPy."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from smimbench.numerics.roots import bracketed_roots

FUNCTIONS = {
    "line": (lambda x, t: x - t, -3.0, 5.0, lambda t: t),
    "logarithm": (lambda x, t: np.log(x) - t, 1e-3, 1e3, np.exp),
    "steep": (lambda x, t: np.tanh(1e6 * (x - t)), -3.0, 5.0, lambda t: t),
    "flat": (lambda x, t: (x - t) ** 9, -3.0, 5.0, lambda t: t),
    "step": (lambda x, t: np.where(x < t, -1.0, 1.0), -3.0, 5.0, lambda t: t),
}
TARGETS = np.array([-2.5, -0.3, 0.0, 0.7, 2.0, 4.999])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_roots_are_found_for_all_brackets_at_once(name):
    function, low, high, root = FUNCTIONS[name]
    calls = []

    def of(x, index):
        calls.append(x.size)
        return function(x, TARGETS[index])

    found = bracketed_roots(of, np.full(6, low), np.full(6, high))
    assert_allclose(
        found, root(TARGETS), rtol=1e-13, atol=1e-13 if name != "flat" else 1e-2
    )
    # Bisection to 1e-14 takes 50 steps; smooth functions must do much better.
    assert len(calls) <= {"line": 6, "logarithm": 25}.get(name, 130)
    assert calls[-1] <= calls[0]


def test_ends_may_be_roots_and_brackets_may_hold_none():
    found = bracketed_roots(
        lambda x, _: x * (x - 1),
        np.array([0.0, -1.0, 2.0, 0.5]),
        np.array([0.5, 0.0, 3.0, 4.0]),
    )
    assert_allclose(found, [0.0, 0.0, np.nan, 1.0], atol=1e-15)


def test_known_ends_are_not_asked_for():
    asked = []

    def function(x, index):
        asked.extend(x)
        return np.exp(x) - 2.0

    found = bracketed_roots(
        function,
        np.array([0.0]),
        np.array([1.0]),
        values=(np.array([-1.0]), np.array([np.e - 2])),
    )
    assert_allclose(found, np.log(2.0), rtol=1e-13)
    assert 0.0 not in asked
    assert 1.0 not in asked


def test_it_agrees_with_scipy():
    from scipy.optimize.elementwise import find_root

    targets = np.linspace(0.1, 3.0, 40)
    found = bracketed_roots(
        lambda x, i: x * np.exp(x) - targets[i], np.zeros(40), np.full(40, 3.0)
    )
    reference = find_root(
        lambda x, t: x * np.exp(x) - t,
        (np.zeros(40), np.full(40, 3.0)),
        args=(targets,),
    )
    assert_allclose(found, reference.x, rtol=1e-12)
