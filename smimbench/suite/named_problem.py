"""Builds the suite of one problem from command-line options: ``--model M --channel C --prior P --PARAMETER VALUE``."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence

import numpy as np
import tomli_w

from smimbench.files import missing, plain_value, suggestion
from smimbench.interfaces import Host
from smimbench.registry.parameters import ENGINE_FILLED, Parameters, signature_of
from smimbench.registry.registry import get_registry

KINDS = ("model", "channel", "prior")
"""Items that a problem needs."""
TOKENS = 2
"""Default number of tokens, as in the papers."""
DIMENSION = 100
"""Dimension of the suite, which theory does not depend on."""


def sample_ratios(value: object) -> list[float]:
    """Parse sample ratios: a number, several numbers, or a text such as ``0.1,0.2,0.5`` or ``0.1:0.3:20`` (equally spaced).

    Raises
    ------
    ValueError
        For anything else, or if a ratio is not positive and finite.
    """
    try:
        if not isinstance(value, str):
            ratios = np.asarray(value, dtype=float).ravel()
        elif ":" in value:
            ratios = _equally_spaced(*value.split(":"))
        else:
            ratios = np.array([float(number) for number in value.split(",")])
    except (TypeError, ValueError):
        raise ValueError(
            f"sample ratios must be numbers, or look like 0.1, 0.1,0.2,0.5 or 0.1:0.3:20 (2 to 10,000 of them), got {value!r}"
        ) from None
    for ratio in ratios:
        if not 0 < ratio < math.inf:
            raise ValueError(f"a sample ratio must be > 0 and finite, got {ratio}")
    if not len(ratios):
        raise ValueError("give at least one sample ratio")
    return sorted(set(map(float, ratios)))


def _equally_spaced(low: str, high: str, count: str) -> Host:
    """Return ``count`` equally spaced sample ratios; ValueError unless 2 <= count <= 10,000 and both ends are finite."""
    ends = float(low), float(high)
    if not (2 <= int(count) <= 10_000 and all(map(math.isfinite, ends))):
        raise ValueError
    # 0.3 as it is typed, not the number next to it.
    return np.array(
        [float(f"{ratio:.14g}") for ratio in np.linspace(*ends, int(count))]
    )


def suite_of_items(
    items: Mapping[str, str | None], parameters: Parameters, alphas: Sequence[float]
) -> tuple[str, str, list[str]]:
    """Return name and TOML text of the suite of one problem, and its parameters as ``--set`` assignments.

    Raises
    ------
    ValueError
        An item or the sample ratios are missing, or a parameter belongs to none of the items, or to several.
    """
    for kind in KINDS:
        if items.get(kind) is None:
            raise ValueError(
                f"{kind} {missing(kind, parameters)}; without a suite, give {', '.join(KINDS)} and alpha"
            )
    if not alphas:
        raise ValueError(
            f"alpha {missing('alpha', parameters)}; give sample ratios, such as 0.1 or 0.1:0.3:20"
        )
    kinds = KINDS if items.get("inputs") is None else (*KINDS, "inputs")
    named = {kind: str(items[kind]) for kind in kinds}
    accepted = {
        kind: _settable_parameters(kind, name, named["model"])
        for kind, name in named.items()
    }
    settings = [
        _assignment(name, value, accepted) for name, value in parameters.items()
    ]
    problem: dict[str, Parameters] = {
        kind: {"name": name} for kind, name in named.items()
    }
    if "tokens" in accepted["model"]:
        problem["model"]["tokens"] = TOKENS
    short_names = [name.rpartition(":")[2] for name in named.values()]
    document = {
        "suite": {"title": ", ".join(short_names)},
        "problem": problem,
        "grid": {"alpha": list(alphas), "dimension": [DIMENSION]},
    }
    return "-".join(short_names), tomli_w.dumps(document), settings


def _settable_parameters(kind: str, name: str, model: str) -> list[str]:
    """Names of the parameters of an item that a user may set."""
    filled = ENGINE_FILLED.get(kind, ())
    names = signature_of(get_registry().get(kind, name, model).item)
    return [name for name in names if name not in filled]


def _assignment(name: str, value: object, accepted: Mapping[str, Sequence[str]]) -> str:
    """Return the ``--set`` assignment of a parameter to the only item that accepts it; ValueError if there is not exactly one."""
    text = value if isinstance(value, str) else json.dumps(value, default=plain_value)
    kinds = [kind for kind, names in accepted.items() if name in names]
    if not kinds:
        words = [*accepted, "alpha", *itertools.chain(*accepted.values())]
        raise ValueError(
            f"{name} is neither an option nor a parameter of this problem; {suggestion(name, words)}"
        )
    assignment = f"problem.{kinds[0]}.{name}={text}"
    if len(kinds) > 1:
        raise ValueError(
            f"{' and '.join(kinds)} both have a parameter {name}; choose one, as with --set {assignment}"
        )
    return assignment
