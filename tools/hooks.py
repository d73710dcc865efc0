"""Members of every contract as Markdown, from the base classes in smimbench.interfaces: the site adds them to docs/hooks.md."""

from __future__ import annotations

import re

from smimbench.interfaces import (
    Algorithm,
    Channel,
    Inputs,
    Item,
    Metric,
    Model,
    Prior,
    StoppingRule,
)
from smimbench.interfaces.item import describe, optional_members


def section(title: str, base: type, first: str) -> str:
    """A list of what a class must have, and one of what it may leave out."""
    found = describe(base)
    optional = list(optional_members(base)) if issubclass(base, Item) else []
    text = f"\n## {title}\n\n{first}\n\n" + "".join(
        entry(name, found[name]) for name in found if name not in optional
    )
    if optional:
        text += "\nOptional:\n\n" + "".join(
            entry(name, found[name]) for name in optional
        )
    return text


def entry(name: str, text: str) -> str:
    """How a member is written, and what it is."""
    call = re.match(rf"``({name}\(.*?\))``: ", text)
    written, rest = (call[1], text[call.end() :]) if call else (name, text)
    return f"- `{written}`: {rest.replace('``', '`')}\n"


def contracts() -> str:
    """A section for every contract."""
    needs = {
        Channel: "Needs `forward` and either `posterior` or `log_likelihood`.",
        Prior: "Needs `sample` and `denoise`, or `law`.",
        Inputs: "Needs `draw` or `transform`.",
        Metric: "Needs all of the first list.",
        Algorithm: "Needs `init`, `step` and `estimate`, or `fit(data)` alone, as a method or as a function.",
        StoppingRule: "What `stopping_rule` of a `Plan` returns.",
        Model: "Needs all of the first list.",
    }
    words = 'Parameters are the fields of a dataclass. Bad values raise `smimbench.ParameterError(key, "must be ..., got ...")`.'
    parts = [section("Every item", Item, words)]
    parts += [section(base.__name__, base, first) for base, first in needs.items()]
    return "".join(parts)


if __name__ == "__main__":
    print(contracts())  # noqa: T201
