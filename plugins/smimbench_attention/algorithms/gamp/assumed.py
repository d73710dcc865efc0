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

Right assumptions give M = Q, V = T - Q and one recursion. By Cauchy and Schwarz ``m^T chi^{-1} m`` is at most the information
of the true posterior: nothing here is better than Bayes-optimal.

A fixed point of the recursion attracts GAMP, with steps that are small enough, if a small error of the estimate shrinks in one
iteration: with ``G_cc' = d g_c / d omega_c'`` and J the derivative of the denoiser, the map

.. math:: X \mapsto E J \hat Q^{-1} \left(\kappa \alpha E \sum_{cc'} G_{cc'} X G_{cc'}^T\right) \hat Q^{-1} J^T

of covariances has a spectral radius below 1 (de Almeida and Thouless).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from smimbench.backend import asarray_like, send, to_host
from smimbench.derive import denoise_step
from smimbench.interfaces import Array, Channel, Host, Overlaps
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
from smimbench.theory import information_at, offers_rough, overlap_at, prior_moments
from smimbench_attention.algorithms.gamp.message_pass import (
    SMALLEST_QHAT,
    label_information,
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
    """Mean posterior variance V (P, P) of an estimate under the assumptions of ``problem``, measured as the response of its
    denoiser to a small perturbation of the observation R, of information Qhat (P, P), along ``probe``, a draw of the model's
    noise.

    It is ``E[d denoise / dR] Qhat^{-1}`` at what was observed.

    The prior's own V is a mean over observations that would be made if the assumptions were right.
    """
    component_shape = (-1, *[1] * (R.ndim - 1))
    probe_sizes = PROBE * np.sqrt(np.diagonal(np.linalg.inv(Qhat)))
    perturbation = asarray_like(probe * probe_sizes.reshape(component_shape), R)
    denoiser_response = (
        denoise_step(problem.prior, R + perturbation, send(Qhat, R)).estimate - estimate
    )
    response_overlap, perturbation_overlap = (
        to_host(problem.model.inner(change, perturbation))
        for change in (denoiser_response, perturbation)
    )
    V: Host = symmetric(
        response_overlap @ np.linalg.inv(perturbation_overlap) @ np.linalg.inv(Qhat)
    )
    return V


class RecursionAccuracy(NamedTuple):
    """Numerical settings of mismatched state evolution: numbers of random points and signal entries of its integrals, and start,
    damping and end of its recursion.

    Attributes
    ----------
    latent_points, trajectory_points : int
        Points of the integrals over latents; more of them where small overlaps decide when a trajectory escapes.
    signal_entries : int
        Entries that stand for a signal of low rank. Twice as many of these or of the points: half the error.
    point_sets : int
        Independent sets of points; their spread is the stated error.
    initial_overlap : float
        Overlap of a start from which the prior mean would not move. Smaller: later steps, and the same ends.
    damping : float
        Weight of the old in every step, which moves no fixed point.
    stationary_change : float
        Relative change of a step that ends the recursion.
    max_iterations : int
        Largest number of steps.
    """

    latent_points: int = 2**13  # points of integrals over latents
    trajectory_points: int = 2**15  # points of integrals along a trajectory
    signal_entries: int = 2**13  # entries for a signal of low rank
    point_sets: int = 4  # independent sets of random points
    initial_overlap: float = 1e-4  # of starts where the prior mean stays
    damping: float = 0.3  # weight of the old order parameters
    stationary_change: float = 1e-10  # relative change that ends the recursion
    max_iterations: int = 1000  # of the recursion


ACCURACY = RecursionAccuracy()


class Orders(NamedTuple):
    """Order parameters (P, P) of the estimate: overlap M with the signal, self-overlap Q, claimed error V."""

    M: Host
    Q: Host
    V: Host

    @classmethod
    def bayes_optimal(cls, T: Host, V: Host) -> Orders:
        """Order parameters on the Bayes-optimal line, ``M = Q = T - V``, for a signal of self-overlap T and an estimate of
        error V (P, P).
        """
        Q = with_floor(T - V, 0.0)
        return cls(Q, Q, V)

    def overlaps(self, T: Host) -> Overlaps:
        """Overlaps of signal with itself (T), estimate with signal (M) and estimate with itself (Q)."""
        return Overlaps(T, self.M, self.Q)


class Conjugates(NamedTuple):
    """Conjugate order parameters (P, P) of the effective channel ``R = Qhat^{-1} (m S + chi^{1/2} Z)`` from signal S to
    observation R, with white noise Z: assumed information Qhat, signal m, noise covariance chi.
    """

    Qhat: Host
    m: Host
    chi: Host


class NoFixedPoint(ValueError):
    """Error that state evolution leaves the domain of its equations or does not converge."""


class ObservedLabels(NamedTuple):
    """Labels y (n, ...) and the channel that is assumed to give them, with the means omega (n, P, C) and covariance V (P, P)
    of the latents before the labels are seen.
    """

    y: Array
    channel: Channel
    omega: Host
    V: Host


class DenoisedSpectrum(NamedTuple):
    """Spectrum of a noisy matrix ``S + sqrt(Delta) Z`` at quadrature nodes: its eigenvalues, the signal's posterior means along
    their eigenvectors and the nodes' weights; the scale by which the observed matrix is larger, the noise variance that is
    assumed in it, and its eigenvalues after denoising.

    Attributes
    ----------
    observation_scale, assumed_noise : float
        Scale s of the observed matrix, and the noise that is assumed in it.
    unscaled_eigenvalues, signal_means, weights : ndarray (n,)
        Eigenvalues of ``S + sqrt(Delta) Z``, means of S along their eigenvectors, and weights.
    denoised_eigenvalues : ndarray (n,)
        Denoised ``s x``.
    """

    observation_scale: float  # m / Qhat
    assumed_noise: float  # noise variance that is assumed
    unscaled_eigenvalues: Host  # of S + sqrt(Delta) Z
    signal_means: Host  # posterior means of the signal
    weights: Host  # weights of the eigenvalues
    denoised_eigenvalues: Host  # after the assumed denoiser


class MismatchedRecursion:
    """State evolution of GAMP on one problem while it assumes another, with expectations over one set of random points. ``scale``
    is kappa alpha, kappa being the model's factor (2 for symmetric matrices), ``T`` the signal's second moment, ``latents`` the
    white Gaussian latents.
    """

    def __init__(
        self, problem: Problem, assumed: Problem, alpha: float, seed: int
    ) -> None:
        """Draw the random points of one set, numbered by ``seed``, for P components and C sites: white latents, and signal
        entries for low rank. ``assumed`` is the problem that GAMP assumes, alpha the sample ratio.
        """
        self.problem = problem
        self.assumed = assumed
        self.seed = seed
        self.scale = problem.model.kappa * alpha
        self.T = prior_moments(problem)[0]
        P, C = problem.components, problem.model.sites
        point_count = ACCURACY.latent_points
        if assumed is problem:
            point_count = ACCURACY.trajectory_points
        if offers_rough(problem):  # posteriors are integrals, and costly
            point_count //= 8
        white_latents = whitened_points(
            2 * P * C, point_count, "wrong assumptions: latents", seed
        )
        self.latents = white_latents.reshape(-1, 2, P, C).swapaxes(0, 1)
        if problem.model.rank == "low":
            self.signal, self.noise = self._signal_and_noise_entries()

    def initial_orders(self, overlap: float) -> Orders:
        """Initial order parameters (overlap M with the signal, self-overlap Q, claimed error V) of P components: those of the
        assumed prior mean or, where that is a fixed point, those of an estimate with the given small ``overlap``.
        """
        assumed_second_moment, mean_overlap = prior_moments(self.assumed)
        P = self.problem.components
        if self.problem.channel.symmetry != "none" and not mean_overlap.any():
            smaller_second_moments = np.minimum(
                np.diagonal(assumed_second_moment), np.diagonal(self.T)
            )
            Q = overlap * np.diag(smaller_second_moments)
            return Orders(Q, Q, assumed_second_moment - Q)
        assumed_prior_mean = self.assumed.prior.mean(P, 64)
        true_prior_mean = self.problem.prior.mean(P, 64)
        M = np.asarray(self.problem.model.inner(assumed_prior_mean, true_prior_mean))
        return Orders(M, mean_overlap, assumed_second_moment - mean_overlap)

    def sampled_labels(
        self, orders: Orders
    ) -> Iterator[tuple[ObservedLabels, ObservedLabels]]:
        """Draw labels y of latents z at the order parameters ``orders``, from the random points and then from their negatives.
        Yield each of the two sets with the channel, latent means omega and variance that GAMP assumes, and with those of the true
        posterior.
        """
        root_of_Q = symmetric_root(orders.Q)
        coefficients_of_true_mean = orders.M.T @ np.linalg.pinv(root_of_Q, rcond=1e-12)
        conditional_covariance = symmetric(
            self.T - coefficients_of_true_mean @ coefficients_of_true_mean.T
        )
        if (
            not np.isfinite(conditional_covariance).all()
            or np.linalg.eigvalsh(conditional_covariance)[0] < -1e-9
        ):
            raise NoFixedPoint(
                "state evolution reached overlaps of estimate and signal that are impossible (no positive covariance)"
            )
        conditional_covariance = conditional_covariance + SMALLEST_ERROR * np.eye(
            len(conditional_covariance)
        )
        channel = self.problem.channel
        for white_fields in (self.latents[0], -self.latents[0]):
            omega = root_of_Q @ white_fields
            true_mean = coefficients_of_true_mean @ white_fields
            rng = monte_carlo_rng("wrong assumptions: noise", self.seed)
            z = true_mean + symmetric_root(conditional_covariance) @ self.latents[1]
            y = channel.forward(z, rng=rng)
            yield (
                ObservedLabels(y, self.assumed.channel, omega, orders.V),
                ObservedLabels(y, channel, true_mean, conditional_covariance),
            )

    def _messages(self, labels: ObservedLabels) -> tuple[Host, Host]:
        """Messages ``g = V^{-1} (E[z | y, omega, V] - omega)`` (n, P, C) from labels y as a channel sees them, and the
        information (P, P) that is inferred from them.
        """
        y, channel, omega, V = labels
        rng = monte_carlo_rng("wrong assumptions: posterior", self.seed)
        posterior = channel.posterior(y, omega, V, rng=rng)
        g = np.linalg.inv(V) @ (np.asarray(posterior.mean) - omega)
        information = label_information(V, np.asarray(posterior.covariance))
        return g, self.problem.model.sites * symmetric(information)

    def conjugates(self, orders: Orders) -> Conjugates:
        """Conjugate order parameters Qhat (from the ``information`` of the labels), m and chi as a function of the order
        parameters M, Q and V, from products of messages g under the assumptions and ``true_g`` under the truth, whose latents
        have ``true_covariance`` given the estimate.
        """
        averages_of_halves = []
        for assumed_labels, true_labels in self.sampled_labels(orders):
            g, information = self._messages(assumed_labels)
            true_g, true_information = self._messages(true_labels)
            g_products = [
                np.einsum("npc,nqc->pq", left_g, right_g) / len(g)
                for left_g, right_g in ((g, true_g), (g, g), (true_g, true_g))
            ]
            averages_of_halves.append((information, true_information, *g_products))
        information, true_information, m, chi, true_chi = (
            np.mean(averages_over_halves, axis=0)
            for averages_over_halves in zip(*averages_of_halves)
        )
        if not _all_finite(information, m, chi):
            raise NoFixedPoint(
                "the information of the labels under the assumed channel is not finite"
            )
        # Corrected by what is known of the true posterior: its sampled information is off by the same chance.
        true_covariance = true_labels.V
        exact_information = information_at(
            self.problem,
            with_floor(self.T - true_covariance, 0.0),
            true_covariance,
            rough=offers_rough(self.problem),
        ).value
        information_correction = _covariance_correction(
            exact_information, symmetric(true_information)
        )
        g_correction = _covariance_correction(exact_information, symmetric(true_chi))
        if self.problem.channel.symmetry == "signs":
            information, m, chi = (
                np.diag(np.diagonal(matrix)) for matrix in (information, m, chi)
            )
        information = information_correction @ information @ information_correction.T
        return Conjugates(
            self.scale * with_floor(information, SMALLEST_QHAT / self.scale),
            self.scale * (g_correction @ m @ g_correction.T),
            self.scale * symmetric(g_correction @ chi @ g_correction.T),
        )

    def denoised_orders(self, conjugates: Conjugates) -> Orders:
        """Order parameters M, Q and V of the assumed prior's estimate, from observations R, as a function of the conjugates Qhat,
        m and chi. Only their difference from those of the true prior's estimate at the same ``information``, which are known
        exactly, is sampled.
        """
        Qhat, m, chi = conjugates
        if self.problem.model.rank == "extensive":
            return self._orders_of_matrix(conjugates)
        R = self._noisy_entries(conjugates)
        sampled_orders = self._orders_of_entries(self.assumed, Qhat, R, chi)
        # The true prior's estimate from the same numbers has known overlaps.
        information = symmetric(m.T @ np.linalg.solve(chi, m))
        R = self.signal + inverse_root(information, 1e-12) @ self.noise
        control_orders = self._orders_of_entries(
            self.problem, information, R, information
        )
        Q, V = overlap_at(self.problem, information)
        return Orders(
            Q + sampled_orders.M - control_orders.M,
            Q + sampled_orders.Q - control_orders.Q,
            V + sampled_orders.V - control_orders.V,
        )

    def _signal_and_noise_entries(self) -> tuple[Host, Host]:
        """Sampled signal entries (P, size) with the exact second moment T, and as many white-noise entries orthogonal to them."""
        P = self.problem.components
        entry_count = ACCURACY.signal_entries
        rng = monte_carlo_rng("wrong assumptions: signal", self.seed)
        signal = self.problem.prior.sample(rng, P, entry_count)
        white_noise = normal_points(
            P, entry_count, "wrong assumptions: entries", self.seed
        ).T
        sampled_entries = np.concatenate([signal, white_noise])
        zero_block = np.zeros((P, P))
        exact_covariance = np.block([[self.T, zero_block], [zero_block, np.eye(P)]])
        sampled_root = np.linalg.cholesky(
            sampled_entries @ sampled_entries.T / entry_count
        )
        rescaled_entries = np.linalg.cholesky(exact_covariance) @ np.linalg.solve(
            sampled_root, sampled_entries
        )
        return rescaled_entries[:P], rescaled_entries[P:]

    def _noisy_entries(self, conjugates: Conjugates) -> Host:
        """Observed signal entries ``R = Qhat^{-1} (m S + chi^{1/2} Z)`` (P, size) from sampled entries S and white noise Z,
        at the conjugate order parameters Qhat, m and chi.
        """
        Qhat, m, chi = conjugates
        noisy_signal = m @ self.signal + symmetric_root(chi) @ self.noise
        return np.linalg.solve(Qhat, noisy_signal)

    def _orders_of_entries(
        self, problem: Problem, Qhat: Host, R: Host, chi: Host
    ) -> Orders:
        """Order parameters M, Q and V of the estimate that the prior of ``problem`` makes of observed signal entries R (P, size),
        which it takes to have the information Qhat, where their noise is ``Qhat^{-1} chi^{1/2} Z``.
        """
        estimate = np.asarray(problem.prior.denoise(R, Qhat).estimate)
        entry_count = R.shape[1]
        # Stein: E[f Z^T] = E[f'] Qhat^{-1} chi^{1/2}.
        V = symmetric(estimate @ self.noise.T / entry_count @ inverse_root(chi, 1e-12))
        return Orders(
            estimate @ self.signal.T / entry_count,
            estimate @ estimate.T / entry_count,
            V,
        )

    def _orders_of_matrix(self, conjugates: Conjugates) -> Orders:
        """Order parameters M, Q and V of the assumed prior's estimate of a matrix of extensive rank at the conjugate ones, from
        denoised eigenvalues f and posterior means xi of the signal along the eigenvectors; V is the mean of ``response``, the
        slope of f.
        """
        spectrum = self.denoised_spectrum(conjugates)
        f, xi = spectrum.denoised_eigenvalues, spectrum.signal_means
        response = (
            f
            * (spectrum.unscaled_eigenvalues - xi)
            / (
                _effective_noise(conjugates)
                * spectrum.observation_scale
                * conjugates.Qhat[0, 0]
            )
        )
        return Orders(
            *(
                np.array([[integrand @ spectrum.weights]])
                for integrand in (f * xi, f * f, response)
            )
        )

    def denoised_spectrum(self, conjugates: Conjugates) -> DenoisedSpectrum:
        """Spectrum of the observed noisy matrix ``m S + chi^{1/2} Z`` at the conjugate order parameters Qhat, m and chi, before
        and after denoising by the assumed prior.
        """
        nodes_and_means: list[Host] = []

        def record_nodes(
            unscaled_eigenvalues: Host, signal_mean: Host, signal_variance: Host
        ) -> Host:
            """Keep the integration nodes, ``unscaled_eigenvalues``, and posterior means of the signal there, and return the
            identity, so that each node is an integrand of its own. The posterior variance ``signal_variance`` is not used.
            """
            nodes_and_means.extend((unscaled_eigenvalues, signal_mean))
            return np.eye(len(unscaled_eigenvalues))

        assumed_noise = 1 / float(conjugates.Qhat[0, 0])
        observation_scale = float(conjugates.m[0, 0] / conjugates.Qhat[0, 0])
        spectral_means = self.problem.prior.law.spectral_means
        assert spectral_means is not None  # mismatched_theory
        node_weights = np.asarray(
            spectral_means(record_nodes, _effective_noise(conjugates)).value
        )
        unscaled_eigenvalues, signal_means = nodes_and_means
        return DenoisedSpectrum(
            observation_scale,
            assumed_noise,
            unscaled_eigenvalues,
            signal_means,
            node_weights,
            self._denoise_eigenvalues(
                observation_scale * unscaled_eigenvalues, assumed_noise
            ),
        )

    def _denoise_eigenvalues(self, eigenvalues: Host, noise: float) -> Host:
        """Eigenvalues of a noisy matrix after denoising by the assumed prior, which takes ``noise`` as the variance of its
        noise.
        """
        eigenvalue_map = self.assumed.prior.law.eigenvalue_map
        assert eigenvalue_map is not None  # mismatched_theory
        return np.asarray(eigenvalue_map(eigenvalues, noise))

    def step(self, orders: Orders) -> Orders:
        """Run one undamped iteration of state evolution from the order parameters ``orders`` and return the new ones, M, Q
        and V.
        """
        next_orders = self.denoised_orders(self.conjugates(orders))
        if not _all_finite(*next_orders):
            raise NoFixedPoint("the order parameters of state evolution are not finite")
        V = symmetric(next_orders.V) + SMALLEST_ERROR * np.eye(len(next_orders.V))
        return next_orders._replace(V=V)

    def fixed_point(self, orders: Orders) -> Orders:
        """Fixed point of state evolution, its order parameters M, Q and V, by damped iterations from the order parameters
        ``orders``; raises NoFixedPoint where they do not converge.
        """
        has_rough_information = offers_rough(self.problem)
        for _ in range(ACCURACY.max_iterations):
            next_orders = self.step(orders)
            relative_change = max(
                float(
                    np.abs(next_matrix - previous_matrix).max()
                    / max(np.abs(next_matrix).max(), ACCURACY.stationary_change)
                )
                for previous_matrix, next_matrix in zip(orders, next_orders)
            )
            orders = Orders(
                *(
                    ACCURACY.damping * previous_matrix
                    + (1 - ACCURACY.damping) * next_matrix
                    for previous_matrix, next_matrix in zip(orders, next_orders)
                )
            )
            # Where the signal is known, only rounding is left.
            signal_is_known = np.diagonal(orders.V).max() < 10 * SMALLEST_ERROR
            if relative_change < ACCURACY.stationary_change:
                return orders
            if relative_change < ROUGH_CHANGE and (
                signal_is_known or has_rough_information
            ):
                return orders
        raise NoFixedPoint("state evolution does not reach a fixed point")

    def perturbation_growth(self, orders: Orders, conjugates: Conjugates) -> float:
        """Growth factor per iteration of the squared norm of a small perturbation of the estimate at a fixed point ``orders``
        (M, Q, V) with ``conjugates`` (Qhat, m, chi), from squared slopes ``dg/domega`` of the messages at labels y of latents
        N(omega, V) and those of the denoiser; stable below 1. P is the number of components.
        """
        P = self.problem.components
        mean_squared_slopes = []
        for (y, channel, omega, V), _ in self.sampled_labels(orders):
            rng = monte_carlo_rng("wrong assumptions: posterior", self.seed)
            posterior = channel.posterior(y, omega, V, second_moment=True, rng=rng)
            posterior_mean = np.asarray(posterior.mean)
            V_inverse = np.linalg.inv(V)
            second_moment = np.asarray(posterior.second_moment)
            posterior_covariance = (
                second_moment
                - posterior_mean[..., None, None] * posterior_mean[:, None, None]
            )
            g_slopes = np.einsum(
                "ap,npcqd,qb->nacbd", V_inverse, posterior_covariance, V_inverse
            )
            same_site_identity = np.eye(posterior_mean.shape[2])[None, None, :, None, :]
            g_slopes -= V_inverse[None, :, None, :, None] * same_site_identity
            mean_squared_slopes.append(
                np.einsum("nacbd,necfd->aebf", g_slopes, g_slopes) / len(g_slopes) / 2
            )
        Qhat_inverse = np.linalg.inv(conjugates.Qhat)
        message_slopes = self.scale * np.einsum(
            "ax,xybf,ye->aebf", Qhat_inverse, sum(mean_squared_slopes), Qhat_inverse
        )
        denoiser_slopes = self._squared_slopes(conjugates)
        map_of_covariances = np.einsum(
            "aebf,bfxy->aexy", denoiser_slopes, message_slopes
        ).reshape(P * P, P * P)
        return float(np.abs(np.linalg.eigvals(map_of_covariances)).max())

    def _squared_slopes(self, conjugates: Conjugates) -> Host:
        """Mean products ``J_ab J_ef`` (a, e, b, f), over components a, b, e and f, of the derivatives ``J_ab = df_a/dR_b`` of the
        assumed denoiser f at the conjugate order parameters: at sampled observations R, or at pairs of eigenvalues of a matrix.
        """
        if self.problem.model.rank == "extensive":
            spectrum = self.denoised_spectrum(conjugates)
            assumed_noise, node_weights = spectrum.assumed_noise, spectrum.weights
            f = spectrum.denoised_eigenvalues
            eigenvalues = spectrum.observation_scale * spectrum.unscaled_eigenvalues
            difference_step = 1e-5 * assumed_noise**0.5
            denoised_above = self._denoise_eigenvalues(
                eigenvalues + difference_step, assumed_noise
            )
            denoised_below = self._denoise_eigenvalues(
                eigenvalues - difference_step, assumed_noise
            )
            denoiser_derivative = (denoised_above - denoised_below) / (
                2 * difference_step
            )
            eigenvalue_gaps = eigenvalues[:, None] - eigenvalues[None, :]
            eigenvalues_are_close = np.abs(eigenvalue_gaps) < difference_step
            difference_quotients = (f[:, None] - f[None, :]) / np.where(
                eigenvalues_are_close, 1.0, eigenvalue_gaps
            )
            denoiser_slopes = np.where(
                eigenvalues_are_close,
                denoiser_derivative[:, None],
                difference_quotients,
            )
            return np.full(
                (1, 1, 1, 1),
                node_weights @ (denoiser_slopes * denoiser_slopes) @ node_weights,
            )
        R = self._noisy_entries(conjugates)
        prior = self.assumed.prior
        Qhat = conjugates.Qhat
        difference_steps = 1e-4 * np.sqrt(np.diagonal(np.linalg.inv(Qhat)))
        estimate = np.asarray(prior.denoise(R, Qhat).estimate)
        jacobian_columns = []
        for difference_step, shift_of_entries in zip(
            difference_steps, np.diag(difference_steps)
        ):
            shifted_estimate = np.asarray(
                prior.denoise(R + shift_of_entries[:, None], Qhat).estimate
            )
            jacobian_columns.append((shifted_estimate - estimate) / difference_step)
        J = np.stack(jacobian_columns, axis=1)  # (P, P, size)
        return np.asarray(np.einsum("abi,efi->aebf", J, J) / R.shape[1])


def _effective_noise(conjugates: Conjugates) -> float:
    """Effective noise ``Delta = chi / m^2`` of the observed matrix ``m S + chi^{1/2} Z`` in units of the signal S, at the
    conjugate order parameters m and chi of one component.
    """
    return float(conjugates.chi[0, 0] / conjugates.m[0, 0] ** 2)


def _all_finite(*matrices: Host) -> bool:
    """Whether all entries of all matrices are finite."""
    return all(np.isfinite(matrix).all() for matrix in matrices)


def _covariance_correction(exact_covariance: Host, sampled_covariance: Host) -> Host:
    """Matrix c (P, P) that corrects a sampled covariance, ``c sampled_covariance c^T = exact_covariance``; identity where
    they differ by a factor of 2 or more.
    """
    variance_ratios = np.diagonal(exact_covariance) / np.maximum(
        np.diagonal(sampled_covariance), 1e-300
    )
    inverse_ratios = 1 / np.maximum(variance_ratios, 1e-300)
    if not (np.maximum(variance_ratios, inverse_ratios) < 2).all():
        return np.eye(len(exact_covariance))
    return np.asarray(
        symmetric_root(exact_covariance) @ inverse_root(sampled_covariance, 1e-12)
    )
