"""Writes the members of every contract as Markdown, from smimbench.interfaces; the site adds them to docs/hooks.md."""

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
from smimbench.interfaces.item import describe_members, optional_members


def section(title: str, base: type, sentence: str) -> str:
    """Return the Markdown section of one contract, a base class: its sentence, the members that a class must have, and those
    that it may leave out.
    """
    members = describe_members(base)
    optional = list(optional_members(base)) if issubclass(base, Item) else []
    text = f"\n## {title}\n\n{sentence}\n\n" + "".join(
        entry(name, members[name]) for name in members if name not in optional
    )
    if optional:
        text += "\nOptional:\n\n" + "".join(
            entry(name, members[name]) for name in optional
        )
    return text


def entry(name: str, text: str) -> str:
    """Return the Markdown line of one member of a contract: how it is called, and its description."""
    call = re.match(rf"``({name}\(.*?\))``: ", text)
    written, description = (call[1], text[call.end() :]) if call else (name, text)
    return f"- `{written}`: {description.replace('``', '`')}\n"


def contracts() -> str:
    """Return the Markdown sections of all contracts."""
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
    sections = [section("Every item", Item, words)]
    sections += [
        section(base.__name__, base, sentence) for base, sentence in needs.items()
    ]
    return "".join(sections)


if __name__ == "__main__":
    print(contracts())  # noqa: T201
