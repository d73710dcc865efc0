"""The checks of an item as a table and as JSON."""

from __future__ import annotations

import tomllib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from smimbench.registry.parameters import parameters_of
from smimbench.report.tables import titled
from smimbench.testing import check
from smimbench.testing.catalogue import all_checks, contexts
from smimbench.testing.core import CheckError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console

__all__ = ["check_documents", "list_documents", "print_checks", "print_list", "read_parameters"]

STYLES = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


def read_parameters(settings: Iterable[str]) -> dict[str, Any]:
    """``KEY=VALUE`` with values as in a suite; what is no TOML is a string.

    Raises
    ------
    CheckError
        Without ``=``.
    """
    found: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise CheckError(f"--set {setting}: must be KEY=VALUE, with a parameter of the item as KEY")
        try:
            found[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            found[key.strip()] = text
    return found


def check_documents(
    names: Sequence[str], *, only: Sequence[str] = (), seed: int = 0, parameters: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """One object per item with all its outcomes.

    Raises
    ------
    CheckError
        Unknown name, a parameter that is missing or wrong, an unknown check.
    """
    documents = []
    for name in names:
        for context in contexts(name, seed=seed, parameters=parameters):
            outcomes = check(context, only=only or None)
            counts = {status: sum(o.status == status for o in outcomes) for status in STYLES}
            documents.append(
                {
                    "kind": context.kind,
                    "name": context.item.name,
                    "version": context.item.version,
                    "models": list(context.model_names) if context.kind != "model" else [],
                    "parameters": parameters_of(context.kind, context.item),
                    "seed": seed,
                    **counts,
                    "checks": [asdict(outcome) for outcome in outcomes],
                }
            )
    return documents


def print_checks(console: Console, documents: Sequence[Mapping[str, Any]], *, quiet: bool = False) -> None:
    """A table for every item: what passed, what failed and what that means, what was skipped and why."""
    from rich.table import Table
    from rich.text import Text

    for document in documents:
        inner = ", ".join(f"{k} = {v}" for k, v in document["parameters"].items())
        models = f" for {', '.join(document['models'])}" if document["models"] else ""
        title = f"{document['kind']} {document['name']}({inner}){models}"
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(ratio=1, overflow="fold")
        for outcome in document["checks"]:
            status = outcome["status"]
            if quiet and status != "failed":
                continue
            text = Text(outcome["message"])
            if status == "failed":
                text.append(f"\n{outcome['meaning']}", style="dim")
            table.add_row(Text(status, style=STYLES[status]), outcome["check"], text)
        console.print(titled(table, title), crop=False)
        failed, style = document["failed"], "bold red" if document["failed"] else "green"
        console.print(f"{document['passed']} passed, {failed} failed, {document['skipped']} skipped", style=style)
        console.print()


def list_documents() -> list[dict[str, Any]]:
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
