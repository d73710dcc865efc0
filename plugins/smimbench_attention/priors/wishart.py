r"""Wishart prior of attention-indexed models: signals ``S = W W^T / sqrt(r D)`` of extensive rank, as of equal query and key
matrices.

The file has the density of its eigenvalues under Gaussian noise (a cubic equation), the denoising map and the MMSE.

One variable makes the free convolution of a Wishart with a semicircle rational. With ``a = 1/sqrt(rho)`` put
``m = sqrt(1 + s^2)``, ``r = s + a s/m`` and ``q = s - a s/m``. As s > 0 runs over
``|q(s)| <= sqrt(Delta) <= r(s)``, the law of the eigenvalues x of ``S + sqrt(Delta) Z`` is traced out by

.. math::

    x = \sqrt\rho\,(\Delta - q r) + \xi, \qquad \xi = \sqrt\rho\, \Delta / s^2, \qquad
    \mu(x) = \frac{\sqrt{(r^2 - \Delta)(\Delta - q^2)}}{2 \pi a \Delta}.

The posterior mean has the eigenvalue ``xi`` where the observation has x, with posterior variance
``Delta / m^2``. So

.. math:: F(\Delta) = \Delta \int \frac{\mu(x)\, dx}{1 + s^2},

a mean of positive numbers in which nothing cancels, from ``F ~ Delta`` to ``F ~ 1``.

Derivation: the R-transform of S is ``sqrt(rho)/(1 - a g)``, so ``x = 1/g + Delta g + sqrt(rho)/(1 - a g)``
for the Stieltjes transform g of the observation. With ``w = 1/g`` and ``m = |w - a|``, the imaginary part of
this equation is ``|w|^2 = Delta m^2/s^2`` for complex w, its real part gives x, and
``xi = x - 2 Delta Re g``. The variance is ``Delta - Delta^2 |g|^2``. Checked by tests/priors/test_wishart.py
against the roots of the cubic for g, against quadrature in x, against subordination, and by simulation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from smimbench.backend import clip, namespace
from smimbench.interfaces import Array, Factor, Law
from smimbench_attention.priors.product import (
    ProductPrior,
    double_exponential,
    mmse_of_any_noise,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smimbench.interfaces import Host

# Where Delta is smaller or larger than these the limits are exact to all digits; twice as far changes nothing.
_SMALLEST_NOISE = 1e-40
_LARGEST_NOISE = 1e18


class _WishartBulks(NamedTuple):
    """Ranges of s, the parameter of the observed eigenvalues x(s), where their density is positive: ``[outer, turn]`` and ``[base
    + lower, base + upper]``. ``base`` is the value of s where the eigenvalue of the signal is 0; ``gap`` says whether a gap
    separates the two bulks.

    The second range is counted from ``base``: at small Delta it is a narrow window around it. Where ``gap`` is False the ranges
    touch, at the dip of the density if it has one.
    """

    base: float
    outer: float
    turn: float
    lower: float
    upper: float
    gap: bool


def _curves(
    offset: Array, base: Array, rho: float
) -> tuple[Array, Array, Array, Array]:
    """Functions s, ``m = sqrt(1 + s^2)``, ``q = s - a s/m`` and ``r = s + a s/m`` at ``s = base + offset``, which parametrize the
    eigenvalues of a noisy signal of width ratio rho, with ``a = rho^{-1/2}``. ``base`` is the value of s where the eigenvalue of
    the signal is 0; the offset from it avoids cancellation in q.
    """
    s = base + offset
    a = rho**-0.5
    m = (1 + s * s) ** 0.5
    q = s * (offset * (base + s) + (base == 0) * (1 - 1 / rho)) / (m * (m + a))
    return s, m, q, s * (1 + a / m)


@lru_cache(maxsize=32)
def _bulks(root: float, rho: float) -> _WishartBulks:
    """Find the edges of the bulks of eigenvalues x(s) at the noise level ``root = sqrt(Delta)`` and width ratio rho: ``outer``
    solves ``r(s) = root``, ``base + upper`` and ``base + lower`` solve ``q(s) = root`` and ``-root``, with q and r of
    ``_curves``; ``turn`` is where the two ranges of s meet. Two bulks have a gap between them where ``|q|`` exceeds ``root`` at
    its stationary point ``stationary_s``.

    r is concave, q is convex, so Newton's method is monotone from the ends chosen here. Cached because denoiser and error both
    need them.
    """
    a = rho**-0.5
    base = math.sqrt((1 - rho) / rho) if rho < 1 else 0.0

    def r(s: float) -> tuple[float, float]:
        """Function ``r(s) = s (1 + a/m)`` and its derivative, with ``m = sqrt(1 + s^2)`` and ``a = rho^{-1/2}``."""
        m = math.sqrt(1 + s * s)
        return s * (1 + a / m), 1 + a / m**3

    def q(offset: float) -> tuple[float, float]:
        """Function ``q(s) = s (1 - a/m)`` and its derivative at ``s = base + offset``, with ``m = sqrt(1 + s^2)`` and ``a =
        rho^{-1/2}``; ``base`` is the value of s where the signal's eigenvalue is 0.
        """
        _, m, q_value, _ = _curves(offset, base, rho)
        return q_value, 1 - a / m**3

    def minus_q(s: float) -> tuple[float, float]:
        """Function ``-q(s) = s (a/m - 1)`` and its derivative, with ``m = sqrt(1 + s^2)`` and ``a = rho^{-1/2}``."""
        m = math.sqrt(1 + s * s)
        return s * (a / m - 1), a / m**3 - 1

    outer = _newton(r, root, max(root - a, root / (1 + a)))
    upper = _newton(q, root, root + a - base)
    turn = math.sqrt(outer * (base + upper))
    if rho >= 1:
        return _WishartBulks(base, outer, turn, turn - base, upper, False)
    stationary_s = math.sqrt(math.expm1(-math.log(rho) / 3))
    if root < stationary_s**3:
        turn = min(_newton(minus_q, root, 0.0), stationary_s)
        lower = max(_newton(q, -root, 0.0), stationary_s - base)
        return _WishartBulks(base, outer, turn, lower, upper, True)
    if stationary_s > outer:
        turn = stationary_s
    return _WishartBulks(base, outer, turn, turn - base, upper, False)


def _newton(
    function: Callable[[float], tuple[float, float]], target: float, x: float
) -> float:
    """Solve ``function(x) = target`` by Newton's method, from the initial x; ``function`` gives value and derivative.

    Where two bulks just touch, the root is double and the method converges linearly.
    """
    for _ in range(200):
        value, derivative = function(x)
        newton_step = (value - target) / derivative if derivative else 0.0
        x -= newton_step
        if abs(newton_step) <= 4e-16 * abs(x):
            break
    return x


def observed_law(
    noise: Host | float, rho: float, breaks: Sequence[float] = ()
) -> tuple[Host, Host, Host, Host]:
    """Nodes of a quadrature rule for the eigenvalues x of ``S + sqrt(noise) Z`` at the width ratio rho: weights, x, and posterior
    mean and variance of the signal's eigenvalue there. ``breaks`` are eigenvalues at which panels of nodes end; s parametrizes x,
    and ``qr`` is the product of the functions q and r of s.

    ``noise`` is Delta > 0, finite, of any shape; ``rho`` > 0 the width over the dimension. Returns weights (..., K), which sum
    to one up to the error of the rule, then the eigenvalue, and mean and variance of the posterior of S in its direction.
    Functions with kinks or jumps at the eigenvalues ``breaks`` are integrated as well as smooth ones; then ``noise`` is one
    number.
    """
    noise = np.asarray(noise, dtype=np.float64)
    noise_column = np.reshape(noise, (-1, 1))
    quadrature_weights, s_squared, qr = _nodes(noise_column[:, 0], rho, breaks)
    mean = math.sqrt(rho) * noise_column / s_squared
    x = math.sqrt(rho) * (noise_column - qr) + mean
    quadrature_weights, x, mean, variance = (
        np.reshape(node_array, (*noise.shape, -1))
        for node_array in (quadrature_weights, x, mean, noise_column / (1 + s_squared))
    )
    return quadrature_weights, x, mean, variance


def mmse(noise: Host | float, rho: float) -> Host:
    r"""Minimum mean square error ``F(Delta)`` at the noise variance Delta and width ratio rho: the limit of
    ``E|S - S_hat|_F^2 / D`` for the posterior mean S_hat of the signal S.

    .. math:: F(\Delta) = \Delta \int \mu_\Delta(dx) / (1 + s(x)^2)

    ``noise`` is Delta, of any shape: 0 and infinity are allowed, negative numbers and NaN give NaN; ``rho`` > 0 the width over
    the dimension. The relative error is below 1e-11. For small Delta ``F ~ (2 rho - rho^2) Delta`` (rho < 1) or ``~ Delta``
    (rho >= 1), for large Delta ``F -> 1``. Derived, checked by tests/priors/test_wishart.py.
    """

    def error(delta: Host) -> Array:
        """MMSE (n,) at noise variances delta (n,): the mean over eigenvalues, parametrized by s, of the posterior variance."""
        quadrature_weights, s_squared, _ = _nodes(delta, rho)
        # What rounding does to the ends of the bulks at large Delta cancels in the ratio.
        return (
            delta
            * (quadrature_weights / (1 + s_squared)).sum(-1)
            / quadrature_weights.sum(-1)
        )

    largest_noise = _LARGEST_NOISE / min(rho, 1.0)
    return mmse_of_any_noise(error, noise, _SMALLEST_NOISE, largest_noise)


def _nodes(
    delta: Host, rho: float, breaks: Sequence[float] = ()
) -> tuple[Host, Host, Host]:
    """Quadrature weights, ``s^2`` and the product q r (``qr``) at K nodes of both ranges of s, (n, K) each, for noise variances
    delta (n,), ``root = sqrt(delta)`` and width ratio rho; s, m, q and r are the functions of ``_curves``.
    """
    root = np.sqrt(delta)
    panels = [_panels(root_of_delta, rho, breaks) for root_of_delta in root.tolist()]
    base, panel_start, panel_length = np.array(panels).transpose(2, 0, 1)[..., None]
    unit_nodes, unit_weights = double_exponential()
    root = root[:, None, None]
    s, m, q, r = _curves(panel_start + panel_length * unit_nodes, base, rho)
    relative_q, relative_r = q / root, r / root
    density = np.sqrt(
        np.maximum((relative_r * relative_r - 1) * (1 - relative_q * relative_q), 0)
    )
    s_squared = s * s
    dx_ds = ((root / s) ** 2 + s_squared - s_squared / (rho * (m * m) ** 2)) / s
    quadrature_weights = (rho / math.pi) * panel_length * unit_weights * density * dx_ds
    nodes = (len(delta), -1)
    return (
        quadrature_weights.reshape(nodes),
        s_squared.reshape(nodes),
        (q * r).reshape(nodes),
    )


def _panels(
    root: float, rho: float, breaks: Sequence[float]
) -> list[tuple[float, float, float]]:
    """Panels of nodes (``base``, start and length in s minus ``base``) at the noise level ``root = sqrt(Delta)`` and width ratio
    rho. They end at the edges of the bulks and at the eigenvalues x in ``breaks``.
    """
    bulks = _bulks(root, rho)
    panels = []
    for base, range_start, range_end in (
        (0.0, bulks.outer, bulks.turn),
        (bulks.base, bulks.lower, bulks.upper),
    ):
        break_offsets = [
            _break_offset(range_start, range_end, base, root, rho, x) for x in breaks
        ]
        inner_ends = sorted(offset for offset in break_offsets if offset is not None)
        panels += [
            (base, start, end - start)
            for start, end in pairwise([range_start, *inner_ends, range_end])
        ]
    return panels


def _break_offset(
    low: float, high: float, base: float, root: float, rho: float, x: float
) -> float | None:
    """Value ``s - base`` between ``low`` and ``high`` at which the observed eigenvalue, a function of the parameter s, is x, for
    the noise variance ``root^2`` and width ratio rho; None if x is outside the range. ``base`` is the value of s where the
    eigenvalue of the signal is 0.
    """
    from scipy.optimize import brentq

    def excess(offset: Array) -> float:
        """Observed eigenvalue at ``s = base + offset``, minus x; s, q and r are the functions of ``_curves``."""
        s, _, q, r = _curves(offset, base, rho)
        return float(math.sqrt(rho) * (root * root - q * r + (root / s) ** 2) - x)

    if not (low < high and excess(low) > 0 > excess(high)):
        return None
    return float(brentq(excess, low, high, xtol=1e-300))


def eigenvalue_map(eigenvalues: Host, noise: float, rho: float) -> Host:
    r"""Eigenvalues ``xi`` of the posterior mean (``denoised``) where the observation ``S + sqrt(noise) Z`` has ``eigenvalues``,
    for the width ratio rho, from the parameter s in which this module writes both; beyond an ``edge`` of a bulk the map is
    continued from that edge. The bulk of zero eigenvalues of S may be separate from the other bulk.

    .. math:: \xi = \lambda - 2 \Delta\, \mathrm{Re}\, g(\lambda)

    Inside a bulk it is found as the positive root of a cubic in ``s^2``; outside and in the gap between two
    bulks, where finite matrices may have eigenvalues, g is real and decreasing.

    ``eigenvalues`` (n,) are those (``lambda``) of ``S + sqrt(Delta) Z`` on the host, ``noise`` is Delta >= 0 (0 returns the
    values, infinity ``sqrt(rho)``), ``rho`` > 0 the width over the dimension. The result is float64.
    arXiv:2506.01582 (denoiser); closed form derived, checked by tests/priors/test_wishart.py.
    """
    eigenvalues = np.array(eigenvalues, dtype=np.float64)
    mean_eigenvalue = math.sqrt(rho)
    if not noise >= 0:
        return eigenvalues * math.nan
    if noise < _SMALLEST_NOISE:
        return eigenvalues
    if noise > _LARGEST_NOISE / min(rho, 1.0):  # linear to all digits
        return np.asarray(
            mean_eigenvalue + (eigenvalues - mean_eigenvalue) / (1 + noise)
        )

    right_edge, left_edge = _edges(noise, rho)[:2]
    values = np.atleast_1d(eigenvalues)  # one number would have no entries to set
    denoised = _map_between_ends(clip(values, left_edge.x, right_edge.x), noise, rho)
    _denoise_beyond(
        denoised,
        values,
        (right_edge, values > right_edge.x),
        (left_edge, values < left_edge.x),
    )
    return denoised.reshape(eigenvalues.shape)


def _map_between_ends(eigenvalues: Host, noise: float, rho: float) -> Host:
    """Denoised eigenvalues for observed ``eigenvalues`` between the left and the right end of their law, at a noise variance and
    width ratio rho; in the gap between two bulks the map is continued from the nearer edge.
    """
    mean_eigenvalue = math.sqrt(rho)
    right_edge, left_edge, *gap_edges = _edges(noise, rho)
    smallest_s: Array = right_edge.s
    largest_s: Array = left_edge.s
    edges_and_masks = []
    if gap_edges:
        zero_edge, bulk_edge = gap_edges
        in_zero_bulk = eigenvalues <= min(
            max(zero_edge.edge_switch_point(), zero_edge.x), bulk_edge.x
        )
        smallest_s = np.where(in_zero_bulk, zero_edge.s, smallest_s)
        largest_s = np.where(in_zero_bulk, largest_s, bulk_edge.s)
        edges_and_masks = [
            (zero_edge, in_zero_bulk & (eigenvalues > zero_edge.x)),
            (bulk_edge, ~in_zero_bulk & (eigenvalues < bulk_edge.x)),
        ]
    s_squared = _real_root(eigenvalues / mean_eigenvalue - noise, noise, rho)
    denoised: Host = (
        mean_eigenvalue * noise / clip(s_squared, smallest_s**2, largest_s**2)
    )
    _denoise_beyond(denoised, eigenvalues, *edges_and_masks)
    return denoised


def _denoise_beyond(
    denoised: Host, eigenvalues: Host, *edges_and_masks: tuple[_Edge, Host]
) -> None:
    """Overwrite the ``denoised`` eigenvalues of observed ``eigenvalues`` that lie beyond an edge, which a mask marks."""
    for edge, beyond_edge in edges_and_masks:
        if beyond_edge.any():
            denoised[beyond_edge] = edge.denoise_beyond(eigenvalues[beyond_edge])


def continued_map(
    eigenvalues: Host, noise: float, rho: float, *, continued: bool = True
) -> Host:
    r"""Map ``eigenvalue_map`` from observed to denoised eigenvalues inside the bulks, continued outside by a straight line of
    slope at most 1 if ``continued``; ``noise`` is the variance of the observation's noise, ``rho`` the width ratio.

    In the limit no eigenvalue lies outside the bulks, and both maps are the same. At finite D some do, mostly by
    fluctuations of the noise, but ``eigenvalue_map`` takes them for spikes of the signal: its slope is infinite just beyond
    an end, and above 1 ever after. An iteration that applies a map of slope above 1 has no stable fixed point, however
    small its steps. So beyond the outer ends this map goes on with the slope that it has inside, at most 1 (the slope of a
    posterior mean where no direction becomes less certain by an observation), and across the gap between two bulks it is
    the straight line. For a signal that is a Gaussian matrix this is exact: its posterior mean is linear at any size.

    Other parameters and the result are those of ``eigenvalue_map``.

    Notes
    -----
    With the variable s of this module, ``d xi / d lambda = Delta / (Delta + s^4 (1 - a^2 / (1 + s^2)^2))``; derived from
    the two equations on top, checked by tests/priors/test_wishart.py.
    """
    has_bulks = _SMALLEST_NOISE <= noise <= _LARGEST_NOISE / min(rho, 1.0)
    if not (continued and has_bulks):
        return eigenvalue_map(eigenvalues, noise, rho)
    right_edge, left_edge, *gap_edges = _edges(noise, rho)
    values = np.atleast_1d(eigenvalues)
    clipped_eigenvalues = clip(values, left_edge.x, right_edge.x)
    denoised = _map_between_ends(
        clipped_eigenvalues.astype(np.float64, copy=False), noise, rho
    ).astype(eigenvalues.dtype, copy=False)
    if gap_edges and gap_edges[1].x > gap_edges[0].x:
        zero_edge, bulk_edge = gap_edges
        denoised_in_gap = zero_edge.xi + (bulk_edge.xi - zero_edge.xi) / (
            bulk_edge.x - zero_edge.x
        ) * (clipped_eigenvalues - zero_edge.x)
        denoised = np.where(
            (clipped_eigenvalues > zero_edge.x) & (clipped_eigenvalues < bulk_edge.x),
            denoised_in_gap,
            denoised,
        )
    distance_outside = values - clipped_eigenvalues
    # From the value at the end itself: there the map has a square root, and rounding of 1e-16 would show as 1e-8.
    for edge, is_outside in (
        (right_edge, distance_outside > 0),
        (left_edge, distance_outside < 0),
    ):
        denoised[is_outside] = edge.xi + edge.slope * distance_outside[is_outside]
    return denoised.reshape(eigenvalues.shape)


@lru_cache(maxsize=32)
def _edges(noise: float, rho: float) -> tuple[_Edge, ...]:
    """Edges of the bulks of observed eigenvalues, for a noise variance and width ratio rho: right and left end of the spectrum
    and, if there is a gap between two bulks, right end of the bulk of zeros and left end of the other. Cached because both maps
    of a step need them.
    """
    bulks = _bulks(math.sqrt(noise), rho)
    edges = [
        _Edge(bulks.outer, 1, noise, rho),
        _Edge(bulks.base + bulks.upper, -1, noise, rho),
    ]
    if bulks.gap:
        edges += [
            _Edge(bulks.base + bulks.lower, 1, noise, rho, inner=True),
            _Edge(bulks.turn, -1, noise, rho, inner=True),
        ]
    return tuple(edges)


class _Edge:
    """Edge of a bulk of eigenvalues. Observed eigenvalues x(s) and denoised ones xi(s) are functions of a parameter s > 0 (its
    definition is at the top of this file); ``s``, ``x`` and ``xi`` are their values at the edge. ``slope`` is ``d xi / d x`` just
    inside the bulk, at most 1, ``mean`` the mean eigenvalue ``sqrt(rho)`` of the signal. With w the inverse of the Stieltjes
    transform, ``distances`` are those of w from the two poles of ``x(w)``, ``terms`` what these poles contribute to ``dx/dw``,
    ``signs`` +1 where w moves away from a pole beyond the edge.

    ``side`` is 1 if the bulk ends here on its right, -1 on its left; ``inner`` ends face the other bulk.
    """

    def __init__(
        self, s: float, side: int, noise: float, rho: float, *, inner: bool = False
    ) -> None:
        """Compute the edge from the value s there of the parameter of eigenvalues x(s), for a noise variance ``root^2`` and width
        ratio rho, with ``m = sqrt(1 + s^2)``; ``side`` is 1 for a right end of a bulk and -1 for a left end, ``inner`` marks the
        two ends at a gap between bulks.
        """
        root = math.sqrt(noise)
        m = math.sqrt(1 + s * s)
        self.s = s
        self.side = side
        self.noise = noise
        self.mean = math.sqrt(rho)
        self.xi = self.mean * (root / s) ** 2
        self.x = (1 if inner else side) * 2 * root * s / m + self.xi
        scaled_dx_ds = noise + s**4 * (1 - 1 / (rho * m**4))
        self.slope = min(noise / scaled_dx_ds, 1.0) if scaled_dx_ds > 0 else 1.0
        # At the zero of dx/dw = 1 - Delta/w^2 - 1/(w - a)^2, w = 1/g: distances of w to the two poles, the two terms,
        # and whether w moves away from each pole when lambda leaves the bulk.
        self.distances = (root * m / s, m)
        self.terms = (s * s / (1 + s * s), 1 / (1 + s * s))
        self.signs = (side, -side) if inner else (1, 1)
        # Between two bulks lambda(w) turns from convex to concave: each part is reached from its own end.
        cube_root = math.cbrt(noise)
        self.inflection_distance = cube_root / (self.mean * (1 + cube_root))
        self.largest_distance = (
            abs(self.inflection_distance - self.distances[0]) if inner else math.inf
        )

    def edge_switch_point(self) -> float:
        """Eigenvalue in the gap between two bulks at which ``denoise_beyond`` switches from one edge to the other: where the
        eigenvalue has an inflection as a function of w, the inverse Stieltjes transform.
        """
        return (
            self.inflection_distance
            + self.noise / self.inflection_distance
            - self.mean * math.cbrt(self.noise)
        )

    def denoise_beyond(self, eigenvalues: Host) -> Host:
        """Denoised eigenvalues for observed eigenvalues beyond this edge, where w (the inverse Stieltjes transform) has moved by
        d from its value at the edge: m1, m2 are its distances to the two poles there, c1, c2 the poles' terms in ``dx/dw``, e1,
        e2 = +-1 say whether d adds to the distance; K is ``e1 c1/m1 + e2 c2/m2`` at the distances after the move.

        With w at d from its place at the end, ``side * (lambda - x) = d^2 K(d)`` exactly,
        ``K = sum_i +-c_i/(m_i +- d)``: nothing cancels next to the end. ``d sqrt(K)`` is concave, so Newton's
        method for its root goes up from ``sqrt(distance/K(0))``.
        """
        distance_from_edge = self.side * (eigenvalues - self.x)
        (m1, m2), (c1, c2), (e1, e2) = self.distances, self.terms, self.signs
        smallest_divisor = 1e-300
        d = np.sqrt(
            distance_from_edge / max(e1 * c1 / m1 + e2 * c2 / m2, smallest_divisor)
        )
        for _ in range(20):
            d = np.clip(d, 0.0, self.largest_distance)
            pole_distance_1 = m1 + e1 * d
            pole_distance_2 = m2 + e2 * d
            term_1 = c1 / pole_distance_1
            term_2 = c2 / pole_distance_2
            K = np.maximum(e1 * term_1 + e2 * term_2, smallest_divisor)
            dK_dd = term_1 * (e1 + e1 * m1 / pole_distance_1) + term_2 * (
                e2 + e2 * m2 / pole_distance_2
            )
            newton_step = (
                2
                * (np.sqrt(distance_from_edge * K) - d * K)
                / np.maximum(dK_dd, smallest_divisor)
            )
            d = d + newton_step
            if not np.any(newton_step > 1e-14 * d):
                break
        d = np.clip(d, 0.0, self.largest_distance)
        return np.asarray(
            self.xi
            + self.side
            * (distance_from_edge + 2 * (self.noise / m1) * (d / (m1 + e1 * d)))
        )


def _real_root(ell: Host, noise: float, rho: float) -> Host:
    """Real root ``y = s^2`` inside a bulk, by Cardano's formula, of the cubic ``y^3 + (ell + 1 - 1/rho) y^2 + (ell - noise) y =
    noise``, whose other two roots are a complex pair; ``ell`` is ``x / sqrt(rho) - noise`` for the observed eigenvalue x. The
    cubic in the shifted root t is ``t^3 + 3 p t + 2 h = 0``, solved by ``t = +-(u - v)``.

    It reads ``y^3 + (1 - 1/rho + ell) y^2 + (ell - Delta) y = Delta``, ``ell = lambda/sqrt(rho) - Delta``, and
    ``t^3 + 3 p t + 2 h = 0`` for ``t = y + b``, with ``b = (1 - 1/rho + ell) / 3``.
    """
    b = (ell + (1 - 1 / rho)) / 3
    linear_coefficient = ell - noise
    b_squared = b * b
    p = linear_coefficient / 3 - b_squared
    h = b * (b_squared - linear_coefficient / 2) - noise / 2
    radicand = np.abs(h) + np.sqrt(np.maximum(h * h + p * p * p, 0.0))
    u = radicand ** (1 / 3)
    v = np.divide(p, u, out=np.zeros_like(p), where=radicand > 0)
    shifted_root = np.copysign(u - v, -h)
    root = shifted_root - b
    # A root far below the pair has lost its digits in the sum; the pair has not, and their product is Delta.
    pair_product = (shifted_root / 2 + b) ** 2 + 0.75 * (u + v) ** 2
    np.divide(noise, pair_product, out=root, where=root <= noise ** (1 / 3))
    return root


__all__ = ["Wishart", "continued_map", "eigenvalue_map", "mmse", "observed_law"]


@dataclass(frozen=True)
class Wishart(ProductPrior):
    r"""Signal of P independent matrices ``S = W W^T / sqrt(r D)``, ``W`` (D, r) with iid N(0, 1) entries.

    ``r = round(rho D)``, at least 1. In the limit of large D: ``tr S / D = sqrt(rho)`` and
    ``E[S S^T]/D = rho + (1 if p = q else 0)``. The prior mean ``sqrt(r/D) I`` is known, which leaves V = 1.

    Parameters
    ----------
    rho : float
        Width over dimension, r / D >= 0. Zero stands for the limit of small width with ``Qhat`` counted per
        unit of width, ``t = 1/Qhat = rho Delta``: only ``overlap`` and the moments make sense there.

    Raises
    ------
    ParameterError
        If ``rho`` is negative or not finite.

    Notes
    -----
    Where the dimension is known (``mean``, ``denoise``), the ratio r / D of the matrices really drawn is used
    in place of ``rho``; they differ when ``rho D`` is not a whole number.

    With several components the estimate is made layer by layer: from ``R_p`` alone, whose noise has the
    variance ``Delta_p = [Qhat^{-1}]_pp``. This is the posterior mean for P = 1 and for diagonal ``Qhat``.
    Otherwise it leaves unused what the noise of one component says about another, an effect of second order
    in the off-diagonal part: V_pp is the true error of this estimate, the best possible one lies between
    ``F(1/Qhat_pp)`` and V_pp, and off-diagonal entries of V, of first order, are not given.

    References
    ----------
    arXiv:2506.01582 (model and channel); equations derived, checked by tests/priors/test_wishart.py.
    """

    rho: float  # width r over D

    name = "wishart"
    version = 1
    reference = "arXiv:2506.01582"
    _spectrum = "eigenvalues"
    _factors = 1  # W
    _law_error = 1e-10  # relative numerical error of means over the spectrum
    _mmse = staticmethod(mmse)  # (noise, rho) to the MMSE
    _denoise_spectrum = staticmethod(continued_map)

    @property
    def law(self) -> Law:  # type: ignore[override]
        """Law of the eigenvalues: means over the spectrum of noisy signals, and the relative size of overlap fluctuations at
        finite dimension.
        """
        return Law(
            spectral_means=self._spectral_means,
            fluctuation=self._fluctuation,
            eigenvalue_map=lambda eigenvalues, noise: continued_map(
                eigenvalues, noise, self.rho
            ),
        )

    def _fluctuation(self, dimension: int) -> float:
        r"""Relative standard deviation of ``|S|_F^2 / D`` of a signal ``S = W W^T / sqrt(r D)`` of width r at finite
        ``dimension`` D, exact.

        ``Var tr (W W^T)^2 = 4 r D (2 r^2 + 5 r D + 2 D^2 + 5 r + 5 D + 5)`` over the square of its mean
        ``r D (r + D + 1)``; derived, checked by tests/priors/test_wishart.py.
        """
        r = self._width(dimension)
        D = dimension
        return float(
            (4 * r * D * (2 * r**2 + 5 * r * D + 2 * D**2 + 5 * r + 5 * D + 5)) ** 0.5
            / (r * D * (r + D + 1))
        )

    def mean(self, components: int, dimension: int) -> Array:
        """Prior mean ``sqrt(r/D) I`` (P, D, D), on the host; ParameterError if ``rho`` is 0."""
        root_of_width_ratio = math.sqrt(self._width(dimension) / dimension)
        return np.repeat(
            (root_of_width_ratio * np.eye(dimension))[None], components, axis=0
        )

    def mean_overlap(self, components: int) -> Array:
        """Overlap of the prior mean with itself: ``rho`` in every entry of (P, P), on the host. At finite D the diagonal of
        the second moment is larger by 1/D.
        """
        return np.full((components, components), self.rho)

    def _decompose(self, matrix: Array, noise: float) -> tuple[Array, Array, Array]:
        """Eigenvectors (columns), eigenvalues, and eigenvectors (rows) of a symmetric matrix (D, D), whatever its ``noise``."""
        xp = namespace(matrix)
        eigenvalues, vectors = xp.linalg.eigh(matrix)
        return vectors, eigenvalues, xp.matrix_transpose(vectors)

    def _observed_law(
        self, noise: float, breaks: Sequence[float]
    ) -> tuple[Host, float, list[Host]]:
        """Quadrature over the eigenvalues of ``S + sqrt(noise) Z``, with panels of nodes that end at the eigenvalues ``breaks``:
        weights (K,), their sum, and ``law``, arrays at the K nodes (eigenvalue, posterior mean and variance).
        """
        quadrature_weights, *law = observed_law(noise, self.rho, breaks)
        return quadrature_weights, quadrature_weights.sum(), law

    @property
    def factor(self) -> Factor:  # type: ignore[override]
        """Factor W of ``S = W W^T / sqrt(width D)`` for gradient methods; its width defaults to r."""
        return Factor(
            self._draw_factor, _compose, _pullback, _gram_scale, gaussian=True
        )


def _normalization(factor: Array) -> float:
    """Normalization ``sqrt(width D)`` of the product of a factor (..., D, width) with itself."""
    return math.sqrt(math.prod(factor.shape[-2:]))


def _gram_scale(factor: Array) -> float:
    """Scale ``1 / sqrt(width D)`` between the product of a factor with itself and the signal."""
    return 1 / _normalization(factor)


def _compose(factor: Array) -> Array:
    """Signal ``S = W W^T / sqrt(width D)`` (..., D, D) of factors (..., D, width)."""
    xp = namespace(factor)
    return xp.matmul(factor, xp.matrix_transpose(factor)) / _normalization(factor)


def _pullback(factor: Array, gradient: Array) -> Array:
    """Gradient ``dL/dW = (G + G^T) W / sqrt(width D)`` of a loss L by the factor W, for its ``gradient`` ``G = dL/dS`` (...,
    D, D) by the signal S, symmetric or not.
    """
    xp = namespace(factor, gradient)
    return xp.matmul(gradient + xp.matrix_transpose(gradient), factor) / _normalization(
        factor
    )
