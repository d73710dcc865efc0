"""The subject of a check: an item, with the models, channels and priors that it is combined with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from smimbench.derive import complete_channel
from smimbench.derive.prior import complete_prior
from smimbench.files import JsonObject, attempt, error_line
from smimbench.interfaces import ParameterError, is_symmetric
from smimbench.interfaces.item import with_defaults
from smimbench.numerics.memo import cached_on
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.problem.problem import Problem, ProblemError
from smimbench.registry.adapters import algorithm_class
from smimbench.registry.parameters import (
    ENGINE_FILLED,
    build,
    parameters_of,
    signature_of,
)
from smimbench.registry.registry import (
    BASES,
    BUILT_IN,
    KINDS,
    Entry,
    get_registry,
    using,
)
from smimbench.testing.core import (
    CheckError,
    CheckFailed,
    CheckSkipped,
    capabilities_of,
)
from smimbench.theory.consistency import require_consistent

TOKENS = (2, 1, 3, 4)
"""Numbers of tokens that are tried, in this order, until an item takes one."""


@dataclass(frozen=True, eq=False)
class CheckContext:
    """An item (an instance) under test, its kind, what it is combined with, and the seed of all random numbers.

    Attributes
    ----------
    distribution : str
        The package that registered the item; empty for one that was handed over.
    """

    kind: str
    item: Any
    seed: int = 0
    distribution: str = ""
    broken: list[str] = field(default_factory=list)
    """Required checks that failed."""

    @property
    def label(self) -> str:
        """Name of the item with its non-default parameters, as part of a test's name."""
        parts = [str(getattr(self.item, "name", type(self.item).__name__))]
        for name, parameter in signature_of(type(self.item)).items():
            value = getattr(self.item, name, None)
            if value != parameter.default:
                parts.append(
                    name
                    + str(value.get("name", "") if isinstance(value, dict) else value)
                )
        return re.sub(r"[^0-9A-Za-z_.]+", "_", "_".join(parts)).strip("_")

    def rng(self, *key: int) -> np.random.Generator:
        """A new random generator for every use."""
        return np.random.default_rng([self.seed, *key])

    @cached_property
    def model_names(self) -> tuple[str, ...]:
        """Models that the item's capabilities name, as far as they are registered."""
        named = capabilities_of(self.item).models
        known = (entry.name for entry in get_registry().entries("model"))
        return tuple(name for name in known if "*" in named or name in named)

    @cached_property
    def models(self) -> tuple[Any, ...]:
        """One model of every kind that the item works for, with as many tokens as it takes."""
        if self.kind == "model":
            return (self.item,)
        reasons: list[str] = []
        found = [
            model for name in self.model_names for model in self._model(name, reasons)
        ]
        if not found:
            unknown = f"none of {capabilities_of(self.item).models} (its capabilities) is registered"
            raise CheckFailed(
                reasons[0]
                if reasons
                else f"there is no model to check the item with: {unknown}"
            )
        return tuple(found)

    def _model(self, name: str, reasons: list[str]) -> Iterator[Any]:
        """Build the model of this name with as many tokens as the item accepts; if none, add the reason to ``reasons``."""
        entry, channel = get_registry().get("model", name), self.kind == "channel"
        own = getattr(self.item, "tokens", None) if channel else None
        for tokens in TOKENS if own is None else (own,):
            model = _made(
                entry, {"tokens": tokens, "symmetric": is_symmetric(self.item)}
            )
            refused = (
                _why_refused(self.item, model)
                if channel and own is None and model is not None
                else ""
            )
            if model is not None and not refused:
                yield model
                return
            if refused:
                reasons.append(refused)

    def completed(self, model: Any) -> Any:
        """The item as the engine uses it with a model, with all derived members; computed once."""
        complete = {"channel": complete_channel, "prior": complete_prior}.get(self.kind)
        if complete is None:
            return self.item
        try:
            return cached_on(
                self, "completed", lambda: complete(self.item, model), id(model)
            )
        except ParameterError as error:
            raise CheckFailed(str(error)) from None

    def problems(self, model: Any = None) -> Iterator[Problem]:
        """Problems that contain the item: one for every other shipped part that fits."""
        for one in self.models if model is None else (model,):
            for channel in (
                [self.item] if self.kind == "channel" else shipped("channel", one)
            ):
                for prior in (
                    [self.item] if self.kind == "prior" else shipped("prior", one)[:1]
                ):
                    yield _assembled(model=one, channel=channel, prior=prior)

    def consistent(
        self, model: Any, test: Callable[..., None] = require_consistent, **options: Any
    ) -> None:
        """Run a consistency test that theory makes of an item before using it.

        Raises
        ------
        CheckFailed
        """
        try:
            test(self.problem(model), seed=self.seed, **options)
        except ProblemError as error:
            raise CheckFailed(
                error.message.partition("; no theory is made")[0]
            ) from None

    def problem(self, model: Any) -> Problem:
        """The first problem that contains the item."""
        for problem in self.problems(model):
            return problem
        raise CheckSkipped(
            f"there are no other items to combine this one with for model {model.name!r}"
        )


def _assembled(**parts: Any) -> Problem:
    """Build a problem from instances as a suite does, from names and parameters."""
    tables = {
        kind: {"name": item.name, **parameters_of(kind, item)}
        for kind, item in parts.items()
    }
    with using(OverlayRegistry(parts)):
        return Problem(**tables)


class OverlayRegistry:
    """A registry in which the items under test take precedence over registered items of the same name."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.parts, self.below = parts, get_registry()

    def get(self, kind: str, name: str, model: str | None = None) -> Entry:
        """The item under test if the name is its own, otherwise the registered item."""
        item = self.parts.get(kind)
        if item is not None and name.rpartition(":")[2] == item.name:
            return Entry(kind, item.name, type(item), BUILT_IN)
        return self.below.get(kind, name, model)

    def entries(self, kind: str | None = None) -> list[Entry]:
        """All registered items of a kind."""
        return self.below.entries(kind)


def _made(entry: Entry, wanted: Mapping[str, Any]) -> Any:
    """Instance built with the class's suggested parameters for checks (``example``), or None if it needs others."""
    filled = {
        key: value for key, value in wanted.items() if key in signature_of(entry.item)
    }
    try:
        return entry.item(**{**entry.item.example, **filled})
    except (ParameterError, TypeError):
        return None


def shipped(kind: str, model: Any) -> list[Any]:
    """Shipped items for a model, with default parameters; for a third-party model, all that fit."""
    entries = [e for e in get_registry().entries(kind) if e.fits(model.name)]
    own = [e for e in entries if e.distribution == BUILT_IN] or entries
    fitting = [
        e for e in own if is_symmetric(model) or "symmetric" in signature_of(e.item)
    ]
    wanted = {"tokens": getattr(model, "tokens", 2), "symmetric": is_symmetric(model)}
    return [item for entry in fitting if (item := _made(entry, wanted)) is not None]


def _why_refused(channel: Any, model: Any) -> str:
    """Reason why a channel rejects latents of a model; empty if it accepts them."""
    z = monte_carlo_rng("checks: latents").standard_normal(
        (3, int(channel.components), model.sites)
    )
    y, error = attempt(
        lambda: np.asarray(channel.forward(z, rng=monte_carlo_rng("checks: labels")))
    )
    if error is not None:  # another number of tokens may do
        return f"forward raised {error_line(error)} for latents of shape {z.shape}"
    wrong = y.ndim == 0 or len(y) != 3
    return (
        f"forward of 3 samples must return labels of shape (3, ...), got {y.shape}"
        if wrong
        else ""
    )


def kind_of(item: Any) -> str:
    """Kind of an item (model, inputs, channel, prior, metric or algorithm), from the methods it has.

    Raises
    ------
    CheckError
        If it is none of them.
    """
    signs = {
        "model": ("adjoint",),
        "inputs": ("draw", "transform"),
        "channel": ("posterior", "log_likelihood"),
        "prior": ("denoise", "law"),
        "metric": ("measure",),
        "algorithm": ("step", "fit"),
    }
    for kind in KINDS:
        if any(hasattr(item, name) for name in signs[kind]):
            return kind
    listed = "; ".join(f"{kind}: {' or '.join(names)}" for kind, names in signs.items())
    raise CheckError(
        f"{item!r} is no model, inputs, channel, prior, metric or algorithm, which have ({listed})"
    )


def instantiate(cls: type[Any], kind: str, parameters: JsonObject | None = None) -> Any:
    """Create one instance of an item's class.

    Raises
    ------
    CheckError
        If a parameter is missing or wrong.
    """
    cls = with_defaults(
        BASES[kind], algorithm_class(cls) if kind == "algorithm" else cls
    )
    given = {**cls.example, **(parameters or {})}
    usual = signature_of(cls)
    required = [
        n
        for n, p in usual.items()
        if p.default is p.empty and n not in given and n != "tokens"
    ]
    name = getattr(cls, "name", cls.__name__)
    if required:
        raise CheckError(
            f"{kind} {name!r} needs {', '.join(required)}: give it with --set {required[0]}=VALUE, or give the class an "
            f"attribute example = {{'{required[0]}': ...}}"
        )
    filled = ENGINE_FILLED.get(kind, ())
    reasons = []
    for tokens in (
        TOKENS
        if "tokens" in usual and "tokens" not in given
        else (given.get("tokens"),)
    ):
        values = {"tokens": tokens, **given} if "tokens" in usual else given
        engine = {k: values[k] for k in filled if k in values}
        try:
            return build(
                cls, kind, {k: v for k, v in values.items() if k not in filled}, engine
            )
        except ParameterError as error:
            reasons.append(str(error))
    raise CheckError(f"{kind} {name!r} cannot be made: {reasons[0]}")
