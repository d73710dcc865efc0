"""State evolution of several components: which fixed points there are, and which of them is Bayes-optimal.

Components that do not mix are learned one after the other: their fixed points are read off a curve, see
``smimbench.theory.continuation``. Where they do mix, the matrix-valued recursion is iterated for every sample ratio, upwards from
the prior mean and downwards from the signal, each time from the last fixed point, with Anderson's acceleration.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.theory.continuation import Staircase, components_are_apart, perfect_limit
from smimbench.theory.free_entropy import between, information_of
from smimbench.theory.scalar import NOTHING, Prediction, Threshold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.problem.problem import Problem

__all__ = ["competing", "iterate", "matrix_thresholds", "staircase", "sweep"]

Host = np.ndarray[Any, np.dtype[np.float64]]

SEED_OVERLAP = 1e-6
SAMPLED_SEED = 1e-2  # below that, sampled information is mostly noise
_INFORMED = 1e8
_MEMORY = 3
_LONGEST = 3.0
_FEW = 60
_PROBES = (0.5, 0.8, 0.97)

# A curve is dear and belongs to its problem: points and thresholds are asked for one after the other.
_STAIRCASES: WeakKeyDictionary[Any, Staircase | None] = WeakKeyDictionary()


def staircase(problem: Problem) -> Staircase | None:
    """The curve of fixed points of a problem whose components are apart, made once; None where they mix."""
    if problem not in _STAIRCASES:
        _STAIRCASES[problem] = Staircase(problem) if components_are_apart(problem) else None
    return _STAIRCASES[problem]


def competing(problem: Problem, alphas: Sequence[float]) -> list[list[Prediction]]:
    """All relevant fixed points for every sample ratio, the Bayes-optimal one first.

    One prediction with branch ``"unique"`` where the uninformed and the informed branch meet; otherwise both, each with its
    free entropy (larger is better; infinite for perfect recovery).
    """
    wanted = [float(alpha) for alpha in alphas]
    curve = staircase(problem)
    if curve is None:
        return _competing_sweeps(problem, wanted)
    # Two branches need a place where alpha falls along the curve, so the whole of it is asked for.
    if not curve.folds():
        return [[replace(curve.predict(alpha), branch="unique")] for alpha in wanted]
    result = []
    for alpha in wanted:
        low, high = curve.predict(alpha, "uninformed"), curve.predict(alpha, "informed")
        if _meet(problem, low, high):
            result.append([replace(low, branch="unique")])
        else:
            pair = [replace(p, free_entropy=curve.free_entropy(p)) for p in (low, high)]
            result.append(_ordered(pair))
    return result


def _meet(problem: Problem, low: Prediction, high: Prediction) -> bool:
    scale = float(np.max(np.diagonal(np.asarray(problem.prior.second_moment(problem.components)))))
    apart = np.abs(np.diagonal(low.V) - np.diagonal(high.V))
    return bool(np.all(apart <= 1e-6 * scale + 2 * (low.error + high.error)))


def _ordered(pair: list[Prediction]) -> list[Prediction]:
    return sorted(pair, key=lambda p: -p.free_entropy if p.free_entropy is not None else 0.0)


# -- components that mix ----------------------------------------------------------------------------------------------


def iterate(
    problem: Problem,
    alpha: float,
    branch: str = "uninformed",
    *,
    tolerance: float = 1e-9,
    max_iterations: int = 2000,
) -> Prediction:
    """Iterate ``Qhat = kappa alpha I(Q)``, ``Q = overlap(Qhat)`` to its fixed point, without tricks.

    The uninformed branch starts at the prior mean plus a small overlap (so that an unstable fixed point is left), the
    informed one from a nearly perfect estimate. The error combines the last step, extrapolated with the observed rate of
    convergence, and the numerical error of the information.
    """
    P = problem.components
    information = SEED_OVERLAP if branch == "uninformed" else _INFORMED
    overlap = problem.prior.overlap(information * np.eye(P))
    previous, rate = None, 0.0
    step = np.inf
    for _ in range(max_iterations):
        info = information_of(problem, np.asarray(overlap.Q), np.asarray(overlap.V))
        new = problem.prior.overlap(problem.model.kappa * alpha * np.asarray(info.value))
        step = float(np.abs(new.Q - overlap.Q).max())
        if previous:
            rate = min(step / previous, 0.999)
        previous = step
        overlap = new
        if step <= tolerance:
            break
    relative = float(np.max(np.abs(info.error) / np.maximum(np.abs(info.value), 1e-300)))
    error = (step * rate + np.diagonal(overlap.V) * min(relative, 1.0)) / (1 - rate)
    method = (
        info.method if step <= tolerance else f"{info.method}, {max_iterations} iterations were not enough"
    )
    return Prediction(float(alpha), overlap.Q, overlap.V, np.asarray(error), branch, method)


def sweep(
    problem: Problem, alphas: Sequence[float], branch: str = "uninformed"
) -> list[tuple[Prediction, Host]]:
    """Fixed points of one branch with their Qhat (P, P), each found from the one before.

    Upwards in alpha for the uninformed branch, downwards for the informed one: a branch only moves away from the other
    end when alpha does, so the last fixed point is on the right side of the next one. The error of V is what the numerical
    error of the information does to it, through the response of V to alpha, plus what is left of the residual.
    """
    P = problem.components
    upwards = branch == "uninformed"
    order = sorted(range(len(alphas)), key=lambda k: alphas[k] if upwards else -alphas[k])
    kappa = float(problem.model.kappa)
    start = None if upwards else _INFORMED * np.eye(P)
    solved: dict[int, tuple[Prediction, Host]] = {}
    seed = SEED_OVERLAP
    bottom = np.diagonal(np.asarray(problem.prior.mean_overlap(P)))
    for k in order:
        alpha = float(alphas[k])
        if start is None:
            found = problem.prior.overlap(np.zeros((P, P)))
            information = information_of(problem, np.asarray(found.Q), np.asarray(found.V))
            start = kappa * alpha * np.asarray(information.value)
            seed = SAMPLED_SEED if "Monte Carlo" in information.method else SEED_OVERLAP
        start = start + seed * np.eye(P)
        qhat, relative, residual, method = _accelerated(problem, alpha, start)
        # The response to alpha, from a second fixed point close by.
        shift = 0.01
        # A residual far below the shift is enough.
        beside = _accelerated(problem, alpha * (1 - shift if upwards else 1 + shift), qhat, 0.05 * shift)[0]
        Q, V = _overlap(problem, qhat)
        other = _overlap(problem, beside)[1]
        response = np.abs(np.diagonal(V - other)) / shift
        # The residual is one of log Qhat: what has hardly been learned cannot move V by more than that little.
        movable = np.minimum(np.diagonal(V), np.abs(np.diagonal(Q) - bottom))
        error = response * relative + movable * min(residual, 1.0) * 10
        solved[k] = Prediction(alpha, Q, V, error + 1e-12, branch, method), qhat
        start = qhat
    return [solved[k] for k in range(len(alphas))]


def _overlap(problem: Problem, qhat: Host) -> tuple[Host, Host]:
    found = problem.prior.overlap(qhat)
    return np.asarray(found.Q), np.asarray(found.V)


def _logarithm(qhat: Host) -> Host:
    values, vectors = np.linalg.eigh((qhat + qhat.T) / 2)
    floor = max(float(values.max()), 1e-300) * 1e-12
    return np.asarray((vectors * np.log(np.maximum(values, floor))) @ vectors.T)


def _exponential(log: Host) -> Host:
    values, vectors = np.linalg.eigh((log + log.T) / 2)
    return np.asarray((vectors * np.exp(np.minimum(values, 60.0))) @ vectors.T)


def _accelerated(
    problem: Problem, alpha: float, start: Host, enough: float = 1e-10
) -> tuple[Host, float, float, str]:
    """Fixed point of ``Qhat -> kappa alpha I(overlap(Qhat))``: Qhat, relative error of I, residual, method.

    Anderson's acceleration in the matrix logarithm, where growth by a factor is a constant step.
    """
    kappa = float(problem.model.kappa)
    upper = np.triu_indices(len(start))

    def mapped(log: Host) -> tuple[Host, Any]:
        Q, V = _overlap(problem, _exponential(log))
        information = information_of(problem, Q, V)
        return _logarithm(kappa * alpha * np.asarray(information.value)), information

    x = _logarithm(start)
    points: list[Host] = []
    steps: list[Host] = []
    residual, best = np.inf, np.inf
    information: Any = None
    for _ in range(_FEW):
        image, information = mapped(x)
        step = image - x
        residual = float(np.abs(step).max())
        value = np.asarray(information.value)
        error = np.broadcast_to(np.asarray(information.error, dtype=float), value.shape)
        relative = float(np.max(np.diagonal(error) / np.maximum(np.diagonal(value), 1e-300)))
        if residual <= max(enough, 0.02 * relative) or np.diagonal(x).min() > np.log(1e14):
            x = image
            break
        if residual > 2 * best:
            points, steps = [], []  # the history misleads
        best = min(best, residual)
        points, steps = [*points[-_MEMORY:], x], [*steps[-_MEMORY:], step]
        x = image
        if len(steps) > 1:
            changes = np.stack([(b - a)[upper] for a, b in itertools.pairwise(steps)], axis=-1)
            moves = np.stack([(b - a)[upper] for a, b in itertools.pairwise(points)], axis=-1)
            weights = np.linalg.lstsq(changes, step[upper], rcond=1e-8)[0]
            move = step[upper] - (moves + changes) @ weights
            longest = float(np.abs(move).max())
            move = move * min(1.0, _LONGEST / longest) if longest > 0 else move
            x = points[-1].copy()
            x[upper] += move
            x.T[upper] = x[upper]
    else:
        return _exponential(x), relative, residual, f"{information.method}, {_FEW} iterations were not enough"
    return _exponential(x), relative, residual, information.method


def _competing_sweeps(problem: Problem, alphas: list[float]) -> list[list[Prediction]]:
    if not alphas:
        return []
    perfect = perfect_limit(problem)
    lower, upper = sweep(problem, alphas, "uninformed"), sweep(problem, alphas, "informed")
    result = []
    for (low, low_qhat), (high, high_qhat) in zip(lower, upper):
        if perfect is not None and high.alpha >= perfect.value and np.diagonal(high.V).max() < 1e-6:
            high = _perfect(problem, high)
            if np.diagonal(low.V).max() < 1e-6:
                low = _perfect(problem, low)
        if _meet(problem, low, high):
            result.append([replace(low, branch="unique")])
        elif not high.V.any():
            result.append([replace(high, free_entropy=float("inf")), replace(low, free_entropy=0.0)])
        else:
            lead, _ = between(problem, low.alpha, low_qhat, high_qhat)
            result.append(_ordered([replace(low, free_entropy=0.0), replace(high, free_entropy=lead)]))
    return result


def _perfect(problem: Problem, prediction: Prediction) -> Prediction:
    P = problem.components
    second = np.asarray(problem.prior.second_moment(P), dtype=float)
    return replace(
        prediction, Q=second, V=np.zeros((P, P)), error=np.zeros(P), method="counting of equations"
    )


# -- thresholds -------------------------------------------------------------------------------------------------------


def matrix_thresholds(problem: Problem) -> dict[str, Any]:
    """All thresholds of a problem with several components as plain data.

    Returns
    -------
    dict
        ``weak_recovery`` and ``perfect_recovery``: ``{"value", "error"}`` or None; ``sequential``: a list of ``{"layer",
        "value", "error"}`` in the order learned (layers count from 1); ``hard_phase``: ``[from, to]`` or None.
    """
    curve = staircase(problem)
    if curve is None:
        return _sweep_thresholds(problem)
    curve.follow_events()
    hard = _hard_phase(curve)
    events = [e for e in curve.events if e.alpha > 0 or curve.bottom[e.component] == 0]
    found: dict[str, Any] = {
        "weak_recovery": _document(curve.weak_recovery()),
        "perfect_recovery": _document(curve.perfect),
        "sequential": [{"layer": e.component + 1, "value": e.alpha, "error": e.error} for e in events],
        "hard_phase": list(hard) if hard else None,
    }
    if hard and curve.perfect is not None and hard[1] > curve.perfect.value:
        # Where V = 0 becomes stable, and where the uninformed branch gets there.
        found["perfect_recovery"] = {
            "value": hard[1],
            "error": max(curve.perfect.error, curve.error_at_top()),
            "branch": "uninformed",
            "informed": _document(curve.perfect),
        }
    return found


def _document(threshold: Threshold | None) -> dict[str, float] | None:
    return None if threshold is None else {"value": threshold.value, "error": threshold.error}


def _hard_phase(curve: Staircase) -> tuple[float, float] | None:
    """Sample ratios between which the Bayes-optimal fixed point is better than what the uninformed branch reaches."""
    if not curve.folds():
        return None
    _, _, log_alpha = curve.path()
    low, top = float(np.exp(log_alpha.min())), float(np.exp(np.maximum.accumulate(log_alpha).max()))
    if curve.perfect is not None:
        low = min(low, curve.perfect.value)

    def lead(alpha: float) -> float:
        """Free entropy of the informed branch less that of the uninformed one; 0 where they meet."""
        uninformed, informed = curve.predict(alpha, "uninformed"), curve.predict(alpha, "informed")
        if _meet(curve.problem, uninformed, informed):
            return 0.0
        return curve.free_entropy(informed) - curve.free_entropy(uninformed)

    grid = np.exp(np.linspace(np.log(low), np.log(top), 201))[1:-1]
    ahead = np.array([lead(alpha) for alpha in grid]) > 0
    if not ahead.any():
        return None
    where = np.flatnonzero(ahead)
    ends = []
    for inside, outside in ((where[0], where[0] - 1), (where[-1], where[-1] + 1)):
        good = float(grid[inside])
        bad = low if outside < 0 else top if outside >= len(grid) else float(grid[outside])
        for _ in range(40):
            middle = (good + bad) / 2
            good, bad = (middle, bad) if lead(middle) > 0 else (good, middle)
        ends.append(good)
    return ends[0], ends[1]


def _sweep_thresholds(problem: Problem) -> dict[str, Any]:
    P = problem.components
    bottom = np.asarray(problem.prior.mean_overlap(P), dtype=float)
    found = problem.prior.overlap(np.zeros((P, P)))
    Q, V = np.asarray(found.Q), np.asarray(found.V)
    information = information_of(problem, Q, V)
    value, error = np.asarray(information.value), np.asarray(information.error, dtype=float)
    perfect = perfect_limit(problem)
    weak: Threshold | None = None
    if bool((np.diagonal(value) > NOTHING + 3 * np.max(error)).any()):
        weak = Threshold(0.0, 0.0) if not bottom.any() else None
    elif not bottom.any():
        weak = _spectral_threshold(problem, Q, V)
    hard = None
    if perfect is not None:
        for alpha, branches in zip(_PROBES, competing(problem, [p * perfect.value for p in _PROBES])):
            if len(branches) > 1 and branches[0].branch == "informed":
                start = alpha * perfect.value
                hard = [min(start, hard[0]) if hard else start, perfect.value]
    return {
        "weak_recovery": _document(weak),
        "perfect_recovery": _document(perfect),
        "sequential": [],
        "hard_phase": hard,
    }


def _spectral_threshold(problem: Problem, Q: Host, V: Host) -> Threshold | None:
    r"""Where the prior mean becomes unstable: the linear map ``dQ -> E \sum_{cc'} G_cc' dQ G_cc'^T`` has the eigenvalue 1."""
    value, error = linear_response(problem, Q, V)
    P = len(Q)
    eigenvalues, vectors = np.linalg.eig(value.reshape(P * P, P * P))
    leading = int(np.argmax(eigenvalues.real))
    rate = float(problem.model.kappa) * float(eigenvalues[leading].real)
    if not rate > 0:
        return None
    doubt = float(np.abs(vectors[:, leading]) @ error.reshape(P * P, P * P) @ np.abs(vectors[:, leading]))
    return Threshold(1 / rate, float(problem.model.kappa) * doubt / rate**2)


def linear_response(problem: Problem, Q: Host, V: Host) -> tuple[Host, Host]:
    r"""The linearised state evolution ``dI_ab / dQ_cd = E \sum_{kl} G_{ak,cl} G_{bk,dl}`` (P, P, P, P) and its error.

    ``G = V^{-1} (E[z z^T | y] - V) V^{-1}`` at a prior mean that says nothing (``E[z | y] = 0``), by sampled labels.
    """
    from smimbench.numerics.qmc import normal_points
    from smimbench.theory.sampling import SCRAMBLES, controlled_mean

    channel, sites, P = problem.channel, problem.model.sites, problem.components
    root, inverse = np.linalg.cholesky(V), np.linalg.inv(V)
    points = 2**10
    samples, controls = [], []
    for scramble in range(SCRAMBLES):
        z = root @ normal_points(P * sites, points, "perfect recovery: latents", scramble).reshape(
            points, P, sites
        )
        rng = monte_carlo_rng("perfect recovery: labels", scramble)
        y = channel.forward(z, rng=rng)
        moment: Any = channel.posterior(y, np.zeros_like(z), V, second_moment=True, rng=rng).second_moment
        G: Any = np.einsum("pq,nqcrd,rs->npcsd", inverse, moment, inverse)
        for c in range(sites):
            G[:, :, c, :, c] -= inverse
        samples.append(np.einsum("nakcl,nbkdl->nabcd", G, G).reshape(points, -1))
        controls.append(np.einsum("npcqc->npq", G).reshape(points, -1))
    value, error = controlled_mean(samples, controls)
    return value.reshape(P, P, P, P), error.reshape(P, P, P, P)
