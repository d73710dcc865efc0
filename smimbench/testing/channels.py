"""Checks of channels: the posterior against simulation with the channel's own ``forward``, and its derivatives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend.arrays import to_host
from smimbench.derive.channel import observable, predict
from smimbench.interfaces import SYMMETRIES
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.testing.arrays import expect_array, expect_pure, in_strict_namespace, private_randomness
from smimbench.testing.core import CheckFailed, CheckSkipped, Tally, capabilities_of, published
from smimbench.theory.information import channel_information

if TYPE_CHECKING:
    from smimbench.backend.device import Backend
    from smimbench.interfaces import Array, Posterior
    from smimbench.testing.core import Subject

POINTS = ((0.6, 0.7), (1.0, 0.15))
"""Overlap and error of a component at which posteriors are checked."""

EXACT, SAMPLES = 30_000, 1_000
"""Labels for closed forms, and for posteriors that are integrated."""


@dataclass(frozen=True, eq=False)
class Sampled:
    """Latents, their labels and what the posterior says of them."""

    Q: Array
    V: Array
    omega: Array
    z: Array
    y: Array
    posterior: Posterior


def order_parameters(components: int, q: float, v: float) -> tuple[Array, Array]:
    """Q and V with some correlation between components."""
    shape = np.full((components, components), 0.3) + 0.7 * np.eye(components)
    return q * np.eye(components), v * shape


def latents(
    channel: Any, model: Any, n: int, q: float, v: float, rng: np.random.Generator
) -> tuple[Array, Array, Array, Array, Array]:
    """``Q, V, omega, z, y`` of n samples on the Nishimori line: ``omega ~ N(0, Q)``, ``z ~ N(omega, V)``."""
    P, C = int(channel.components), model.sites
    Q, V = order_parameters(P, q, v)
    omega = np.linalg.cholesky(Q) @ rng.standard_normal((n, P, C))
    z = omega + np.linalg.cholesky(V) @ rng.standard_normal((n, P, C))
    return Q, V, omega, z, np.asarray(channel.forward(z, rng=rng))


@lru_cache(maxsize=8)
def sampled(subject: Subject, model: Any, point: int) -> Sampled:
    """Draws that several checks look at."""
    channel = subject.completed(model)
    rng = subject.rng(11, point)
    q, v = POINTS[point]
    Q, V, omega, z, y = latents(channel, model, SAMPLES, q, v, rng)
    first = channel.posterior(y[:64], omega[:64], V, rng=subject.rng(12))
    if float(first.error) < 1e-9:
        Q, V, omega, z, y = latents(channel, model, EXACT, q, v, rng)
    found = channel.posterior(y, omega, V, second_moment=True, rng=subject.rng(12))
    return Sampled(Q, V, omega, z, y, found)


def _named(model: Any, what: str) -> str:
    return f"{what} ({model.name})"


@published(
    "channel",
    id="shapes",
    meaning="forward or posterior returns arrays of another shape or type than the contract says, or cannot take "
    "a single sample.",
)
def shapes(subject: Subject) -> None:
    """Labels (n, ...), mean (n, P, C), covariance (P, P), second moment (n, P, C, P, C)."""
    for model in subject.models:
        channel = subject.completed(model)
        P, C = int(channel.components), model.sites
        for n in (5, 1):
            _, V, omega, _, y = latents(channel, model, n, 0.5, 0.6, subject.rng(n))
            if y.ndim < 1 or len(y) != n:
                raise CheckFailed(f"forward: labels of {n} samples must have shape ({n}, ...), got {y.shape}")
            if y.dtype.kind not in "fiub":
                raise CheckFailed(f"forward: labels must be real or whole numbers, got {y.dtype}")
            if y.dtype.kind == "f" and np.isnan(y).any():
                raise CheckFailed("forward: labels are not numbers")
            found = channel.posterior(y, omega, V, rng=subject.rng(2))
            expect_array(_named(model, "posterior: mean"), found.mean, (n, P, C), "float64", omega)
            expect_array(_named(model, "posterior: covariance"), found.covariance, (P, P), "float64", omega)
            full = channel.posterior(y, omega, V, second_moment=True, rng=subject.rng(2))
            if full.second_moment is None:
                raise CheckFailed("posterior(..., second_moment=True) gives no second moment")
            expect_array(
                _named(model, "posterior: second_moment"),
                full.second_moment,
                (n, P, C, P, C),
                "float64",
                omega,
            )
            if not (isinstance(found.error, float) and 0 <= found.error < math.inf):
                raise CheckFailed(f"posterior: error must be a float >= 0, got {found.error!r}")
            spectrum = np.linalg.eigvalsh(found.covariance)
            if spectrum.min() < -1e-9 or not np.allclose(found.covariance, found.covariance.T):
                raise CheckFailed("posterior: covariance must be symmetric and positive semidefinite")


@published(
    "channel",
    id="samples",
    meaning="A sample's label or posterior depends on its neighbours: then it also depends on how the data are "
    "cut into chunks.",
)
def samples(subject: Subject) -> None:
    """A part of the samples gives the same as all of them."""
    for model in subject.models:
        _, V, omega, z, y = latents(subject.item, model, 24, 0.5, 0.6, subject.rng(21))
        if not is_noisy(subject.item, z):
            part = np.asarray(subject.item.forward(z[7:15]))
            if not np.allclose(part, np.asarray(subject.item.forward(z))[7:15], rtol=1e-9, atol=1e-12):
                raise CheckFailed(
                    "forward: the label of a sample depends on the other samples, or on a generator of its own"
                )
        channel = subject.completed(model)
        whole = channel.posterior(y, omega, V, rng=subject.rng(22))
        part = channel.posterior(y[7:15], omega[7:15], V, rng=subject.rng(22))
        gap = np.linalg.norm(whole.mean[7:15] - part.mean) / math.sqrt(part.mean.size * np.trace(V) / len(V))
        slack = 1e-8 + 10 * (float(whole.error) + float(part.error))
        if gap > slack:
            raise CheckFailed(
                f"posterior: the mean of 8 samples among 24 differs from that of the 8 alone by {gap:.2g} of its width"
            )


def is_noisy(channel: Any, z: Array) -> bool:
    """Whether labels are random: forward refuses to go without rng, or gives another label for another seed."""
    try:
        channel.forward(z)
    except Exception:  # a noisy channel may complain in any way it likes
        return True
    one, two = (np.asarray(channel.forward(z, rng=np.random.default_rng(k))) for k in (0, 1))
    return not np.array_equal(one, two)


@published(
    "channel",
    id="determinism",
    meaning="The same seed does not give the same numbers, or noise is drawn from somewhere else than the rng"
    " handed over: runs cannot be repeated, and algorithms are not compared on the same data.",
)
def determinism(subject: Subject) -> None:
    """Equal seeds, equal labels and posteriors; different seeds, different noise; no global generator."""
    for model in subject.models:
        channel = subject.completed(model)
        _, V, omega, z, _ = latents(channel, model, 30, 0.5, 0.6, subject.rng(31))
        with private_randomness("forward or posterior"):
            one, two = (np.asarray(channel.forward(z, rng=subject.rng(32))) for _ in range(2))
            if not np.array_equal(one, two, equal_nan=one.dtype.kind == "f"):
                raise CheckFailed("forward: the same seed gives different labels; draw all noise from rng")
            means = [channel.posterior(one, omega, V, rng=subject.rng(34)).mean for _ in range(2)]
            if not np.array_equal(*means):
                raise CheckFailed("posterior: the same seed gives different means; draw from rng only")


@published(
    "channel",
    id="purity",
    meaning="It writes into its arguments: the data of every algorithm that comes later are spoiled.",
)
def purity(subject: Subject) -> None:
    """Arguments come back unchanged, and read-only arrays will do."""
    for model in subject.models:
        channel = subject.completed(model)
        _, V, omega, z, y = latents(channel, model, 12, 0.5, 0.6, subject.rng(41))

        def forward(z: Array, channel: Any = channel) -> Array:
            return channel.forward(z, rng=subject.rng(42))

        def posterior(y: Array, omega: Array, V: Array, channel: Any = channel) -> Any:
            return channel.posterior(y, omega, V, second_moment=True, rng=subject.rng(42))

        expect_pure("forward", forward, z)
        expect_pure("posterior", posterior, y, omega, V)
        for name in ("log_partition", "vjp"):
            if not hasattr(channel, name):
                continue
            method = getattr(channel, name)
            if name == "vjp":
                expect_pure(name, method, z, np.ones(observable(channel, y).shape))
            else:
                expect_pure(name, method, y, omega, V)


@published(
    "channel",
    id="dtypes",
    meaning="Single precision does not stay single precision, or is far less accurate than it should be.",
)
def dtypes(subject: Subject) -> None:
    """float32 in, float32 out, and close to float64."""
    if "float32" not in capabilities_of(subject.item).dtypes:
        raise CheckSkipped("capabilities.dtypes does not promise float32")
    for model in subject.models:
        channel = subject.completed(model)
        P, C = int(channel.components), model.sites
        n = 60
        _, V, omega, z, _ = latents(channel, model, n, 0.5, 0.6, subject.rng(51))
        drawn = np.asarray(channel.forward(np.float32(z), rng=subject.rng(52)))
        if drawn.dtype.kind == "f" and drawn.dtype != np.float32:
            raise CheckFailed(f"forward: labels of float32 latents must be float32, got {drawn.dtype}")
        y = np.float32(drawn) if drawn.dtype.kind == "f" else drawn
        found = channel.posterior(y, np.float32(omega), np.float32(V), rng=subject.rng(52))
        expect_array("posterior: mean", found.mean, (n, P, C), "float32")
        expect_array("posterior: covariance", found.covariance, (P, P), "float32")
        wide = np.float64(y) if y.dtype.kind == "f" else y
        exact = channel.posterior(wide, np.float64(np.float32(omega)), V, rng=subject.rng(52))
        gap = np.median(np.abs(found.mean - exact.mean)) / math.sqrt(np.trace(V) / P)
        slack = 2e-3 + 10 * (float(found.error) + float(exact.error))
        if gap > slack:
            raise CheckFailed(f"posterior: the mean in float32 is off by {gap:.1g} of its width")


@published(
    "channel",
    id="namespace",
    meaning="It needs NumPy arrays: it will not run on a GPU. Use the functions of smimbench.backend.device.namespace(x).",
)
def namespace_(subject: Subject) -> None:
    """The strict array API on another device gives the numbers of NumPy."""
    in_strict_namespace(subject.item, lambda backend: _elsewhere(subject, backend))


def _elsewhere(subject: Subject, backend: Backend) -> None:
    for model in subject.models:
        channel = subject.completed(model)
        P, C = int(channel.components), model.sites
        _, V, omega, z, y = latents(channel, model, 10, 0.5, 0.6, subject.rng(61))
        there = [backend.asarray(a) for a in (z, y, omega, V)]
        drawn = channel.forward(there[0], rng=subject.rng(62))
        here = np.asarray(channel.forward(z, rng=subject.rng(62)))
        expect_array("forward: labels", drawn, here.shape, None, there[0])
        if not np.allclose(to_host(drawn), here, rtol=1e-7, atol=1e-9):
            raise CheckFailed("forward: another array namespace gives other labels")
        found = channel.posterior(*there[1:], second_moment=True, rng=subject.rng(62))
        expect_array("posterior: mean", found.mean, (10, P, C), "float64", there[0])
        expect_array("posterior: covariance", found.covariance, (P, P), "float64", there[0])
        exact = channel.posterior(y, omega, V, rng=subject.rng(62))
        gap = np.abs(to_host(found.mean) - exact.mean).max() / math.sqrt(np.trace(V) / P)
        if gap > 1e-6 + 20 * float(exact.error):
            raise CheckFailed(f"posterior: another array namespace gives a mean that is off by {gap:.1g}")


@published(
    "channel",
    id="bad_input",
    meaning="Latents of the wrong shape end in labels that mean nothing, or a noisy channel makes up a generator of its own.",
)
def bad_input(subject: Subject) -> None:
    """Wrong shapes raise; a noisy channel without rng raises."""
    for model in subject.models:
        channel = subject.completed(model)
        _, V, omega, z, y = latents(channel, model, 6, 0.5, 0.6, subject.rng(71))
        if is_noisy(channel, z):
            try:
                one, two = (np.asarray(channel.forward(z)) for _ in range(2))
            except Exception:  # refused, as it should be
                pass
            else:
                same = "and always the same" if np.array_equal(one, two) else "which nobody can repeat"
                raise CheckFailed(f"forward without rng draws noise all the same, {same}; raise ValueError")
        if len(y) > 3:
            try:
                found = channel.posterior(y[:3], omega, V, rng=subject.rng(72))
            except Exception:  # refused, as it should be
                continue
            raise CheckFailed(
                f"posterior takes 3 labels with omega of 6 samples and returns a mean of shape {np.shape(found.mean)}"
            )


@published(
    "channel",
    id="symmetry",
    meaning="The symmetry that it states is not the one that its labels have: errors are measured after "
    "removing that symmetry, so they would be wrong, and algorithms would start where nothing can be "
    "learned.",
)
def symmetry(subject: Subject) -> None:
    """Labels do not change under the stated transformations, and do under sign changes if none are stated."""
    own = getattr(subject.item, "symmetry", None)
    if own is not None and own not in SYMMETRIES:
        raise CheckFailed(
            f"symmetry must be one of {', '.join(SYMMETRIES)}, or left out to be found, got {own!r}"
        )
    for model in subject.models:
        channel = subject.completed(model)
        stated = channel.symmetry
        P = int(channel.components)
        z = latents(channel, model, 40, 0.5, 0.6, subject.rng(81))[3]

        def same(moved: Array, channel: Any = channel, z: Array = z) -> bool:
            one, two = (np.asarray(channel.forward(a, rng=subject.rng(82))) for a in (z, moved))
            return bool(np.allclose(one, two, rtol=1e-7, atol=1e-9))

        rng = subject.rng(83)
        if stated in ("signs", "signed-permutations"):
            for p in range(P):
                signs = np.ones((P, 1))
                signs[p] = -1
                if not same(signs * z):
                    raise CheckFailed(
                        f"symmetry is {stated!r}, but labels change with the sign of component {p + 1}"
                    )
        if stated.endswith("common-sign") and not same(-z):
            raise CheckFailed(f"symmetry is {stated!r}, but labels change with the sign of all components")
        if "permutations" in stated and P > 1 and not same(np.roll(z, 1, axis=1)):
            raise CheckFailed(f"symmetry is {stated!r}, but labels change when components change places")
        if stated == "rotations" and not same(np.linalg.qr(rng.standard_normal((P, P)))[0] @ z):
            raise CheckFailed("symmetry is 'rotations', but labels change with a rotation of the components")
        if stated in ("none", "permutations"):
            for p in range(P):
                signs = np.ones((P, 1))
                signs[p] = -1
                if same(signs * z):
                    raise CheckFailed(
                        f"symmetry is {stated!r}, but no label sees the sign of component {p + 1}: it can be learned up to "
                        "its "
                        "sign only. Say 'signs'"
                    )
        if stated in ("none", "permutations") and P > 1 and same(-z):
            raise CheckFailed(
                f"symmetry is {stated!r}, but no label sees the sign of all components at once. Say 'common-sign' or "
                "'permutations-common-sign'"
            )


@published(
    "channel",
    id="gradient",
    meaning="g = V^-1 (mean - omega) is not the gradient of log_partition: mean and partition function belong to "
    "different laws.",
)
def gradient(subject: Subject) -> None:
    """Central differences of sixth order, also for labels that are improbable under omega."""
    if not hasattr(subject.item, "log_partition"):
        raise CheckSkipped("it has no log_partition")
    channel = subject.item
    for model in subject.models:
        for q, v in POINTS:
            _, V, omega, _, y = latents(channel, model, 24, q, v, subject.rng(91))
            omega = omega + 0.5 * math.sqrt(v) * subject.rng(92).standard_normal(omega.shape)
            found = channel.posterior(y, omega, V, rng=subject.rng(93))
            g = np.linalg.inv(V) @ (found.mean - omega)
            direction = subject.rng(94).standard_normal(omega.shape)
            step = 0.05 * math.sqrt(v) / math.sqrt(direction[0].size)

            def along(
                k: int, omega: Array = omega, y: Array = y, V: Array = V, d: Array = step * direction
            ) -> Array:
                return np.asarray(channel.log_partition(y, omega + k * d, V), dtype=float)

            slope = (
                0.75 * (along(1) - along(-1)) - 0.15 * (along(2) - along(-2)) + (along(3) - along(-3)) / 60
            ) / step
            gap = np.median(np.abs(slope - np.sum(g * direction, axis=(1, 2)))) * step
            size = np.sqrt(np.mean(slope**2)) * step
            if not gap <= 1e-4 * size + 1e-9 + 20 * float(found.error) * 0.05:
                raise CheckFailed(
                    f"along a random direction log_partition changes by {np.median(np.abs(slope)):.4g} (median), "
                    f"g says otherwise by {gap / step:.2g} ({model.name}, V = {v})"
                )


@published(
    "channel",
    id="nishimori",
    statistical=True,
    meaning="The posterior is not the one that belongs to forward: with z drawn from N(omega, V) and its "
    "label, the error z - E[z|y] must be uncorrelated with everything known, and its covariance must "
    "be the one that is claimed. Algorithms that use this posterior are not Bayes-optimal and miss "
    "the theory.",
)
def nishimori(subject: Subject) -> None:
    """``E[f(y, omega) (z - mean)] = 0`` for many f; ``E[z z^T - second moment] = 0``; covariance as claimed."""
    tally = Tally()
    for model in subject.models:
        for point in range(len(POINTS)):
            _identities(tally, sampled(subject, model, point), f"{model.name}, V = {POINTS[point][1]}")
    tally.judge()


def _identities(tally: Tally, s: Sampled, where: str) -> None:
    n, P, C = s.z.shape
    white = np.linalg.inv(np.linalg.cholesky(s.V))
    error = (white @ (s.z - s.posterior.mean)).reshape(n, -1)
    shift = (white @ (s.posterior.mean - s.omega)).reshape(n, -1)
    slack = 5 * float(s.posterior.error)
    known = [
        ("tanh(V^-1/2 (mean - omega))", np.tanh(shift)),
        ("tanh(omega)", np.tanh(s.omega.reshape(n, -1))),
    ]
    known.append(("decided", shift * np.exp(-(shift**2))))
    known.append(("strange", np.tanh(np.sum(shift**2, axis=1, keepdims=True) / (P * C)) * np.tanh(shift)))
    label = s.y.reshape(n, -1)[:, :16].astype(float)
    spread = np.quantile(label, 0.75, axis=0) - np.quantile(label, 0.25, axis=0)
    label = np.tanh((label - np.median(label, axis=0)) / np.where(spread > 0, spread, 1.0))
    known.append(("label", label))
    known.append(("1", np.ones((n, 1))))
    for name, f in known:
        product = f[:, :, None] * error[:, None, :]
        tally.mean(f"E[f (z - mean)] / sqrt(V) with f = {name} at {where}", product, allowance=slack)
    sites = (white @ (s.z - s.posterior.mean)).reshape(n, P, C)
    squares = sites @ np.swapaxes(sites, 1, 2) / C
    claimed = white @ s.posterior.covariance @ white.T
    tally.mean(f"E[(z - mean)(z - mean)^T] in units of V at {where}", squares, claimed, allowance=2 * slack)
    flat = s.z.reshape(n, -1)
    scale = np.sqrt(np.mean(flat**2, axis=0))
    if s.posterior.second_moment is None:
        raise CheckFailed("posterior(..., second_moment=True) gives no second moment")
    moment = np.asarray(s.posterior.second_moment).reshape(n, P * C, P * C)
    gap = (flat[:, :, None] * flat[:, None, :] - moment) / (scale[:, None] * scale[None, :])
    tally.mean(f"E[z z^T - second_moment] in units of E[z^2] at {where}", gap, allowance=4 * slack)
    first = np.tanh(shift[:, :1, None])
    tally.mean(f"E[f (z z^T - second_moment)], f = tanh(shift) at {where}", first * gap, allowance=4 * slack)


@published(
    "channel",
    id="posterior",
    statistical=True,
    meaning="The posterior mean or second moment of single samples is wrong: brute force (drawing latents "
    "until the label fits, or weighing them by log_likelihood) finds another one.",
)
def posterior(subject: Subject) -> None:
    """Rejection with forward where labels have few values, importance sampling where there is a likelihood."""
    tally = Tally()
    for model in subject.models:
        channel = subject.completed(model)
        for point, (q, v) in enumerate(POINTS):
            _, V, omega, _, y = latents(channel, model, 8, q, v, subject.rng(101, point))
            found = channel.posterior(y, omega, V, second_moment=True, rng=subject.rng(102))
            root = np.linalg.cholesky(V)
            slack = 8 * float(found.error) * math.sqrt(v)
            for i in range(len(y)):
                z = omega[i] + root @ subject.rng(103, point, i).standard_normal((20_000, *omega.shape[1:]))
                weights = _weights(subject, channel, z, y[i], subject.rng(104, point, i))
                if weights.sum() ** 2 < 200 * np.sum(weights**2):
                    continue  # too few draws fit this label to say anything
                where = f"of a sample with label {_short(y[i])} at {model.name}, V = {v}"
                flat = z.reshape(len(z), -1)
                outer = flat[:, :, None] * flat[:, None, :]
                target = found.second_moment[i].reshape(outer.shape[1:])
                _weighted(tally, f"E[z | y] {where}", flat, weights, found.mean[i].ravel(), slack)
                size = 1 + np.abs(omega[i]).max()
                _weighted(tally, f"E[z z^T | y] {where}", outer, weights, target, 4 * slack * size)
    tally.judge()


def _short(value: Array) -> str:
    return np.array2string(np.asarray(value), precision=3, threshold=6).replace("\n", " ")


def _weights(subject: Subject, channel: Any, z: Array, y: Array, rng: np.random.Generator) -> Array:
    if np.asarray(y).dtype.kind in "iub" or _few_values(channel, z[:200]):
        drawn = np.asarray(channel.forward(z, rng=rng)).reshape(len(z), -1)
        return np.all(drawn == np.reshape(y, (1, -1)), axis=1).astype(float)
    if hasattr(subject.item, "log_likelihood"):
        repeated = np.broadcast_to(y, (len(z), *np.shape(y)))
        logs = np.asarray(subject.item.log_likelihood(repeated, z), dtype=float)
        return np.asarray(np.exp(logs - logs.max()))
    raise CheckSkipped(
        "labels are continuous and there is no log_likelihood to weigh latents with; 'nishimori' tests the posterior"
    )


def _few_values(channel: Any, z: Array) -> bool:
    drawn = np.asarray(channel.forward(z, rng=monte_carlo_rng("checks: prediction"))).reshape(len(z), -1)
    return len(np.unique(drawn, axis=0)) < len(z) // 4


def _weighted(tally: Tally, what: str, values: Array, weights: Array, target: Array, slack: float) -> None:
    """Self-normalised importance sampling, with the usual standard error of a ratio."""
    share = weights / weights.sum()
    flat = values.reshape(len(values), -1)
    mean = share @ flat
    error = np.sqrt(share**2 @ (flat - mean) ** 2)
    # A ratio is biased by about its variance over the mean; the effective number of draws says how much.
    bias = np.sqrt(share @ (flat - mean) ** 2) * np.sum(share**2)
    effective = 1 / np.sum(share**2)
    for value, goal, one, off in zip(mean, np.ravel(target), error, bias):
        tally.add(what, float(value), float(goal), float(one), slack + float(off), effective - 1)


@published(
    "channel",
    id="information",
    statistical=True,
    meaning="information(Q, V), which state evolution and thresholds are made of, is not the mean of g g^T "
    "over labels: theory and message passing would disagree.",
)
def information(subject: Subject) -> None:
    """``information(Q, V)`` against ``E sum_c g_c g_c^T`` with the channel's own posterior and labels."""
    tally = Tally()
    for model in subject.models:
        channel = subject.completed(model)
        if not hasattr(channel, "information"):
            raise CheckSkipped("it has no information: the engine takes it from the posterior itself")
        for point, (_, v) in enumerate(POINTS):
            s = sampled(subject, model, point)
            if point and len(s.z) == SAMPLES:  # integrals take their time; one point says it
                continue
            stated = channel_information(channel, model, s.Q, s.V)
            g = np.linalg.inv(s.V) @ (s.posterior.mean - s.omega)
            other = np.linalg.inv(s.V) @ (s.z - s.omega)
            square = g @ np.swapaxes(g, 1, 2)
            cross = (g @ np.swapaxes(other, 1, 2) + other @ np.swapaxes(g, 1, 2)) / 2
            size = model.sites / v
            allowed = 6 * np.abs(stated.error) + 2 * float(s.posterior.error) * size
            where = f"{model.name}, V = {v}"
            tally.mean(f"E sum_c g g^T at {where}", square, stated.value, allowance=allowed)
            tally.mean(f"E sum_c g (z - omega)^T V^-1 at {where}", cross, stated.value, allowance=allowed)
    tally.judge()


@published(
    "channel",
    id="vjp",
    meaning="The derivative of the label that gradient methods use is wrong.",
)
def vjp(subject: Subject) -> None:
    """``vjp(z, cotangent)`` against differences of the noiseless observable label along random directions."""
    for model in subject.models:
        channel = subject.completed(model)
        if not hasattr(channel, "vjp"):
            raise CheckSkipped("it has no vjp, and its labels have no derivative to take")
        _, _, _, z, _ = latents(channel, model, 40, 0.5, 0.6, subject.rng(111))
        direction = subject.rng(112).standard_normal(z.shape)
        cotangent = subject.rng(113).standard_normal(np.shape(predict(channel, z)))
        pulled = channel.vjp(z, cotangent)
        expect_array("vjp", pulled, z.shape, "float64", z)
        step = 1e-4

        def label(k: int, channel: Any = channel, z: Array = z, d: Array = step * direction) -> Array:
            return np.asarray(predict(channel, z + k * d), dtype=float)

        slope = (2 / 3 * (label(1) - label(-1)) - (label(2) - label(-2)) / 12) / step
        axes = tuple(range(1, slope.ndim))
        wanted = np.sum(slope * cotangent, axis=axes)
        got = np.sum(pulled * direction, axis=(1, 2))
        gap, size = np.median(np.abs(got - wanted)), np.sqrt(np.mean(wanted**2))
        if not gap <= 1e-5 * size + 1e-12:
            raise CheckFailed(
                f"along a random direction it differs from finite differences by {gap / size:.2g}"
            )


@published(
    "channel",
    id="problem",
    meaning="It cannot be put into a problem with every model that its capabilities name, or no data can be drawn.",
)
def problem(subject: Subject) -> None:
    """A small instance of every model, with labels that are numbers."""
    for model in subject.models:
        made = subject.problem(model)
        found = made.instance(0.5, 12, seed=subject.seed)
        if len(found.labels) != len(found.inputs):
            raise CheckFailed(f"{len(found.inputs)} inputs but {len(found.labels)} labels ({model.name})")
        metrics = found.metrics(made.prior.mean(made.components, 12))
        if not np.isfinite(metrics["mse"]).all():
            raise CheckFailed(f"the error of the prior mean is {metrics['mse']} ({model.name})")
