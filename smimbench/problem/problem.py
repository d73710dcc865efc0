"""A problem combines a model, inputs, a channel and a prior; it defines their specification, instances and initial estimates."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Self, cast

import numpy as np

from smimbench.backend.arrays import matching, namespace
from smimbench.backend.device import Backend
from smimbench.backend.streaming import StreamedInputs
from smimbench.derive import complete_channel
from smimbench.derive.prior import complete_prior
from smimbench.derive.whitening import (
    WeightedPrior,
    WhitenedModel,
    mixed_channel,
    site_mixing,
    weighted,
)
from smimbench.files import (
    ForeseenError,
    canonical_json,
    error_line,
    error_place,
    missing,
)
from smimbench.interfaces import (
    Array,
    Channel,
    Cost,
    Data,
    Host,
    Inputs,
    Model,
    ParameterError,
    Prior,
    Start,
    is_symmetric,
)
from smimbench.interfaces.checks import checked_array
from smimbench.numerics.seeds import STREAMS, words
from smimbench.problem.instance import Instance, draw_on, fill, stored_types
from smimbench.registry.parameters import Parameters, build, parameters_of, signature_of
from smimbench.registry.registry import Entry, RegistryError, get_registry

CODE = ("version", "source")
"""Keys of a specification that say which code is meant, not which mathematics."""

Specification = dict[str, Any]
"""Name, version and parameters of an item, as in keys; of a third-party item also its package and a hash of its code."""

DEFAULT_INPUTS = "gaussian"
"""Inputs of a problem that names none; left out of its specification."""

HASHED = 2**62
"""Roots from here on, those of tuning among them, are replaced by a hash of root and branch: stored trials were drawn so."""


class ProblemError(ForeseenError, ValueError):
    """A problem cannot be built; ``key`` names the wrong part, and the message says what would be right."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key
        self.message = message

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        return type(self), (
            self.key,
            self.message,
        )  # a worker process hands it to its parent


class NoTheoryError(ProblemError):
    """No theory is known for the inputs of a problem."""


class ItemError(ProblemError):
    """An item cannot be built with any parameters: its code raises, or its result is invalid."""


@contextmanager
def explained(kind: str, refusal: type[ProblemError] = ProblemError) -> Iterator[None]:
    """Convert errors of an item into a ProblemError that names the key, and a ParameterError into ``refusal``."""
    try:
        yield
    except ProblemError:
        raise
    except RegistryError as error:
        raise ProblemError(f"{kind}.name", str(error)) from None
    except ParameterError as error:
        raise refusal(f"{kind}.{error.key}", error.message) from None
    except BaseException as error:  # the constructor of a plugin may raise anything
        if isinstance(error, KeyboardInterrupt):
            raise
        raise ItemError(
            f"{kind}.name",
            f"cannot be made: {error_line(error)} ({error_place(error)})",
        ) from None


def specification(entry: Entry, item: object) -> Specification:
    """Name, version and parameters of an item; for third-party items also the distribution and a hash of the code."""
    spec = {"name": entry.name, **version_of(entry), **parameters_of(entry.kind, item)}
    if entry.distribution != "smimbench":
        spec["distribution"] = entry.distribution
    return spec


def version_of(entry: Entry) -> Specification:
    """The version of an item; for third-party items also a hash of the code."""
    return {"version": entry.item.version} | (
        {} if entry.source is None else {"source": entry.source}
    )


def as_table(spec: Specification) -> Parameters:
    """An item as written in a suite: parameters, and its package if that is not smimbench."""
    table = {
        key: value for key, value in spec.items() if key not in (*CODE, "distribution")
    }
    if "distribution" in spec:
        table["name"] = f"{spec['distribution']}:{spec['name']}"
    return table


def without(key: str, table: Parameters) -> Parameters:
    """Specifications in a nested table without ``"source"``, the hashes of code, or without ``"version"``: a fix makes no other
    item.
    """
    return {
        k: without(key, v) if isinstance(v, dict) else v
        for k, v in table.items()
        if k != key
    }


def _parameters(spec: Specification, usual: Parameters) -> str:
    """Text ``name=value`` of every parameter that differs from its default."""
    parameters = {
        k: v for k, v in spec.items() if k not in (*CODE, "name", "distribution")
    }
    return ", ".join(
        f"{k}={v}" for k, v in parameters.items() if k not in usual or v != usual[k]
    )


class Problem:
    """A compatible combination of model, inputs, channel and prior.

    Parameters
    ----------
    model, channel, prior, inputs : str or mapping
        A name, or a table ``{"name": ..., parameter: value, ...}``.

    Attributes
    ----------
    mixing : ndarray (C, C) or None
        A of ``z = A zeta`` where tokens are correlated: ``model`` and ``channel`` are then those of the whitened latents zeta
        (``smimbench.derive.whitening``), and ``inputs`` of an instance are the correlated tokens.
    variances : callable or None
        ``variances(D)`` (D,) of the features where they are known not to be all 1, for signals of low rank.
    features : ndarray (D,) or None
        Those for which theory is solved.
    is_assumed : bool
        Whether it is what an algorithm assumes of data that come from another problem.

    Raises
    ------
    ProblemError
        Unknown name or parameter, a value that makes no sense, parts that do not belong together.

    Examples
    --------
    >>> problem = Problem({"name": "attention-indexed", "tokens": 2}, "softmax", {"name": "wishart", "rho": 0.5})
    >>> problem.components
    1
    """

    model: Model
    channel: Channel
    prior: Prior
    inputs: Inputs
    mixing: Host | None = None
    variances: Callable[[int], Array] | None = None
    features: Host | None = None
    is_assumed: bool = False

    def __init__(
        self,
        model: str | Mapping[str, object],
        channel: str | Mapping[str, object],
        prior: str | Mapping[str, object],
        inputs: str | Mapping[str, object] = DEFAULT_INPUTS,
    ) -> None:
        self.spec: dict[str, Specification] = {}
        self._defaults: dict[str, Parameters] = {}
        self.model = self._make("model", model)
        with explained("model", ItemError):
            symmetric = is_symmetric(self.model)
        if symmetric:
            self.spec["model"].pop("symmetric", None)  # keys of results do not change
        self.channel = self._make(
            "channel", channel, tokens=self.model.tokens, symmetric=symmetric
        )
        self.prior = self._make("prior", prior, symmetric=symmetric)
        self.inputs = self._make("inputs", inputs)
        with explained("inputs", ItemError):
            tokens = self.inputs.shape[0]
        if tokens not in (None, self.model.tokens):
            raise ProblemError(
                "model.tokens",
                f"must be {tokens}, as of the inputs, got {self.model.tokens}",
            )
        if (
            self.spec["inputs"]["name"] == DEFAULT_INPUTS
            and "distribution" not in self.spec["inputs"]
        ):
            del self.spec["inputs"]  # keys of results do not change
        with explained("inputs", ItemError):
            self._whiten()
        with explained("channel", ItemError):
            self.channel = complete_channel(self.channel, self.model)
            self.components: int = int(self.channel.components)
        with explained("prior", ItemError):
            self.prior = complete_prior(self.prior, self.model)
        with explained("inputs", ItemError):
            self._weigh_features()
        with explained(
            "model", ItemError
        ):  # what tables and estimates ask of it, in whatever process
            self.model.sample_ratio(self.model.sample_count(1.0, 8), 8)
            self.model.signal_shape(self.components, 8)
            self.model.cost(8, 8, self.components)

    @cached_property
    def spectral(self) -> bool:
        """Whether features are known to have different variances."""
        variances = self.inputs.feature_variances
        if variances is None:
            return False
        return not (np.asarray(variances(self.inputs.shape[1] or 8)) == 1).all()

    def _weigh_features(self) -> None:
        """Products of low-rank signals, and a Gaussian prior, over features that have a spectrum."""
        law = self.inputs
        if (
            law.feature_variances is None
            or not self.spectral
            or self.model.rank != "low"
        ):
            return
        self.variances = law.feature_variances
        if law.shape[1] is not None:
            self.features = np.asarray(law.feature_variances(law.shape[1]))
        self.model, self.prior = weighted(self.model, self.prior, law)

    def per_variance(self, gradient: Array) -> Array:
        """A gradient with respect to a signal, over the variances of the features: that in the metric of the latents."""
        if self.variances is None:
            return gradient
        values = self.variances(gradient.shape[-1])
        return gradient / namespace(gradient).asarray(values, **matching(gradient))

    def _make(
        self, kind: str, item: str | Mapping[str, object], **provided: object
    ) -> Any:
        table = {"name": item} if isinstance(item, str) else dict(item)
        name = table.pop("name", None)
        if name is None:
            raise ProblemError(f"{kind}.name", missing("name", table))
        if not isinstance(name, str):
            raise ProblemError(f"{kind}.name", f"must be a string, got {name!r}")
        with explained(kind):
            model = None if kind == "model" else self.model.name
            entry = get_registry().get(kind, name, model)
            signature = signature_of(entry.item)
            if provided.get("symmetric") is False and "symmetric" not in signature:
                raise ParameterError(
                    "name",
                    f"{name!r} is for symmetric matrices only, unlike those of the model",
                )
            built = build(entry.item, kind, table, provided)
        self.spec[kind] = specification(entry, built)
        self._defaults[kind] = {k: p.default for k, p in signature.items()}
        return built

    def _whiten(self) -> None:
        """Replace model and channel by those of whitened latents where Gaussian tokens are correlated."""
        C = self.inputs.token_covariance if self.inputs.gaussian else None
        covariance = (
            np.eye(self.model.tokens)
            if C is None
            else np.asarray(C(self.model.tokens), dtype=float)
        )
        if np.array_equal(covariance, np.eye(self.model.tokens)):
            return
        with explained("model"):
            self.mixing = site_mixing(self.model, np.linalg.cholesky(covariance))
        with explained("channel"):
            self.channel = mixed_channel(self.channel, self.mixing)
        self.model = cast("Model", WhitenedModel(self.model, self.mixing))

    def __eq__(self, problem: object) -> bool:
        """Whether names, parameters and versions are the same, so that caches recognize problems that cells build anew."""
        return isinstance(problem, Problem) and self.spec == problem.spec

    def __hash__(self) -> int:
        return hash(canonical_json(self.spec))

    def __repr__(self) -> str:
        return f"Problem({self.label})"

    def _repr_html_(self) -> str:
        """A table of the items and their parameters, for notebooks."""
        from html import escape

        rows = ""
        for kind, spec in self.spec.items():
            texts = map(escape, (kind, spec["name"], _parameters(spec, {})))
            rows += f"<tr><td>{'</td><td>'.join(texts)}</td></tr>"
        return f"<table>{rows}</table>"

    @property
    def label(self) -> str:
        """Short human-readable name of the problem; parameters with default values are left out."""
        words = []
        for kind, spec in self.spec.items():
            parameters = _parameters(spec, self._defaults[kind])
            words.append(spec["name"] + (f"({parameters})" if parameters else ""))
        return " ".join(words)

    @property
    def no_theory(self) -> str | None:
        """Reason why there is no theory for these inputs, or None."""
        law = self.inputs
        if not law.gaussian:
            return f"no theory is known for the tokens of {law.name!r}, and none is claimed"
        if not self.spectral:
            return None
        signals = ""
        if self.model.rank != "low":
            signals = "matrices"
        elif not isinstance(self.prior, WeightedPrior):
            signals = "signals that are not Gaussian"
        if signals:
            return f"no theory is known for {signals} over features with a spectrum, and none is claimed"
        if self.features is None:
            return "the spectrum changes with D: give its number of features, as a suite does (inputs.features)"
        return None

    def require_theory(self) -> None:
        """Raise NoTheoryError if there is no theory for these inputs."""
        if (why := self.no_theory) is not None:
            raise NoTheoryError("theory", why)

    @property
    def identity(self) -> str:
        """Canonical text of item names and parameters, without versions: a fix of a posterior does not change the data."""
        tables = {
            k: {n: v for n, v in spec.items() if n not in CODE}
            for k, spec in self.spec.items()
        }
        return canonical_json(tables)

    @property
    def seed_name(self) -> str:
        """Text that seeds are made of: the identity without inputs, so that all inputs meet the same teachers and starts."""
        return canonical_json(
            without("source", without("version", without("inputs", self.spec)))
        )

    def instance(
        self,
        alpha: float,
        dimension: int,
        replicate: int = 0,
        *,
        seed: int = 0,
        dtype: str = "float64",
        device: Backend | None = None,
    ) -> Instance:
        """Draw teacher and data.

        Parameters
        ----------
        alpha : float
            Sample ratio asked for; the one really used is n / D or n / D^2 with the nearest whole n >= 1.
        dimension : int
            D.
        replicate : int
            Which of the independent draws.
        seed : int
            Root of the seed tree.
        dtype : str
            Type of the inputs and of real labels; ``"mixed"`` for inputs in float32 and labels in float64. Labels are computed
            in float64 from the inputs as rounded.
        device : Backend or None
            Draw the inputs there instead of on the host: faster for large runs, and another instance, because every kind
            of device has generators of its own. The teacher is the same.
        """

        def seeds(*name: str) -> np.random.SeedSequence:
            return seed_sequence(
                seed, self.seed_name, alpha, dimension, replicate, *name
            )

        def stream(name: str) -> np.random.Generator:
            return np.random.Generator(np.random.PCG64DXSM(seeds(name)))

        signal = self.teacher(stream("teacher"), dimension)
        n = self.model.sample_count(alpha, dimension)
        if device is None:
            inputs, labels = self.draw(signal, n, stream("data"), dtype)
        else:
            inputs, labels = draw_on(
                device,
                self,
                signal,
                n,
                lambda block: seeds("data", "device", str(block)),
                stream("data"),
                dtype,
            )
        return Instance(
            self, signal, inputs, labels, self.model.sample_ratio(n, dimension)
        )

    def draw(
        self, signal: Host, n: int, rng: np.random.Generator, dtype: str = "float64"
    ) -> tuple[Host, Host]:
        """Inputs (n, T, D) and labels (n, ...) of n samples of a teacher, on the host."""
        model = self.model
        stored, wide = stored_types(dtype)
        inputs = np.empty((n, model.tokens, signal.shape[-1]), dtype=stored)
        fill(inputs, self.inputs, rng)
        labels: Host | None = None
        for chunk in model.chunks(n, signal.shape[-1], self.components):
            z = model.forward(np.asarray(inputs[chunk], dtype=np.float64), signal)
            y = self.labels(z, rng)
            if labels is None:
                kind = wide if y.dtype.kind == "f" else y.dtype
                labels = np.empty((n, *y.shape[1:]), dtype=kind)
            labels[chunk] = y
        assert labels is not None
        return inputs, labels

    def teacher(self, rng: np.random.Generator, dimension: int) -> Host:
        """A signal drawn from the prior."""
        shape = tuple(self.model.signal_shape(self.components, dimension))
        return checked_array(
            f"prior {self.prior.name!r}: sample",
            self.prior.sample(rng, self.components, dimension),
            shape,
        )

    def labels(self, z: Host, rng: np.random.Generator) -> Host:
        """Labels (n, ...) of latents, on the host."""
        y = np.asarray(self.channel.forward(z, rng=rng))
        return checked_array(
            f"channel {self.channel.name!r}: forward", y, (len(z), *y.shape[1:])
        )

    def pass_cost(self, data: Data, samples: int | None = None) -> Cost:
        """Cost of one pass (forward and adjoint) over ``samples`` samples, default all."""
        n, _, dimension = data.inputs.shape
        if isinstance(data.inputs, StreamedInputs):
            itemsize = data.inputs.itemsize
        else:
            itemsize = namespace(data.labels).finfo(data.inputs.dtype).bits // 8
        return self.model.cost(
            n if samples is None else samples, dimension, self.components, itemsize
        )

    def start(
        self,
        instance: Instance,
        information: float,
        rng: np.random.Generator,
        backend: Backend,
    ) -> Start:
        """Informed start, with a known error: ``denoise(S + information^(-1/2) Z)`` of the teacher S."""
        noise = self.model.draw_noise(rng, self.components, instance.dimension)
        R = backend.asarray(instance.signal + noise / np.sqrt(information))
        Qhat = backend.asarray(information * np.eye(self.components))
        denoised = self.prior.denoise(R, Qhat)
        return Start(denoised.estimate, denoised.V)


def seed_sequence(
    seed: int,
    problem: str,
    alpha: float,
    dimension: int,
    replicate: int,
    stream: str,
    *extra: str,
) -> np.random.SeedSequence:
    """Seed of (problem, alpha, D, replicate, stream) in the tree with root ``seed``; ``extra`` names children.

    Parameters
    ----------
    problem : str
        ``Problem.seed_name``.
    stream : str
        One of ``STREAMS``.
    """
    key = (
        *words(problem),
        *words(repr(float(alpha))),
        dimension,
        replicate,
        STREAMS.index(stream),
    )
    for name in extra:
        key += words(name)
    if seed >= HASHED:
        seed = int.from_bytes(hashlib.sha256(f"{seed} {key}".encode()).digest(), "big")
    return np.random.SeedSequence(seed, spawn_key=key)
