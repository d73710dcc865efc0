"""How a class becomes an item: adapters for ``fit``, the check of its contract, and its parameters from the table of a suite."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import re
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend.arrays import namespace
from smimbench.files import (
    attempt,
    documentation,
    error_line,
    missing,
    omit,
    pick,
    plain_value,
    suggestion,
)
from smimbench.interfaces import (
    DIRECTIONS,
    Algorithm,
    Array,
    Capabilities,
    Channel,
    Data,
    Info,
    Inputs,
    Item,
    Metric,
    Model,
    ParameterError,
    Prior,
    ProblemLike,
)
from smimbench.interfaces.checks import dtype_name, is_real, short_repr
from smimbench.interfaces.item import defines_member, missing_members, takes

if TYPE_CHECKING:
    import pydantic

BASES: dict[str, type[Item]] = {
    "model": Model,
    "inputs": Inputs,
    "channel": Channel,
    "prior": Prior,
    "metric": Metric,
    "algorithm": Algorithm,
}

Parameters = dict[str, Any]
"""Parameters of an item by name, as a suite or a record has them; an algorithm within another is a table of its own."""

ENGINE_FILLED = {"channel": ("tokens", "symmetric"), "prior": ("symmetric",)}
"""Parameters that the engine takes from the model and a suite may not set."""


def _signature_of(cls: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    """Return the named parameters of a class's constructor, without ``self``, ``*args`` and ``**kwargs``."""
    named_kinds = (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
    parameters = inspect.signature(cls).parameters.values()
    return {
        parameter.name: parameter
        for parameter in parameters
        if parameter.kind in named_kinds
    }


signature_of: Callable[[Callable[..., object]], Mapping[str, inspect.Parameter]] = (
    functools.cache(_signature_of)
)
"""Named parameters of a class's constructor, cached because every cell builds its items again."""


def ignored_default_message(cls: type[object]) -> str | None:
    """Return an error message if a dataclass overrides a default without annotation, which has no effect; otherwise None."""
    for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
        class_value = inspect.getattr_static(cls, field.name, field.default)
        if class_value is field.default or inspect.ismemberdescriptor(class_value):
            continue
        type_name = getattr(field.type, "__name__", field.type)
        actual_default = (
            "the parameter has no default"
            if field.default is dataclasses.MISSING
            else f"the default stays {field.default!r}"
        )
        return (
            f"{field.name} = {class_value!r} has no effect, {actual_default}: write {field.name}: {type_name} = {class_value!r}, "
            "and @dataclass(frozen=True) above the class"
        )
    return None


def build(
    cls: Any,
    kind: str,
    params: Mapping[str, object],
    provided: Mapping[str, object] | None = None,
) -> Any:
    """Create an item of a kind (model, channel, ...) from its class and the parameters ``params`` in a suite, whose names
    and types are checked strictly; ``provided`` are the parameters that the engine takes from the model.

    Types come from the annotations of the class, defaults from its signature. ``provided`` are values that the engine
    supplies; those that the class does not take are left out.

    Raises
    ------
    ParameterError
        With the key and what would be right.
    """
    import pydantic

    signature = signature_of(cls)
    engine_values = pick(provided or {}, signature)
    settable_names, type_hints, validator = _parameter_validator(cls, kind)
    for parameter_key in params:
        if parameter_key not in settable_names:
            if parameter_key in engine_values:
                raise ParameterError(
                    parameter_key,
                    "is taken from the model and cannot be set here; remove it",
                )
            raise ParameterError(
                parameter_key, unknown_key(parameter_key, settable_names)
            )
    try:
        validated_parameters = validator.model_validate(
            _lists_as_tuples(dict(params), type_hints)
        )
    except pydantic.ValidationError as error:
        parameter_key, error_message = explain_validation(error)
        raise ParameterError(parameter_key, error_message) from None
    parameter_values = {
        parameter_name: getattr(validated_parameters, parameter_name)
        for parameter_name in settable_names
        if parameter_name in validated_parameters.model_fields_set
    }
    for parameter_key, parameter_value in parameter_values.items():
        for number_in_value in _floats_in(parameter_value):
            if not math.isfinite(number_in_value):
                raise ParameterError(
                    parameter_key, f"must be a finite number, got {number_in_value}"
                )
    return cls(**parameter_values, **engine_values)


def _floats_in(value: object) -> Iterator[float]:
    """Yield all floats in the value of a parameter, which may be a nested list or table."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, Mapping):
        yield from _floats_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for nested_value in value:
            yield from _floats_in(nested_value)


@functools.cache
def _parameter_validator(
    cls: Any, kind: str
) -> tuple[tuple[str, ...], dict[str, type], type[pydantic.BaseModel]]:
    """Return names, types and a pydantic validator of the parameters of a class that a suite may set; ``kind`` is the kind
    of item.
    """
    import pydantic

    settable_parameters = omit(signature_of(cls), *ENGINE_FILLED.get(kind, ()))
    try:
        type_hints = typing.get_type_hints(cls.__init__)
    except NameError:  # an annotation that only a type checker can resolve: the type of the default will do
        type_hints = {}
    validator_fields: dict[str, Any] = {}
    for parameter_name, parameter in settable_parameters.items():
        is_required = parameter.default is inspect.Parameter.empty
        type_hint = type_hints.get(
            parameter_name,
            Any
            if is_required or parameter.default is None
            else type(parameter.default),
        )
        validator_fields[parameter_name] = (
            type_hint,
            ... if is_required else parameter.default,
        )
    validator_config = pydantic.ConfigDict(
        extra="forbid",
        strict=True,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )
    return (
        tuple(settable_parameters),
        type_hints,
        pydantic.create_model(
            cls.__name__, __config__=validator_config, **validator_fields
        ),
    )


def takes_lists(cls: object, kind: str, name: str) -> bool:
    """Whether the parameter ``name`` of an item of this kind accepts a list, judged by its annotation or its default; True
    if neither tells.
    """
    parameter = _parameter_validator(cls, kind)[2].model_fields.get(name)
    if parameter is None:  # an unknown key
        return True
    type_hint = parameter.annotation
    if (
        type_hint is Any
        and parameter.default is not None
        and not parameter.is_required()
    ):
        type_hint = type(parameter.default)
    type_hints = (type_hint, *typing.get_args(type_hint))
    return Any in type_hints or any(
        (typing.get_origin(annotation) or annotation) in (tuple, list)
        for annotation in type_hints
    )


def is_valid_as_one_value(cls: object, kind: str, name: str, value: object) -> bool:
    """Whether a list is a valid single value of the parameter ``name`` of an item of this kind, according to its
    annotation; False without annotation.
    """
    import pydantic

    parameter = _parameter_validator(cls, kind)[2].model_fields.get(name)
    if parameter is None or parameter.annotation is Any:
        return False
    annotation: Any = parameter.annotation
    validator = pydantic.TypeAdapter(
        annotation,
        config=pydantic.ConfigDict(strict=True, arbitrary_types_allowed=True),
    )
    try:
        validator.validate_python(
            _lists_as_tuples({name: value}, {name: parameter.annotation})[name]
        )
    except pydantic.ValidationError:
        return False
    return True


def parameters_of(kind: str, item: object) -> Parameters:
    """Return the parameters of an item of this kind as JSON values, defaults included, without those that the engine takes
    from the model.
    """
    names = omit(signature_of(type(item)), *ENGINE_FILLED.get(kind, ()))
    parameters = {name: getattr(item, name) for name in names}
    json_parameters: Parameters = json.loads(
        json.dumps(parameters, default=plain_value)
    )
    return json_parameters


def explain_validation(error: pydantic.ValidationError) -> tuple[str, str]:
    """Translate the first mistake in a pydantic ValidationError to a suite's key and a message of one line."""
    validation_errors = error.errors(include_url=False)
    # A union reports each member it tried; the one that got furthest into the value is the one that was meant.
    first_location = _suite_location(validation_errors[0]["loc"])
    same_location_errors = [
        validation_error
        for validation_error in validation_errors
        if _suite_location(validation_error["loc"])[: len(first_location)]
        == first_location
    ]
    deepest_error = max(
        same_location_errors,
        key=lambda validation_error: len(_suite_location(validation_error["loc"])),
    )
    suite_key = ""
    for key_or_position in _suite_location(deepest_error["loc"]):
        suite_key += (
            f"[{key_or_position}]"
            if isinstance(key_or_position, int)
            else f".{key_or_position}"
        )
    suite_key = suite_key[1:]
    error_type = deepest_error["type"]
    message = str(deepest_error["msg"])
    if error_type == "missing":
        return suite_key, missing(str(deepest_error["loc"][-1]), deepest_error["input"])
    if error_type == "value_error":
        return suite_key, message.removeprefix("Value error, ")
    error_context = deepest_error.get("ctx", {})
    if error_type == "too_short" and error_context["min_length"] == 1:
        return suite_key, "must list at least one value"
    if error_type in _SUITE_MESSAGES:
        message = _SUITE_MESSAGES[error_type].format_map(error_context)
    else:
        message = message.replace("Input should be", "must be")
        message = message.replace("must be a valid", "must be a")
    return suite_key, f"{message}, got {short_repr(deepest_error['input'])}"


_SUITE_MESSAGES = {
    "greater_than": "must be > {gt:g}",
    "less_than_equal": "must be at most {le:.12g}",
    "greater_than_equal": "must be at least {ge}",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "tuple_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "string_too_short": "must be a non-empty string",
}
"""Messages of pydantic in the words of a suite; the others need no translation."""


def _suite_location(location: tuple[int | str, ...]) -> list[int | str]:
    """Return the keys and list positions of a validation error's location, without pydantic's names of union members."""
    union_members = ("int", "float", "str", "bool", "list", "dict")
    return [
        key_or_position
        for key_or_position in location
        if isinstance(key_or_position, int)
        or ("[" not in key_or_position and key_or_position not in union_members)
    ]


def unknown_key(key: str, choices: Iterable[str]) -> str:
    """Write the error message for an unknown key, with a suggestion of similar ``choices``."""
    names = sorted(choices)
    return (
        f"unknown key, {suggestion(key, names) if names else 'it takes no parameters'}"
    )


def require_known_names(
    names: Iterable[str], choices: Collection[str], *parent_tables: str
) -> None:
    """Raise ParameterError for the first name that is not among ``choices``; ``parent_tables`` name the tables around it."""
    for name in names:
        if name not in choices:
            raise ParameterError(
                ".".join((*parent_tables, name)), unknown_key(name, choices)
            )


def _lists_as_tuples(
    params: Parameters, type_hints: Mapping[str, object]
) -> Parameters:
    """Convert lists to tuples where the type hint of a parameter is a tuple (TOML has no tuples)."""
    for parameter_name, parameter_value in params.items():
        type_hint = type_hints.get(parameter_name)
        if isinstance(parameter_value, list) and any(
            typing.get_origin(annotation) is tuple
            for annotation in (type_hint, *typing.get_args(type_hint))
        ):
            params[parameter_name] = tuple(parameter_value)
    return params


# -- classes with fit, and functions ------------------------------------------------------------------------------

OPTIONAL_ARGUMENTS = ("problem", "rng")
"""Optional arguments of ``fit`` besides the data."""


class FittedState(NamedTuple):
    """State of an algorithm with ``fit``: its estimate and the random generator (``rng``) of the run."""

    estimate: Array
    rng: np.random.Generator


class FitAdapter(Algorithm):
    """Adapter from a class with ``fit(data)`` to an iterative algorithm, whose only step runs the whole fit.

    ``fit`` may name ``problem`` and ``rng`` (a host generator of the run's own) as further arguments. It returns the
    signal-shaped estimate, ``(P, D)`` or ``(P, D, D)``, in any array or nested list that NumPy or the data's namespace
    understands.
    """

    steps: ClassVar[int] = 1
    fit: Callable[..., Array]

    def init(
        self, problem: ProblemLike, data: Data, rng: np.random.Generator
    ) -> FittedState:
        """Return the initial state on ``data``, with the prior mean as the estimate and the generator ``rng``."""
        return FittedState(
            _as_data_array(
                data, problem.prior.mean(problem.components, data.dimension)
            ),
            rng,
        )

    def step(
        self, problem: ProblemLike, data: Data, state: FittedState
    ) -> tuple[FittedState, Info]:
        """Run the whole fit on ``data`` and report the relative distance of its estimate from the prior mean as the
        residual.

        Raises
        ------
        ValueError
            If the fit returns anything but real numbers in the shape of the signal.
        """
        optional_arguments = {"problem": problem, "rng": state.rng}
        fit_result = self.fit(
            data,
            **{
                argument_name: optional_arguments[argument_name]
                for argument_name in OPTIONAL_ARGUMENTS
                if takes(self.fit, argument_name)
            },
        )
        if fit_result is None:
            raise ValueError("fit must return the estimate, but it returned nothing")
        estimate = _as_data_array(data, fit_result)
        shape = problem.model.signal_shape(problem.components, data.dimension)
        if tuple(estimate.shape) != tuple(shape):
            raise ValueError(
                f"fit must return an estimate with the signal's shape {shape}, got shape {estimate.shape}"
            )
        xp = namespace(estimate)
        squared_change = xp.sum((estimate - state.estimate) ** 2)
        squared_norm = xp.sum(estimate * estimate)
        residual = xp.sqrt(
            squared_change
            / xp.where(squared_norm > 0, squared_norm, xp.ones_like(squared_norm))
        )
        samples = data.inputs.shape[0]
        return FittedState(estimate, state.rng), Info(
            residual=residual, samples=samples
        )

    def estimate(self, state: FittedState) -> Array:
        """Return the estimate in a state: the one that ``fit`` returned."""
        return state.estimate


def _as_data_array(data: Data, estimate: Array) -> Array:
    """Convert an estimate, given in any array type, to an array with the dtype and device of the data."""
    xp = namespace(data.labels)
    device = array_api_compat.device(data.labels)
    is_other_namespace = array_api_compat.is_array_api_obj(estimate) and not isinstance(
        estimate, (np.ndarray, np.generic)
    )
    array, error = (
        (estimate, None) if is_other_namespace else attempt(np.asanyarray, estimate)
    )
    if error is not None or not is_real(array):
        type_description = type(estimate).__name__ if error else dtype_name(array)
        raise ValueError(
            f"fit must return an array of real numbers, got {type_description}"
        )
    if is_other_namespace:
        return xp.astype(array, data.inputs.dtype, copy=False)
    return xp.asarray(array.astype(np.float64), dtype=data.inputs.dtype, device=device)


def algorithm_class(item: object) -> Any:
    """Make an algorithm class, with ``init``, ``step`` and ``estimate``, from an item that is a class with ``fit`` or a
    function.

    A class that has ``init`` or no ``fit`` is returned as it is. A function ``fit(data, *, parameter=value, ...)`` gives an
    algorithm of that name (``_`` written as ``-``) with these parameters; attributes ``name``, ``version``, ``reference`` and
    ``capabilities`` of the function replace the defaults (its own name, 1, the module, all models).

    Raises
    ------
    TypeError
        If a parameter of a function is not one that can be written in a suite: keyword-only or with a default.
    """
    if isinstance(item, type):
        if not hasattr(item, "fit") or any(
            defines_member(Algorithm, item, method_name)
            for method_name in ("init", "step")
        ):
            return item
        class_attributes = {
            attribute_name: getattr(item, attribute_name)
            for attribute_name in ("__doc__", "__module__", "__qualname__")
        }
        return type(item.__name__, (item, FitAdapter), class_attributes)
    return _algorithm_from_function(item) if inspect.isfunction(item) else item


def _algorithm_from_function(function: Callable[..., Array]) -> type[object]:
    """Make an algorithm class from a function ``fit(data, *, parameter=value, ...)``; see ``algorithm_class``."""
    function_parameters = list(inspect.signature(function).parameters.values())
    if (
        not function_parameters
        or function_parameters[0].kind is inspect.Parameter.KEYWORD_ONLY
    ):
        raise TypeError(
            f"algorithm function {function.__name__} must take the data as its first argument"
        )
    if any(
        parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        for parameter in function_parameters
    ):
        raise TypeError(
            f"algorithm function {function.__name__} must list its parameters by name, not as *args or **kwargs"
        )

    def fit(
        self: object, data: Data, problem: object = None, rng: object = None
    ) -> Array:
        """Call the function with the data, its parameters, and problem and rng if it takes them."""
        arguments = {"problem": problem, "rng": rng, **vars(self)}
        return function(
            data,
            **{
                parameter.name: arguments[parameter.name]
                for parameter in function_parameters[1:]
            },
        )

    parameter_fields: list[Any] = []
    for parameter in function_parameters[1:]:
        if parameter.name in OPTIONAL_ARGUMENTS:
            continue
        type_hint = (
            Any if parameter.annotation is parameter.empty else parameter.annotation
        )
        is_required = parameter.default is parameter.empty
        default_or_nothing = () if is_required else (parameter.default,)
        parameter_fields.append((parameter.name, type_hint, *default_or_nothing))
    class_attributes = {
        "__doc__": documentation(function) or f"The function {function.__name__}.",
        "__module__": function.__module__,
        "name": getattr(function, "name", function.__name__.replace("_", "-")),
        "version": getattr(function, "version", 1),
        "reference": getattr(function, "reference", function.__module__),
        "capabilities": getattr(function, "capabilities", Capabilities()),
        "fit": fit,
    }
    return dataclasses.make_dataclass(
        function.__name__,
        parameter_fields,
        bases=(FitAdapter,),
        namespace=class_attributes,
        frozen=True,
        kw_only=True,
    )


# -- check of the contract ----------------------------------------------------------------------------------------


def contract_violation(kind: str, cls: type[Any]) -> str | None:
    """Reason why a class violates the contract of its kind of item, phrased to follow its name; None if it does not."""
    missing_names, alternative_member_sets = missing_members(BASES[kind], cls)
    if missing_names:
        return f"the class lacks {', '.join(missing_names)}"
    if alternative_member_sets:
        # If one set of members contains another, the smaller one is enough.
        minimal_member_sets = []
        for member_set in alternative_member_sets:
            if not any(
                set(other_member_set) < set(member_set)
                for other_member_set in alternative_member_sets
            ):
                minimal_member_sets.append(" and ".join(member_set))
        separator = ", or " if " and " in minimal_member_sets[0] else " or "
        return f"the class needs {separator.join(minimal_member_sets)}"
    name, reference = cls.name, cls.reference
    rules: list[tuple[object, str, object]] = [
        (
            isinstance(name, str) and re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name),
            "name must be lower-case letters, digits, '.', '_' or '-'",
            name,
        ),
        (type(cls.version) is int, "version must be an integer", cls.version),
        (
            isinstance(reference, str) and reference.strip(),
            "reference must name the source of the equations",
            reference,
        ),
        (
            isinstance(cls.capabilities, Capabilities),
            "capabilities must be a smimbench.Capabilities",
            cls.capabilities,
        ),
    ]
    if kind == "metric":
        rules.append(
            (
                cls.direction in DIRECTIONS,
                f"direction must be one of {', '.join(DIRECTIONS)}",
                cls.direction,
            )
        )
        for flag_name in ("per_component", "in_trajectory"):
            actual_value = getattr(cls, flag_name, False)
            rules.append(
                (
                    isinstance(actual_value, bool),
                    f"{flag_name} must be true or false",
                    actual_value,
                )
            )
    for is_met, requirement, actual_value in rules:
        if not is_met:
            return f"{requirement}, got {short_repr(actual_value)}"
    if kind == "metric":
        _, error = attempt(cls)
        if error is not None:
            return (
                f"the metric cannot be created without arguments: {error_line(error)}"
            )
    return ignored_default_message(cls)
