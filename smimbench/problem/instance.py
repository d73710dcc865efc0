"""Instances (one draw of teacher and data each), with their seeds, checksums, device copies and error metrics."""

from __future__ import annotations

import functools
import hashlib
import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from smimbench.backend.arrays import matching, namespace, to_host, to_host_floats
from smimbench.backend.device import Backend
from smimbench.backend.streaming import (
    DrawnInputs,
    NarrowInputs,
    StreamedInputs,
    fits_device_memory,
)
from smimbench.files import error_line, omit, printable
from smimbench.interfaces import (
    Array,
    Claims,
    Data,
    Host,
    Inputs,
    Metric,
    NotMeasured,
    Overlaps,
    Start,
)
from smimbench.interfaces.checks import checked_array, dtype_name, is_real, short_repr
from smimbench.numerics.random_numbers import STREAMS, words
from smimbench.numerics.statistics import quantile
from smimbench.registry.registry import find_metric, trajectory_metrics

DEVICE_BLOCK = 1 << 22
"""Numbers drawn at once on a device; part of what a seed means there."""
HOST_BLOCK = 1 << 18
"""Numbers drawn at once on the host. Doubled: the buffer leaves the cache."""
ALLOWED_DEVIATION, FALSE_ALARM_PROBABILITY = 0.1, 1e-6
"""Largest deviation of mean and variance of the inputs that gets no remark, and probability of a remark by chance. Doubled,
inputs that are twice as far off get none; twice as many correct ones get one."""
HASHED_SEEDS_FROM = 2**62
"""Root seeds from here on, those of tuning among them, are replaced by a hash of root and stream, as stored trials were drawn."""
MetricValues = dict[str, list[float]]
"""Values of metrics, by name: one for each component, or a single one."""


class Measurement(NamedTuple):
    """Measured metrics of a final estimate: values by metric, reasons for missing values, and remarks for the user."""

    values: MetricValues
    reasons: dict[str, str]
    remarks: list[str]


@dataclass(frozen=True, eq=False)
class Instance:
    """One draw of the problem, bit-identical for every algorithm and backend: the teacher (``signal``), and the training
    inputs (n, T, D) and labels (n, ...) at the sample ratio.

    Attributes
    ----------
    problem : Problem
    signal : ndarray
        The teacher, ``(P, D)`` or ``(P, D, D)``. Algorithms never see it.
    inputs : array (n, T, D)
        On the host; on a device if they were drawn there. ``DrawnInputs`` where they do not fit.
    labels : array (n, ...)
        Where the inputs were drawn.
    sample_ratio : float
        alpha really used, n / D or n / D^2.
    """

    problem: Any  # its module imports this one
    signal: Host
    inputs: Array
    labels: Array
    sample_ratio: float

    @property
    def dimension(self) -> int:
        """Dimension D of the signal."""
        return int(self.inputs.shape[-1])

    def data(
        self,
        backend: Backend,
        start: Start | None = None,
        *,
        stream: bool | None = None,
    ) -> Data:
        """Return what an algorithm may see, inputs and labels on a backend, with a starting point (``start``) if there is
        one; on the host, read-only views instead of copies. With ``stream`` the inputs stay on the host, and slices are
        copied to the device.

        Parameters
        ----------
        stream : bool or None
            Leave the inputs on the host and move slices of the samples when they are needed. None: where they would take
            more than a share of the free memory of the device (see ``smimbench.backend.streaming``).
        """
        if stream is None:
            number_bytes = 4 if "float32" in (backend.dtype, backend.storage) else 8
            stream = isinstance(self.inputs, np.ndarray) and not fits_device_memory(
                self.inputs.size * number_bytes, backend
            )
        inputs = self.inputs
        is_redrawn = isinstance(inputs, DrawnInputs)
        if not is_redrawn or namespace(inputs) is not backend.xp:
            if stream or is_redrawn:
                inputs = StreamedInputs(read_only(inputs), backend)
            elif backend.storage:
                compute_dtype = getattr(backend.xp, backend.dtype)
                inputs = NarrowInputs(
                    read_only(backend.asarray(inputs, dtype=backend.storage)),
                    compute_dtype,
                )
            else:
                inputs = read_only(backend.asarray(inputs))
        labels = read_only(backend.asarray(self.labels))
        dtype = (
            "float32" if namespace(inputs).finfo(inputs.dtype).bits == 32 else "float64"
        )

        def fresh(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
            """Draw n new samples of the same teacher with ``rng``, on the backend."""
            inputs, labels = self.fresh(rng, n, dtype)
            return backend.asarray(inputs), backend.asarray(labels)

        return Data(inputs, labels, self.sample_ratio, start, fresh)

    def fresh(self, rng: np.random.Generator, n: int, dtype: str) -> tuple[Host, Host]:
        """Draw n new samples, inputs (n, T, D) and labels, of the same teacher with ``rng``, on the host in this data type."""
        samples: tuple[Host, Host] = self.problem.draw(self.signal, n, rng, dtype)
        return samples

    @functools.cached_property
    def remarks(self) -> list[str]:
        """Warnings about training inputs whose mean is not 0 or whose variance is not 1."""
        block_size = max(1, HOST_BLOCK // math.prod(self.inputs.shape[1:]))
        remark = unscaled_tokens(to_host(self.inputs[:block_size]))
        return [f"inputs {self.problem.inputs.name!r}: {remark}"] if remark else []

    def checksum(self) -> tuple[float, ...]:
        """Compute checksums of teacher, labels and inputs, to detect whether an algorithm changed them."""
        arrays = [self.signal, self.labels]
        # Drawn inputs are drawn again whenever they are read.
        if not isinstance(self.inputs, DrawnInputs):
            arrays.append(self.inputs)
        return tuple(map(_checksum, arrays))

    def metrics(
        self, estimate: Array, failed_metrics: dict[str, str] | None = None
    ) -> MetricValues:
        """Measure the metrics of an estimate that are recorded at each iteration: ``mse``, ``overlap``, and those that
        plugins add. ``failed_metrics``, the reason by metric, lists metrics that failed before and are left out; new
        failures are added.

        Parameters
        ----------
        failed_metrics : dict or None
            Error messages of metrics that raised before, which are not measured; those that raise now are added.

        Raises
        ------
        ValueError
            If the estimate does not have the shape of the signal.
        """
        failed_metrics = {} if failed_metrics is None else failed_metrics
        metrics = omit(self._trajectory_metrics, *failed_metrics)
        metric_values, reasons = self._measure_metrics(
            metrics, estimate, self.claims(estimate)
        )
        failed_metrics |= reasons
        return metric_values

    @functools.cached_property
    def _trajectory_metrics(self) -> dict[str, Metric]:
        """The metrics that are measured at every recorded iteration, by name."""
        return trajectory_metrics(self.problem.model.name)

    def _measure_metrics(
        self, metrics: dict[str, Metric], estimate: Array, claims: Claims
    ) -> tuple[MetricValues, dict[str, str]]:
        """Measure metrics of an estimate, given what they compare (``claims``): their values, and the reason for each
        missing value.
        """
        metric_values: MetricValues = {}
        reasons: dict[str, str] = {}
        for metric_name, metric in metrics.items():
            try:
                values = metric.measure(self, estimate, claims)
                if type(values) is not list and not isinstance(values, Iterable):
                    raise TypeError(
                        f"measure must return a list of numbers, got {short_repr(values)}"
                    )
                numbers = [float(value) for value in values]
                # A single component may have no value (NaN); all of them may not.
                is_undefined = all(map(math.isnan, numbers))
                if is_undefined and np.isfinite(to_host(estimate)).all():
                    raise ValueError("measure returned NaN for a finite estimate")
                metric_values[metric_name] = numbers
            except NotMeasured as reason:
                reasons[metric_name] = printable(reason)
            except (
                Exception,
                SystemExit,
            ) as error:  # whatever a plugin raises: the other metrics stay
                reasons[metric_name] = error_line(error)
        return metric_values, reasons

    def overlaps(self, estimate: Array) -> Overlaps:
        """Compute the overlap matrices (P, P) of teacher with teacher, estimate with teacher, and estimate with itself,
        before the estimate is aligned.
        """
        teacher = _teacher_on_device_of(self, estimate)
        inner_product = self.problem.model.inner
        signal_pairs = ((teacher, teacher), (estimate, teacher), (estimate, estimate))
        return Overlaps(
            *(
                to_host_floats(inner_product(*signal_pair))
                for signal_pair in signal_pairs
            )
        )

    def measure(
        self, names: Sequence[str], estimate: Array, V: Array | None = None
    ) -> Measurement:
        """Measure the metrics ``names`` of a final estimate on the host; ``V`` is the error (P, P) that the algorithm claims.

        Parameters
        ----------
        names : sequence of str
            As in ``run.metrics`` of a suite, or with a version as in the key of a cell: ``"name@2"``.
        V : array (P, P) or None
            Error that the algorithm claims for the estimate.
        """
        if not names:
            return Measurement({}, {}, [])
        estimate = to_host_floats(estimate)
        claims = self.claims(estimate, None if V is None else to_host_floats(V))
        model = self.problem.model.name
        metrics = {
            metric_name: find_metric(metric_name, model)
            for metric_name in (
                name_and_version.partition("@")[0] for name_and_version in names
            )
        }
        metric_values, reasons = self._measure_metrics(metrics, estimate, claims)
        return Measurement(metric_values, reasons, claims.remarks)

    def claims(self, estimate: Array, V: Array | None = None) -> Claims:
        """Return what metrics compare: the teacher, the estimate aligned with it by the problem's symmetry, and the error
        ``V`` (P, P) that the algorithm claims, transformed in the same way.

        Raises
        ------
        ValueError
            If the estimate does not have the shape of the signal, or is not made of real numbers.
        """
        if tuple(estimate.shape) != self.signal.shape:
            raise ValueError(
                f"an estimate must have the signal's shape {self.signal.shape}, got {tuple(estimate.shape)}"
            )
        if not is_real(estimate):
            raise ValueError(
                f"an estimate must be made of real numbers, got {dtype_name(estimate)}"
            )
        model = self.problem.model
        teacher = _teacher_on_device_of(self, estimate)
        aligned_estimate = model.align(teacher, estimate, self.problem.channel.symmetry)
        if V is None:
            return Claims(None, teacher, aligned_estimate)
        # The aligned components are a fixed combination of the estimate's: aligned = O estimate, with O from overlaps.
        alignment_matrix = model.inner(aligned_estimate, estimate) @ np.linalg.pinv(
            model.inner(estimate, estimate)
        )
        return Claims(
            V, teacher, aligned_estimate, alignment_matrix @ V @ alignment_matrix.T
        )


def joint_metrics(
    instances: Sequence[Instance],
) -> Callable[[Sequence[Array]], list[MetricValues]]:
    """Function that measures, of an estimate of each of several instances of one problem on the host, what ``Instance.metrics``
    does, in the same bits. The metrics have to ship: those take teachers and estimates of several instances, on one more axis
    in front, and list the values of each.
    """
    first_instance = instances[0]
    problem = first_instance.problem
    metrics = first_instance._trajectory_metrics
    teachers = np.stack([instance.signal for instance in instances])

    def measure(estimates: Sequence[Array]) -> list[MetricValues]:
        """Measure the metrics of an estimate of each instance."""
        aligned_estimates = [
            problem.model.align(teacher, estimate, problem.channel.symmetry)
            for teacher, estimate in zip(teachers, estimates)
        ]
        claims = Claims(None, teachers, np.stack(aligned_estimates))
        values_of_metrics = (
            metric.measure(first_instance, claims.aligned, claims)
            for metric in metrics.values()
        )
        return [dict(zip(metrics, values)) for values in zip(*values_of_metrics)]

    return measure


def unscaled_tokens(tokens: Host) -> str:
    """Describe tokens (n, T, D) of independent samples whose mean is not 0 or whose variance is not 1; empty if they are, within
    ``ALLOWED_DEVIATION`` and chance.
    """
    from statistics import NormalDist

    sample_rows = np.asarray(tokens, dtype=float).reshape(len(tokens), -1)
    if len(sample_rows) < 2:
        return ""
    probability = 1 - FALSE_ALARM_PROBABILITY
    for token_powers, expected_mean in ((sample_rows, 0.0), (sample_rows**2, 1.0)):
        # Samples are independent; tokens and features need not be.
        sample_means = token_powers.mean(axis=1)
        error = sample_means.std(ddof=1) / math.sqrt(len(sample_rows))
        excess = abs(sample_means.mean() - expected_mean) - ALLOWED_DEVIATION
        # Student's quantile is larger than the normal one, and SciPy takes a tenth of a second to import.
        if (
            excess > NormalDist().inv_cdf(probability) * error
            and excess > quantile(probability, len(sample_rows) - 1) * error
        ):
            return f"mean {sample_rows.mean():#.2g}, variance {sample_rows.var():#.2g}; theory expects 0 and 1"
    return ""


def fill_with_tokens(
    inputs_array: Host, inputs: Inputs, rng: np.random.Generator
) -> None:
    """Draw tokens of the distribution ``inputs`` with ``rng`` into an array (n, T, D), in float64 before rounding to its
    dtype.
    """
    if inputs.transform is None:
        inputs_array[...] = checked_array(
            f"inputs {inputs.name!r}: draw",
            inputs.draw(rng, *inputs_array.shape),
            inputs_array.shape,
        )
        return
    block_size = _samples_of_block(inputs_array.shape)
    for first_sample in range(0, len(inputs_array), block_size):
        token_block = inputs_array[first_sample : first_sample + block_size]
        token_block[...] = _draw_tokens(inputs, rng, token_block.shape)


def redrawn_tokens(
    shape: tuple[int, int, int],
    inputs: Inputs,
    rng: np.random.Generator,
    input_dtype: str,
    slice_dtype: str,
) -> DrawnInputs:
    """Draw tokens of the distribution ``inputs`` with ``rng`` as ``fill_with_tokens`` does, and again whenever they are read,
    from the states of the generator before every block: rounded to ``input_dtype``, in slices of ``slice_dtype``.
    """
    sample_count, *sample_shape = shape
    block_size, states = _samples_of_block(shape), []

    def draw_block(generator: np.random.Generator, block_index: int) -> Host:
        """Draw the samples of one block."""
        block_length = min(block_size, sample_count - block_index * block_size)
        return _draw_tokens(inputs, generator, (block_length, *sample_shape))

    for block_index in range(-(-sample_count // block_size)):
        states.append(rng.bit_generator.state)
        draw_block(rng, block_index)

    def redraw_block(block_index: int) -> Host:
        """Draw the samples of one block again, in their data type."""
        generator = np.random.Generator(type(rng.bit_generator)())
        generator.bit_generator.state = states[block_index]
        return draw_block(generator, block_index).astype(input_dtype, copy=False)

    like = np.empty((0, *sample_shape), dtype=slice_dtype)
    return DrawnInputs(shape, block_size, redraw_block, like)


def _samples_of_block(shape: tuple[int, ...]) -> int:
    """Number of samples that are drawn at once of inputs of this shape (n, T, D)."""
    return max(1, HOST_BLOCK // max(1, math.prod(shape[1:])))


def _draw_tokens(
    inputs: Inputs, rng: np.random.Generator, shape: tuple[int, ...]
) -> Host:
    """Draw one block of tokens (n, T, D), of the distribution ``inputs``, with ``rng``."""
    assert inputs.transform is not None
    tokens = inputs.transform(rng.standard_normal(shape))
    return checked_array(f"inputs {inputs.name!r}: transform", tokens, shape)


def draw_on_device(
    device: Backend,
    problem: Any,
    signal: Host,
    n: int,
    block_seed: Callable[[int], np.random.SeedSequence],
    rng: np.random.Generator,
    dtype: str,
) -> tuple[Array, Array]:
    """Draw inputs x (n, T, D) and labels y of n samples on a device for a teacher ``signal``, in blocks of samples, each
    from the seed ``block_seed(block_index)``; ``z`` are the latents, ``rng`` draws the noise of labels, ``dtype`` is the
    run's data type. Inputs that do not fit its memory are redrawn whenever they are read.
    """
    xp = device.xp
    model = problem.model
    shape = (n, model.tokens, signal.shape[-1])
    input_dtype, label_dtype = (
        getattr(xp, type_name) for type_name in input_and_label_types(dtype)
    )
    teacher = device.asarray(signal, dtype="float64")
    # One seed per block, of a size that depends on the shape alone: how the rest is chunked changes no bit.
    block_size = max(1, DEVICE_BLOCK // math.prod(shape[1:]))
    draw_tokens = _block_drawer(device, problem.inputs, shape, block_size, block_seed)

    def draw_block(block_index: int) -> Array:
        """Draw the inputs of the block of this index in the data type of inputs."""
        return xp.astype(draw_tokens(block_index), input_dtype, copy=False)

    fits_device = fits_device_memory(
        math.prod(shape) * (xp.finfo(input_dtype).bits // 8), device
    )
    stored_shape = shape if fits_device else (0, *shape[1:])
    inputs = xp.empty(stored_shape, dtype=input_dtype, device=device.device)
    if not fits_device:
        inputs = DrawnInputs(
            shape, block_size, draw_block, xp.astype(inputs, label_dtype)
        )
    labels = []
    for block_index, first_sample in enumerate(range(0, n, block_size)):
        x = draw_block(block_index)
        if fits_device:
            inputs[first_sample : first_sample + x.shape[0], ...] = x
        z = model.forward(xp.astype(x, xp.float64, copy=False), teacher)
        y = problem.channel.forward(z, rng=rng)
        if xp.isdtype(y.dtype, "real floating"):
            y = xp.astype(y, label_dtype, copy=False)
        labels.append(y)
    return inputs, labels[0] if len(labels) == 1 else xp.concat(labels, axis=0)


def _block_drawer(
    device: Backend,
    inputs: Inputs,
    shape: tuple[int, int, int],
    block_size: int,
    block_seed: Callable[[int], np.random.SeedSequence],
) -> Callable[[int], Array]:
    """Return a function that draws one block of ``block_size`` samples of the inputs of this ``shape`` (n, T, D), given the
    block's index, in float64 on a device; ``block_seed`` gives the seed of a block.
    """
    sample_count, *sample_shape = shape
    transform = inputs.transform
    if transform is None:  # inputs without a transform are drawn all at once
        rng = np.random.Generator(np.random.PCG64DXSM(block_seed(0)))
        tokens = checked_array(
            f"inputs {inputs.name!r}: draw", inputs.draw(rng, *shape), shape
        )
        return lambda block_index: device.asarray(
            tokens[block_index * block_size : (block_index + 1) * block_size],
            dtype="float64",
        )

    def draw_block(block_index: int) -> Array:
        """Draw the tokens of the block of this index from normal numbers of its own seed."""
        draw_normal = device.standard_normal(block_seed(block_index))
        return transform(
            draw_normal(
                (
                    min(block_size, sample_count - block_index * block_size),
                    *sample_shape,
                )
            )
        )

    return draw_block


def input_and_label_types(dtype: str) -> tuple[str, str]:
    """Return the names of the data types of inputs and of real-valued labels, given that of the run (``dtype``): float32 and
    float64 for ``"mixed"``, otherwise twice the same.
    """
    return ("float32", "float64") if dtype == "mixed" else (dtype, dtype)


def read_only(array: Array) -> Array:
    """Return a view of a NumPy array that can never be written to; arrays of other libraries are returned unchanged."""
    if not isinstance(array, np.ndarray) or not array.size:
        return array
    return np.asarray(array.data.toreadonly())


def _checksum(array: Array) -> float:
    """Compute a checksum of an array: CRC-32 on the host, a few sums over the elements on a device."""
    if isinstance(array, np.ndarray):
        return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    xp = namespace(array)
    flat_array = xp.reshape(xp.astype(array, xp.float64), (-1,))
    half_length = flat_array.shape[0] // 2
    return float(
        xp.sum(flat_array)
        + 2 * xp.sum(flat_array[:half_length])
        + 3 * xp.sum(flat_array * flat_array)
    )


def _teacher_on_device_of(instance: Instance, estimate: Array) -> Array:
    """Return the teacher signal of an instance with the dtype and device of an estimate, cached because metrics are measured
    often.
    """
    if isinstance(estimate, np.ndarray):
        return instance.signal.astype(estimate.dtype, copy=False)
    dtype_and_device = matching(estimate)
    cache: dict[str, Array] = instance.__dict__.setdefault("_teacher", {})
    cache_key = f"{namespace(estimate).__name__} {dtype_and_device}"
    if cache_key not in cache:
        cache[cache_key] = namespace(estimate).asarray(
            instance.signal, **dtype_and_device
        )
    return cache[cache_key]


def seed_sequence(
    seed: int,
    problem: str,
    alpha: float,
    dimension: int,
    replicate: int,
    stream: str,
    *child_names: str,
) -> np.random.SeedSequence:
    """Derive the random seed of one ``stream`` (teacher, data, ...) of an instance, given by problem, alpha, dimension and
    replicate, from the root ``seed``; ``child_names`` name a part of the stream.

    ``child_names`` lead to a child of the stream.

    Parameters
    ----------
    problem : str
        ``Problem.seed_name``.
    stream : str
        One of ``STREAMS``.
    """
    spawn_key = (
        *words(problem),
        *words(repr(float(alpha))),
        dimension,
        replicate,
        STREAMS.index(stream),
    )
    for child_name in child_names:
        spawn_key += words(child_name)
    if seed >= HASHED_SEEDS_FROM:
        seed = int.from_bytes(
            hashlib.sha256(f"{seed} {spawn_key}".encode()).digest(), "big"
        )
    return np.random.SeedSequence(seed, spawn_key=spawn_key)
