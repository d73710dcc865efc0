"""One draw of teacher and data, what an algorithm may see of it, and the error of an estimate with the symmetry removed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend.arrays import beside, namespace, to_host
from smimbench.backend.streaming import StreamedInputs, fits
from smimbench.interfaces import Claims, Data, NotMeasured
from smimbench.registry.metrics import find_metric, trajectory_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smimbench.backend.device import Backend
    from smimbench.interfaces import Array, Channel, Model, Start

__all__ = ["Instance", "draw_on"]

DEVICE_BLOCK = 1 << 24
"""Numbers drawn at once on a device; part of what a seed means there."""


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

    problem: Any  # its module imports this one
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
            raise ValueError(f"an estimate must have the shape {self.signal.shape}, got {tuple(estimate.shape)}")
        model: Any = self.problem.model
        teacher = _teacher_like(self, estimate)
        aligned = model.align(teacher, estimate, self.problem.channel.symmetry)
        if V is None:
            return Claims(None, teacher, aligned)
        # The aligned components are a fixed combination of the estimate's: aligned = O estimate, with O from overlaps.
        move = model.inner(aligned, estimate) @ np.linalg.pinv(model.inner(estimate, estimate))
        return Claims(V, teacher, aligned, move @ V @ move.T)


def draw_on(
    device: Backend,
    model: Model,
    channel: Channel,
    signal: np.ndarray[Any, Any],
    n: int,
    block_seed: Callable[[int], np.random.SeedSequence],
    rng: np.random.Generator,
    dtype: str,
) -> tuple[Array, Array]:
    """Inputs and labels drawn on a device; the inputs go to the host, block by block, where they would not fit."""
    xp = device.xp
    shape = (n, model.tokens, signal.shape[-1])
    number = getattr(xp, dtype)
    stays = fits(math.prod(shape) * (xp.finfo(number).bits // 8), device)
    inputs = xp.empty(shape, dtype=number, device=device.device) if stays else np.empty(shape, dtype=dtype)
    teacher = device.asarray(signal, dtype="float64")
    labels = []
    # One seed per block, of a size that depends on the shape alone: how the rest is chunked changes no bit.
    size = max(1, DEVICE_BLOCK // math.prod(shape[1:]))
    for block, first in enumerate(range(0, n, size)):
        part = slice(first, min(first + size, n))
        x = device.standard_normal(block_seed(block))((part.stop - part.start, *shape[1:]))
        x = xp.astype(x, number, copy=False)
        inputs[part, ...] = x if stays else to_host(x)
        y = channel.forward(model.forward(xp.astype(x, xp.float64, copy=False), teacher), rng=rng)
        labels.append(xp.astype(y, number, copy=False) if xp.isdtype(y.dtype, "real floating") else y)
    return inputs, labels[0] if len(labels) == 1 else xp.concat(labels, axis=0)


def _locked(array: Array) -> Array:
    """A view that refuses to be written to, where the namespace has such a thing."""
    if not isinstance(array, np.ndarray):
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def _teacher_like(instance: Instance, estimate: Array) -> Array:
    """The teacher beside the estimate; the copy on a device is kept, because metrics are asked for often."""
    if isinstance(estimate, np.ndarray):
        return instance.signal.astype(estimate.dtype, copy=False)
    where = beside(estimate)
    cache: dict[str, Any] = instance.__dict__.setdefault("_teacher", {})
    key = f"{namespace(estimate).__name__} {where}"
    if key not in cache:
        cache[key] = namespace(estimate).asarray(instance.signal, **where)
    return cache[key]
