"""Checks shared by several kinds of items: declaration, parameters, seeds, bad input, purity, precision, array namespaces.
The module of each kind says what of an item is called with what.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from smimbench.backend.arrays import to_host
from smimbench.backend.device import Backend
from smimbench.files import attempt, canonical_json, error_line
from smimbench.interfaces import Array, Host, Model, ParameterError, Prior
from smimbench.interfaces.item import defines_member
from smimbench.registry.items import (
    ENGINE_FILLED,
    Parameters,
    build,
    contract_violation,
    parameters_of,
    signature_of,
)
from smimbench.registry.registry import KINDS, get_registry
from smimbench.testing import algorithms, channels, inputs, models, priors
from smimbench.testing.context import CheckContext
from smimbench.testing.core import (
    Call,
    CheckFailed,
    CheckSkipped,
    Draw,
    RefusedCall,
    expect_array,
    expect_pure,
    on_another_device,
    private_randomness,
    published,
    require_single_precision,
)

DTYPES = ("float64", "float32", "mixed")


@published(
    KINDS,
    "The item does not declare itself correctly: results cannot be stored under its name and version, or combined with items "
    "that it does not support.",
)
def declaration(context: CheckContext) -> None:
    """Check the name, version, reference and capabilities that an item declares. ``context`` holds the item under test."""
    item = context.item
    if mistake := contract_violation(context.kind, type(item)):
        raise CheckFailed(mistake)
    registered_models = {entry.name for entry in get_registry().entries("model")}
    unregistered_models = set(item.capabilities.models) - registered_models - {"*"}
    if context.kind != "model" and unregistered_models:
        raise CheckFailed(
            f"capabilities.models names unknown {', '.join(sorted(unregistered_models))}; "
            f"registered are {', '.join(sorted(registered_models))}"
        )
    dtypes = item.capabilities.dtypes
    if not dtypes or not set(dtypes) <= set(DTYPES):
        raise CheckFailed(f"capabilities.dtypes must be among {DTYPES}, got {dtypes}")


def _rebuild(context: CheckContext, parameters: Parameters) -> Any:
    """Build an item of the same class from parameters, with those that the engine takes from the model. ``context`` holds
    the item under test.
    """
    item, kind = context.item, context.kind
    engine_parameters = {
        name: getattr(item, name)
        for name in ENGINE_FILLED.get(kind, ())
        if hasattr(item, name)
    }
    return build(type(item), kind, parameters, engine_parameters)


@published(
    KINDS,
    "The item's parameters cannot be written to a suite or a record and read back: results could not be told"
    " apart, and worker processes could not rebuild the item.",
)
def parameters(context: CheckContext) -> None:
    """Check that an item's parameters are JSON values and suffice to rebuild it. ``context`` holds the item under test."""
    item, kind = context.item, context.kind
    missing_attributes = [
        name for name in signature_of(type(item)) if not hasattr(item, name)
    ]
    if missing_attributes:
        raise CheckFailed(
            f"the item takes the parameter {missing_attributes[0]!r} but has no attribute of that name"
        )
    try:
        parameters_json = canonical_json(parameters_of(kind, item))
    except (TypeError, ValueError) as error:
        raise CheckFailed(
            f"a parameter of the item is not a JSON value: {error}"
        ) from error
    try:
        rebuilt_parameters = parameters_of(
            kind, _rebuild(context, json.loads(parameters_json))
        )
    except ParameterError as error:
        raise CheckFailed(
            f"the item cannot be rebuilt from its own parameters {parameters_json}: {error}"
        ) from error
    if canonical_json(rebuilt_parameters) != parameters_json:
        raise CheckFailed(
            f"the item was rebuilt from the parameters {parameters_json}, but then has {rebuilt_parameters}"
        )


@published(
    KINDS,
    "A wrong parameter is not rejected by a one-line ParameterError that names the key, so that a "
    "typing error in a suite ends in a traceback or in meaningless numbers.",
)
def bad_parameters(context: CheckContext) -> None:
    """Check that unknown keys, wrong types and wrong values of parameters are rejected. ``context`` holds the item under test."""
    valid_parameters = parameters_of(context.kind, context.item)
    bad_cases: list[tuple[str, float]] = [("no_such_parameter", 1)]
    for name, value in valid_parameters.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            bad_cases += [
                (name, type(value)(number)) for number in (-1, -1.5, 0, 10**9)
            ]
    for name, value in bad_cases:
        item, error = attempt(_rebuild, context, {**valid_parameters, name: value})
        if error is None:
            if name not in valid_parameters:
                raise CheckFailed(
                    "the item accepts unknown parameters; list all parameters in __init__ by name"
                )
            if value < 10**9:
                _expect_usable(context, item, f"{name} = {value:g}")
        elif not isinstance(error, ParameterError):
            raise CheckFailed(
                f"building the item with { {name: value} } raises {error_line(error)}; "
                "raise smimbench.ParameterError(key, 'must be ..., got ...')"
            ) from error
        elif name not in str(error) and "must" not in str(error):
            raise CheckFailed(
                f"{name} = {value} is rejected, but the message does not say what is wrong: {error}"
            )


def _expect_usable(context: CheckContext, item: Any, parameter: str) -> None:
    """Check that inputs, a channel or a prior give finite numbers after they accepted a value of a ``parameter`` (named in
    messages). ``draw`` draws numbers of an item of this kind. ``context`` holds the item under test.
    """
    draw: Callable[[], Host]
    rng = context.rng(3)
    if context.kind == "channel":
        if attempt(lambda: context.models)[1] is not None:
            raise CheckSkipped("forward fails with valid parameters, too")
        shape = (50, int(item.components), context.models[0].sites)
        latents = context.rng(1).standard_normal(shape)
        draw = partial(item.forward, latents, rng=context.rng(2))
    elif context.kind == "inputs":
        draw = partial(inputs.tokens, item, 4, rng)
    elif context.kind == "prior" and defines_member(Prior, type(item), "sample"):
        draw = partial(item.sample, rng, 1, 12)
    else:
        return
    drawn_numbers, error = attempt(lambda: np.asarray(draw()))
    # A ParameterError says that nothing can be drawn, as a limit of theory does.
    if isinstance(error, ParameterError):
        return
    advice = "reject it in __post_init__ with smimbench.ParameterError"
    if error is not None:
        raise CheckFailed(
            f"{parameter} is accepted but later raises {error_line(error)}; {advice}"
        ) from error
    if drawn_numbers.dtype.kind == "f" and not np.isfinite(drawn_numbers).all():
        raise CheckFailed(
            f"{parameter} is accepted but gives numbers that are not finite; {advice}"
        )


CHECK_MODULES: dict[str, ModuleType] = {
    "model": models,
    "inputs": inputs,
    "channel": channels,
    "prior": priors,
    "algorithm": algorithms,
}


def _cases_of_kind(
    list_name: str, context: CheckContext
) -> Iterator[tuple[Call | Draw | RefusedCall]]:
    """Yield the test cases of an item that the module of its kind lists under ``calls``, ``draws`` or ``refused``.
    ``list_name`` is that name. ``context`` holds the item under test.
    """
    for case in getattr(CHECK_MODULES[context.kind], list_name)(context):
        yield (case,)


array_check = partial(
    published,
    ("model", "inputs", "channel", "prior"),
    cases=partial(_cases_of_kind, "calls"),
)


@published(
    tuple(CHECK_MODULES),
    "The same seed gives different numbers, another seed gives the same inputs or signals, or noise is not drawn from the rng "
    "that is passed in: runs cannot be repeated, or all runs are identical.",
    cases=partial(_cases_of_kind, "draws"),
)
def determinism(context: CheckContext, draw: Draw) -> None:
    """Check that equal seeds give equal draws, different seeds different ones, and that no global generator is used.
    ``context`` holds the item under test.
    """
    with private_randomness(draw.name):
        drawn_numbers = np.asarray(draw.function(context.rng(31)))
        numbers_drawn_again = np.asarray(draw.function(context.rng(31)))
    if not np.array_equal(
        drawn_numbers, numbers_drawn_again, equal_nan=drawn_numbers.dtype.kind == "f"
    ):
        raise CheckFailed(
            f"{draw.name}: the same seed gives different numbers; draw only from the rng that is passed in"
        )
    if draw.depends_on_seed and np.array_equal(
        drawn_numbers, draw.function(context.rng(32))
    ):
        raise CheckFailed(
            f"{draw.name}: every seed gives the same numbers; draw from the rng that is passed in"
        )


@published(
    ("model", "channel", "prior"),
    "Arguments that do not fit together give meaningless numbers instead of an error.",
    cases=partial(_cases_of_kind, "refused"),
)
def bad_input(_: CheckContext, refused_call: RefusedCall) -> None:
    """Check that wrong shapes, and a noisy channel without a generator, raise an error. ``refused_call`` is the mistake and the
    call that makes it.
    """
    caller_mistake, mistaken_call = refused_call
    array, error = attempt(mistaken_call)
    if error is None:
        raise CheckFailed(
            f"{caller_mistake}, but returns an array of shape {np.shape(array)}; raise ValueError"
        )


@published(
    ("channel", "prior"),
    "The posterior does not belong to forward, or the denoiser does not belong to sample: the error of the "
    "posterior mean must be uncorrelated with everything observed and as large as claimed; or moments and formulas disagree "
    "with draws. Algorithms that use it are not Bayes-optimal and miss the theory. 'smimbench run' makes the same test.",
    cases=lambda context: [
        (model, components)
        for model in context.models
        for components in (
            priors.component_counts(context, model)
            if context.kind == "prior"
            else (None,)
        )
    ],
)
def nishimori(context: CheckContext, model: Model, components: int | None) -> None:
    """Check the Nishimori identities of the posterior of the channel or prior in ``context``, with this number of
    ``components``: errors uncorrelated with the data and as large as claimed.

    Tests ``E[f(data) (x - mean)] = 0``, covariance, moments and formulas at three levels of information.
    """
    context.require_consistency(
        model,
        kinds=(context.kind,),
        components=components,
        clock=time.process_time,  # time of this process alone
    )


@array_check(
    "The item writes into its arguments, so algorithms that run later get other data."
)
def purity(_: CheckContext, call: Call) -> None:
    """Check that a method (in ``call``, with its arguments) leaves its arguments unchanged and accepts read-only arrays."""
    expect_pure(call.name, call.function, *call.arguments)


def _expect_close(
    call: Call,
    array: Array,
    reference: Host,
    dtype: str,
    array_of_namespace: Array | None = None,
) -> None:
    """Check the type and accuracy of the ``array`` that a call computed in another precision (``dtype``) or array namespace,
    against the ``reference`` in float64 NumPy. ``array_of_namespace`` has the namespace that it must have.
    """
    is_numeric = reference.dtype.kind == "f"  # labels may be true or false
    expect_array(
        call.name,
        array,
        reference.shape,
        dtype if is_numeric else None,
        array_of_namespace,
    )
    differences = np.abs(np.subtract(to_host(array), reference, dtype=float))
    is_single_precision = dtype == "float32"
    deviation = float(
        np.median(differences)
        if is_single_precision and call.uses_median
        else differences.max()
    )
    deviation /= call.scale or float(np.abs(reference).max()) or 1.0
    if (
        deviation
        > (call.single_tolerance if is_single_precision else call.double_tolerance)
        + call.own_error
    ):
        raise CheckFailed(
            f"{call.name}: in {dtype}, or in the array namespace of its inputs, "
            f"numbers are off by {deviation:.2g} from those of NumPy in float64"
        )


@array_check(
    "float32 arguments do not give float32 results, or give far less accurate ones than they should. An item for float64 "
    'alone declares Capabilities(dtypes=("float64",)).'
)
def dtypes(context: CheckContext, call: Call) -> None:
    """Check that float32 arguments of a ``call`` give float32 results close to those of the same numbers in float64.
    ``context`` holds the item under test.
    """
    require_single_precision(context.item)
    if call.any_namespace:
        single_arguments = [
            np.float32(array) if array.dtype.kind == "f" else array
            for array in call.arguments
        ]
        double_arguments = [
            np.float64(array) if array.dtype.kind == "f" else array
            for array in single_arguments
        ]
        reference = np.asarray(call.function(*double_arguments))
        _expect_close(call, call.function(*single_arguments), reference, "float32")


@array_check(
    "The item needs NumPy arrays and cannot run on a GPU. Use the functions of smimbench.backend.device.namespace(x)."
)
def namespace(context: CheckContext, call: Call) -> None:
    """Check that a ``call`` with strict array-API arrays on another device gives the same numbers as with NumPy arrays.
    ``compare`` does it for one backend. ``context`` holds the item under test.
    """

    def compare(backend: Backend) -> None:
        """Compare the numbers on this backend with those on NumPy."""
        arrays = [backend.asarray(array) for array in call.arguments]
        reference = np.asarray(call.function(*call.arguments))
        _expect_close(call, call.function(*arrays), reference, "float64", arrays[0])

    if call.any_namespace:
        on_another_device(context.item, compare)
