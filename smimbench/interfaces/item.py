"""Base class of all items, functions that read the members of their contracts, and types that all contracts use."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import numpy as np

Array: TypeAlias = Any
Host: TypeAlias = "np.ndarray[Any, Any]"


class ParameterError(ValueError):
    """Error raised when a parameter of an item has an invalid value.

    Parameters
    ----------
    key : str
        Name of the parameter.
    message : str
        What is wrong and what would be right, without the name: ``"must be > 0, got -1"``.
    """

    def __init__(self, key: str, message: str) -> None:
        """Store the name of the parameter (``key``), and what is wrong with its value (``message``)."""
        super().__init__(f"{key}: {message}")
        self.key = key
        self.message = message


def require(item: Any, key: str, holds: bool, rule: str) -> None:
    """Raise a ParameterError for the parameter ``key`` of an item that says ``must be <rule>, got ...`` unless the condition
    ``holds`` is true.
    """
    if not holds:
        raise ParameterError(key, f"must be {rule}, got {getattr(item, key)!r}")


@dataclass(frozen=True)
class Capabilities:
    """Models, backends and data types (``dtypes``) that an item can be combined with.

    Attributes
    ----------
    models : tuple of str
        Names of the models it works for; ``("*",)`` stands for all.
    backends : tuple of str
        Names of array namespaces it runs on; ``("*",)`` stands for every array API namespace.
    dtypes : tuple of str
        Real data types it is accurate in. ``"mixed"`` says of a model that its products in float64 take inputs of float32 as
        they are; other models are given them widened.
    """

    models: tuple[str, ...] = ("*",)
    backends: tuple[str, ...] = ("*",)
    dtypes: tuple[str, ...] = ("float64", "float32")


class Uncertain(NamedTuple):
    """Computed number (or array) ``value`` with its numerical error and the method that computed it: quadrature, Monte
    Carlo, closed form.

    ``error`` is one standard error for Monte Carlo and an estimate of the absolute error for quadrature; it has the
    shape of ``value`` or is a scalar. ``method`` is ``"closed form"``, ``"quadrature"`` or ``"Monte Carlo"``, or a
    few words more.
    """

    value: Array
    error: Array
    method: str


class Cost(NamedTuple):
    """Minimum work of one iteration on any machine, in floating-point operations (``flops``) and bytes; efficiency is
    measured relative to it. ``denoiser`` are the operations of one denoising step of a prior.

    Attributes
    ----------
    flops : float
        Floating-point operations of its matrix products, a multiplication and an addition counted as two.
    bytes : float
        Bytes that have to come from memory: what does not fit a cache, counted once for every time it is needed.
    denoiser : float
        Floating-point operations of one denoising step of a typical prior, to price a run.
    """

    flops: float
    bytes: float
    denoiser: float = 0.0


ItemClass = TypeVar("ItemClass", bound=type[object])
DERIVED: Any = None
"""Default of members that the engine derives if an item does not define them."""
IDENTITY_MEMBERS = ("name", "version", "reference", "capabilities")


class Item:
    """Base class of models, inputs, channels, priors, metrics and algorithms, with name, version, source of the equations
    (``reference``) and capabilities. ``example`` holds parameters with which published checks create the item,
    ``title_words`` words for titles; the members that a class must define are listed in ``_required_members`` and, where one
    set of several is enough, in ``_alternative_members``.

    Parameters are the fields of a dataclass. Bad values raise ``smimbench.ParameterError(key, "must be ..., got ...")``.
    """

    _required_members: ClassVar[tuple[str, ...]] = ()
    _alternative_members: ClassVar[tuple[tuple[str, ...], ...]] = ()

    name: ClassVar[str]
    """Name of the item in suites: lower-case letters, digits, ``.``, ``_`` and ``-``."""
    version: ClassVar[int]
    """Version of the item, an integer that is raised when its numbers change; part of the key of a result. ``smimbench
    show`` counts cells of another version, or of other code of the item, in one line and in no table."""
    reference: ClassVar[str]
    """Publication that the equations come from."""
    capabilities: ClassVar[Capabilities]
    """``smimbench.Capabilities(models, backends, dtypes)``: what the item can be combined with."""

    example: ClassVar[dict[str, Any]] = {}
    """Parameters with which the published checks create the item. Without it: its defaults."""
    title_words: ClassVar[dict[str, str]] = {}
    """Words for its name and its parameters in titles of figures: ``{"name": "Softmax attention", "skip": "c"}``. Without it: its
    name, and Greek letters for parameters that are named after one."""


GREEK = {
    unicodedata.name(letter).removeprefix("GREEK SMALL LETTER ").lower(): letter
    for letter in "αβγδεζηθικμνξπρστφχψω"
} | {"lambda": "λ"}
"""Greek letters by their names."""


def title_word(item: object, parameter: str) -> str:
    """Return the word or symbol for a parameter of an item or a class in titles; without one, its name."""
    words = getattr(item, "title_words", {})
    return words.get(parameter) or GREEK.get(parameter, parameter)


def has_member(item: object, name: str) -> bool:
    """Whether an item or a class has a method, attribute or dataclass field of this name."""
    # A field of a dataclass without a default is no attribute of the class.
    return hasattr(item, name) or name in getattr(item, "__dataclass_fields__", {})


def defines_member(base: type[Item], cls: object, name: str) -> bool:
    """Whether a class defines the member ``name`` itself instead of inheriting the default of the contract's base class
    ``base``.
    """
    is_inherited = getattr(cls, name, cls) is getattr(base, name, base)
    return has_member(cls, name) and (
        not is_inherited or name in getattr(cls, "__dataclass_fields__", {})
    )


def takes(method: Callable[..., object], name: str) -> bool:
    """Whether a method has an argument of this name; optional arguments are passed only to methods that take them."""
    return name in _argument_names(getattr(method, "__func__", method))


@functools.cache
def _argument_names(function: Callable[..., object]) -> frozenset[str]:
    """Names of the arguments of a function, cached."""
    return frozenset(inspect.signature(function).parameters)


def missing_members(
    base: type[Item], cls: object
) -> tuple[list[str], tuple[tuple[str, ...], ...]]:
    """List the required members of a contract (``base``) that a class lacks, and the alternative method sets if none of
    them is complete.
    """
    missing_names = [
        member_name
        for member_name in (*IDENTITY_MEMBERS, *base._required_members)
        if not defines_member(base, cls, member_name)
    ]
    for member_set in base._alternative_members:
        if all(defines_member(base, cls, member_name) for member_name in member_set):
            return missing_names, ()
    return missing_names, base._alternative_members


def optional_members(base: type[Item]) -> tuple[str, ...]:
    """Names of the optional members of a contract's base class."""
    required_names = {*base._required_members, *(base._alternative_members or ((),))[0]}
    return tuple(
        member_name
        for member_name in vars(base)
        if not member_name.startswith("_") and member_name not in required_names
    )


def with_defaults(base: type[Item], cls: ItemClass) -> ItemClass:
    """Add the default members of a contract (its base class ``base``) to an item class ``cls`` that does not inherit from it."""
    if not issubclass(cls, base):
        for contract in (Item, base):
            for member_name, default_member in vars(contract).items():
                is_unimplemented = callable(
                    default_member
                ) and member_name not in optional_members(contract)
                if not (
                    member_name.startswith("_")
                    or is_unimplemented
                    or has_member(cls, member_name)
                ):
                    setattr(cls, member_name, default_member)
    return cls


def describe_members(base: type[Item]) -> dict[str, str]:
    """Documentation of the members of a contract by name, read from the source of its base class."""
    (class_tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
    class_body = class_tree.body if isinstance(class_tree, ast.ClassDef) else []
    descriptions: dict[str, str] = {}
    for member_node, following_node in zip(class_body, [*class_body[1:], ast.Pass()]):
        if isinstance(member_node, ast.FunctionDef):
            arguments = ", ".join(
                argument.arg for argument in member_node.args.args[1:]
            )
            docstring = (ast.get_docstring(member_node) or "").split(
                "\n\nParameters\n"
            )[0]
            descriptions[member_node.name] = (
                f"``{member_node.name}({arguments})``: {docstring}"
            )
        elif (
            isinstance(member_node, ast.AnnAssign)
            and isinstance(following_node, ast.Expr)
            and isinstance(following_node.value, ast.Constant)
        ):
            descriptions[ast.unparse(member_node.target)] = inspect.cleandoc(
                str(following_node.value.value)
            )
    return {
        member_name: " ".join(docstring.split())
        for member_name, docstring in descriptions.items()
    }


class Delegate:
    """Base class of wrappers around a channel, prior or model, which supplies all members that they do not define.
    ``_wrapped_attribute`` names the attribute that holds the wrapped object.
    """

    _wrapped_attribute: str

    def __getattr__(self, name: str) -> Any:
        """Return a member of the wrapped object, of this name, that the wrapper does not define."""
        # Special methods are not forwarded: copying and pickling would then act on the wrapped object.
        if name == self._wrapped_attribute or name.startswith("__"):
            raise AttributeError(name)
        return getattr(getattr(self, self._wrapped_attribute), name)

    def __repr__(self) -> str:
        """Return the names of wrapper and wrapped object."""
        return f"{type(self).__name__}({getattr(self, self._wrapped_attribute)!r})"
