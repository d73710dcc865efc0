"""Checks of priors: shapes of signals, moments, estimates and order parameters."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from smimbench.files import attempt
from smimbench.interfaces import Array, Model, ParameterError, Prior
from smimbench.interfaces.item import defines_member
from smimbench.testing.context import CheckContext
from smimbench.testing.core import (
    Call,
    CheckFailed,
    CheckSkipped,
    Draw,
    RefusedCall,
    expect_array,
    published,
)


def _cases(context: CheckContext) -> Iterator[tuple[Model, Prior, int]]:
    """Yield test cases: each supported model with the completed prior and a number of components. ``context`` holds the
    prior under test.
    """
    for model in context.models:
        for components in component_counts(context, model):
            yield model, context.completed_item(model), components


def component_counts(context: CheckContext, model: Model) -> tuple[int, ...]:
    """Numbers of components that the prior in ``context`` is tested with: 1, and 2 unless ``denoise`` refuses two with a
    ParameterError.
    """
    no_signal = np.zeros(model.signal_shape(2, 12))
    denoise = context.completed_item(model).denoise
    _, error = attempt(denoise, no_signal, information_matrix(2, 1.3))
    return (1,) if isinstance(error, ParameterError) else (1, 2)


prior_check = partial(published, ("prior",), cases=_cases)


def information_matrix(components: int, size: float) -> Array:
    """Diagonal information matrix Qhat (P, P) with a different value for each of P ``components``; ``size`` is the first one."""
    return size * np.diag(1.0 + 0.8 * np.arange(components))


def observation(
    context: CheckContext, model: Model, P: int, seed: int, dimension: int = 12
) -> tuple[Array, Array]:
    """Draw a noisy observation ``R = S + Qhat^(-1/2) Z`` of a signal S of P components in this dimension, with noise Z, and
    return R and the precision Qhat; the check's ``context`` and ``seed`` fix the random numbers.
    """
    Qhat = information_matrix(P, 1.3)
    rng = context.rng(seed)
    signal = np.asarray(
        context.completed_item(model).sample(rng, P, dimension), dtype=float
    )
    noise = np.asarray(model.draw_noise(rng, P, dimension))
    noise_root = np.linalg.cholesky(np.linalg.inv(Qhat))
    return signal + np.tensordot(noise_root, noise, axes=1), Qhat


def _denoised(prior: Prior, field_name: str, R: Array, Qhat: Array) -> Array:
    """Return one field (``field_name``) of the result of a prior's denoiser, the estimate or its error V, for observation R
    at information Qhat.
    """
    return getattr(prior.denoise(R, Qhat), field_name)


def _overlap_error(prior: Prior, Qhat: Array) -> Array:
    """Return the error V (P, P) of the prior's state-evolution map at information Qhat."""
    return prior.overlap(Qhat).V


def calls(context: CheckContext) -> Iterator[Call]:
    """Yield calls of all methods of a prior that take arrays, for signals of P components. ``context`` holds the prior under
    test.
    """
    for model, prior, P in _cases(context):
        arguments = observation(context, model, P, 21, 16)
        for field_name in ("estimate", "V"):
            yield Call(
                f"denoise: {field_name}",
                partial(_denoised, prior, field_name),
                arguments,
                single_tolerance=1e-3,
                double_tolerance=1e-6,
            )
        overlap_error_of = partial(_overlap_error, prior)
        yield Call("overlap: V", overlap_error_of, arguments[1:], any_namespace=False)


def _sample(prior: Prior, P: int, rng: np.random.Generator) -> Array:
    """Draw a signal of P components in dimension 20 from a prior with ``rng``."""
    return np.asarray(prior.sample(rng, P, 20))


def draws(context: CheckContext) -> Iterator[Draw]:
    """Yield the draws of signals of P components from the prior. ``context`` holds the prior under test."""
    for _, prior, P in _cases(context):
        yield Draw("sample", partial(_sample, prior, P), depends_on_seed=True)


def refused(context: CheckContext) -> Iterator[RefusedCall]:
    """Yield calls that must raise an error: an observation R with an information matrix of the wrong size. ``context`` holds
    the prior under test.
    """
    if not defines_member(Prior, type(context.item), "denoise"):
        raise CheckSkipped(
            "the prior has no method denoise of its own; the engine derives it"
        )
    for model in context.models:
        R, _ = observation(context, model, 2, 51)
        denoise = partial(
            _denoised, context.completed_item(model), "V", R, information_matrix(3, 1.3)
        )
        yield "denoise accepts R of 2 components with Qhat of 3", denoise


@prior_check(
    "A method of the prior returns arrays of the wrong shape or type.", required=True
)
def shapes(context: CheckContext, model: Model, prior: Prior, P: int) -> None:
    """Check shapes of the signals (P components, dimension D), moments, estimates and order parameters of a prior. R is a
    noisy observation with information Qhat. ``context`` holds the prior under test.
    """
    D = 12
    signal_shape = tuple(model.signal_shape(P, D))
    signal = np.asarray(prior.sample(context.rng(1), P, D))
    expect_array("sample", signal, signal_shape, "float64")
    R, Qhat = observation(context, model, P, 2)
    denoised = prior.denoise(R, Qhat)
    Qhat_batch = np.stack([Qhat, 3 * Qhat, 0.1 * Qhat])
    overlap_batch = prior.overlap(Qhat_batch)
    overlap = prior.overlap(Qhat_batch[1])
    for name, prior_array, shape in (
        ("sample", signal, signal_shape),
        ("mean", np.asarray(prior.mean(P, D)), signal_shape),
        ("second_moment", np.asarray(prior.second_moment(P)), (P, P)),
        ("mean_overlap", np.asarray(prior.mean_overlap(P)), (P, P)),
        ("denoise: estimate", denoised.estimate, signal_shape),
        ("denoise: V", denoised.V, (P, P)),
        ("overlap: Q of a batch", overlap_batch.Q, (3, P, P)),
        ("overlap: V of a batch", overlap_batch.V, (3, P, P)),
        ("overlap: Q", overlap.Q, (P, P)),
        ("overlap: V", overlap.V, (P, P)),
    ):
        expect_array(name, prior_array, shape, "float64", R)
    for batched_overlap, overlap_matrix in zip(overlap_batch, overlap):
        if not np.allclose(batched_overlap[1], overlap_matrix, rtol=1e-6, atol=1e-9):
            raise CheckFailed(
                "overlap of one information matrix depends on the other matrices in its batch"
            )
