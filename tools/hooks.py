"""Write docs/hooks.md from the hooks and the base classes: ``python tools/hooks.py``. A test fails where the page is stale."""

from __future__ import annotations

import re
from pathlib import Path

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

PAGE = Path(__file__).resolve().parent.parent / "docs" / "hooks.md"

TOP = """\
# Hooks and contracts

What a plugin implements, from the base classes in [smimbench/interfaces](../smimbench/interfaces). A class may inherit from its
base class; one that does not is given the same defaults.

## How a plugin gets in

- packages: an entry point in `[project.entry-points.smimbench]` of `pyproject.toml`, a name and the module that has the hooks;
- files and folders: `--plugins PATH` of any command, or the variable `SMIMBENCH_PLUGINS`;
- `./plugins/*.py`: if the suite says `plugins = true` in its table `[suite]`.

`--no-plugins` (or `SMIMBENCH_NO_PLUGINS=1`) loads only what ships, `--trace-plugins` says what is loaded from where, and
`smimbench plugins` shows what became of each. A name that ships keeps its meaning; one that two packages claim is written
`distribution:name`.

## Hooks

Functions with the marker `@smimbench.hookimpl` and the argument `register`, to be called with every class:
`smimbench_register_models`, `smimbench_register_inputs`, `smimbench_register_channels`, `smimbench_register_priors`,
`smimbench_register_metrics`, and `smimbench_register_algorithms`, which takes functions `fit(data)` too.
"""


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


def page() -> str:
    """The page."""
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
    parts = [TOP, section("Every item", Item, words)]
    parts += [section(base.__name__, base, first) for base, first in needs.items()]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
