"""A problem that names and parameters describe in place of a suite, as ``--model M --channel C --prior P --PARAMETER VALUE``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smimbench.files import JsonObject, missing, plain_value, suggestion
from smimbench.interfaces import Host
from smimbench.registry.parameters import ENGINE_FILLED, signature_of
from smimbench.registry.registry import get_registry

KINDS = ("model", "channel", "prior")
"""Items that a problem needs."""
TOKENS = 2
"""Default number of tokens, as in the papers."""

TEXT = """[suite]
title = "{title}"
[problem]
model   = {{ name = {model}{tokens} }}
channel = {{ name = {channel} }}
prior   = {{ name = {prior} }}
{inputs}[grid]
alpha     = {alphas}
dimension = [100]
"""


def sample_ratios(value: Any) -> list[float]:
    """Sample ratios from a number, several, or a text: ``0.1``, ``0.1,0.2,0.5`` or ``0.1:0.3:20`` (equal distances).

    Raises
    ------
    ValueError
        For anything else, or where one is not positive and finite.
    """
    try:
        if not isinstance(value, str):
            ratios = np.asarray(value, dtype=float).ravel()
        elif ":" in value:
            ratios = _between(*value.split(":"))
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


def _between(low: str, high: str, count: str) -> Host:
    """So many numbers at equal distances; ValueError if there are too few or too many, or an end is not finite."""
    ends = float(low), float(high)
    if not (2 <= int(count) <= 10_000 and all(map(math.isfinite, ends))):
        raise ValueError
    # 0.3 as it is typed, not the number next to it.
    return np.array(
        [float(f"{ratio:.14g}") for ratio in np.linspace(*ends, int(count))]
    )


def suite_of_items(
    items: Mapping[str, str | None], parameters: JsonObject, alphas: Sequence[float]
) -> tuple[str, str, list[str]]:
    """Name and text of the suite of one problem, and its parameters as for ``--set``.

    Raises
    ------
    ValueError
        An item or the sample ratios are missing, or a parameter belongs to none of the items, or to several.
    """
    for kind in KINDS:
        if items.get(kind) is None:
            raise ValueError(
                f"{kind} {missing(kind, parameters)}; a problem without a suite needs {', '.join(KINDS)}, alpha"
            )
    if not alphas:
        raise ValueError(
            f"alpha {missing('alpha', parameters)}; give sample ratios: 0.1, or 0.1:0.3:20"
        )
    kinds = KINDS if items.get("inputs") is None else (*KINDS, "inputs")
    entries = {
        kind: get_registry().get(kind, str(items[kind]), items["model"])
        for kind in kinds
    }
    names_of = {
        kind: [
            name
            for name in signature_of(entry.item)
            if name not in ENGINE_FILLED.get(kind, ())
        ]
        for kind, entry in entries.items()
    }
    settings = []
    for name, value in parameters.items():
        text = (
            value if isinstance(value, str) else json.dumps(value, default=plain_value)
        )
        owners = [kind for kind in kinds if name in names_of[kind]]
        if not owners:
            words = [
                *kinds,
                "alpha",
                *(word for kind in kinds for word in names_of[kind]),
            ]
            raise ValueError(
                f"{name} is no option and no parameter of this problem; {suggestion(name, words)}"
            )
        if len(owners) > 1:
            raise ValueError(
                f"{' and '.join(owners)} have {name}: set problem.{owners[0]}.{name}={text}"
            )
        settings.append(f"problem.{owners[0]}.{name}={text}")
    names = {kind: json.dumps(items[kind]) for kind in KINDS}
    names["inputs"] = (
        f"inputs  = {{ name = {json.dumps(items['inputs'])} }}\n"
        if "inputs" in kinds
        else ""
    )
    short_names = [str(items[kind]).rpartition(":")[2] for kind in kinds]
    tokens = f", tokens = {TOKENS}" if "tokens" in names_of["model"] else ""
    text = TEXT.format(
        title=", ".join(short_names), alphas=list(alphas), tokens=tokens, **names
    )
    return "-".join(short_names), text, settings
