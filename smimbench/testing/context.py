"""The item under test in a check, with the models, channels and priors that it is combined with."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from smimbench.derive import complete_channel, complete_prior
from smimbench.files import attempt, error_line, error_place, omit, pick
from smimbench.interfaces import Channel, Model, ParameterError, is_symmetric
from smimbench.interfaces.item import with_defaults
from smimbench.numerics.memo import cached_on
from smimbench.numerics.random_numbers import monte_carlo_rng
from smimbench.problem.problem import Problem, ProblemError
from smimbench.registry.items import (
    BASES,
    ENGINE_FILLED,
    Parameters,
    algorithm_class,
    build,
    parameters_of,
    signature_of,
)
from smimbench.registry.registry import BUILT_IN, KINDS, Entry, get_registry, using
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
    """An item under test (an instance), with its kind and the seed of all random numbers in its checks. ``distribution`` is
    the package it comes from, and ``broken`` are its failed checks on which others depend.

    Attributes
    ----------
    distribution : str
        The package that registered the item; empty for an item that was passed as an object.
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
        label_parts = [str(getattr(self.item, "name", type(self.item).__name__))]
        for name, parameter in signature_of(type(self.item)).items():
            parameter_value = getattr(self.item, name, None)
            if parameter_value != parameter.default:
                value_text = (
                    parameter_value.get("name", "")
                    if isinstance(parameter_value, dict)
                    else parameter_value
                )
                label_parts.append(f"{name}{value_text}")
        return re.sub(r"[^0-9A-Za-z_.]+", "_", "_".join(label_parts)).strip("_")

    def rng(self, *key: int) -> np.random.Generator:
        """Return a new random generator, seeded by the context's seed and the integers ``key``."""
        return np.random.default_rng([self.seed, *key])

    @cached_property
    def model_names(self) -> tuple[str, ...]:
        """Names of the registered models that the item's capabilities include."""
        supported_names = capabilities_of(self.item).models
        names = (entry.name for entry in get_registry().entries("model"))
        return tuple(n for n in names if "*" in supported_names or n in supported_names)

    @cached_property
    def models(self) -> tuple[Model, ...]:
        """One instance of each model that the item supports, with a number of tokens that it accepts."""
        if self.kind == "model":
            return (self.item,)
        refusals: list[str] = []
        models_or_none = [
            self._accepted_model(name, refusals) for name in self.model_names
        ]
        models = [model for model in models_or_none if model is not None]
        if refusals and not models:
            raise CheckFailed(refusals[0])
        if not models:
            raise CheckFailed(
                f"the item cannot be checked: none of the models in its capabilities, {capabilities_of(self.item).models}, "
                "is registered"
            )
        return tuple(models)

    def _accepted_model(self, name: str, refusals: list[str]) -> Model | None:
        """Return the named model with a number of tokens that the item accepts, or None after adding the reason to
        ``refusals``.
        """
        entry = get_registry().get("model", name)
        is_channel = self.kind == "channel"
        required_tokens = getattr(self.item, "tokens", None) if is_channel else None
        for token_count in TOKENS if required_tokens is None else (required_tokens,):
            model: Model | None = _with_engine_parameters(
                entry, {"tokens": token_count, "symmetric": is_symmetric(self.item)}
            )
            if model is None:
                continue
            refusal = ""
            if is_channel and required_tokens is None:
                refusal = _why_refused(self.item, model)
            if not refusal:
                return model
            refusals.append(refusal)
        return None

    def completed_item(self, model: Model) -> Any:
        """Return the item as the engine completes it for a model, with all derived methods; computed once."""
        complete_by_kind: dict[str, Callable[[Any, Model], Any]] = {
            "channel": complete_channel,
            "prior": complete_prior,
        }
        complete_item = complete_by_kind.get(self.kind)
        if complete_item is None:
            return self.item
        try:
            return cached_on(
                self,
                "completed_item",
                lambda: complete_item(self.item, model),
                id(model),
            )
        except ParameterError as error:
            raise CheckFailed(str(error)) from None

    def problems(self, model: Model | None = None) -> Iterator[Problem]:
        """Yield problems that contain the item, combined with shipped items that fit; on one ``model``, or on all that it
        supports.
        """
        models = self.models if model is None else (model,)
        for model in models:
            channels, priors = [self.item], [self.item]
            if self.kind != "channel":
                channels = shipped_items("channel", model)
            if self.kind != "prior":
                priors = shipped_items("prior", model)[:1]
            for channel, prior in itertools.product(channels, priors):
                yield _problem_from_instances(model=model, channel=channel, prior=prior)

    def require_consistency(
        self,
        model: Model,
        consistency_test: Callable[..., None] = require_consistent,
        **options: Any,
    ) -> None:
        """Run one of the consistency tests that theory applies to an item before using it, with these ``options``, on a problem
        of this model; a ProblemError becomes CheckFailed.

        Raises
        ------
        CheckFailed
        """
        try:
            consistency_test(self.problem(model), seed=self.seed, **options)
        except ProblemError as error:
            raise CheckFailed(
                error.message.partition("; no theory is computed")[0]
            ) from None

    def problem(self, model: Model) -> Problem:
        """Return the first problem that contains the item; CheckSkipped if there is none."""
        for problem in self.problems(model):
            return problem
        raise CheckSkipped(
            f"there are no other items for model {model.name!r} to combine this item with"
        )


def _problem_from_instances(**items: Any) -> Problem:
    """Build a problem from the names and parameters of a model, channel, prior and inputs (``items``, by kind), as if a
    suite had listed them.
    """
    item_tables = {
        kind: {"name": item.name, **parameters_of(kind, item)}
        for kind, item in items.items()
    }
    with using(OverlayRegistry(items)):
        return Problem(**item_tables)


class OverlayRegistry:
    """A registry in which the items under test take precedence over registered items of the same name."""

    def __init__(self, items: Mapping[str, Any]) -> None:
        """Store the items under test, by their kind (such as model, channel, prior)."""
        self.items, self.registry = items, get_registry()

    def get(self, kind: str, name: str, model: str | None = None) -> Entry:
        """Return the item under test of this kind if it has this name, otherwise the registered item."""
        item = self.items.get(kind)
        if item is not None and name.rpartition(":")[2] == item.name:
            return Entry(kind, item.name, type(item), BUILT_IN)
        return self.registry.get(kind, name, model)

    def entries(self, kind: str | None = None) -> list[Entry]:
        """Return all registered items of a kind."""
        return self.registry.entries(kind)


def _with_engine_parameters(entry: Entry, engine_parameters: Mapping[str, Any]) -> Any:
    """Create the item of a registry ``entry`` from its class's ``example`` parameters and those that the engine takes from the
    model; None if it needs others.
    """
    parameters = signature_of(entry.item)
    accepted_parameters = pick(engine_parameters, parameters)
    try:
        return entry.item(**{**entry.item.example, **accepted_parameters})
    except (ParameterError, TypeError):
        return None


def shipped_items(kind: str, model: Model) -> list[Any]:
    """Return shipped items of this kind for a model, with default parameters; for a third-party model, all that fit."""
    symmetric = is_symmetric(model)
    engine_parameters = {"tokens": getattr(model, "tokens", 2), "symmetric": symmetric}
    entries = [
        entry
        for entry in get_registry().entries(kind)
        if entry.supports_model(model.name)
    ]
    entries = [entry for entry in entries if entry.distribution == BUILT_IN] or entries
    items = [
        _with_engine_parameters(entry, engine_parameters)
        for entry in entries
        if symmetric or "symmetric" in signature_of(entry.item)
    ]
    return [item for item in items if item is not None]


def _why_refused(channel: Channel, model: Model) -> str:
    """Reason why a channel rejects latents z of a model; empty if it accepts them."""
    shape = (3, int(channel.components), model.sites)
    z = monte_carlo_rng("checks: latents").standard_normal(shape)
    rng = monte_carlo_rng("checks: labels")
    labels, error = attempt(lambda: np.asarray(channel.forward(z, rng=rng)))
    if error is not None:  # a channel may accept another number of tokens
        return f"forward raised {error_line(error)} for latents of shape {z.shape}"
    if labels.shape[:1] != (3,):
        return f"forward of 3 samples must return labels of shape (3, ...), got {labels.shape}"
    return ""


def kind_of(item: Any) -> str:
    """Return the kind of an item (model, inputs, channel, prior, metric or algorithm), judged by its methods.

    Raises
    ------
    CheckError
        If it has none of their methods.
    """
    methods_by_kind = {
        "model": ("adjoint",),
        "inputs": ("draw", "transform"),
        "channel": ("posterior", "log_likelihood"),
        "prior": ("denoise", "law"),
        "metric": ("measure",),
        "algorithm": ("step", "fit"),
    }
    for kind in KINDS:
        if any(hasattr(item, name) for name in methods_by_kind[kind]):
            return kind
    method_list = "; ".join(
        f"{kind}: {' or '.join(method_names)}"
        for kind, method_names in methods_by_kind.items()
    )
    raise CheckError(
        f"{item!r} is not an item: it has none of the methods that tell the kind ({method_list})"
    )


def instantiate(cls: type[Any], kind: str, parameters: Parameters | None = None) -> Any:
    """Create one instance of a class of this kind of item, with ``parameters`` given by name. Those that the engine takes
    from the model, such as tokens, are tried in several values.

    Raises
    ------
    CheckError
        If a parameter is missing or wrong.
    """
    cls = with_defaults(
        BASES[kind], algorithm_class(cls) if kind == "algorithm" else cls
    )
    given_parameters = {**cls.example, **(parameters or {})}
    signature = signature_of(cls)
    missing_parameters = [
        name
        for name, parameter in signature.items()
        if parameter.default is parameter.empty
        and name not in {*given_parameters, "tokens"}
    ]
    name = getattr(cls, "name", cls.__name__)
    if missing_parameters:
        raise CheckError(
            f"{kind} {name!r} needs a value for {', '.join(missing_parameters)}: set it with --set "
            f"{missing_parameters[0]}=VALUE, or give the class an attribute example = {{'{missing_parameters[0]}': ...}}"
        )
    attempted_parameter_sets = [given_parameters]
    if "tokens" in signature and "tokens" not in given_parameters:
        attempted_parameter_sets = [
            {"tokens": tokens, **given_parameters} for tokens in TOKENS
        ]
    error_descriptions = []
    for attempted_parameters in attempted_parameter_sets:
        engine_parameters = pick(attempted_parameters, ENGINE_FILLED.get(kind, ()))
        own_parameters = omit(attempted_parameters, *engine_parameters)
        try:
            return build(cls, kind, own_parameters, engine_parameters)
        except ParameterError as error:
            error_descriptions.append(str(error))
        except BaseException as error:  # a constructor may raise anything
            if isinstance(error, KeyboardInterrupt):
                raise
            error_description = f"{error_line(error)} ({error_place(error)})"
            raise CheckError(
                f"{kind} {name!r} cannot be created: {error_description}"
            ) from error
    raise CheckError(f"{kind} {name!r} cannot be created: {error_descriptions[0]}")
