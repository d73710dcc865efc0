"""A problem (model, channel, prior), its instances, and the error of an estimate with the symmetry removed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend.arrays import namespace, to_host
from smimbench.backend.device import Backend
from smimbench.derive.channel import complete_channel
from smimbench.derive.prior import complete_prior
from smimbench.files import canonical_json
from smimbench.interfaces import (
    Channel,
    Claims,
    Cost,
    Data,
    Model,
    NotMeasured,
    ParameterError,
    Prior,
    Start,
    member,
)
from smimbench.problem.seeds import seed_sequence
from smimbench.registry.metrics import find_metric, trajectory_metrics
from smimbench.registry.parameters import build, parameters_of, signature_of
from smimbench.registry.registry import Registry, RegistryError, get_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from smimbench.interfaces import Array

__all__ = ["Instance", "Problem", "ProblemError"]

DEVICE_BLOCK = 1 << 24
"""Numbers drawn at once on a device; part of what a seed means there."""

_NOT_PARAMETERS = ("name", "version", "distribution")


class ProblemError(ValueError):
    """A problem cannot be put together; ``key`` names the part, the message what would be right."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key
        self.message = message


@dataclass(frozen=True, eq=False)
class Instance:
    """One draw of teacher and data, on the host: the same bits for every algorithm and every backend.

    Attributes
    ----------
    problem : Problem
    signal : ndarray
        The teacher, ``(P, D)`` or ``(P, D, D)``. Algorithms never see it.
    inputs : array (n, T, D)
        On the host; on a device if they were drawn there.
    labels : array (n, ...)
        Where the inputs were drawn.
    sample_ratio : float
        alpha really used, n / D or n / D^2.
    """

    problem: Problem
    signal: np.ndarray[Any, Any]
    inputs: Array
    labels: Array
    sample_ratio: float

    @property
    def dimension(self) -> int:
        """D."""
        return int(self.inputs.shape[-1])

    def data(self, backend: Backend, start: Start | None = None, *, stream: bool | None = None) -> Data:
        """What an algorithm may see, moved to a backend. On the host nothing is copied; NumPy views are locked.

        Parameters
        ----------
        stream : bool or None
            Leave the inputs on the host and move slices of the samples when they are needed. None: where they would take
            more than a share of the free memory of the device (see ``smimbench.backend.streaming``).
        """
        from smimbench.backend.streaming import StreamedInputs, fits

        if stream is None:
            width = 4 if backend.dtype == "float32" else 8
            stream = isinstance(self.inputs, np.ndarray) and not fits(self.inputs.size * width, backend)
        inputs = StreamedInputs(self.inputs, backend) if stream else _locked(backend.asarray(self.inputs))
        labels = _locked(backend.asarray(self.labels))
        dtype = "float32" if namespace(inputs).finfo(inputs.dtype).bits == 32 else "float64"

        def fresh(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
            pair = self.problem.draw(self.signal, n, rng, dtype)
            return backend.asarray(pair[0]), backend.asarray(pair[1])

        return Data(inputs, labels, self.sample_ratio, start, fresh)

    def metrics(self, estimate: Array) -> dict[str, list[float]]:
        """Metrics that are recorded along a run (``mse`` and ``overlap``, and those that plugins add), by name.

        Raises
        ------
        ValueError
            If the estimate does not have the shape of the signal.
        """
        claims = self.claims(estimate)
        found = trajectory_metrics(self.problem.model.name)
        return {name: metric.measure(self, estimate, claims) for name, metric in found.items()}

    def measure(
        self, names: Sequence[str], estimate: Array, V: Array | None = None
    ) -> tuple[dict[str, list[float]], dict[str, str], list[str]]:
        """Metrics of a final estimate, measured on the host.

        Parameters
        ----------
        names : sequence of str
            As in ``run.metrics`` of a suite, or with a version as in the key of a cell: ``"name@2"``.
        V : array (P, P) or None
            Error that the algorithm claims for the estimate.

        Returns
        -------
        values : dict of list of float
        blank : dict of str
            For every metric without a value the reason.
        remarks : list of str
            What metrics want the user to know.
        """
        if not names:
            return {}, {}, []
        estimate = np.asarray(to_host(estimate), dtype=float)
        claims = self.claims(estimate, None if V is None else np.asarray(to_host(V), dtype=float))
        values: dict[str, list[float]] = {}
        blank: dict[str, str] = {}
        for name in (written.partition("@")[0] for written in names):
            metric = find_metric(name, self.problem.model.name)
            try:
                values[name] = [float(value) for value in metric.measure(self, estimate, claims)]
            except NotMeasured as reason:
                blank[name] = str(reason)
        return values, blank, claims.remarks

    def claims(self, estimate: Array, V: Array | None = None) -> Claims:
        """What metrics need beside the estimate: the teacher beside it, the symmetry removed, the error claimed.

        Raises
        ------
        ValueError
            If the estimate does not have the shape of the signal.
        """
        if tuple(estimate.shape) != self.signal.shape:
            raise ValueError(
                f"an estimate must have the shape {self.signal.shape}, got {tuple(estimate.shape)}"
            )
        model: Any = self.problem.model
        teacher = _teacher_like(self, estimate, namespace(estimate))
        aligned = model.align(teacher, estimate, self.problem.channel.symmetry)
        if V is None:
            return Claims(None, teacher, aligned)
        # The aligned components are a fixed combination of the estimate's: aligned = O estimate, with O from overlaps.
        move = model.inner(aligned, estimate) @ np.linalg.pinv(model.inner(estimate, estimate))
        return Claims(V, teacher, aligned, move @ V @ move.T)


class Problem:
    """Model, channel and prior that belong together.

    Parameters
    ----------
    model, channel, prior : str or mapping
        A name, or a table ``{"name": ..., parameter: value, ...}``.
    registry : Registry or None
        Where to look names up; default: all installed plugins.

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

    def __init__(
        self,
        model: str | Mapping[str, Any],
        channel: str | Mapping[str, Any],
        prior: str | Mapping[str, Any],
        *,
        registry: Registry | None = None,
    ) -> None:
        registry = registry or get_registry()
        self.spec: dict[str, dict[str, Any]] = {}
        self._defaults: dict[str, dict[str, Any]] = {}
        self.model = self._make(registry, "model", model, None, {})
        name = self.model.name
        self.channel = self._make(registry, "channel", channel, name, {"tokens": self.model.tokens})
        self.prior = self._make(registry, "prior", prior, name, {})
        self.channel = self._completed("channel", complete_channel, self.channel)
        self.prior = self._completed("prior", complete_prior, self.prior)
        self.components: int = int(self.channel.components)

    def _make(
        self, registry: Registry, kind: str, what: Any, model: str | None, provided: dict[str, Any]
    ) -> Any:
        table = {"name": what} if isinstance(what, str) else dict(what)
        name = table.pop("name", None)
        if not isinstance(name, str):
            raise ProblemError(
                f"{kind}.name", "is missing" if name is None else f"must be a string, got {name!r}"
            )
        try:
            entry = registry.get(kind, name, model)
        except RegistryError as error:
            raise ProblemError(f"{kind}.name", str(error)) from None
        try:
            item = build(entry.item, kind, table, provided)
        except ParameterError as error:
            raise ProblemError(f"{kind}.{error.key}", error.message) from None
        spec = {"name": entry.name, "version": entry.item.version, **parameters_of(kind, item)}
        if entry.distribution != "smimbench":
            spec["distribution"] = entry.distribution
        self.spec[kind] = spec
        self._defaults[kind] = {k: p.default for k, p in signature_of(entry.item).items()}
        return item

    def _completed(self, kind: str, complete: Callable[[Any, Model], Any], item: Any) -> Any:
        """The item with all that the engine derives from what it gives."""
        try:
            return complete(item, self.model)
        except ParameterError as error:
            raise ProblemError(f"{kind}.{error.key}", error.message) from None

    def __repr__(self) -> str:
        return f"Problem({self.label})"

    @property
    def label(self) -> str:
        """Short human name: parameters that have their default value are left out."""
        parts = []
        for kind in ("model", "channel", "prior"):
            spec, usual = self.spec[kind], self._defaults[kind]
            inner = ", ".join(
                f"{k}={v}" for k, v in spec.items() if k not in _NOT_PARAMETERS and v != usual.get(k)
            )
            parts.append(f"{spec['name']}({inner})" if inner else spec["name"])
        return " ".join(parts)

    @property
    def identity(self) -> str:
        """Canonical text of names and parameters, without versions: a fix of a posterior does not change the data."""
        bare = {k: {n: v for n, v in spec.items() if n != "version"} for k, spec in self.spec.items()}
        return canonical_json(bare)

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
            Type of the inputs. Labels are computed in float64 from the inputs as rounded.
        device : Backend or None
            Draw the inputs there instead of on the host: faster for large runs, and another instance, because every kind
            of device has generators of its own. The teacher is the same.
        """

        def stream(name: str) -> np.random.Generator:
            sequence = seed_sequence(seed, self.identity, alpha, dimension, replicate, name)
            return np.random.Generator(np.random.PCG64DXSM(sequence))

        signal = self.prior.sample(stream("teacher"), self.components, dimension)
        n = self.model.sample_count(alpha, dimension)
        if device is None:
            inputs, labels = self.draw(signal, n, stream("data"), dtype)
        else:

            def block_seed(block: int) -> np.random.SeedSequence:
                return seed_sequence(
                    seed, self.identity, alpha, dimension, replicate, "data", "device", str(block)
                )

            inputs, labels = self._draw_on(device, signal, n, block_seed, stream("data"), dtype)
        return Instance(self, signal, inputs, labels, self.model.sample_ratio(n, dimension))

    def draw(
        self, signal: np.ndarray[Any, Any], n: int, rng: np.random.Generator, dtype: str = "float64"
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Inputs (n, T, D) and labels (n, ...) of n samples of a teacher, on the host."""
        model: Any = self.model
        inputs = np.empty((n, model.tokens, signal.shape[-1]), dtype=dtype)
        model.draw_inputs(rng, inputs)
        labels: np.ndarray[Any, Any] | None = None
        for part in model.chunks(n, signal.shape[-1], self.components):
            z = model.forward(np.asarray(inputs[part], dtype=np.float64), signal)
            y = np.asarray(self.channel.forward(z, rng=rng))
            if labels is None:
                kind = dtype if y.dtype.kind == "f" else y.dtype
                labels = np.empty((n, *y.shape[1:]), dtype=kind)
            labels[part] = y
        assert labels is not None
        return inputs, labels

    def _draw_on(
        self,
        device: Backend,
        signal: np.ndarray[Any, Any],
        n: int,
        block_seed: Callable[[int], np.random.SeedSequence],
        rng: np.random.Generator,
        dtype: str,
    ) -> tuple[Array, Array]:
        """Inputs and labels drawn on a device; the inputs go to the host, block by block, where they would not fit."""
        from smimbench.backend.streaming import fits

        xp = device.xp
        shape = (n, self.model.tokens, signal.shape[-1])
        number = getattr(xp, dtype)
        stays = fits(math.prod(shape) * (xp.finfo(number).bits // 8), device)
        inputs = (
            xp.empty(shape, dtype=number, device=device.device) if stays else np.empty(shape, dtype=dtype)
        )
        teacher = device.asarray(signal, dtype="float64")
        labels = []
        # One seed per block, of a size that depends on the shape alone: how the rest is chunked changes no bit.
        size = max(1, DEVICE_BLOCK // math.prod(shape[1:]))
        for block, first in enumerate(range(0, n, size)):
            part = slice(first, min(first + size, n))
            x = device.standard_normal(block_seed(block))((part.stop - part.start, *shape[1:]))
            x = xp.astype(x, number, copy=False)
            inputs[part, ...] = x if stays else to_host(x)
            y = self.channel.forward(
                self.model.forward(xp.astype(x, xp.float64, copy=False), teacher), rng=rng
            )
            labels.append(xp.astype(y, number, copy=False) if xp.isdtype(y.dtype, "real floating") else y)
        return inputs, labels[0] if len(labels) == 1 else xp.concat(labels, axis=0)

    def pass_cost(self, data: Data, samples: int | None = None) -> Cost | None:
        """What one pass over so many samples (default: all) takes, forward and adjoint; None if the model does not say."""
        ask = member(self.model, "cost")
        if ask is None:
            return None
        n, _, dimension = data.inputs.shape
        bits = namespace(data.labels).finfo(data.inputs.dtype).bits
        found: Cost = ask(n if samples is None else samples, dimension, self.components, bits // 8)
        return found

    def start(
        self,
        instance: Instance,
        information: float,
        rng: np.random.Generator,
        backend: Backend,
        *,
        informed: bool,
    ) -> Start:
        """A start that holds as much as it claims: ``denoise(S + information^(-1/2) Z)``.

        Informed: S is the teacher. Uninformed: S is another draw of the prior, so the estimate has the right size
        and points nowhere.
        """
        shape = (self.components, instance.dimension)
        source = instance.signal if informed else self.prior.sample(rng, *shape)
        noise = self.model.draw_noise(rng, *shape)
        R = backend.asarray(source + noise / np.sqrt(information))
        Qhat = backend.asarray(information * np.eye(self.components))
        denoised = self.prior.denoise(R, Qhat)
        return Start(denoised.estimate, denoised.V)


def _locked(array: Array) -> Array:
    """A view that refuses to be written to, where the namespace has such a thing."""
    if not isinstance(array, np.ndarray):
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def _teacher_like(instance: Instance, estimate: Array, xp: Any) -> Array:
    """The teacher beside the estimate; the copy on a device is kept, because metrics are asked for often."""
    if isinstance(estimate, np.ndarray):
        return instance.signal.astype(estimate.dtype, copy=False)
    cache: dict[str, Any] = instance.__dict__.setdefault("_teacher", {})
    import array_api_compat

    key = f"{xp.__name__} {array_api_compat.device(estimate)} {estimate.dtype}"
    if key not in cache:
        cache[key] = xp.asarray(
            instance.signal, dtype=estimate.dtype, device=array_api_compat.device(estimate)
        )
    return cache[key]
