"""The learning problem: a model, inputs, a channel and a prior, with its specification, instances and informed starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Self, cast

import numpy as np

from smimbench.backend.arrays import asarray_like, namespace
from smimbench.backend.device import Backend
from smimbench.backend.streaming import StreamedInputs, redrawn_on_host
from smimbench.derive import complete_channel, complete_prior, why_theory_only
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
    omit,
)
from smimbench.interfaces import (
    Algorithm,
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
from smimbench.interfaces.item import Item, title_word
from smimbench.numerics.random_numbers import monte_carlo_rng
from smimbench.problem.instance import (
    Instance,
    draw_on_device,
    fill_with_tokens,
    input_and_label_types,
    redrawn_tokens,
    seed_sequence,
)
from smimbench.registry.items import Parameters, build, parameters_of, signature_of
from smimbench.registry.registry import Entry, RegistryError, get_registry

CODE_KEYS = ("version", "source")
"""Keys of a specification that identify the code of an item, not its mathematics."""

Specification = dict[str, Any]
"""Name, version and parameters of an item, as in keys; of a third-party item also its package and a hash of its code."""

DEFAULT_INPUTS = "gaussian"
"""Inputs of a problem that names none; left out of its specification."""


class ProblemError(ForeseenError, ValueError):
    """Raised if a problem cannot be built; ``key`` names the wrong parameter, and the message says what would be right."""

    def __init__(self, key: str, message: str) -> None:
        """Store the ``key`` of the wrong parameter, and what is wrong with it (``message``)."""
        super().__init__(f"{key}: {message}")
        self.key = key
        self.message = message

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        """Make the error from key and message when it is unpickled."""
        return type(self), (
            self.key,
            self.message,
        )  # a worker process hands it to its parent


class NoTheoryError(ProblemError):
    """Raised if no theory is known for the inputs of a problem."""


class ItemError(ProblemError):
    """Raised if a problem cannot be built because the code of an item fails or returns something invalid."""


@contextmanager
def as_problem_errors(
    kind: str, parameter_error: type[ProblemError] = ProblemError
) -> Iterator[None]:
    """Context that turns errors of an item of this kind into a ProblemError that names the key; a ParameterError into
    ``parameter_error``.
    """
    try:
        yield
    except ProblemError:
        raise
    except RegistryError as unusable_item:
        raise ProblemError(f"{kind}.name", str(unusable_item)) from None
    except ParameterError as wrong_value:
        raise parameter_error(
            f"{kind}.{wrong_value.key}", wrong_value.message
        ) from None
    except BaseException as error:  # the constructor of a plugin may raise anything
        if isinstance(error, KeyboardInterrupt):
            raise
        raise ItemError(
            f"{kind}.name",
            f"this {kind} cannot be built: {error_line(error)} ({error_place(error)})",
        ) from None


def specification(entry: Entry, item: object) -> Specification:
    """Return the specification of an item (in registry ``entry``): name, version, parameters; if third-party, package and
    hash.
    """
    spec = {"name": entry.name, **version_of(entry), **parameters_of(entry.kind, item)}
    if entry.distribution != "smimbench":
        spec["distribution"] = entry.distribution
    return spec


def version_of(entry: Entry) -> Specification:
    """Return the version of a registered item (``entry``) and, if it is third-party, the hash of its code, as entries of a
    specification.
    """
    return {"version": entry.item.version} | (
        {} if entry.source is None else {"source": entry.source}
    )


def as_table(spec: Specification) -> Parameters:
    """Convert a specification to a table of a suite: name (with the package, if third-party) and parameters."""
    table = omit(spec, *CODE_KEYS, "distribution")
    if "distribution" in spec:
        table["name"] = f"{spec['distribution']}:{spec['name']}"
    return table


def without(key: str, table: Parameters) -> Parameters:
    """Return a nested table with one key removed at every level.

    Without ``"source"`` (hashes of code) or ``"version"``, an item equals itself after a fix.
    """
    return {
        table_key: without(key, table_value)
        if isinstance(table_value, dict)
        else table_value
        for table_key, table_value in table.items()
        if table_key != key
    }


def _chosen_parameters(spec: Specification, defaults: Parameters) -> Parameters:
    """Return the parameters in the specification of an item that have no default, or differ from it."""
    parameters = omit(spec, *CODE_KEYS, "name", "distribution")
    return {
        name: value
        for name, value in parameters.items()
        if name not in defaults or value != defaults[name]
    }


def _parameter_text(spec: Specification, defaults: Parameters) -> str:
    """Write the parameters of an item's specification that differ from their defaults as text ``name=value, ...``."""
    parameters = _chosen_parameters(spec, defaults)
    return ", ".join(f"{name}={value}" for name, value in parameters.items())


class Problem:
    """Learning problem: a compatible combination of model, channel, prior and inputs.
    ``mixing`` (C, C) mixes the whitened latents of correlated tokens; ``variances`` is the function of D that gives the
    variances of the features, ``features`` their values at the D of theory; ``is_assumed`` marks the problem that an
    algorithm assumes instead of the true one.

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
        """Build model, channel, prior and inputs from their names or tables, and adapt model, channel and prior to the inputs."""
        self.spec: dict[str, Specification] = {}
        self._defaults: dict[str, Parameters] = {}
        self._items: dict[str, type[Item]] = {}
        self.model = self._make_item("model", model)
        with as_problem_errors("model", ItemError):
            symmetric = is_symmetric(self.model)
        if symmetric:
            self.spec["model"].pop("symmetric", None)  # keys of results do not change
        self.channel = self._make_item(
            "channel", channel, tokens=self.model.tokens, symmetric=symmetric
        )
        self.prior = self._make_item("prior", prior, symmetric=symmetric)
        self.inputs = self._make_item("inputs", inputs)
        with as_problem_errors("inputs", ItemError):
            tokens = self.inputs.shape[0]
        if tokens not in (None, self.model.tokens):
            raise ProblemError(
                "model.tokens",
                f"must be {tokens}, the number of tokens of the inputs, got {self.model.tokens}",
            )
        if (
            self.spec["inputs"]["name"] == DEFAULT_INPUTS
            and "distribution" not in self.spec["inputs"]
        ):
            del self.spec["inputs"]  # keys of results do not change
        with as_problem_errors("inputs", ItemError):
            self._whiten_tokens()
        with as_problem_errors("channel", ItemError):
            self.channel = complete_channel(self.channel, self.model)
            self.components: int = int(self.channel.components)
        with as_problem_errors("prior", ItemError):
            self.prior = complete_prior(self.prior, self.model)
        with as_problem_errors("inputs", ItemError):
            self._weigh_features()
        with as_problem_errors(
            "model", ItemError
        ):  # members that tables and cost estimates read
            self.model.sample_ratio(self.model.sample_count(1.0, 8), 8)
            self.model.signal_shape(self.components, 8)
            self.model.cost(8, 8, self.components)

    @cached_property
    def has_spectrum(self) -> bool:
        """Whether the features of the inputs are known to have different variances (a spectrum)."""
        variances = self.inputs.feature_variances
        if variances is None:
            return False
        return not (np.asarray(variances(self.inputs.shape[1] or 8)) == 1).all()

    def _weigh_features(self) -> None:
        """Weight the model's inner products and the prior by the variances of the input features, if these differ (a
        spectrum) and the signal has low rank.
        """
        inputs = self.inputs
        if (
            inputs.feature_variances is None
            or not self.has_spectrum
            or self.model.rank != "low"
        ):
            return
        self.variances = inputs.feature_variances
        if inputs.shape[1] is not None:
            self.features = np.asarray(inputs.feature_variances(inputs.shape[1]))
        self.model, self.prior = weighted(self.model, self.prior, inputs)

    def per_variance(self, gradient: Array) -> Array:
        """Divide a gradient (P, D) with respect to the signal, coordinate by coordinate, by the variances of the D input
        features: its form in the metric of the latents.
        """
        if self.variances is None:
            return gradient
        variances = self.variances(gradient.shape[-1])
        return gradient / asarray_like(variances, gradient)

    def _make_item(
        self, kind: str, name_or_table: str | Mapping[str, object], **provided: object
    ) -> Any:
        """Build an item of a kind from name or table, with parameters ``provided`` by the engine; store its specification."""
        item_table = (
            {"name": name_or_table}
            if isinstance(name_or_table, str)
            else dict(name_or_table)
        )
        item_name = item_table.pop("name", None)
        if item_name is None:
            raise ProblemError(f"{kind}.name", missing("name", item_table))
        if not isinstance(item_name, str):
            raise ProblemError(
                f"{kind}.name",
                f"must be a string, the name of a {kind}, got {item_name!r}",
            )
        with as_problem_errors(kind):
            model = None if kind == "model" else self.model.name
            registry_entry = get_registry().get(kind, item_name, model)
            signature = signature_of(registry_entry.item)
            if provided.get("symmetric") is False and "symmetric" not in signature:
                raise ParameterError(
                    "name",
                    f"{item_name!r} supports symmetric matrices only, but the matrices of this model are not symmetric",
                )
            item = build(registry_entry.item, kind, item_table, provided)
        self.spec[kind] = specification(registry_entry, item)
        self._items[kind] = registry_entry.item
        self._defaults[kind] = {
            item_name: parameter.default for item_name, parameter in signature.items()
        }
        return item

    def _whiten_tokens(self) -> None:
        """Replace model and channel by their versions for whitened latents, if the Gaussian tokens are correlated."""
        token_covariance = (
            self.inputs.token_covariance if self.inputs.gaussian else None
        )
        covariance = (
            np.eye(self.model.tokens)
            if token_covariance is None
            else np.asarray(token_covariance(self.model.tokens), dtype=float)
        )
        if np.array_equal(covariance, np.eye(self.model.tokens)):
            return
        with as_problem_errors("model"):
            self.mixing = site_mixing(self.model, np.linalg.cholesky(covariance))
        with as_problem_errors("channel"):
            self.channel = mixed_channel(self.channel, self.mixing)
        self.model = cast("Model", WhitenedModel(self.model, self.mixing))

    def __eq__(self, problem: object) -> bool:
        """Whether two problems have equal names, parameters and versions, so that caches recognize a rebuilt problem."""
        return isinstance(problem, Problem) and self.spec == problem.spec

    def __hash__(self) -> int:
        """Return a hash of names, parameters and versions of the items, equal for equal problems."""
        return hash(canonical_json(self.spec))

    def __repr__(self) -> str:
        """Return the problem's label, its items with the parameters that are not defaults, as a short text."""
        return f"Problem({self.label})"

    def _repr_html_(self) -> str:
        """HTML table of the items and their parameters, for notebooks."""
        from html import escape

        rows = ""
        for item_kind, spec in self.spec.items():
            texts = map(escape, (item_kind, spec["name"], _parameter_text(spec, {})))
            rows += f"<tr><td>{'</td><td>'.join(texts)}</td></tr>"
        return f"<table>{rows}</table>"

    @property
    def label(self) -> str:
        """Short readable name of the problem, without parameters that have their default values."""
        item_texts = []
        for item_kind, spec in self.spec.items():
            parameters = _parameter_text(spec, self._defaults[item_kind])
            item_texts.append(spec["name"] + (f"({parameters})" if parameters else ""))
        return " ".join(item_texts)

    @property
    def title(self) -> str:
        """The channel in words, and parameters without a default, or with another value, by their symbols."""
        channel_name = str(self.spec["channel"]["name"])
        words = [self._items["channel"].title_words.get("name", channel_name)]
        for kind, spec in self.spec.items():
            for name, value in _chosen_parameters(spec, self._defaults[kind]).items():
                text = f"{value:g}" if isinstance(value, float) else value
                words.append(f"{title_word(self._items[kind], name)} = {text}")
        return ", ".join(words)

    @property
    def no_theory(self) -> str | None:
        """Reason why there is no theory for these inputs, or None."""
        inputs = self.inputs
        if not inputs.gaussian:
            return f"no theory is known for the tokens of {inputs.name!r}, and none is claimed"
        if not self.has_spectrum:
            return None
        unsupported_signals = ""
        if self.model.rank != "low":
            unsupported_signals = "matrices"
        elif not isinstance(self.prior, WeightedPrior):
            unsupported_signals = "signals that are not Gaussian"
        if unsupported_signals:
            return f"no theory is known for {unsupported_signals} over features with a spectrum, and none is claimed"
        if self.features is None:
            return "the spectrum changes with D: give its number of features, as a suite does (inputs.features)"
        return None

    def require_theory(self) -> None:
        """Raise NoTheoryError if there is no theory for these inputs."""
        if (why_no_theory := self.no_theory) is not None:
            raise NoTheoryError("theory", why_no_theory)

    @property
    def identity(self) -> str:
        """Canonical JSON of the items' names and parameters, without versions; equal for problems with the same mathematics."""
        tables = {kind: omit(spec, *CODE_KEYS) for kind, spec in self.spec.items()}
        return canonical_json(tables)

    @cached_property
    def seed_name(self) -> str:
        """Text that random seeds derive from; without the inputs, so that teachers and starts do not depend on them."""
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
        """Draw an instance, a teacher signal and its training data, at sample ratio alpha and this dimension; ``replicate``
        numbers the instances of one root ``seed``, ``device`` draws the inputs if given.

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

        def child_seed(*stream_names: str) -> np.random.SeedSequence:
            """Return the seed of a random stream of this instance, or of a child of the stream, given by ``stream_names``."""
            return seed_sequence(
                seed, self.seed_name, alpha, dimension, replicate, *stream_names
            )

        def random_stream(stream_name: str) -> np.random.Generator:
            """Return the random generator of the stream of this name of the instance."""
            return np.random.Generator(np.random.PCG64DXSM(child_seed(stream_name)))

        signal = self.teacher(random_stream("teacher"), dimension)
        sample_count = self.model.sample_count(alpha, dimension)
        if device is None:
            inputs, labels = self.draw(
                signal, sample_count, random_stream("data"), dtype
            )
        else:
            inputs, labels = draw_on_device(
                device,
                self,
                signal,
                sample_count,
                lambda block_index: child_seed("data", "device", str(block_index)),
                random_stream("data"),
                dtype,
            )
        return Instance(
            self,
            signal,
            inputs,
            labels,
            self.model.sample_ratio(sample_count, dimension),
        )

    def draw(
        self, signal: Host, n: int, rng: np.random.Generator, dtype: str = "float64"
    ) -> tuple[Host, Host]:
        """Draw inputs (n, T, D) and labels y (n, ...) of n samples of a teacher ``signal`` on the host, from latents z. Inputs
        that its memory would not hold are drawn again whenever they are read.
        """
        model = self.model
        input_dtype, label_dtype = input_and_label_types(dtype)
        shape = n, model.tokens, signal.shape[-1]
        byte_count = math.prod(shape) * np.dtype(input_dtype).itemsize
        inputs: Any
        if self.inputs.transform is not None and redrawn_on_host(byte_count):
            inputs = redrawn_tokens(shape, self.inputs, rng, input_dtype, label_dtype)
        else:
            inputs = np.empty(shape, dtype=input_dtype)
            fill_with_tokens(inputs, self.inputs, rng)
        labels: Host | None = None
        for chunk in model.chunks(n, signal.shape[-1], self.components):
            z = model.forward(np.asarray(inputs[chunk], dtype=np.float64), signal)
            y = self.labels(z, rng)
            if labels is None:
                stored_dtype = label_dtype if y.dtype.kind == "f" else y.dtype
                labels = np.empty((n, *y.shape[1:]), dtype=stored_dtype)
            labels[chunk] = y
        assert labels is not None
        return inputs, labels

    def teacher(self, rng: np.random.Generator, dimension: int) -> Host:
        """Draw a teacher signal of this ``dimension`` D from the prior with ``rng``."""
        shape = tuple(self.model.signal_shape(self.components, dimension))
        return checked_array(
            f"prior {self.prior.name!r}: sample",
            self.prior.sample(rng, self.components, dimension),
            shape,
        )

    def labels(self, z: Host, rng: np.random.Generator) -> Host:
        """Draw labels y (n, ...) of n samples from the channel with ``rng``, given their latents z (n, P, C), on the host."""
        y = np.asarray(self.channel.forward(z, rng=rng))
        return checked_array(
            f"channel {self.channel.name!r}: forward", y, (len(z), *y.shape[1:])
        )

    def pass_cost(self, data: Data, samples: int | None = None) -> Cost:
        """Return the cost (operations and bytes) of one forward and adjoint pass over ``samples`` samples of the data
        (default: all).
        """
        sample_count, _, dimension = data.inputs.shape
        if isinstance(data.inputs, StreamedInputs):
            itemsize = data.inputs.itemsize
        else:
            itemsize = namespace(data.labels).finfo(data.inputs.dtype).bits // 8
        return self.model.cost(
            sample_count if samples is None else samples,
            dimension,
            self.components,
            itemsize,
        )

    def start(
        self,
        instance: Instance,
        information: float,
        rng: np.random.Generator,
        backend: Backend,
    ) -> Start:
        """Make an informed start of known error by denoising the noisy teacher S + information^(-1/2) Z, with Z standard
        normal noise and S the teacher of ``instance``; ``Qhat`` (P, P) is the precision of this noise.
        """
        noise = self.model.draw_noise(rng, self.components, instance.dimension)
        R = backend.asarray(instance.signal + noise / np.sqrt(information))
        Qhat = backend.asarray(information * np.eye(self.components))
        denoised = self.prior.denoise(R, Qhat)
        return Start(denoised.estimate, denoised.V)


# -- algorithms that assume another channel or prior --------------------------------------------------------------


def assumed_problem(problem: Problem, tables: Mapping[str, Any]) -> Problem:
    """Return the problem with an assumed channel or prior (``tables``) instead of the true one; ``problem`` itself if the
    assumption is true.

    Parameters
    ----------
    tables : mapping
        ``"channel"``, ``"prior"`` or both: a name, a table with a ``name`` as in ``[problem]``, or one of parameters that differ.

    Raises
    ------
    ProblemError
        If it cannot be made, or has another number of components.
    """
    items = {item_kind: as_table(spec) for item_kind, spec in problem.spec.items()}
    for item_kind, name_or_table in tables.items():
        assumed_table = as_table(
            {"name": name_or_table} if isinstance(name_or_table, str) else name_or_table
        )
        items[item_kind] = (
            assumed_table
            if "name" in assumed_table
            else items[item_kind] | assumed_table
        )
    assumed_version = Problem(**items)
    if assumed_version.components != problem.components:
        raise ProblemError(
            "channel",
            f"the assumed channel must have {problem.components} components, as the signal of the data, "
            f"got {assumed_version.components}",
        )
    if assumed_version.identity == problem.identity:
        return problem
    if reason := why_theory_only(assumed_version.prior, assumed_version.components):
        raise ProblemError("prior", f"this prior cannot be assumed: {reason}")
    if "channel" in tables and (reason := _label_mismatch(problem, assumed_version)):
        raise ProblemError("channel", f"must fit the data: {reason}")
    assumed_version.is_assumed = True
    return assumed_version


def _label_mismatch(problem: Problem, assumed_version: Problem) -> str | None:
    """Reason why the channel of ``assumed_version`` (the problem that an algorithm assumes) cannot have produced the labels
    of the true ``problem``, or None; both draw labels of the same random latents.
    """
    latents = monte_carlo_rng("wrong assumptions: labels").standard_normal(
        (64, problem.components, problem.model.sites)
    )
    labels, assumed_labels = (
        np.asarray(
            compared_problem.channel.forward(
                latents, rng=monte_carlo_rng("wrong assumptions: labels")
            )
        )
        for compared_problem in (problem, assumed_version)
    )
    message_start = f"{assumed_version.channel.name!r} cannot be assumed of labels of {problem.channel.name!r}"
    if labels.shape != assumed_labels.shape:
        return f"{message_start}: one of them is an array {assumed_labels.shape[1:]}, not {labels.shape[1:]}"
    assumed_values = np.unique(assumed_labels)
    if len(assumed_values) <= 8 and not np.isin(labels, assumed_values).all():
        return f"{message_start}: it has the labels {', '.join(f'{label_value:g}' for label_value in assumed_values)} only"
    return None


class AlgorithmWithAssumption:
    """Wrapper of an algorithm that passes its methods an assumed problem instead of the true one.

    Parameters
    ----------
    algorithm : Algorithm
    tables : mapping
        See ``assumed_problem``.
    """

    def __init__(
        self, algorithm: Algorithm, assumed_tables: Mapping[str, object]
    ) -> None:
        """Wrap an algorithm, with the tables of the channel or prior that it assumes."""
        self._algorithm = algorithm
        self._assumed_tables = assumed_tables
        self._assumed_problems: dict[str, Problem] = {}

    def __getattr__(self, name: str) -> Any:
        """Return the member of this name of the wrapped algorithm."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._algorithm, name)

    def assumed(self, problem: Problem) -> Problem:
        """Return the problem that the algorithm assumes instead of the true ``problem``."""
        problem_json = canonical_json(problem.spec)
        if problem_json not in self._assumed_problems:
            self._assumed_problems[problem_json] = assumed_problem(
                problem, self._assumed_tables
            )
        return self._assumed_problems[problem_json]

    def init(self, problem: Problem, data: Data, rng: np.random.Generator) -> Any:
        """Return the initial state on ``data`` for the assumed problem, with random numbers of ``rng``."""
        return self._algorithm.init(self.assumed(problem), data, rng)

    def step(self, problem: Problem, data: Data, state: object) -> Any:
        """Run one iteration on ``data`` from a state for the assumed problem."""
        return self._algorithm.step(self.assumed(problem), data, state)

    def refuses(self, problem: Problem) -> str | None:
        """Reason why the assumption is impossible or the algorithm cannot solve the assumed problem, or None."""
        try:
            reason: str | None = self._algorithm.refuses(self.assumed(problem))
        except ProblemError as error:
            return f"the assumption does not fit this problem: {error}"
        return reason

    def retry(self, problem: Problem, outcome: str) -> AlgorithmWithAssumption | None:
        """Return the algorithm for one more attempt after this ``outcome`` (status), with the same assumption."""
        second_attempt = self._algorithm.retry(self.assumed(problem), outcome)
        return (
            None
            if second_attempt is None
            else AlgorithmWithAssumption(second_attempt, self._assumed_tables)
        )
