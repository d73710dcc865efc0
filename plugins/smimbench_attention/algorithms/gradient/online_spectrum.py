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
derived, checked by tests/algorithms/test_online_spectrum.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from smimbench.interfaces import Host
from smimbench.numerics import inverse_root
from smimbench_attention.algorithms.gradient.online import (
    LARGEST,
    DescentRule,
    Diverges,
    Path,
    follow,
    gram_after_noise,
    triangle,
    vectors_after,
    wishart_root,
)
from smimbench_attention.algorithms.gradient.online_fields import transposed

FLUCTUATION = 0.08
"""Largest relative variance of ``v v^T``, a mean over the steps, for a prediction of muon, then off by up to 3%. Doubled: 6%."""


class Fluctuates(ValueError):
    """Muon's step depends on so few features or samples that its length fluctuates at every dimension."""


def solve_features(
    rule: DescentRule,
    moves: str,
    variances: Host,
    shares: Host,
    noise: float,
    sites: int,
    dimension: int,
    initial_grams: Host,
    recorded_steps: Sequence[int],
) -> Path:
    """Solve the equations of single features for the overlaps of the latents at given steps.

    Products of features k weigh ``lambda_k / D``.

    Parameters
    ----------
    moves : {"gradient", "polar"}
        What the student moves along.
    variances, shares : ndarray (K,)
        Values of lambda, and the share of the features that each is of.
    initial_grams : ndarray (K, starts, R, R)
        Mean products of teacher, student and, with momentum, velocity, in a feature of each variance.
    recorded_steps : sequence of int
        Steps, ascending, the first one 0.

    Raises
    ------
    Diverges, Fluctuates
    """
    P, R, starts = (
        initial_grams.shape[-1] // (3 if rule.momentum else 2),
        initial_grams.shape[-1],
        initial_grams.shape[1],
    )
    rows = rule.fraction * dimension * sites
    variance, share = (x[:, None, None, None] for x in (variances, shares))
    identity = np.eye(P)
    difference = np.concatenate([-identity, identity, np.zeros((P, R - 2 * P))], axis=1)
    toward = 2 * sites * variance * identity
    fluctuations = [0.0]

    def polar(along: Host, metric: Host | None) -> Host:
        """Map the velocity to its polar factor, for the second moments and for the means on the same axis."""
        assert metric is not None
        square = along @ metric @ transposed(along)
        root = inverse_root(np.sum(share * square[:, :starts], axis=0))
        second_moment, m = (
            np.einsum("sij,ksij->ks", root @ root, half) / P
            for half in np.split(square, 2, axis=1)
        )
        f = np.maximum(second_moment - m, 0)
        by_features = np.sum(share[..., 0, 0] * f * (f + 2 * m), axis=0) / dimension
        fluctuations.append((P + 1) * (np.max(by_features) + 1 / (4 * rows)))
        return np.concatenate([root, root]) @ along

    def advance(gram: Host, step: int) -> Host:
        error = difference @ gram @ transposed(difference)
        residual = np.sum(share * variance * error, axis=0) + noise * identity
        noise_covariance = 4 * sites / rule.fraction * variance * residual
        noise_covariance = noise_covariance + toward @ error @ toward / rows
        noise_covariance[:, starts:] = 0
        return gram_after_noise(rule, gram, toward @ difference, noise_covariance, step)

    def weighted_mean(gram: Host) -> Host:
        weighted = share * variance * gram[:, :starts]
        return np.asarray(np.sum(weighted, axis=0, keepdims=True))

    if moves == "polar":
        rule = replace(rule, direction=polar)
        initial_grams = np.concatenate([initial_grams, initial_grams], axis=1)
    path = follow(advance, initial_grams, P, recorded_steps, 1.0, weighted_mean)
    if np.mean(fluctuations) > FLUCTUATION:
        raise Fluctuates(
            f"relative variance of the step length {np.mean(fluctuations):.2g}"
        )
    return path


def draw_signs(
    rule: DescentRule,
    variances: Host,
    noise: float,
    rows: int,
    initial_vectors: Host,
    recorded_steps: Sequence[int],
    rng: np.random.Generator,
) -> Path:
    """Simulate random draws of ``signsgd`` and return the overlaps of the latents at given steps.

    Parameters
    ----------
    variances : ndarray (D,)
        Values of lambda.
    rows : int
        Independent rows of a batch: its samples times the tokens.
    initial_vectors : ndarray (sets, starts, R, D)
        Teacher, student and, with momentum, velocity of every draw.
    recorded_steps : sequence of int
        Steps, ascending, the first one 0.

    Raises
    ------
    Diverges
    """
    D, P = len(variances), initial_vectors.shape[-2] // (3 if rule.momentum else 2)
    rule = replace(rule, direction=lambda along, metric: np.sign(along))
    scale, identity = np.sqrt(variances), np.eye(P)
    degrees = np.maximum(rows - np.arange(P), 0)

    def gradient(vectors: Host) -> Host:
        """Random gradient of one batch for every draw."""
        u = (vectors[..., P : 2 * P, :] - vectors[..., :P, :]) * (scale / np.sqrt(D))
        covariance = u @ transposed(u) + noise * identity
        whitening = inverse_root(covariance, 1e-30)
        wishart = wishart_root(rng, degrees, *covariance.shape[:-2])
        wishart[..., rows:] = 0
        residuals, directions = triangle(covariance) @ wishart, whitening @ u
        orthogonal = rng.standard_normal(u.shape)
        projected = orthogonal @ transposed(directions)
        inverse = np.linalg.inv(identity + np.sqrt(noise) * whitening)
        orthogonal -= projected @ inverse @ directions
        along = transposed(residuals) @ whitening @ directions
        unit = 2 / (rule.fraction * np.sqrt(D)) * scale
        return np.asarray(residuals @ (along + orthogonal) * unit)

    vectors, grams = initial_vectors, []
    for step in range(int(recorded_steps[-1]) + 1):
        if step in recorded_steps:
            gram = (vectors * variances) @ transposed(vectors) / D
            # NaN fails, too.
            if not np.abs(gram[..., : 2 * P, : 2 * P]).max() <= LARGEST:
                raise Diverges("the overlaps grow without bound")
            grams.append(gram)
        if step < recorded_steps[-1]:
            vectors = vectors_after(rule, vectors, gradient(vectors), step)
    return Path.of(recorded_steps, np.stack(grams, axis=1), P)
