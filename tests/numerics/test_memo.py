"""Results that are kept: by the entries of arrays, and next to an object."""

from dataclasses import dataclass

import numpy as np
import pytest

from smimbench.numerics.memo import by_value, cached_on


@pytest.fixture
def calls():
    return []


@pytest.fixture
def remembered(calls):
    @by_value(maxsize=8)
    def total(item, array):
        """Sum."""
        calls.append(item)
        return float(array.sum())

    return total


def test_equal_arrays_are_computed_once(remembered, calls):
    a = np.arange(6.0).reshape(2, 3)
    assert (
        remembered("x", a)
        == remembered("x", a.copy())
        == remembered("x", np.asfortranarray(a))
        == 15.0
    )
    assert calls == ["x"]
    assert remembered.__doc__ == "Sum."


def test_other_entries_shapes_and_types_are_others(remembered, calls):
    a = np.arange(6.0)
    for array in (a, a + 1, a.reshape(2, 3), a.astype(int)):
        remembered("x", array)
    assert len(calls) == 4


def test_an_array_that_changes_later_changes_nothing(remembered):
    a = np.ones(3)
    assert remembered("x", a) == 3.0
    a[:] = 2.0
    assert remembered("x", a) == 6.0
    assert remembered("x", np.ones(3)) == 3.0


def test_what_cannot_be_hashed_is_computed_each_time(remembered, calls):
    @dataclass
    class Item:
        beta: float

    assert remembered(Item(1.0), np.ones(2)) == remembered(Item(1.0), np.ones(2)) == 2.0
    assert len(calls) == 2


def test_an_error_of_the_function_is_raised_once(calls):
    @by_value(maxsize=2)
    def wrong(array):
        calls.append(array)
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        wrong(np.ones(1))
    assert len(calls) == 1


def test_kept_beside_its_owner(calls):
    @dataclass(frozen=True)
    class Owner:
        alpha: float

    one = Owner(1.0)
    other = Owner(1.0)

    def make():
        calls.append(1)
        return None

    for owner in (one, one, other):
        assert cached_on(owner, "curve", make) is None
    cached_on(one, "curve", make, key=2)
    assert len(calls) == 3
    assert one == other
