"""Assertions about arrays and calls: shape and dtype, unchanged inputs, refused bad input, no random numbers but those of
the generator that is passed.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend.arrays import namespace, to_host
from smimbench.files import attempt
from smimbench.testing.core import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smimbench.interfaces import Array


class Call(NamedTuple):
    """A method and the arrays with which checks call it.

    Attributes
    ----------
    scale : float
        What differences are relative to; 0: the largest number.
    slack : float
        Its own numerical error, relative to that.
    single, double : float
        Largest difference of float32 from float64, and of another namespace from NumPy.
    typical : bool
        Whether ``single`` is for the median of differences.
    any_namespace : bool
        Whether it is called with other types and namespaces, too.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Array, ...]
    scale: float = 0.0
    slack: float = 0.0
    single: float = 1e-4
    double: float = 1e-8
    typical: bool = False
    any_namespace: bool = True


def expect_pure(what: str, function: Callable[..., Any], *arrays: Any) -> Any:
    """Call with writable arrays, which must come back as they were, and with read-only ones, which must do."""
    copies = [np.array(a) for a in arrays]
    result = function(*copies)
    for k, (copy, array) in enumerate(zip(copies, arrays)):
        if copy.shape != np.shape(array) or not np.array_equal(copy, array, equal_nan=copy.dtype.kind == "f"):
            raise CheckFailed(f"{what} writes into its argument {k + 1}; work on a copy")
    locked = [np.array(a) for a in arrays]
    for copy in locked:
        copy.flags.writeable = False
    try:
        function(*locked)
    except ValueError as error:
        if "read-only" in str(error):
            raise CheckFailed(f"{what} cannot take read-only arrays: {error}") from error
        raise
    return result


def expect_array(
    what: str, array: Array, shape: tuple[int, ...], dtype: str | None = None, like: Array | None = None
) -> None:
    """Shape, dtype, and the namespace and device of ``like``."""
    if not array_api_compat.is_array_api_obj(array):
        raise CheckFailed(f"{what} must be an array, got {type(array).__name__}")
    if tuple(array.shape) != shape:
        raise CheckFailed(f"{what} must have shape {shape}, got {tuple(array.shape)}")
    xp = namespace(array)
    if like is not None:
        if array_api_compat.array_namespace(array) is not array_api_compat.array_namespace(like):
            raise CheckFailed(
                f"{what} comes as {type(array).__module__}.{type(array).__name__}, its inputs were "
                f"{type(like).__module__}.{type(like).__name__}"
            )
        if array_api_compat.device(array) != array_api_compat.device(like):
            raise CheckFailed(
                f"{what} is on {array_api_compat.device(array)}, its inputs on {array_api_compat.device(like)}"
            )
    if dtype is not None and array.dtype != getattr(xp, dtype):
        raise CheckFailed(f"{what} must be {dtype} like its inputs, got {array.dtype}")
    if xp.isdtype(array.dtype, "real floating") and not np.isfinite(to_host(array)).all():
        raise CheckFailed(f"{what} is not made of finite numbers")


def expect_refused(what: str, function: Callable[..., Array], *arguments: Any) -> None:
    """Arguments that do not fit raise, whatever it is; otherwise ``what`` was accepted, and something was returned."""
    found, error = attempt(function, *arguments)
    if error is None:
        raise CheckFailed(f"{what} {np.shape(found)}")


@contextmanager
def private_randomness(what: str) -> Iterator[None]:
    """What happens inside must not draw from the global generators of NumPy and of Python."""

    def fingerprint() -> tuple[str, str]:
        state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - looked at, never drawn from
        return repr(state["state"]["key"].tobytes()) + repr(state["state"]["pos"]), repr(random.getstate())

    before = fingerprint()
    yield
    after = fingerprint()
    for name, one, two in zip(("NumPy's global generator", "Python's random module"), before, after):
        if one != two:
            raise CheckFailed(f"{what} draws from {name}: take every random number from the rng that is handed over")
