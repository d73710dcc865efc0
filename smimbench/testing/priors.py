"""Checks of priors: shapes, dtypes, moments, the denoiser and its state-evolution map against simulation with the
prior's own samples.
"""

from __future__ import annotations

import math
import time
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.interfaces import Prior
from smimbench.interfaces.item import gives
from smimbench.testing.arrays import Call, expect_array, expect_refused, private_randomness
from smimbench.testing.core import CheckFailed, CheckSkipped
from smimbench.testing.publish import NO_PROBLEM, each_model, judged, published

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smimbench.interfaces import Array
    from smimbench.testing.context import CheckContext
    from smimbench.testing.publish import MeanTest

INFORMATION = (0.3, 2.0, 15.0)
DRAWS = 24
FINITE_SIZE = 3.0
"""Allowance for what vanishes with the dimension, relative, in units of 1/D."""


def _sizes(context: CheckContext, model: Any, *, denoised: bool = True) -> tuple[int, int]:
    """Dimension and draws: what vanishes with D should not matter, and all should take a second.

    A denoiser that the engine integrates costs a quadrature for every entry, and is the engine's to be right.
    """
    if model.rank == "extensive":
        return 64, DRAWS
    return (250, 8) if denoised and not gives(Prior, type(context.item), "denoise") else (4000, DRAWS)


def _cases(context: CheckContext) -> Iterator[tuple[Any, Any, int]]:
    for model in context.models:
        for components in (1, 2):
            yield model, context.completed(model), components


prior_check = partial(published, ("prior",), cases=_cases)


def information_matrix(components: int, size: float) -> Array:
    """A different information for every component, and none between them."""
    return size * np.diag(1.0 + 0.8 * np.arange(components))


def observed(
    model: Any, prior: Any, components: int, dimension: int, Qhat: Array, rng: np.random.Generator
) -> tuple[Array, Array]:
    """A signal and ``R = S + Qhat^(-1/2) Z``."""
    signal = np.asarray(prior.sample(rng, components, dimension), dtype=float)
    noise = np.asarray(model.draw_noise(rng, components, dimension))
    root = np.linalg.cholesky(np.linalg.inv(Qhat))
    return signal, signal + np.tensordot(root, noise, axes=1)


def observation(
    context: CheckContext, model: Any, prior: Any, P: int, seed: int, dimension: int = 12
) -> tuple[Array, Array]:
    """R and the Qhat with which it was made."""
    Qhat = information_matrix(P, 1.3)
    return observed(model, prior, P, dimension, Qhat, context.rng(seed))[1], Qhat


class Simulated(NamedTuple):
    """Numbers (draws, P) from denoised signals: overlaps, squared errors, claimed errors, slopes along the noise."""

    with_signal: Array
    with_itself: Array
    error: Array
    claimed: Array
    slope: Array


@lru_cache(maxsize=32)
def simulated(context: CheckContext, model: Any, components: int, number: int) -> Simulated:
    """What several checks look at, for one information of ``INFORMATION``."""
    prior, P = context.completed(model), components
    D, draws = _sizes(context, model)
    Qhat = information_matrix(P, INFORMATION[number])
    root = np.linalg.cholesky(np.linalg.inv(Qhat))
    rows = []
    for k in range(draws):
        rng = context.rng(71, number, k)
        signal, R = observed(model, prior, P, D, Qhat, rng)
        found = prior.denoise(R, Qhat)
        estimate = np.asarray(found.estimate)
        noise = np.tensordot(root, np.asarray(model.draw_noise(rng, P, D)), axes=1)
        step = 1e-3
        up, down = (np.asarray(prior.denoise(R + s * noise, Qhat).estimate) for s in (step, -step))
        rest = signal - estimate
        pairs = ((estimate, signal), (estimate, estimate), (rest, rest))
        overlaps = [np.diagonal(model.inner(one, other)) for one, other in pairs]
        slope = np.diagonal(model.inner(noise, (up - down) / (2 * step)))
        rows.append((*overlaps, np.diagonal(found.V), slope))
    return Simulated(*(np.asarray(column, dtype=float) for column in zip(*rows)))


def _compared(context: CheckContext, model: Any, prior: Any, P: int) -> Iterator[tuple[Simulated, Array, Array, str]]:
    """For every information: the simulation, the V that theory says, what vanishes with D, and what to call it."""
    for number, size in enumerate(INFORMATION):
        V = np.diagonal(np.asarray(prior.overlap(information_matrix(P, size)).V))
        slack = FINITE_SIZE / _sizes(context, model)[0] * V
        yield simulated(context, model, P, number), V, slack, f"{model.name}, P = {P}, Qhat = {size}"


def calls(context: CheckContext) -> Iterator[Call]:
    """The methods that take arrays."""
    for model, prior, P in _cases(context):
        arguments = observation(context, model, prior, P, 21, 16)
        yield Call(
            "denoise: estimate", lambda R, Q, p=prior: p.denoise(R, Q).estimate, arguments, single=1e-3, double=1e-6
        )
        yield Call("denoise: V", lambda R, Q, p=prior: p.denoise(R, Q).V, arguments, single=1e-3, double=1e-6)
        yield Call("overlap: V", lambda Q, p=prior: p.overlap(Q).V, arguments[1:], any_namespace=False)


@prior_check("It is no law, or a method returns arrays of another shape or type than the contract says.", required=True)
def shapes(context: CheckContext, model: Any, prior: Any, P: int) -> None:
    """Signals, their moments, estimates and order parameters."""
    D = 12
    wanted = model.signal_shape(P, D)
    expect_array("sample", np.asarray(prior.sample(context.rng(1), P, D)), wanted, "float64")
    expect_array("mean", np.asarray(prior.mean(P, D)), wanted, "float64")
    for name in ("second_moment", "mean_overlap"):
        expect_array(name, np.asarray(getattr(prior, name)(P)), (P, P), "float64")
    R, Qhat = observation(context, model, prior, P, 2)
    found = prior.denoise(R, Qhat)
    expect_array("denoise: estimate", found.estimate, wanted, "float64", R)
    expect_array("denoise: V", found.V, (P, P), "float64", R)
    batch = np.stack([Qhat, 3 * Qhat, 0.1 * Qhat])
    both = prior.overlap(batch)
    for name, array in (("Q", both.Q), ("V", both.V)):
        expect_array(f"overlap: {name} of a batch", array, (3, P, P), "float64", batch)
        single = getattr(prior.overlap(batch[1]), name)
        expect_array(f"overlap: {name}", single, (P, P), "float64", batch)
        if not np.allclose(array[1], single, rtol=1e-6, atol=1e-9):
            raise CheckFailed(f"overlap: {name} of a matrix depends on the others of its batch")


@prior_check(
    "The same seed does not give the same signal, or another seed gives the same one: runs cannot be "
    "repeated, or all are one run."
)
def determinism(context: CheckContext, model: Any, prior: Any, P: int) -> None:
    """Equal seeds, equal signals; different seeds, different ones; no global generator."""
    with private_randomness("sample"):
        one, two = (np.asarray(prior.sample(context.rng(11), P, 20)) for _ in range(2))
        other = np.asarray(prior.sample(context.rng(12), P, 20))
    if not np.array_equal(one, two):
        raise CheckFailed("sample: the same seed gives another signal; draw everything from rng")
    if np.array_equal(one, other):
        raise CheckFailed("sample: every seed gives the same signal; draw from the rng that is handed over")


@published(("prior",), "Arguments that do not fit together end in numbers that mean nothing.", cases=each_model)
def bad_input(context: CheckContext, model: Any) -> None:
    """An information matrix of another size is refused."""
    if not gives(Prior, type(context.item), "denoise"):
        raise CheckSkipped("its denoiser is derived by the engine")
    prior = context.completed(model)
    R, _ = observation(context, model, prior, 2, 51)
    what = "denoise takes an R of 2 components with a Qhat of 3 and returns V of shape"
    expect_refused(what, lambda: prior.denoise(R, information_matrix(3, 1.3)).V)


@prior_check(
    "second_moment or mean_overlap are not those of the signals that sample draws: errors are divided by the "
    "wrong number.",
    around=judged,
)
def moments(context: CheckContext, model: Any, prior: Any, P: int, test: MeanTest) -> None:
    """Overlaps of drawn signals with themselves and with the prior mean, and of the mean with itself."""
    D, draws = _sizes(context, model, denoised=False)
    mean = np.asarray(prior.mean(P, D))
    second, held = np.asarray(prior.second_moment(P)), np.asarray(prior.mean_overlap(P))
    signals = [np.asarray(prior.sample(context.rng(61, k), P, D)) for k in range(draws)]
    squares = [np.asarray(model.inner(s, s)) for s in signals]
    crosses = [np.asarray(model.inner(s, mean)) for s in signals]
    allowance = FINITE_SIZE / D * np.abs(second).max()
    where = f"{model.name}, P = {P}, D = {D}"
    test.mean(f"overlap of signals with themselves ({where})", np.stack(squares), second, allowance=allowance)
    test.mean(f"overlap of signals with the mean ({where})", np.stack(crosses), held, allowance=allowance)
    own = np.asarray(model.inner(mean, mean))
    if np.abs(own - held).max() > allowance:
        raise CheckFailed(f"mean_overlap is {held.tolist()}, but the overlap of the mean with itself {own.tolist()}")


@published(
    ("prior",),
    "The denoiser is not the posterior mean: its estimate must have the same overlap with the signal as with "
    "itself, and the error V that it claims. Off by a factor, it holds more or less than it knows. 'smimbench run' makes the "
    "same test.",
    cases=each_model,
)
def nishimori(context: CheckContext, model: Any) -> None:
    """``E <S_hat, S> = E <S_hat, S_hat>`` and ``E <S - S_hat, S - S_hat> = V``, for little information, much, and nearly all."""
    context.consistent(model, kinds=("prior",), clock=time.process_time)


@prior_check(
    "V is not the derivative of the estimate: a denoiser's response to R is its posterior covariance times "
    "Qhat, which message passing relies on (Onsager's term).",
    around=judged,
)
def derivative(context: CheckContext, model: Any, prior: Any, P: int, test: MeanTest) -> None:
    """``<N, S_hat(R + e N) - S_hat(R - e N)> / (2 e) = V`` in the mean over noise N of the same law as that of R."""
    for found, V, slack, where in _compared(context, model, prior, P):
        what = f"derivative of the estimate minus V ({where}, V = {V[0]:.3g})"
        test.mean(what, found.slope - found.claimed, allowance=slack)


@prior_check(
    "overlap(Qhat), the state-evolution map, is not what denoise does in simulations: theory and experiment "
    "would disagree.",
    around=judged,
)
def state_evolution(context: CheckContext, model: Any, prior: Any, P: int, test: MeanTest) -> None:
    """Simulated overlaps and errors at the dimension at hand against Q and V of the map."""
    second = np.asarray(prior.second_moment(P))
    last = None
    for number, size in enumerate(INFORMATION):
        Qhat = information_matrix(P, size)
        Q, V = (np.asarray(a) for a in prior.overlap(Qhat))
        if np.abs(np.diagonal(Q + V - second)).max() > 1e-3 * np.abs(second).max():
            raise CheckFailed(f"overlap: Q + V = {(Q + V).tolist()} must be second_moment = {second.tolist()}")
        if last is not None and (np.diagonal(V) > np.diagonal(last) * (1 + 1e-6)).any():
            raise CheckFailed(f"overlap: V grows with the information: {last.tolist()}, then {V.tolist()}")
        last = V
        found, D = simulated(context, model, P, number), _sizes(context, model)[0]
        where = f"{model.name}, P = {P}, Qhat = {size}, D = {D}"
        slack = FINITE_SIZE / D * np.diagonal(second)
        test.mean(f"simulated overlap ({where})", found.with_signal, np.diagonal(Q), allowance=slack)
        test.mean(f"simulated squared error ({where})", found.error, np.diagonal(V), allowance=slack)
    if P == 2:
        _ends(prior, model)


def _ends(prior: Any, model: Any) -> None:
    """No information leaves the prior mean; much of it leaves no error."""
    one = np.eye(1)
    nothing, much = prior.overlap(1e-7 * one), prior.overlap(1e7 * one)
    second, held = float(prior.second_moment(1)[0, 0]), float(prior.mean_overlap(1)[0, 0])
    unknown = second - held
    if not math.isclose(float(nothing.V[0, 0]), unknown, rel_tol=1e-2):
        raise CheckFailed(
            f"overlap: without information V must be second_moment - mean_overlap = {unknown:.4g}, "
            f"got {float(nothing.V[0, 0]):.4g} ({model.name})"
        )
    if float(much.V[0, 0]) > 1e-2 * unknown:
        raise CheckFailed(f"overlap: at Qhat = 1e7 V is still {float(much.V[0, 0]):.3g} ({model.name})")


@published(("prior",), NO_PROBLEM, cases=each_model)
def problem(context: CheckContext, model: Any) -> None:
    """A small instance of every model."""
    found = context.problem(model).instance(0.5, 12, seed=context.seed)
    if not np.isfinite(found.signal).all():
        raise CheckFailed("the signal is not made of finite numbers")
