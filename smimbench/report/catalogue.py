"""Descriptions of installed items and plugins, as text and JSON, for ``list``, ``info``, ``plugins`` and ``doctor``."""

from __future__ import annotations

import inspect
from importlib.util import find_spec

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from smimbench.files import JsonObject, counted, documentation, omit, suggestion
from smimbench.registry.items import ENGINE_FILLED, signature_of
from smimbench.registry.registry import PLURALS, Entry, RegistryError, get_registry
from smimbench.report.columns import Column, make_table
from smimbench.suite import SuiteError
from smimbench.suite.document import shipped_suites
from smimbench.suite.reader import load_suite
from smimbench.theory.types import NO_THEORY

Document = JsonObject
"""An item, suite or plugin as ``--json`` prints it."""

_EMPTY = inspect.Parameter.empty
_INFO = (
    "models", "backends", "dtypes", "version", "reference", "distribution", "derived", "title", "duration",
    "problems", "algorithms", "seeds",
)  # fmt: skip


def item_documents(kind: str | None) -> dict[str, list[Document]]:
    """Return descriptions of all items of a ``kind`` (given in the plural, such as ``priors``) as JSON objects; None: of all
    kinds, and suites.
    """
    documents: dict[str, list[Document]] = {}
    for kind_name, plural in PLURALS.items():
        if kind in (None, plural):
            entries = get_registry().entries(kind_name)
            documents[plural] = [_item_document(entry) for entry in entries]
    if kind in (None, "suites"):
        documents["suites"] = [
            _suite_document(kind_name) for kind_name in shipped_suites()
        ]
    return documents


def _item_document(entry: Entry) -> Document:
    """Return the description of an item, as JSON: what it works with (``models``, ``backends``, ``dtypes``), its ``version``,
    ``reference`` and ``distribution`` (package), and the members that are ``derived``.
    """
    capabilities = entry.item.capabilities
    return {
        "name": entry.name,
        "kind": entry.kind,
        "summary": entry.summary,
        "models": list(capabilities.models),
        "backends": list(capabilities.backends),
        "dtypes": list(capabilities.dtypes),
        "version": entry.item.version,
        "reference": entry.item.reference,
        "distribution": entry.distribution,
        "derived": list(entry.derived),
    }


def _suite_document(name: str) -> Document:
    """Return the description of a shipped suite, as JSON."""
    try:
        suite = load_suite(name)
    except SuiteError as error:  # one that needs a missing plugin hides no other
        return {"name": name, "kind": "suite", "summary": f"cannot be read: {error}"}
    return {
        "name": name,
        "kind": "suite",
        "summary": suite.description or suite.title,
        "title": suite.title,
        "duration": suite.duration,
        "reference": suite.reference,
        "problems": [plan.label for plan in suite.plans],
        "algorithms": [algorithm.label for algorithm in suite.algorithms],
        "seeds": suite.seeds,
    }


def info_documents(name: str) -> list[Document]:
    """Return full descriptions of all items and suites with a name, which may be of several kinds or models."""
    documents: list[Document] = []
    for entry in get_registry().entries_named(name):
        description = _item_document(entry)
        description["parameters"] = _parameters(entry)
        description["documentation"] = documentation(entry.item)
        if entry.kind == "algorithm":
            description["theory"] = _theory_documentation(entry)
        documents.append(description)
    if name in shipped_suites():
        suite = load_suite(name)
        documents.append(
            {**_suite_document(name), "parameters": [], "documentation": suite.text}
        )
    if not documents:
        known_names = {entry.name for entry in get_registry().entries()}
        known_names.update(shipped_suites())
        raise RegistryError(
            f"there is no item or suite {name!r}; {suggestion(name, sorted(known_names))}"
        )
    return documents


def _theory_documentation(entry: Entry) -> str:
    """Return the documentation of an algorithm's theory, or the reason why it has none."""
    theory_method = entry.item.theory
    if not theory_method:
        return f"None: {NO_THEORY}."
    return documentation(theory_method) or "see its documentation"


def _parameters(entry: Entry) -> list[Document]:
    """Return name, type and default of every parameter of an item."""
    return [
        {
            "name": name,
            "type": _type_name(parameter.annotation),
            "required": parameter.default is _EMPTY,
            "default": None if parameter.default is _EMPTY else parameter.default,
        }
        for name, parameter in signature_of(entry.item).items()
        if name not in ENGINE_FILLED.get(entry.kind, ())
    ]


def _type_name(annotation: object) -> str:
    """Return the name of a parameter's type from its annotation; empty without one."""
    if isinstance(annotation, str):
        return annotation
    return (
        "" if annotation is _EMPTY else getattr(annotation, "__name__", str(annotation))
    )


def plugin_documents() -> list[Document]:
    """Return descriptions of all plugins as JSON objects, with status (loaded or not) and errors."""
    return [
        {
            "name": plugin.name,
            "distribution": plugin.distribution,
            "version": plugin.version,
            "origin": plugin.origin,
            "status": plugin.status,
            "items": [f"{entry.kind} {entry.name}" for entry in plugin.entries],
            "problems": plugin.problems,
        }
        for plugin in get_registry().plugins
    ]


def print_items(console: Console, documents: dict[str, list[Document]]) -> None:
    """Print one table of names and summaries for each kind of item."""
    for kind, items in documents.items():
        console.print(
            make_table(kind, SUITES if kind == "suites" else ITEMS, items, padding=1)
        )
        console.print()
    console.print("Details: smimbench info NAME", style="dim")


def _models_text(item: Document) -> str:
    """Return the names of the models that an item works with."""
    return (
        ""
        if item["kind"] == "model"
        else ", ".join(item["models"]).replace("*", "all models")
    )


def _name_text(item: Document) -> str:
    """Return the name of an item, with its package if it does not ship with smimbench."""
    package = item.get("distribution", "smimbench")
    return item["name"] if package == "smimbench" else f"{item['name']} ({package})"


NAME = Column("name ", _name_text, words=True)
ITEMS = [
    NAME,
    Column("for", _models_text, words=True),
    Column("what it is", lambda i: i["summary"].replace("``", ""), words=True),
]
SUITES = [
    NAME,
    Column("title", lambda i: i.get("title") or i["summary"], words=True),
    Column("takes", fields="duration", words=True),
]


def print_info(console: Console, documents: list[Document]) -> None:
    """Print the full description of each item or suite."""
    for document in documents:
        console.rule(f"{document['kind']} {document['name']}", align="left")
        for key in _INFO:
            field_value = document.get(key)
            if field_value not in (None, "", []):
                text = _text_of(field_value, "; " if key == "derived" else ", ")
                console.print(f"{key:13s} {text}".replace(" *", " all"), soft_wrap=True)
        if document["parameters"]:
            console.print("\nparameters", style="bold")
            for parameter in document["parameters"]:
                default = (
                    "required"
                    if parameter["required"]
                    else f"default {parameter['default']!r}"
                )
                console.print(
                    f"  {parameter['name']:16s} {parameter['type']:16s} {default}",
                    soft_wrap=True,
                )
        console.print()
        console.print(Text(document["documentation"]), soft_wrap=True)
        if document.get("theory"):
            console.print("\nprediction by theory", style="bold")
            console.print(Text(document["theory"]), soft_wrap=True)
        console.print()


def print_plugins(console: Console, documents: list[Document]) -> None:
    """Print for each plugin whether it was loaded."""
    styles = {"loaded": "green", "failed": "bold red"}
    for document in documents:
        status = document["status"]
        style = styles.get(status, "yellow")
        package = f"{document['distribution']} {document['version']}".strip()
        name = f" {document['name']} ({package}, {document['origin']})"
        console.print(Text.assemble((status, style), name), soft_wrap=True)
        if document["items"]:
            items_text = Padding(
                ", ".join(document["items"]), (0, 0, 0, 4), expand=False
            )
            console.print(items_text)
        for problem in document["problems"]:
            console.print(f"    {problem}", style=style, soft_wrap=True)


# -- doctor -------------------------------------------------------------------------------------------------------------


def diagnose(*, ceilings: bool = False) -> Document:
    """Describe the installation: versions, BLAS, GPU, peak rates (with ``ceilings``: measured again) and plugins, with
    ``advice``: the command that fixes each problem.

    Parameters
    ----------
    ceilings : bool
        Measure again what the machine can do at best; otherwise what is remembered is shown.
    """
    from smimbench.backend import machine
    from smimbench.backend.namespaces.cupy import describe_gpu

    failure_texts = [
        f"{plugin.name}: {'; '.join(plugin.problems)}"
        for plugin in get_registry().plugins
        if plugin.failed
    ]
    advice = []
    if find_spec("matplotlib") is None:
        advice.append("pip install 'smimbench[plot]'  (matplotlib: figures need it)")
    gpu = describe_gpu()
    if gpu["advice"]:
        advice.append(gpu["advice"])
    return {
        "versions": machine.versions(),
        "machine": machine.machine_info(),
        "fingerprint": machine.fingerprint(),
        "git_commit": machine.git_commit(),
        "gpu": gpu,
        "ceilings": _ceilings(ceilings, bool(gpu["devices"])),
        "plugins": {
            "loaded": sum(not plugin.failed for plugin in get_registry().plugins),
            "failed": failure_texts,
        },
        "advice": advice,
        "healthy": not failure_texts,
    }


def _ceilings(refresh: bool, has_gpu: bool) -> dict[str, dict[str, float]]:
    """Return the machine's peak rates by backend and number of threads: one core, all cores, and the GPU if there is one."""
    from smimbench.backend import machine

    backends = [("numpy", 1), ("numpy", machine.usable_cores())]
    backends += [("cupy", 1)] if has_gpu else []
    rates_by_name: dict[str, dict[str, float]] = {}
    for backend, threads in sorted(set(backends)):
        rates = (
            machine.measure_peak_rates(backend, threads)
            if refresh
            else machine.stored_peak_rates(backend, threads)
        )
        name = "GPU" if backend == "cupy" else counted(threads, "thread")
        if rates:
            rates_by_name[name] = rates
    return rates_by_name


def print_diagnosis(console: Console, document: Document) -> None:
    """Print the diagnosis of the installation that ``diagnose`` made."""
    rate_texts = {
        name: _rates_text(rate_texts)
        for name, rate_texts in document["ceilings"].items()
    }
    loaded_count = document["plugins"]["loaded"]
    gpu_entries = omit(document["gpu"], "advice")
    for title, entries in (
        ("versions", document["versions"]),
        ("machine", document["machine"] | {"fingerprint": document["fingerprint"]}),
        ("gpu", gpu_entries),
        ("ceilings", rate_texts or {"not measured yet": "smimbench doctor --ceilings"}),
        ("plugins", {"loaded": loaded_count}),
    ):
        console.print(title, style="bold")
        for name, value in entries.items():
            console.print(f"  {name:17s} {_text_of(value)}", soft_wrap=True)
    for message in document["plugins"]["failed"]:
        console.print(f"  {message}", style="red", soft_wrap=True)
    for message in document["advice"]:
        console.print(f"to do: {message}", style="yellow", soft_wrap=True)


def _rates_text(rates: dict[str, float]) -> str:
    """Return a machine's peak rates of matrix products and reading memory as text."""
    dtypes = [name for name in ("float64", "float32", "tf32") if name in rates]
    product_rates = ", ".join(f"{rates[name] / 1e9:.0f} {name}" for name in dtypes)
    return f"{product_rates} GFLOP/s; reading {rates['bandwidth'] / 1e9:.1f} GB/s"


def _text_of(value: object, separator: str = ", ") -> str:
    """Return a value of a description (number, text, list or dictionary) as text on one line."""
    if isinstance(value, dict):
        value = [f"{key} {number}" for key, number in value.items()]
    if isinstance(value, list):
        return separator.join(map(str, value)) or "none"
    return "none" if value is None else str(value)
