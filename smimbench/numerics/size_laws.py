r"""Extrapolation of values at several sizes D to infinite size, by the simplest law that fits.

The law of a mean whose corrections are analytic is ``limit + b / D``. It is fitted by weighted least squares and kept unless its
chi-square rejects it; then the law of smallest information criterion among ``LAWS`` takes its place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.interfaces import Host

FIRST_LAW = (1.0,)
"""What is tried first: corrections of order 1/D."""

LAWS: tuple[tuple[float, ...], ...] = (FIRST_LAW, (1.0, 2.0), (2.0,), (0.5,), (0.5, 1.0))
"""Powers of 1/D besides the limit: regular corrections of first and second order, of second order alone, of fluctuations of
order D^-1/2, and these with the first order."""


SECOND = 100.0
"""How large, relative to the limit, the coefficient of 1/D^2 may be: those of GAMP are mostly below 100. Doubled, means at sizes
below 100 say less."""

EXPONENTS = np.geomspace(0.25, 4.0, 1601)
"""Exponents a of ``limit + b / D^a`` among which the best is looked for. With twice as many it is found to a thousandth."""


@dataclass(frozen=True)
class SizeFit:
    """Weighted least squares of ``limit + sum_k b_k / D^(a_k)``.

    Attributes
    ----------
    law : tuple of float
        Exponents a_k.
    limit, error : float
        Value at infinite size and its standard error, lack of fit included: where chi-square exceeds its degrees of freedom, the
        error is larger by the root of their ratio.
    coefficients, coefficient_errors : ndarray (K,)
        b_k, in units of D^(a_k), with errors of the same kind.
    chi2 : float
    dof : int
        Sizes less parameters.
    p_value : float
        Probability of a larger chi-square if the law is right (1 without degrees of freedom).
    """

    law: tuple[float, ...]
    limit: float
    error: float
    coefficients: Host
    coefficient_errors: Host
    chi2: float
    dof: int
    p_value: float

    def at(self, size: Any) -> Any:
        """The fitted value at sizes, infinity included."""
        inverse = 1 / np.asarray(size, dtype=float)
        return self.limit + sum(b * inverse**a for a, b in zip(self.law, self.coefficients))


@dataclass(frozen=True)
class Exponent:
    """The a of ``limit + b / D^a`` that fits best, its interval of one standard error, and the probability that 1 is as good.

    ``low`` and ``high`` end at the ends of ``EXPONENTS`` where the data do not tell.
    """

    value: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True)
class Extrapolation:
    """The chosen fit, the test of its exponent, and an error that includes the spread between laws.

    Attributes
    ----------
    fit : SizeFit
    error : float
        Of ``fit.limit``. Where ``FIRST_LAW`` was rejected, it holds the scatter of the limits of all laws, each with its Akaike
        weight: which law is right is then uncertain too.
    first : SizeFit
        That of ``FIRST_LAW``: ``fit`` itself unless it was rejected.
    exponent : Exponent
    dof : float
        Degrees of freedom of the errors, infinity where they are known.
    """

    fit: SizeFit
    error: float
    first: SizeFit
    exponent: Exponent
    dof: float


def law_name(law: Sequence[float]) -> str:
    """``"1/D + 1/D^2"``."""
    written = {1.0: "1/D", 0.5: "D^-1/2"}
    return " + ".join(written.get(a, f"1/D^{a:g}") for a in law)


def extrapolate(sizes: Any, values: Any, errors: Any, dof: float = math.inf) -> Extrapolation:
    r"""The limit of values at three or more sizes.

    Parameters
    ----------
    sizes : array_like (K,)
        D > 0, all different.
    values, errors : array_like (K,)
        Means and their standard errors > 0.
    dof : float
        Degrees of freedom that all standard errors rest on together.

    Raises
    ------
    ValueError
        Fewer than three sizes, sizes that are equal, or an error that is not positive.

    Notes
    -----
    A law with as many parameters as sizes passes through all points and cannot be tested: it is never chosen.

    Examples
    --------
    >>> found = extrapolate([50, 100, 200], [1.2, 1.1, 1.05], [0.01, 0.01, 0.01])
    >>> round(found.fit.limit, 9), law_name(found.fit.law)
    (1.0, '1/D')
    """
    D, y, e = (np.asarray(x, dtype=float) for x in (sizes, values, errors))
    if len(D) < 3 or len(set(D.tolist())) < len(D):
        raise ValueError(f"three or more different sizes are needed, got {D.tolist()}")
    if not (np.isfinite(e).all() and (e > 0).all()):
        raise ValueError(f"standard errors must be > 0 and finite, got {e.tolist()}")
    first = fit_law(D, y, e, FIRST_LAW, dof)
    exponent = _exponent(D, y, e, first)
    # probability of a larger chi-square below which a law is rejected
    if first.p_value >= 0.01:
        return Extrapolation(first, first.error, first, exponent, dof)
    fits = [fit_law(D, y, e, law, dof) for law in LAWS if len(law) + 1 < len(D)]
    criteria = np.array([fit.chi2 + 2 * len(fit.law) for fit in fits])
    best = fits[int(np.argmin(criteria))]
    weights = np.exp((criteria.min() - criteria) / 2)
    scatter = np.average([(fit.limit - best.limit) ** 2 for fit in fits], weights=weights)
    return Extrapolation(best, float(math.sqrt(best.error**2 + scatter)), first, exponent, dof)


def fit_law(sizes: Host, values: Host, errors: Host, law: tuple[float, ...], dof: float = math.inf) -> SizeFit:
    """Weighted least squares of one law; ``dof`` as for ``extrapolate``."""
    smallest = sizes.min()
    # In units of the smallest size all columns are of order one.
    design = np.stack([np.ones_like(sizes), *((smallest / sizes) ** a for a in law)], axis=1) / errors[:, None]
    found, _, rank, _ = np.linalg.lstsq(design, values / errors, rcond=None)
    covariance = np.linalg.pinv(design.T @ design)
    chi2 = float(np.sum((values / errors - design @ found) ** 2))
    free = len(sizes) - int(rank)
    scale = max(1.0, math.sqrt(chi2 / free)) if free else 1.0
    spread = scale * np.sqrt(np.diagonal(covariance))
    units = np.array([smallest**a for a in law])
    p = _larger_chi2(chi2, free, dof)
    return SizeFit(law, float(found[0]), float(spread[0]), found[1:] * units, spread[1:] * units, chi2, free, p)


def _larger_chi2(chi2: float, free: int, dof: float) -> float:
    """Probability of a larger chi-square, whose errors rest on ``dof`` degrees of freedom themselves (Fisher's F)."""
    from scipy.special import chdtrc, fdtrc

    if not free:
        return 1.0
    return float(chdtrc(free, chi2) if math.isinf(dof) else fdtrc(free, dof, chi2 / free))


def _exponent(sizes: Host, values: Host, errors: Host, first: SizeFit) -> Exponent:
    """Profile of chi-square over one exponent: the best, where it is larger by one (Wilks), and how likely 1 is."""
    from scipy.special import chdtrc

    x, weights = (sizes.min() / sizes) ** EXPONENTS[:, None], errors**-2.0
    x = x - np.average(x, axis=1, weights=weights)[:, None]
    y = values - np.average(values, weights=weights)
    explained = (x @ (weights * y)) ** 2 / ((x * x) @ weights)
    profile = np.maximum(y @ (weights * y) - explained, 0.0)
    best = int(np.argmin(profile))
    near = EXPONENTS[profile <= profile[best] + 1]
    worse = max(0.0, first.chi2 - float(profile[best]))
    return Exponent(float(EXPONENTS[best]), float(near[0]), float(near[-1]), float(chdtrc(1, worse)))


def pooled_errors(sizes: Any, deviations: Any, counts: Any) -> tuple[Host, float]:
    r"""Standard errors of means over few runs, from all of them together.

    The standard deviation of one run is a power of the size, fitted to all sizes by maximum likelihood (the variance over n runs
    follows a chi-square law with ``n - 1`` degrees of freedom): those of all sizes together make the errors far surer. Where the
    deviations are no such power (Bartlett's statistic), every size keeps its own.

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
        Degrees of freedom that they rest on; 0 where nothing is known.
    """
    from scipy.special import chdtrc

    D, s, n = (np.asarray(x, dtype=float) for x in (sizes, deviations, counts))
    known = (n > 1) & np.isfinite(s)
    free = np.where(known, n - 1, 0.0)
    own = np.where(known, s, np.nan) / np.sqrt(n)
    if not known.any() or (s[known] <= 0).any():
        return own, float(free.sum())
    powers = np.stack([np.ones_like(D), np.log(D / D.min())], axis=1)[:, : 2 if known.sum() > 2 else 1]
    found = _variance_law(powers[known], s[known] ** 2, free[known])
    model = np.exp(powers @ found / 2)
    ratio = (s[known] / model[known]) ** 2
    bartlett = float(np.sum(free[known] * (ratio - 1 - np.log(ratio)) / (1 + 1 / (3 * free[known]))))
    spare = int(known.sum()) - len(found)
    # probability of more scatter about a power law of the standard deviation, below which every size keeps its own
    if spare and chdtrc(spare, bartlett) < 1e-3:
        return own, float(free.sum())
    return model / np.sqrt(n), float(free.sum() - len(found) + 1)


def _variance_law(powers: Host, variances: Host, free: Host) -> Host:
    """Coefficients of ``log variance`` in ``powers`` (K, L): a gamma law with a logarithmic link, by Fisher's scoring."""
    root = np.sqrt(free)
    found: Host = np.zeros(powers.shape[1])
    found[0] = math.log(np.average(variances, weights=free))
    # steps of the fit of a power law to standard deviations at the most; it takes about ten
    for _ in range(50):
        logs = powers @ found
        # A single variance far above the rest would throw the first steps off.
        gap = np.clip(variances / np.exp(logs) - 1, -1.0, 3.0)
        new: Host = np.linalg.lstsq(powers * root[:, None], (logs + gap) * root, rcond=None)[0]
        if np.allclose(new, found, rtol=0, atol=1e-9):
            return new
        found = new
    return found
