r"""Information and susceptibility as Monte Carlo means over random labels, for any channel with a posterior.

Labels are drawn in independent scrambles of a Sobol sequence. In units of V (``h = V^{-1/2} (z - omega)``) the information is the
mean of ``S = sum_c <h_c> <h_c>^T``. On the Nishimori line these have mean zero, whatever Q, and are used as control variates:

* ``S - sym(sum_c <h_c> h_c^T)`` and ``S + sum_c Cov(h_c) - C I``: two other forms of the information;
* ``sum_c omega_c <h_c>^T``, because E g = 0 at given omega;
* ``sum_c h_c h_c^T - C I`` and ``sum_c omega_c omega_c^T - C Q``, the known second moments.

For a component a without overlap ``I_aa = 0`` and ``I_ab = lambda_ab Q_ab`` to first order, with the susceptibility
``lambda_ab = E sum_cd G_a,cd G_b,cd``, ``G_a = (E[z_a z_a^T | y, omega] - V_aa I) / V_aa^2``.

The error comes from the spread of the scrambles, and the coefficients of the control variates of a scramble are fitted on the
other ones: neither the mean nor its error is flattered by the fit. Where the posterior is itself sampled, the square of a mean
comes from two independent runs: noise has mean zero in their product, but not in a square.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from smimbench.interfaces import Array, Channel, Host, Uncertain
from smimbench.interfaces.checks import checked_posterior
from smimbench.numerics.linalg import outer_product, symmetric, symmetric_root
from smimbench.numerics.memo import by_value
from smimbench.numerics.random_numbers import monte_carlo_rng, normal_points
from smimbench.numerics.statistics import (
    FEWEST_EFFECTIVE,
    controlled_mean,
    effective_sample_size,
)

SCRAMBLES = 16
"""Independent scrambles of the labels, whose spread is the error; doubled, that spread is known 1.4 times better."""
POINTS = 2**10
"""Labels in each scramble; doubled, errors fall by 1.4 to 2 and the cost doubles."""
ROUNDED = 1e-6
"""V, in units of the second moment, below which second moments are not used as control variates; doubled, errors there are a
little larger."""


class Labels(NamedTuple):
    """A set of n randomly drawn labels and their posteriors, as host arrays: standard normal numbers that give the prior means
    (``omega``), the whitened latents (``truth``) from which labels are drawn, two estimates of their posterior ``means``,
    summed second moments (``second``), and ``responses`` ``<z z^T> / V - I`` of components without overlap.

    Posterior means and responses come twice: equal where the posterior is exact, independent where it is sampled.

    Attributes
    ----------
    omega : ndarray (n, P, C)
        Standard normal numbers: the means of the latents in units of ``Q^{1/2}``.
    truth : ndarray (n, P, C)
        h of the latents from which the labels were drawn, in units of ``V^{1/2}``.
    means : two ndarrays (n, P, C)
        ``<h>``.
    second : ndarray (n, P, P) or None
        ``sum_c <h_c h_c^T>``; None where it is sampled or rounded: a bias would spoil a control variate.
    responses : two ndarrays (n, U, C, C), or None
        ``<z_a z_a^T> / V_aa - I`` for the U components without overlap; None where they are not wanted.
    """

    omega: Host
    truth: Host
    means: tuple[Host, Host]
    second: Host | None = None
    responses: tuple[Host, Host] | None = None


class LabelMeans(NamedTuple):
    """Information and susceptibility as means over random labels, with standard errors; host arrays (P, P). ``effective`` is
    the effective number of labels.

    Attributes
    ----------
    information, information_error : ndarray
        ``E sum_c g_c g_c^T`` and its standard error.
    susceptibility, susceptibility_error : ndarray
        ``lambda`` of the components without overlap and its standard error; 0 elsewhere.
    effective : ndarray
        How many of the labels carry each entry of the information.
    """

    information: Host
    information_error: Host
    susceptibility: Host
    susceptibility_error: Host
    effective: Host


def without_overlap(Q: Host) -> list[int]:
    """Indices of components a whose overlap Q_aa is zero, so that their posterior means vanish."""
    return [a for a in range(len(Q)) if Q[a, a] == 0.0]


def label_means(
    labels: Callable[[int], Labels],
    Q: Host,
    V: Host,
    *,
    scrambles: int = SCRAMBLES,
    faintest: float = 0.0,
    collinear: float = 1e-9,
) -> LabelMeans:
    r"""Information ``E sum_c g_c g_c^T`` at overlap Q and error V, with ``g = V^{-1/2} <h>`` for whitened latents h, and
    susceptibility; ``labels(scramble)`` draws labels and their posteriors. Symmetric matrices are columns of samples by their
    upper triangle; components a, b of zero overlap are unlearned; control variates of a standard deviation below ``faintest`` or
    relative singular values below ``collinear`` are left out.

    Parameters
    ----------
    labels : callable
        ``labels(k)``: the labels of scramble k and their posterior.
    Q, V : ndarray (P, P)
        Positive semidefinite overlap, positive definite error.
    scrambles : int
    faintest, collinear : float
        As for ``smimbench.numerics.controlled_mean``.

    References
    ----------
    Derived, checked by tests/derive/test_sampled_information.py.
    """
    P = len(Q)
    unlearned = without_overlap(Q)
    upper_triangle = np.triu_indices(P)
    unlearned_pairs = np.triu_indices(len(unlearned))
    # g = V^{-1/2} h is a linear map of the entries of S. It is applied to every label, so that the error is
    # that of the result.
    inverse_root_V = np.linalg.inv(symmetric_root(V))
    symmetric_basis = np.zeros((len(upper_triangle[0]), P, P))
    for index, (a, b) in enumerate(zip(*upper_triangle)):
        symmetric_basis[index, a, b] = symmetric_basis[index, b, a] = 1.0
    rotation_to_g = (inverse_root_V @ symmetric_basis @ inverse_root_V)[
        :, *upper_triangle
    ]
    pair_count = len(upper_triangle[0])
    samples = []
    controls = []
    for scramble in range(scrambles):
        drawn_labels = labels(scramble)
        sample_columns = [
            symmetric(_outer_products(*drawn_labels.means))[:, *upper_triangle]
            @ rotation_to_g
        ]
        if drawn_labels.responses is not None:
            sample_columns.append(
                symmetric(np.einsum("nacd,nbcd->nab", *drawn_labels.responses))[
                    :, *unlearned_pairs
                ]
            )
        samples.append(np.concatenate(sample_columns, axis=1))
        controls.append(_control_variates(drawn_labels, V, unlearned))
    mean_matrices = [np.zeros((P, P)) for _ in range(5)]
    for index, pair_means in enumerate(
        controlled_mean(samples, controls, faintest=faintest, collinear=collinear)
    ):
        mean_matrices[index][upper_triangle] = mean_matrices[index].T[
            upper_triangle
        ] = pair_means[:pair_count]
        for a, b, pair_mean in zip(*unlearned_pairs, pair_means[pair_count:]):
            component_a = unlearned[a]
            component_b = unlearned[b]
            mean_matrices[2 + index][component_a, component_b] = mean_matrices[
                2 + index
            ][component_b, component_a] = pair_mean / (
                V[component_a, component_a] * V[component_b, component_b]
            )
    mean_matrices[4][upper_triangle] = mean_matrices[4].T[upper_triangle] = (
        effective_sample_size(
            np.concatenate([sample[:, :pair_count] for sample in samples])
        )
    )
    return LabelMeans(*mean_matrices)


def _outer_products(a: Host, b: Host) -> Host:
    """Sum over sites c of outer products, ``sum_c a_c b_c^T`` (n, P, P), of two arrays a and b (n, P, C)."""
    # Matrices of a few entries: products of whole arrays take a third of the time of n small matrix products.
    return np.asarray(
        sum(a[:, :, None, c] * b[:, None, :, c] for c in range(a.shape[-1]))
    )


def _control_variates(drawn_labels: Labels, V: Host, unlearned: list[int]) -> Host:
    """Control variates (n, K) of n drawn labels with P components and C sites: random numbers whose mean is exactly zero, such
    as the difference of two estimates of one moment. ``unlearned`` are components without overlap, of latents z; V is the
    error.
    """
    posterior_mean_1, posterior_mean_2 = drawn_labels.means
    n, P, C = posterior_mean_1.shape
    upper_triangle = np.triu_indices(P)
    identity = C * np.eye(P)
    average_posterior_mean = 0.5 * (posterior_mean_1 + posterior_mean_2)
    squared_means = symmetric(_outer_products(posterior_mean_1, posterior_mean_2))
    controls = [
        (
            squared_means
            - symmetric(_outer_products(average_posterior_mean, drawn_labels.truth))
        )[:, *upper_triangle],
        _outer_products(drawn_labels.omega, average_posterior_mean).reshape(n, -1),
        (_outer_products(drawn_labels.truth, drawn_labels.truth) - identity)[
            :, *upper_triangle
        ],
        (_outer_products(drawn_labels.omega, drawn_labels.omega) - identity)[
            :, *upper_triangle
        ],
    ]
    if drawn_labels.second is not None:
        controls.append((drawn_labels.second - identity)[:, *upper_triangle])
    if unlearned and drawn_labels.responses is not None:
        z = (symmetric_root(V) @ drawn_labels.truth)[:, unlearned]
        variances = np.diagonal(V)[unlearned][:, None, None]
        squared_latent_excess = outer_product(z, z) / variances - np.eye(C)
        response_1, response_2 = drawn_labels.responses
        controls.append(
            (
                0.5 * (response_1 + response_2) * squared_latent_excess
                - response_1 * response_2
            ).sum((2, 3))
        )
        controls.append((squared_latent_excess**2).sum((2, 3)) - C * (C + 1))
        if drawn_labels.second is not None:
            controls.append(np.trace(response_1, axis1=2, axis2=3))
    return np.concatenate(controls, axis=1)


@by_value(maxsize=256)
def sampled_moments(
    channel: Channel, sites: int, Q: Array, V: Array
) -> tuple[Uncertain, Uncertain]:
    """Information and susceptibility at one overlap Q and error V (P, P), as means over labels with the channel's posterior;
    unlearned components have zero overlap, and their susceptibility needs second moments of the posterior. ``sites`` is the
    number C of latents per component.

    Parameters
    ----------
    sites : int
        C.
    Q, V : ndarray (P, P)

    Returns
    -------
    information, susceptibility : Uncertain
        (P, P) each. The error holds the bias that the reported error of the posterior can cause. The susceptibility of a
        channel without second moments is 0 with an infinite error.
    """
    Q = np.asarray(Q, dtype=float)
    V = np.asarray(V, dtype=float)
    P = len(Q)
    unlearned = without_overlap(Q)
    root_Q = symmetric_root(Q)
    root_V = symmetric_root(V)
    inverse_root_V = np.linalg.inv(root_V)
    # At small V second moments are dominated by rounding, so that they are useless as control variates.
    has_exact_moments = np.diagonal(V).min() > ROUNDED * np.diagonal(Q + V).max()
    posterior_errors = [0.0]
    has_moments = True

    def labels(scramble: int) -> Labels:
        """Labels y drawn from random latents in one ``scramble`` (independent set of points), with their posteriors."""
        nonlocal has_moments
        normal_latents = normal_points(
            2 * P * sites, POINTS, "information: latents", scramble
        ).reshape(POINTS, 2, P, sites)
        omega = root_Q @ normal_latents[:, 0]
        rng = monte_carlo_rng("information: labels", scramble)
        y = channel.forward(omega + root_V @ normal_latents[:, 1], rng=rng)
        posterior = checked_posterior(
            channel.posterior(y, omega, V, second_moment=True, rng=rng), omega
        )
        posterior_errors.append(float(posterior.error))
        whitened_mean = inverse_root_V @ (posterior.mean - omega)
        if (
            posterior.second_moment is None
        ):  # optional for channels whose labels depend on signs
            has_moments = False
            return Labels(
                normal_latents[:, 0],
                normal_latents[:, 1],
                (whitened_mean, whitened_mean),
            )
        second_moment: Array = checked_posterior(
            posterior, omega, second_moment=True
        ).second_moment
        responses = np.zeros((POINTS, len(unlearned), sites, sites))
        for index, component in enumerate(unlearned):
            responses[:, index] = second_moment[:, component, :, component, :] / V[
                component, component
            ] - np.eye(sites)
        whitened_square = None
        if has_exact_moments:
            cross_moment = posterior.mean @ np.swapaxes(omega, 1, 2)
            centered_moment = (
                np.einsum("npcqc->npq", second_moment)
                - cross_moment
                - np.swapaxes(cross_moment, 1, 2)
                + _outer_products(omega, omega)
            )
            whitened_square = inverse_root_V @ centered_moment @ inverse_root_V
        return Labels(
            normal_latents[:, 0],
            normal_latents[:, 1],
            (whitened_mean, whitened_mean),
            whitened_square,
            (responses, responses),
        )

    label_averages = label_means(labels, Q, V)
    # An error of the posterior mean adds its square to the mean square.
    posterior_bias = sites * max(posterior_errors) ** 2
    # A mean that few or no labels contribute to may have missed those that would; its error is then unknown.
    has_few_labels = label_averages.effective < FEWEST_EFFECTIVE
    error = np.where(
        has_few_labels,
        np.maximum(
            label_averages.information_error, np.abs(label_averages.information)
        ),
        label_averages.information_error,
    )
    absolute_root = np.abs(inverse_root_V)
    variances = np.diagonal(V)
    is_unlearned = np.isin(np.arange(P), unlearned)
    response_error = (
        label_averages.susceptibility_error
        + sites
        * posterior_bias
        * np.outer(is_unlearned / variances, is_unlearned / variances)
    )
    method = f"Monte Carlo ({SCRAMBLES} Sobol scrambles of {POINTS} labels)"
    return (
        Uncertain(
            label_averages.information,
            error + posterior_bias * (absolute_root @ np.ones((P, P)) @ absolute_root),
            method,
        ),
        Uncertain(
            label_averages.susceptibility,
            response_error if has_moments else np.full((P, P), np.inf),
            method,
        ),
    )
