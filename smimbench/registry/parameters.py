"""Builds items from the tables of a suite, checking parameters against the constructor's signature and explaining errors."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from smimbench.files import missing, plain_value, suggestion
from smimbench.interfaces import ParameterError
from smimbench.interfaces.checks import shown

if TYPE_CHECKING:
    import pydantic

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
