r"""Law of the eigenvalues of a Wishart matrix seen through Gaussian noise (cubic equation, bulks and each edge), and
the map of eigenvalues, its continuation and MMSE.

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
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.backend import clip, namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = ["continued_map", "eigenvalue_map", "mmse", "observed_law"]

Host = np.ndarray[Any, np.dtype[np.float64]]

# Double exponential rule: it does not care how sharp the corner of the density is at an end of a piece, so
# that the same few nodes serve soft edges, hard edges, and bulks that are about to merge. Errors are rounding; with half of
# the nodes they are 1e-10, with twice as many the time doubles. With twice the reach the weights underflow.
_NODES = 81
_REACH = 3.15
# Newton steps for eigenvalues outside the bulks; the error squares with every step, so that doubling changes nothing.
_STEPS = 20
_TINY = 1e-300  # smallest divisor
# Where Delta is smaller or larger than these the limits are exact to all digits; twice as far changes nothing.
_SMALLEST_NOISE = 1e-40
_LARGEST_NOISE = 1e18


class _Bulks(NamedTuple):
    """Ranges of s that carry the law: ``[outer, middle]`` and ``[base + lower, base + upper]``, each (n,).

    The second range is counted from ``base``, the s of the zero eigenvalues of S: at small Delta it is a
    narrow window around it. Where ``gap`` is False the ranges touch, at the dip of the density if it has one.
    """

    base: float
    outer: Host
    middle: Host
    lower: Host
    upper: Host
    gap: np.ndarray[Any, np.dtype[np.bool_]]


def _bulks(root: Host, rho: float) -> _Bulks:
    """Solve ``r(s) = sqrt(Delta)`` and ``q(s) = +-sqrt(Delta)`` for ``root = sqrt(Delta)`` of shape (n,).

    r is concave, q is convex, so Newton's method is monotone from the ends chosen here.
    """
    a = rho**-0.5

    def right_edge(s: Host) -> tuple[Host, Host]:
        m = np.sqrt(1 + s * s)
        return s * (1 + a / m) - root, 1 + a / m**3

    outer = _newton(right_edge, np.maximum(root - a, root / (1 + a)))
    base = math.sqrt((1 - rho) / rho) if rho < 1 else 0.0
    excess = max(1 - 1 / rho, 0.0)

    def q(e: Host) -> tuple[Host, Host]:
        s = base + e
        m = np.sqrt(1 + s * s)
        return s * (e * (base + s) + excess) / (m * (m + a)), 1 - a / m**3

    def left_edge(e: Host) -> tuple[Host, Host]:
        value, slope = q(e)
        return value - root, slope

    start = root + a - base
    if rho >= 1:  # q >= s (1 - a) and, for s <= 1, q >= s^3 / (2 + sqrt 2)
        small = np.where(root < 0.29, np.cbrt(3.42 * root), np.inf)
        start = np.minimum(start, small if a == 1 else np.minimum(small, root / (1 - a)))
    upper = _newton(left_edge, start)

    middle = np.sqrt(outer * (base + upper))
    gap = np.zeros(root.shape, dtype=bool)
    lower = middle - base
    if rho < 1:
        dip = math.sqrt(math.expm1(-math.log(rho) / 3))
        middle = np.where(dip > outer, dip, middle)
        lower = middle - base
        gap = root < dip**3
    if gap.any():
        target = root[gap]

        def left_of_dip(s: Host) -> tuple[Host, Host]:
            m = np.sqrt(1 + s * s)
            return s * (a / m - 1) - target, a / m**3 - 1

        def right_of_dip(e: Host) -> tuple[Host, Host]:
            value, slope = q(e)
            return value + target, slope

        middle[gap] = np.minimum(_newton(left_of_dip, np.zeros_like(target)), dip)
        lower[gap] = np.maximum(_newton(right_of_dip, np.zeros_like(target)), dip - base)
    return _Bulks(base, outer, middle, lower, upper, gap)


@lru_cache(maxsize=32)
def _bulks_of_one(root: float, rho: float) -> _Bulks:
    """A denoiser asks for the same ends twice, for its eigenvalues and for its error."""
    return _bulks(np.asarray([root]), rho)


def _newton(function: Callable[[Host], tuple[Host, Host]], x: Host) -> Host:
    """Newton's method on arrays; where bulks just touch the root is double and the rate linear."""
    for _ in range(200):
        value, slope = function(x)
        step = value / np.where(slope == 0, np.inf, slope)
        x = x - step
        if np.all(np.abs(step) <= 4e-16 * np.abs(x)):
            break
    return x


def observed_law(noise: Host | float, rho: float, breaks: Sequence[float] = ()) -> tuple[Host, Host, Host, Host]:
    """Nodes of a quadrature rule for the eigenvalues of ``S + sqrt(noise) Z``.

    ``noise`` is Delta > 0, finite, of any shape; ``rho`` > 0 the width over the dimension. Returns weights (..., K), which sum
    to one up to the error of the rule, then the eigenvalue, and mean and variance of the posterior of S in its direction.
    Functions with kinks or jumps at the eigenvalues ``breaks`` are integrated as well as smooth ones; then ``noise`` is one
    number.
    """
    noise = np.asarray(noise, dtype=np.float64)
    delta = np.reshape(noise, -1)
    weights, s, qr = _nodes(delta, rho, breaks)
    mean = math.sqrt(rho) * delta[:, None] / s**2
    x = math.sqrt(rho) * (delta[:, None] - qr) + mean
    variance = delta[:, None] / (1 + s * s)
    weights, x, mean, variance = (np.reshape(v, (*noise.shape, -1)) for v in (weights, x, mean, variance))
    return weights, x, mean, variance


def mmse(noise: Host | float, rho: float) -> Host:
    r"""``F(Delta)``, the limit of ``E|S - S_hat|_F^2 / D`` for the posterior mean of S.

    .. math:: F(\Delta) = \Delta \int \mu_\Delta(dx) / (1 + s(x)^2)

    ``noise`` is Delta, of any shape: 0 and infinity are allowed, negative numbers and NaN give NaN; ``rho`` > 0 the width over
    the dimension. The relative error is below 1e-11. For small Delta ``F ~ (2 rho - rho^2) Delta`` (rho < 1) or ``~ Delta``
    (rho >= 1), for large Delta ``F -> 1``. Derived, checked by tests/priors/test_wishart.py.
    """
    noise = np.asarray(noise, dtype=np.float64)
    flat = np.reshape(noise, -1)
    valid = flat >= 0
    delta = np.clip(np.where(valid, flat, 1.0), _SMALLEST_NOISE, _LARGEST_NOISE / min(rho, 1.0))
    weights, s, _ = _nodes(delta, rho)
    # What rounding does to the ends of the bulks at large Delta cancels in the ratio.
    value = delta * (weights / (1 + s * s)).sum(-1) / weights.sum(-1)
    value = np.where(flat < delta, value * (np.where(valid, flat, 0.0) / delta), np.minimum(value, 1.0))
    value = np.where(flat > delta, 1.0, value)
    return np.reshape(np.where(valid, value, np.nan), noise.shape)


def _nodes(delta: Host, rho: float, breaks: Sequence[float] = ()) -> tuple[Host, Host, Host]:
    """Weights, s and q r on the nodes of both ranges of s, (n, 2 _NODES) each, for delta (n,).

    Every one of the eigenvalues ``breaks`` inside a range, for a single delta, cuts it in two.
    """
    root = np.sqrt(delta)[:, None]
    bulks = _bulks_of_one(float(root[0, 0]), rho) if root.size == 1 else _bulks(root[:, 0], rho)
    a = rho**-0.5
    t, dt = _double_exponential()

    def piece(base: float, excess: float, left: Host, right: Host) -> tuple[Host, Host, Host]:
        length = (right - left)[:, None]
        e = left[:, None] + length * t
        s = base + e
        m = np.sqrt(1 + s * s)
        q = s * (e * (base + s) + excess) / (m * (m + a))
        r = s * (1 + a / m)
        density = np.sqrt(np.maximum((r / root - 1) * (r / root + 1) * (1 - q / root) * (1 + q / root), 0))
        stretch = ((root / s) ** 2 + s * s - (a * s / m**2) ** 2) / s
        return (rho / math.pi) * length * dt * density * stretch, s, q * r

    parts = []
    for base, excess, left, right in (
        (0.0, 1 - 1 / rho, bulks.outer, bulks.middle),
        (bulks.base, max(1 - 1 / rho, 0.0), bulks.lower, bulks.upper),
    ):
        inner = [_cut(float(left[0]), float(right[0]), base, excess, float(root[0, 0]), rho, x) for x in breaks]
        ends = [left, *(np.array([e]) for e in sorted(e for e in inner if e is not None)), right]
        parts += [piece(base, excess, *pair) for pair in pairwise(ends)]
    weights, s, qr = (np.concatenate(part, axis=-1) for part in zip(*parts))
    return weights, s, qr


def _cut(left: float, right: float, base: float, excess: float, root: float, rho: float, x: float) -> float | None:
    """Where in a range of ``e = s - base`` the eigenvalue is x, which falls as s grows; None outside."""
    from scipy.optimize import brentq

    a = rho**-0.5

    def above(e: float) -> float:
        s = base + e
        m = math.sqrt(1 + s * s)
        qr = s * (e * (base + s) + excess) / (m * (m + a)) * s * (1 + a / m)
        return float(math.sqrt(rho) * (root * root - qr + (root / s) ** 2) - x)

    if not (left < right and above(left) > 0 > above(right)):
        return None
    return float(brentq(above, left, right, xtol=1e-300))


@lru_cache(maxsize=1)
def _double_exponential() -> tuple[Host, Host]:
    """Nodes and weights on (0, 1): the trapezoid rule after ``t = 1/(1 + exp(-pi sinh u))``."""
    u, step = np.linspace(-_REACH, _REACH, _NODES, retstep=True)
    decay = np.exp(-np.pi * np.sinh(u))
    t = 1 / (1 + decay)
    return t, step * np.pi * np.cosh(u) * decay * t * t


def eigenvalue_map(values: Array, noise: float, rho: float) -> Array:
    r"""Eigenvalues ``xi`` of the posterior mean where the observation has eigenvalues ``lambda``.

    .. math:: \xi = \lambda - 2 \Delta\, \mathrm{Re}\, g(\lambda)

    Inside a bulk it is found as the positive root of a cubic in ``s^2``; outside and in the gap between two
    bulks, where finite matrices may have eigenvalues, g is real and decreasing.

    ``values`` (n,) are eigenvalues ``lambda`` of ``S + sqrt(Delta) Z`` on any namespace and device, ``noise`` is Delta >= 0
    (0 returns the values, infinity ``sqrt(rho)``), ``rho`` > 0 the width over the dimension. The result is like ``values``,
    computed in float64 for any dtype. arXiv:2506.01582 (denoiser); closed form derived, checked by tests/priors/test_wishart.py.
    """
    xp = namespace(values)
    dtype = values.dtype
    values = xp.astype(values, xp.float64)
    if not noise >= 0:
        return xp.astype(values * math.nan, dtype)
    if noise < _SMALLEST_NOISE:
        return xp.astype(values, dtype, copy=True)
    mean = math.sqrt(rho)
    if noise > _LARGEST_NOISE / min(rho, 1.0):  # linear to all digits
        return xp.astype(mean + (values - mean) / (1 + noise), dtype)

    root = math.sqrt(noise)
    bulks = _bulks_of_one(root, rho)
    outer, middle = float(bulks.outer[0]), float(bulks.middle[0])
    lower, upper = bulks.base + float(bulks.lower[0]), bulks.base + float(bulks.upper[0])
    right, left = _Edge(outer, 1, root, rho), _Edge(upper, -1, root, rho)
    y = _only_root(xp, clip(values, left.x, right.x) / mean - noise, noise, rho)
    if not bulks.gap[0]:
        shrunk = mean * noise / clip(y, outer**2, upper**2)
    else:
        # In the gap lambda(1/g) turns from convex to concave: each part is reached from its own end.
        cube = noise ** (1 / 3)
        turn = cube / (mean * (1 + cube))
        first, last = _Edge(lower, 1, root, rho, turn), _Edge(middle, -1, root, rho, turn)
        half = min(max(turn + noise / turn - mean * cube, first.x), last.x)
        zero_bulk = values <= half
        y = xp.where(zero_bulk, clip(y, lower**2, upper**2), clip(y, outer**2, middle**2))
        shrunk = mean * noise / y
        shrunk = first.beyond(xp, values, shrunk, half)
        shrunk = last.beyond(xp, values, shrunk, half)
    shrunk = right.beyond(xp, values, shrunk, math.inf)
    shrunk = left.beyond(xp, values, shrunk, -math.inf)
    return xp.astype(shrunk, dtype)


def continued_map(values: Array, noise: float, rho: float) -> Array:
    r"""``eigenvalue_map`` inside the bulks; beyond them a straight line of slope at most 1.

    In the limit no eigenvalue lies outside the bulks, and both maps are the same. At finite D some do, mostly by
    fluctuations of the noise, but ``eigenvalue_map`` takes them for spikes of the signal: its slope is infinite just beyond
    an end, and above 1 ever after. An iteration that applies a map of slope above 1 has no stable fixed point, however
    small its steps. So beyond the outer ends this map goes on with the slope that it has inside, at most 1 (the slope of a
    posterior mean where no direction becomes less certain by an observation), and across the gap between two bulks it is
    the straight line. For a signal that is a Gaussian matrix this is exact: its posterior mean is linear at any size.

    Parameters
    ----------
    values : array (n,)
    noise : float
    rho : float
        As for ``eigenvalue_map``.

    Returns
    -------
    array (n,)
        Like ``values``.

    Notes
    -----
    With the variable s of this module, ``d xi / d lambda = Delta / (Delta + s^4 (1 - a^2 / (1 + s^2)^2))``; derived from
    the two equations on top, checked by tests/priors/test_wishart.py.
    """
    xp = namespace(values)
    if not _SMALLEST_NOISE <= noise <= _LARGEST_NOISE / min(rho, 1.0):
        return eigenvalue_map(values, noise, rho)
    bulks = _bulks_of_one(math.sqrt(noise), rho)
    right, top, right_slope = _bulk_end(float(bulks.outer[0]), noise, rho)
    left, bottom, left_slope = _bulk_end(bulks.base + float(bulks.upper[0]), noise, rho)
    inside = clip(values, left, right)
    found = eigenvalue_map(inside, noise, rho)
    if bulks.gap[0]:
        first, low, _ = _bulk_end(bulks.base + float(bulks.lower[0]), noise, rho)
        last, high, _ = _bulk_end(float(bulks.middle[0]), noise, rho)
        if last > first:
            line = low + (high - low) / (last - first) * (inside - first)
            found = xp.where((inside > first) & (inside < last), line, found)
    beyond = values - inside
    # From the value at the end itself: there the map has a square root, and rounding of 1e-16 would show as 1e-8.
    found = xp.where(beyond > 0, top + right_slope * beyond, found)
    return xp.where(beyond < 0, bottom + left_slope * beyond, found)


def _bulk_end(s: float, noise: float, rho: float) -> tuple[float, float, float]:
    """Where a bulk ends: eigenvalue of the observation, eigenvalue of the estimate, slope inside, at most 1."""
    m2, mean = 1 + s * s, math.sqrt(rho)
    xi = mean * noise / (s * s)
    bend = s**4 * (1 - 1 / (rho * m2 * m2))
    slope = noise / (noise + bend) if noise + bend > 0 else 1.0
    return mean * (noise - s * s + s * s / (rho * m2)) + xi, xi, min(slope, 1.0)


class _Edge:
    """An end of a bulk, and the map beyond it.

    ``s`` is the variable of this module at the end; ``side`` is 1 if the bulk ends here on its right, -1 on its left; ``turn``
    says for the two ends of the gap how far ``w = 1/g`` may go.
    """

    def __init__(self, s: float, side: int, root: float, rho: float, turn: float | None = None) -> None:
        m = math.sqrt(1 + s * s)
        self.side = side
        self.noise = root * root
        self.xi = math.sqrt(rho) * (root / s) ** 2
        self.x = (side if turn is None else 1) * 2 * root * s / m + self.xi
        # At the zero of dx/dw = 1 - Delta/w^2 - 1/(w - a)^2: distances of w to the two poles, the two terms,
        # and whether w moves away from each pole when lambda leaves the bulk.
        self.distances = (root * m / s, m)
        self.terms = (s * s / (1 + s * s), 1 / (1 + s * s))
        self.signs = (1, 1) if turn is None else (side, -side)
        self.reach = math.inf if turn is None else abs(turn - self.distances[0])

    def beyond(self, xp: ModuleType, values: Array, inside: Array, limit: float) -> Array:
        """Eigenvalues of the estimate: beyond this end up to the limit by this map, elsewhere as ``inside``.

        With w at d from its place at the end, ``side * (lambda - x) = d^2 K(d)`` exactly,
        ``K = sum_i +-c_i/(m_i +- d)``: nothing cancels next to the end. ``d sqrt(K)`` is concave, so Newton's
        method for its root goes up from ``sqrt(distance/K(0))``.
        """
        distance = self.side * (values - self.x)
        mine = (distance > 0) & (self.side * values <= self.side * limit)
        # Elsewhere than on the host it is cheaper to go on than to ask whether one may stop.
        ask = isinstance(values, np.ndarray)
        if ask and not xp.any(mine):
            return inside
        distance = xp.where(mine, distance, xp.zeros_like(distance))
        (m1, m2), (c1, c2), (e1, e2) = self.distances, self.terms, self.signs
        d = xp.sqrt(distance / max(e1 * c1 / m1 + e2 * c2 / m2, _TINY))
        for _ in range(_STEPS):
            d = xp.minimum(xp.maximum(d, 0.0), self.reach)
            one, two = m1 + e1 * d, m2 + e2 * d
            first, second = c1 / one, c2 / two
            K = xp.maximum(e1 * first + e2 * second, _TINY)
            slope = first * (e1 + e1 * m1 / one) + second * (e2 + e2 * m2 / two)
            step = 2 * (xp.sqrt(distance * K) - d * K) / xp.maximum(slope, _TINY)
            d = d + step
            if ask and not xp.any(step > 1e-14 * d):
                break
        d = xp.minimum(xp.maximum(d, 0.0), self.reach)
        found = self.xi + self.side * (distance + 2 * (self.noise / m1) * (d / (m1 + e1 * d)))
        return xp.where(mine, found, inside)


def _depressed(ell: Array, noise: float, rho: float) -> tuple[Array, Array, Array]:
    """The cubic of ``y = s^2`` in the form ``t^3 + 3 p t + 2 h = 0``, ``y = t - shift``: shift, p, h.

    It reads ``y^3 + (1 - 1/rho + ell) y^2 + (ell - Delta) y = Delta``, ``ell = lambda/sqrt(rho) - Delta``.
    """
    shift = (ell + (1 - 1 / rho)) / 3
    slope = ell - noise
    return shift, slope / 3 - shift * shift, shift * (shift * shift - slope / 2) - noise / 2


def _only_root(xp: ModuleType, ell: Array, noise: float, rho: float) -> Array:
    """The real root of the cubic inside a bulk, where the other two are a complex pair."""
    shift, p, h = _depressed(ell, noise, rho)
    size = xp.abs(h) + xp.sqrt(xp.maximum(h * h + p * p * p, 0.0))
    first = size ** (1 / 3)
    second = xp.where(size > 0, p / xp.where(size > 0, first, xp.ones_like(first)), xp.zeros_like(first))
    sign = xp.where(h > 0, -xp.ones_like(h), xp.ones_like(h))
    t = sign * (first - second)
    root = t - shift
    # A root far below the pair has lost its digits in the sum; the pair has not, and their product is Delta.
    pair = (t / 2 + shift) ** 2 + 0.75 * (first + second) ** 2
    large = root > noise ** (1 / 3)
    return xp.where(large, root, noise / xp.where(large, xp.ones_like(pair), pair))
