"""Times of an iteration of GAMP on a GPU, against what its products and its memory allow, and against this processor.

Prints a table in Markdown, row by row. Shares are those of the rate of a large matrix product and of the rate of reading a large
array, both measured before, that the operations and bytes of an iteration need at least; ``eigh`` is the time of one
eigendecomposition, in iterations. The processor runs the same iterations with all its cores where they are small enough.
There the two mean squared errors have to agree, or the exit code is 1.
"""

import argparse
import itertools
import statistics
import sys
import time

import numpy as np

from smimbench.backend import BackendError, get_backend
from smimbench.backend.machine import blas_threads, machine_info, usable_cores, versions
from smimbench.problem import Problem
from smimbench.registry.registry import get_registry

SIZES = (100, 200, 500, 1000, 2000, 4000)
STEPS = 4
LARGEST_ON_HOST = 5e11, 4e9
"""Operations and bytes of an iteration up to which the host runs it, too: ten seconds of one core. Doubled: twice the time."""
ALLOWED_DIFFERENCES = {"float64": 1e-8, "mixed": 1e-6, "float32": 1e-2}
"""Largest relative difference of two mean squared errors."""
COLUMNS = ["problem", "D", "dtype", "n", "ms", "products", "reading", "eigh", "memory"]
COLUMNS += ["host ms", "ratio", "difference"]


def problems():
    """Names of problems, problems, their sample ratios, and their dimensions over the size of a row."""
    for channel, tokens in (("softmax", 2), ("hardmax", 3)):
        model = {"name": "attention-indexed", "tokens": tokens}
        problem = Problem(model, channel, {"name": "wishart", "rho": 0.5})
        yield f"{channel}, {tokens} tokens", problem, 0.05, 1
    model = {"name": "sequence-multi-index", "tokens": 2}
    problem = Problem(model, {"name": "softmax", "layers": 2}, "gaussian")
    yield "two layers", problem, 1.2, 10


def seconds_of(backend, operation, repeats):
    """Median time of an operation after a first one, which pays for kernels and plans."""
    operation()
    times = []
    for _ in range(repeats):
        stop = backend.stopwatch()
        operation()
        times.append(stop().seconds)
    return statistics.median(times)


def rates(backend, largest_size):
    """Operations per second of a large product in the backend's precision, and bytes per second of reading."""
    xp, size = backend.xp, min(8192, 4 * largest_size)
    matrix = xp.ones((size, size), dtype=getattr(xp, backend.dtype))
    seconds = seconds_of(backend, lambda: matrix @ matrix, 5)
    vector = xp.ones((32 * size * size // 4,))
    reading = seconds_of(backend, lambda: xp.sum(vector), 5)
    return 2 * size**3 / seconds, 8 * vector.shape[0] / reading


def eigendecomposition(backend, dimension):
    """Seconds of the eigendecomposition of a symmetric matrix."""
    draws = np.random.default_rng(0).standard_normal((dimension, dimension))
    matrix = backend.asarray(draws + draws.T)
    return seconds_of(backend, lambda: backend.xp.linalg.eigh(matrix), 1)


def iterations(problem, instance, backend):
    """Seconds and cost of an iteration, and the mean squared error after all of them."""
    data = instance.data(backend)
    gamp = get_registry().get("algorithm", "gamp").item()
    states = [gamp.init(problem, data, np.random.default_rng(0))]

    def step():
        """Make one iteration."""
        states.append(gamp.step(problem, data, states.pop())[0])

    seconds = seconds_of(backend, step, STEPS - 1)
    cost = gamp.plan(data).cost(problem, data)
    return seconds, cost, instance.metrics(gamp.estimate(states[0]))["mse"]


def row(problem, alpha, dimension, dtype, device, peaks):
    """Entries of one row, and whether device and host agree where both ran."""
    samples = problem.model.sample_count(alpha, dimension)
    cost = problem.model.cost(samples, dimension, problem.components)
    on_host = cost.flops <= LARGEST_ON_HOST[0] and cost.bytes <= LARGEST_ON_HOST[1]
    instance = problem.instance(
        alpha, dimension, dtype=dtype, device=None if on_host else device
    )
    device.release()
    seconds, cost, errors = iterations(problem, instance, device)
    product_rate, read_rate = peaks
    memory, eigh = device.peak_memory(), ""
    if problem.model.rank == "extensive":
        eigh = f"{eigendecomposition(device, dimension) / seconds:.0%}"
    entries = [
        str(samples),
        f"{1e3 * seconds:.1f}",
        f"{cost.flops / product_rate / seconds:.0%}",
        f"{cost.bytes / read_rate / seconds:.0%}",
        eigh,
        f"{memory / 2**30:.1f} GiB" if memory else "",
    ]
    if not on_host:
        return [*entries, "", "", ""], True
    host_seconds, _, host_errors = iterations(
        problem, instance, get_backend("numpy", dtype)
    )
    difference = max(
        abs(error / host_error - 1)
        for error, host_error in zip(errors, host_errors, strict=True)
    )
    agree = difference <= ALLOWED_DIFFERENCES[dtype]
    entries += [f"{1e3 * host_seconds:.1f}", f"{host_seconds / seconds:.1f}"]
    return [*entries, f"{difference:.0e}" + ("" if agree else " FAILED")], agree


def main():
    """Print the table; return the number of rows where device and host differ, or that could not be computed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="cupy")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--seconds", type=float, default=460.0)
    options = parser.parse_args()
    begin, failures, last_seconds = time.monotonic(), 0, {}
    try:
        devices = {d: get_backend(options.backend, d) for d in ALLOWED_DIFFERENCES}
    except BackendError as error:
        sys.exit(str(error))
    print(f"- device: {devices['float64'].processor}")
    print(f"- host: {machine_info()['processor']}, {usable_cores()} threads")
    print(f"- versions: {versions()}")
    peaks = {d: rates(devices[d], max(options.sizes)) for d in ALLOWED_DIFFERENCES}
    for dtype, (product_rate, read_rate) in peaks.items():
        print(
            f"- {dtype}: {product_rate / 1e12:.2f} TFLOP/s, {read_rate / 1e9:.0f} GB/s"
        )
    print("\n| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    cases = itertools.product(sorted(options.sizes), problems(), ALLOWED_DIFFERENCES)
    for size, (name, problem, alpha, factor), dtype in cases:
        start, case = time.monotonic(), [name, str(factor * size), dtype]
        # the work of a row grows by the cube of its size at most
        last_size, seconds = last_seconds.get((name, dtype), (size, 0.0))
        if start - begin + seconds * (size / last_size) ** 3 > options.seconds:
            print("| " + " | ".join([*case, "no time left"]) + " |")
            continue
        try:
            with blas_threads(usable_cores()):
                entries, agree = row(
                    problem, alpha, factor * size, dtype, devices[dtype], peaks[dtype]
                )
        except Exception as error:  # the other rows tell something, too
            entries, agree = [f"FAILED: {type(error).__name__}: {error}"], False
        failures += not agree
        print("| " + " | ".join([*case, *entries]) + " |", flush=True)
        last_seconds[name, dtype] = size, time.monotonic() - start
    return failures


if __name__ == "__main__":
    sys.exit(min(main(), 1))
