r"""State evolution of GAMP off the Bayes-optimal line: with wrong assumptions, for data of another channel or prior than it
knows, and from a random start, whose overlap with the signal is chance and not what it claims.

Order parameters are the overlap M of the estimate with the signal (rows: estimate), Q with itself, and V, its mean posterior
variance under the assumptions. With latents ``z`` of the signal and ``omega`` of the estimate, jointly Gaussian with covariances
T, M and Q, labels y of the true channel, and ``g`` the assumed channel's ``V^{-1} (E[z | y, omega, V] - omega)``,

.. math::

    \hat Q = -\kappa \alpha E \sum_c \frac{\partial g_c}{\partial \omega_c}, \qquad
    \hat m = \kappa \alpha E \sum_c \frac{\partial g_c}{\partial z_c} = \kappa \alpha E \sum_c g_c g_c^{*T}, \qquad
    \hat \chi = \kappa \alpha E \sum_c g_c g_c^T,

with ``g^*`` of the true posterior given y and omega. The assumed prior denoises ``R = Qhat^{-1} (m S + chi^{1/2} Z)``:
M, Q from the estimate, ``V = E[d denoise / dR] Qhat^{-1}``. A matrix ``R = s (S + sqrt(Delta) Z)``, ``s = m / Qhat``,
``Delta = chi / m^2``, has eigenvalues ``s x`` and eigenvectors along which S has the mean ``xi(x)``, so that its denoiser f gives

.. math:: M = E f(s x) \xi(x), \qquad Q = E f(s x)^2, \qquad V = \frac{E f(s x) (x - \xi(x))}{\Delta s \hat Q}.

Linear labels and a Gaussian signal, both assumed, make this ridge regression, which has a closed form.

Right assumptions give M = Q, V = T - Q and one recursion. By Cauchy and Schwarz ``m^T chi^{-1} m`` is at most the information
of the true posterior: nothing here is better than Bayes-optimal.

A fixed point of the recursion attracts GAMP, with steps that are small enough, if a small error of the estimate shrinks in one
iteration: with ``G_cc' = d g_c / d omega_c'`` and J the derivative of the denoiser, the map

.. math:: X \mapsto E J \hat Q^{-1} \left(\kappa \alpha E \sum_{cc'} G_{cc'} X G_{cc'}^T\right) \hat Q^{-1} J^T

of covariances has a spectral radius below 1 (de Almeida and Thouless).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from smimbench.backend import matching, namespace, send, to_host
from smimbench.derive import denoise_step
from smimbench.interfaces import (
    AlgorithmPrediction,
    Array,
    Conditions,
    Host,
    Overlaps,
    ParameterError,
)
from smimbench.numerics import (
    inverse_root,
    monte_carlo_rng,
    normal_points,
    symmetric,
    symmetric_root,
    whitened_points,
    with_floor,
)
from smimbench.problem import Problem
from smimbench.theory import (
    Check,
    compare,
    information_at,
    limit_point,
    offers_rough,
    overlap_at,
    prior_moments,
)
from smimbench_attention.algorithms.gamp.message_pass import SMALLEST_QHAT
from smimbench_attention.algorithms.least_squares import (
    noise_of_identity,
    ridge_overlaps,
)

ROUGHLY = 1e-6
"""Relative change that ends the recursion where numbers are not as good as that. Doubled: an iteration or two less."""

KNOWN = 1e-12
"""Added to errors, so that nothing is divided by zero where the signal is known. Doubled: no change but there."""


PROBE = 1e-3
"""Perturbation that slopes are measured with, in units of the noise. Doubled: edges of a spectrum are blurred twice as far."""


def measured_variance(
    problem: Problem, R: Array, Qhat: Host, estimate: Array, probe: Host
) -> Host:
    """Mean posterior variance ``E[d denoise / dR] Qhat^{-1}`` (P, P) at what was observed, from the response to a probe.

    The prior's own V is a mean over observations that would be made if the assumptions were right.
    """
    xp, axes = namespace(R), (-1, *[1] * (R.ndim - 1))
    width = PROBE * np.sqrt(np.diagonal(np.linalg.inv(Qhat)))
    push = xp.asarray(probe * width.reshape(axes), **matching(R))
    moved = denoise_step(problem.prior, R + push, send(Qhat, R)).estimate - estimate
    slope, size = (
        to_host(problem.model.inner(response, push)) for response in (moved, push)
    )
    V: Host = symmetric(slope @ np.linalg.inv(size) @ np.linalg.inv(Qhat))
    return V


class RecursionAccuracy(NamedTuple):
    """Numerical settings.

    Attributes
    ----------
    points, more, entries : int
        Points of the integrals over latents; more of them where small overlaps decide when a trajectory escapes; and entries
        that stand for a signal of low rank. Twice as many: half the error.
    sets : int
        Independent sets of points; their spread is the stated error.
    start : float
        Overlap of a start from which the prior mean would not move. Smaller: later steps, and the same ends.
    damping : float
        Weight of the old in every step, which moves no fixed point.
    at_rest : float
        Relative change of a step that ends the recursion.
    iterations : int
        Most steps.
    """

    points: int = 2**13
    more: int = 2**15
    entries: int = 2**13
    sets: int = 4
    start: float = 1e-4
    damping: float = 0.3
    at_rest: float = 1e-10
    iterations: int = 1000


ACCURACY = RecursionAccuracy()


class Orders(NamedTuple):
    """Overlaps M with the signal and Q with itself, and the claimed error V of the estimate, (P, P) each."""

    M: Host
    Q: Host
    V: Host

    @classmethod
    def bayes_optimal(cls, T: Host, V: Host) -> Orders:
        """The point of the Bayes-optimal line with the error V, for a signal of overlap T with itself."""
        Q = with_floor(T - V, 0.0)
        return cls(Q, Q, V)

    def overlaps(self, T: Host) -> Overlaps:
        """Overlaps of signal and estimate, all three pairs."""
        return Overlaps(T, self.M, self.Q)


class Message(NamedTuple):
    """What the channel tells the prior: Qhat, m and chi, (P, P) each."""

    Qhat: Host
    m: Host
    chi: Host


class Lost(ValueError):
    """The recursion has no numbers to go on with."""


def _correction(exact: Host, sampled: Host) -> Host:
    """Matrix c with ``c sampled c^T = exact``; where both are next to nothing, none."""
    ratio = np.diagonal(exact) / np.maximum(np.diagonal(sampled), 1e-300)
    if not (np.maximum(ratio, 1 / np.maximum(ratio, 1e-300)) < 2).all():
        return np.eye(len(exact))
    correction: Host = symmetric_root(exact) @ inverse_root(sampled, 1e-12)
    return correction


class MismatchedRecursion:
    """The recursion of a problem and the one that GAMP assumes, with one set of points."""

    def __init__(
        self, problem: Problem, assumed: Problem, alpha: float, seed: int
    ) -> None:
        self.problem, self.assumed, self.seed = problem, assumed, seed
        self.scale = problem.model.kappa * alpha
        self.T = prior_moments(problem)[0]
        P, C = problem.components, problem.model.sites
        points = ACCURACY.points if assumed is not problem else ACCURACY.more
        points >>= 3 if offers_rough(problem) else 0  # whose posteriors are integrals
        latents = whitened_points(2 * P * C, points, "wrong assumptions: latents", seed)
        self.latents = latents.reshape(-1, 2, P, C).swapaxes(0, 1)

    def start(self, tiny: float) -> Orders:
        """Order parameters of the prior mean that is assumed, or of a small overlap where labels do not see that."""
        second, mean_overlap = prior_moments(self.assumed)
        P = self.problem.components
        if self.problem.channel.symmetry != "none" and not mean_overlap.any():
            overlap = tiny * np.diag(
                np.minimum(np.diagonal(second), np.diagonal(self.T))
            )
            return Orders(overlap, overlap, second - overlap)
        mean, true_mean = (
            side.prior.mean(P, 64) for side in (self.assumed, self.problem)
        )
        return Orders(
            np.asarray(self.problem.model.inner(mean, true_mean)),
            mean_overlap,
            second - mean_overlap,
        )

    def labelled(self, at: Orders) -> Iterator[tuple[Any, Any]]:
        """Assumed and true posterior of the labels, each with its omega, V and g, at the points and at their negatives."""
        root = symmetric_root(at.Q)
        towards = at.M.T @ np.linalg.pinv(root, rcond=1e-12)
        missing = self.T - towards @ towards.T
        if (
            not np.isfinite(missing).all()
            or np.linalg.eigvalsh(symmetric(missing))[0] < -1e-9
        ):
            raise Lost("its overlaps are not those of any estimate")
        missing = symmetric(missing) + KNOWN * np.eye(len(missing))
        channel: Any = self.problem.channel
        for u in (self.latents[0], -self.latents[0]):
            omega, mean = root @ u, towards @ u
            y = channel.forward(
                mean + symmetric_root(missing) @ self.latents[1],
                rng=monte_carlo_rng("wrong assumptions: noise", self.seed),
            )
            yield (y, self.assumed.channel, omega, at.V), (y, channel, mean, missing)

    def message(self, at: Orders) -> Message:
        """What the channel tells at these order parameters."""
        C, sums, missing = self.problem.model.sites, [], None
        for pair in self.labelled(at):
            pairs = []
            for y, channel, omega, V in pair:
                posterior = channel.posterior(
                    y,
                    omega,
                    V,
                    rng=monte_carlo_rng("wrong assumptions: posterior", self.seed),
                )
                inverse = np.linalg.inv(V)
                g = inverse @ (np.asarray(posterior.mean) - omega)
                pairs.append(
                    (
                        g,
                        C
                        * symmetric(
                            inverse
                            - inverse @ np.asarray(posterior.covariance) @ inverse
                        ),
                    )
                )
            (g, information), (best, true) = pairs
            missing = pair[1][3]
            products = [
                np.einsum("npc,nqc->pq", a, b) / len(g)
                for a, b in ((g, best), (g, g), (best, best))
            ]
            sums.append((information, true, *products))
        information, true, m, chi, square = (
            np.mean(parts, axis=0) for parts in zip(*sums)
        )
        if not all(np.isfinite(matrix).all() for matrix in (information, m, chi)):
            raise Lost("the information of the labels is not finite")
        # Corrected by what is known of the true posterior: its sampled information is off by the same chance.
        rough = offers_rough(self.problem)
        exact = information_at(
            self.problem, with_floor(self.T - missing, 0.0), missing, rough=rough
        ).value
        of_slope, of_square = (
            _correction(exact, symmetric(matrix)) for matrix in (true, square)
        )
        if self.problem.channel.symmetry == "signs":
            information, m, chi = (
                np.diag(np.diagonal(matrix)) for matrix in (information, m, chi)
            )
        Qhat = with_floor(
            of_slope @ information @ of_slope.T, SMALLEST_QHAT / self.scale
        )
        chi = symmetric(of_square @ chi @ of_square.T)
        return Message(
            self.scale * Qhat,
            self.scale * (of_square @ m @ of_square.T),
            self.scale * chi,
        )

    def denoised(self, by: Message) -> Orders:
        """Order parameters of the assumed prior's estimate."""
        if self.problem.model.rank == "extensive":
            return self._matrix(by)
        signal, noise = self._entries()
        R = np.linalg.solve(by.Qhat, by.m @ signal + symmetric_root(by.chi) @ noise)
        assumed_orders = self._orders(self.assumed, by.Qhat, R, noise, by.chi)
        # The true prior's estimate from the same numbers has known overlaps.
        information = symmetric(by.m.T @ np.linalg.solve(by.chi, by.m))
        twin = self._orders(
            self.problem,
            information,
            signal + inverse_root(information, 1e-12) @ noise,
            noise,
            information,
        )
        Q, V = overlap_at(self.problem, information)
        return Orders(
            *(exact + a - b for exact, a, b in zip((Q, Q, V), assumed_orders, twin))
        )

    def _entries(self) -> tuple[Host, Host]:
        """Entries (P, size) of the signal, with their second moment, and white noise orthogonal to them."""
        P, size = self.problem.components, ACCURACY.entries
        drawn = self.problem.prior.sample(
            monte_carlo_rng("wrong assumptions: signal", self.seed), P, size
        )
        both = np.concatenate(
            [drawn, normal_points(P, size, "wrong assumptions: entries", self.seed).T]
        )
        moments = np.block([[self.T, np.zeros((P, P))], [np.zeros((P, P)), np.eye(P)]])
        both = np.linalg.cholesky(moments) @ np.linalg.solve(
            np.linalg.cholesky(both @ both.T / size), both
        )
        return both[:P], both[P:]

    def _orders(
        self, problem: Problem, Qhat: Host, R: Host, noise: Host, chi: Host
    ) -> Orders:
        estimate, size = np.asarray(problem.prior.denoise(R, Qhat).estimate), R.shape[1]
        # Stein: E[f Z^T] = E[f'] Qhat^{-1} chi^{1/2}.
        V = symmetric(estimate @ noise.T / size @ inverse_root(chi, 1e-12))
        return Orders(
            estimate @ self._entries()[0].T / size, estimate @ estimate.T / size, V
        )

    def _matrix(self, by: Message) -> Orders:
        scale, _, x, xi, weights, f = self.spectrum(by)
        Delta = float(by.chi[0, 0] / by.m[0, 0] ** 2)
        parts = f * xi, f * f, f * (x - xi) / (Delta * scale * by.Qhat[0, 0])
        return Orders(*(np.array([[function @ weights]]) for function in parts))

    def spectrum(self, by: Message) -> tuple[float, float, Host, Host, Host, Host]:
        """Scale of the observed matrix and noise that is assumed; nodes x, posterior means, weights, and denoised eigenvalues."""
        nodes: list[Host] = []

        def parts(x: Host, mean: Host, variance: Host) -> Host:
            nodes.extend((x, mean))
            return np.eye(len(x))

        noise, scale = 1 / float(by.Qhat[0, 0]), float(by.m[0, 0] / by.Qhat[0, 0])
        means: Any = self.problem.prior.law.spectral_means
        weights = np.asarray(means(parts, float(by.chi[0, 0] / by.m[0, 0] ** 2)).value)
        shrink: Any = self.assumed.prior.law.eigenvalue_map
        x, mean = nodes
        return scale, noise, x, mean, weights, np.asarray(shrink(scale * x, noise))

    def step(self, at: Orders) -> Orders:
        """Order parameters after one undamped iteration."""
        after = self.denoised(self.message(at))
        if not all(np.isfinite(matrix).all() for matrix in after):
            raise Lost("its order parameters are not finite")
        return after._replace(V=symmetric(after.V) + KNOWN * np.eye(len(after.V)))

    def fixed_point(self, at: Orders) -> Orders:
        """Where damped iterations come to rest; Lost where they do not."""
        for _ in range(ACCURACY.iterations):
            new = self.step(at)
            far = max(
                float(np.abs(b - a).max() / max(np.abs(b).max(), ACCURACY.at_rest))
                for a, b in zip(at, new)
            )
            at = Orders(
                *(
                    ACCURACY.damping * a + (1 - ACCURACY.damping) * b
                    for a, b in zip(at, new)
                )
            )
            is_known = (
                np.diagonal(at.V).max() < 10 * KNOWN and far < ROUGHLY
            )  # rounding is left
            if (
                far < ACCURACY.at_rest
                or is_known
                or (far < ROUGHLY and offers_rough(self.problem))
            ):
                return at
        raise Lost("its state evolution does not come to rest")

    def growth(self, at: Orders, by: Message) -> float:
        """Factor by which the square of a small error of the estimate is multiplied in one iteration."""
        P = self.problem.components
        G: Any = 0.0
        for (y, channel, omega, V), _ in self.labelled(at):
            rng = monte_carlo_rng("wrong assumptions: posterior", self.seed)
            posterior = channel.posterior(y, omega, V, second_moment=True, rng=rng)
            mean, inverse = np.asarray(posterior.mean), np.linalg.inv(V)
            slopes = (
                np.asarray(posterior.second_moment)
                - mean[..., None, None] * mean[:, None, None]
            )
            slopes = np.einsum("ap,npcqd,qb->nacbd", inverse, slopes, inverse)
            slopes -= (
                inverse[None, :, None, :, None]
                * np.eye(mean.shape[2])[None, None, :, None, :]
            )
            G = G + np.einsum("nacbd,necfd->aebf", slopes, slopes) / len(slopes) / 2
        spread = np.linalg.inv(by.Qhat)
        K = self.scale * np.einsum("ax,xybf,ye->aebf", spread, G, spread)
        J = self._slopes(by)
        map_of_covariances = np.einsum("aebf,bfxy->aexy", J, K)
        return float(
            np.abs(np.linalg.eigvals(map_of_covariances.reshape(P * P, P * P))).max()
        )

    def _slopes(self, by: Message) -> Host:
        """Mean products ``J_ab J_ef`` (a, e, b, f) of slopes of the assumed denoiser."""
        if self.problem.model.rank == "extensive":
            scale, noise, x, _, weights, f = self.spectrum(by)
            lam = scale * x
            shrink: Any = self.assumed.prior.law.eigenvalue_map
            step = 1e-5 * noise**0.5
            derivative = (
                np.asarray(shrink(lam + step, noise))
                - np.asarray(shrink(lam - step, noise))
            ) / (2 * step)
            gap = lam[:, None] - lam[None, :]
            near = np.abs(gap) < step
            slopes = np.where(
                near,
                derivative[:, None],
                (f[:, None] - f[None, :]) / np.where(near, 1.0, gap),
            )
            return np.full((1, 1, 1, 1), weights @ (slopes * slopes) @ weights)
        signal, Z = self._entries()
        R = np.linalg.solve(by.Qhat, by.m @ signal + symmetric_root(by.chi) @ Z)
        small = 1e-4 * np.sqrt(np.diagonal(np.linalg.inv(by.Qhat)))
        at = np.asarray(self.assumed.prior.denoise(R, by.Qhat).estimate)
        moved = [
            np.asarray(self.assumed.prior.denoise(R + shift[:, None], by.Qhat).estimate)
            for shift in np.diag(small)
        ]
        J = np.stack(
            [(shift - at) / size for shift, size in zip(moved, small)], axis=1
        )  # (P, P, size)
        return np.asarray(np.einsum("abi,efi->aebf", J, J) / R.shape[1])


def mismatched_theory(
    problem: Problem, assumed: Problem, alpha: float, conditions: Conditions
) -> AlgorithmPrediction | str:
    """The fixed point of GAMP for ``assumed`` on data of ``problem``, or why there is none."""
    if problem.features is not None or problem.mixing is not None:
        return "with wrong assumptions its theory is for independent tokens"
    if conditions.start not in ("uninformed", "informed"):
        return f"with wrong assumptions its theory does not know the start {conditions.start!r}"
    if problem.model.rank == "extensive" and (
        problem.components > 1
        or None in (problem.prior.law.spectral_means, assumed.prior.law.eigenvalue_map)
    ):
        return "with wrong assumptions its theory is for one matrix with a prior that gives its spectral law"
    overlap = 0.99 if conditions.start == "informed" else ACCURACY.start
    fixed_points: list[Orders] = []
    messages: list[Message] = []
    growth = 0.0
    try:
        if exact := _ridge(problem, assumed, alpha):  # without a spread
            fixed_points, messages = [exact[0]] * 2, [exact[1]] * 2
        for seed in range(0 if exact else ACCURACY.sets):
            recursion = MismatchedRecursion(problem, assumed, alpha, seed)
            at = fixed_points[0] if fixed_points else recursion.start(overlap)
            fixed_points.append(recursion.fixed_point(at))
            messages.append(recursion.message(fixed_points[-1]))
            growth = max(growth, recursion.growth(fixed_points[-1], messages[-1]))
    except (Lost, ParameterError, np.linalg.LinAlgError) as error:
        return f"GAMP with these assumptions does not converge: {error}"
    if growth > 1:
        return f"GAMP with these assumptions does not converge: errors grow by {growth:.3g} in every iteration"
    T = prior_moments(problem)[0]
    V = np.mean([orders.V for orders in fixed_points], axis=0)
    point = limit_point(
        problem, alpha, [[orders.overlaps(T)] for orders in fixed_points],
        method="closed form of ridge regression" if exact else "state evolution, wrong assumptions",
        branch="informed" if conditions.start == "informed" else "own", V=V,
    )  # fmt: skip
    at = Orders(*(np.mean(parts, axis=0) for parts in zip(*fixed_points)))
    by = Message(*(np.mean(parts, axis=0) for parts in zip(*messages)))
    errors = Message(
        *(
            np.std(parts, axis=0, ddof=1) / len(messages) ** 0.5
            for parts in zip(*messages)
        )
    )
    spread = (
        np.std([orders.V for orders in fixed_points], axis=0, ddof=1)
        / len(fixed_points) ** 0.5
        + KNOWN
    )
    return replace(
        point, draws=lambda: by_draws(problem, assumed, point, at, by, errors, spread)
    )


def _ridge(
    problem: Problem, assumed: Problem, alpha: float
) -> tuple[Orders, Message] | None:
    """Fixed point in closed form where labels are linear and the assumed signal is Gaussian: GAMP is then ridge regression.

    None for other problems, and where components have penalties of their own.

    Raises
    ------
    Lost
        Without an assumed noise, where there are just as many labels as directions.
    """
    true_noises, assumed_noises = noise_of_identity(problem), noise_of_identity(assumed)
    (T, mean), (second, assumed_mean) = prior_moments(problem), prior_moments(assumed)
    variance, identity = float(second[0, 0]), np.eye(len(second))
    unbiased = not (mean.any() or assumed_mean.any())
    if (
        true_noises is None
        or assumed_noises is None
        or not unbiased
        or not np.allclose(second, variance * identity)
    ):
        return None
    R = monte_carlo_rng("wrong assumptions: denoiser").standard_normal((len(T), 64))
    linear = R * variance / (1 + variance)
    if not np.allclose(
        assumed.prior.denoise(R, identity).estimate, linear, rtol=0, atol=1e-9
    ):
        return None
    noise, assumed_noise, sites = (
        true_noises.mean() * identity,
        assumed_noises.mean() * identity,
        problem.model.sites,
    )
    penalty = float(assumed_noises.mean()) / variance
    try:
        M, Q = ridge_overlaps(T, noise, alpha * sites, penalty)[1:]
    except ValueError as error:
        raise Lost(str(error)) from None
    claimed = ridge_overlaps(second, assumed_noise, alpha * sites, penalty)
    V = claimed.truth - 2 * claimed.cross + claimed.own + KNOWN * identity
    gain = np.linalg.inv(V + assumed_noise)
    information = problem.model.kappa * alpha * sites * gain
    return Orders(M, Q, V), Message(
        information, information, information @ (T - M - M.T + Q + noise) @ gain
    )


DRAWS, BATCHES, DIMENSION = 500, 40, 120
"""Draws of labels in a batch, batches, and dimension of matrices that are denoised. Each doubled: half the variance."""


def by_draws(
    problem: Problem,
    assumed: Problem,
    point: AlgorithmPrediction,
    at: Orders,
    by: Message,
    errors: Message,
    spread: Host,
) -> list[Check]:
    """The numbers of a point against plain draws: what labels tell, error and V (with its error ``spread``) of what is denoised.

    m is the mean product of g with the latents of the signal less their mean given omega, without the true posterior. V is
    what a run measures, the response of the denoiser to a probe, without the spectral law or Stein's lemma.
    """
    stream = f"{problem.identity} {assumed.identity} {point.more['alpha']!r}"
    messages = _drawn_messages(problem, assumed, point.more["alpha"], at, stream)
    matrices = enumerate(zip(Message._fields, by, errors))
    rows = [
        (name, np.diagonal(drawn), np.diagonal(error), messages[:, k], 0 * at.V[0])
        for k, (name, drawn, error) in matrices
    ]
    # What the size does is taken to fall as its inverse, and counted as an error.
    small, large = _drawn_errors(problem, assumed, by, stream)
    limit, bias = 2 * large - small, np.abs((large - small).mean(axis=0))
    rows.append(("signal", point.mse, point.mse_error, limit[:, 0], bias[0]))
    rows.append(("V", np.diagonal(at.V), np.diagonal(spread), limit[:, 1], bias[1]))
    return [
        compare(name, p, printed[p], error[p], drawn[:, p], stated[p], effective=np.inf)
        for name, printed, error, drawn, stated in rows
        for p in range(problem.components)
    ]


def _drawn_messages(
    problem: Problem, assumed: Problem, alpha: float, at: Orders, stream: str
) -> Host:
    """Diagonals of Qhat, m and chi (BATCHES, 3, P) from batches of labels."""
    (M, Q, V), scale = at, problem.model.kappa * alpha
    towards, inverse = M.T @ np.linalg.inv(Q), np.linalg.inv(V)
    missing = prior_moments(problem)[0] - towards @ M
    messages = []
    for batch in range(BATCHES):
        rng = monte_carlo_rng(f"wrong assumptions: draws {stream}", batch)
        normal = rng.standard_normal(
            (2, DRAWS, problem.components, problem.model.sites)
        )
        omega, shift = (
            symmetric_root(Q) @ normal[0],
            symmetric_root(missing) @ normal[1],
        )
        y = problem.channel.forward(towards @ omega + shift, rng=rng)
        posterior = assumed.channel.posterior(y, omega, V, rng=rng)
        g = inverse @ (np.asarray(posterior.mean) - omega)
        information = problem.model.sites * (
            inverse - inverse @ np.asarray(posterior.covariance) @ inverse
        )
        slope, square = (
            np.einsum("npc,npc->p", g, other) / DRAWS
            for other in (np.linalg.inv(missing) @ shift, g)
        )
        messages.append([np.diagonal(information), slope, square])
    return scale * np.array(messages)


def _drawn_errors(problem: Problem, assumed: Problem, by: Message, stream: str) -> Host:
    """Error and V (2, BATCHES, 2, P) of what is denoised at half the size, and at the whole."""
    P, inverse = problem.components, np.linalg.inv(by.Qhat)
    size = DIMENSION if problem.model.rank == "extensive" else DRAWS * DIMENSION
    errors = []
    for D in (size // 2, size):
        rng = monte_carlo_rng(f"wrong assumptions: denoised {stream}", D)
        for _ in range(BATCHES):
            signal, noise = (
                problem.prior.sample(rng, P, D),
                problem.model.draw_noise(rng, P, D),
            )
            R = np.tensordot(inverse @ by.m, signal, 1) + np.tensordot(
                inverse @ symmetric_root(by.chi), noise, 1
            )
            estimate = np.asarray(denoise_step(assumed.prior, R, by.Qhat).estimate)
            probe = problem.model.draw_noise(rng, P, D)
            claimed = measured_variance(assumed, R, by.Qhat, estimate, probe)
            error = problem.model.inner(signal - estimate, signal - estimate)
            errors.append([np.diagonal(error), np.diagonal(claimed)])
    return np.reshape(errors, (2, BATCHES, 2, P))
