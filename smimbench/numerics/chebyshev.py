"""Chebyshev interpolation: smooth functions at many points, on adaptively halved panels, and fits to noisy estimates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.polynomial import chebyshev

from smimbench.interfaces import Host

NODES = 16
"""Number of Chebyshev nodes per panel. Doubled: half as many panels, and twice the work where one of them has to be halved."""


def values_by_panels(
    function: Callable[[Host], Host], x: Host, tolerance: Host
) -> Host:
    """Values of the vector-valued ``function`` at the points ``x``, interpolated from far fewer evaluations where it is smooth.
    The range of x is split into panels (intervals), halved until a Chebyshev polynomial resolves each to ``tolerance`` (one
    number per entry of the function); panel k holds the sorted points ``starts[k]`` to ``stops[k]``.

    Panels with no more points than nodes are not interpolated: there the function is evaluated at its points. So it is never
    evaluated at more than a few times as many points as there are, and functions that no polynomial follows come out exact.

    Parameters
    ----------
    function : callable
        (n,) points to (n, K) values.
    x : ndarray (N,)
    tolerance : ndarray (K,)
        A panel is halved until its last Chebyshev coefficients are below these.

    Returns
    -------
    ndarray (N, K)
    """
    x = np.asarray(x, dtype=float)
    tolerance = np.asarray(tolerance, dtype=float)
    sorting = np.argsort(x, kind="stable")
    sorted_points = x[sorting]
    interpolated_values = np.empty((len(x), len(tolerance)))
    nodes = chebyshev.chebpts1(NODES)
    to_coefficients = np.linalg.inv(chebyshev.chebvander(nodes, NODES - 1))
    is_evaluated = np.ones(len(x), dtype=bool)
    # 8 panels to begin with
    edges = (
        np.linspace(sorted_points[0], sorted_points[-1], 8 + 1)
        if len(x)
        else np.zeros(1)
    )
    panels = np.stack([edges[:-1], edges[1:]], axis=1)
    while len(panels):
        starts = np.searchsorted(sorted_points, panels[:, 0], side="left")
        # The last point of all lies at the end of the last panel, that of another one belongs to the next.
        stops = np.where(
            panels[:, 1] >= sorted_points[-1],
            len(x),
            np.searchsorted(sorted_points, panels[:, 1], side="left"),
        )
        # Equal or nearly equal points are evaluated directly, however many there are.
        # Panels narrower than 1e-12 of their position are not split.
        has_many_points = (stops - starts > NODES) & (
            np.diff(panels, axis=1)[:, 0] > 1e-12 * np.abs(panels).max(axis=1)
        )
        panels = panels[has_many_points]
        starts = starts[has_many_points]
        stops = stops[has_many_points]
        if not len(panels):
            break
        midpoint = panels.mean(axis=1)
        half_width = np.diff(panels, axis=1)[:, 0] / 2
        values = function(
            (midpoint[:, None] + half_width[:, None] * nodes).ravel()
        ).reshape(len(panels), NODES, -1)
        coefficients = np.einsum("ij,pjk->pik", to_coefficients, values)
        # The last 3 coefficients must be small.
        is_resolved = (np.abs(coefficients[:, -3:]) <= tolerance).all(axis=(1, 2))
        for panel in np.flatnonzero(is_resolved):
            panel_points = slice(starts[panel], stops[panel])
            interpolated_values[panel_points] = chebyshev.chebval(
                (sorted_points[panel_points] - midpoint[panel]) / half_width[panel],
                coefficients[panel],
            ).T
            is_evaluated[panel_points] = False
        midpoint = midpoint[~is_resolved]
        panels = panels[~is_resolved]
        panels = np.concatenate(
            [
                np.stack([panels[:, 0], midpoint], 1),
                np.stack([midpoint, panels[:, 1]], 1),
            ]
        )
    if is_evaluated.any():
        interpolated_values[is_evaluated] = function(sorted_points[is_evaluated])
    values_in_order = np.empty_like(interpolated_values)
    values_in_order[sorting] = interpolated_values
    return values_in_order


class ChebyshevFit(NamedTuple):
    """Chebyshev polynomials on [0, 1] fitted to sampled estimates, one column of ``coefficients`` for each scramble
    (independent set of random points), and the relative error of the fit.

    ``coefficients`` (degree + 1, scrambles) are those in ``2 s - 1``; one column alone has no noise.
    """

    coefficients: Host
    fit_error: float

    def __call__(self, s: Host) -> tuple[Host, Host]:
        """Value of the fit, averaged over scrambles, at positions ``s`` in [0, 1], and its standard error: from the spread over
        scrambles, and ``fit_error``.
        """
        values = chebyshev.chebval(2 * s - 1, self.coefficients)
        mean = values.mean(axis=0)
        standard_error = (
            values.std(axis=0, ddof=1) / math.sqrt(len(values))
            if len(values) > 1
            else 0.0
        )
        return mean, np.hypot(standard_error, self.fit_error * mean)


def lobatto_points(count: int) -> Host:
    """The ``count`` Chebyshev-Lobatto points on [0, 1], extrema of a Chebyshev polynomial, both ends included."""
    return np.asarray((1 - np.cos(math.pi * np.arange(count) / (count - 1))) / 2)


def chebyshev_fit(
    s: Host, values: Host, standard_error: Host, degree: int, fit_error: float
) -> ChebyshevFit:
    """Fit one Chebyshev polynomial of the given ``degree`` per scramble to estimates ``values`` (points, scrambles) with standard
    errors (points,) at positions ``s`` in [0, 1], by weighted least squares. ``fit_error`` is the relative error that the fit is
    stated to have.
    """
    basis = chebyshev.chebvander(2 * s - 1, degree)
    least_squares = (
        np.linalg.pinv(basis / standard_error[:, None], rcond=1e-14) / standard_error
    )
    return ChebyshevFit(least_squares @ values, fit_error)
