"""Means of random numbers and their errors: control variates, effective sample sizes, standard scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from smimbench.interfaces import Array, Host

FEWEST_EFFECTIVE = 50
"""Smallest effective number of samples of a mean. Near a jump of the labels (hardmax, sign) few carry it, and a mean that missed
them has a standard error that missed them too; doubled, that error is good to 10% instead of 14%."""

DETECTED = 5.28
"""Deviation, in standard errors, that nine tests in ten find beyond four: 4 + 1.28. Doubled, all do."""

ROUNDING = 1e-12
"""Relative scatter below which numbers count as equal up to rounding. Doubled: the same."""


def effective_sample_size(samples: Array) -> Array:
    r"""Effective number of samples x along the first axis, ``(\sum |x|)^2 / \sum x^2``: all of them if equal, 1 if one
    dominates, 0 if all are 0.
    """
    magnitudes = np.abs(np.asarray(samples, dtype=float))
    largest_magnitude = magnitudes.max(axis=0, initial=0.0)
    scaled_magnitudes = magnitudes / np.where(
        largest_magnitude > 0, largest_magnitude, 1.0
    )
    sum_of_squares = np.sum(scaled_magnitudes**2, axis=0)
    effective_count = np.sum(scaled_magnitudes, axis=0) ** 2 / np.where(
        sum_of_squares > 0, sum_of_squares, 1.0
    )
    return effective_count if np.ndim(effective_count) else float(effective_count)


def controlled_mean(
    samples: Sequence[Host],
    controls: Sequence[Host],
    *,
    faintest: float = 0.0,
    collinear: float = 1e-9,
) -> tuple[Host, Host]:
    """Means, with standard errors, of several random numbers y (columns of ``samples``), after regression on control variates x
    (``controls``), whose means are 0, by their matrices x^T x (``grams``) and x^T y (``cross``). Both are lists with one array
    per scramble (independent set of random points), and each scramble takes its regression coefficients from the others; controls
    of a standard deviation below ``faintest`` and directions with relative singular values below ``collinear`` are left out.

    Parameters
    ----------
    samples : sequence of R arrays (n, J)
        One array per scramble.
    controls : sequence of R arrays (n, K)
        The same control variates for all J numbers, with mean exactly zero. K may be 0.
    faintest : float
        Controls of a smaller standard deviation are left out: numerical error would not have mean zero.
    collinear : float
        Controls may repeat one another: directions with singular values below this fraction are left out of the regression.

    Returns
    -------
    value, error : ndarray (J,)
        Mean over the scrambles of ``mean(y - b . x)``, and its standard error from the spread of the R means. The
        coefficients b of a scramble are fitted by least squares on all others: neither is flattered by the fit.
    """
    centered_controls = [x - x.mean(0) for x in controls]
    grams = [x.T @ x for x in centered_controls]
    cross_products = [x.T @ (y - y.mean(0)) for x, y in zip(centered_controls, samples)]
    total_gram = sum(grams)
    total_cross = sum(cross_products)
    smallest_scale = faintest * np.sqrt(sum(len(x) for x in controls))
    estimates = []
    for y, x, scramble_gram, scramble_cross in zip(
        samples, controls, grams, cross_products
    ):
        other_gram = total_gram - scramble_gram
        other_cross = total_cross - scramble_cross
        control_scale = np.sqrt(np.maximum(np.diagonal(other_gram), 0.0))
        is_control_used = control_scale > smallest_scale
        inverse_control_scale = np.where(
            is_control_used, 1 / np.where(is_control_used, control_scale, 1.0), 0.0
        )
        correlations = (
            other_gram * inverse_control_scale * inverse_control_scale[:, None]
        )
        coefficients = np.linalg.lstsq(
            correlations, other_cross * inverse_control_scale[:, None], rcond=collinear
        )[0]
        estimates.append(y.mean(0) - (x.mean(0) * inverse_control_scale) @ coefficients)
    stacked_estimates = np.stack(estimates)
    return stacked_estimates.mean(0), stacked_estimates.std(0, ddof=1) / np.sqrt(
        len(estimates)
    )


def quantile(share: float, dof: float = math.inf) -> float:
    """Quantile at the probability ``share`` of Student's t law with ``dof`` degrees of freedom; of the normal law if these are
    infinite.
    """
    from scipy.special import stdtrit

    return float(stdtrit(dof, share))


def normal_score(score: float, dof: float) -> float:
    """Standard normal quantile with the same tail probability as the t statistic ``score`` >= 0 under Student's t law with
    ``dof`` degrees of freedom.
    """
    if dof > 1e4 or score == 0 or math.isinf(score):
        return score
    from scipy.special import ndtri, stdtr

    tail_probability = float(stdtr(dof, -score))
    return score if tail_probability <= 1e-300 else float(-ndtri(tail_probability))
