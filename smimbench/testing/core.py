"""What a published check is, what it is applied to, and how chance is kept from failing it.

Statistical checks draw from fixed seeds, so that a check that passes today passes tomorrow. Their thresholds are two-sided
quantiles of Student's t law for the whole set of numbers that one check looks at (Bonferroni) at ``NOMINAL_RATE``. The rate
that is promised for another seed, ``FALSE_ALARM``, is a hundred times that: room for means that are not quite Gaussian.
"""

from __future__ import annotations

import math
import re
import time
import traceback
import types
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.interfaces import Capabilities, ParameterError
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.registry.adapters import algorithm_class
from smimbench.registry.parameters import ENGINE_FILLED, build, parameters_of, signature_of
from smimbench.registry.registry import BUILT_IN, KINDS, Entry, get_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from smimbench.interfaces import Array
    from smimbench.problem.problem import Problem

__all__ = [
    "FALSE_ALARM",
    "NOMINAL_RATE",
    "Check",
    "CheckError",
    "CheckFailed",
    "CheckSkipped",
    "Outcome",
    "Subject",
    "Tally",
    "all_checks",
    "published",
    "subjects",
]

FALSE_ALARM = 1e-4
NOMINAL_RATE = 1e-6
ROUNDING = 1e-12
TOKENS = (2, 1, 3, 4)


class CheckFailed(AssertionError):
    """An item does not do what its contract says."""


class CheckSkipped(Exception):
    """A check does not apply, or cannot be made here; the message says why."""


class CheckError(LookupError):
    """What was asked to be checked is not an item, or cannot be made; the message says what would be right."""


@dataclass(frozen=True)
class Check:
    """One named, published check.

    Attributes
    ----------
    id : str
        Its name, for ever.
    kind : str
        ``"model"``, ``"channel"``, ``"prior"``, ``"metric"`` or ``"algorithm"``.
    meaning : str
        What a failure means, in a sentence.
    false_alarm : float
        Upper bound of the probability that a right item fails with a seed of your own; 0 where nothing is left to chance.
    """

    id: str
    kind: str
    meaning: str
    false_alarm: float
    function: Callable[[Subject], None] = field(repr=False, compare=False)

    def __call__(self, subject: Subject) -> None:
        """Run it.

        Raises
        ------
        CheckFailed
            With what was found.
        CheckSkipped
            With the reason.
        """
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                self.function(subject)
            except (CheckFailed, CheckSkipped):
                raise
            except (Exception, SystemExit) as error:  # the item's own: it may raise anything
                where = traceback.extract_tb(error.__traceback__)[-1]
                line = " ".join(str(error).split()) or "no message"
                raise CheckFailed(
                    f"raised {type(error).__name__}: {line} ({where.name}, {where.filename}:{where.lineno})"
                ) from error


@dataclass(frozen=True)
class Outcome:
    """What became of one check of one item.

    Attributes
    ----------
    item, check : str
    status : str
        ``"passed"``, ``"failed"`` or ``"skipped"``.
    message : str
        What was found, or why it was skipped; empty if passed.
    meaning : str
        What a failure of this check means.
    false_alarm : float
    seconds : float
    """

    item: str
    check: str
    status: str
    message: str
    meaning: str
    false_alarm: float
    seconds: float


_CHECKS: dict[tuple[str, str], Check] = {}


def published(
    *kinds: str, id: str, meaning: str, statistical: bool = False
) -> Callable[[Callable[[Subject], None]], Callable[[Subject], None]]:
    """Publish a function as a check of these kinds of items."""

    def decorate(function: Callable[[Subject], None]) -> Callable[[Subject], None]:
        for kind in kinds:
            assert (kind, id) not in _CHECKS, f"{kind} {id} is published twice"
            _CHECKS[kind, id] = Check(id, kind, meaning, FALSE_ALARM if statistical else 0.0, function)
        return function

    return decorate


def all_checks(kind: str | None = None) -> tuple[Check, ...]:
    """Every published check of a kind (None: of all), in the order in which they are run."""
    import smimbench.testing.algorithms
    import smimbench.testing.channels
    import smimbench.testing.common
    import smimbench.testing.metrics
    import smimbench.testing.models
    import smimbench.testing.priors  # noqa: F401

    return tuple(check for check in _CHECKS.values() if kind in (None, check.kind))


def run_check(check: Check, subject: Subject) -> Outcome:
    """Apply a check and say what became of it."""
    begin = time.perf_counter()
    status, message = "passed", ""
    try:
        check(subject)
    except CheckFailed as error:
        status, message = "failed", str(error)
    except CheckSkipped as error:
        status, message = "skipped", str(error)
    seconds = time.perf_counter() - begin
    return Outcome(subject.label, check.id, status, message, check.meaning, check.false_alarm, seconds)


# -- what is checked ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Subject:
    """An item and the company in which it is checked.

    Attributes
    ----------
    kind : str
    item : object
        An instance.
    seed : int
        Of everything that is drawn.
    """

    kind: str
    item: Any
    seed: int = 0

    @property
    def label(self) -> str:
        """Name and the parameters that do not have their default: part of a test's name."""
        usual = signature_of(type(self.item))
        parts = [str(getattr(self.item, "name", type(self.item).__name__))]
        for name, parameter in usual.items():
            value = getattr(self.item, name, None)
            if value != parameter.default:
                inner = value.get("name", "") if isinstance(value, dict) else value
                parts.append(f"{name}{inner}")
        return re.sub(r"[^0-9A-Za-z_.]+", "_", "_".join(parts)).strip("_")

    def rng(self, *key: int) -> np.random.Generator:
        """A generator of its own for every use."""
        return np.random.default_rng([self.seed, *key])

    @cached_property
    def model_names(self) -> tuple[str, ...]:
        """Models that the item's capabilities name, as far as they are registered."""
        capabilities = capabilities_of(self.item)
        known = [entry.name for entry in get_registry().entries("model")]
        return tuple(name for name in known if "*" in capabilities.models or name in capabilities.models)

    @cached_property
    def models(self) -> tuple[Any, ...]:
        """One model of every kind that the item works for, with as many tokens as it takes."""
        if self.kind == "model":
            return (self.item,)
        found = []
        for name in self.model_names:
            model = self._model(name)
            if model is not None:
                found.append(model)
        if not found:
            raise CheckFailed(
                f"no model to check it with: capabilities.models is {capabilities_of(self.item).models}, "
                f"registered are {', '.join(e.name for e in get_registry().entries('model'))}"
            )
        return tuple(found)

    def _model(self, name: str) -> Any:
        entry = get_registry().get("model", name)
        if self.kind == "channel":
            own = getattr(self.item, "tokens", None)
            for tokens in TOKENS if own is None else (own,):
                model = _made(entry, {"tokens": tokens})
                if model is not None and (own is not None or _takes(self.item, model)):
                    return model
            return None
        for tokens in TOKENS:
            model = _made(entry, {"tokens": tokens})
            if model is not None:
                return model
        return None

    def completed(self, model: Any) -> Any:
        """The item as the engine uses it with a model: with all that is derived, once."""
        memory: dict[int, Any] = self.__dict__.setdefault("_completed", {})
        if id(model) not in memory:
            if self.kind == "channel":
                from smimbench.derive.channel import complete_channel

                memory[id(model)] = complete_channel(self.item, model)
            elif self.kind == "prior":
                from smimbench.derive.prior import complete_prior

                memory[id(model)] = complete_prior(self.item, model)
            else:
                memory[id(model)] = self.item
        return memory[id(model)]

    def problems(self, model: Any = None) -> Iterator[Problem]:
        """Problems in which the item takes part: one for every other part that ships and fits."""
        for one in self.models if model is None else (model,):
            for channel in [self.item] if self.kind == "channel" else channels_for(one):
                for prior in [self.item] if self.kind == "prior" else priors_for(one)[:1]:
                    yield assembled(one, channel, prior)

    def problem(self, model: Any) -> Problem:
        """The first of them."""
        for problem in self.problems(model):
            return problem
        raise CheckSkipped(f"there is nothing to combine it with for model {model.name!r}")


def assembled(model: Any, channel: Any, prior: Any) -> Problem:
    """A problem of instances, made the way a suite makes it: from names and parameters."""
    from smimbench.problem.problem import Problem

    parts = {"model": model, "channel": channel, "prior": prior}
    tables = {kind: {"name": item.name, **parameters_of(kind, item)} for kind, item in parts.items()}
    return Problem(**tables, registry=Company(parts))  # type: ignore[arg-type]


class Company:
    """A registry in which some items stand in front of the registered ones, registered or not themselves."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.parts = parts

    def get(self, kind: str, name: str, model: str | None = None) -> Entry:
        """The item at hand under its own name; whatever is registered under others."""
        item = self.parts.get(kind)
        if item is not None and name.rpartition(":")[2] == item.name:
            return Entry(kind, item.name, type(item), BUILT_IN)
        return get_registry().get(kind, name, model)

    def entries(self, kind: str | None = None) -> list[Entry]:
        """What is registered."""
        return get_registry().entries(kind)


def _made(entry: Entry, provided: Mapping[str, Any]) -> Any:
    """An instance with the parameters that its class suggests for checks, or None if it needs others."""
    usual = {k: v for k, v in provided.items() if k in signature_of(entry.item)}
    try:
        return entry.item(**{**example_of(entry.item), **usual})
    except (ParameterError, TypeError):
        return None


def example_of(cls: type[Any]) -> dict[str, Any]:
    """Parameters for a check where a class has none by default: its attribute ``example``."""
    return dict(getattr(cls, "example", {}))


def channels_for(model: Any) -> list[Any]:
    """What ships for a model, with parameters as they come; for a model of somebody else, all that fit."""
    provided = {"tokens": getattr(model, "tokens", 2)}
    return _company("channel", model, provided)


def priors_for(model: Any) -> list[Any]:
    """Priors for a model."""
    return _company("prior", model, {})


def _company(kind: str, model: Any, provided: Mapping[str, Any]) -> list[Any]:
    entries = [e for e in get_registry().entries(kind) if e.fits(model.name)]
    shipped = [e for e in entries if e.distribution == BUILT_IN] or entries
    found = [_made(entry, provided) for entry in shipped]
    return [item for item in found if item is not None]


def _takes(channel: Any, model: Any) -> bool:
    z = monte_carlo_rng("checks: latents").standard_normal((3, int(channel.components), model.sites))
    try:
        y = np.asarray(channel.forward(z, rng=monte_carlo_rng("checks: labels")))
    except Exception:  # another number of tokens may do
        return False
    return y.ndim > 0 and len(y) == 3


def kind_of(item: Any) -> str:
    """Model, channel, prior, metric or algorithm, by what it offers.

    Raises
    ------
    CheckError
        If it is none of them.
    """
    signs = {
        "model": ("draw_inputs",),
        "channel": ("posterior", "log_likelihood"),
        "prior": ("denoise", "log_density", "eigenvalues", "quantile"),
        "metric": ("measure",),
        "algorithm": ("step", "fit"),
    }
    for kind in KINDS:
        if any(hasattr(item, name) for name in signs[kind]):
            return kind
    listed = "; ".join(f"{kind}: {' or '.join(names)}" for kind, names in signs.items())
    raise CheckError(f"{item!r} is no model, channel, prior, metric or algorithm; these offer ({listed})")


def subjects(item: Any, *, seed: int = 0, parameters: Mapping[str, Any] | None = None) -> list[Subject]:
    """What is to be checked of an item: itself, or one of its class for every model where it has to be made.

    Parameters
    ----------
    item : object, class or str
        An instance; a class, made with its defaults or its attribute ``example`` (a mapping of parameters); or the name of a
        registered item, ``"name"`` or ``"distribution:name"``.
    seed : int
        Of everything that is drawn.
    parameters : mapping or None
        For a class or a name.

    Raises
    ------
    CheckError
        Unknown name; a class that needs parameters.
    """
    if isinstance(item, Subject):
        return [item]
    if isinstance(item, str):
        found = [
            Subject(e.kind, instantiate(e.item, e.kind, parameters), seed) for e in _named(item, parameters)
        ]
        return found
    if isinstance(item, types.FunctionType):
        item = algorithm_class(item)
    kind = kind_of(item)
    if isinstance(item, type):
        return [Subject(kind, instantiate(item, kind, parameters), seed)]
    if parameters:
        raise CheckError("parameters go with a class or a name; make the instance with them instead")
    if kind == "algorithm" and not hasattr(item, "step"):
        item = instantiate(type(item), kind, parameters_of(kind, item))
    return [Subject(kind, item, seed)]


def _named(name: str, parameters: Mapping[str, Any] | None) -> list[Entry]:
    import difflib

    entries = get_registry().entries()
    distribution, _, plain = name.rpartition(":")
    found = [e for e in entries if e.name == plain and distribution in ("", e.distribution)]
    if not found:
        known = sorted({e.name for e in entries})
        close = difflib.get_close_matches(plain, known, 3)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "see 'smimbench list'"
        raise CheckError(f"nothing is called {name!r}; {hint}")
    if parameters:
        # The same name may stand for several items: parameters say which are meant.
        taking = [e for e in found if set(parameters) <= set(signature_of(e.item))]
        if not taking:
            known = sorted({p for e in found for p in signature_of(e.item)})
            odd = ", ".join(sorted(set(parameters) - set(known)))
            raise CheckError(
                f"{name!r} has no parameter {odd}; it takes {', '.join(known) or 'no parameters'}"
            )
        found = taking
    return found


def instantiate(cls: type[Any], kind: str, parameters: Mapping[str, Any] | None = None) -> Any:
    """One item of a class.

    Raises
    ------
    CheckError
        If a parameter is missing or wrong.
    """
    cls = algorithm_class(cls) if kind == "algorithm" else cls
    given = {**example_of(cls), **(parameters or {})}
    required = [
        n for n, p in signature_of(cls).items() if p.default is p.empty and n not in given and n != "tokens"
    ]
    name = getattr(cls, "name", cls.__name__)
    if required:
        raise CheckError(
            f"{kind} {name!r} needs {', '.join(required)}: give it with --set {required[0]}=VALUE, or give the class an "
            f"attribute example = {{'{required[0]}': ...}}"
        )
    filled = ENGINE_FILLED.get(kind, ())
    free = "tokens" in signature_of(cls) and "tokens" not in given
    last: Exception | None = None
    for tokens in TOKENS if free else (None,):
        values = {**given, **({} if tokens is None else {"tokens": tokens})}
        engine = {k: v for k, v in values.items() if k in filled}
        written = {k: v for k, v in values.items() if k not in filled}
        try:
            return build(cls, kind, written, engine)
        except ParameterError as error:
            last = last or error
    raise CheckError(f"{kind} {name!r} cannot be made: {last}")


# -- chance ---------------------------------------------------------------------------------------------------------


class Tally:
    """Numbers that must vanish up to chance and up to a stated numerical error, judged together."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, float, float, float]] = []

    def mean(self, what: str, samples: Array, target: Any = 0.0, *, allowance: Any = 0.0) -> None:
        """Independent samples (n, ...) whose means must be ``target``, give or take ``allowance``."""
        samples = np.asarray(samples, dtype=float)
        flat = samples.reshape(len(samples), -1)
        goal = np.broadcast_to(np.asarray(target, dtype=float), samples.shape[1:]).ravel()
        slack = np.broadcast_to(np.asarray(allowance, dtype=float), samples.shape[1:]).ravel()
        error = flat.std(axis=0, ddof=1) / math.sqrt(len(flat))
        for k, value in enumerate(flat.mean(axis=0)):
            index = np.unravel_index(k, samples.shape[1:]) if samples.ndim > 1 else ()
            place = f"[{', '.join(map(str, map(int, index)))}]" if index else ""
            self.add(f"{what}{place}", value, goal[k], error[k], slack[k], len(flat) - 1)

    def add(
        self, what: str, value: float, target: float, error: float, allowance: float = 0.0, dof: float = 1e9
    ) -> None:
        """One number with its standard error."""
        if not all(map(math.isfinite, (value, target, error))):
            raise CheckFailed(f"{what} is {value:.4g} +- {error:.2g}: not a finite number")
        # Rounding is no chance: everything that is compared here is made of numbers of order one.
        gap = max(0.0, abs(value - target) - allowance - ROUNDING)
        score = gap / error if error > 0 else (math.inf if gap > 0 else 0.0)
        self.rows.append((what, value, target, error, _normal_score(score, dof)))

    def judge(self) -> None:
        """Raise CheckFailed if the worst of all is too far off for chance."""
        from scipy.special import ndtri

        if not self.rows:
            raise CheckSkipped("there was nothing to compare")
        threshold = float(-ndtri(NOMINAL_RATE / (2 * len(self.rows))))
        worst = max(self.rows, key=lambda row: row[-1])
        what, value, target, error, score = worst
        if score > threshold:
            bad = sum(row[-1] > threshold for row in self.rows)
            raise CheckFailed(
                f"{what} is {value:.4g} +- {error:.1g}, must be {target:.4g}: {min(score, 999):.3g} standard errors away "
                f"({bad} of {len(self.rows)} numbers beyond {threshold:.2f})"
            )


def _normal_score(score: float, dof: float) -> float:
    """The standard score that is as unlikely as ``score`` is under Student's t law."""
    if dof > 1e4 or score == 0 or math.isinf(score):
        return score
    from scipy.special import ndtri, stdtr

    tail = float(stdtr(dof, -score))
    return score if tail <= 1e-300 else float(-ndtri(tail))


def capabilities_of(item: Any) -> Capabilities:
    """Its capabilities, or what is assumed where it states none."""
    found: Capabilities = getattr(item, "capabilities", Capabilities())
    return found
