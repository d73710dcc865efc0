r"""Extrapolation of values at several sizes D to infinite size, by a fit of ``limit + b / D`` with an allowance for a term ``c /
D^2``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from smimbench.interfaces import Host
from smimbench.numerics.statistics import ROUNDING

SECOND = 100.0
"""Largest coefficient of 1/D^2, relative to the value (three standard deviations): those of GAMP are mostly below
100. Doubled, means at sizes below 100 say less."""

VARIANCE_POWER = 1.5
VARIANCE_POWER_ERROR = 0.75
"""Prior mean and standard deviation of the power of 1/D with which the variance of a run falls: the power is 1 for
most numbers of a vector of D entries and 2 for those of a matrix. With half the second, errors for vectors are 5% too small."""

REJECTED_P_VALUE = 0.01
"""p-value of chi-square below which no limit is given. Doubled, twice as many good limits are lost."""

LARGEST_OPEN_SHARE = 0.1
"""Largest share of the value by which second order may move a limit (one standard deviation). Doubled, limits are given from
sizes of 15 instead of 20."""


class SizeFit(NamedTuple):
    """Fit of the series ``limit + b / D + c / D^2`` to values at K sizes D, by penalized least squares. ``coefficients`` are
    (limit, b, c); ``errors`` (3, K + 3) are the contributions of each value and each penalty to their standard errors; ``laws``
    (K, 3) are the powers 1, 1/D, 1/D^2 at every size; ``chi2`` is the minimized sum of squares.

    Attributes
    ----------
    coefficients : ndarray (3,)
        Limit, b and c.
    errors : ndarray (3, K + 3)
        Their standard errors, part by part: by every value, then by what is open of every coefficient.
    laws : ndarray (K, 3)
        Powers of 1/D.
    chi2 : float
        Sum of squares that was minimized.
    """

    coefficients: Host
    errors: Host
    laws: Host
    chi2: float


def fit_sizes(
    sizes: Host, values: Host, errors: Host, scales: Sequence[float]
) -> SizeFit:
    r"""Fit ``limit + b / D + c / D^2`` to values with standard ``errors`` at several sizes D, by penalized least squares.
    ``scales`` are the standard deviations about 0 of (limit, b, c) known beforehand, infinite where nothing is known.

    Coefficients are normal variables around 0, as far as they are known.

    .. math:: \min_c \; \sum_k \Big(\frac{y_k - \sum_p c_p D_k^{-p}}{e_k}\Big)^2 + \sum_p \frac{c_p^2}{s_p^2}

    Parameters
    ----------
    sizes, values, errors : ndarray (K,)
        D > 0, y and their standard errors e > 0.
    scales : sequence of float (3,)
        Standard deviations s of limit, b and c; infinite: nothing is known; 0: there is no such term.
    """
    powers_of_inverse_size = (1 / sizes)[:, None] ** np.arange(3)
    has_no_prior = np.isinf(scales)
    coefficient_units = np.where(has_no_prior, 1.0, scales)
    design = np.vstack(
        [
            powers_of_inverse_size * coefficient_units / errors[:, None],
            np.diag(1.0 - has_no_prior),
        ]
    )
    scaled_values = np.append(values / errors, np.zeros(3))
    pseudo_inverse = np.linalg.pinv(design)
    scaled_coefficients = pseudo_inverse @ scaled_values
    return SizeFit(
        coefficient_units * scaled_coefficients,
        coefficient_units[:, None] * pseudo_inverse,
        powers_of_inverse_size,
        float(np.sum((design @ scaled_coefficients - scaled_values) ** 2)),
    )


@dataclass(frozen=True)
class Extrapolation:
    """Extrapolation of values at several sizes D to infinite size. ``coefficient`` and ``second`` are b and c of ``limit +
    b / D + c / D^2``, ``dof`` and ``free`` the degrees of freedom of the error and of chi-square, and ``refusal`` says why
    a limit means nothing.

    Attributes
    ----------
    limit, error : float
        Value at infinite size, and its standard error: chance and the allowance for the second order together.
    dof : float
        Degrees of freedom of the error: ``(limit - truth) / error`` follows Student's t law.
    coefficient, coefficient_error : float
        b, in units of D, and its standard error, of the same kind.
    second : float
        c, in units of D^2, as far as the values and its allowance tell.
    chi2 : float
    free : int
        Degrees of freedom of chi-square: sizes less two.
    p_value : float
        Probability of a larger chi-square if the means are as described.
    refusal : str
        Why the limit means nothing; empty where it does.
    """

    limit: float
    error: float
    dof: float
    coefficient: float
    coefficient_error: float
    second: float
    chi2: float
    free: int
    p_value: float
    refusal: str


def extrapolate(
    sizes: ArrayLike,
    values: ArrayLike,
    errors: ArrayLike,
    dof: float = math.inf,
    second: float = SECOND,
) -> Extrapolation:
    r"""Extrapolate values at three or more sizes D to infinite size, by fitting ``limit + b / D + c / D^2``. D, y and e are
    sizes, values and their standard errors, ``dof`` the degrees of freedom of these errors; ``second`` is how large c may be,
    relative to the value, and ``c_scale`` the standard deviation about 0 that c has before the fit.

    Three sizes hardly tell c from chance, and a limit without it is biased. It is therefore a random number of the size that
    a series in 1/D lets expect:

    .. math:: s_2^2 = (y\, \mathrm{second} / 3)^2 + b^2 \min(D_1, |b / y_\infty|)^2

    with the larger of the limit and the value at the smallest size D_1 for y. Values that are precise enough tell c themselves.

    Parameters
    ----------
    sizes : array_like (K,)
        D > 0, all different.
    values, errors : array_like (K,)
        Means and their standard errors > 0. Not differences from an expected limit: corrections are small next to values.
    dof : float
        Degrees of freedom that the standard errors rest on, as from ``pooled_errors``.
    second : float
        How large c may be, relative to the value (three standard deviations).

    Raises
    ------
    ValueError
        Fewer than three sizes, sizes that are equal, or an error that is not positive.

    Notes
    -----
    Checked against exact limits of runs: ``tools/checks/extrapolation.py``.

    Examples
    --------
    >>> fit = extrapolate([50, 100, 200], [1.2, 1.1, 1.05], [0.01, 0.01, 0.01])
    >>> round(fit.limit, 9), round(fit.coefficient, 9)
    (1.0, 10.0)
    """
    from scipy.special import chdtrc, fdtrc

    D, y, e = (
        np.asarray(argument, dtype=float) for argument in (sizes, values, errors)
    )
    if len(D) < 3 or len(set(D.tolist())) < len(D):
        raise ValueError(
            f"extrapolation needs three or more different sizes D, got {D.tolist()}"
        )
    if not (np.isfinite(e).all() and (e > 0).all()):
        raise ValueError(
            f"the standard errors must be > 0 and finite, got {e.tolist()}"
        )
    smallest_size = float(D.min())
    value_at_smallest = abs(float(y[np.argmin(D)]))
    c_scale = 0.0
    for _ in range(3):  # first without c; then c is of the size of b squared
        size_fit = fit_sizes(D, y, e, (math.inf, math.inf, c_scale))
        limit, b, c = size_fit.coefficients.tolist()
        value_size = max(abs(limit), value_at_smallest)
        c_scale = math.hypot(
            value_size * second / 3,
            b * b / max(abs(limit), abs(b) / smallest_size, 1e-300),
        )
    chi2_dof = len(D) - 2
    error, b_error, _ = np.linalg.norm(size_fit.errors, axis=1).tolist()
    p_value = float(
        chdtrc(chi2_dof, size_fit.chi2)
        if math.isinf(dof)
        else fdtrc(chi2_dof, dof, size_fit.chi2 / chi2_dof)
    )
    is_undetermined = abs(size_fit.errors[0, -1]) > LARGEST_OPEN_SHARE * value_size
    refusal = (
        "no series in 1/D"
        if p_value < REJECTED_P_VALUE
        else "sizes too small"
        if is_undetermined
        else ""
    )
    # Only the part of the error that is chance rests on the runs (Welch and Satterthwaite).
    dof *= (error / float(np.linalg.norm(size_fit.errors[0, :-3]))) ** 4
    return Extrapolation(
        limit, error, dof, b, b_error, c, size_fit.chi2, chi2_dof, p_value, refusal
    )


def pooled_errors(
    sizes: ArrayLike, deviations: ArrayLike, counts: ArrayLike
) -> tuple[Host, float]:
    r"""Estimate standard errors of means over few runs at several sizes, from a power law in the size D that is fitted to the
    variances of all sizes together; and the degrees of freedom of the error of the limit at infinite D. ``D``, ``s`` and ``n``
    are sizes, standard deviations over runs and numbers of runs; ``bartlett`` is the statistic that tests the power law.

    The standard deviation of one run is a power of the size, fitted to all sizes by maximum likelihood (the variance over n runs
    follows a chi-square law with ``n - 1`` degrees of freedom) with ``VARIANCE_POWER`` as what is known beforehand: those of
    all sizes together make the errors far surer. Where the deviations are no such power (Bartlett's statistic), every size
    keeps its own.

    Parameters
    ----------
    sizes : array_like (K,)
    deviations : array_like (K,)
        Standard deviation over the runs of a size (n - 1 in the denominator); NaN for a single run.
    counts : array_like (K,) of int
        Runs n.

    Returns
    -------
    errors : ndarray (K,)
        Standard error of each mean, NaN where it is not known.
    dof : float
        Degrees of freedom that the error of their limit rests on; 0 where nothing is known.
    """
    from scipy.special import chdtrc

    D, s, n = (
        np.asarray(argument, dtype=float) for argument in (sizes, deviations, counts)
    )
    has_variance = (n > 1) & np.isfinite(s)
    run_dof = np.where(has_variance, n - 1, 0.0)
    unpooled_errors = np.where(has_variance, s, np.nan) / np.sqrt(n)
    if (
        not has_variance.any()
        or (s[has_variance] <= ROUNDING * s[has_variance].max()).any()
    ):
        return unpooled_errors, float(run_dof.sum())
    log_size_basis = np.stack([np.ones_like(D), np.log(D / D.min())], axis=1)
    power_law, covariance = _variance_law(
        log_size_basis[has_variance], s[has_variance] ** 2, run_dof[has_variance]
    )
    errors = np.exp(log_size_basis @ power_law / 2) / np.sqrt(n)
    log_covariance = log_size_basis @ covariance @ log_size_basis.T
    variance_ratio = (unpooled_errors[has_variance] / errors[has_variance]) ** 2
    bartlett = float(
        np.sum(
            run_dof[has_variance]
            * (variance_ratio - 1 - np.log(variance_ratio))
            / (1 + 1 / (3 * run_dof[has_variance]))
        )
    )
    bartlett_dof = int(has_variance.sum()) - 1
    # probability of more scatter about a power law of the standard deviation, below which every size keeps its own;
    # a single size tests no law
    if bartlett_dof and chdtrc(bartlett_dof, bartlett) < 1e-3:
        errors = unpooled_errors
        log_covariance = np.diag(2 / np.maximum(run_dof, 1))
    has_error = np.isfinite(errors)
    # Shares of the sizes in the variance of the limit of the law 1/D.
    design = (
        np.stack([np.ones_like(D), D.min() / D], axis=1)[has_error]
        / errors[has_error, None]
    )
    limit_variance_shares = np.linalg.pinv(design)[0] ** 2
    return errors, float(
        2
        * limit_variance_shares.sum() ** 2
        / (
            limit_variance_shares
            @ log_covariance[np.ix_(has_error, has_error)]
            @ limit_variance_shares
        )
    )


def _variance_law(powers: Host, variances: Host, degrees: Host) -> tuple[Host, Host]:
    """Fit a power law in the size D to the variances of runs at K sizes; return its coefficients (log-variance at the smallest
    size, power of D) and their covariance. ``powers`` (K, 2) are 1 and log D, ``degrees`` the degrees of freedom of every
    variance; ``power_weight`` is the weight that keeps the power near ``-VARIANCE_POWER``.

    ``log variance`` is linear in ``powers`` (K, 2): a gamma law with a logarithmic link, by Fisher's scoring, of which
    ``VARIANCE_POWER`` is a further observation.
    """
    power_weight = math.sqrt(2) / VARIANCE_POWER_ERROR
    design = np.vstack([powers * np.sqrt(degrees)[:, None], [0.0, power_weight]])
    pseudo_inverse = np.linalg.pinv(design)
    coefficients: Host = np.array(
        [
            math.log(
                np.average(
                    variances * np.exp(VARIANCE_POWER * powers[:, 1]), weights=degrees
                )
            ),
            -VARIANCE_POWER,
        ]
    )
    # steps of the fit of a power law to standard deviations at the most; it takes about ten
    for _ in range(50):
        log_variances = powers @ coefficients
        # A single variance far above the rest would throw the first steps off.
        relative_residual = np.clip(variances / np.exp(log_variances) - 1, -1.0, 3.0)
        updated_coefficients: Host = pseudo_inverse @ np.append(
            (log_variances + relative_residual) * np.sqrt(degrees),
            -VARIANCE_POWER * power_weight,
        )
        if np.abs(updated_coefficients - coefficients).max() < 1e-9:
            break
        coefficients = updated_coefficients
    return updated_coefficients, 2 * pseudo_inverse @ pseudo_inverse.T
