r"""The weight that a label of two-layer attention puts on the first layer's indices: its logarithm, moments and ridge, and
the accuracy of its integrals.

Only two combinations of the three indices of a layer matter. With ``h = (h_11, h_12, h_22)`` let

.. math::

    a = (h_{11} - 2 h_{12} + h_{22}) / \sqrt8, \qquad b = (h_{11} - h_{22}) / 2 ,

unit vectors in the latents z. The first layer's attention depends on ``u = (\sqrt2 a_1 + b_1, \sqrt2 a_1 -
b_1)`` through ``p, r = logistic(beta u)``; with ``s = p + r + c - 1`` the label fixes the second layer's

.. math::

    a_2 = \frac{\varphi_1 + \varphi_2}{\sqrt8\, s^2}, \qquad
    b_2 = \frac{1}{1 + c} \Big( \frac{\varphi_1}{s} - \sqrt2 (c + 2p - 1) a_2 \Big), \qquad
    |d(a_2, b_2) / d(\varphi_1, \varphi_2)| = \frac{1}{\sqrt8 (1 + c) |s|^3} ,

where ``phi_1 = M_11 - M_12`` and ``phi_2 = M_22 - M_12`` are the margins of the label. So the posterior is a
two-dimensional integral over ``(a_1, b_1)``, with nothing that is singular but s = 0, where the weight vanishes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from smimbench.backend import clip, namespace, to_host
from smimbench_channels.batches import array_like

if TYPE_CHECKING:
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = [
    "ACCURACY",
    "DIRECTIONS",
    "Samples",
    "Sums",
    "Weight",
    "depth_of_ridge",
    "logistic",
    "moments",
    "reduced",
    "ridge",
]

ROOT2, ROOT8 = math.sqrt(2.0), math.sqrt(8.0)
# rows: the directions of a and b, and the one that no label sees, in the latents (z_11, z_12, z_22)
DIRECTIONS = ((0.5, -1 / ROOT2, 0.5), (1 / ROOT2, 0.0, -1 / ROOT2), (0.5, 1 / ROOT2, 0.5))
# Guards of the arithmetic, no tuning: the smallest divisor, the largest finite value whose square is finite too, and the
# largest logarithm of a number whose products and quotients can be formed.
TINY, HUGE, FAR = 1e-60, 1e130, 340.0
_PAIRS = tuple((i, j) for i in range(4) for j in range(i, 4))


@dataclass(frozen=True)
class Accuracy:
    """Tuning numbers of the integrals over ``(a_1, b_1)``, each with what happens when it is doubled.

    Lengths and errors are in prior widths, weights in natural logarithms. As it is, posterior means are off by 3e-5 (root mean
    square over samples at beta = 1, c = 1, where all of this was measured).
    """

    # Half-width of the square that is integrated over. Doubled: the first cells are twice as wide, errors up to 1e-4.
    reach: float = 7.5
    # Cells along each axis before any is halved. Doubled: the same errors, four times the first work.
    root_cells: int = 4
    # Gauss-Legendre nodes of a cell along each axis. Doubled: errors of 3e-8, twice the time.
    nodes: int = 8
    # Largest variation of the log-weight along an axis of a cell. Doubled: errors of 3e-3, 60% of the time.
    variation: float = 6.0
    # The same for the integrals that the error estimate compares with. Doubled: too close to ``variation`` to tell.
    fine_variation: float = 2.0
    # The same for the exact integrals in ``information``. Doubled: single samples are wrong by more than 1e-2.
    crude_variation: float = 8.0
    # Relative increase of ``variation`` per unit by which a cell's log-share falls short. Doubled: errors 6e-5, 85% of the time.
    allowance: float = 0.3
    # Cells that can hold no more than exp(-negligible) of the total are left out. Doubled: the same errors, 1.7 times the time.
    negligible: float = 16.0
    # Excess of a cell's bound over its probes from which it is halved. Doubled: 90% of the time; a narrow peak may be missed.
    looseness: float = 2.0
    # Nodes along each axis of three Gauss-Hermite rules, in ever better frames. Doubled: errors of 2e-6, four times the work.
    quick_nodes: tuple[int, int, int] = (12, 16, 20)
    # Largest difference of the last two rules, in mean and square, that passes. Doubled: twice the errors where it serves.
    quick_tolerance: float = 5e-4
    # Scrambles of the Sobol points of ``information``, whose spread is the error. Doubled: known to 1/8 in place of 1/5.
    scrambles: int = 16
    # One in so many samples of ``information`` is integrated exactly. Doubled: half the time, errors up to sqrt(2) larger.
    correction_share: int = 32


ACCURACY = Accuracy()


class Sums(NamedTuple):
    """Integrals over (a_1, b_1) of every sample."""

    log_weight: Array  # (n,) logarithm of the density of the margins
    mean: Array  # (n, 4) of (a_1, b_1, a_2, b_2) less their prior means, in prior standard deviations
    square: Array  # (n, 4, 4) not centred, of the same
    rough: Array  # (n,) 1 where given up before it was accurate, or the weight may lie outside the square; else 0


class Samples(NamedTuple):
    """What the weight of a sample depends on, each (n,).

    ``ridge`` names the curve ``log((p + r) / (2 - p - r)) = ridge`` in the plane of t and v, along which the weight may be
    long and narrow. The first coordinate of a cell is the distance of t from that curve, in prior widths.
    """

    t: Array  # prior mean of beta (u_1 + u_2) / 2
    v: Array  # and of beta (u_1 - u_2)
    a2: Array  # prior means
    b2: Array
    slope: Array  # a_2 s^2 and M_11 - M_12, as the label has them
    margin: Array
    ridge: Array

    def taken(self, xp: ModuleType, index: Array) -> Samples:
        """The samples at these positions."""
        return Samples(*(xp.take(value, index) for value in self))


@dataclass(frozen=True)
class Weight:
    """The weight of a block of samples, apart from what differs between them."""

    beta: float  # inverse temperature
    skip: float  # c, the weight of the skip connection
    first: float  # V_11
    second: float  # V_22 given the first layer
    response: float  # V_12 / V_11: how far the second layer's mean moves with the first layer

    @property
    def units(self) -> tuple[float, float]:
        """Prior widths of ``t = beta (u_1 + u_2) / 2`` and ``v = beta (u_1 - u_2)``."""
        unit = self.beta * math.sqrt(self.first)
        return ROOT2 * unit, 2 * unit

    @property
    def lift(self) -> float:
        """How far a_2 and b_2 move with one prior width of a_1 and b_1."""
        return self.response * math.sqrt(self.first)

    @property
    def crossing(self) -> float:
        """``log((p + r) / (2 - p - r))`` on the curve s = 0, or 0 where s cannot vanish (c >= 1)."""
        return math.log((1 - self.skip) / (1 + self.skip)) if self.skip < 1 else 0.0

    def at(self, xp: ModuleType, own: Samples, a: Array, b: Array, p: Array, r: Array) -> tuple[Array, list[Array]]:
        """Log-weight and the four variables of ``Sums``, all arrays of one (broadcast) shape."""
        c = self.skip
        inverse = 1 / away(xp, p + r + (c - 1))
        a2 = own.slope * inverse * inverse
        b2 = (own.margin * inverse - ROOT2 * (2 * p + (c - 1)) * a2) * (1 / (1 + c))
        gap_a, gap_b = a2 - own.a2, b2 - own.b2
        rest_a, rest_b = gap_a - self.lift * a, gap_b - self.lift * b
        log_weight = (rest_a * rest_a + rest_b * rest_b) * (-0.5 / self.second) - (a * a + b * b) / 2
        log_weight = clip(log_weight + 3 * xp.log(xp.abs(inverse)), -HUGE, None)
        # where a_2 is out of all bounds the weight vanishes, and 0 times infinity must be 0
        scale = 1 / math.sqrt(self.second + self.response**2 * self.first)
        gaps = [clip(g, -HUGE, HUGE) * scale for g in (gap_a, gap_b)]
        return log_weight, [a, b, *gaps]

    def normalised(self, xp: ModuleType, sums: Array, top: Array) -> Sums:
        """``Sums`` of the raw sums (n, 15) in units of exp(top)."""
        total = sums[:, 0]
        constant = math.log((2 * math.pi) ** 2 * self.second * ROOT8 * (1 + self.skip))
        averages = sums[:, 1:] / total[:, None]
        index = [[4 + _PAIRS.index((min(i, j), max(i, j))) for j in range(4)] for i in range(4)]
        square = xp.stack([xp.stack([averages[:, k] for k in row], axis=-1) for row in index], axis=-2)
        return Sums(top + xp.log(total) - constant, averages[:, :4], square, xp.zeros_like(top))


def reduced(beta: float, skip: float, y: Array, omega: Array, V: Array) -> tuple[Array, Array, Weight]:
    """Margins (n, 2) of the label, prior means (n, 4) of (a_1, b_1, a_2, b_2), and the weight.

    Raises
    ------
    ValueError
        If V is not positive definite.
    """
    xp = namespace(y, omega, V)
    host = to_host(V).astype(np.float64)
    v1, v2, v12 = float(host[0, 0]), float(host[1, 1]), float((host[0, 1] + host[1, 0]) / 2)
    if not (v1 > 0 and v2 * v1 - v12 * v12 > 0):
        raise ValueError(f"V must be positive definite, got {host.tolist()}")
    labels = xp.astype(y, xp.float64)
    margins = [labels[:, 0, 0] - labels[:, 0, 1], labels[:, 1, 1] - labels[:, 1, 0]]
    seen = array_like(DIRECTIONS[:2], omega, xp.float64)
    centre = xp.reshape(xp.matmul(omega, xp.matrix_transpose(seen)), (-1, 4))
    return xp.stack(margins, axis=1) / beta, centre, Weight(beta, skip, v1, v2 - v12 * v12 / v1, v12 / v1)


def moments(xp: ModuleType, w: Array, variables: list[Array]) -> Array:
    """Sums (N, 15) of the weight (N, k, k), times each variable, times each pair."""
    weighted = [w * v for v in variables]
    columns = [w, *weighted, *(weighted[i] * variables[j] for i, j in _PAIRS)]
    return xp.stack([xp.sum(c, axis=(1, 2)) for c in columns], axis=1)


def logistic(xp: ModuleType, u: Array) -> Array:
    """``1 / (1 + exp(-u))``."""
    return 1 / (1 + xp.exp(clip(-u, -2 * FAR, 2 * FAR)))


def away(xp: ModuleType, s: Array) -> Array:
    """``s``, kept away from 0."""
    return xp.where(xp.abs(s) < TINY, TINY, s)


def ridge(xp: ModuleType, depth: Array, v: Array) -> Array:
    """The t at which ``log((p + r) / (2 - p - r)) = depth``, for given v: a quadratic equation for ``exp(-t)``; 0 at depth 0."""
    half = clip(v / 2, -FAR, FAR)
    decay = xp.exp(-xp.abs(depth))
    less, more = 2 * decay / (1 + decay), 2 / (1 + decay)
    spread = xp.exp(half)
    bend = (1 - decay) / (1 + decay) * (spread + 1 / spread)
    # solved for |depth|; the other sign exchanges t and -t
    t = xp.log((bend + xp.sqrt(bend * bend + 4 * less * more)) / (2 * less))
    return xp.where(depth > 0, t, -t)


def depth_of_ridge(xp: ModuleType, t: Array, v: Array) -> Array:
    """``log((p + r) / (2 - p - r))`` at t and v, the inverse of ``ridge``."""
    t, half = clip(t, -FAR, FAR), clip(v / 2, -FAR, FAR)
    e, k = xp.exp(-t), xp.exp(half) + xp.exp(-half)
    return xp.log(2 + e * k) - xp.log(k + 2 * e) + t
