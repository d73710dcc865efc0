"""A problem that is named by options in place of a suite: ``theory --model M --channel C --prior P --PARAMETER VALUE``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KINDS = ("model", "channel", "prior")
TOKENS = 2
"""Default number of tokens, as in the papers."""

TEXT = """[suite]
title = "{title}"
[problem]
model   = {{ name = {model}{tokens} }}
channel = {{ name = {channel} }}
prior   = {{ name = {prior} }}
[grid]
alpha     = {alphas}
dimension = [100]
"""


class SampleRatios(click.ParamType):  # type: ignore[type-arg]
    """Option type for a sample ratio, or for several at equal distances: ``0.1`` or ``0.1:0.3:20``."""

    name = "FLOAT|FROM:TO:COUNT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[float]:
        """Convert the text to a list of sample ratios."""
        try:
            first, *others = str(value).split(":")
            if not others:
                return [float(first)]
            (last, count) = others
            low, high, n = float(first), float(last), int(count)
            if not 2 <= n <= 10_000:
                raise ValueError
            return [low + (high - low) * k / (n - 1) for k in range(n)]
        except ValueError:
            self.fail(f"must look like 0.1 or 0.1:0.3:20 (2 to 10,000 of them), got {value!r}", param, ctx)


def suite_of_words(
    items: dict[str, str | None], words: Sequence[str], alphas: Sequence[float]
) -> tuple[str, str, list[str]]:
    """Name and text of the suite that options describe, and its parameters as for ``--set``.

    Raises
    ------
    click.UsageError
        An item or a value is missing, or a parameter belongs to none of the items, or to several.
    """
    from smimbench.registry.parameters import ENGINE_FILLED, signature_of
    from smimbench.registry.registry import get_registry

    if missing := [f"--{kind}" for kind in KINDS if items[kind] is None]:
        raise click.UsageError(f"a problem without a suite needs {' and '.join(missing)}, too")
    if not alphas:
        raise click.UsageError("a problem without a suite needs its sample ratios: --alpha 0.1, or --alpha 0.1:0.3:20")
    found = {kind: get_registry().get(kind, str(name), items["model"]) for kind, name in items.items()}
    known = {
        kind: [name for name in signature_of(entry.item) if name not in ENGINE_FILLED.get(kind, ())]
        for kind, entry in found.items()
    }
    given = []
    for name, value in _pairs(words):
        owners = [kind for kind in KINDS if name in known[kind]]
        if not owners:
            listed = "; ".join(f"{kind}: {', '.join(known[kind])}" for kind in KINDS if known[kind])
            raise click.UsageError(f"--{name} is no option and no parameter of this problem ({listed})")
        if len(owners) > 1:
            raise click.UsageError(f"{' and '.join(owners)} have {name}: --set problem.{owners[0]}.{name}={value}")
        given.append(f"problem.{owners[0]}.{name}={value}")
    names = {kind: json.dumps(items[kind]) for kind in KINDS}
    plain = [str(items[kind]).rpartition(":")[2] for kind in KINDS]
    tokens = f", tokens = {TOKENS}" if "tokens" in known["model"] else ""
    text = TEXT.format(title=", ".join(plain), alphas=list(alphas), tokens=tokens, **names)
    return "-".join(plain), text, given


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names and values of ``--name value`` and ``--name=value``."""
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            raise click.UsageError(f"unexpected {word!r}: give a suite, or --model, --channel and --prior")
        if not equals:
            value = next(rest, "")
        if not value:
            raise click.UsageError(f"{name} needs a value")
        yield name[2:].replace("-", "_"), value
