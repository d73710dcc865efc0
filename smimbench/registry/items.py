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
from smimbench.interfaces.checks import is_real, shown, type_of_numbers
from smimbench.interfaces.item import gives, missing_members, takes

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


def _signature(cls: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    """Named parameters of a class's constructor, without ``self``, ``*args`` and ``**kwargs``."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(cls).parameters.values()
    return {p.name: p for p in parameters if p.kind in kinds}


signature_of: Callable[[Callable[..., object]], Mapping[str, inspect.Parameter]] = (
    functools.cache(_signature)
)
"""Named parameters of a class's constructor, cached because every cell builds its items again."""


def ignored_default(cls: type[object]) -> str | None:
    """Error message if a dataclass overrides a default without annotation, which Python would ignore; otherwise None."""
    for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
        value = inspect.getattr_static(cls, field.name, field.default)
        if value is field.default or inspect.ismemberdescriptor(value):
            continue
        kind = getattr(field.type, "__name__", field.type)
        actual_default = (
            "the parameter has no default"
            if field.default is dataclasses.MISSING
            else f"the default stays {field.default!r}"
        )
        return (
            f"{field.name} = {value!r} has no effect, {actual_default}: write {field.name}: {kind} = {value!r}, "
            "and @dataclass(frozen=True) above the class"
        )
    return None


def build(
    cls: Any,
    kind: str,
    params: Mapping[str, object],
    provided: Mapping[str, object] | None = None,
) -> Any:
    """Build an item from the parameters in a suite, checking their names and types strictly.

    Types come from the annotations of the class, defaults from its signature. ``provided`` are values that the engine
    supplies; those that the class does not take are left out.

    Raises
    ------
    ParameterError
        With the key and what would be right.
    """
    import pydantic

    available = signature_of(cls)
    supplied = {k: v for k, v in (provided or {}).items() if k in available}
    accepted, hints, schema = _schema(cls, kind)
    for key in params:
        if key not in accepted:
            if key in supplied:
                raise ParameterError(
                    key, "is taken from the model and cannot be set here; remove it"
                )
            raise ParameterError(key, unknown_key(key, accepted))
    try:
        checked = schema.model_validate(_lists_as_tuples(dict(params), hints))
    except pydantic.ValidationError as error:
        key, message = explain_validation(error)
        raise ParameterError(key, message) from None
    values = {
        name: getattr(checked, name)
        for name in accepted
        if name in checked.model_fields_set
    }
    for key, value in values.items():
        for number in _floats_in(value):
            if not math.isfinite(number):
                raise ParameterError(key, f"must be a finite number, got {number}")
    return cls(**values, **supplied)


def _floats_in(value: object) -> Iterator[float]:
    """Yield all floats in the value of a parameter, which may be a list or a table."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, Mapping):
        yield from _floats_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _floats_in(entry)


@functools.cache
def _schema(
    cls: Any, kind: str
) -> tuple[tuple[str, ...], dict[str, type], type[pydantic.BaseModel]]:
    """Return the parameters of an item that a suite may set: names, types, and a pydantic validator."""
    import pydantic

    accepted = {
        name: p
        for name, p in signature_of(cls).items()
        if name not in ENGINE_FILLED.get(kind, ())
    }
    try:
        hints = typing.get_type_hints(cls.__init__)
    except NameError:  # an annotation that only a type checker can resolve: the type of the default will do
        hints = {}
    fields: dict[str, Any] = {}
    for name, parameter in accepted.items():
        required = parameter.default is inspect.Parameter.empty
        hint = hints.get(
            name,
            Any if required or parameter.default is None else type(parameter.default),
        )
        fields[name] = (hint, ... if required else parameter.default)
    config = pydantic.ConfigDict(
        extra="forbid",
        strict=True,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )
    return (
        tuple(accepted),
        hints,
        pydantic.create_model(cls.__name__, __config__=config, **fields),
    )


def takes_lists(cls: object, kind: str, name: str) -> bool:
    """Whether a parameter accepts a list, judged by its annotation or its default; True if neither tells."""
    field = _schema(cls, kind)[2].model_fields.get(name)
    if field is None:  # an unknown key
        return True
    hint = field.annotation
    if hint is Any and field.default is not None and not field.is_required():
        hint = type(field.default)
    kinds = (hint, *typing.get_args(hint))
    return Any in kinds or any(
        (typing.get_origin(annotation) or annotation) in (tuple, list)
        for annotation in kinds
    )


def is_value(cls: object, kind: str, name: str, value: object) -> bool:
    """Whether a list is valid as a single value of a parameter, by its annotation; False without annotation."""
    import pydantic

    field = _schema(cls, kind)[2].model_fields.get(name)
    if field is None or field.annotation is Any:
        return False
    annotation: Any = field.annotation
    adapter = pydantic.TypeAdapter(
        annotation,
        config=pydantic.ConfigDict(strict=True, arbitrary_types_allowed=True),
    )
    try:
        adapter.validate_python(
            _lists_as_tuples({name: value}, {name: field.annotation})[name]
        )
    except pydantic.ValidationError:
        return False
    return True


def parameters_of(kind: str, item: object) -> Parameters:
    """All parameters of an item, defaults included, as JSON values, except those that the engine takes from the model."""
    parameters = {
        name: getattr(item, name)
        for name in signature_of(type(item))
        if name not in ENGINE_FILLED.get(kind, ())
    }
    document: Parameters = json.loads(json.dumps(parameters, default=plain_value))
    return document


def explain_validation(error: pydantic.ValidationError) -> tuple[str, str]:
    """Return key and one-line message of the first mistake in a pydantic ValidationError."""
    errors = error.errors(include_url=False)
    # A union reports each member it tried; the one that got furthest into the value is the one that was meant.
    place = _user_location(errors[0]["loc"])
    same_place = [e for e in errors if _user_location(e["loc"])[: len(place)] == place]
    mistake = max(same_place, key=lambda e: len(_user_location(e["loc"])))
    key = ""
    for step in _user_location(mistake["loc"]):
        key += f"[{step}]" if isinstance(step, int) else f".{step}"
    key = key[1:]
    kind, message = mistake["type"], str(mistake["msg"])
    if kind == "missing":
        return key, missing(str(mistake["loc"][-1]), mistake["input"])
    if kind == "value_error":
        return key, message.removeprefix("Value error, ")
    context = mistake.get("ctx", {})
    if kind == "too_short" and context["min_length"] == 1:
        return key, "must list at least one value"
    if kind in _SUITE_MESSAGES:
        message = _SUITE_MESSAGES[kind].format_map(context)
    else:
        message = message.replace("Input should be", "must be")
        message = message.replace("must be a valid", "must be a")
    return key, f"{message}, got {shown(mistake['input'])}"


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


def _user_location(location: tuple[int | str, ...]) -> list[int | str]:
    """Keys and positions in a validation error's location, without pydantic's names of union members."""
    members = ("int", "float", "str", "bool", "list", "dict")
    return [
        p for p in location if isinstance(p, int) or ("[" not in p and p not in members)
    ]


def unknown_key(key: str, choices: Iterable[str]) -> str:
    """Error message for an unknown key, suggesting similar ones."""
    names = sorted(choices)
    return (
        f"unknown key, {suggestion(key, names) if names else 'it takes no parameters'}"
    )


def require_known(
    names: Iterable[str], choices: Collection[str], *parents: str
) -> None:
    """Raise ParameterError for the first unknown name; ``parents`` are the names of the enclosing tables."""
    for name in names:
        if name not in choices:
            raise ParameterError(".".join((*parents, name)), unknown_key(name, choices))


def _lists_as_tuples(params: Parameters, hints: Mapping[str, object]) -> Parameters:
    """Convert lists to tuples where a parameter is annotated as one (TOML has no tuples)."""
    for key, value in params.items():
        hint = hints.get(key)
        if isinstance(value, list) and any(
            typing.get_origin(annotation) is tuple
            for annotation in (hint, *typing.get_args(hint))
        ):
            params[key] = tuple(value)
    return params


# -- classes with fit, and functions ------------------------------------------------------------------------------

OFFERED = ("problem", "rng")
"""Optional arguments of a fit besides the data."""


class FittedState(NamedTuple):
    """State of an algorithm with ``fit``: its estimate, and the random generator of the run."""

    estimate: Array
    rng: np.random.Generator


class Fitted(Algorithm):
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
        """Return the initial state, with the prior mean as the estimate."""
        return FittedState(
            _as_data_array(
                data, problem.prior.mean(problem.components, data.dimension)
            ),
            rng,
        )

    def step(
        self, problem: ProblemLike, data: Data, state: FittedState
    ) -> tuple[FittedState, Info]:
        """Run the whole fit and report the relative distance of its estimate from the prior mean as the residual.

        Raises
        ------
        ValueError
            If the fit returns anything but real numbers in the shape of the signal.
        """
        offered = {"problem": problem, "rng": state.rng}
        returned = self.fit(
            data, **{name: offered[name] for name in OFFERED if takes(self.fit, name)}
        )
        if returned is None:
            raise ValueError("fit must return the estimate, but it returned nothing")
        estimate = _as_data_array(data, returned)
        shape = problem.model.signal_shape(problem.components, data.dimension)
        if tuple(estimate.shape) != tuple(shape):
            raise ValueError(
                f"fit must return an estimate with the signal's shape {shape}, got shape {estimate.shape}"
            )
        xp = namespace(estimate)
        change = xp.sum((estimate - state.estimate) ** 2)
        size = xp.sum(estimate * estimate)
        residual = xp.sqrt(change / xp.where(size > 0, size, xp.ones_like(size)))
        samples = data.inputs.shape[0]
        return FittedState(estimate, state.rng), Info(
            residual=residual, samples=samples
        )

    def estimate(self, state: FittedState) -> Array:
        """Return the estimate that ``fit`` returned."""
        return state.estimate


def _as_data_array(data: Data, values: Array) -> Array:
    """Convert numbers to an array with the dtype and device of the data."""
    xp = namespace(data.labels)
    device = array_api_compat.device(data.labels)
    is_foreign = array_api_compat.is_array_api_obj(values) and not isinstance(
        values, (np.ndarray, np.generic)
    )
    numbers, error = (values, None) if is_foreign else attempt(np.asanyarray, values)
    if error is not None or not is_real(numbers):
        got = type(values).__name__ if error else type_of_numbers(numbers)
        raise ValueError(f"fit must return an array of real numbers, got {got}")
    if is_foreign:
        return xp.astype(numbers, data.inputs.dtype, copy=False)
    return xp.asarray(
        numbers.astype(np.float64), dtype=data.inputs.dtype, device=device
    )


def algorithm_class(item: object) -> Any:
    """Make an algorithm class, with ``init``, ``step`` and ``estimate``, from a class with ``fit`` or a function.

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
            gives(Algorithm, item, name) for name in ("init", "step")
        ):
            return item
        named = {
            key: getattr(item, key) for key in ("__doc__", "__module__", "__qualname__")
        }
        return type(item.__name__, (item, Fitted), named)
    return _class_from_function(item) if inspect.isfunction(item) else item


def _class_from_function(function: Callable[..., Array]) -> type[object]:
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise TypeError(
            f"algorithm function {function.__name__} must take the data as its first argument"
        )
    if any(
        parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        for parameter in parameters
    ):
        raise TypeError(
            f"algorithm function {function.__name__} must list its parameters by name, not as *args or **kwargs"
        )

    def fit(
        self: object, data: Data, problem: object = None, rng: object = None
    ) -> Array:
        offered = {"problem": problem, "rng": rng, **vars(self)}
        return function(data, **{p.name: offered[p.name] for p in parameters[1:]})

    fields: list[Any] = []
    for parameter in parameters[1:]:
        if parameter.name in OFFERED:
            continue
        hint = Any if parameter.annotation is parameter.empty else parameter.annotation
        required = parameter.default is parameter.empty
        default = () if required else (parameter.default,)
        fields.append((parameter.name, hint, *default))
    body = {
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
        fields,
        bases=(Fitted,),
        namespace=body,
        frozen=True,
        kw_only=True,
    )


# -- check of the contract ----------------------------------------------------------------------------------------


def contract_violation(kind: str, cls: type[Any]) -> str | None:
    """Reason why a class cannot be registered as an item, phrased to follow its name; None if it can."""
    missing_names, choices = missing_members(BASES[kind], cls)
    if missing_names:
        return f"the class lacks {', '.join(missing_names)}"
    if choices:
        # Of two sets of which one contains the other, the smaller is enough.
        smallest = []
        for choice in choices:
            if not any(set(smaller) < set(choice) for smaller in choices):
                smallest.append(", ".join(choice))
        return f"the class needs {' or '.join(smallest)}"
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
        for flag in ("per_component", "in_trajectory"):
            value = getattr(cls, flag, False)
            rules.append(
                (isinstance(value, bool), f"{flag} must be true or false", value)
            )
    for holds, rule, value in rules:
        if not holds:
            return f"{rule}, got {shown(value)}"
    if kind == "metric":
        _, error = attempt(cls)
        if error is not None:
            return (
                f"the metric cannot be created without arguments: {error_line(error)}"
            )
    return ignored_default(cls)
