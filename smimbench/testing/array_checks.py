"""Checks of arrays, the same for models, channels and priors: arguments left as they were, single precision, other array
namespaces. Each kind says which of its methods are called with what.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from smimbench.backend.arrays import to_host
from smimbench.testing import channels, models, priors
from smimbench.testing.arrays import expect_array, expect_pure
from smimbench.testing.core import CheckFailed
from smimbench.testing.publish import elsewhere, in_single_precision, published

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smimbench.backend.device import Backend
    from smimbench.testing.arrays import Call
    from smimbench.testing.context import CheckContext


def _calls(context: CheckContext) -> Iterator[tuple[Call]]:
    for call in {"model": models.calls, "channel": channels.calls, "prior": priors.calls}[context.kind](context):
        yield (call,)


array_check = partial(published, ("model", "channel", "prior"), cases=_calls)


@array_check("It writes into its arguments: algorithms that run later get other data.")
def purity(context: CheckContext, call: Call) -> None:
    """Arguments come back unchanged, and read-only arrays will do."""
    expect_pure(call.name, call.function, *call.arguments)


@array_check(
    "Single precision does not stay single precision, or is far less accurate than it should be.",
    around=in_single_precision,
)
def dtypes(context: CheckContext, call: Call) -> None:
    """float32 in, float32 out, and close to float64."""
    if call.any_namespace:
        narrow = [np.float32(a) if a.dtype.kind == "f" else a for a in call.arguments]
        found = call.function(*narrow)
        exact = np.asarray(call.function(*(np.float64(a) if a.dtype.kind == "f" else a for a in narrow)))
        expect_array(call.name, found, exact.shape, "float32" if exact.dtype.kind == "f" else None)
        gap = np.abs(np.subtract(found, exact, dtype=float))  # labels may be true or false
        size = float(np.median(gap) if call.typical else gap.max()) / (call.scale or float(np.abs(exact).max()) or 1.0)
        if size > call.single + call.slack:
            raise CheckFailed(f"{call.name} in float32 is off by {size:.1g}")


@array_check(
    "It needs NumPy arrays: it will not run on a GPU. Use the functions of smimbench.backend.device.namespace(x).",
    around=elsewhere,
)
def namespace(context: CheckContext, call: Call, backend: Backend) -> None:
    """The strict array API on another device gives the numbers of NumPy."""
    if call.any_namespace:
        there = [backend.asarray(a) for a in call.arguments]
        found, exact = call.function(*there), np.asarray(call.function(*call.arguments))
        expect_array(call.name, found, exact.shape, "float64" if exact.dtype.kind == "f" else None, there[0])
        size = float(np.abs(np.subtract(to_host(found), exact, dtype=float)).max()) / (
            call.scale or float(np.abs(exact).max()) or 1.0
        )
        if size > call.double + call.slack:
            raise CheckFailed(f"{call.name}: another array namespace gives other numbers, off by {size:.1g}")
