r"""Checks a reported point of theory by plain Monte Carlo: draws of teacher, label and posterior at its overlap,
against Qhat, MSE, stability and errors of prediction.

A point says that the overlap Q is a fixed point at the sample ratio alpha. At that overlap ``omega ~ N(0, Q)``,
``z ~ N(omega, V)`` and a label of z are drawn, the channel's posterior mean m gives ``g = V^{-1} (m - omega)``, and the point
holds if

.. math:: \hat Q(Q) = \kappa \alpha E \sum_c g_c g_c^T = \kappa \alpha E \sum_c g_c h_c^T, \qquad h = V^{-1} (z - \omega).

The first mean asks the posterior alone, the second one the teacher. Nothing that makes theory precise is used here: no control
variates, no weights, no quasi-random points, no formula for the information, no interpolation. So numbers are coarse, and their
standard errors are those of independent draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.derive.labels import predict_twice
from smimbench.derive.prior import why_theory_only
from smimbench.interfaces import Posterior
from smimbench.numerics.linalg import inverse_root, spectral_function, symmetric_logarithm, symmetric_root
from smimbench.numerics.seeds import monte_carlo_rng, words
from smimbench.numerics.statistics import FEWEST_EFFECTIVE, effective_sample_size
from smimbench.theory.component_ratios import ComponentRatios
from smimbench.theory.generalization import FAINT
from smimbench.theory.information import information_at, inverse_map, overlap_at, overlap_error_at, prior_moments
from smimbench.theory.types import NOTHING, Host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smimbench.problem.problem import Problem

__all__ = ["DRAWS", "Check", "verify_information", "verify_point"]

DRAWS = 20_000
"""Draws of a point; doubled, errors 1.4 times smaller are found and it takes twice as long."""
CHUNK, SHARING = 5_000, 1_000
"""Draws that are held at once, and that share the points of a sampled posterior, with an error of 1 to 2% of their mean. Doubled:
twice the memory; what the mean of all draws keeps of that error is 1.4 times as large."""
STEP = 0.05
"""Half the step in log Qhat of a derivative; doubled, its bias is four times as large and its noise half."""
SMALL = 1e-6
"""Share of the second moment that is unknown where the stability of perfect recovery is tested; doubled, so is the bias."""
MATRICES, DIMENSION = 12, 60
"""Signals of extensive rank that are drawn, at this dimension and twice that; doubled, it takes 2 or 8 times as long."""
FEWEST_DRAWS = 100
"""Fewer draws have no standard error that could be believed."""


@dataclass(frozen=True)
class Check:
    """One reported number and its value from draws.

    Attributes
    ----------
    quantity : str
        ``"Qhat (posterior)"`` and ``"Qhat (teacher)"``: the Qhat of the printed overlap against ``kappa alpha I`` from either
        mean, with the error of alpha; ``"MSE"``: error of the fixed point at the printed sample ratio, by one Newton step;
        ``"signal"``: error of the denoised signal; ``"unlearned"`` and ``"perfect recovery"``: a rate that must not be above 1
        for the point to be stable; ``"generalization bayes"`` etc.
    component : int or None
        From 0.
    printed, error, drawn, standard_error : float
    bound : bool
        Whether the printed number is an upper bound.
    effective : float
        How many draws carry the mean, ``(sum |x|)^2 / sum x^2``.
    """

    quantity: str
    component: int | None
    printed: float
    error: float
    drawn: float
    standard_error: float
    bound: bool = False
    effective: float = math.inf

    @property
    def decided(self) -> bool:
        """Whether enough draws carry the mean, or none should; otherwise neither its standard error nor z means anything."""
        return self.effective >= FEWEST_EFFECTIVE or self.printed == self.error == self.drawn == 0.0

    @property
    def z(self) -> float:
        """Distance in units of both errors; 0 below a bound, and where the draws do not decide."""
        if not self.decided:
            return 0.0
        gap = self.drawn - self.printed
        width = math.hypot(self.error, self.standard_error, 1e-9 * max(abs(self.printed), 1e-3))
        return 0.0 if self.bound and gap < 0 else gap / width

    def document(self) -> dict[str, Any]:
        """As plain data; components count from 1."""
        named = {
            name: getattr(self, name) for name in ("quantity", "printed", "error", "drawn", "standard_error", "bound")
        }
        component = None if self.component is None else self.component + 1
        return {**named, "component": component, "z": self.z if self.decided else None}


def verify_point(
    problem: Problem, point: dict[str, Any], draws: int = DRAWS, on_draws: Callable[[int], None] = lambda count: None
) -> list[Check]:
    """Compare every number of a reported point with plain draws.

    Parameters
    ----------
    point : dict
        As in the JSON of ``theory``; read are ``alpha``, ``alpha_error``, ``overlap``, ``mse`` and the errors of prediction.
    draws : int
        Independent draws; standard errors fall with their root.
    on_draws : callable
        Called with the number of draws of the channel made since the last call, to show progress.

    Returns
    -------
    list of Check

    Raises
    ------
    ValueError
        Fewer than 100 draws.
    """
    if draws < FEWEST_DRAWS:
        raise ValueError(f"draws must be at least {FEWEST_DRAWS}, got {draws}")
    return _PointByDraws(problem, point, draws, on_draws).checks()


def verify_information(problem: Problem, Q: Host, V: Host, draws: int = DRAWS) -> list[Check]:
    """The diagonal of ``E sum_c g_c g_c^T`` at an overlap, with its stated error, against both means over plain draws.

    Components without overlap are left out: their information is 0 for every draw, or nearly so.
    """
    place = {"alpha": 1.0, "overlap": Q, "mse": np.diagonal(V), "branch": str(np.diagonal(Q).tolist())}
    point = _PointByDraws(problem, place, draws, lambda count: None)
    own, cross, bias = point._draw(Q, V, draws)
    printed = information_at(problem, Q, V)
    found = []
    for name, samples, stated in (("posterior", own, bias), ("teacher", cross, 0.0)):
        for a in point.learned:
            one = samples[:, a, a]
            sem = math.hypot(one.std(ddof=1) / math.sqrt(draws), stated / V[a, a])
            value, error = float(printed.value[a, a]), float(printed.error[a, a])
            found.append(
                Check(
                    f"information ({name})",
                    a,
                    value,
                    error,
                    float(one.mean()),
                    sem,
                    effective=effective_sample_size(one),
                )
            )
    return found


class _PointByDraws:
    """A reported point and the draws at its overlap."""

    def __init__(self, problem: Problem, point: dict[str, Any], draws: int, on_draws: Callable[[int], None]) -> None:
        self.problem, self.point, self.draws, self.on_draws = problem, point, draws, on_draws
        self.alpha, P = float(point["alpha"]), problem.components
        self.kappa = float(problem.model.kappa)
        self.second, self.bottom = prior_moments(problem)
        self.Q = np.asarray(point["overlap"], dtype=float).reshape(P, P)
        self.mse = np.asarray(point["mse"], dtype=float).reshape(P)
        self.V = self.second - self.Q
        np.fill_diagonal(self.V, self.mse)  # the difference has lost the digits of small errors
        gained = np.diagonal(self.Q) - np.diagonal(self.bottom)
        self.learned = [int(a) for a in np.flatnonzero(gained > NOTHING * np.diagonal(self.second))]
        # Other points and problems get other draws: their deviations are independent.
        self.stream = words(f"{problem.identity} {self.alpha!r} {point.get('branch')}", 2)

    def _rng(self, purpose: str, *index: int) -> np.random.Generator:
        return monte_carlo_rng(f"verification: {purpose}", *self.stream, *index)

    def _posterior(self, y: Any, omega: Host, V: Host, chunk: int, *, second_moment: bool = False) -> Posterior:
        """Posterior of the latents of a chunk; points that it samples are new ones for every thousand draws."""
        channel, rng = self.problem.channel, self._rng("posterior", chunk)
        resampled = None if channel.sampling is None else channel.sampling.resampled
        if resampled is None:
            return channel.posterior(y, omega, V, second_moment=second_moment, rng=rng)
        parts = []
        for part, start in enumerate(range(0, len(omega), SHARING)):
            own, rows = resampled(chunk * -(-CHUNK // SHARING) + part), slice(start, start + SHARING)
            parts.append(own.posterior(y[rows], omega[rows], V, second_moment=second_moment, rng=rng))
        sizes = [len(part.mean) for part in parts]
        return Posterior(
            np.concatenate([part.mean for part in parts]),
            np.average([part.covariance for part in parts], axis=0, weights=sizes),
            np.concatenate([part.second_moment for part in parts]) if second_moment else None,
            max(float(part.error) for part in parts),
        )

    def checks(self) -> list[Check]:
        """All of them."""
        if not self.mse.any():
            return [*self._perfect(), *self._predictions()]
        found: list[Check] = []
        if self.learned:
            self.qhat = inverse_map(self.problem, self.Q, self.V, self.learned)
            found += [*self._fixed_point(), *self._signal()]
        if self.point.get("branch") != "informed":
            found += self._unlearned()
        return [*found, *self._predictions()]

    # -- draws of the channel -----------------------------------------------------------------------------------------

    def _chunks(self, Q: Host, V: Host, draws: int) -> Iterator[tuple[int, Host, Host, Any]]:
        """By chunk: its number, means of the latents, the latents less their means, their labels."""
        shape = (self.problem.components, self.problem.model.sites)
        channel: Any = self.problem.channel
        root_Q, root_V = symmetric_root(Q), symmetric_root(V)
        for chunk, start in enumerate(range(0, draws, CHUNK)):
            n = min(CHUNK, draws - start)
            normal = self._rng("latents", chunk).standard_normal((2, n, *shape))
            omega, shift = root_Q @ normal[0], root_V @ normal[1]
            yield chunk, omega, shift, channel.forward(omega + shift, rng=self._rng("labels", chunk))
            self.on_draws(n)

    def _draw(self, Q: Host, V: Host, draws: int) -> tuple[Host, Host, float]:
        """``sum_c g g^T`` and ``sum_c (g h^T + h g^T) / 2`` (n, P, P) of every draw, and the stated error of the first mean."""
        inverse = np.linalg.inv(V)
        own, cross, stated = [], [], 0.0
        for chunk, omega, shift, y in self._chunks(Q, V, draws):
            found = self._posterior(y, omega, V, chunk)
            g, h = inverse @ (np.asarray(found.mean) - omega), inverse @ shift
            own.append(g @ np.swapaxes(g, 1, 2))
            mixed = g @ np.swapaxes(h, 1, 2)
            cross.append((mixed + np.swapaxes(mixed, 1, 2)) / 2)
            stated = max(stated, float(found.error))
        # An error of the posterior mean adds its square to the mean square.
        return np.concatenate(own), np.concatenate(cross), self.problem.model.sites * stated**2

    def _fixed_point(self) -> list[Check]:
        own, cross, bias = self._draw(self.Q, self.V, self.draws)
        found = []
        for name, samples, stated in (("posterior", own, bias), ("teacher", cross, 0.0)):
            mean, sem = samples.mean(0), samples.std(0, ddof=1) / math.sqrt(len(samples))
            for a, b in self._pairs():
                scale, relative = self.kappa * self.alpha, max(self._error("alpha", c) for c in (a, b)) / self.alpha
                spread = scale * math.hypot(sem[a, b], stated / math.sqrt(self.V[a, a] * self.V[b, b]))
                error = relative * math.sqrt(self.qhat[a, a] * self.qhat[b, b])
                quantity, component = (f"Qhat ({name})", a) if a == b else (f"Qhat {a + 1}{b + 1} ({name})", None)
                drawn, carried = scale * float(mean[a, b]), min(effective_sample_size(samples[:, c, c]) for c in (a, b))
                found.append(
                    Check(quantity, component, self.qhat[a, b], error, drawn, float(spread), effective=carried)
                )
        return found + self._errors(own)

    def _pairs(self) -> list[tuple[int, int]]:
        """Entries of Qhat that are compared: the diagonal, then all others if there are any."""
        diagonal = [(a, a) for a in self.learned]
        off = [(a, b) for a in self.learned for b in self.learned if a < b]
        mixed = np.abs(self.qhat - np.diag(np.diagonal(self.qhat))).max() > 1e-6 * np.diagonal(self.qhat).max()
        return [*diagonal, *off] if mixed else diagonal

    def _errors(self, own: Host) -> list[Check]:
        """Error of the fixed point at the printed sample ratio: a Newton step in the entries of log Qhat."""
        if min(effective_sample_size(own[:, a, a]) for a in self.learned) < FEWEST_EFFECTIVE:
            return []  # a step from means that are not known leads nowhere; that they are not, their own rows say
        pairs, learned, kept = self._pairs(), self.learned, np.ix_(self.learned, self.learned)
        rows, columns = np.array([[learned.index(a) for a in pair] for pair in pairs]).T
        units = np.eye(len(pairs))
        log = symmetric_logarithm(self.qhat[kept])

        def entries(matrix: Host) -> Host:
            return np.asarray(matrix[rows, columns])

        def filled(values: Any) -> Host:
            """The symmetric matrix with these entries."""
            matrix = np.zeros_like(log)
            matrix[rows, columns] = matrix[columns, rows] = values
            return matrix

        def moved(step: Any) -> tuple[Host, Host]:
            """Q and V after a step of the entries of log Qhat."""
            qhat = np.zeros_like(self.qhat)
            qhat[kept] = spectral_function(log + filled(step), np.exp)
            return overlap_at(self.problem, qhat)

        # Only the diagonal is asked where labels do not see signs: sampled entries off it are noise.
        mask = np.ones_like(log) if len(pairs) > len(learned) else np.eye(len(log))
        part = own[::4]  # the derivative may be noisier
        enough = min(effective_sample_size(part[:, a, a]) for a in learned) >= FEWEST_EFFECTIVE
        count = max(len(part) if enough else len(own), FEWEST_DRAWS)
        jacobian = np.zeros_like(units)
        for k, unit in enumerate(units):
            one, two = (
                entries(symmetric_logarithm(mask * self._draw(*moved(sign * STEP * unit), count)[0].mean(0)[kept]))
                for sign in (1.0, -1.0)
            )
            jacobian[:, k] = (one - two) / (2 * STEP)
        jacobian -= units
        mean = mask * own.mean(0)[kept]
        residual = entries(symmetric_logarithm(self.kappa * self.alpha * mean)) - entries(log)
        # How the residual follows the entries of the information, to first order.
        samples = np.stack([own[:, a, b] for a, b in pairs], axis=1)
        covariance = np.atleast_2d(np.cov(samples, rowvar=False)) / len(own)
        derivative = np.zeros_like(units)
        for k, unit in enumerate(units):
            size = 1e-4 * math.sqrt(mean[rows[k], rows[k]] * mean[columns[k], columns[k]])
            change = filled(size * unit)
            gap = symmetric_logarithm(mean + change) - symmetric_logarithm(mean - change)
            derivative[:, k] = entries(gap) / (2 * size)
        step = -np.linalg.lstsq(jacobian, residual, rcond=None)[0]
        response = np.linalg.lstsq(jacobian, derivative, rcond=None)[0]
        slopes = np.stack(
            [np.diagonal(moved(1e-4 * unit)[1] - moved(-1e-4 * unit)[1]) / 2e-4 for unit in units], axis=1
        )
        long = float(np.abs(step).max()) > 1
        drawn = np.diagonal(self.V) + slopes @ step if long else np.diagonal(moved(step)[1])
        sem = np.sqrt(np.einsum("ak,kl,al->a", slopes, response @ covariance @ response.T, slopes))
        return [
            Check("MSE", a, float(self.mse[a]), self._error("mse", a), float(drawn[a]), float(sem[a])) for a in learned
        ]

    def _error(self, name: str, a: int) -> float:
        """Error of a printed number of a component; 0 where none is printed."""
        return float(np.broadcast_to(np.asarray(self.point.get(f"{name}_error", 0.0), dtype=float), len(self.V))[a])

    def _unlearned(self) -> list[Check]:
        """Whether components at their lowest overlap stay there at this sample ratio."""
        rest = [a for a in range(len(self.V)) if a not in self.learned]
        if not rest or np.abs(self.Q[np.ix_(rest, rest)] - self.bottom[np.ix_(rest, rest)]).max() > NOTHING:
            return []
        ratios = ComponentRatios(self.problem)
        waiting = [a for a in rest if ratios.critical[a] == 0]
        found = []
        if any(a not in waiting for a in rest):
            own, _, bias = self._draw(self.Q, self.V, self.draws)
            for a in (a for a in rest if a not in waiting):
                scale = self.kappa * self.alpha / ratios.critical[a]
                sem = math.hypot(own[:, a, a].std() / math.sqrt(len(own)), bias / self.V[a, a])
                drawn, carried = float(scale * own[:, a, a].mean()), effective_sample_size(own[:, a, a])
                found.append(Check("unlearned", a, 1.0, 0.0, drawn, scale * sem, bound=True, effective=carried))
        if waiting and self.problem.channel.symmetry in ("signs", "signed-permutations"):
            growth = self._growth(waiting)
            for a, samples in zip(waiting, growth.T):
                scale = self.kappa * self.alpha * ratios.response[a]
                sem = samples.std(ddof=1) / math.sqrt(len(samples))
                error, drawn = self._error("alpha", a) / self.alpha, float(scale * samples.mean())
                found.append(Check("unlearned", a, 1.0, error, drawn, float(scale * sem), bound=True))
        return found

    def _growth(self, waiting: list[int]) -> Host:
        """``sum_cc' G_cc'^2`` (n, len(waiting)) of every draw: the rate at which a small overlap makes information."""
        rows = []
        for chunk, omega, _, y in self._chunks(self.Q, self.V, self.draws):
            moment = np.asarray(self._posterior(y, omega, self.V, chunk, second_moment=True).second_moment)
            G = [moment[:, a, :, a, :] / self.V[a, a] - np.eye(omega.shape[2]) for a in waiting]
            rows.append(np.stack([(g * g).sum((1, 2)) / self.V[a, a] ** 2 for g, a in zip(G, waiting)], axis=1))
        return np.concatenate(rows)

    def _perfect(self) -> list[Check]:
        """Whether an error close to zero shrinks: ``kappa alpha I`` against the Qhat at which it was."""
        # What is unknown has the covariance of the prior: components may share a mean, but no error.
        V = SMALL * (self.second - self.bottom)
        Q = self.second - V
        everything = np.arange(len(V))
        qhat = inverse_map(self.problem, Q, V, everything)
        own, _, bias = self._draw(Q, V, self.draws)
        samples = np.einsum("npq,qp->n", own, np.linalg.inv(qhat)) / len(V)
        scale = self.kappa * self.alpha
        drawn, sem = scale * samples.mean(), scale * samples.std(ddof=1) / math.sqrt(len(samples))
        slack = scale * bias * float(np.trace(np.linalg.inv(qhat) @ np.linalg.inv(V))) / len(V)
        # Written as a rate at which the error grows, so that the bound is an upper one like others.
        spread = float(math.hypot(sem, slack) / drawn**2)
        return [
            Check("perfect recovery", None, 1.0, 0.0, float(1 / drawn), spread, True, effective_sample_size(samples))
        ]

    # -- draws of the signal, and of fresh labels ---------------------------------------------------------------------

    def _signal(self) -> list[Check]:
        """Error of the denoised signal at the printed Qhat."""
        prior, model, P = self.problem.prior, self.problem.model, self.problem.components
        if why_theory_only(prior, P):
            return []
        low = model.rank == "low"
        root = inverse_root(self.qhat, 1e-12)

        def squares(dimension: int, index: int) -> Host:
            """Squared errors (P, columns) of one draw, or (P, 1) of a matrix."""
            rng = self._rng("signal", dimension, index)
            signal = np.asarray(prior.sample(rng, P, dimension), dtype=float)
            R = signal + np.tensordot(root, model.draw_noise(rng, P, dimension), axes=1)
            gap = signal - np.asarray(prior.denoise(R, self.qhat).estimate)
            return np.asarray(gap * gap) if low else np.diagonal(model.inner(gap, gap))[:, None]

        carried: Host = np.full(P, math.inf)
        if low:
            columns = squares(self.draws, 0)
            carried = effective_sample_size(columns.T)
            drawn, sem = columns.mean(1), columns.std(1, ddof=1) / math.sqrt(self.draws)
        else:
            # Matrices of finite size: what their size does is taken to fall as its inverse, and counted as an error.
            small, large = (
                np.concatenate([squares(factor * DIMENSION, k) for k in range(MATRICES)], axis=1) for factor in (1, 2)
            )
            drawn = 2 * large.mean(1) - small.mean(1)
            spreads = [2 * large.std(1, ddof=1), small.std(1, ddof=1)]
            sem = np.hypot(*spreads) / math.sqrt(MATRICES)
            sem = np.hypot(sem, large.mean(1) - small.mean(1))
        slack = overlap_error_at(self.problem, self.qhat)
        return [
            Check(
                "signal", a, float(self.mse[a]), slack * float(self.mse[a]), float(drawn[a]), float(sem[a]),
                effective=float(carried[a]),
            )
            for a in self.learned
        ]  # fmt: skip

    def _predictions(self) -> list[Check]:
        """Errors of prediction, from two draws of the posterior: the truth is one of them."""
        printed = self.point.get("generalization_error")
        if not printed:
            return []
        P, C = self.problem.components, self.problem.model.sites
        root_Q, root_V = symmetric_root(self.Q), symmetric_root(self.V)
        normal = self._rng("prediction").standard_normal((3, self.draws, P, C))
        omega = root_Q @ normal[0] + FAINT * normal[0]
        truth, other, plugin = (
            [np.asarray(y, dtype=float).reshape(self.draws, -1) for y in predict_twice(self.problem.channel, z)]
            for z in (omega + root_V @ normal[1], omega + root_V @ normal[2], omega)
        )
        losses = {
            "bayes": ((truth[0] - other[0]) * (truth[1] - other[1])).sum(1) / 2,
            "plugin": ((truth[0] - plugin[0]) * (truth[1] - plugin[1])).sum(1),
            "constant": ((truth[0] - truth[0].mean(0)) * (truth[1] - truth[1].mean(0))).sum(1)
            * self.draws
            / (self.draws - 1),
        }
        errors = self.point.get("generalization_error_error") or {}
        return [
            Check(
                f"generalization {kind}", None, float(printed[kind]), float(errors.get(kind, 0.0)),
                float(loss.mean()), math.hypot(loss.std(ddof=1) / math.sqrt(self.draws), 2 * loss.mean() / self.draws),
                effective=effective_sample_size(loss),
            )  # of balanced labels the first term vanishes, and what is left is of second order
            for kind, loss in losses.items()
            if kind in printed
        ]  # fmt: skip
