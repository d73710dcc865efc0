"""Losses that are convex in the latents, and the integrals in the fixed-point equations of their minimum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from smimbench.backend import namespace
from smimbench.derive import observable
from smimbench.interfaces import Array, Host
from smimbench.numerics import monte_carlo_rng, symmetric_root, whitened_points
from smimbench.problem import Problem
from smimbench.theory import prior_moments

ROUNDING = 4 * float(np.finfo(float).eps)
"""Relative size of a residual, or difference of two posterior means, that counts as rounding."""


@dataclass(frozen=True)
class Loss:
    """Loss ``l(y, z)`` of one label y and one latent z, convex in z; a sample's loss is the sum over its entries. Fields are
    the functions l, dl/dz and its second derivative in z, and the values of ``y z`` where that jumps.

    Attributes
    ----------
    name : str
    has_sign_labels : bool
        Whether labels are signs, -1 or +1.
    value, slope, curvature : callable
        ``(y, z) -> array`` of their common shape: l and its derivatives with respect to z, curvature >= 0.
    kinks : tuple of float
        Values of ``y z`` at which the curvature jumps.
    """

    name: str  # name of the loss
    has_sign_labels: bool  # whether labels are -1 or +1
    value: Callable[[Array, Array], Array]  # l(y, z)
    slope: Callable[[Array, Array], Array]  # dl/dz
    curvature: Callable[[Array, Array], Array]  # second derivative in z
    kinks: tuple[float, ...] = ()  # values of y z where the curvature jumps


def _softplus(x: Array) -> Array:
    """Softplus ``log(1 + exp(x))``, without overflow."""
    xp = namespace(x)
    return xp.maximum(x, xp.zeros_like(x)) + xp.log1p(xp.exp(-xp.abs(x)))


def _sigmoid(x: Array) -> Array:
    """Sigmoid ``1 / (1 + exp(-x))``, without overflow."""
    xp = namespace(x)
    exp_negative = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, 1 / (1 + exp_negative), exp_negative / (1 + exp_negative))


def _margin_shortfall(y: Array, z: Array) -> Array:
    """Amount ``max(0, 1 - y z)`` by which the latent z of a label y falls short of a margin of 1."""
    shortfall = 1 - y * z
    return namespace(shortfall).maximum(
        shortfall, namespace(shortfall).zeros_like(shortfall)
    )


LOSSES = {
    loss.name: loss
    for loss in (
        Loss("square", False, lambda y, z: (y - z) ** 2 / 2, lambda y, z: z - y, lambda y, z: namespace(z).ones_like(z)),
        Loss(
            "logistic", True,
            lambda y, z: _softplus(-y * z),
            lambda y, z: -y * _sigmoid(-y * z),
            lambda y, z: _sigmoid(z) * _sigmoid(-z),
        ),
        Loss(
            "squared-hinge", True,
            lambda y, z: _margin_shortfall(y, z) ** 2 / 2,
            lambda y, z: -y * _margin_shortfall(y, z),
            lambda y, z: namespace(z).astype(y * z < 1, z.dtype),
            kinks=(1.0,),
        ),
    )
}  # fmt: skip
"""``(y - z)^2 / 2``, ``log(1 + exp(-y z))`` and ``max(0, 1 - y z)^2 / 2``."""


def proximal_operator(loss: Loss, y: Host, omega: Host, v: Host) -> Host:
    """Proximal operator ``argmin_z l(y, z) + (z - omega)^2 / (2 v)`` of a loss l, elementwise, for labels y, prior means omega
    and variances v > 0 of the latents z, by Newton steps within bounds of z that narrow; ``last_step`` and ``step_before_last``
    are lengths of steps, ``residual`` is that of the derivative times v.

    Solves ``z + v l'(z) = omega`` by Newton steps in a bracket: the slope increases, so z is between omega and its step.
    """
    bound_of_z = omega - v * loss.slope(y, omega)
    lower_bound_of_z = np.minimum(omega, bound_of_z)
    upper_bound_of_z = np.maximum(omega, bound_of_z)
    z = (lower_bound_of_z + upper_bound_of_z) / 2
    step_before_last = upper_bound_of_z - lower_bound_of_z
    last_step = upper_bound_of_z - lower_bound_of_z
    for _ in range(100):  # usually about ten
        scaled_slope = v * loss.slope(y, z)
        scaled_curvature = v * loss.curvature(y, z)
        residual = z + scaled_slope - omega
        # Change of the residual by a rounding of z.
        rounding_of_residual = (1 + scaled_curvature) * (1 + np.abs(z))
        rounding_of_residual = ROUNDING * (
            rounding_of_residual + np.abs(scaled_slope) + np.abs(omega)
        )
        residual = np.where(np.abs(residual) <= rounding_of_residual, 0.0, residual)
        lower_bound_of_z = np.where(residual <= 0, z, lower_bound_of_z)
        upper_bound_of_z = np.where(residual >= 0, z, upper_bound_of_z)
        newton_step = -residual / (1 + scaled_curvature)
        # Steps that do not halve within two rounds may oscillate forever: bisect instead.
        is_safe_step = (
            (z + newton_step >= lower_bound_of_z)
            & (z + newton_step <= upper_bound_of_z)
            & (np.abs(newton_step) <= step_before_last / 2)
        )
        next_z = np.where(
            is_safe_step, z + newton_step, (lower_bound_of_z + upper_bound_of_z) / 2
        )
        step_before_last = last_step
        last_step = np.abs(next_z - z)
        z = next_z
        if np.all(last_step <= 1e-13 * (1 + np.abs(z))):
            break
    return np.asarray(z)


def proximal_force(loss: Loss, y: Host, omega: Host, z: Host, v: Host) -> Host:
    """Proximal force ``g = (z - omega) / v`` at the proximal point z of a loss, for label y, prior mean omega and variance v
    of the latent; see ``proximal_operator``.

    It equals minus the slope of the loss; of the two the one with less rounding error is taken.
    """
    return np.where(v < 1, -loss.slope(y, z), (z - omega) / v)


class IntegrationAccuracy(NamedTuple):
    """Numerical settings of the theory of convex risk minimization: panels and points of the integrals, and iterations,
    tolerances and damping of the fixed point.

    Attributes
    ----------
    nodes_per_panel, largest_omega, smallest_panel : int, float, float
        Where labels are signs: Gauss-Legendre nodes of every panel of the integral over omega, which goes up to ``largest_omega``
        standard deviations, and width of the innermost panel.
    point_sets, points_per_set : int
        For other labels: independent sets of random points, whose spread is the stated error, and their size.
    iterations_per_attempt, root_attempts : int
        Iterations before a root finder continues from there, and how often that is tried.
    evaluations_per_unknown : int
        Most evaluations of the root finder per unknown.
    converged_change, stalled_change : float
        Relative change at which the fixed point is found; the second where a root finder achieves no less.
    damping_weight : float
        Damping: weight of the new order parameters in every iteration; at 1 some iterations circle the fixed point.
    """

    nodes_per_panel: int = 20  # nodes of the integral over omega
    largest_omega: float = 9.0  # in standard deviations of omega
    smallest_panel: float = 1e-12  # width of the innermost panel
    point_sets: int = 4  # independent sets of random points
    points_per_set: int = 2**12  # random points of a set
    iterations_per_attempt: int = 10  # before the root finder
    root_attempts: int = 20  # attempts of the root finder
    evaluations_per_unknown: int = 30  # of the root finder
    converged_change: float = 1e-11  # relative change at a fixed point
    stalled_change: float = 1e-8  # accepted if no less is reached
    damping_weight: float = 0.7  # weight of the new order parameters


ACCURACY = IntegrationAccuracy()


class OrderParameters(NamedTuple):
    """Order parameters (P, P) on which the integrals depend: overlaps T, M, Q of signal and estimate, susceptibility V,
    covariance of the signal's latents given the estimate's (``conditional_covariance``) and the reverse
    (``noise_covariance``).

    Attributes
    ----------
    T, M, Q : ndarray
        Overlaps of the signal with itself, of the estimate with it, of the estimate with itself.
    V : ndarray
        Susceptibility; diagonal, as the loss is a sum over components.
    conditional_covariance : ndarray
        Covariance of z* where omega is known, ``T - M^T Q^-1 M``.
    noise_covariance : ndarray
        Covariance of omega where z* is known, ``Q - M T^-1 M^T``.
    """

    T: Host
    M: Host
    Q: Host
    V: Host
    conditional_covariance: Host
    noise_covariance: Host


class RiskMoments(NamedTuple):
    """Integrals of the fixed-point equations: V_hat ``-E dg/domega``, m_hat ``E dg/dz*``, Q_hat ``E g g^T`` and ``E g z*^T``
    (P, P) of the proximal force g, latents omega of the estimate and z* of the signal, before the factor alpha; and the mean
    losses of a sample.

    ``-E dg/domega``, ``E dg/dz*``, ``E g g^T`` and ``E g z*^T`` (P, P) are summed over sites.
    """

    V_hat: Host
    m_hat: Host
    Q_hat: Host
    g_signal_product: Host  # E g z*^T
    training_loss: float  # at the proximal point
    test_loss: float  # at omega


def labels_of(problem: Problem) -> str | None:
    """Type of a problem's labels y as functions of latents z: ``"signs"`` (-1 or 1) or ``"numbers"``; None if a label depends on
    more than one site, as tested by scaling the latents of some sites.
    """
    rng = monte_carlo_rng("convex losses: what labels are")
    z = rng.standard_normal((64, problem.components, problem.model.sites))

    def labels(z: Host) -> Host:
        """Labels of latents z, always with the same noise (seed)."""
        rng = monte_carlo_rng("convex losses: noise of labels")
        return np.asarray(
            observable(problem.channel, problem.channel.forward(z, rng=rng))
        )

    y = labels(z)
    is_first_site = np.arange(z.shape[-1]) == 0
    if y.shape != z.shape:
        return None
    for is_scaled_site in (is_first_site, ~is_first_site):
        labels_of_scaled = labels(np.where(is_scaled_site, 2 * z, z))
        if not np.array_equal(
            labels_of_scaled[..., ~is_scaled_site], y[..., ~is_scaled_site]
        ):
            return None
    return "signs" if bool(np.isin(y, (-1, 1)).all()) else "numbers"


Integrals = Callable[[OrderParameters], RiskMoments]
"""The integrals of the fixed-point equations as a function of the order parameters."""


def integrals_of(problem: Problem, loss: Loss) -> Sequence[Integrals]:
    """Integrals of the fixed-point equations of a problem and a loss: one evaluation by quadrature where possible, otherwise
    one for each independent scramble of Sobol points.
    """
    has_sign_labels = problem.components == 1 and labels_of(problem) == "signs"
    if has_sign_labels and _sites_are_independent(problem):
        return [SignIntegrals(problem, loss)]
    scrambles = range(ACCURACY.point_sets)
    return [SampledIntegrals(problem, loss, scramble) for scramble in scrambles]


def _sites_are_independent(problem: Problem) -> bool:
    """Whether the posterior of the latent at one of C sites (latents N(omega, 1), labels y of signs) does not depend on the
    labels of the other sites, which are flipped as a test.
    """
    C = problem.model.sites
    rng = monte_carlo_rng("convex losses: sites")
    omega = rng.standard_normal((8, 1, C))
    y = np.sign(rng.standard_normal((8, 1, C)))
    flipped_labels = y.copy()
    flipped_labels[:, :, 1:] *= -1
    posterior_mean, mean_at_flipped_labels = (
        np.asarray(problem.channel.posterior(labels, omega, np.eye(1)).mean)[:, :, 0]
        for labels in (y, flipped_labels)
    )
    return bool(np.allclose(posterior_mean, mean_at_flipped_labels, rtol=0, atol=1e-12))


class SignIntegrals:
    """Integrals for binary labels of a single latent, by quadrature over omega, the estimate's latent, and a sum over the
    label.
    """

    def __init__(self, problem: Problem, loss: Loss) -> None:
        """Store channel, loss, number of sites C and the Gauss-Legendre rule of a panel."""
        self.channel = problem.channel
        self.loss = loss
        self.C = problem.model.sites
        self.panel = np.polynomial.legendre.leggauss(ACCURACY.nodes_per_panel)

    def _nodes(
        self, transition_width: float, extra_edges: list[float]
    ) -> tuple[Host, Host]:
        """Gauss-Legendre nodes and Gaussian weights on panels of omega, in standard deviations, whose ends
        ``largest_omega / 2^k`` halve towards zero down to ``transition_width``, with ``extra_edges`` as further ends.

        The smallest panel is as wide as the range of omega over which the label's probability changes.
        """
        largest_omega = ACCURACY.largest_omega
        smallest_panel = min(
            max(transition_width, ACCURACY.smallest_panel), largest_omega / 2
        )
        halving_count = int(np.ceil(np.log2(largest_omega / smallest_panel)))
        panel_edges = {0.0, *(largest_omega / 2.0**k for k in range(halving_count + 1))}
        panel_edges |= {
            panel_edge for panel_edge in extra_edges if 0 < panel_edge < largest_omega
        }
        positive_edges = sorted(panel_edges)
        negative_edges = [-panel_edge for panel_edge in positive_edges[:0:-1]]
        all_edges = np.array([*negative_edges, *positive_edges])
        half_widths = np.diff(all_edges) / 2
        panel_centers = (all_edges[1:] + all_edges[:-1]) / 2
        panel_nodes, panel_weights = self.panel
        nodes = panel_centers[:, None] + half_widths[:, None] * panel_nodes
        weights = half_widths[:, None] * panel_weights
        weights = weights * np.exp(-(nodes**2) / 2) / np.sqrt(2 * np.pi)
        return nodes.ravel(), weights.ravel()

    def _posterior_mean(self, y: float, omega: Host, V: Host) -> Host:
        """Posterior mean of a latent given its label y, for the prior N(omega, V)."""
        prior_means = np.repeat(omega[:, None, None], self.C, axis=2)
        labels = y * np.ones_like(prior_means)
        return np.asarray(self.channel.posterior(labels, prior_means, V).mean)[:, 0, 0]

    def __call__(self, orders: OrderParameters) -> RiskMoments:
        """Integrals V_hat, m_hat, Q_hat at the order parameters ``orders`` (overlaps M, Q, susceptibility V), by quadrature
        over omega, the estimate's latent, and a sum over the labels y; g is the proximal force, ``teacher_mean`` the mean of
        the signal's latent given omega. A shift is the distance of a latent's posterior mean, given its label, from its prior
        mean; the two give the label's probability.
        """
        M, Q, V, conditional_variance = (
            matrix[0, 0]
            for matrix in (orders.M, orders.Q, orders.V, orders.conditional_covariance)
        )
        omega_scale = np.sqrt(Q)
        # The curvature of the loss as a function of omega jumps at the kink plus V times the slope there.
        label_signs = np.array([1.0, -1.0])
        kink_positions: list[float] = []
        for kink in self.loss.kinks:
            z = label_signs * kink  # latents of a kink
            kinks_in_omega = (
                np.abs(z + V * self.loss.slope(label_signs, z)) / omega_scale
            )
            kink_positions += kinks_in_omega.tolist()
        transition_width = np.sqrt(conditional_variance) / max(
            abs(M) / omega_scale, ACCURACY.smallest_panel
        )
        omega_nodes, omega_weights = self._nodes(transition_width, kink_positions)
        omega = omega_scale * omega_nodes
        teacher_mean = M / omega_scale * omega_nodes
        posterior_means = [
            self._posterior_mean(y, teacher_mean, orders.conditional_covariance)
            for y in label_signs
        ]
        # The two posterior means average to the prior mean; their distances from it, less rounding, give the chance of a label.
        rounding_of_mean = ROUNDING * np.abs(teacher_mean)
        mean_shift_of_plus, mean_shift_of_minus = (
            np.maximum(np.abs(posterior_mean - teacher_mean) - rounding_of_mean, 0.0)
            for posterior_mean in posterior_means
        )
        probability_is_resolved = (
            mean_shift_of_plus + mean_shift_of_minus > 1e4 * rounding_of_mean
        )
        # Where no label moves the mean any more, the chance of a label stays what it was.
        plus_probability = np.full_like(omega_nodes, 0.5)
        if probability_is_resolved.any():
            resolved_shift_of_minus = mean_shift_of_minus[probability_is_resolved]
            summed_shifts = (
                resolved_shift_of_minus + mean_shift_of_plus[probability_is_resolved]
            )
            plus_probability = np.interp(
                omega_nodes,
                omega_nodes[probability_is_resolved],
                resolved_shift_of_minus / summed_shifts,
            )
        integral_sums = np.zeros(6)
        for y, posterior_mean, label_probability in zip(
            label_signs, posterior_means, (plus_probability, 1 - plus_probability)
        ):
            labels = np.full_like(omega, y)
            proximal_point = proximal_operator(self.loss, labels, omega, V)
            g = proximal_force(self.loss, labels, omega, proximal_point, V)
            curvature = self.loss.curvature(labels, proximal_point)
            integrands = (
                curvature / (1 + V * curvature),
                g * (posterior_mean - teacher_mean) / conditional_variance,
                g * g,
                g * posterior_mean,
                self.loss.value(y, proximal_point),
                self.loss.value(y, omega),
            )
            weight_of_label = omega_weights * label_probability
            integral_sums += [
                np.sum(weight_of_label * integrand) for integrand in integrands
            ]
        *moments, training_loss, test_loss = (self.C * integral_sums).tolist()
        V_hat, m_hat, Q_hat, g_signal_product = (
            np.array([[moment]]) for moment in moments
        )
        return RiskMoments(
            V_hat, m_hat, Q_hat, g_signal_product, training_loss, test_loss
        )


class SampledIntegrals:
    """Integrals for any labels, sampled with randomized Sobol points for the latents z* of the signal and omega of the
    estimate, and with labels drawn once.

    Neither z* nor its labels move with the overlaps, so that the integrals are as smooth as the loss and a fixed point is found
    to rounding: what is left is the spread between sets of points.
    """

    def __init__(self, problem: Problem, loss: Loss, scramble: int) -> None:
        """Draw latents z of the signal, white fields u and labels y once, for P components and C sites; ``inverse`` is that
        of the signal's second moment, ``scramble`` numbers the independent sets of points.
        """
        P, C = problem.components, problem.model.sites
        self.loss, self.inverse = loss, np.linalg.inv(prior_moments(problem)[0])
        sobol_points = whitened_points(
            2 * P * C, ACCURACY.points_per_set, "convex losses", scramble
        ).reshape(-1, 2 * P, C)
        self.z = symmetric_root(prior_moments(problem)[0]) @ sobol_points[:, :P]
        self.u = sobol_points[:, P:]
        rng = monte_carlo_rng("convex losses: noise", scramble)
        labels = problem.channel.forward(self.z, rng=rng)
        self.y = np.asarray(observable(problem.channel, labels), dtype=float)

    def __call__(self, orders: OrderParameters) -> RiskMoments:
        """Integrals V_hat, m_hat, Q_hat at the order parameters ``orders``, by sampling omega, the estimate's latents, and
        the labels y; g is the proximal force, V the susceptibilities of the components.
        """
        omega = (orders.M @ self.inverse) @ self.z + symmetric_root(
            orders.noise_covariance
        ) @ self.u
        y = self.y
        point_count = len(self.y)
        V = np.diagonal(orders.V)[:, None]
        proximal_point = proximal_operator(self.loss, y, omega, V)
        g = proximal_force(self.loss, y, omega, proximal_point, V)
        curvature = self.loss.curvature(y, proximal_point)
        V_hat = np.diag(
            np.sum(curvature / (1 + V * curvature), axis=(0, 2)) / point_count
        )
        training_loss, test_loss = (
            float(np.sum(self.loss.value(y, latents)) / point_count)
            for latents in (proximal_point, omega)
        )
        Q_hat, g_signal_product = (
            np.einsum("npc,nqc->pq", g, second_factor) / point_count
            for second_factor in (g, self.z)
        )
        # Stein's lemma: E g z*^T = -V_hat M + m_hat T.
        m_hat = (g_signal_product + V_hat @ orders.M) @ self.inverse
        return RiskMoments(
            V_hat, m_hat, Q_hat, g_signal_product, training_loss, test_loss
        )
