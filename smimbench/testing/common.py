"""Checks shared by several kinds of items: declaration, parameters, seeds, bad input, purity, precision, array namespaces.
The module of each kind says what of an item is called with what.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from smimbench.backend.arrays import to_host
from smimbench.backend.device import Backend
from smimbench.files import attempt, canonical_json, error_line
from smimbench.interfaces import Array, ParameterError, Prior
from smimbench.interfaces.item import gives
from smimbench.registry.parameters import (
    ENGINE_FILLED,
    build,
    parameters_of,
    signature_of,
)
from smimbench.registry.registry import KINDS, get_registry, what_is_wrong
from smimbench.testing import algorithms, channels, inputs, models, priors
from smimbench.testing.context import CheckContext
from smimbench.testing.core import (
    Call,
    CheckFailed,
    Draw,
    Refused,
    elsewhere,
    expect_array,
    expect_pure,
    in_single_precision,
    private_randomness,
    published,
)

DTYPES = ("float64", "float32", "mixed")


@published(
    KINDS,
    "It does not say what it is: results cannot be stored under a name and a version, or it is combined with what it "
    "was not made for.",
)
def declaration(context: CheckContext) -> None:
    """Check what an item declares: name, version, reference, capabilities."""
    item = context.item
    if wrong := what_is_wrong(context.kind, type(item)):
        raise CheckFailed(wrong)
    known = {entry.name for entry in get_registry().entries("model")}
    odd = [m for m in item.capabilities.models if m != "*" and m not in known]
    if context.kind != "model" and odd:
        raise CheckFailed(
            f"capabilities.models names {', '.join(odd)}; registered are {', '.join(sorted(known))}"
        )
    odd = [d for d in item.capabilities.dtypes if d not in DTYPES]
    if odd or not item.capabilities.dtypes:
        raise CheckFailed(
            f"capabilities.dtypes must be among {DTYPES}, got {item.capabilities.dtypes}"
        )


def _again(context: CheckContext, values: dict[str, Any]) -> Any:
    """Create an item of the same class with these parameters and those that the engine takes from the model."""
    item, kind = context.item, context.kind
    filled = {
        n: getattr(item, n)
        for n in ENGINE_FILLED.get(kind, ())
        if n in signature_of(type(item))
    }
    return build(type(item), kind, values, filled)


@published(
    KINDS,
    "Its parameters cannot be written to a suite or a record and read back: results could not be told"
    " apart, and other processes could not rebuild it.",
)
def parameters(context: CheckContext) -> None:
    """Check that parameters are plain JSON and suffice to rebuild the item."""
    item, kind = context.item, context.kind
    missing = [name for name in signature_of(type(item)) if not hasattr(item, name)]
    if missing:
        raise CheckFailed(
            f"takes the parameter {missing[0]!r} but has no attribute of that name"
        )
    try:
        text = canonical_json(parameters_of(kind, item))
    except (TypeError, ValueError) as error:
        raise CheckFailed(f"a parameter is not a plain JSON value: {error}") from error
    try:
        again = parameters_of(kind, _again(context, json.loads(text)))
    except ParameterError as error:
        raise CheckFailed(
            f"cannot be rebuilt from its own parameters {text}: {error}"
        ) from error
    if canonical_json(again) != text:
        raise CheckFailed(f"rebuilt from the parameters {text}, the item has {again}")


@published(
    KINDS,
    "A wrong parameter is not refused in one clear line (ParameterError with the key), so that a "
    "typing error in a suite ends in a traceback or in numbers that mean nothing.",
)
def bad_parameters(context: CheckContext) -> None:
    """Check that unknown keys, wrong types and wrong values of parameters are rejected."""
    usual = parameters_of(context.kind, context.item)
    wrong: list[dict[str, float]] = [{"no_such_parameter": 1}]
    for name, value in usual.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            wrong += [{name: type(value)(one)} for one in (-1, -1.5, 0, 10**9)]
    for changed in wrong:
        made, error = attempt(_again, context, {**usual, **changed})
        ((name, value),) = changed.items()
        if error is not None and not isinstance(error, ParameterError):
            advice = "raise smimbench.ParameterError(key, 'must be ..., got ...')"
            raise CheckFailed(
                f"{changed} raises {error_line(error)}; {advice}"
            ) from error
        if name not in usual and error is None:
            raise CheckFailed(
                "accepts unknown parameters; list all parameters in __init__ by name"
            )
        if error is not None and name not in str(error) and "must" not in str(error):
            raise CheckFailed(
                f"{name} = {value} is rejected, but the message does not say what is wrong: {error}"
            )
        if error is None and value < 10**9:
            _expect_usable(context, made, f"{name} = {value:g}")


def _expect_usable(context: CheckContext, item: Any, how: str) -> None:
    """Check that a parameter value accepted by inputs, a channel or a prior gives finite numbers."""
    advice = "refuse it in __post_init__ with smimbench.ParameterError"
    if context.kind == "channel":
        z = context.rng(1).standard_normal(
            (50, int(item.components), context.models[0].sites)
        )
        drawn, error = attempt(lambda: np.asarray(item.forward(z, rng=context.rng(2))))
    elif context.kind == "inputs":
        drawn, error = attempt(lambda: inputs.tokens(item, 4, context.rng(3)))
    elif context.kind == "prior" and gives(Prior, type(item), "sample"):
        drawn, error = attempt(lambda: np.asarray(item.sample(context.rng(3), 1, 12)))
    else:
        return
    if isinstance(
        error, ParameterError
    ):  # it says that nothing can be drawn, as a limit of theory does
        return
    if error is not None:
        raise CheckFailed(
            f"{how} is accepted but later raises {error_line(error)}; {advice}"
        ) from error
    if drawn.dtype.kind == "f" and not np.isfinite(drawn).all():
        raise CheckFailed(
            f"{how} is accepted but gives numbers that are not finite; {advice}"
        )


OF_KIND: dict[str, Any] = {
    "model": models,
    "inputs": inputs,
    "channel": channels,
    "prior": priors,
    "algorithm": algorithms,
}


def _each(what: str, context: CheckContext) -> Iterator[tuple[Any]]:
    """Test cases of an item: its calls, its draws or its rejected calls."""
    for one in getattr(OF_KIND[context.kind], what)(context):
        yield (one,)


array_check = partial(
    published, ("model", "inputs", "channel", "prior"), cases=partial(_each, "calls")
)


@published(
    tuple(OF_KIND),
    "The same seed does not give the same numbers, or another seed the same inputs or signals, or noise is drawn from somewhere "
    "else than the rng handed over: runs cannot be repeated, or all are one run.",
    cases=partial(_each, "draws"),
)
def determinism(context: CheckContext, draw: Draw) -> None:
    """Check that equal seeds give equal numbers, different seeds different ones, and no global generator is used."""
    with private_randomness(draw.name):
        one, two = (np.asarray(draw.function(context.rng(31))) for _ in range(2))
    if not np.array_equal(one, two, equal_nan=one.dtype.kind == "f"):
        raise CheckFailed(
            f"{draw.name}: the same seed gives different numbers; draw only from the rng that is passed in"
        )
    if draw.varies and np.array_equal(one, draw.function(context.rng(32))):
        raise CheckFailed(
            f"{draw.name}: every seed gives the same numbers; draw from the rng that is passed in"
        )


@published(
    ("model", "channel", "prior"),
    "Arguments that do not fit together end in numbers that mean nothing.",
    cases=partial(_each, "refused"),
)
def bad_input(_: CheckContext, wrong: Refused) -> None:
    """Check that wrong shapes, and a noisy channel without rng, raise an error."""
    what, function = wrong
    found, error = attempt(function)
    if error is None:
        raise CheckFailed(
            f"{what}, but returns an array of shape {np.shape(found)}; raise ValueError"
        )


@published(
    ("channel", "prior"),
    "The posterior is not the one that belongs to forward, or the denoiser not the one that belongs to sample: the error of the "
    "mean must be uncorrelated with everything known, and as large as is claimed; or moments and formulas are not those of "
    "draws. Algorithms that use it are not Bayes-optimal and miss the theory. 'smimbench run' makes the same test.",
    cases=lambda context: product(
        context.models, (1, 2) if context.kind == "prior" else (None,)
    ),
)
def nishimori(context: CheckContext, model: Any, components: int | None) -> None:
    """Check the identities ``E[f(known) (x - mean)] = 0``, the claimed covariance, moments and formulas, at three levels of
    information.
    """
    options: Any = {
        "kinds": (context.kind,),
        "components": components,
        "clock": time.process_time,
    }  # others do not slow it
    context.consistent(model, **options)


@array_check("It writes into its arguments: algorithms that run later get other data.")
def purity(_: CheckContext, call: Call) -> None:
    """Check that arguments are unchanged by a call, and that read-only arguments are accepted."""
    expect_pure(call.name, call.function, *call.arguments)


def _compare(
    call: Call,
    found: Array,
    exact: Array,
    dtype: str,
    like: Array | None,
    tolerance: float,
    typical: bool,
) -> None:
    """Raise CheckFailed unless an array has the type and the numbers that are wanted."""
    expect_array(
        call.name, found, exact.shape, dtype if exact.dtype.kind == "f" else None, like
    )
    gap = np.abs(
        np.subtract(to_host(found), exact, dtype=float)
    )  # labels may be true or false
    size = float(np.median(gap) if typical else gap.max()) / (
        call.scale or float(np.abs(exact).max()) or 1.0
    )
    if size > tolerance + call.slack:
        raise CheckFailed(
            f"{call.name}: {dtype} of another precision or array namespace is off by {size:.2g}"
        )


@array_check(
    "Single precision does not stay single precision, or is far less accurate than it should be.",
    around=in_single_precision,
)
def dtypes(_: CheckContext, call: Call) -> None:
    """Check that float32 input gives float32 output, close to float64."""
    if call.any_namespace:
        narrow = [np.float32(a) if a.dtype.kind == "f" else a for a in call.arguments]
        wide = [np.float64(a) if a.dtype.kind == "f" else a for a in narrow]
        exact = np.asarray(call.function(*wide))
        _compare(
            call,
            call.function(*narrow),
            exact,
            "float32",
            None,
            call.single,
            call.typical,
        )


@array_check(
    "It needs NumPy arrays: it will not run on a GPU. Use the functions of smimbench.backend.device.namespace(x).",
    around=elsewhere,
)
def namespace(_: CheckContext, call: Call, backend: Backend) -> None:
    """Check that the strict array API on another device gives the same numbers as NumPy."""
    if call.any_namespace:
        there = [backend.asarray(a) for a in call.arguments]
        exact = np.asarray(call.function(*call.arguments))
        _compare(
            call,
            call.function(*there),
            exact,
            "float64",
            there[0],
            call.double,
            typical=False,
        )
