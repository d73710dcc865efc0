"""Times of the parts of an iteration on a GPU, each alone: JSON on standard output, lines as they come on standard error.

PROBE_SCALE below 1 makes all sizes smaller, for a rehearsal.
"""

import json
import os
import sys
import time
from unittest import mock

import cupy as cp
import numpy as np
from smimbench_attention.models import attention_indexed as extensive
from smimbench_attention.models import sequence_multi_index
from smimbench_attention.priors.wishart import eigenvalue_map

from smimbench.backend import chunk_bytes, device, get_backend
from smimbench.problem.problem import Problem
from smimbench.registry.registry import get_registry

SCALE = float(os.environ.get("PROBE_SCALE", "1"))
FOUND: dict[str, float] = {}


def timed(name, work, repeats=5, per=lambda seconds: seconds):
    """Shortest of some repetitions, from idle device to idle device."""
    stream = cp.cuda.get_current_stream()
    seconds = []
    for _ in range(repeats + 1):  # the first one pays for plans and kernels
        stream.synchronize()
        begin = time.perf_counter()
        work()
        stream.synchronize()
        seconds.append(time.perf_counter() - begin)
    FOUND[name] = per(min(seconds[1:]))
    print(f"# {name}: {FOUND[name]:.4g}", file=sys.stderr, flush=True)


def normal(*shape, dtype="float64"):
    """Normal numbers on the device."""
    return (
        get_backend("cupy")
        .standard_normal(np.random.SeedSequence(0))(shape)
        .astype(dtype)
    )


def parts():
    """Linear algebra, reading, drawing, transfers."""
    d, size = int(2000 * SCALE), int(8192 * SCALE)
    for dtype in ("float64", "float32"):
        a = normal(d, d, dtype=dtype)
        a = a + a.T
        timed(f"eigh {d} {dtype} s", lambda a=a: cp.linalg.eigh(a), 3)
        b = normal(size, size, dtype=dtype)
        timed(
            f"product {size} {dtype} TFLOP/s",
            lambda b=b: b @ b,
            3,
            lambda s: 2e-12 * size**3 / s,
        )
    x = cp.ones(int(2**29 * SCALE))
    timed("reading GB/s", lambda: cp.sum(x), per=lambda s: 1e-9 * x.nbytes / s)
    count = int(2**26 * SCALE)
    timed("drawing 1e9/s", lambda: normal(count), per=lambda s: 1e-9 * count / s)
    host = np.zeros((64, int(2**20 * SCALE)))
    read = get_backend("cupy").reader(host)
    slices = [slice(k, k + 8) for k in range(0, 64, 8)]
    timed(
        "moving from the host GB/s",
        lambda: [read(s) for s in slices],
        per=lambda s: 1e-9 * host.nbytes / s,
    )
    values = cp.linspace(-1.0, 4.0, d)
    timed(
        "Wishart map by the host s",
        lambda: cp.asarray(eigenvalue_map(values.get(), 0.05, 0.5)),
    )


def chunk():
    """One chunk of the attention-indexed model, and its bands."""
    d, model = int(2000 * SCALE), extensive.AttentionIndexed(2)
    n = max(1, int(SCALE * (chunk_bytes(cp.zeros(1)) or 0)) // (16 * d))
    x, signal, g = normal(n, 2, d), normal(1, d, d), normal(n, 1, 3)
    timed("forward of a chunk s", lambda: model.forward(x, signal))
    timed("  its product alone s", lambda: x.reshape(-1, d) @ signal[0])
    timed("adjoint of a chunk, one band s", lambda: model.adjoint(x, g))
    with mock.patch.object(
        extensive.AttentionIndexed,
        "_bands",
        lambda self, inputs: extensive._bands(inputs.shape[-1]),
    ):
        timed("adjoint of a chunk, bands as on the host s", lambda: model.adjoint(x, g))
    timed("  its product alone s", lambda: x.reshape(-1, d).T @ x.reshape(-1, d))
    keep, extensive._FEW_TOKENS = extensive._FEW_TOKENS, 0
    try:
        timed("forward, batches of small products s", lambda: model.forward(x, signal))
        timed("adjoint, batches of small products s", lambda: model.adjoint(x, g))
    finally:
        extensive._FEW_TOKENS = keep


def narrow():
    """Both products of the sequence model, with inputs in float32 and in float64."""
    size = int(30_000 * SCALE)
    flat, w = normal(int(20_000 * SCALE), size, dtype="float32"), normal(2, size)
    g = normal(2, len(flat))
    timed("project float32 s", lambda: sequence_multi_index.project_mixed(flat, w))
    timed("push float32 s", lambda: sequence_multi_index.push_mixed(g, flat))
    wide = flat.astype("float64")
    timed("project float64 s", lambda: wide @ w.T)
    timed("push float64 s", lambda: g @ wide)


def iterations(parts, alpha, dimension, dtype="float64", bits=30):
    """A whole iteration of GAMP with chunks of 2^bits bytes at most."""
    backend, problem = get_backend("cupy", dtype), Problem(*parts)
    data = problem.instance(alpha, dimension, dtype=dtype, device=backend).data(backend)
    gamp = get_registry().get("algorithm", "gamp").item()
    states = [gamp.init(problem, data, np.random.default_rng(0))]
    keep, device.LARGEST_CHUNK = device.LARGEST_CHUNK, 1 << bits
    try:
        name = f"iteration {problem.label} alpha {alpha} D {dimension} {dtype} chunks of 2^{bits} s"
        timed(name, lambda: states.append(gamp.step(problem, data, states.pop())[0]), 4)
    finally:
        device.LARGEST_CHUNK = keep
        backend.release()


def small(parts, alpha, dimension):
    """An iteration of one small instance."""
    backend, problem = get_backend("cupy"), Problem(*parts)
    gamp = get_registry().get("algorithm", "gamp").item()
    data = problem.instance(alpha, dimension).data(backend)
    states = [gamp.init(problem, data, np.random.default_rng(0))]
    name = f"iteration {problem.label} D {dimension} s"
    timed(name, lambda: states.append(gamp.step(problem, data, states.pop())[0]), 20)


def main():
    """All of it; what does not fit the device is said, and the rest goes on."""
    sequence, attention = (
        {"name": "sequence-multi-index", "tokens": 2},
        {"name": "attention-indexed", "tokens": 2},
    )
    two = (sequence, {"name": "softmax", "layers": 2}, "gaussian")
    wishart = {"name": "wishart", "rho": 0.5}
    d, large = int(2000 * SCALE), int(30_000 * SCALE)
    for work in (
        parts,
        chunk,
        narrow,
        lambda: small((attention, "softmax", wishart), 0.2, max(8, int(100 * SCALE))),
        lambda: small((attention, "softmax", wishart), 0.2, max(8, int(200 * SCALE))),
        lambda: small(
            (sequence, "softmax", "gaussian"), 1.2, max(8, int(1000 * SCALE))
        ),
        lambda: iterations(two, 1.2, large),
        lambda: iterations(two, 1.2, large, "mixed"),
        lambda: iterations((attention, "softmax", wishart), 0.1, d),
        lambda: iterations((attention, "softmax", wishart), 0.1, d, bits=28),
        lambda: iterations((attention, "hardmax", wishart), 0.1, d),
    ):
        try:
            work()
        except MemoryError as error:
            print(f"# left out: {error}", file=sys.stderr, flush=True)
        cp.get_default_memory_pool().free_all_blocks()
    print(json.dumps(FOUND, indent=1))


if __name__ == "__main__":
    main()
