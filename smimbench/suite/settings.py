"""Settings of an algorithm: which of its parameters are given as lists and become axes, their short names, and its budget."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from smimbench.files import attempt
from smimbench.registry.adapters import sizes
from smimbench.registry.parameters import takes_lists
from smimbench.registry.registry import RegistryError, get_registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from smimbench.files import JsonObject
    from smimbench.suite.cells import ProblemPlan

Path = tuple[str, ...]
"""Where a parameter is written: its name, after that of the table that it is in (``("of", "learning_rate")``)."""

Setting = dict[Path, Any]


def axes_of(item: Any, parameters: Mapping[str, Any]) -> dict[Path, list[Any]]:
    """Parameters whose values are to be run one after the other: lists where the algorithm takes no list.

    Where it takes one, as two temperatures, a list of lists is an axis.
    """
    found: dict[Path, list[Any]] = {}
    for name, value in parameters.items():
        if isinstance(value, list) and (
            not takes_lists(item, "algorithm", name) or (value and all(isinstance(one, list) for one in value))
        ):
            found[name,] = value
        elif isinstance(value, dict) and isinstance(value.get("name"), str):  # an algorithm within this one
            try:
                inner = get_registry().get("algorithm", value["name"]).item
            except RegistryError:  # building it says so
                continue
            own = {key: one for key, one in value.items() if key != "name"}
            found |= {(name, *path): values for path, values in axes_of(inner, own).items()}
    return found


def product(axes: Mapping[Path, Sequence[Any]]) -> Iterator[Setting]:
    """All combinations of the values of these parameters."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values))


def with_setting(parameters: Mapping[str, Any], setting: Setting) -> JsonObject:
    """Parameters with those of a setting in place of what is written."""
    found = dict(parameters)
    for (name, *rest), value in setting.items():
        found[name] = with_setting(found.get(name) or {}, {tuple(rest): value}) if rest else value
    return found


def words_of(setting: Setting) -> str:
    """A setting in short: ``learning_rate 0.3, beta1 0.8``."""
    return ", ".join(f"{path[-1]} {_word(value)}" for path, value in setting.items())


def _word(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.12g}"
    return value if isinstance(value, str) else json.dumps(value)


def budget(algorithm: Any, plan: ProblemPlan) -> Any:
    """Steps, batch, students and fresh samples of a run: what belongs to the problem and not to its solver; None if unknown."""
    model, alpha, dimension = plan.problem.model, plan.alphas[0], plan.dimensions[0]
    data = sizes(model.sample_count(alpha, dimension), model.tokens, dimension, alpha)
    found, _ = attempt(algorithm.plan, data)  # it may fail on what the algorithm refuses
    return found and (found.steps, found.batch, found.students, found.draws_fresh)
