"""Checks of priors: shapes, moments, the denoiser and its state-evolution map against simulation with the prior's own samples."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.interfaces import Prior
from smimbench.interfaces.item import gives
from smimbench.testing.core import Call, CheckFailed, CheckSkipped, Draw, expect_array, judged, published

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smimbench.interfaces import Array
    from smimbench.testing.context import CheckContext
    from smimbench.testing.core import MeanTest

INFORMATION = (0.3, 2.0, 15.0)
DRAWS = 24
FINITE_SIZE = 3.0
"""Allowance for what vanishes with the dimension, relative, in units of 1/D."""


def _cases(context: CheckContext) -> Iterator[tuple[Any, Any, int]]:
    for model in context.models:
        for components in (1, 2):
            yield model, context.completed(model), components


prior_check = partial(published, ("prior",), cases=_cases)


def _dimension(model: Any) -> int:
    """Dimension of the tests: large enough that 1/D effects are negligible, small enough to take a second."""
    return 64 if model.rank == "extensive" else 4000


def information_matrix(components: int, size: float) -> Array:
    """Diagonal information matrix with a different value for every component."""
    return size * np.diag(1.0 + 0.8 * np.arange(components))


def _noise(model: Any, Qhat: Array, dimension: int, rng: np.random.Generator) -> Array:
    """Observation noise ``Qhat^(-1/2) Z``."""
    noise = np.asarray(model.draw_noise(rng, len(Qhat), dimension))
    return np.tensordot(np.linalg.cholesky(np.linalg.inv(Qhat)), noise, axes=1)


def observation(context: CheckContext, model: Any, P: int, seed: int, dimension: int = 12) -> tuple[Array, Array]:
    """Noisy observation ``R = S + Qhat^(-1/2) Z`` of a signal, and Qhat."""
    Qhat, rng = information_matrix(P, 1.3), context.rng(seed)
    signal = np.asarray(context.completed(model).sample(rng, P, dimension), dtype=float)
    return signal + _noise(model, Qhat, dimension, rng), Qhat


class Simulated(NamedTuple):
    """Results (draws, P) of denoising signals of dimension D: overlaps, squared and claimed errors, slopes along the noise."""

    dimension: int
    overlap: Array
    error: Array
    claimed: Array
    slope: Array


@lru_cache(maxsize=32)
def simulated(context: CheckContext, model: Any, P: int, size: float) -> Simulated:
    """Simulated denoising results used by several checks, for one information of ``INFORMATION``."""
    prior, D, draws = context.completed(model), _dimension(model), DRAWS
    if model.rank == "low" and not gives(Prior, type(context.item), "denoise"):
        D, draws = 250, 8  # a quadrature for every entry, which is the engine's to be right
    Qhat = information_matrix(P, size)
    rows = []
    for k in range(draws):
        rng = context.rng(71, INFORMATION.index(size), k)
        signal = np.asarray(prior.sample(rng, P, D), dtype=float)
        R, noise = signal + _noise(model, Qhat, D, rng), _noise(model, Qhat, D, rng)
        found = prior.denoise(R, Qhat)
        up, down = (np.asarray(prior.denoise(R + s * noise, Qhat).estimate) for s in (1e-3, -1e-3))
        estimate = np.asarray(found.estimate)
        pairs = (estimate, signal), (signal - estimate, signal - estimate), (noise, (up - down) / 2e-3)
        overlap, error, slope = (np.diagonal(model.inner(one, other)) for one, other in pairs)
        rows.append((overlap, error, np.diagonal(found.V), slope))
    return Simulated(D, *(np.asarray(column, dtype=float) for column in zip(*rows)))


def _denoised(prior: Any, part: str, R: Array, Qhat: Array) -> Array:
    found: Array = getattr(prior.denoise(R, Qhat), part)
    return found


def calls(context: CheckContext) -> Iterator[Call]:
    """Methods of a prior that take arrays."""
    for model, prior, P in _cases(context):
        arguments = observation(context, model, P, 21, 16)
        for part in ("estimate", "V"):
            yield Call(f"denoise: {part}", partial(_denoised, prior, part), arguments, single=1e-3, double=1e-6)
        overlap = partial(lambda prior, Qhat: prior.overlap(Qhat).V, prior)
        yield Call("overlap: V", overlap, arguments[1:], any_namespace=False)


def _drawn(prior: Any, P: int, rng: np.random.Generator) -> Array:
    return np.asarray(prior.sample(rng, P, 20))


def draws(context: CheckContext) -> Iterator[Draw]:
    """Signals drawn from the prior."""
    for _, prior, P in _cases(context):
        yield Draw("sample", partial(_drawn, prior, P), varies=True)


def refused(context: CheckContext) -> Iterator[tuple[str, Callable[[], Array]]]:
    """Calls that must be rejected with an error: an information matrix of the wrong size."""
    if not gives(Prior, type(context.item), "denoise"):
        raise CheckSkipped("the prior's denoiser is derived by the engine")
    for model in context.models:
        R, _ = observation(context, model, 2, 51)
        denoise = partial(_denoised, context.completed(model), "V", R, information_matrix(3, 1.3))
        yield "denoise takes an R of 2 components with a Qhat of 3", denoise


@prior_check("It is no law, or a method returns arrays of another shape or type than the contract says.", required=True)
def shapes(context: CheckContext, model: Any, prior: Any, P: int) -> None:
    """Check shapes of signals, moments, estimates and order parameters."""
    D = 12
    wanted = tuple(model.signal_shape(P, D))
    R, Qhat = observation(context, model, P, 2)
    found = prior.denoise(R, Qhat)
    batch = np.stack([Qhat, 3 * Qhat, 0.1 * Qhat])
    both, single = prior.overlap(batch), prior.overlap(batch[1])
    for what, array, shape in (
        ("sample", np.asarray(prior.sample(context.rng(1), P, D)), wanted),
        ("mean", np.asarray(prior.mean(P, D)), wanted),
        ("second_moment", np.asarray(prior.second_moment(P)), (P, P)),
        ("mean_overlap", np.asarray(prior.mean_overlap(P)), (P, P)),
        ("denoise: estimate", found.estimate, wanted),
        ("denoise: V", found.V, (P, P)),
        *((f"overlap: {name} of a batch", getattr(both, name), (3, P, P)) for name in "QV"),
        *((f"overlap: {name}", getattr(single, name), (P, P)) for name in "QV"),
    ):
        expect_array(what, array, shape, "float64", R)
    if not all(np.allclose(many[1], one, rtol=1e-6, atol=1e-9) for many, one in zip(both, single)):
        raise CheckFailed("overlap of one matrix depends on the other matrices in its batch")


@prior_check(
    "second_moment or mean_overlap are not those of the signals that sample draws: errors are divided by the "
    "wrong number.",
    around=judged,
)
def moments(context: CheckContext, model: Any, prior: Any, P: int, test: MeanTest) -> None:
    """Check self-overlaps of drawn signals, their overlaps with the prior mean, and the mean's self-overlap."""
    D = _dimension(model)
    mean = np.asarray(prior.mean(P, D))
    second, held = np.asarray(prior.second_moment(P)), np.asarray(prior.mean_overlap(P))
    signals = [np.asarray(prior.sample(context.rng(61, k), P, D)) for k in range(DRAWS)]
    allowance = FINITE_SIZE / D * np.abs(second).max()
    where = f"{model.name}, P = {P}, D = {D}"
    own, cross = [model.inner(s, s) for s in signals], [model.inner(s, mean) for s in signals]
    test.mean(f"overlap of signals with themselves ({where})", own, second, allowance=allowance)
    test.mean(f"overlap of signals with the mean ({where})", cross, held, allowance=allowance)
    found = np.asarray(model.inner(mean, mean))
    if np.abs(found - held).max() > allowance:
        raise CheckFailed(f"mean_overlap is {held.tolist()}, but the overlap of the mean with itself {found.tolist()}")


@prior_check(
    "V is not the derivative of the estimate: a denoiser's response to R is its posterior covariance times "
    "Qhat, which message passing relies on (Onsager's term).",
    around=judged,
)
def derivative(context: CheckContext, model: Any, prior: Any, P: int, test: MeanTest) -> None:
    """Check ``<N, S_hat(R + e N) - S_hat(R - e N)> / (2 e) = V`` in the mean over noise N distributed as that of R."""
    for size in INFORMATION:
        V = np.diagonal(np.asarray(prior.overlap(information_matrix(P, size)).V))
        found = simulated(context, model, P, size)
        what = f"derivative of the estimate minus V ({model.name}, P = {P}, Qhat = {size}, V = {V[0]:.3g})"
        test.mean(what, found.slope - found.claimed, allowance=FINITE_SIZE / found.dimension * V)


@prior_check(
    "overlap(Qhat), the state-evolution map, is not what denoise does in simulations: theory and experiment "
    "would disagree.",
    around=judged,
)
def state_evolution(context: CheckContext, model: Any, prior: Any, P: int, test: MeanTest) -> None:
    """Check Q and V of the state-evolution map against simulated overlaps and errors, and at its two ends."""
    second = np.diagonal(np.asarray(prior.second_moment(P)))
    unknown = second - np.diagonal(np.asarray(prior.mean_overlap(P)))
    last = unknown
    for size in (1e-7, *INFORMATION, 1e7):
        Q, V = (np.diagonal(np.asarray(a)) for a in prior.overlap(information_matrix(P, size)))
        if np.abs(Q + V - second).max() > 1e-3 * second.max():
            raise CheckFailed(f"overlap: Q + V = {(Q + V).tolist()} must be second_moment = {second.tolist()}")
        if (last * (1 + (1e-2 if size < 1e-6 else 1e-6)) < V).any():
            raise CheckFailed(f"overlap: V grows with the information: {last.tolist()}, then {V.tolist()}")
        last = V
        where = f"{model.name}, P = {P}, Qhat = {size:g}"
        if (size < 1e-6 and (0.99 * unknown > V).any()) or (size > 1e6 and (1e-2 * unknown < V).any()):
            raise CheckFailed(
                f"overlap: V must fall from second_moment - mean_overlap = {unknown.tolist()} to 0, is {V.tolist()} ({where})"
            )
        if size in INFORMATION:
            found = simulated(context, model, P, size)
            slack = FINITE_SIZE / found.dimension * second
            test.mean(f"simulated overlap ({where}, D = {found.dimension})", found.overlap, Q, allowance=slack)
            test.mean(f"simulated squared error ({where}, D = {found.dimension})", found.error, V, allowance=slack)
