"""The checks of an item, printed as they end, and as JSON."""

from __future__ import annotations

import tomllib
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from smimbench.registry.parameters import parameters_of
from smimbench.report.columns import titled
from smimbench.testing import all_checks, check, contexts, refuse_unknown
from smimbench.testing.core import NOT_RUN, CheckError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console

    from smimbench.files import JsonObject
    from smimbench.testing.core import Outcome

STYLES = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


def read_parameters(settings: Iterable[str]) -> JsonObject:
    """``KEY=VALUE`` with values as in a suite; what is no TOML is a string.

    Raises
    ------
    CheckError
        Without ``=``.
    """
    found: JsonObject = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise CheckError(f"--set {setting}: must be KEY=VALUE, with a parameter of the item as KEY")
        try:
            found[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            found[key.strip()] = text
    return found


def run_checks(
    names: Sequence[str],
    *,
    only: Sequence[str] = (),
    seed: int = 0,
    parameters: Mapping[str, Any] | None = None,
    console: Console | None = None,
    quiet: bool = False,
) -> list[JsonObject]:
    """One object per item with all its outcomes; each is printed as it comes where there is a console.

    Raises
    ------
    CheckError
        Unknown name, a parameter that is missing or wrong, an unknown check.
    """
    documents = []
    found = [one for name in names for one in contexts(name, seed=seed, parameters=parameters)]
    refuse_unknown(only, found)
    for context in found:
        document: JsonObject = {
            "kind": context.kind,
            "name": context.item.name,
            "version": context.item.version,
            "models": list(context.model_names) if context.kind != "model" else [],
            "parameters": parameters_of(context.kind, context.item),
            "seed": seed,
        }
        on_outcome = None
        if console is not None:
            inner = ", ".join(f"{k} = {v}" for k, v in document["parameters"].items())
            models = f" for {', '.join(document['models'])}" if document["models"] else ""
            console.print(f"{context.kind} {context.item.name}({inner}){models}", style="bold")
            on_outcome = partial(_print_outcome, console, quiet)
        outcomes = check(context, only=only or None, on_outcome=on_outcome)
        document |= {status: sum(o.status == status for o in outcomes) for status in STYLES}
        document["checks"] = [asdict(outcome) for outcome in outcomes]
        documents.append(document)
        if console is not None:
            _print_counts(console, document, quiet)
    return documents


def _print_outcome(console: Console, quiet: bool, outcome: Outcome) -> None:
    """Status, check and message on a line; what the check means where it failed."""
    from rich.table import Table
    from rich.text import Text

    if outcome.message.startswith(NOT_RUN) or (quiet and outcome.status != "failed"):
        return
    line = Table.grid(padding=(0, 2, 0, 0), expand=True)
    for width in (7, 15):
        line.add_column(no_wrap=True, width=width)
    line.add_column(ratio=1, overflow="fold")
    text = Text(outcome.message)
    if outcome.status == "failed":
        text.append(f"\n{outcome.meaning}", style="dim")
    line.add_row(Text(outcome.status, style=STYLES[outcome.status]), outcome.check, text)
    console.print(line, crop=False)


def _print_counts(console: Console, document: Mapping[str, Any], quiet: bool) -> None:
    """How many checks ended how, after a line for all that were not run."""
    left = [one for one in document["checks"] if one["message"].startswith(NOT_RUN)]
    if left and not quiet:
        console.print(f"{left[0]['message']}: {', '.join(one['check'] for one in left)}", style=STYLES["skipped"])
    counts = ", ".join(f"{document[status]} {status}" for status in STYLES)
    console.print(f"{counts}\n", style=STYLES["failed" if document["failed"] else "passed"])


def list_documents() -> list[JsonObject]:
    """Every published check."""
    return [{"kind": c.kind, "check": c.id, "meaning": c.meaning, "false_alarm": c.false_alarm} for c in all_checks()]


def print_list(console: Console, documents: Sequence[Mapping[str, Any]]) -> None:
    """The checks of every kind, with what a failure means."""
    from rich.table import Table

    for kind in dict.fromkeys(document["kind"] for document in documents):
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(ratio=1, overflow="fold")
        for document in documents:
            if document["kind"] == kind:
                rate = document["false_alarm"]
                chance = f" (statistical: false alarms below {rate:g})" if rate else ""
                table.add_row(document["check"], document["meaning"] + chance)
        console.print(titled(table, f"checks of {'an' if kind[0] in 'aeiou' else 'a'} {kind}"), crop=False)
        console.print()
