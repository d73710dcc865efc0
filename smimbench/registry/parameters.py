"""Builds items from the tables of a suite: validates parameters against the constructor's signature and explains errors."""

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
    """Parameters of a class's constructor, without ``self`` and catch-alls."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(cls).parameters.values()
    return {p.name: p for p in parameters if p.kind in kinds}


signature_of: Callable[[Callable[..., object]], Mapping[str, inspect.Parameter]] = (
    functools.cache(_signature)
)
"""The same, found once for each class: every cell builds its items again."""


def ignored_default(cls: type[object]) -> str | None:
    """Error message for a dataclass subclass whose new default has no annotation and would be ignored, or None."""
    for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
        value = inspect.getattr_static(cls, field.name, field.default)
        if value is field.default or inspect.ismemberdescriptor(value):
            continue
        kind = getattr(field.type, "__name__", field.type)
        usual = (
            "it has no default"
            if field.default is dataclasses.MISSING
            else f"its default stays {field.default!r}"
        )
        return (
            f"{field.name} = {value!r} has no effect, {usual}: write {field.name}: {kind} = {value!r}, "
            "and @dataclass(frozen=True) above the class"
        )
    return None


def build(
    cls: Any,
    kind: str,
    params: Mapping[str, object],
    provided: Mapping[str, object] | None = None,
) -> Any:
    """Make an item from parameters as written in a suite (without ``name``), checking names and types strictly.

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
                    key, "is set by the model and cannot be set here; remove it"
                )
            raise ParameterError(key, unknown_key(key, accepted))
    try:
        checked = schema.model_validate(_tuples(dict(params), hints))
    except pydantic.ValidationError as error:
        key, message = explain_validation(error)
        raise ParameterError(key, message) from None
    values = {
        name: getattr(checked, name)
        for name in accepted
        if name in checked.model_fields_set
    }
    for key, value in values.items():
        for number in _numbers_in(value):
            if not math.isfinite(number):
                raise ParameterError(key, f"must be a finite number, got {number}")
    return cls(**values, **supplied)


def _numbers_in(value: object) -> Iterator[float]:
    """All floats of a parameter, which may be a list or a table."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, Mapping):
        yield from _numbers_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _numbers_in(entry)


@functools.cache
def _schema(
    cls: Any, kind: str
) -> tuple[tuple[str, ...], dict[str, type], type[pydantic.BaseModel]]:
    """Parameter names that a suite may set, their types and a validator; cached, because every cell builds its items again."""
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


def takes_lists(cls: Any, kind: str, name: str) -> bool:
    """Whether a list can be the value of a parameter, by its annotation, or its default; True where neither says."""
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


def is_value(cls: Any, kind: str, name: str, value: object) -> bool:
    """Whether a list can be one value of a parameter, by its annotation; False where there is none."""
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
        adapter.validate_python(_tuples({name: value}, {name: field.annotation})[name])
    except pydantic.ValidationError:
        return False
    return True


def parameters_of(kind: str, item: object) -> Parameters:
    """Parameters of an item with defaults, as plain JSON values; parameters set by the engine are left out."""
    parameters = {
        name: getattr(item, name)
        for name in signature_of(type(item))
        if name not in ENGINE_FILLED.get(kind, ())
    }
    document: Parameters = json.loads(json.dumps(parameters, default=plain_value))
    return document


def explain_validation(error: pydantic.ValidationError) -> tuple[str, str]:
    """Key and one clear line from a pydantic ValidationError (its first and most specific problem)."""
    errors = error.errors(include_url=False)
    # A union reports each member it tried; the one that got furthest into the value is the one that was meant.
    place = _written(errors[0]["loc"])
    same_place = [e for e in errors if _written(e["loc"])[: len(place)] == place]
    mistake = max(same_place, key=lambda e: len(_written(e["loc"])))
    key = ""
    for step in _written(mistake["loc"]):
        key += f"[{step}]" if isinstance(step, int) else f".{step}"
    key = key[1:]
    kind, message = mistake["type"], str(mistake["msg"])
    if kind == "missing":
        return key, missing(str(mistake["loc"][-1]), mistake["input"])
    if kind == "value_error":
        return key, message.removeprefix("Value error, ")
    context = mistake.get("ctx", {})
    if kind == "too_short" and context["min_length"] == 1:
        return key, "must not be empty"
    if kind in _WORDS:
        message = _WORDS[kind].format_map(context)
    else:
        message = message.replace("Input should be", "must be")
        message = message.replace("must be a valid", "must be a")
    return key, f"{message}, got {shown(mistake['input'])}"


_WORDS = {
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


def _written(location: tuple[int | str, ...]) -> list[int | str]:
    """The part of a validation error's location that the user wrote, without names of union members."""
    members = ("int", "float", "str", "bool", "list", "dict")
    return [
        p for p in location if isinstance(p, int) or ("[" not in p and p not in members)
    ]


def unknown_key(key: str, choices: Iterable[str]) -> str:
    """Error message for an unknown key, with suggestions."""
    names = sorted(choices)
    return (
        f"unknown key, {suggestion(key, names) if names else 'it takes no parameters'}"
    )


def require_known(names: Iterable[str], choices: Collection[str], *way: str) -> None:
    """Raise ParameterError for the first unknown name; ``way`` is the path of the tables that hold it."""
    for name in names:
        if name not in choices:
            raise ParameterError(".".join((*way, name)), unknown_key(name, choices))


def _tuples(params: Parameters, hints: Mapping[str, object]) -> Parameters:
    """Convert lists (TOML has no tuples) to the tuples that the annotations ask for."""
    for key, value in params.items():
        hint = hints.get(key)
        if isinstance(value, list) and any(
            typing.get_origin(annotation) is tuple
            for annotation in (hint, *typing.get_args(hint))
        ):
            params[key] = tuple(value)
    return params
