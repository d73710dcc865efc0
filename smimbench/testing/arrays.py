"""What checks do with arrays: shape and dtype, unchanged inputs, no random numbers but those of the generator that is passed."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend.arrays import namespace, to_host
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


class Draw(NamedTuple):
    """Something that an item draws with the generator it is given; whether another seed must give other numbers."""

    name: str
    function: Callable[[np.random.Generator], Array]
    varies: bool = False


def expect_pure(what: str, function: Callable[..., Any], *arrays: Any) -> None:
    """Read-only arrays will do, and come back as they were (compiled code may not ask what is read-only)."""
    given = [np.array(a) for a in arrays]
    for array in given:
        array.flags.writeable = False
    try:
        function(*given)
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        raise CheckFailed(f"{what} writes into its arguments, work on a copy: {error}") from error
    if not all(np.array_equal(one, other, equal_nan=one.dtype.kind == "f") for one, other in zip(given, arrays)):
        raise CheckFailed(f"{what} writes into its arguments; work on a copy")


def expect_array(
    what: str, array: Array, shape: tuple[int, ...], dtype: str | None = None, like: Array | None = None
) -> None:
    """Shape, dtype, and the namespace and device of ``like``."""
    if not array_api_compat.is_array_api_obj(array):
        raise CheckFailed(f"{what} must be an array, got {type(array).__name__}")
    if tuple(array.shape) != shape:
        raise CheckFailed(f"{what} must have shape {shape}, got {tuple(array.shape)}")
    if like is not None:
        found, wanted = (
            f"{array_api_compat.array_namespace(a).__name__} on {array_api_compat.device(a)}" for a in (array, like)
        )
        if found != wanted:
            raise CheckFailed(f"{what} is an array of {found}, its inputs are of {wanted}")
    xp = namespace(array)
    if dtype is not None and array.dtype != getattr(xp, dtype):
        raise CheckFailed(f"{what} must be {dtype} like its inputs, got {array.dtype}")
    if xp.isdtype(array.dtype, "real floating") and not np.isfinite(to_host(array)).all():
        raise CheckFailed(f"{what} is not made of finite numbers")


@contextmanager
def private_randomness(what: str) -> Iterator[None]:
    """What happens inside must not draw from the global generators of NumPy and of Python."""

    def states() -> dict[str, str]:
        numpy: Any = np.random.get_state()  # noqa: NPY002 - looked at, never drawn from
        return {
            "NumPy's global generator": str([*numpy[1], *numpy[2:]]),
            "Python's random module": str(random.getstate()),
        }

    before = states()
    yield
    for name, state in states().items():
        if state != before[name]:
            raise CheckFailed(f"{what} draws from {name}: take every random number from the rng that is handed over")
