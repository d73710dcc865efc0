"""Checks that are the same for models, channels, priors and (determinism) algorithms: seeds, bad input, arguments left as
they were, single precision, other array namespaces. The module of each kind says what of an item is called with what.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend.arrays import to_host
from smimbench.files import attempt
from smimbench.testing import algorithms, channels, models, priors
from smimbench.testing.core import CheckFailed
from smimbench.testing.publish import (
    each_model,
    elsewhere,
    expect_array,
    expect_pure,
    in_single_precision,
    private_randomness,
    published,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smimbench.backend.device import Backend
    from smimbench.interfaces import Array
    from smimbench.testing.context import CheckContext
    from smimbench.testing.publish import Call, Draw

OF_KIND: dict[str, Any] = {"model": models, "channel": channels, "prior": priors, "algorithm": algorithms}


def _each(what: str, context: CheckContext) -> Iterator[tuple[Any]]:
    """Cases: the calls or the draws of an item."""
    for one in getattr(OF_KIND[context.kind], what)(context):
        yield (one,)


array_check = partial(published, ("model", "channel", "prior"), cases=partial(_each, "calls"))


@published(
    tuple(OF_KIND),
    "The same seed does not give the same numbers, or another seed the same inputs or signals, or noise is drawn from somewhere "
    "else than the rng handed over: runs cannot be repeated, or all are one run.",
    cases=partial(_each, "draws"),
)
def determinism(context: CheckContext, draw: Draw) -> None:
    """Equal seeds, equal numbers; other seeds, other inputs and signals; no global generator."""
    with private_randomness(draw.name):
        one, two = (np.asarray(draw.function(context.rng(31))) for _ in range(2))
    if not np.array_equal(one, two, equal_nan=one.dtype.kind == "f"):
        raise CheckFailed(
            f"{draw.name}: the same seed gives other numbers; take them only from the rng that is handed over"
        )
    if draw.varies and np.array_equal(one, draw.function(context.rng(32))):
        raise CheckFailed(f"{draw.name}: every seed gives the same numbers; draw from the rng that is handed over")


def _refused(context: CheckContext) -> Iterator[tuple[str, Callable[[], Array]]]:
    yield from OF_KIND[context.kind].refused(context)


@published(
    ("model", "channel", "prior"),
    "Arguments that do not fit together end in numbers that mean nothing.",
    cases=_refused,
)
def bad_input(context: CheckContext, what: str, function: Callable[[], Array]) -> None:
    """Wrong shapes raise, whatever it is; a noisy channel without rng raises."""
    del context
    found, error = attempt(function)
    if error is None:
        raise CheckFailed(f"{what}, and returns an array of shape {np.shape(found)}; raise ValueError")


@published(
    ("channel", "prior"),
    "The posterior is not the one that belongs to forward, or the denoiser not the one that belongs to sample: the error of the "
    "mean must be uncorrelated with everything known, and as large as is claimed. Algorithms that use it are not Bayes-optimal "
    "and miss the theory. 'smimbench run' makes the same test.",
    cases=each_model,
)
def nishimori(context: CheckContext, model: Any) -> None:
    """``E[f(known) (x - mean)] = 0``, ``E[(x - mean)(x - mean)^T]`` as claimed: for little information, much, nearly all."""
    context.consistent(model, kinds=(context.kind,), clock=time.process_time)  # other processes do not make it coarser


@published(
    ("channel", "prior"),
    "It cannot be put into a problem with every model that its capabilities name, or no data can be drawn.",
    cases=each_model,
)
def problem(context: CheckContext, model: Any) -> None:
    """A small instance of every model, with one label for every input and an error that is a number."""
    made = context.problem(model)
    found = made.instance(0.5, 12, seed=context.seed)
    if len(found.labels) != len(found.inputs):
        raise CheckFailed(f"{len(found.inputs)} inputs but {len(found.labels)} labels ({model.name})")
    errors = found.metrics(made.prior.mean(made.components, 12))["mse"]
    if not np.isfinite(errors).all():
        raise CheckFailed(f"the error of the prior mean is {errors} ({model.name})")


@array_check("It writes into its arguments: algorithms that run later get other data.")
def purity(context: CheckContext, call: Call) -> None:
    """Arguments come back unchanged, and read-only arrays will do."""
    del context
    expect_pure(call.name, call.function, *call.arguments)


def _compare(
    call: Call, found: Array, exact: Array, dtype: str, like: Array | None, tolerance: float, typical: bool
) -> None:
    """Raise CheckFailed unless an array has the type and the numbers that are wanted."""
    expect_array(call.name, found, exact.shape, dtype if exact.dtype.kind == "f" else None, like)
    gap = np.abs(np.subtract(to_host(found), exact, dtype=float))  # labels may be true or false
    size = float(np.median(gap) if typical else gap.max()) / (call.scale or float(np.abs(exact).max()) or 1.0)
    if size > tolerance + call.slack:
        raise CheckFailed(f"{call.name}: {dtype} of another precision or array namespace is off by {size:.2g}")


@array_check(
    "Single precision does not stay single precision, or is far less accurate than it should be.",
    around=in_single_precision,
)
def dtypes(context: CheckContext, call: Call) -> None:
    """float32 in, float32 out, and close to float64."""
    del context
    if call.any_namespace:
        narrow = [np.float32(a) if a.dtype.kind == "f" else a for a in call.arguments]
        wide = [np.float64(a) if a.dtype.kind == "f" else a for a in narrow]
        exact = np.asarray(call.function(*wide))
        _compare(call, call.function(*narrow), exact, "float32", None, call.single, call.typical)


@array_check(
    "It needs NumPy arrays: it will not run on a GPU. Use the functions of smimbench.backend.device.namespace(x).",
    around=elsewhere,
)
def namespace(context: CheckContext, call: Call, backend: Backend) -> None:
    """The strict array API on another device gives the numbers of NumPy."""
    del context
    if call.any_namespace:
        there = [backend.asarray(a) for a in call.arguments]
        exact = np.asarray(call.function(*call.arguments))
        _compare(call, call.function(*there), exact, "float64", there[0], call.double, typical=False)
