r"""State evolution of GAMP off the Bayes-optimal line: with a mismatched prior or channel, or from a random start.

Wrong assumptions are data of another channel or prior than GAMP knows. The overlap of a random start with the signal is
chance and not what it claims.

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

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from smimbench.backend import matching, namespace, send, to_host
from smimbench.derive import denoise_step
from smimbench.interfaces import (
    AlgorithmPrediction,
    Array,
    Channel,
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
from smimbench_attention.algorithms.gamp.message_pass import (
    SMALLEST_QHAT,
    label_information,
)
from smimbench_attention.algorithms.least_squares import (
    noise_of_identity,
    ridge_overlaps,
)

ROUGH_CHANGE = 1e-6
"""Relative change that ends the recursion where numbers are not as good as that. Doubled: an iteration or two less."""

SMALLEST_ERROR = 1e-12
"""Added to errors, so that nothing is divided by zero where the signal is known. Doubled: no change but there."""

PROBE = 1e-3
"""Perturbation that slopes are measured with, in units of the noise. Doubled: edges of a spectrum are blurred twice as far."""


def measured_variance(
    problem: Problem, R: Array, Qhat: Host, estimate: Array, probe: Host
) -> Host:
    """Mean posterior variance (P, P) of an estimate, measured by the response of the denoiser to a random probe.

    It is ``E[d denoise / dR] Qhat^{-1}`` at what was observed.

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
    """Numerical settings of mismatched state evolution.

    Attributes
    ----------
    points, trajectory_points : int
        Points of the integrals over latents; more of them where small overlaps decide when a trajectory escapes.
    entries : int
        Entries that stand for a signal of low rank. Twice as many of these or of the points: half the error.
    sets : int
        Independent sets of points; their spread is the stated error.
    start : float
        Overlap of a start from which the prior mean would not move. Smaller: later steps, and the same ends.
    damping : float
        Weight of the old in every step, which moves no fixed point.
    at_rest : float
        Relative change of a step that ends the recursion.
    iterations : int
        Largest number of steps.
    """

    points: int = 2**13
    trajectory_points: int = 2**15
    entries: int = 2**13
    sets: int = 4
    start: float = 1e-4
    damping: float = 0.3
    at_rest: float = 1e-10
    iterations: int = 1000


ACCURACY = RecursionAccuracy()


class Orders(NamedTuple):
    """Order parameters (P, P) of the estimate: overlap M with the signal, self-overlap Q, claimed error V."""

    M: Host
    Q: Host
    V: Host

    @classmethod
    def bayes_optimal(cls, T: Host, V: Host) -> Orders:
        """Order parameters on the Bayes-optimal line, ``M = Q = T - V``, for a signal of self-overlap T."""
        Q = with_floor(T - V, 0.0)
        return cls(Q, Q, V)

    def overlaps(self, T: Host) -> Overlaps:
        """Overlaps signal-signal (T), estimate-signal (M) and estimate-estimate (Q)."""
        return Overlaps(T, self.M, self.Q)


class Conjugates(NamedTuple):
    """Conjugate order parameters Qhat, m and chi (P, P) of the effective channel ``R = Qhat^{-1} (m S + chi^{1/2} Z)``."""

    Qhat: Host
    m: Host
    chi: Host


Parameters = TypeVar("Parameters", Orders, Conjugates)


class NoFixedPoint(ValueError):
    """State evolution leaves the domain of its equations or does not converge."""


class Observed(NamedTuple):
    """Labels y (n, ...) at latents of mean omega (n, P, C) and covariance V (P, P), as seen by a channel."""

    y: Array
    channel: Channel
    omega: Host
    V: Host


class DenoisedSpectrum(NamedTuple):
    """Eigenvalues of a noisy matrix, and their values after denoising by the assumed prior.

    Attributes
    ----------
    scale, noise : float
        Scale s of the observed matrix, and the noise that is assumed in it.
    x, xi, weights : ndarray (n,)
        Eigenvalues of ``S + sqrt(Delta) Z``, means of S along their eigenvectors, and weights.
    f : ndarray (n,)
        Denoised ``s x``.
    """

    scale: float
    noise: float
    x: Host
    xi: Host
    weights: Host
    f: Host


class MismatchedRecursion:
    """State evolution of GAMP that assumes another problem, with expectations over one set of random points."""

    def __init__(
        self, problem: Problem, assumed: Problem, alpha: float, seed: int
    ) -> None:
        self.problem, self.assumed, self.seed = problem, assumed, seed
        self.scale = problem.model.kappa * alpha
        self.T = prior_moments(problem)[0]
        P, C = problem.components, problem.model.sites
        points = ACCURACY.points
        if assumed is problem:
            points = ACCURACY.trajectory_points
        if offers_rough(problem):  # whose posteriors are integrals
            points //= 8
        latents = whitened_points(2 * P * C, points, "wrong assumptions: latents", seed)
        self.latents = latents.reshape(-1, 2, P, C).swapaxes(0, 1)
        if problem.model.rank == "low":
            self.signal, self.noise = self._entries()

    def start(self, overlap: float) -> Orders:
        """Initial order parameters: those of the assumed prior mean, or of a small overlap where that is a fixed point."""
        second, mean_overlap = prior_moments(self.assumed)
        P = self.problem.components
        if self.problem.channel.symmetry != "none" and not mean_overlap.any():
            smaller = np.minimum(np.diagonal(second), np.diagonal(self.T))
            Q = overlap * np.diag(smaller)
            return Orders(Q, Q, second - Q)
        mean = self.assumed.prior.mean(P, 64)
        true_mean = self.problem.prior.mean(P, 64)
        M = np.asarray(self.problem.model.inner(mean, true_mean))
        return Orders(M, mean_overlap, second - mean_overlap)

    def observed(self, orders: Orders) -> Iterator[tuple[Observed, Observed]]:
        """Labels with the latent means of GAMP and with those of the true posterior, at the points and their negatives."""
        root = symmetric_root(orders.Q)
        slope = orders.M.T @ np.linalg.pinv(root, rcond=1e-12)
        covariance = symmetric(self.T - slope @ slope.T)
        if (
            not np.isfinite(covariance).all()
            or np.linalg.eigvalsh(covariance)[0] < -1e-9
        ):
            raise NoFixedPoint(
                "state evolution reached overlaps that no estimate can have"
            )
        covariance = covariance + SMALLEST_ERROR * np.eye(len(covariance))
        channel = self.problem.channel
        for u in (self.latents[0], -self.latents[0]):
            omega, true_mean = root @ u, slope @ u
            rng = monte_carlo_rng("wrong assumptions: noise", self.seed)
            z = true_mean + symmetric_root(covariance) @ self.latents[1]
            y = channel.forward(z, rng=rng)
            yield (
                Observed(y, self.assumed.channel, omega, orders.V),
                Observed(y, channel, true_mean, covariance),
            )

    def _messages(self, labels: Observed) -> tuple[Host, Host]:
        """Messages g (n, P, C) that GAMP computes from labels, and the information (P, P) that it infers."""
        y, channel, omega, V = labels
        rng = monte_carlo_rng("wrong assumptions: posterior", self.seed)
        posterior = channel.posterior(y, omega, V, rng=rng)
        g = np.linalg.inv(V) @ (np.asarray(posterior.mean) - omega)
        information = label_information(V, np.asarray(posterior.covariance))
        return g, self.problem.model.sites * symmetric(information)

    def conjugates(self, orders: Orders) -> Conjugates:
        """Conjugate order parameters Qhat, m and chi as a function of the order parameters M, Q and V."""
        halves = []
        for assumed, true in self.observed(orders):
            g, information = self._messages(assumed)
            true_g, true_information = self._messages(true)
            products = [
                np.einsum("npc,nqc->pq", a, b) / len(g)
                for a, b in ((g, true_g), (g, g), (true_g, true_g))
            ]
            halves.append((information, true_information, *products))
        information, true_information, m, chi, true_chi = (
            np.mean(matrices, axis=0) for matrices in zip(*halves)
        )
        if not _all_finite(information, m, chi):
            raise NoFixedPoint(
                "the information of the labels under the assumed channel is not finite"
            )
        # Corrected by what is known of the true posterior: its sampled information is off by the same chance.
        covariance = true.V
        exact = information_at(
            self.problem,
            with_floor(self.T - covariance, 0.0),
            covariance,
            rough=offers_rough(self.problem),
        ).value
        by_slope = _correction(exact, symmetric(true_information))
        by_square = _correction(exact, symmetric(true_chi))
        if self.problem.channel.symmetry == "signs":
            information, m, chi = (
                np.diag(np.diagonal(matrix)) for matrix in (information, m, chi)
            )
        information = by_slope @ information @ by_slope.T
        return Conjugates(
            self.scale * with_floor(information, SMALLEST_QHAT / self.scale),
            self.scale * (by_square @ m @ by_square.T),
            self.scale * symmetric(by_square @ chi @ by_square.T),
        )

    def denoised(self, conjugates: Conjugates) -> Orders:
        """Order parameters M, Q and V of the assumed prior's estimate as a function of the conjugate ones."""
        Qhat, m, chi = conjugates
        if self.problem.model.rank == "extensive":
            return self._denoised_matrix(conjugates)
        R = self._observed_signal(conjugates)
        sampled = self._denoised_entries(self.assumed, Qhat, R, chi)
        # The true prior's estimate from the same numbers has known overlaps.
        information = symmetric(m.T @ np.linalg.solve(chi, m))
        R = self.signal + inverse_root(information, 1e-12) @ self.noise
        control = self._denoised_entries(self.problem, information, R, information)
        Q, V = overlap_at(self.problem, information)
        return Orders(
            Q + sampled.M - control.M,
            Q + sampled.Q - control.Q,
            V + sampled.V - control.V,
        )

    def _entries(self) -> tuple[Host, Host]:
        """Sampled signal entries (P, size) with the exact second moment, and white noise orthogonal to them."""
        P, size = self.problem.components, ACCURACY.entries
        rng = monte_carlo_rng("wrong assumptions: signal", self.seed)
        signal = self.problem.prior.sample(rng, P, size)
        noise = normal_points(P, size, "wrong assumptions: entries", self.seed).T
        sampled = np.concatenate([signal, noise])
        zero = np.zeros((P, P))
        moments = np.block([[self.T, zero], [zero, np.eye(P)]])
        sampled_root = np.linalg.cholesky(sampled @ sampled.T / size)
        exact = np.linalg.cholesky(moments) @ np.linalg.solve(sampled_root, sampled)
        return exact[:P], exact[P:]

    def _observed_signal(self, conjugates: Conjugates) -> Host:
        """Observed signal entries ``R = Qhat^{-1} (m S + chi^{1/2} Z)`` (P, size) of the effective channel."""
        Qhat, m, chi = conjugates
        blurred = m @ self.signal + symmetric_root(chi) @ self.noise
        return np.linalg.solve(Qhat, blurred)

    def _denoised_entries(
        self, problem: Problem, Qhat: Host, R: Host, chi: Host
    ) -> Orders:
        """Order parameters of a prior's estimate from the observed signal entries R."""
        estimate, size = np.asarray(problem.prior.denoise(R, Qhat).estimate), R.shape[1]
        # Stein: E[f Z^T] = E[f'] Qhat^{-1} chi^{1/2}.
        V = symmetric(estimate @ self.noise.T / size @ inverse_root(chi, 1e-12))
        return Orders(estimate @ self.signal.T / size, estimate @ estimate.T / size, V)

    def _denoised_matrix(self, conjugates: Conjugates) -> Orders:
        """Order parameters of the assumed prior's estimate of a matrix of extensive rank."""
        scale, _, x, xi, weights, f = self.spectrum(conjugates)
        slope = (
            f
            * (x - xi)
            / (_effective_noise(conjugates) * scale * conjugates.Qhat[0, 0])
        )
        return Orders(
            *(np.array([[values @ weights]]) for values in (f * xi, f * f, slope))
        )

    def spectrum(self, conjugates: Conjugates) -> DenoisedSpectrum:
        """Spectrum of the observed noisy matrix, before and after denoising by the assumed prior."""
        nodes: list[Host] = []

        def node_values(x: Host, mean: Host, variance: Host) -> Host:
            nodes.extend((x, mean))
            return np.eye(len(x))

        noise = 1 / float(conjugates.Qhat[0, 0])
        scale = float(conjugates.m[0, 0] / conjugates.Qhat[0, 0])
        means = self.problem.prior.law.spectral_means
        assert means is not None  # mismatched_theory
        weights = np.asarray(means(node_values, _effective_noise(conjugates)).value)
        x, xi = nodes
        return DenoisedSpectrum(
            scale, noise, x, xi, weights, self._shrunk(scale * x, noise)
        )

    def _shrunk(self, eigenvalues: Host, noise: float) -> Host:
        """Eigenvalues of a noisy matrix after denoising by the assumed prior."""
        eigenvalue_map = self.assumed.prior.law.eigenvalue_map
        assert eigenvalue_map is not None  # mismatched_theory
        return np.asarray(eigenvalue_map(eigenvalues, noise))

    def step(self, orders: Orders) -> Orders:
        """Run one undamped iteration of state evolution and return the new order parameters."""
        denoised = self.denoised(self.conjugates(orders))
        if not _all_finite(*denoised):
            raise NoFixedPoint("the order parameters of state evolution are not finite")
        V = symmetric(denoised.V) + SMALLEST_ERROR * np.eye(len(denoised.V))
        return denoised._replace(V=V)

    def fixed_point(self, orders: Orders) -> Orders:
        """Fixed point of state evolution by damped iterations; raises NoFixedPoint where they do not converge."""
        is_rough = offers_rough(self.problem)
        for _ in range(ACCURACY.iterations):
            target = self.step(orders)
            change = max(
                float(np.abs(b - a).max() / max(np.abs(b).max(), ACCURACY.at_rest))
                for a, b in zip(orders, target)
            )
            orders = Orders(
                *(
                    ACCURACY.damping * a + (1 - ACCURACY.damping) * b
                    for a, b in zip(orders, target)
                )
            )
            # Where the signal is known, only rounding is left.
            is_known = np.diagonal(orders.V).max() < 10 * SMALLEST_ERROR
            if change < ACCURACY.at_rest:
                return orders
            if change < ROUGH_CHANGE and (is_known or is_rough):
                return orders
        raise NoFixedPoint("state evolution does not reach a fixed point")

    def growth(self, orders: Orders, conjugates: Conjugates) -> float:
        """Growth factor per iteration of the squared norm of a small perturbation of the estimate; stable below 1."""
        P = self.problem.components
        squares = []
        for (y, channel, omega, V), _ in self.observed(orders):
            rng = monte_carlo_rng("wrong assumptions: posterior", self.seed)
            posterior = channel.posterior(y, omega, V, second_moment=True, rng=rng)
            mean, inverse = np.asarray(posterior.mean), np.linalg.inv(V)
            moment = np.asarray(posterior.second_moment)
            covariance = moment - mean[..., None, None] * mean[:, None, None]
            slopes = np.einsum("ap,npcqd,qb->nacbd", inverse, covariance, inverse)
            same_site = np.eye(mean.shape[2])[None, None, :, None, :]
            slopes -= inverse[None, :, None, :, None] * same_site
            squares.append(
                np.einsum("nacbd,necfd->aebf", slopes, slopes) / len(slopes) / 2
            )
        noise = np.linalg.inv(conjugates.Qhat)
        K = self.scale * np.einsum("ax,xybf,ye->aebf", noise, sum(squares), noise)
        J = self._squared_slopes(conjugates)
        map_of_covariances = np.einsum("aebf,bfxy->aexy", J, K).reshape(P * P, P * P)
        return float(np.abs(np.linalg.eigvals(map_of_covariances)).max())

    def _squared_slopes(self, conjugates: Conjugates) -> Host:
        """Mean products ``J_ab J_ef`` (a, e, b, f) of the derivatives J of the assumed denoiser."""
        if self.problem.model.rank == "extensive":
            scale, noise, x, _, weights, f = self.spectrum(conjugates)
            eigenvalues = scale * x
            step = 1e-5 * noise**0.5
            above = self._shrunk(eigenvalues + step, noise)
            below = self._shrunk(eigenvalues - step, noise)
            derivative = (above - below) / (2 * step)
            gap = eigenvalues[:, None] - eigenvalues[None, :]
            is_close = np.abs(gap) < step
            quotient = (f[:, None] - f[None, :]) / np.where(is_close, 1.0, gap)
            slopes = np.where(is_close, derivative[:, None], quotient)
            return np.full((1, 1, 1, 1), weights @ (slopes * slopes) @ weights)
        R = self._observed_signal(conjugates)
        prior, Qhat = self.assumed.prior, conjugates.Qhat
        steps = 1e-4 * np.sqrt(np.diagonal(np.linalg.inv(Qhat)))
        estimate = np.asarray(prior.denoise(R, Qhat).estimate)
        columns = []
        for step, shift in zip(steps, np.diag(steps)):
            moved = np.asarray(prior.denoise(R + shift[:, None], Qhat).estimate)
            columns.append((moved - estimate) / step)
        J = np.stack(columns, axis=1)  # (P, P, size)
        return np.asarray(np.einsum("abi,efi->aebf", J, J) / R.shape[1])


def _effective_noise(conjugates: Conjugates) -> float:
    """Effective noise ``Delta = chi / m^2`` of the observed matrix, for one component."""
    return float(conjugates.chi[0, 0] / conjugates.m[0, 0] ** 2)


def _all_finite(*matrices: Host) -> bool:
    return all(np.isfinite(matrix).all() for matrix in matrices)


def _correction(exact: Host, sampled: Host) -> Host:
    """Matrix c that corrects a sampled covariance, ``c sampled c^T = exact``; identity where they are too different."""
    ratio = np.diagonal(exact) / np.maximum(np.diagonal(sampled), 1e-300)
    if not (np.maximum(ratio, 1 / np.maximum(ratio, 1e-300)) < 2).all():
        return np.eye(len(exact))
    return np.asarray(symmetric_root(exact) @ inverse_root(sampled, 1e-12))


def _mean(samples: Sequence[Parameters]) -> Parameters:
    """Mean of order parameters over independent sets of random points."""
    return type(samples[0])(*(np.mean(matrices, axis=0) for matrices in zip(*samples)))


def _standard_error(samples: Sequence[Parameters]) -> Parameters:
    """Standard error of the mean of each order parameter over independent sets of points."""
    deviations = (np.std(matrices, axis=0, ddof=1) for matrices in zip(*samples))
    root = len(samples) ** 0.5
    return type(samples[0])(*(deviation / root for deviation in deviations))


def mismatched_theory(
    problem: Problem, assumed: Problem, alpha: float, conditions: Conditions
) -> AlgorithmPrediction | str:
    """Predict GAMP that assumes ``assumed`` on data of ``problem``, or return the reason why theory does not."""
    if problem.features is not None or problem.mixing is not None:
        return "with wrong assumptions, theory exists for independent tokens only"
    if conditions.start not in ("uninformed", "informed"):
        return f"with wrong assumptions, theory exists for uninformed and informed starts only, not for {conditions.start!r}"
    if problem.model.rank == "extensive" and (
        problem.components > 1
        or problem.prior.law.spectral_means is None
        or assumed.prior.law.eigenvalue_map is None
    ):
        return "with wrong assumptions, theory for matrices exists for one component and priors with a spectral law only"
    is_informed = conditions.start == "informed"
    orders: list[Orders] = []
    conjugates: list[Conjugates] = []
    growth = 0.0
    try:
        exact = _ridge(problem, assumed, alpha)
        if exact is not None:  # without a spread
            orders, conjugates = [exact[0]] * 2, [exact[1]] * 2
        for seed in range(0 if exact else ACCURACY.sets):
            recursion = MismatchedRecursion(problem, assumed, alpha, seed)
            start = recursion.start(0.99 if is_informed else ACCURACY.start)
            orders.append(recursion.fixed_point(orders[0] if orders else start))
            conjugates.append(recursion.conjugates(orders[-1]))
            growth = max(growth, recursion.growth(orders[-1], conjugates[-1]))
    except (NoFixedPoint, ParameterError, np.linalg.LinAlgError) as error:
        return f"GAMP with these assumptions does not converge: {error}"
    if growth > 1:
        return f"GAMP with these assumptions does not converge: errors grow by {growth:.3g} in every iteration"
    T = prior_moments(problem)[0]
    limit = limit_point(
        problem,
        alpha,
        [[evaluation.overlaps(T)] for evaluation in orders],
        method="closed form of ridge regression"
        if exact
        else "state evolution, wrong assumptions",
        branch="informed" if is_informed else "own",
        V=_mean(orders).V,
    )
    solution = Solution(problem, assumed, alpha, limit, orders, conjugates)
    return replace(limit, draws=lambda: checks_by_draws(solution))


def _ridge(
    problem: Problem, assumed: Problem, alpha: float
) -> tuple[Orders, Conjugates] | None:
    """Closed-form fixed point where GAMP is ridge regression: linear labels and an assumed Gaussian signal.

    None for other problems, and where components have penalties of their own.

    Raises
    ------
    NoFixedPoint
        Without an assumed noise, where there are just as many labels as directions.
    """
    true_noises, assumed_noises = noise_of_identity(problem), noise_of_identity(assumed)
    if true_noises is None or assumed_noises is None:
        return None
    (T, mean), (second, assumed_mean) = prior_moments(problem), prior_moments(assumed)
    variance, identity = float(second[0, 0]), np.eye(len(second))
    if mean.any() or assumed_mean.any() or not np.allclose(second, variance * identity):
        return None
    R = monte_carlo_rng("wrong assumptions: denoiser").standard_normal((len(T), 64))
    estimate = assumed.prior.denoise(R, identity).estimate
    linear_estimate = R * variance / (1 + variance)
    if not np.allclose(estimate, linear_estimate, rtol=0, atol=1e-9):
        return None
    noise = true_noises.mean() * identity
    assumed_noise = assumed_noises.mean() * identity
    ratio, penalty = (
        alpha * problem.model.sites,
        float(assumed_noises.mean()) / variance,
    )
    try:
        _, M, Q = ridge_overlaps(T, noise, ratio, penalty)
    except ValueError as error:
        raise NoFixedPoint(str(error)) from None
    claimed = ridge_overlaps(second, assumed_noise, ratio, penalty)
    V = claimed.truth - 2 * claimed.cross + claimed.own + SMALLEST_ERROR * identity
    gain = np.linalg.inv(V + assumed_noise)
    information = problem.model.kappa * alpha * problem.model.sites * gain
    chi = information @ (T - M - M.T + Q + noise) @ gain
    return Orders(M, Q, V), Conjugates(information, information, chi)


# -- the same numbers by plain draws -------------------------------------------------------------------------------------

DRAWS, BATCHES, DIMENSION = 500, 40, 120
"""Draws of labels in a batch, batches, and dimension of matrices that are denoised. Each doubled: half the variance."""


class Solution(NamedTuple):
    """Fixed points of state evolution, one for every set of random points, and the prediction made from them."""

    problem: Problem
    assumed: Problem
    alpha: float
    limit: AlgorithmPrediction
    orders: list[Orders]
    conjugates: list[Conjugates]

    @property
    def stream(self) -> str:
        """Name of the random-number stream of the draws that check this solution."""
        return f"{self.problem.identity} {self.assumed.identity} {self.limit.more['alpha']!r}"


def checks_by_draws(solution: Solution) -> list[Check]:
    """Check a prediction against Monte Carlo draws of labels and of denoised signals.

    m is the mean product of g with the latents of the signal less their mean given omega, without the true posterior. V is
    what a run measures, the response of the denoiser to a probe, without the spectral law or Stein's lemma.
    """
    orders, conjugates = _mean(solution.orders), _mean(solution.conjugates)
    errors = _standard_error(solution.conjugates)
    V_error = _standard_error(solution.orders).V + SMALLEST_ERROR
    messages = _drawn_messages(solution, orders)
    # What the size does is taken to fall as its inverse, and counted as an error.
    small, large = _drawn_errors(solution, conjugates)
    limit, bias = 2 * large - small, np.abs((large - small).mean(axis=0))
    mse, mse_error = solution.limit.mse, solution.limit.mse_error
    checks = []
    for k, name in enumerate(Conjugates._fields):
        predicted, error = np.diagonal(conjugates[k]), np.diagonal(errors[k])
        checks += _checks(name, predicted, error, messages[:, k], 0 * predicted)
    checks += _checks("signal", mse, mse_error, limit[:, 0], bias[0])
    V, V_error = np.diagonal(orders.V), np.diagonal(V_error)
    return checks + _checks("V", V, V_error, limit[:, 1], bias[1])


def _checks(
    name: str, predicted: Host, error: Host, draws: Host, draw_error: Host
) -> list[Check]:
    """Compare a predicted quantity (P,), component by component, with its mean over Monte Carlo draws (n, P)."""
    return [
        compare(
            name,
            p,
            predicted[p],
            error[p],
            draws[:, p],
            draw_error[p],
            effective=np.inf,
        )
        for p in range(len(predicted))
    ]


def _drawn_messages(solution: Solution, orders: Orders) -> Host:
    """Diagonals of Qhat, m and chi (BATCHES, 3, P), estimated from random batches of labels."""
    problem, (M, Q, V) = solution.problem, orders
    P, sites = problem.components, problem.model.sites
    slope = M.T @ np.linalg.inv(Q)
    covariance = prior_moments(problem)[0] - slope @ M
    batches = []
    for batch in range(BATCHES):
        rng = monte_carlo_rng(f"wrong assumptions: draws {solution.stream}", batch)
        normal = rng.standard_normal((2, DRAWS, P, sites))
        omega = symmetric_root(Q) @ normal[0]
        shift = symmetric_root(covariance) @ normal[1]
        y = problem.channel.forward(slope @ omega + shift, rng=rng)
        posterior = solution.assumed.channel.posterior(y, omega, V, rng=rng)
        g = np.linalg.inv(V) @ (np.asarray(posterior.mean) - omega)
        Qhat = sites * label_information(V, np.asarray(posterior.covariance))
        m, chi = (
            np.einsum("npc,npc->p", g, factor) / DRAWS
            for factor in (np.linalg.inv(covariance) @ shift, g)
        )
        batches.append([np.diagonal(Qhat), m, chi])
    return problem.model.kappa * solution.alpha * np.array(batches)


def _drawn_errors(solution: Solution, conjugates: Conjugates) -> Host:
    """True and claimed error (2, BATCHES, 2, P) of denoised random signals, at half and at full dimension."""
    problem, assumed, (Qhat, m, chi) = solution.problem, solution.assumed, conjugates
    model, P, inverse = problem.model, problem.components, np.linalg.inv(Qhat)
    size = DIMENSION if model.rank == "extensive" else DRAWS * DIMENSION
    errors = []
    for D in (size // 2, size):
        rng = monte_carlo_rng(f"wrong assumptions: denoised {solution.stream}", D)
        for _ in range(BATCHES):
            signal = problem.prior.sample(rng, P, D)
            noise = model.draw_noise(rng, P, D)
            R = np.tensordot(inverse @ m, signal, 1)
            R = R + np.tensordot(inverse @ symmetric_root(chi), noise, 1)
            estimate = np.asarray(denoise_step(assumed.prior, R, Qhat).estimate)
            probe = model.draw_noise(rng, P, D)
            claimed = measured_variance(assumed, R, Qhat, estimate, probe)
            error = model.inner(signal - estimate, signal - estimate)
            errors.append([np.diagonal(error), np.diagonal(claimed)])
    return np.reshape(errors, (2, BATCHES, 2, P))
