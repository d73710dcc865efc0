"""Checks of every kind of item: what it declares of itself, its parameters, its answers to bad input."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.files import attempt, canonical_json, error_line
from smimbench.interfaces import ParameterError, Prior
from smimbench.interfaces.item import gives
from smimbench.registry.parameters import ENGINE_FILLED, build, parameters_of, signature_of
from smimbench.registry.registry import KINDS, get_registry, what_is_wrong
from smimbench.testing.core import CheckFailed
from smimbench.testing.publish import published

if TYPE_CHECKING:
    from smimbench.testing.context import CheckContext

DTYPES = ("float64", "float32", "mixed")


@published(
    KINDS,
    "It does not say what it is: results cannot be stored under a name and a version, or it is combined with what it "
    "was not made for.",
)
def declaration(context: CheckContext) -> None:
    """Name, version, reference, capabilities."""
    item = context.item
    if wrong := what_is_wrong(context.kind, type(item)):
        raise CheckFailed(wrong)
    known = {entry.name for entry in get_registry().entries("model")}
    odd = [m for m in item.capabilities.models if m != "*" and m not in known]
    if context.kind != "model" and odd:
        raise CheckFailed(f"capabilities.models names {', '.join(odd)}; registered are {', '.join(sorted(known))}")
    odd = [d for d in item.capabilities.dtypes if d not in DTYPES]
    if odd or not item.capabilities.dtypes:
        raise CheckFailed(f"capabilities.dtypes must be among {DTYPES}, got {item.capabilities.dtypes}")


def _again(context: CheckContext, values: dict[str, Any]) -> Any:
    """An item of the same class with these parameters and what the engine takes from the model."""
    item, kind = context.item, context.kind
    filled = {n: getattr(item, n) for n in ENGINE_FILLED.get(kind, ()) if n in signature_of(type(item))}
    return build(type(item), kind, values, filled)


@published(
    KINDS,
    "Its parameters cannot be written to a suite or a record and read back: results could not be told"
    " apart, and other processes could not rebuild it.",
)
def parameters(context: CheckContext) -> None:
    """Plain JSON, and enough to make the same item again."""
    item, kind = context.item, context.kind
    missing = [name for name in signature_of(type(item)) if not hasattr(item, name)]
    if missing:
        raise CheckFailed(f"takes the parameter {missing[0]!r} but has no attribute of that name")
    try:
        text = canonical_json(parameters_of(kind, item))
    except (TypeError, ValueError) as error:
        raise CheckFailed(f"a parameter is no plain JSON value: {error}") from error
    try:
        again = parameters_of(kind, _again(context, json.loads(text)))
    except ParameterError as error:
        raise CheckFailed(f"cannot be made again from its own parameters {text}: {error}") from error
    if canonical_json(again) != text:
        raise CheckFailed(f"made again from {text}, it has the parameters {again}")


@published(
    KINDS,
    "A wrong parameter is not refused in one clear line (ParameterError with the key), so that a "
    "typing error in a suite ends in a traceback or in numbers that mean nothing.",
)
def bad_parameters(context: CheckContext) -> None:
    """Unknown keys, wrong types and wrong values."""
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
            raise CheckFailed(f"{changed} raises {error_line(error)}; {advice}") from error
        if name not in usual and error is None:
            raise CheckFailed("takes parameters that do not exist; name every one in __init__")
        if error is not None and name not in str(error) and "must" not in str(error):
            raise CheckFailed(f"{name} = {value} is refused without saying what is wrong: {error}")
        if error is None and value < 10**9:
            _expect_usable(context, made, f"{name} = {value:g}")


def _expect_usable(context: CheckContext, item: Any, how: str) -> None:
    """A value that a channel or a prior does not refuse has to work: numbers drawn with it are finite."""
    advice = "refuse it in __post_init__ with smimbench.ParameterError"
    if context.kind == "channel":
        z = context.rng(1).standard_normal((50, int(item.components), context.models[0].sites))
        drawn, error = attempt(lambda: np.asarray(item.forward(z, rng=context.rng(2))))
    elif context.kind == "prior" and gives(Prior, type(item), "sample"):
        drawn, error = attempt(lambda: np.asarray(item.sample(context.rng(3), 1, 12)))
    else:
        return
    if isinstance(error, ParameterError):  # it says that nothing can be drawn, as a limit of theory does
        return
    if error is not None:
        raise CheckFailed(f"{how} is accepted and then raises {error_line(error)}; {advice}") from error
    if drawn.dtype.kind == "f" and not np.isfinite(drawn).all():
        raise CheckFailed(f"{how} is accepted and gives numbers that are not finite; {advice}")
