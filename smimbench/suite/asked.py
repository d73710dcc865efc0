"""A problem that names and parameters describe in place of a suite, as ``--model M --channel C --prior P --PARAMETER VALUE``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smimbench.files import JsonObject, missing, plain_value, suggestion
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
        if isinstance(value, str):
            found = (
                _between(*value.split(":"))
                if ":" in value
                else np.array([float(one) for one in value.split(",")])
            )
        else:
            found = np.asarray(value, dtype=float).ravel()
    except (TypeError, ValueError):
        raise ValueError(
            f"sample ratios must be numbers, or look like 0.1, 0.1,0.2,0.5 or 0.1:0.3:20 (2 to 10,000 of them), got {value!r}"
        ) from None
    for one in found:
        if not 0 < one < float("inf"):
            raise ValueError(f"a sample ratio must be > 0 and finite, got {one}")
    if not len(found):
        raise ValueError("give at least one sample ratio")
    return sorted({float(one) for one in found})


def _between(first: str, last: str, count: str) -> Any:
    if not (
        2 <= int(count) <= 10_000
        and math.isfinite(float(first))
        and math.isfinite(float(last))
    ):
        raise ValueError
    # 0.3 as it is typed, not the number next to it.
    return np.array(
        [
            float(f"{one:.14g}")
            for one in np.linspace(float(first), float(last), int(count))
        ]
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
    found = {
        kind: get_registry().get(kind, str(items[kind]), items["model"])
        for kind in kinds
    }
    known = {
        kind: [
            name
            for name in signature_of(entry.item)
            if name not in ENGINE_FILLED.get(kind, ())
        ]
        for kind, entry in found.items()
    }
    given = []
    for name, value in parameters.items():
        text = (
            value if isinstance(value, str) else json.dumps(value, default=plain_value)
        )
        owners = [kind for kind in kinds if name in known[kind]]
        if not owners:
            words = [*kinds, "alpha", *(word for kind in kinds for word in known[kind])]
            raise ValueError(
                f"{name} is no option and no parameter of this problem; {suggestion(name, words)}"
            )
        if len(owners) > 1:
            raise ValueError(
                f"{' and '.join(owners)} have {name}: set problem.{owners[0]}.{name}={text}"
            )
        given.append(f"problem.{owners[0]}.{name}={text}")
    names = {kind: json.dumps(items[kind]) for kind in KINDS}
    names["inputs"] = (
        f"inputs  = {{ name = {json.dumps(items['inputs'])} }}\n"
        if "inputs" in kinds
        else ""
    )
    plain = [str(items[kind]).rpartition(":")[2] for kind in kinds]
    tokens = f", tokens = {TOKENS}" if "tokens" in known["model"] else ""
    text = TEXT.format(
        title=", ".join(plain), alphas=list(alphas), tokens=tokens, **names
    )
    return "-".join(plain), text, given
