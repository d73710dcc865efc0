"""Labels of problems and algorithms that are unique in a table: shared ones get the parameters in which they differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from smimbench.files import canonical_json
from smimbench.report.row import Row


def with_unique_labels(rows: Iterable[Row]) -> list[Row]:
    """Extend labels that different problems or algorithms share, so that every label is unique."""
    rows = list(rows)
    for item in ("problem", "algorithm"):
        specs_by_label: dict[str, dict[str, dict[str, object]]] = {}
        for row in rows:
            spec = getattr(row.identity, item)
            specs_by_label.setdefault(getattr(row.place, item), {})[
                canonical_json(spec)
            ] = _flattened(spec)
        for row_index, row in enumerate(rows):
            label, spec = getattr(row.place, item), getattr(row.identity, item)
            if len(specs_by_label[label]) > 1:
                labels = {
                    "problem": row.place.problem,
                    "algorithm": row.place.algorithm,
                }
                labels[item] += _differing_parameters(
                    specs_by_label[label], canonical_json(spec)
                )
                rows[row_index] = row.labeled(**labels)
    return rows


def _flattened(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Flatten nested tables; keys of inner tables follow those of outer ones after a dot."""
    flat_table: dict[str, object] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            flat_table |= _flattened(value, f"{prefix}{name}.")
        else:
            flat_table[prefix + name] = value
    return flat_table


def _differing_parameters(
    flat_specs: Mapping[str, Mapping[str, object]], identity: str
) -> str:
    """Return the parameters in which items of the same label differ, as text like `` (channel.beta=2)``."""
    parameters = sorted(
        {parameter for flat_spec in flat_specs.values() for parameter in flat_spec}
    )
    settings = []
    for parameter in parameters:
        if (
            len({repr(flat_spec.get(parameter)) for flat_spec in flat_specs.values()})
            > 1
        ):
            is_package = parameter.rpartition(".")[2] == "distribution"
            default = "smimbench" if is_package else "unset"
            settings.append(
                f"{parameter}={flat_specs[identity].get(parameter, default)}"
            )
    return f" ({', '.join(settings)})"
