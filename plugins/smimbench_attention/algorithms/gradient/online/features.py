r"""Theory of one pass of ``sgd``, ``signsgd`` or ``muon`` over linear labels ``y = z + noise``, feature by feature.

Feature k has variance ``lambda_k``, the inputs are Gaussian, C tokens make B C independent rows of a batch. With
``delta = W - W*`` and the residuals ``r = delta x / sqrt(D) - noise`` of covariance ``S = sum_k lambda_k delta_k delta_k^T / D +
noise I``, the gradient ``G = (2 / B) sqrt(D) sum r x^T`` of ``sgd`` has, in feature k and by Wick's theorem,

.. math::

    E\,G_k = 2 C \lambda_k \delta_k, \qquad
    \mathrm{Cov}\,G_k = \frac{4 C D}{B} \lambda_k S + \frac{1}{B C}\, E G_k\, E G_k^T,

so that mean second moments of teacher, student and velocity in every feature obey closed linear equations at every D.

Signs of a gradient are no linear function of it, and for a steep spectrum few features decide the residuals: means do not close.
But a batch is a matrix ``r^T x`` of N = B C rows, whose law is known: the residuals have ``r^T r = L L^T``, a Wishart matrix of
covariance S, and given them

.. math::

    \Big(\sum r x_k\Big)_k = L \big(L^T S^{-1} u_k + \zeta_k\big) \sqrt{\lambda_k}, \qquad u_k = \sqrt{\lambda_k / D}\, \delta_k,
    \qquad E\,\zeta_k \zeta_l^T = (1_{k=l} - u_k^T S^{-1} u_l)\, I,

with ``(1 - V^T V)^{1/2} = 1 - V^T (1 + \sqrt{noise} S^{-1/2})^{-1} V`` for ``V = S^{-1/2} u``. A step of a draw costs P D normal
numbers in place of N D; the mean over draws of teacher, student and steps is the mean over runs, at every D and for any spectrum.

``muon`` moves along ``sqrt(D) (v v^T)^{-1/2} v``. ``A = v v^T / D`` (P, P) is a mean over features and rows, which concentrates
as D and B grow unless few features carry it. With ``m_k`` and ``f_k`` the squared mean and the variance of feature k in a
component, in units of A, its relative variance is about ``(P + 1) [sum_k f_k (f_k + 2 m_k) / D^2 + 1 / (4 B C)]``, which makes
steps too long. Where it is above ``FLUCTUATION`` nothing is predicted.

References
----------
arXiv:2411.12135 (``signsgd``, large D); arXiv:2605.09552 (``muon``, for square matrices); batches, tokens and few components
derived, checked by tests/algorithms/test_online_features.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from smimbench.interfaces import Host
from smimbench.numerics import inverse_root
from smimbench_attention.algorithms.gradient.online.equations import (
    DIVERGED_OVERLAP,
    DescentRule,
    OverlapPath,
    OverlapsDiverge,
    gram_after_noise,
    iterate_grams,
    triangular_root,
    vectors_after,
    wishart_root,
)
from smimbench_attention.algorithms.gradient.online.fields import transposed

FLUCTUATION = 0.08
"""Largest relative variance of ``v v^T``, a mean over the steps, for a prediction of muon, then off by up to 3%. Doubled: 6%."""


class StepLengthFluctuates(ValueError):
    """Error that a step of muon depends on so few features or samples that its length fluctuates at every dimension."""


def solve_features(
    rule: DescentRule,
    direction_kind: str,
    feature_variances: Host,
    feature_fractions: Host,
    noise: float,
    sites: int,
    dimension: int,
    initial_grams: Host,
    recorded_steps: Sequence[int],
) -> OverlapPath:
    """Solve the equations of single features for the overlaps of the latents (P components, ``sites`` tokens, label noise of
    variance ``noise``) at the recorded steps of an update rule, from the mean products ``initial_grams`` (K, starts, R, R) of the
    R vectors of teacher, student and velocity in features of each of K ``feature_variances``. ``feature_fractions`` are the
    shares of features that have each variance, ``direction_kind`` says what the student moves along.

    Products of features k weigh ``lambda_k / D``.

    Parameters
    ----------
    direction_kind : {"gradient", "polar"}
        What the student moves along.
    feature_variances, feature_fractions : ndarray (K,)
        Values of lambda, and the share of the features that each is of.
    initial_grams : ndarray (K, starts, R, R)
        Mean products of teacher, student and, with momentum, velocity, in a feature of each variance.
    recorded_steps : sequence of int
        Steps, ascending, the first one 0.

    Raises
    ------
    OverlapsDiverge, StepLengthFluctuates
    """
    P = initial_grams.shape[-1] // (3 if rule.momentum else 2)
    R = initial_grams.shape[-1]
    start_count = initial_grams.shape[1]
    batch_rows = rule.batch_ratio * dimension * sites
    feature_variance, feature_fraction = (
        feature_column[:, None, None, None]
        for feature_column in (feature_variances, feature_fractions)
    )
    identity = np.eye(P)
    error_coefficients = np.concatenate(
        [-identity, identity, np.zeros((P, R - 2 * P))], axis=1
    )
    gradient_per_error = 2 * sites * feature_variance * identity
    step_fluctuations = [0.0]

    def polar_direction(velocity: Host, metric: Host | None) -> Host:
        """Map the velocity, in coordinates of given inner products (``metric``), to its polar factor, both for the second moments
        of features and for their means, which are stacked behind on the axis of starts; record the fluctuation of the step
        length.
        """
        assert metric is not None
        velocity_square = velocity @ metric @ transposed(velocity)
        inverse_square_root = inverse_root(
            np.sum(feature_fraction * velocity_square[:, :start_count], axis=0)
        )
        inverse_square = inverse_square_root @ inverse_square_root
        second_moment, squared_mean = (
            np.einsum("sij,ksij->ks", inverse_square, products_of_velocity) / P
            for products_of_velocity in np.split(velocity_square, 2, axis=1)
        )
        feature_fluctuation = np.maximum(second_moment - squared_mean, 0)
        fluctuation_sums = np.sum(
            feature_fraction[..., 0, 0]
            * feature_fluctuation
            * (feature_fluctuation + 2 * squared_mean),
            axis=0,
        )
        variance_from_features = fluctuation_sums / dimension
        step_fluctuations.append(
            (P + 1) * (np.max(variance_from_features) + 1 / (4 * batch_rows))
        )
        return np.concatenate([inverse_square_root, inverse_square_root]) @ velocity

    def next_gram(gram: Host, step: int) -> Host:
        """Mean products (K, starts, R, R) of the R vectors of teacher, student and velocity in features of each variance, from
        those before (``gram``), after one more step; ``error_coefficients`` select student minus teacher.
        """
        error_products = error_coefficients @ gram @ transposed(error_coefficients)
        residual_covariance = (
            np.sum(feature_fraction * feature_variance * error_products, axis=0)
            + noise * identity
        )
        noise_covariance = (
            4 * sites / rule.batch_ratio * feature_variance * residual_covariance
        )
        squared_drift = gradient_per_error @ error_products @ gradient_per_error
        noise_covariance = noise_covariance + squared_drift / batch_rows
        noise_covariance[:, start_count:] = 0
        return gram_after_noise(
            rule, gram, gradient_per_error @ error_coefficients, noise_covariance, step
        )

    def weighted_gram(gram: Host) -> Host:
        """Overlaps of the latents: the mean products ``gram`` over all features, weighted with the variances and shares of the
        features.
        """
        weighted_products = feature_fraction * feature_variance * gram[:, :start_count]
        return np.asarray(np.sum(weighted_products, axis=0, keepdims=True))

    if direction_kind == "polar":
        rule = replace(rule, direction=polar_direction)
        initial_grams = np.concatenate([initial_grams, initial_grams], axis=1)
    overlap_path = iterate_grams(
        next_gram, initial_grams, P, recorded_steps, 1.0, weighted_gram
    )
    if np.mean(step_fluctuations) > FLUCTUATION:
        raise StepLengthFluctuates(
            f"the relative variance of the step length is {np.mean(step_fluctuations):.2g}, above the limit {FLUCTUATION:g}; "
            "larger batches may lower it"
        )
    return overlap_path


def draw_signs(
    rule: DescentRule,
    feature_variances: Host,
    noise: float,
    batch_rows: int,
    initial_vectors: Host,
    recorded_steps: Sequence[int],
    rng: np.random.Generator,
) -> OverlapPath:
    """Simulate random draws of ``signsgd`` by an update rule with P components in D dimensions from ``initial_vectors`` (..., R,
    D) of teacher, student and velocity, for labels ``z + noise`` of this noise variance, batches of ``batch_rows`` tokens and
    features of variances lambda (D,); return the overlaps of the latents at the recorded steps.

    Parameters
    ----------
    feature_variances : ndarray (D,)
        Values of lambda.
    batch_rows : int
        Independent rows of a batch: its samples times the tokens.
    initial_vectors : ndarray (sets, starts, R, D)
        Teacher, student and, with momentum, velocity of every draw.
    recorded_steps : sequence of int
        Steps, ascending, the first one 0.

    Raises
    ------
    OverlapsDiverge
    """
    D = len(feature_variances)
    P = initial_vectors.shape[-2] // (3 if rule.momentum else 2)
    rule = replace(rule, direction=lambda velocity, _: np.sign(velocity))
    feature_scale = np.sqrt(feature_variances)
    identity = np.eye(P)
    degrees_of_freedom = np.maximum(batch_rows - np.arange(P), 0)

    def gradient(vectors: Host) -> Host:
        """Random gradient of one batch for every draw, at the ``vectors`` of teacher and student: residuals r of the batch times
        its inputs, by their law given the errors of the student (student minus teacher), without drawing inputs.
        """
        student_errors = vectors[..., P : 2 * P, :] - vectors[..., :P, :]
        scaled_errors = student_errors * (feature_scale / np.sqrt(D))
        residual_covariance = (
            scaled_errors @ transposed(scaled_errors) + noise * identity
        )
        whitening_root = inverse_root(residual_covariance, 1e-30)
        wishart_factor = wishart_root(
            rng, degrees_of_freedom, *residual_covariance.shape[:-2]
        )
        wishart_factor[..., batch_rows:] = 0
        residual_root = triangular_root(residual_covariance) @ wishart_factor
        whitened_errors = whitening_root @ scaled_errors
        orthogonal_noise = rng.standard_normal(scaled_errors.shape)
        projected_noise = orthogonal_noise @ transposed(whitened_errors)
        inverse_of_noise_correction = np.linalg.inv(
            identity + np.sqrt(noise) * whitening_root
        )
        orthogonal_noise -= (
            projected_noise @ inverse_of_noise_correction @ whitened_errors
        )
        mean_direction = transposed(residual_root) @ whitening_root @ whitened_errors
        gradient_scale = 2 / (rule.batch_ratio * np.sqrt(D)) * feature_scale
        return np.asarray(
            residual_root @ (mean_direction + orthogonal_noise) * gradient_scale
        )

    vectors, grams = initial_vectors, []
    for step in range(int(recorded_steps[-1]) + 1):
        if step in recorded_steps:
            gram = (vectors * feature_variances) @ transposed(vectors) / D
            # NaN fails, too.
            if not np.abs(gram[..., : 2 * P, : 2 * P]).max() <= DIVERGED_OVERLAP:
                raise OverlapsDiverge(
                    "the overlaps of teacher and student grow without bound; a smaller learning rate may converge"
                )
            grams.append(gram)
        if step < recorded_steps[-1]:
            vectors = vectors_after(rule, vectors, gradient(vectors), step)
    return OverlapPath.from_grams(recorded_steps, np.stack(grams, axis=1), P)
