"""Checks of models: shapes, transposes, chunks, alignment, distribution of the latents, memory."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from smimbench.interfaces import Array, Model, is_symmetric
from smimbench.numerics.linalg import outer_product
from smimbench.testing.context import CheckContext, shipped_items
from smimbench.testing.core import (
    Call,
    CheckFailed,
    Draw,
    RefusedCall,
    expect_array,
    expect_mean,
    published,
)

model_check = partial(published, ("model",), cases=lambda context: [(context.item,)])


def signal(
    model: Model, components: int, dimension: int, rng: np.random.Generator
) -> Array:
    """Draw a signal of P = ``components`` in this ``dimension`` with ``rng``, from a shipped prior of the model, or from the
    model's noise if there is none.
    """
    samplers = [
        *(prior.sample for prior in shipped_items("prior", model)),
        model.draw_noise,
    ]
    return np.asarray(samplers[0](rng, components, dimension), dtype=float)


def draw_data(
    context: CheckContext, n: int, P: int, D: int, seed: int
) -> tuple[Array, Array, Array]:
    """Draw inputs X (n, T, D), a signal S of P components in dimension D, and random numbers g (n, P, C) in the place of
    gradients in the latents, for the model in ``context``, from this seed.
    """
    model = context.item
    X = context.rng(seed).standard_normal((n, model.tokens, D))
    S = signal(model, P, D, context.rng(seed + 1))
    return X, S, context.rng(seed + 2).standard_normal((n, P, model.sites))


def calls(context: CheckContext) -> Iterator[Call]:
    """Yield calls of all methods of a model that take arrays: inputs X, signal S and random numbers g like latents.
    ``context`` holds the model under test.
    """
    model = context.item
    X, S, g = draw_data(context, 8, 2, 9, 71)
    yield Call("forward", model.forward, (X, S))
    yield Call("adjoint", model.adjoint, (X, g))
    for method_name in ("inner", "squared_error", "overlap"):
        yield Call(method_name, getattr(model, method_name), (S, 0.5 * S))
    yield Call("align", lambda a, b: model.align(a, b, "signs"), (S, -S))


def draws(context: CheckContext) -> Iterator[Draw]:
    """Yield the methods of a model that draw random numbers, as ``Draw`` functions of a generator: its noise. ``context``
    holds the model under test.
    """
    model = context.item
    yield Draw(
        "draw_noise", lambda rng: model.draw_noise(rng, 1, 5), depends_on_seed=True
    )


def refused(context: CheckContext) -> Iterator[RefusedCall]:
    """Yield calls that must raise an error: signals S with inputs X of a wrong number of dimensions, tokens or axes.
    ``context`` holds the model under test.
    """
    X, S, _ = draw_data(context, 8, 1, 9, 111)
    for axis, wrong_inputs in (
        ("dimensions", X[:, :, :5]),
        ("tokens", np.concatenate([X, X], axis=1)),
        ("axes", X[0]),
    ):
        yield (
            f"forward accepts inputs with the wrong number of {axis}",
            partial(context.item.forward, wrong_inputs, S),
        )


@model_check("A method of the model returns arrays of the wrong shape.", required=True)
def shapes(context: CheckContext, model: Model) -> None:
    """Check shapes of latents (n, P, C), signals S, inner products (P, P), and errors and overlaps (P,), for n samples of
    inputs X, P components and dimension D. g are random numbers like latents. ``context`` holds the model under test.
    """
    for P, n, D in ((1, 5, 7), (2, 1, 6)):
        X, S, g = draw_data(context, n, P, D, 1)
        signal_shape = tuple(model.signal_shape(P, D))
        for name, model_array, shape in (
            ("a signal", S, signal_shape),
            ("forward", model.forward(X, S), (n, P, model.sites)),
            ("adjoint", model.adjoint(X, g), signal_shape),
            (
                "draw_noise",
                np.asarray(model.draw_noise(context.rng(4), P, D)),
                signal_shape,
            ),
            ("inner", model.inner(S, S), (P, P)),
            ("squared_error", model.squared_error(S, 0.5 * S), (P,)),
            ("overlap", model.overlap(S, 0.5 * S), (P,)),
        ):
            expect_array(name, model_array, shape, "float64", X)
        if float(np.abs(model.squared_error(S, S)).max()) > 1e-12:
            raise CheckFailed("squared_error between the signal and itself must be 0")


@model_check(
    "sample_count and sample_ratio are not inverse to each other: curves are drawn at another alpha than was used."
)
def sample_ratio(context: CheckContext, model: Model) -> None:
    """Check that ``sample_count`` is the integer n >= 1 whose sample ratio is closest to alpha, at dimension D. ``context``
    holds the model under test.
    """
    del context
    for D in (10, 37):
        smallest_ratio = model.sample_ratio(1, D)
        for alpha in (1e-9, 0.3, 1.7, 12.34):
            n = model.sample_count(alpha, D)
            sample_ratio_of_n = model.sample_ratio(n, D)
            is_nearest = (
                smallest_ratio > 0
                and abs(sample_ratio_of_n - max(alpha, smallest_ratio))
                <= 0.5001 * smallest_ratio
            )
            if not (isinstance(n, int) and n >= 1 and is_nearest):
                raise CheckFailed(
                    f"sample_count({alpha}, {D}) must be the integer with the closest sample ratio, "
                    f"got {n} with ratio {sample_ratio_of_n}"
                )


@model_check(
    "adjoint is not the transpose of forward: gradients and message passing move in the wrong direction."
)
def transpose(context: CheckContext, model: Model) -> None:
    """Check that ``adjoint`` is the transpose of ``forward`` up to ``adjoint_scale``, and that ``forward`` is linear: ``<g,
    forward(S)>`` for inputs X of n samples, signals S of P components in dimension D and random numbers g like latents.
    ``context`` holds the model under test.
    """
    for P, n, D in ((1, 9, 8), (2, 6, 11)):
        X, _, g = draw_data(context, n, P, D, 11)
        S, other_S = (
            np.asarray(model.draw_noise(context.rng(14, k), P, D)) for k in (0, 1)
        )
        latents = model.forward(X, S)
        other_latents = model.forward(X, other_S)
        inner_product = np.sum(g * latents)
        transposed_product = np.sum(model.adjoint(X, g) * S) / model.adjoint_scale(D)
        if not math.isclose(
            inner_product, transposed_product, rel_tol=1e-9, abs_tol=1e-9
        ):
            raise CheckFailed(
                f"<g, forward(S)> is {inner_product:.6g}, "
                f"but <adjoint(g), S> / adjoint_scale is {transposed_product:.6g}; they must be equal"
            )
        latents_of_combination = model.forward(X, S - 2 * other_S)
        if not np.allclose(
            latents_of_combination, latents - 2 * other_latents, rtol=1e-9, atol=1e-9
        ):
            raise CheckFailed("forward must be linear in the signal")


@model_check(
    "Results depend on how the samples are split into chunks, or chunks leave samples out."
)
def chunks(context: CheckContext, model: Model) -> None:
    """Check that chunks (slices of the n samples) cover every sample once, and that latents and adjoint do not depend on
    them, for P components in dimension D. X are inputs, S a signal, g random numbers like latents, and ``sample_numbers``
    the samples in all chunks. ``context`` holds the model under test.
    """
    for n, D, P in ((0, 5, 1), (1, 5, 1), (10_000, 300, 2), (12_345, 7, 1)):
        sample_numbers = [
            row for chunk in model.chunks(n, D, P) for row in range(n)[chunk]
        ]
        if sample_numbers != list(range(n)):
            raise CheckFailed(
                f"chunks({n}, {D}, {P}) must cover every sample once and in order"
            )
    X, S, g = draw_data(context, 30, 2, 9, 21)
    chunk_slices = (slice(0, 11), slice(11, 12), slice(12, 30))
    latents = np.concatenate(
        [model.forward(X[chunk_slice], S) for chunk_slice in chunk_slices]
    )
    if not np.allclose(latents, model.forward(X, S), atol=1e-11):
        raise CheckFailed(
            "forward of a chunk of samples differs from the same rows of forward of all samples"
        )
    adjoint_sum = sum(
        model.adjoint(X[chunk_slice], g[chunk_slice]) for chunk_slice in chunk_slices
    )
    if not np.allclose(adjoint_sum, model.adjoint(X, g), atol=1e-11):
        raise CheckFailed(
            "adjoint of all samples differs from the sum of adjoint over chunks of samples"
        )


@model_check(
    "The covariance of the latents is not the overlap of the signal at every site, which every channel and all "
    "theory assumes."
)
def latents(context: CheckContext, model: Model) -> None:
    """Check that latents z over random inputs X have mean 0 and covariance ``E z_pc z_qc' = inner(S_p, S_q) delta_cc'``
    between components p, q and sites c, c' for a fixed signal S. ``context`` holds the model under test.
    """
    X, S, _ = draw_data(context, 20_000, 2, 40, 31)
    flat_latents = np.asarray(model.forward(X, S)).reshape(len(X), -1)
    overlap = np.kron(np.asarray(model.inner(S, S)), np.eye(model.sites))
    latent_scale = np.sqrt(np.diagonal(overlap))
    expect_mean(
        "mean of the latents in units of their width", flat_latents / latent_scale
    )
    covariance_scale = latent_scale[:, None] * latent_scale
    # Of a matrix without symmetry the latents ab and ba have the covariance tr S^2 / D, which vanishes as 1/D.
    allowance = 0.0 if is_symmetric(model) else 8 / S.shape[-1]
    covariance = outer_product(flat_latents, flat_latents) / covariance_scale
    expect_mean(
        "covariance of the latents", covariance, overlap / covariance_scale, allowance
    )


@model_check(
    "draw_noise does not have unit variance: denoisers are tested and started at another noise level than they are given."
)
def noise(context: CheckContext, model: Model) -> None:
    """Check that draws z of the noise Z from ``draw_noise`` have ``E inner(Z, Z) = I``, up to terms of order 1/D.
    ``context`` holds the model under test.
    """
    D = 60
    noise_draws = [model.draw_noise(context.rng(41, k), 2, D) for k in range(40)]
    expect_mean(
        "inner(Z, Z)",
        [model.inner(z, z) for z in noise_draws],
        np.eye(2),
        allowance=2 / D,
    )


@model_check(
    "align does not remove a symmetry, or removes too much: errors are wrong for every algorithm."
)
def align(context: CheckContext, model: Model) -> None:
    """Check that ``align`` undoes sign flips, permutations and rotations of the components of a signal S, and does nothing
    without symmetry. ``context`` holds the model under test.
    """
    S = signal(model, 3, 30, context.rng(51))
    sign_flips = np.diag([1.0, -1.0, -1.0])
    permutation = np.eye(3)[[2, 0, 1]]
    transformations = {
        "none": np.eye(3),
        "signs": sign_flips,
        "common-sign": -np.eye(3),
        "permutations-common-sign": -permutation,
        "permutations": permutation,
        "signed-permutations": permutation @ sign_flips,
        "rotations": np.linalg.qr(context.rng(52).standard_normal((3, 3)))[0],
    }
    for symmetry_name, transformation in transformations.items():
        aligned_signal = model.align(
            S, np.tensordot(transformation, S, axes=1), symmetry_name
        )
        if not np.allclose(aligned_signal, S, rtol=1e-8, atol=1e-8):
            raise CheckFailed(
                f"align does not undo a transformation that symmetry {symmetry_name!r} allows"
            )
    if not np.array_equal(model.align(S, -S, "none"), -S):
        raise CheckFailed("align changes an estimate although there is no symmetry")
    try:
        model.align(S, S, "no-such-symmetry")
    except ValueError:
        return
    raise CheckFailed("align accepts an unknown symmetry; raise ValueError instead")


@model_check(
    "The model creates arrays as large as x x^T for every sample: problems of ordinary size will not fit into memory."
)
def memory(context: CheckContext, model: Model) -> None:
    """Check the peak memory that ``forward`` and ``adjoint`` need beyond inputs X, latents g and signal S. ``context`` holds
    the model under test.
    """
    X, S, g = draw_data(context, 3000, 1, 64, 61)
    allowed_bytes = 4 * (X.nbytes + g.nbytes + S.nbytes) + (16 << 20)
    for method_name, method_argument, argument_of_few in (
        ("forward", S, S),
        ("adjoint", g, g[:10]),
    ):
        model_method = getattr(model, method_name)
        # A first call allocates what is kept between calls, so that it does not count.
        model_method(X[:10], argument_of_few)
        peak_bytes = _peak_memory(partial(model_method, X, method_argument))
        if peak_bytes > allowed_bytes:
            raise CheckFailed(
                f"{method_name} needs {peak_bytes / 2**20:.0f} MB in addition to {X.nbytes / 2**20:.0f} MB of inputs, for "
                f"{len(X)} samples of D = 64, but at most {allowed_bytes / 2**20:.0f} MB are allowed; avoid copies of the inputs"
            )


def _peak_memory(function: Callable[[], Array]) -> int:
    """Peak memory, in bytes, that a function call allocates."""
    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    tracemalloc.reset_peak()
    start_bytes, _ = tracemalloc.get_traced_memory()
    function()
    _, peak_bytes = tracemalloc.get_traced_memory()
    if not was_tracing:
        tracemalloc.stop()
    return peak_bytes - start_bytes
