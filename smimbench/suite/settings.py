"""Settings of an algorithm: parameters given as lists, the space of a search and its trials, short names, the budget."""

from __future__ import annotations

import itertools
import json
import math
from typing import TYPE_CHECKING, Any

import pydantic

from smimbench.files import attempt
from smimbench.interfaces import ParameterError
from smimbench.registry.adapters import plan_of, sizes
from smimbench.registry.parameters import (
    build,
    explain_validation,
    require_known,
    signature_of,
    takes_lists,
)
from smimbench.registry.registry import RegistryError, get_registry
from smimbench.suite.schema import Range, TuneTable, distinct

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from smimbench.files import JsonObject
    from smimbench.suite.cells import ProblemPlan

Key = tuple[str, ...]
"""Where a parameter is written: its name, after that of the table that it is in (``("of", "learning_rate")``)."""

Setting = dict[Key, Any]

Space = dict[Key, list[Any] | Range]
"""Values, or the ends of a range, by parameter."""


def axes_of(item: Any, parameters: JsonObject) -> dict[Key, list[Any]]:
    """Parameters whose values are to be run one after the other: lists where the algorithm takes no list.

    Where it takes one, as two temperatures, a list of lists is an axis.
    """
    found: dict[Key, list[Any]] = {}
    for name, value in parameters.items():
        if isinstance(value, list) and (
            not takes_lists(item, "algorithm", name)
            or (value and all(isinstance(one, list) for one in value))
        ):
            found[name,] = value
        elif name == "assumed":
            tables = (
                (kind, table)
                for kind, table in value.items()
                if isinstance(table, dict)
            )
            found |= {
                (name, k, key): v
                for k, table in tables
                for key, v in table.items()
                if isinstance(v, list)
            }
        elif isinstance(value, dict) and isinstance(
            value.get("name"), str
        ):  # an algorithm within this one
            try:
                inner = get_registry().get("algorithm", value["name"]).item
            except RegistryError:  # building it says so
                continue
            own = {key: one for key, one in value.items() if key != "name"}
            found |= {
                (name, *path): values for path, values in axes_of(inner, own).items()
            }
    return found


def product(axes: Mapping[Key, Sequence[Any]]) -> Iterator[Setting]:
    """All combinations of the values of these parameters."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values))


def with_setting(parameters: JsonObject, setting: Setting) -> JsonObject:
    """Parameters with those of a setting in place of what is written."""
    found = dict(parameters)
    for (name, *rest), value in setting.items():
        inner = found.get(name) or {}
        inner = (
            {"name": inner} if isinstance(inner, str) else inner
        )  # an algorithm by its name alone
        found[name] = with_setting(inner, {tuple(rest): value}) if rest else value
    return found


def words_of(setting: Setting) -> str:
    """A setting in short: ``learning_rate 0.3, beta1 0.8``."""
    return ", ".join(
        f"{'assumed ' * (path[0] == 'assumed')}{path[-1]} {_word(v)}"
        for path, v in setting.items()
    )


def _word(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.12g}"
    return value if isinstance(value, str) else json.dumps(value)


def budget(algorithm: Any, plan: ProblemPlan) -> Any:
    """Steps, batch, students and fresh samples of every run: what belongs to the problem and not to its solver."""
    model, budgets = plan.problem.model, []
    for alpha, dimension in itertools.product(plan.alphas, plan.dimensions):
        data = sizes(
            model.sample_count(alpha, dimension), model.tokens, dimension, alpha
        )
        planned = plan_of(algorithm, data)
        budgets.append(
            (planned.steps, planned.batch, planned.students, planned.draws_fresh)
        )
    return budgets


def by_hand(item: Any, parameters: JsonObject, plan: ProblemPlan) -> bool:
    """Whether somebody has chosen a parameter that is not part of the budget."""
    written = build(item, "algorithm", parameters)
    for name in parameters:
        other, error = attempt(
            build,
            item,
            "algorithm",
            {key: value for key, value in parameters.items() if key != name},
        )
        if error or (other != written and budget(other, plan) == budget(written, plan)):
            return True
    return False


# -- the space of a search ------------------------------------------------------------------------------------------------


def tune_of(
    table: TuneTable,
    axes: Mapping[Key, Any],
    item: Any,
    parameters: JsonObject,
    plan: ProblemPlan,
) -> Any:
    """``trials`` and ``space`` of a search, the space by names of parameters (``of.learning_rate``), as JSON.

    Parameters that the algorithm itself has as lists, its ``axes``, are not tuned; None if nothing else is.

    Raises
    ------
    ParameterError
        If the algorithm cannot be made at an end of a range or at a value of a list, or would not be run for the same steps and
        samples.
    """
    require_known(
        table.model_extra or (), [*signature_of(item), *TuneTable.model_fields]
    )
    space = _space(table.model_extra or {})
    if not space:
        raise ParameterError(
            "",
            "names no parameter to tune, as learning_rate = { low = 0.01, high = 1.0, log = true }",
        )
    usual = budget(build(item, "algorithm", parameters), plan)
    for path, values in space.items():
        for value in (values.low, values.high) if isinstance(values, Range) else values:
            if (
                budget(
                    build(item, "algorithm", with_setting(parameters, {path: value})),
                    plan,
                )
                != usual
            ):
                why = "changes the steps or the samples of a run, which belong to the problem and are not tuned; remove it"
                raise ParameterError(".".join(path), why)
    named = {
        ".".join(path): values.model_dump() if isinstance(values, Range) else values
        for path, values in space.items()
        if path not in axes
    }
    return {"trials": table.trials, "space": named} if named else None


def _space(table: JsonObject, *before: str) -> Space:
    found: Space = {}
    for name, value in table.items():
        path = (*before, name)
        if isinstance(value, dict) and not value.keys() & Range.model_fields.keys():
            found |= _space(value, *path)
            continue
        require_known(
            value if isinstance(value, dict) else (), Range.model_fields, *path
        )
        try:
            found[path] = (
                list(distinct(value))
                if isinstance(value, list)
                else Range.model_validate(value)
            )
        except pydantic.ValidationError as error:
            key, message = (
                explain_validation(error)
                if isinstance(value, dict)
                else ("", f"{_LIST_OR_RANGE}, got {value!r}")
            )
            raise ParameterError(
                ".".join(filter(None, (*path, key))), message
            ) from None
        except ValueError as error:
            raise ParameterError(".".join(path), str(error)) from None
    return found


_LIST_OR_RANGE = "must be a list, or a range as { low = 0.01, high = 1.0, log = true }"


def trials_of(tune: JsonObject, written: JsonObject) -> list[Setting]:
    """The setting as written, and scrambled Sobol points of the space of ``tune_of``, the same for all algorithms.

    Where lists have no more combinations than there may be trials, all are tried. Two settings may be the same.

    Parameters
    ----------
    written : mapping
        The parameters of the algorithm as it is, which also say where a range is one of integers.
    """
    from smimbench.numerics.qmc import uniform_points

    space, count = (
        {tuple(name.split(".")): values for name, values in tune["space"].items()},
        tune["trials"],
    )
    as_written = {
        path: value for path in space if (value := _value(written, path)) is not None
    }
    lists = {path: values for path, values in space.items() if isinstance(values, list)}
    if len(lists) == len(space) and math.prod(map(len, lists.values())) <= count:
        return [as_written, *product(lists)]
    sampled = (
        {
            path: _at(values, float(u), as_written.get(path))
            for u, (path, values) in zip(point, space.items())
        }
        for point in uniform_points(len(space), count - 1, "tuning")
    )
    return [as_written, *sampled]


def _at(values: list[Any] | JsonObject, u: float, written: Any) -> Any:
    """The value at a number between 0 and 1, to four digits."""
    if isinstance(values, list):
        return values[int(u * len(values))]
    low, high = values["low"], values["high"]
    whole = (
        isinstance(low, int)
        and isinstance(high, int)
        and not isinstance(written, float)
    )
    end = high + whole  # the largest integer has as large a share as the others
    value = low * (end / low) ** u if values.get("log") else low + (end - low) * u
    return math.floor(value) if whole else min(max(float(f"{value:.4g}"), low), high)


def _value(written: Any, path: Key) -> Any:
    for name in path:
        written = written.get(name) if isinstance(written, dict) else None
    return written
