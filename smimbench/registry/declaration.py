"""What an item declares of itself (name, version, reference, capabilities, methods), and what is wrong with it."""

from __future__ import annotations

import re
from typing import Any

from smimbench.interfaces import DIRECTIONS, Algorithm, Capabilities, Channel, Item, Metric, Model, Prior
from smimbench.interfaces.item import gives, missing_members
from smimbench.registry.parameters import ignored_default

__all__ = ["BASES", "KINDS", "what_is_wrong"]

BASES: dict[str, type[Item]] = {
    "model": Model,
    "channel": Channel,
    "prior": Prior,
    "metric": Metric,
    "algorithm": Algorithm,
}
KINDS = tuple(BASES)


def what_is_wrong(kind: str, cls: type[Any]) -> str | None:
    """Why a class cannot be registered, in words that follow its name; None if it can."""
    missing, choices = missing_members(BASES[kind], cls)
    if missing:
        return f"lacks {', '.join(missing)}"
    if choices:
        return _missing_choice(BASES[kind], cls, choices)
    if not isinstance(cls.name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", cls.name):
        return f"name must be lower-case letters, digits, '.', '_' or '-', got {cls.name!r}"
    if isinstance(cls.version, bool) or not isinstance(cls.version, int):
        return f"version must be an integer, got {cls.version!r}"
    if not isinstance(cls.reference, str) or not cls.reference.strip():
        return f"reference must say where the equations are from, got {cls.reference!r}"
    if not isinstance(cls.capabilities, Capabilities):
        return f"capabilities must be a smimbench.Capabilities, got {type(cls.capabilities).__name__}"
    if kind == "metric" and cls.direction not in DIRECTIONS:
        return f"direction must be one of {', '.join(DIRECTIONS)}, got {cls.direction!r}"
    return ignored_default(cls)


def _missing_choice(base: type[Item], cls: type[Any], choices: tuple[tuple[str, ...], ...]) -> str:
    """Which methods are missing: those of the choice that was begun, or all choices."""
    choices = tuple(one for one in choices if not any(set(other) < set(one) for other in choices))
    begun = [choice for choice in choices if any(gives(base, cls, name) for name in choice)]
    if not begun:
        return f"needs {' or '.join(', '.join(choice) for choice in choices)}"
    lacking = ", ".join(name for name in begun[0] if not gives(base, cls, name))
    others = " or ".join(" and ".join(choice) for choice in choices if choice is not begun[0])
    return f"lacks {lacking} (or give {others} instead)"
