"""Checks of models: shapes, transposes, chunks, alignment, the law of the latents, memory, dtypes and namespaces."""

from __future__ import annotations

import math
import tracemalloc
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.testing.arrays import Call, expect_array, expect_refused, private_randomness
from smimbench.testing.context import shipped
from smimbench.testing.core import CheckFailed
from smimbench.testing.publish import judged, published

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smimbench.interfaces import Array
    from smimbench.testing.context import CheckContext
    from smimbench.testing.publish import MeanTest

model_check = partial(published, ("model",), cases=lambda context: [(context.item,)])


def inputs(model: Any, n: int, dimension: int, rng: np.random.Generator, dtype: str = "float64") -> Array:
    """Inputs as the engine draws them."""
    out = np.empty((n, model.tokens, dimension), dtype=dtype)
    model.draw_inputs(rng, out)
    return out


def signal(model: Any, components: int, dimension: int, rng: np.random.Generator) -> Array:
    """A signal of the right kind: a draw of a prior of this model, or its noise."""
    for prior in shipped("prior", model):
        return np.asarray(prior.sample(rng, components, dimension), dtype=float)
    return np.asarray(model.draw_noise(rng, components, dimension), dtype=float)


def drawn(context: CheckContext, model: Any, n: int, P: int, D: int, seed: int) -> tuple[Array, Array, Array]:
    """Inputs (n, T, D), a signal, and numbers (n, P, C) in place of latents."""
    X, S = inputs(model, n, D, context.rng(seed)), signal(model, P, D, context.rng(seed + 1))
    return X, S, context.rng(seed + 2).standard_normal((n, P, model.sites))


def calls(context: CheckContext) -> Iterator[Call]:
    """The methods that take arrays."""
    model = context.item
    X, S, g = drawn(context, model, 8, 2, 9, 71)
    yield Call("forward", model.forward, (X, S))
    yield Call("adjoint", model.adjoint, (X, g))
    for name in ("inner", "squared_error", "overlap"):
        yield Call(name, getattr(model, name), (S, 0.5 * S))
    yield Call("align", lambda a, b: model.align(a, b, "signs"), (S, -S))


@model_check("A method returns arrays of another shape than the contract says.", required=True)
def shapes(context: CheckContext, model: Any) -> None:
    """Latents (n, P, C), signals, overlaps (P, P), errors (P,)."""
    for P, n, D in ((1, 5, 7), (2, 1, 6)):
        X, S, g = drawn(context, model, n, P, D, 1)
        wanted = tuple(model.signal_shape(P, D))
        if S.shape != wanted:
            raise CheckFailed(f"signal_shape is {wanted}, but signals have {S.shape}")
        expect_array("forward", model.forward(X, S), (n, P, model.sites), "float64", X)
        expect_array("adjoint", model.adjoint(X, g), wanted, "float64", X)
        expect_array("draw_noise", np.asarray(model.draw_noise(context.rng(4), P, D)), wanted, "float64")
        expect_array("inner", model.inner(S, S), (P, P), "float64", S)
        for name in ("squared_error", "overlap"):
            expect_array(name, getattr(model, name)(S, 0.5 * S), (P,), "float64", S)
        if float(np.abs(model.squared_error(S, S)).max()) > 1e-12:
            raise CheckFailed("squared_error of the signal itself is not 0")


@model_check("sample_count and sample_ratio do not belong together: curves are drawn at another alpha than was used.")
def sample_ratio(context: CheckContext, model: Any) -> None:
    """The nearest whole number of samples, at least one."""
    for D in (10, 37):
        unit = model.sample_ratio(1, D)
        if not unit > 0:
            raise CheckFailed(f"sample_ratio(1, {D}) must be > 0, got {unit}")
        for alpha in (0.3, 1.7, 12.34):
            n = model.sample_count(alpha, D)
            if not isinstance(n, int) or abs(model.sample_ratio(n, D) - alpha) > 0.5001 * unit:
                raise CheckFailed(f"sample_count({alpha}, {D}) is {n}, whose ratio is {model.sample_ratio(n, D)}")
        if model.sample_count(1e-9, D) != 1:
            raise CheckFailed("sample_count must be at least 1")


@model_check("adjoint is not the transpose of forward: gradients and message passing move in the wrong direction.")
def transpose(context: CheckContext, model: Any) -> None:
    """``<g, forward(S)> = <adjoint(g), S> / adjoint_scale``, and forward is linear."""
    for P, n, D in ((1, 9, 8), (2, 6, 11)):
        X = inputs(model, n, D, context.rng(11))
        S, other = (np.asarray(model.draw_noise(context.rng(12, k), P, D)) for k in (0, 1))
        g = context.rng(13).standard_normal((n, P, model.sites))
        left = np.sum(g * model.forward(X, S))
        right = np.sum(model.adjoint(X, g) * S) / model.adjoint_scale(D)
        if not math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-9):
            raise CheckFailed(f"<g, forward(S)> is {left:.6g}, <adjoint(g), S> / adjoint_scale is {right:.6g}")
        both = model.forward(X, S - 2 * other)
        if not np.allclose(both, model.forward(X, S) - 2 * model.forward(X, other), rtol=1e-9, atol=1e-9):
            raise CheckFailed("forward is not linear in the signal")


@model_check("What is computed depends on how the samples are cut into chunks, or chunks leave samples out.")
def chunks(context: CheckContext, model: Any) -> None:
    """Chunks cover every sample once; latents and adjoint do not depend on the cut."""
    for n, D, P in ((0, 5, 1), (1, 5, 1), (10_000, 300, 2), (12_345, 7, 1)):
        covered = [i for s in model.chunks(n, D, P) for i in range(n)[s]]
        if covered != list(range(n)):
            raise CheckFailed(f"chunks({n}, {D}, {P}) does not cover every sample once and in order")
    X, S, g = drawn(context, model, 30, 2, 9, 21)
    parts = (slice(0, 11), slice(11, 12), slice(12, 30))
    if not np.allclose(np.concatenate([model.forward(X[s], S) for s in parts]), model.forward(X, S), atol=1e-11):
        raise CheckFailed("forward of a chunk differs from the chunk of forward")
    if not np.allclose(sum(model.adjoint(X[s], g[s]) for s in parts), model.adjoint(X, g), atol=1e-11):
        raise CheckFailed("adjoint is not the sum over chunks")


@model_check(
    "Latents do not have the overlap as their covariance, the same at all sites: every channel and all of "
    "theory is built on that.",
    around=judged,
)
def latents(context: CheckContext, model: Any, test: MeanTest) -> None:
    """``E z_pc = 0`` and ``E z_pc z_qc' = inner(S_p, S_q) delta_cc'`` over inputs, for a signal that stays."""
    model, P, D, n = context.item, 2, 40, 20_000
    S = signal(model, P, D, context.rng(31))
    z = np.asarray(model.forward(inputs(model, n, D, context.rng(32)), S))
    flat = z.reshape(n, -1)
    wanted = np.kron(np.asarray(model.inner(S, S)), np.eye(model.sites))
    scale = np.sqrt(np.diagonal(wanted))
    test.mean("mean of the latents in units of their width", flat / scale)
    unit = scale[:, None] * scale[None, :]
    test.mean("covariance of the latents", flat[:, :, None] * flat[:, None, :] / unit, wanted / unit)


@model_check(
    "draw_noise has not unit size: denoisers are checked and started at another noise than they are told.",
    around=judged,
)
def noise(context: CheckContext, model: Any, test: MeanTest) -> None:
    """``E inner(Z, Z) = I``, up to what vanishes with D."""
    model, D = context.item, 60
    rows = [model.draw_noise(context.rng(41, k), 2, D) for k in range(40)]
    test.mean("inner(Z, Z)", np.stack([model.inner(z, z) for z in rows]), np.eye(2), allowance=2 / D)


@model_check("A symmetry is not removed, or something else is: errors are wrong for every algorithm.")
def align(context: CheckContext, model: Any) -> None:
    """Signs, permutations and rotations of a signal come back as the signal; without symmetry nothing moves."""
    model, P, D = context.item, 3, 30
    S = signal(model, P, D, context.rng(51))
    signs = np.array([1.0, -1.0, -1.0]).reshape(P, *[1] * (S.ndim - 1))
    order = [2, 0, 1]
    turn = np.linalg.qr(context.rng(52).standard_normal((P, P)))[0]
    moved = {
        "none": S,
        "signs": signs * S,
        "common-sign": -S,
        "permutations-common-sign": -S[order],
        "permutations": S[order],
        "signed-permutations": (signs * S)[order],
        "rotations": np.tensordot(turn, S, axes=1),
    }
    for name, estimate in moved.items():
        if not np.allclose(model.align(S, estimate, name), S, rtol=1e-8, atol=1e-8):
            raise CheckFailed(f"align does not undo what symmetry {name!r} allows")
    if not np.array_equal(model.align(S, -S, "none"), -S):
        raise CheckFailed("align moves an estimate where there is no symmetry")
    try:
        model.align(S, S, "no-such-symmetry")
    except ValueError:
        return
    raise CheckFailed("align takes a symmetry that does not exist; raise ValueError")


@model_check("It makes arrays as large as x x^T of every sample: problems of ordinary size will not fit into memory.")
def memory(context: CheckContext, model: Any) -> None:
    """Peak memory of forward and adjoint in addition to inputs, latents and signal."""
    model, D, n = context.item, 64, 3000
    X, S, g = drawn(context, model, n, 1, D, 61)
    model.forward(X[:10], S), model.adjoint(X[:10], g[:10])  # what is made once does not count
    allowed = 4 * (X.nbytes + g.nbytes + S.nbytes) + (16 << 20)
    for name, method, other in (("forward", model.forward, S), ("adjoint", model.adjoint, g)):
        running = tracemalloc.is_tracing()
        if not running:
            tracemalloc.start()
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        method(X, other)
        peak = tracemalloc.get_traced_memory()[1] - before
        if not running:
            tracemalloc.stop()
        if peak > allowed:
            raise CheckFailed(
                f"{name} of {n} samples of D = {D} takes {peak / 2**20:.0f} MB in addition to {X.nbytes / 2**20:.0f} MB of inputs"
            )


@model_check(
    "The same seed does not give the same inputs, or not the same in both precisions: runs cannot be repeated "
    "or compared."
)
def determinism(context: CheckContext, model: Any) -> None:
    """Equal seeds, equal inputs; different seeds, different ones; both precisions see the same numbers."""
    with private_randomness("draw_inputs or draw_noise"):
        one, two, other = (inputs(model, 6, 5, context.rng(k)) for k in (81, 81, 82))
        first, second = (model.draw_noise(context.rng(83), 1, 5) for _ in range(2))
    if not np.array_equal(one, two) or not np.array_equal(first, second):
        raise CheckFailed("the same seed gives other inputs or other noise; draw everything from rng")
    if np.array_equal(one, other):
        raise CheckFailed("every seed gives the same inputs; draw from the rng that is handed over")
    if not np.allclose(inputs(model, 6, 5, context.rng(81), "float32"), one, rtol=1e-6, atol=1e-6):
        raise CheckFailed("draw_inputs fills a float32 array with other numbers than a float64 one")


@model_check("Inputs of the wrong shape end in latents that mean nothing.")
def bad_input(context: CheckContext, model: Any) -> None:
    """Wrong numbers of tokens or dimensions are refused."""
    X, S, _ = drawn(context, model, 8, 1, 9, 111)
    wrong = {"dimensions": X[:, :, :5], "tokens": np.concatenate([X, X], axis=1), "axes": X[0]}
    for what, array in wrong.items():
        expect_refused(f"forward takes inputs with the wrong number of {what} and returns", model.forward, array, S)
