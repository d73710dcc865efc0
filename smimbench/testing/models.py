"""Checks of models: shapes, transposes, chunks, alignment, distribution of the latents, memory."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from smimbench.interfaces import Array, Model, is_symmetric
from smimbench.testing.context import CheckContext, shipped
from smimbench.testing.core import (
    Call,
    CheckFailed,
    Draw,
    Refused,
    expect_array,
    expect_mean,
    published,
)

model_check = partial(published, ("model",), cases=lambda context: [(context.item,)])


def signal(
    model: Model, components: int, dimension: int, rng: np.random.Generator
) -> Array:
    """A signal of the right shape: a draw of a prior of this model, or the model's noise."""
    draws = [*(prior.sample for prior in shipped("prior", model)), model.draw_noise]
    return np.asarray(draws[0](rng, components, dimension), dtype=float)


def drawn(
    context: CheckContext, n: int, P: int, D: int, seed: int
) -> tuple[Array, Array, Array]:
    """Random inputs (n, T, D), a signal, and numbers (n, P, C) in place of latents."""
    model = context.item
    X = context.rng(seed).standard_normal((n, model.tokens, D))
    S = signal(model, P, D, context.rng(seed + 1))
    return X, S, context.rng(seed + 2).standard_normal((n, P, model.sites))


def calls(context: CheckContext) -> Iterator[Call]:
    """Methods of a model that take arrays."""
    model = context.item
    X, S, g = drawn(context, 8, 2, 9, 71)
    yield Call("forward", model.forward, (X, S))
    yield Call("adjoint", model.adjoint, (X, g))
    for name in ("inner", "squared_error", "overlap"):
        yield Call(name, getattr(model, name), (S, 0.5 * S))
    yield Call("align", lambda a, b: model.align(a, b, "signs"), (S, -S))


def draws(context: CheckContext) -> Iterator[Draw]:
    """Methods of a model that draw random numbers; single precision must get the same numbers."""
    model = context.item
    yield Draw("draw_noise", lambda rng: model.draw_noise(rng, 1, 5), varies=True)


def refused(context: CheckContext) -> Iterator[Refused]:
    """Calls that must be rejected with an error: wrong numbers of dimensions, tokens and axes."""
    X, S, _ = drawn(context, 8, 1, 9, 111)
    for axis, inputs in (
        ("dimensions", X[:, :, :5]),
        ("tokens", np.concatenate([X, X], axis=1)),
        ("axes", X[0]),
    ):
        yield (
            f"forward takes inputs with the wrong number of {axis}",
            partial(context.item.forward, inputs, S),
        )


@model_check(
    "A method returns arrays of another shape than the contract says.", required=True
)
def shapes(context: CheckContext, model: Model) -> None:
    """Check shapes: latents (n, P, C), signals, overlaps (P, P), errors (P,)."""
    for P, n, D in ((1, 5, 7), (2, 1, 6)):
        X, S, g = drawn(context, n, P, D, 1)
        of_signal = tuple(model.signal_shape(P, D))
        for name, array, shape in (
            ("a signal", S, of_signal),
            ("forward", model.forward(X, S), (n, P, model.sites)),
            ("adjoint", model.adjoint(X, g), of_signal),
            (
                "draw_noise",
                np.asarray(model.draw_noise(context.rng(4), P, D)),
                of_signal,
            ),
            ("inner", model.inner(S, S), (P, P)),
            ("squared_error", model.squared_error(S, 0.5 * S), (P,)),
            ("overlap", model.overlap(S, 0.5 * S), (P,)),
        ):
            expect_array(name, array, shape, "float64", X)
        if float(np.abs(model.squared_error(S, S)).max()) > 1e-12:
            raise CheckFailed("squared_error of the signal itself is not 0")


@model_check(
    "sample_count and sample_ratio do not belong together: curves are drawn at another alpha than was used."
)
def sample_ratio(context: CheckContext, model: Model) -> None:
    """Check that the number of samples is the nearest integer, at least one."""
    del context
    for D in (10, 37):
        unit = model.sample_ratio(1, D)
        for alpha in (1e-9, 0.3, 1.7, 12.34):
            n = model.sample_count(alpha, D)
            ratio = model.sample_ratio(n, D)
            is_nearest = unit > 0 and abs(ratio - max(alpha, unit)) <= 0.5001 * unit
            if not (isinstance(n, int) and n >= 1 and is_nearest):
                raise CheckFailed(
                    f"sample_count({alpha}, {D}) is {n}, whose ratio is {ratio}"
                )


@model_check(
    "adjoint is not the transpose of forward: gradients and message passing move in the wrong direction."
)
def transpose(context: CheckContext, model: Model) -> None:
    """Check that ``<g, forward(S)> = <adjoint(g), S> / adjoint_scale`` and that forward is linear."""
    for P, n, D in ((1, 9, 8), (2, 6, 11)):
        X, _, g = drawn(context, n, P, D, 11)
        S, Z = (np.asarray(model.draw_noise(context.rng(14, k), P, D)) for k in (0, 1))
        latents, latents_of_Z = model.forward(X, S), model.forward(X, Z)
        product = np.sum(g * latents)
        transposed = np.sum(model.adjoint(X, g) * S) / model.adjoint_scale(D)
        if not math.isclose(product, transposed, rel_tol=1e-9, abs_tol=1e-9):
            raise CheckFailed(
                f"<g, forward(S)> is {product:.6g}, <adjoint(g), S> / adjoint_scale is {transposed:.6g}"
            )
        combined = model.forward(X, S - 2 * Z)
        if not np.allclose(combined, latents - 2 * latents_of_Z, rtol=1e-9, atol=1e-9):
            raise CheckFailed("forward is not linear in the signal")


@model_check(
    "What is computed depends on how the samples are cut into chunks, or chunks leave samples out."
)
def chunks(context: CheckContext, model: Model) -> None:
    """Check that chunks cover every sample once, and that latents and adjoint do not depend on them."""
    for n, D, P in ((0, 5, 1), (1, 5, 1), (10_000, 300, 2), (12_345, 7, 1)):
        rows = [row for chunk in model.chunks(n, D, P) for row in range(n)[chunk]]
        if rows != list(range(n)):
            raise CheckFailed(
                f"chunks({n}, {D}, {P}) does not cover every sample once and in order"
            )
    X, S, g = drawn(context, 30, 2, 9, 21)
    cuts = (slice(0, 11), slice(11, 12), slice(12, 30))
    latents = np.concatenate([model.forward(X[cut], S) for cut in cuts])
    if not np.allclose(latents, model.forward(X, S), atol=1e-11):
        raise CheckFailed("forward of a chunk differs from the chunk of forward")
    total = sum(model.adjoint(X[cut], g[cut]) for cut in cuts)
    if not np.allclose(total, model.adjoint(X, g), atol=1e-11):
        raise CheckFailed("adjoint is not the sum over chunks")


@model_check(
    "Latents do not have the overlap as their covariance, the same at all sites: every channel and all of "
    "theory is built on that."
)
def latents(context: CheckContext, model: Model) -> None:
    """Check ``E z_pc = 0`` and ``E z_pc z_qc' = inner(S_p, S_q) delta_cc'`` over inputs, for a fixed signal."""
    X, S, _ = drawn(context, 20_000, 2, 40, 31)
    flat = np.asarray(model.forward(X, S)).reshape(len(X), -1)
    overlap = np.kron(np.asarray(model.inner(S, S)), np.eye(model.sites))
    scale = np.sqrt(np.diagonal(overlap))
    expect_mean("mean of the latents in units of their width", flat / scale)
    unit = scale[:, None] * scale
    # Of a matrix without symmetry the latents ab and ba have the covariance tr S^2 / D, which vanishes as 1/D.
    allowance = 0.0 if is_symmetric(model) else 8 / S.shape[-1]
    covariance = flat[:, :, None] * flat[:, None, :] / unit
    expect_mean("covariance of the latents", covariance, overlap / unit, allowance)


@model_check(
    "draw_noise has not unit size: denoisers are checked and started at another noise than they are told."
)
def noise(context: CheckContext, model: Model) -> None:
    """Check ``E inner(Z, Z) = I``, up to what vanishes with D."""
    D = 60
    rows = [model.draw_noise(context.rng(41, k), 2, D) for k in range(40)]
    expect_mean(
        "inner(Z, Z)", [model.inner(z, z) for z in rows], np.eye(2), allowance=2 / D
    )


@model_check(
    "A symmetry is not removed, or something else is: errors are wrong for every algorithm."
)
def align(context: CheckContext, model: Model) -> None:
    """Check that ``align`` undoes sign changes, permutations and rotations, and does nothing without symmetry."""
    S = signal(model, 3, 30, context.rng(51))
    signs, order = np.diag([1.0, -1.0, -1.0]), np.eye(3)[[2, 0, 1]]
    moves = {
        "none": np.eye(3),
        "signs": signs,
        "common-sign": -np.eye(3),
        "permutations-common-sign": -order,
        "permutations": order,
        "signed-permutations": order @ signs,
        "rotations": np.linalg.qr(context.rng(52).standard_normal((3, 3)))[0],
    }
    for name, move in moves.items():
        aligned = model.align(S, np.tensordot(move, S, axes=1), name)
        if not np.allclose(aligned, S, rtol=1e-8, atol=1e-8):
            raise CheckFailed(f"align does not undo what symmetry {name!r} allows")
    if not np.array_equal(model.align(S, -S, "none"), -S):
        raise CheckFailed("align changes an estimate although there is no symmetry")
    try:
        model.align(S, S, "no-such-symmetry")
    except ValueError:
        return
    raise CheckFailed("align accepts an unknown symmetry; raise ValueError instead")


@model_check(
    "It makes arrays as large as x x^T of every sample: problems of ordinary size will not fit into memory."
)
def memory(context: CheckContext, model: Model) -> None:
    """Check the peak memory of forward and adjoint in addition to inputs, latents and signal."""
    X, S, g = drawn(context, 3000, 1, 64, 61)
    allowed = 4 * (X.nbytes + g.nbytes + S.nbytes) + (16 << 20)
    for name, array, ten_rows in (("forward", S, S), ("adjoint", g, g[:10])):
        method = getattr(model, name)
        method(X[:10], ten_rows)  # what is made once does not count
        peak = _peak_memory(partial(method, X, array))
        if peak > allowed:
            raise CheckFailed(
                f"{name} of {len(X)} samples of D = 64 takes {peak / 2**20:.0f} MB in addition to "
                f"{X.nbytes / 2**20:.0f} MB of inputs"
            )


def _peak_memory(function: Callable[[], Array]) -> int:
    """Bytes that a call allocates at its peak."""
    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    tracemalloc.reset_peak()
    start, _ = tracemalloc.get_traced_memory()
    function()
    _, peak = tracemalloc.get_traced_memory()
    if not was_tracing:
        tracemalloc.stop()
    return peak - start
