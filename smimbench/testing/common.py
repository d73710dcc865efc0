"""Checks of every kind of item: what it declares of itself, its parameters, its answers to bad input."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.files import attempt, canonical_json, error_line
from smimbench.interfaces import ParameterError, Prior
from smimbench.interfaces.item import gives
from smimbench.registry.declaration import KINDS, what_is_wrong
from smimbench.registry.parameters import ENGINE_FILLED, build, parameters_of, signature_of
from smimbench.registry.registry import get_registry
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


def _filled(item: Any, kind: str) -> dict[str, Any]:
    """What the engine takes from the model."""
    return {n: getattr(item, n) for n in ENGINE_FILLED.get(kind, ()) if n in signature_of(type(item))}


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
        found = parameters_of(kind, item)
        text = canonical_json(found)
    except (TypeError, ValueError) as error:
        raise CheckFailed(f"a parameter is no plain JSON value: {error}") from error
    try:
        again = build(type(item), kind, json.loads(text), _filled(item, kind))
    except ParameterError as error:
        raise CheckFailed(f"cannot be made again from its own parameters {text}: {error}") from error
    if canonical_json(parameters_of(kind, again)) != text:
        raise CheckFailed(f"made again from {text}, it has the parameters {parameters_of(kind, again)}")


@published(
    KINDS,
    "A wrong parameter is not refused in one clear line (ParameterError with the key), so that a "
    "typing error in a suite ends in a traceback or in numbers that mean nothing.",
)
def bad_parameters(context: CheckContext) -> None:
    """Unknown keys, wrong types and wrong values."""
    item, kind = context.item, context.kind
    usual = parameters_of(kind, item)

    def refusal(changed: dict[str, Any]) -> tuple[Any, str | None]:
        values = {**usual, **changed}
        made, error = attempt(build, type(item), kind, values, _filled(item, kind))
        if error is not None and not isinstance(error, ParameterError):
            advice = "raise smimbench.ParameterError(key, 'must be ..., got ...')"
            raise CheckFailed(f"{changed} raises {error_line(error)}; {advice}") from error
        return made, None if error is None else str(error)

    if refusal({"no_such_parameter": 1})[1] is None:
        raise CheckFailed("takes parameters that do not exist; name every one in __init__")
    for name, value in usual.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        for wrong in (-1, -1.5, 0, 10**9):
            other, refused = refusal({name: int(wrong) if isinstance(value, int) else float(wrong)})
            if refused is not None and name not in refused and "must" not in refused:
                raise CheckFailed(f"{name} = {wrong} is refused without saying what is wrong: {refused}")
            if other is not None and kind in ("channel", "prior") and wrong != 10**9:
                _expect_usable(context, kind, other, f"{name} = {wrong}")


def _expect_usable(context: CheckContext, kind: str, item: Any, how: str) -> None:
    """A value that is not refused has to work: numbers drawn with it are finite."""
    advice = "refuse it in __post_init__ with smimbench.ParameterError"
    if kind == "channel":
        z = context.rng(1).standard_normal((50, int(item.components), context.models[0].sites))
        drawn, error = attempt(lambda: np.asarray(item.forward(z, rng=context.rng(2))))
    elif gives(Prior, type(item), "sample"):
        drawn, error = attempt(lambda: np.asarray(item.sample(context.rng(3), 1, 12)))
    else:
        return
    if isinstance(error, ParameterError):  # it says that nothing can be drawn, as a limit of theory does
        return
    if error is not None:
        raise CheckFailed(f"{how} is accepted and then raises {error_line(error)}; {advice}") from error
    if drawn.dtype.kind == "f" and not np.isfinite(drawn).all():
        raise CheckFailed(f"{how} is accepted and gives numbers that are not finite; {advice}")
