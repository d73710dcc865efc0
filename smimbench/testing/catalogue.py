"""All published checks, and the contexts in which they are applied to an item."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from smimbench.interfaces import Algorithm
from smimbench.interfaces.item import gives, with_defaults
from smimbench.registry.adapters import algorithm_class
from smimbench.registry.parameters import parameters_of, signature_of
from smimbench.registry.registry import BASES, Entry, get_registry

# Publishing a check is what importing these is for; the order is that in which checks are run.
from smimbench.testing import common, contract, limits, metrics  # noqa: F401
from smimbench.testing.context import CheckContext, instantiate, kind_of
from smimbench.testing.core import Check, CheckError
from smimbench.testing.publish import PUBLISHED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GENERAL = ("declaration", "parameters", "bad_parameters")
"""Checks that come first, because they need nothing that an item computes."""


def all_checks(kind: str | None = None) -> tuple[Check, ...]:
    """Every published check of a kind (None: of all), in the order in which they are run."""
    found = [check for check in PUBLISHED.values() if kind in (None, check.kind)]
    return tuple(sorted(found, key=lambda check: 2 - 2 * (check.id in GENERAL) - check.required))


def refuse_unknown(ids: Iterable[str], found: Iterable[CheckContext]) -> None:
    """Raise CheckError for an id of no check of these items."""
    known = {one.id for context in found for one in all_checks(context.kind)}
    if odd := sorted(set(ids) - known):
        raise CheckError(f"no check is called {', '.join(odd)}; choose from {', '.join(sorted(known))}")


def contexts(item: Any, *, seed: int = 0, parameters: Mapping[str, Any] | None = None) -> list[CheckContext]:
    """What is to be checked of an item: itself, one of its class, or one of every item of a name.

    Parameters as for ``smimbench.testing.check``; a class is made with its defaults or its attribute ``example`` (a mapping
    of parameters), a name may be written ``"distribution:name"``.

    Raises
    ------
    CheckError
        Unknown name; a class that needs parameters.
    """
    if isinstance(item, CheckContext):
        return [item]
    if isinstance(item, str):
        named = _named(item, parameters)
        return [CheckContext(e.kind, instantiate(e.item, e.kind, parameters), seed) for e in named]
    if isinstance(item, types.FunctionType):
        item = algorithm_class(item)
    kind = kind_of(item)
    if isinstance(item, type):
        return [CheckContext(kind, instantiate(item, kind, parameters), seed)]
    if parameters:
        raise CheckError("parameters go with a class or a name; make the instance with them instead")
    if kind == "algorithm" and not gives(Algorithm, type(item), "step"):
        item = instantiate(type(item), kind, parameters_of(kind, item))
    with_defaults(BASES[kind], type(item))
    return [CheckContext(kind, item, seed)]


def _named(name: str, parameters: Mapping[str, Any] | None) -> list[Entry]:
    import difflib

    entries = get_registry().entries()
    distribution, _, plain = name.rpartition(":")
    found = [e for e in entries if e.name == plain and distribution in ("", e.distribution)]
    if not found:
        close = difflib.get_close_matches(plain, {e.name for e in entries}, 3)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "see 'smimbench list'"
        raise CheckError(f"nothing is called {name!r}; {hint}")
    # The same name may stand for several items: parameters say which are meant.
    taking = [e for e in found if set(parameters or ()) <= set(signature_of(e.item))]
    if not taking:
        known = sorted({p for e in found for p in signature_of(e.item)})
        odd = ", ".join(sorted(set(parameters or ()) - set(known)))
        raise CheckError(f"{name!r} has no parameter {odd}; it takes {', '.join(known) or 'no parameters'}")
    return taking
