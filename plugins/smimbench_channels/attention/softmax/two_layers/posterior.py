r"""Two layers of softmax attention between two tokens, with a matrix to be learned in each.

Only two combinations of the three indices of a layer matter. With ``h = (h_11, h_12, h_22)`` let

.. math::

    a = (h_{11} - 2 h_{12} + h_{22}) / \sqrt8, \qquad b = (h_{11} - h_{22}) / 2 ,

unit vectors in the latents z. The first layer's attention depends on ``u = (\sqrt2 a_1 + b_1, \sqrt2 a_1 -
b_1)`` through ``p, r = logistic(beta u)``; with ``s = p + r + c - 1`` the label fixes the second layer's

.. math::

    a_2 = \frac{\varphi_1 + \varphi_2}{\sqrt8\, s^2}, \qquad
    b_2 = \frac{1}{1 + c} \Big( \frac{\varphi_1}{s} - \sqrt2 (c + 2p - 1) a_2 \Big), \qquad
    |d(a_2, b_2) / d(\varphi_1, \varphi_2)| = \frac{1}{\sqrt8 (1 + c) |s|^3} .

So the posterior is a two-dimensional integral over ``(a_1, b_1)``, with nothing that is singular but s = 0,
where the weight vanishes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend import clip, namespace, to_host
from smimbench.interfaces import Posterior, Uncertain
from smimbench.numerics.linalg import symmetric_root
from smimbench.numerics.masked import put_at_mask
from smimbench.numerics.qmc import normal_scrambles
from smimbench.numerics.quadrature import gauss_hermite, gauss_legendre
from smimbench_channels.checks import check_latents, check_number, check_whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = ["TwoLayerAttention"]

ROOT2, ROOT8 = math.sqrt(2.0), math.sqrt(8.0)
# rows: the directions of a and b, and the one that no label sees, in the latents (z_11, z_12, z_22)
DIRECTIONS = (
    (0.5, -1 / ROOT2, 0.5),
    (1 / ROOT2, 0.0, -1 / ROOT2),
    (0.5, 1 / ROOT2, 0.5),
)
REACH = 7.5  # half-width of the square that is integrated over, in units of the prior's width
ROOT_CELLS = 4  # along each axis
NODES = 8  # Gauss-Legendre nodes of a cell, along each axis
VARIATION = 6.0  # a cell is small enough along an axis when the log-weight varies by no more than this
FINE_VARIATION = 2.0  # for the error estimate
ALLOWANCE = 0.3  # for every unit by which the logarithm of a cell's share falls short of everything
NEGLIGIBLE = 16.0  # cells that can hold no more than exp(-16) of the total are left out
LOOSENESS = 2.0  # how far the upper bound of a cell may be above the limit of its variation
DEEPEST = 80
ALIGNED = 0.1  # V_22 / V_11 from which the cells need not follow the weight
MARQUARDT_STEPS = 12
QUICK_NODES = (12, 16, 20)  # Gauss-Hermite nodes along each axis, in ever better frames
QUICK_TOLERANCE = 5e-4
QUICK_WIDTH = 0.2  # largest beta^2 V_11 for which few weights have a second peak out of sight
UNLIKELY = 40.0  # of -2 log-weight at the likeliest point
PROBES, PROBED = 16, 64  # samples integrated again, finer, for the error estimate: no fewer, and every 64th
BLOCK = 128  # samples at once, so that the arrays stay in the cache: a sample needs some dozens of cells
BLOCK_DEVICE = 1 << 14
CROWDED = (
    1 << 11
)  # cells of a sample at one depth beyond which they are not halved any more: the rest is an error
NEAR_EDGE = 1.5  # distance of a mean from the edge of the square below which the weight may lie outside
SCRAMBLES = 16
CRUDE_NODES, CRUDE_VARIATION, CRUDE_BLOCK, CRUDE_LIMIT = (8, 10), 8.0, 512, 4.0
_TINY, _HUGE = 1e-60, 1e130
_FAR = 340.0  # logarithms of numbers whose products and quotients can be formed
_SMALL = 1e-30
_PAIRS = tuple((i, j) for i in range(4) for j in range(i, 4))


class Sums(NamedTuple):
    """Integrals over (a_1, b_1) of every sample.

    Attributes
    ----------
    log_weight : array (n,)
        Logarithm of the density of the margins.
    mean : array (n, 4)
        Of ``(a_1, b_1, a_2, b_2)`` less their prior means, in prior standard deviations.
    square : array (n, 4, 4)
        Not centred, of the same.
    rough : array (n,)
        1 where the integral was given up before it was accurate, or the weight may lie outside the square; else 0.
    """

    log_weight: Array
    mean: Array
    square: Array
    rough: Array


class Frame(NamedTuple):
    """Gaussian in (t, v): centre and lower-triangular root of the covariance, each (n,)."""

    t: Array
    v: Array
    tt: Array
    vt: Array
    vv: Array


class Widths(NamedTuple):
    """V_11, V_22 given the first layer, and the response ``V_12 / V_11`` of the second layer to the first."""

    first: float
    second: float
    tilt: float


class Samples(NamedTuple):
    """What the weight of a sample depends on, each (n,).

    Attributes
    ----------
    t, v : array
        Prior means of ``beta (u_1 + u_2) / 2`` and ``beta (u_1 - u_2)``.
    a2, b2 : array
        Prior means.
    slope, margin : array
        ``a_2 s^2`` and ``M_11 - M_12``, as the label has them.
    ridge : array
        The first coordinate of a cell is the distance of t from the line on which ``log((p + r) / (2 - p -
        r))`` has this value, in prior widths: along it the weight may be narrow across and long.
    """

    t: Array
    v: Array
    a2: Array
    b2: Array
    slope: Array
    margin: Array
    ridge: Array


@dataclass(frozen=True)
class TwoLayerAttention:
    r"""Softmax of the second layer's indices between the tokens that the first layer has mixed.

    .. math::

        B = c\,I + \mathrm{softmax}_\beta(h_1), \qquad M = B\, h_2\, B^T, \qquad y =
        \log\mathrm{softmax}_\beta(M),

    row by row, with the symmetric 2 x 2 matrices ``h_l`` of the latents ``z`` (..., n, 2, 3). Labels are
    log-probabilities (..., n, 2, 2): the margins of both rows of M are their differences over beta.

    Parameters
    ----------
    beta : float
        Inverse temperature of both layers, positive.
    skip : float
        c >= 0, the weight of the skip connection.
    samples : int
        Samples that are drawn for ``information``, at least 1024; rounded to a power of 2.

    Raises
    ------
    ParameterError
        For a value out of range.

    Notes
    -----
    The integral over ``(a_1, b_1)`` is adaptive: rectangles are halved until the logarithm of the weight
    hardly varies in each, and dropped when an upper bound, from the ranges of p, r and s in the rectangle,
    says that nothing is there. Where ``beta^2 V_11`` is small most weights are nearly Gaussian; then a
    Gauss-Hermite rule in the frame of its own moments is tried first. Derived, checked by
    tests/channels/test_attention_two_layers.py.

    References
    ----------
    arXiv:2506.01582.
    """

    beta: float = 1.0
    skip: float = 1.0
    samples: int = 1 << 15

    def __post_init__(self) -> None:
        check_number("beta", self.beta, positive=True)
        check_number("skip", self.skip, positive=False)
        check_whole("samples", self.samples, 1024)

    # -- labels --------------------------------------------------------------------------------------------

    def forward(self, z: Array) -> Array:
        """Log-probabilities (..., n, 2, 2) of the latents (..., n, 2, 3)."""
        check_latents(z, 2, 3)
        xp = namespace(z)
        _, mixing, second = self._mixing(xp, z)
        last = xp.matmul(xp.matmul(mixing, second), xp.matrix_transpose(mixing))
        return _log_softmax(xp, self.beta * last)

    def observable(self, y: Array) -> Array:
        """Probabilities ``exp(y)``; every row sums to 1."""
        return namespace(y).exp(y)

    def vjp(self, z: Array, cotangent: Array) -> Array:
        """Gradient of ``sum(cotangent * observable(forward(z)))`` with respect to z (..., n, 2, 3)."""
        check_latents(z, 2, 3)
        xp = namespace(z, cotangent)
        attention, mixing, second = self._mixing(xp, z)
        last = xp.matmul(xp.matmul(mixing, second), xp.matrix_transpose(mixing))
        outer = self._softmax_vjp(xp, xp.exp(_log_softmax(xp, self.beta * last)), cotangent)
        to_second = xp.matmul(xp.matmul(xp.matrix_transpose(mixing), outer), mixing)
        to_mixing = xp.matmul(xp.matmul(outer + xp.matrix_transpose(outer), mixing), second)
        to_first = self._softmax_vjp(xp, attention, to_mixing)
        return xp.stack([_to_latents(xp, to_first), _to_latents(xp, to_second)], axis=-2)

    def _softmax_vjp(self, xp: ModuleType, p: Array, cotangent: Array) -> Array:
        return self.beta * p * (cotangent - xp.sum(cotangent * p, axis=-1, keepdims=True))

    def _mixing(self, xp: ModuleType, z: Array) -> tuple[Array, Array, Array]:
        """First layer's attention, B and h_2, each (..., n, 2, 2)."""
        attention = xp.exp(_log_softmax(xp, self.beta * _matrix(xp, z[..., 0, :])))
        eye = xp.eye(2, dtype=z.dtype, device=array_api_compat.device(z))
        return attention, self.skip * eye + attention, _matrix(xp, z[..., 1, :])

    # -- posterior -----------------------------------------------------------------------------------------

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: np.random.Generator | None = None,
    ) -> Posterior:
        """Posterior of ``z ~ N(omega, V (x) I_3)`` given the label.

        Parameters
        ----------
        y : array (n, 2, 2)
            Log-probabilities.
        omega : array (n, 2, 3)
        V : array (2, 2)
            Positive definite; the layers may be correlated.
        second_moment : bool
            Also return ``E[z z^T]`` (n, 2, 3, 2, 3).
        rng : numpy.random.Generator, optional
            Not used: the integrals are deterministic.

        Returns
        -------
        Posterior
            ``error`` is found by integrating some of the samples again on finer squares.

        Raises
        ------
        ValueError
            If V is not positive definite.
        """
        check_latents(omega, 2, 3)
        xp = namespace(y, omega, V)
        wide = xp.astype(omega, xp.float64)
        margins, centre, widths = self._reduced(y, wide, V)
        found = self._integrals(xp, margins, centre, widths, VARIATION)
        few = min(max(PROBES, omega.shape[0] // PROBED), omega.shape[0])
        fine = self._integrals(xp, margins[:few, :], centre[:few, :], widths, FINE_VARIATION, quick=False)
        difference = float(xp.mean((fine.mean - found.mean[:few, :]) ** 2)) if few else 0.0
        place = {"dtype": xp.float64, "device": array_api_compat.device(omega)}
        matrix = xp.astype(V, xp.float64)
        n = omega.shape[0]
        # (a_1, b_1, a_2, b_2) in their own units, each layer and direction apart
        root = xp.sqrt(xp.linalg.diagonal(matrix))
        unit = xp.stack([root[0], root[0], root[1], root[1]])
        seen = xp.asarray(DIRECTIONS[:2], **place)
        moved = xp.reshape(found.mean * unit[None, :], (n, 2, 2))
        mean = wide + xp.matmul(moved, seen)
        spread = found.square - found.mean[:, :, None] * found.mean[:, None, :]
        inner = spread * (unit[:, None] * unit[None, :])[None, :, :]
        # of no samples nothing is known
        average = xp.mean(inner, axis=0) if n else xp.zeros((4, 4), **place)
        average = xp.reshape(average, (2, 2, 2, 2))
        covariance = (average[:, 0, :, 0] + average[:, 1, :, 1] + matrix) / 3
        second = None
        if second_moment:
            eye = xp.eye(2, **place)
            lift = eye[:, None, :, None] * xp.matrix_transpose(seen)[None, :, None, :]
            lift = xp.reshape(lift, (6, 4))
            blind = xp.asarray(DIRECTIONS[2], **place)
            hidden = matrix[:, None, :, None] * (blind[:, None] * blind[None, :])[None, :, None, :]
            flat = xp.reshape(mean, (n, 6))
            total = xp.matmul(xp.matmul(lift, inner), xp.matrix_transpose(lift))
            total = total + xp.reshape(hidden, (6, 6))[None, :, :] + flat[:, :, None] * flat[:, None, :]
            second = xp.astype(xp.reshape(total, (n, 2, 3, 2, 3)), omega.dtype)
        # two of three directions are integrated; what was given up may be wrong by a prior width
        error = math.sqrt((difference + float(xp.mean(found.rough)) if n else 0.0) * 2 / 3)
        return Posterior(xp.astype(mean, omega.dtype), xp.astype(covariance, omega.dtype), second, error)

    def log_partition(self, y: Array, omega: Array, V: Array) -> Array:
        """Logarithm (n,) of the density of the two margins ``(M_11 - M_12, M_22 - M_12)`` of the label."""
        check_latents(omega, 2, 3)
        xp = namespace(y, omega, V)
        margins, centre, widths = self._reduced(y, xp.astype(omega, xp.float64), V)
        found = self._integrals(xp, margins, centre, widths, VARIATION)
        return xp.astype(found.log_weight, omega.dtype)

    def _reduced(self, y: Array, omega: Array, V: Array) -> tuple[Array, Array, Widths]:
        """Margins (n, 2) of the label, prior means (n, 4) of (a_1, b_1, a_2, b_2), and the prior's widths."""
        xp = namespace(y, omega, V)
        host = to_host(V).astype(np.float64)
        v1, v2, v12 = float(host[0, 0]), float(host[1, 1]), float((host[0, 1] + host[1, 0]) / 2)
        if not (v1 > 0 and v2 * v1 - v12 * v12 > 0):
            raise ValueError(f"V must be positive definite, got {host.tolist()}")
        labels = xp.astype(y, xp.float64)
        margins = [labels[:, 0, 0] - labels[:, 0, 1], labels[:, 1, 1] - labels[:, 1, 0]]
        seen = xp.asarray(DIRECTIONS[:2], dtype=xp.float64, device=array_api_compat.device(omega))
        centre = xp.reshape(xp.matmul(omega, xp.matrix_transpose(seen)), (-1, 4))
        return xp.stack(margins, axis=1) / self.beta, centre, Widths(v1, v2 - v12 * v12 / v1, v12 / v1)

    def _integrals(
        self,
        xp: ModuleType,
        margins: Array,
        centre: Array,
        widths: Widths,
        variation: float,
        *,
        quick: bool = True,
    ) -> Sums:
        size = BLOCK if array_api_compat.is_numpy_namespace(xp) else BLOCK_DEVICE
        n = margins.shape[0]
        if n == 0:
            return self._nothing(xp, margins)
        parts = []
        for start in range(0, n, size):
            part = slice(start, min(start + size, n))
            parts.append(self._block(xp, margins[part, :], centre[part, :], widths, variation, quick=quick))
        if len(parts) == 1:
            return parts[0]
        return Sums(*(xp.concat(list(p), axis=0) for p in zip(*parts, strict=True)))

    def _block(
        self, xp: ModuleType, margins: Array, centre: Array, widths: Widths, variation: float, *, quick: bool
    ) -> Sums:
        n, device = margins.shape[0], array_api_compat.device(margins)
        place = {"dtype": xp.float64, "device": device}
        samples = self._samples(xp, margins, centre, widths)
        if quick and self.beta**2 * widths.first <= QUICK_WIDTH:
            found, good = self._quick(xp, samples, widths)
            where = xp.nonzero(~good)[0]
            if where.shape[0] == 0:
                return found
            rest = [xp.take(f, where, axis=0) for f in (margins, centre)]
            slow = self._block(xp, *rest, widths, variation, quick=False)
            return Sums(*(put_at_mask(old, ~good, new) for new, old in zip(slow, found, strict=True)))
        # every cell: centre and half-width along either axis, sorted by the sample that owns it
        cells = self._root_cells(xp, samples, widths)
        owner = xp.repeat(xp.arange(n, device=device), ROOT_CELLS**2)
        probe = xp.asarray([-1.0, -0.4, 0.4, 1.0], **place)
        x, weight = (xp.asarray(v, **place) for v in gauss_legendre(NODES))
        top = xp.full((n,), -math.inf, **place)
        sums, rough = xp.zeros((n, 15), **place), xp.zeros((n,), **place)
        for depth in range(DEEPEST):
            own = _own(xp, samples, owner)
            # no more than exp(-NEGLIGIBLE) of what has been found, or of a peak a sixteenth as wide as a cell
            area = xp.log(4 * cells[:, 2] * cells[:, 3])
            found = top + xp.log(clip(sums[:, 0], _TINY, None))
            least = xp.maximum(xp.take(found, owner) - area, xp.take(top, owner) - math.log(256.0))
            least = least - NEGLIGIBLE
            bound, swing = self._bound(xp, least, own, widths, cells)
            where = xp.nonzero(bound > least)[0]
            if where.shape[0] == 0:
                break
            cells, owner, area = xp.take(cells, where, axis=0), xp.take(owner, where), xp.take(area, where)
            own = _own(xp, own, where)
            table, _ = self._integrand(xp, own, widths, cells, probe)
            highest = xp.max(table, axis=(1, 2))
            seen = xp.max(_gathered(xp, highest, _segments(xp, owner, n), -math.inf), axis=1)
            top, sums = _raised(xp, top, sums, seen)
            found = top + xp.log(clip(sums[:, 0], _TINY, None))
            # what may be in the cell decides how well it must be known, not what a few probes have seen
            bound = xp.take(bound, where)
            short = clip(xp.take(found, owner) - bound - area, 0.0, NEGLIGIBLE)
            limit = variation * (1 + ALLOWANCE * short)
            across = [xp.max(xp.max(table, axis=k) - xp.min(table, axis=k), axis=1) for k in (1, 2)]
            across = [xp.maximum(a, xp.take(b, where)) for a, b in zip(across, swing, strict=True)]
            # a peak between the probes does not show in their variation, but in what the bound allows
            hidden = bound - highest - LOOSENESS
            widest = xp.maximum(across[0], across[1])
            split = (widest > limit) | (hidden > clip(limit, VARIATION, None))
            crowded = _count(xp, owner, n) > CROWDED
            rough = xp.where(crowded, 1.0, rough)
            split = split & ~xp.take(crowded, owner)
            if depth == DEEPEST - 1:
                split = split & False
            leaf = xp.nonzero(~split)[0]
            if leaf.shape[0] > 0:
                leaf_cells, leaf_owner = xp.take(cells, leaf, axis=0), xp.take(owner, leaf)
                log_weight, variables = self._integrand(xp, _own(xp, own, leaf), widths, leaf_cells, x)
                segments = _segments(xp, leaf_owner, n)
                best = xp.max(_gathered(xp, xp.max(log_weight, axis=(1, 2)), segments, -math.inf), axis=1)
                top, sums = _raised(xp, top, sums, best)
                w = xp.exp(log_weight - xp.take(top, leaf_owner)[:, None, None])
                w = (
                    w
                    * (leaf_cells[:, 2] * leaf_cells[:, 3])[:, None, None]
                    * (weight[:, None] * weight[None, :])
                )
                sums = sums + xp.sum(_gathered(xp, _moments(xp, w, variables), segments, 0.0), axis=1)
            where = xp.nonzero(split)[0]
            if where.shape[0] == 0:
                break
            # halved along the axis of the larger variation, or along the longer one where none is seen
            seen_axis, longer = across[0] >= across[1], cells[:, 2] >= cells[:, 3]
            first = xp.take(xp.where(widest > limit, seen_axis, longer), where)
            cells, owner = (
                _halved(xp, xp.take(cells, where, axis=0), first),
                xp.repeat(xp.take(owner, where), 2),
            )
        found = self._normalised(xp, sums, top, widths)
        outside = xp.max(xp.abs(found.mean[:, :2]), axis=1) > REACH - NEAR_EDGE
        return found._replace(rough=xp.where(outside, 1.0, rough))

    def _nothing(self, xp: ModuleType, margins: Array) -> Sums:
        """Integrals of no samples."""
        place = {"dtype": xp.float64, "device": array_api_compat.device(margins)}
        return Sums(*(xp.zeros(shape, **place) for shape in ((0,), (0, 4), (0, 4, 4), (0,))))

    @property
    def _crossing(self) -> float:
        """Depth of the line s = 0, or 0 where there is none."""
        return math.log((1 - self.skip) / (1 + self.skip)) if self.skip < 1 else 0.0

    def _units(self, widths: Widths) -> tuple[float, float]:
        """Prior widths of ``t = beta (u_1 + u_2) / 2`` and ``v = beta (u_1 - u_2)``."""
        unit = self.beta * math.sqrt(widths.first)
        return ROOT2 * unit, 2 * unit

    def _samples(
        self, xp: ModuleType, margins: Array, centre: Array, widths: Widths, *, align: bool = True
    ) -> Samples:
        t, v = centre[:, 0] * (ROOT2 * self.beta), centre[:, 1] * (2 * self.beta)
        samples = Samples(
            t, v, centre[:, 2], centre[:, 3], (margins[:, 0] + margins[:, 1]) / ROOT8, margins[:, 0], t
        )
        # where s may vanish the weight is narrow on either side, and smooth along that line
        if not align or self.skip < 1 or widths.second > ALIGNED * widths.first:
            return samples._replace(ridge=xp.full_like(t, self._crossing))
        t, v, _, _ = self._likeliest(xp, samples, widths, *self._explained(xp, samples))
        return samples._replace(ridge=_depth(xp, t, v))

    def _explained(self, xp: ModuleType, samples: Samples) -> tuple[Array, Array]:
        """(t, v) that would explain the label by the prior means of a_2 and b_2, as nearly as p and r allow."""
        c = self.skip
        a2 = xp.where(xp.abs(samples.a2) < _SMALL, _SMALL, samples.a2)
        ratio = samples.slope / a2
        plain = xp.tanh(samples.t / 2) + c  # what s would be at v = 0
        s = xp.where(ratio > 0, xp.sqrt(clip(ratio, _SMALL, None)), plain)
        both = clip(s + (1 - c), 0.01, 1.99)
        s = _away(xp, both - (1 - c))
        p = ((samples.margin / s - (1 + c) * samples.b2) / (ROOT2 * a2) + (1 - c)) / 2
        low, high = clip(both - 1, 0.0, None), clip(both, None, 1.0)
        p = low + (high - low) * clip((p - low) / (high - low), 0.02, 0.98)
        u = [xp.log(f / (1 - f)) for f in (p, both - p)]
        return (u[0] + u[1]) / 2, u[0] - u[1]

    def _likeliest(
        self, xp: ModuleType, samples: Samples, widths: Widths, t: Array, v: Array
    ) -> tuple[Array, Array, Array, list[Array]]:
        """Levenberg-Marquardt from (t, v): the point found, its cost and its normal equations."""
        damping = xp.ones_like(t)
        cost, normal = self._normal_equations(xp, samples, widths, t, v)
        for _ in range(MARQUARDT_STEPS):
            tt, tv, vv, rt, rv = normal
            tt, vv = tt * (1 + damping), vv * (1 + damping)
            determinant = tt * vv - tv * tv
            new_t = t - clip((vv * rt - tv * rv) / determinant, -2.0, 2.0)
            new_v = v - clip((tt * rv - tv * rt) / determinant, -2.0, 2.0)
            new_cost, new_normal = self._normal_equations(xp, samples, widths, new_t, new_v)
            better = new_cost < cost
            t, v, cost = (
                xp.where(better, new_t, t),
                xp.where(better, new_v, v),
                xp.where(better, new_cost, cost),
            )
            normal = [xp.where(better, new, old) for new, old in zip(new_normal, normal, strict=True)]
            damping = clip(xp.where(better, damping / 5, damping * 5), 1e-12, 1e12)
        return t, v, cost, normal

    def _gaussian(
        self, xp: ModuleType, samples: Samples, widths: Widths, frame: Frame, count: int
    ) -> tuple[Sums, Frame]:
        """Gauss-Hermite rule in the frame of a Gaussian, and the frame of the moments that it finds."""
        unit_t, unit_v = self._units(widths)
        place = {"dtype": xp.float64, "device": array_api_compat.device(samples.t)}
        x, y, log_rule = (xp.asarray(f, **place)[None, :] for f in _hermite(count))
        t = frame.t[:, None] + frame.tt[:, None] * x
        v = frame.v[:, None] + frame.vt[:, None] * x + frame.vv[:, None] * y
        own = Samples(*(f[:, None] for f in samples))
        p, r = _logistic(xp, t + v / 2), _logistic(xp, t - v / 2)
        a, b = (t - own.t) / unit_t, (v - own.v) / unit_v
        log_weight, variables = self._weigh(xp, own, widths, a, b, p, r)
        log_weight = log_weight + log_rule
        top = xp.max(log_weight, axis=1)
        w = xp.exp(log_weight - top[:, None])
        # the weight is over (a, b), the frame over (t, v)
        scale = frame.tt * frame.vv / (unit_t * unit_v)
        sums = self._normalised(
            xp,
            _moments(xp, (w * scale[:, None])[:, :, None], [f[:, :, None] for f in variables]),
            top,
            widths,
        )
        total = xp.sum(w, axis=1)
        w = w / total[:, None]
        mean_t, mean_v = xp.sum(w * t, axis=1), xp.sum(w * v, axis=1)
        off_t, off_v = t - mean_t[:, None], v - mean_v[:, None]
        found = _frame(
            xp,
            mean_t,
            mean_v,
            xp.sum(w * off_t * off_t, axis=1),
            xp.sum(w * off_t * off_v, axis=1),
            xp.sum(w * off_v * off_v, axis=1),
        )
        return sums, found

    def _quick(self, xp: ModuleType, samples: Samples, widths: Widths) -> tuple[Sums, Array]:
        """Integrals of nearly Gaussian weights, and for which samples they are good.

        Those where two searches for the likeliest point agree and two orders of the rule too.
        """
        starts = [(samples.t, samples.v), self._explained(xp, samples)]
        one, two = (self._likeliest(xp, samples, widths, *start) for start in starts)
        frame = _curvature(xp, *one[:2], one[3])
        same = xp.abs(one[0] - two[0]) < 0.1 * frame.tt
        same = (
            same & (xp.abs(one[1] - two[1]) < 0.1 * xp.sqrt(frame.vt**2 + frame.vv**2)) & (one[2] < UNLIKELY)
        )
        _, frame = self._gaussian(xp, samples, widths, frame, QUICK_NODES[0])
        rough, frame = self._gaussian(xp, samples, widths, frame, QUICK_NODES[1])
        fine, _ = self._gaussian(xp, samples, widths, frame, QUICK_NODES[2])
        gap = xp.max(xp.abs(fine.mean - rough.mean), axis=1)
        wide = xp.max(xp.max(xp.abs(fine.square - rough.square), axis=2), axis=1)
        good = same & (xp.maximum(gap, wide) < QUICK_TOLERANCE)
        if self.skip < 1:
            # a_2 does not tell s from -s: there may be a second peak on the other side of s = 0
            unit_t, unit_v = self._units(widths)
            crossing = _at_depth(xp, xp.full_like(samples.t, self._crossing), samples.v)
            good = good & (xp.abs(samples.t - crossing) > REACH * (unit_t + unit_v / 2))
        return fine, good

    def _normal_equations(
        self, xp: ModuleType, samples: Samples, widths: Widths, t: Array, v: Array
    ) -> tuple[Array, list[Array]]:
        """Sum of squares that stands for -2 log-weight (but for the power of s), and J^T J and J^T r."""
        c = self.skip
        unit_t, unit_v = self._units(widths)
        p, r = _logistic(xp, t + v / 2), _logistic(xp, t - v / 2)
        dp, dr = p * (1 - p), r * (1 - r)
        s = _away(xp, p + r + (c - 1))
        a2 = samples.slope / (s * s)
        k = ROOT2 * (2 * p + (c - 1))
        b2 = (samples.margin / s - k * a2) / (1 + c)
        a, b = (t - samples.t) / unit_t, (v - samples.v) / unit_v
        lift = widths.tilt * math.sqrt(widths.first)
        scale = 1 / math.sqrt(widths.second)
        residuals = [a, b, (a2 - samples.a2 - lift * a) * scale, (b2 - samples.b2 - lift * b) * scale]
        rows = [[1 / unit_t + 0 * t, 0 * t], [0 * t, 1 / unit_v + 0 * t]]
        by_s = -2 * a2 / s
        b_by_s = (-samples.margin / (s * s) - k * by_s) / (1 + c)
        b_by_p = -2 * ROOT2 * a2 / (1 + c)
        steps = [(dp + dr, dp), ((dp - dr) / 2, dp / 2)]  # of s and p, with t and with v
        rows.append(
            [scale * (by_s * ds - lift * f) for (ds, _), f in zip(steps, (1 / unit_t, 0.0), strict=True)]
        )
        rows.append(
            [
                scale * (b_by_s * ds + b_by_p * d - lift * f)
                for (ds, d), f in zip(steps, (0.0, 1 / unit_v), strict=True)
            ]
        )
        squares = [(0, 0), (0, 1), (1, 1)]
        matrix = [
            sum((row[i] * row[j] for row in rows[1:]), start=rows[0][i] * rows[0][j]) for i, j in squares
        ]
        pulls = [
            sum((row[i] * z for row, z in zip(rows, residuals, strict=True)), start=0 * t) for i in (0, 1)
        ]
        return sum((z * z for z in residuals), start=0 * t), [*matrix, *pulls]

    def _root_cells(self, xp: ModuleType, samples: Samples, widths: Widths) -> Array:
        """Cells (n ROOT_CELLS^2, 4) that cover the prior."""
        unit_t, unit_v = self._units(widths)
        bends = [
            _bend(xp, samples, v) for v in _ends(xp, samples.v - REACH * unit_v, samples.v + REACH * unit_v)
        ]
        lowest = xp.minimum(xp.minimum(bends[0], bends[1]), bends[2])
        highest = xp.maximum(xp.maximum(bends[0], bends[1]), bends[2])
        low, high = (samples.t - highest) / unit_t - REACH, (samples.t - lowest) / unit_t + REACH
        corner = (np.arange(ROOT_CELLS) + 0.5) * (2 / ROOT_CELLS) - 1
        grid = np.stack(np.meshgrid(corner, corner, indexing="ij"), axis=-1).reshape(-1, 2)
        place = {"dtype": xp.float64, "device": array_api_compat.device(low)}
        first, second = (xp.asarray(grid[:, k], **place)[None, :] for k in range(2))
        half = (high - low)[:, None] / 2
        flat = xp.zeros_like(half * first)
        columns = [(high + low)[:, None] / 2 + half * first, flat + REACH * second]
        columns += [flat + half / ROOT_CELLS, flat + REACH / ROOT_CELLS]
        return xp.reshape(xp.stack(columns, axis=-1), (-1, 4))

    def _integrand(
        self, xp: ModuleType, own: Samples, widths: Widths, cells: Array, x: Array
    ) -> tuple[Array, list[Array]]:
        """Log-weight (N, k, k) and the four variables of ``Sums`` at the product of k points x in [-1, 1]."""
        unit_t, unit_v = self._units(widths)
        y = (cells[:, 0:1] + cells[:, 2:3] * x)[:, :, None]
        b = (cells[:, 1:2] + cells[:, 3:4] * x)[:, None, :]
        v = own.v[:, None, None] + unit_v * b
        bend = _bend(xp, own._replace(ridge=own.ridge[:, None, None]), v)
        decay = xp.exp(clip(-unit_t * y, -_FAR, _FAR))
        p = 1 / (1 + decay * xp.exp(clip(-bend - v / 2, -_FAR, _FAR)))
        r = 1 / (1 + decay * xp.exp(clip(-bend + v / 2, -_FAR, _FAR)))
        a = y + (bend - own.t[:, None, None]) / unit_t
        wide = Samples(*(f[:, None, None] for f in own))
        return self._weigh(xp, wide, widths, a, b, p, r)

    def _weigh(
        self, xp: ModuleType, own: Samples, widths: Widths, a: Array, b: Array, p: Array, r: Array
    ) -> tuple[Array, list[Array]]:
        """Log-weight and the four variables of ``Sums``, all arrays of one (broadcast) shape."""
        c = self.skip
        inverse = 1 / _away(xp, p + r + (c - 1))
        a2 = own.slope * inverse * inverse
        b2 = (own.margin * inverse - ROOT2 * (2 * p + (c - 1)) * a2) * (1 / (1 + c))
        gap_a, gap_b = a2 - own.a2, b2 - own.b2
        lift = widths.tilt * math.sqrt(widths.first)
        rest_a, rest_b = gap_a - lift * a, gap_b - lift * b
        log_weight = (rest_a * rest_a + rest_b * rest_b) * (-0.5 / widths.second) - (a * a + b * b) / 2
        log_weight = clip(log_weight + 3 * xp.log(xp.abs(inverse)), -_HUGE, None)
        # where a_2 is out of all bounds the weight vanishes, and 0 times infinity must be 0
        scale = 1 / math.sqrt(widths.second + widths.tilt**2 * widths.first)
        gaps = [clip(g, -_HUGE, _HUGE) * scale for g in (gap_a, gap_b)]
        return log_weight, [a, b, *gaps]

    def _bound(
        self, xp: ModuleType, least: Array, own: Samples, widths: Widths, cells: Array
    ) -> tuple[Array, list[Array]]:
        """Upper bound of the log-weight in the rectangles ``cells`` (N, 4), and how much a_2 makes it vary there.

        The bound holds where the log-weight exceeds ``least``, and what is below counts as equally small. The
        variation, along either axis, is that of the power of s and of the Gaussian of a_2.

        In a cell p and r are monotone in both coordinates; s rises with the first and,
        along the second, has its extremes at the ends or where v is nearest to 0. The label fixes a_2 as a
        multiple of ``1 / s^2``, and the weight is unimodal in that number; the range of s that is left, with
        that of p, bounds b_2.
        """
        c = self.skip
        unit_t, unit_v = self._units(widths)
        low, high = cells[:, :2] - cells[:, 2:], cells[:, :2] + cells[:, 2:]
        ends = _ends(xp, own.v + unit_v * low[:, 1], own.v + unit_v * high[:, 1])
        bends = [_bend(xp, own, v) for v in ends]
        floor = [unit_t * low[:, 0] + g for g in bends]
        ceiling = [unit_t * high[:, 0] + g for g in bends]
        t_low, t_high = _least(xp, floor), _most(xp, ceiling)
        below = [
            (_logistic(xp, t + v / 2), _logistic(xp, t - v / 2)) for t, v in zip(floor, ends, strict=True)
        ]
        upper = [
            (_logistic(xp, t + v / 2), _logistic(xp, t - v / 2)) for t, v in zip(ceiling, ends, strict=True)
        ]
        p_low, p_high, r_low, r_high = below[0][0], upper[1][0], below[1][1], upper[0][1]
        s_below, s_upper = ([p + r + (c - 1) for p, r in side] for side in (below, upper))
        s_low, s_high = _least(xp, s_below), _most(xp, s_upper)
        far_a = clip(xp.maximum(t_low - own.t, own.t - t_high), 0.0, None) / unit_t
        far_b = clip(xp.maximum(low[:, 1], -high[:, 1]), 0.0, None)
        prior = -(far_a * far_a + far_b * far_b) / 2
        crossing, negative = (s_low < 0) & (s_high > 0), s_high <= 0
        largest = xp.maximum(xp.abs(s_low), xp.abs(s_high))
        smallest = xp.where(crossing, 0.0, xp.minimum(xp.abs(s_low), xp.abs(s_high)))
        q_low, q_high = (1 / clip(v, _TINY, None) ** 2 for v in (largest, smallest))
        size = clip(xp.abs(own.slope), _TINY, None)
        sign = xp.where(own.slope < 0, -xp.ones_like(own.slope), 1.0)
        lift = widths.tilt * math.sqrt(widths.first)
        slack = abs(lift) * xp.maximum((t_high - t_low) / (2 * unit_t), cells[:, 3])
        target = sign * (own.a2 + lift * ((t_low + t_high) / 2 - own.t) / unit_t)
        best = (target + slack + xp.sqrt((target + slack) ** 2 + 6 * widths.second)) / (2 * size)

        def level(q: Array) -> Array:
            gap = clip(xp.abs(size * q - target) - slack, 0.0, None)
            return 1.5 * xp.log(q) - gap * gap / (2 * widths.second)

        first = level(xp.minimum(xp.maximum(best, q_low), q_high))
        swing = _swing(xp, s_below, s_upper, level, best, least - prior)
        # how far a_2 may be off without putting the weight below the least by itself
        spare = clip(prior + 1.5 * xp.log(q_high) - least, 0.0, None)
        room = slack + xp.sqrt(2 * widths.second * spare)
        q_high = xp.maximum(xp.minimum(q_high, (target + room) / size), q_low)
        q_low = xp.minimum(xp.maximum(q_low, (target - room) / size), q_high)
        fast, slow = xp.sqrt(q_high), xp.sqrt(q_low)
        inverse = (
            xp.where(crossing | negative, -fast, slow),
            xp.where(negative, -slow, fast),
        )
        # p = s - r + 1 - c narrows p, where s is known better than t
        s_low = xp.where(crossing, s_low, 1 / xp.where(crossing, 1.0, inverse[1])) + (1 - c)
        s_high = xp.where(crossing, s_high, 1 / xp.where(crossing, 1.0, inverse[0])) + (1 - c)
        p_low, p_high = xp.maximum(p_low, s_low - r_high), xp.minimum(p_high, s_high - r_low)
        k = ROOT2 * (2 * p_low + (c - 1)), ROOT2 * (2 * xp.maximum(p_low, p_high) + (c - 1))
        one = _product(xp, inverse, (own.margin, own.margin))
        two = _product(xp, _product(xp, (q_low, q_high), (own.slope, own.slope)), k)
        aim = (1 + c) * (own.b2 + lift * cells[:, 1])
        miss = xp.maximum(one[0] - two[1] - aim, aim - one[1] + two[0]) / (1 + c)
        miss = clip(miss - slack, 0.0, None)
        return prior + first - miss * miss / (2 * widths.second), swing

    def _normalised(self, xp: ModuleType, sums: Array, top: Array, widths: Widths) -> Sums:
        total = sums[:, 0]
        constant = math.log((2 * math.pi) ** 2 * widths.second * ROOT8 * (1 + self.skip))
        averages = sums[:, 1:] / total[:, None]
        index = [[4 + _PAIRS.index((min(i, j), max(i, j))) for j in range(4)] for i in range(4)]
        square = xp.stack([xp.stack([averages[:, k] for k in row], axis=-1) for row in index], axis=-2)
        return Sums(top + xp.log(total) - constant, averages[:, :4], square, xp.zeros_like(top))

    # -- information ---------------------------------------------------------------------------------------

    def information(self, Q: Array, V: Array) -> Uncertain:
        """``E sum_c g_c g_c^T`` (..., 2, 2) with ``omega ~ N(0, Q (x) I_3)``; leading axes are a batch.

        Both layers see the same inputs and, with a prior of nonzero mean, share a part of their signals: Q
        then has an off-diagonal even before anything is learned. Scrambled Sobol points in eight dimensions,
        the same for every (Q, V), with control variates; the error is the standard error over the scrambles.
        """
        xp = namespace(Q, V)
        q, v = np.broadcast_arrays(to_host(Q).astype(np.float64), to_host(V).astype(np.float64))
        pairs = [
            self._sampled(one_q, one_v) for one_q, one_v in zip(q.reshape(-1, 2, 2), v.reshape(-1, 2, 2))
        ]
        place = {"dtype": Q.dtype, "device": array_api_compat.device(Q)}
        value, error = (np.array([p[k] for p in pairs]).reshape(q.shape) for k in (0, 1))
        method = f"Monte Carlo ({SCRAMBLES} scrambles of {self.samples // SCRAMBLES} Sobol points)"
        return Uncertain(xp.asarray(value, **place), xp.asarray(error, **place), method)

    def _sampled(self, Q: Array, V: Array) -> tuple[Array, Array]:
        r"""Estimate and standard error of one matrix.

        A crude posterior mean, by Gauss-Hermite around the likeliest point near the truth, is almost
        perfectly correlated with the exact one and a hundred times cheaper: its mean over many samples is
        corrected by the mean of the difference over few.
        """
        many, few = self.samples, max(2 * SCRAMBLES, self.samples // 32)
        rough, _ = self._products(Q, V, _points(many, 0), exact=False)
        exact, control = self._products(Q, V, _points(few, 1), exact=True)
        base = rough.reshape(3, SCRAMBLES, -1).mean(axis=2)
        centred = control - control.mean(axis=1, keepdims=True)
        slope = np.linalg.lstsq(centred.T, (exact - exact.mean(axis=1, keepdims=True)).T, rcond=None)[0].T
        rest = (exact - slope @ control).reshape(3, SCRAMBLES, -1).mean(axis=2)
        mean = slope @ base.mean(axis=1) + rest.mean(axis=1)
        error = np.hypot((slope @ base).std(axis=1, ddof=1), rest.std(axis=1, ddof=1)) / math.sqrt(SCRAMBLES)
        order = np.array([[0, 2], [2, 1]])
        return mean[order], error[order]

    def _products(self, Q: Array, V: Array, normal: Array, *, exact: bool) -> tuple[Array, Array]:
        """Entries 11, 22 and 12 of ``sum_c g_c g_c^T`` (3, N), exact if asked for, and from the crude mean."""
        # (sample, layer, direction)
        omega = np.einsum("lk,nkd->nld", symmetric_root(Q), normal[:, 0])
        truth = omega + np.einsum("lk,nkd->nld", symmetric_root(V), normal[:, 1])
        xp = namespace(omega)
        seen = np.array(DIRECTIONS[:2])
        margins, centre, widths = self._reduced(self.forward(truth @ seen), omega @ seen, V)
        t, v = truth[:, 0, 0] * (ROOT2 * self.beta), truth[:, 0, 1] * (2 * self.beta)
        crude = []
        for start in range(0, len(omega), CRUDE_BLOCK):
            part = slice(start, start + CRUDE_BLOCK)
            samples = self._samples(xp, margins[part], centre[part], widths, align=False)
            *mode, _, normal_equations = self._likeliest(xp, samples, widths, t[part], v[part])
            frame = _curvature(xp, *mode, normal_equations)
            point, _ = self._gaussian(xp, samples, widths, frame, 1)
            _, frame = self._gaussian(xp, samples, widths, frame, CRUDE_NODES[0])
            mean = self._gaussian(xp, samples, widths, frame, CRUDE_NODES[1])[0].mean
            # a rule whose frame has slipped off the weight is worse than the likeliest point itself
            lost = np.abs(mean).max(axis=1, keepdims=True) > CRUDE_LIMIT
            crude.append(np.clip(np.where(lost, point.mean, mean), -CRUDE_LIMIT, CRUDE_LIMIT))
        means = [np.concatenate(crude)]
        if exact:
            means.insert(0, self._integrals(xp, margins, centre, widths, CRUDE_VARIATION).mean)
        inverse, unit = np.linalg.inv(V), np.sqrt(np.diagonal(V))[:, None]
        products = []
        for mean in means:
            g = np.einsum("lk,nkd->nld", inverse, mean.reshape(-1, 2, 2) * unit)
            products.append(
                np.stack([np.sum(g[:, i] * g[:, j], axis=1) for i, j in ((0, 0), (1, 1), (0, 1))])
            )
        return products[0], products[-1]


@cache
def _points(count: int, stream: int) -> np.ndarray[Any, Any]:
    """Standard normals (sample, estimate or rest, layer, direction), scramble by scramble."""
    size = 1 << round(math.log2(max(2, count // SCRAMBLES)))
    points = normal_scrambles(8, size, SCRAMBLES, "two layers of attention: labels", stream)
    return points.reshape(-1, 2, 2, 2)


def _own(xp: ModuleType, samples: Samples, index: Array) -> Samples:
    return Samples(*(xp.take(v, index) for v in samples))


def _frame(xp: ModuleType, t: Array, v: Array, tt: Array, tv: Array, vv: Array) -> Frame:
    """Frame of a mean and a covariance."""
    root = xp.sqrt(clip(tt, _TINY, None))
    cross = tv / root
    return Frame(t, v, root, cross, xp.sqrt(xp.maximum(vv - cross * cross, 1e-12 * vv + _TINY)))


def _curvature(xp: ModuleType, t: Array, v: Array, normal: list[Array]) -> Frame:
    """Frame of the Gaussian with the curvature of the normal equations, a little wider: tails are rarely thinner."""
    tt, tv, vv = normal[:3]
    determinant = tt * vv - tv * tv
    return _frame(xp, t, v, 1.44 * vv / determinant, -1.44 * tv / determinant, 1.44 * tt / determinant)


@cache
def _hermite(count: int) -> tuple[Any, Any, Any]:
    """Points of a product rule for a function of two variables itself, and the logarithm of the weights."""
    x, w = gauss_hermite(count)
    a, b = np.meshgrid(x, x, indexing="ij")
    return a.ravel(), b.ravel(), (np.log(2 * math.pi * np.outer(w, w)) + (a * a + b * b) / 2).ravel()


def _bend(xp: ModuleType, samples: Samples, v: Array) -> Array:
    """Where t puts ``p + r`` on the ridge at v; 0 on a ridge of depth 0, for which nothing is bent."""
    return _at_depth(xp, samples.ridge, v)


def _swing(
    xp: ModuleType,
    below: list[Array],
    upper: list[Array],
    level: Callable[[Array], Array],
    best: Array,
    least: Array,
) -> list[Array]:
    """Variation along either axis of ``level(1/s^2)``, which has its only maximum at ``best``, where it exceeds ``least``.

    No probe need see it: where s changes its sign there is a trench between two walls.
    """

    def variation(values: list[Array]) -> Array:
        sizes = [xp.abs(v) for v in values]
        changes = (_least(xp, values) <= 0) & (_most(xp, values) >= 0)
        smallest = xp.where(changes, 0.0, _least(xp, sizes))
        q_low, q_high = (1 / clip(v, _TINY, None) ** 2 for v in (_most(xp, sizes), smallest))
        highest = level(xp.minimum(xp.maximum(best, q_low), q_high))
        lowest = xp.minimum(level(q_low), level(q_high))
        return clip(highest - xp.maximum(lowest, least), 0.0, None)

    first = _most(xp, [variation([b, u]) for b, u in zip(below, upper, strict=True)])
    return [first, xp.maximum(variation(below), variation(upper))]


def _ends(xp: ModuleType, low: Array, high: Array) -> list[Array]:
    """The ends of an interval and its point nearest to 0."""
    return [low, high, xp.where((low < 0) & (high > 0), 0.0, xp.where(low >= 0, low, high))]


def _least(xp: ModuleType, values: list[Array]) -> Array:
    return reduce(xp.minimum, values)


def _most(xp: ModuleType, values: list[Array]) -> Array:
    return reduce(xp.maximum, values)


def _logistic(xp: ModuleType, u: Array) -> Array:
    return 1 / (1 + xp.exp(clip(-u, -2 * _FAR, 2 * _FAR)))


def _halved(xp: ModuleType, cells: Array, first: Array) -> Array:
    """Cells (N, 4) cut in two along their first or second axis, (2 N, 4)."""
    one = xp.ones_like(cells[:, 0])
    shrink = xp.stack([one, one, xp.where(first, one / 2, one), xp.where(first, one, one / 2)], axis=1)
    zero = xp.zeros_like(one)
    move = [xp.where(first, cells[:, 2], 0.0) / 2, xp.where(first, 0.0, cells[:, 3]) / 2, zero, zero]
    step = xp.stack(move, axis=1)
    cells = cells * shrink
    return xp.reshape(xp.stack([cells - step, cells + step], axis=1), (-1, 4))


def _moments(xp: ModuleType, w: Array, variables: list[Array]) -> Array:
    """Sums (N, 15) of the weight (N, k, k), times each variable, times each pair."""
    weighted = [w * v for v in variables]
    columns = [w, *weighted, *(weighted[i] * variables[j] for i, j in _PAIRS)]
    return xp.stack([xp.sum(c, axis=(1, 2)) for c in columns], axis=1)


def _raised(xp: ModuleType, top: Array, sums: Array, seen: Array) -> tuple[Array, Array]:
    """Sums (n, 15) in units of exp(top), after the top has been raised to what was seen."""
    higher = seen > top
    # the first top is minus infinity, and the sums are zero then
    step = xp.where(higher & (top > -math.inf), top - xp.where(higher, seen, 0.0), 0.0)
    return xp.maximum(top, seen), sums * xp.exp(step)[:, None]


def _segments(xp: ModuleType, owner: Array, n: int) -> tuple[Array, Array]:
    """For sorted owners (N,): positions (n, K) of every owner's elements, and which of them exist."""
    device = array_api_compat.device(owner)
    samples = xp.arange(n, dtype=owner.dtype, device=device)
    start = xp.searchsorted(owner, samples)
    end = xp.searchsorted(owner, samples, side="right")
    most = int(xp.max(end - start))
    position = start[:, None] + xp.arange(most, dtype=start.dtype, device=device)[None, :]
    return clip(position, None, owner.shape[0] - 1), position < end[:, None]


def _count(xp: ModuleType, owner: Array, n: int) -> Array:
    """How many elements every owner (sorted) has, (n,)."""
    samples = xp.arange(n, dtype=owner.dtype, device=array_api_compat.device(owner))
    return xp.searchsorted(owner, samples, side="right") - xp.searchsorted(owner, samples)


def _gathered(xp: ModuleType, values: Array, segments: tuple[Array, Array], fill: float) -> Array:
    """Values (N, ...) as (n, K, ...), one row for every owner."""
    position, exists = segments
    flat = xp.take(values, xp.reshape(position, (-1,)), axis=0)
    table = xp.reshape(flat, (*position.shape, *values.shape[1:]))
    return xp.where(xp.reshape(exists, (*position.shape, *(1,) * (values.ndim - 1))), table, fill)


def _away(xp: ModuleType, s: Array) -> Array:
    return xp.where(xp.abs(s) < _TINY, _TINY, s)


def _at_depth(xp: ModuleType, depth: Array, v: Array) -> Array:
    """T at which ``log((p + r) / (2 - p - r))`` is ``depth``: a quadratic equation for ``exp(-t)``."""
    half = clip(v / 2, -_FAR, _FAR)
    decay = xp.exp(-xp.abs(depth))
    less, more = 2 * decay / (1 + decay), 2 / (1 + decay)
    spread = xp.exp(half)
    bend = (1 - decay) / (1 + decay) * (spread + 1 / spread)
    # solved for |depth|; the other sign exchanges t and -t
    t = xp.log((bend + xp.sqrt(bend * bend + 4 * less * more)) / (2 * less))
    return xp.where(depth > 0, t, -t)


def _depth(xp: ModuleType, t: Array, v: Array) -> Array:
    """The inverse: ``log((p + r) / (2 - p - r))`` at t and v."""
    t, half = clip(t, -_FAR, _FAR), clip(v / 2, -_FAR, _FAR)
    e, k = xp.exp(-t), xp.exp(half) + xp.exp(-half)
    return xp.log(2 + e * k) - xp.log(k + 2 * e) + t


def _product(xp: ModuleType, first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
    """Range of the product of two numbers of given ranges."""
    corners = [a * b for a in first for b in second]
    low, high = corners[0], corners[0]
    for corner in corners[1:]:
        low, high = xp.minimum(low, corner), xp.maximum(high, corner)
    return low, high


def _matrix(xp: ModuleType, z: Array) -> Array:
    """Symmetric h (..., 2, 2) from latents (..., 3)."""
    first, off, last = ROOT2 * z[..., 0], z[..., 1], ROOT2 * z[..., 2]
    return xp.stack([xp.stack([first, off], axis=-1), xp.stack([off, last], axis=-1)], axis=-2)


def _to_latents(xp: ModuleType, gradient: Array) -> Array:
    """Transpose of ``_matrix``."""
    off = gradient[..., 0, 1] + gradient[..., 1, 0]
    return xp.stack([ROOT2 * gradient[..., 0, 0], off, ROOT2 * gradient[..., 1, 1]], axis=-1)


def _log_softmax(xp: ModuleType, logits: Array) -> Array:
    logits = logits - xp.max(logits, axis=-1, keepdims=True)
    return logits - xp.log(xp.sum(xp.exp(logits), axis=-1, keepdims=True))
