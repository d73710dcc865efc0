r"""Hardmax of sequence multi-index models: of every row of ``z z^T`` only the position of its largest entry is seen.

A row of positive z_m points at the largest of all z, a row of negative z_m at the smallest. A label therefore splits the
tokens into (at most) two groups, each with a leader, and says, up to one overall sign: all of one group lie between zero and
their leader, above; all of the other between their leader and zero, below. The groups are independent given that sign, and a
group given its leader's value is a set of truncated Gaussian variables: what is left is one integral per group,

.. math::

    Z = \int_0^\infty dz\, N(z; \omega_1, V) \prod_{m > 1} P(0 < z_m < z),

whose integrand is log-concave.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend import clip, namespace, special, to_host
from smimbench.interfaces import Capabilities, ParameterError, Posterior, Uncertain
from smimbench.numerics.qmc import normal_points
from smimbench_channels.checks import check_latents, check_whole

if TYPE_CHECKING:
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = ["SequenceHardmax"]

Host = np.ndarray[Any, np.dtype[np.float64]]

LARGEST = 3
_LOG_DENSITY = -0.5 * math.log(2 * math.pi)
_REACH = 7.5  # standard deviations beyond which a normal variable is found with a probability of 1e-13
_DEPTH = 30.0
_NODES, _MODE_STEPS, _EDGE_STEPS = 40, 16, 5
_ELEMENTS = 1 << 20
_DEGREE, _POINTS = 10, 13
_TRUNCATION = 3e-4  # relative error left to the degree
_SCRAMBLES = 4
_BASE, _LAYER = 1 << 9, 1 << 7
_WIDTH = 1.5
_NEGLIGIBLE = 1e-12


@dataclass(frozen=True)
class SequenceHardmax:
    r"""Row-wise argmax of the scores of one attention layer with tied weights.

    .. math:: y_m = \arg\max_k z_m z_k

    Labels are integers (n, M); ``observable`` turns them into the attention matrix, one-hot rows (n, M, M). They do not
    change when z changes its sign or its length, and have no gradient. It is the limit of ``softmax`` with one layer when its
    scores are multiplied by a large number.

    Parameters
    ----------
    tokens : int
        M, 2 or 3; filled in from the model.

    Raises
    ------
    ParameterError
        For another number of tokens.

    References
    ----------
    Model of arXiv:2502.00901 with hardmax in the place of softmax; posterior derived, checked by
    tests/channels/test_sequence_hardmax.py.
    """

    tokens: int

    name: ClassVar[str] = "hardmax"
    version: ClassVar[int] = 2
    reference: ClassVar[str] = "arXiv:2502.00901"
    capabilities: ClassVar[Capabilities] = Capabilities(models=("sequence-multi-index",))
    symmetry: ClassVar[str] = "signs"
    components: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_whole("tokens", self.tokens, 2)
        if self.tokens > LARGEST:
            raise ParameterError("tokens", f"must be at most {LARGEST}, got {self.tokens}")

    def forward(self, z: Array, *, rng: np.random.Generator | None = None) -> Array:
        """Column of the largest entry of every row, integers (..., n, M), of latents ``z`` (..., n, 1, M).

        ``rng`` is not used: the channel is noiseless. ValueError if z has another shape.
        """
        check_latents(z, 1, self.tokens)
        xp, row = namespace(z), z[..., 0, :]
        highest = xp.argmax(row, axis=-1, keepdims=True)
        lowest = xp.argmin(row, axis=-1, keepdims=True)
        return xp.where(row > 0, highest, lowest)

    def observable(self, y: Array) -> Array:
        """Attention matrix with one-hot rows, (..., n, M, M), float64."""
        xp = namespace(y)
        columns = xp.arange(self.tokens, dtype=y.dtype, device=array_api_compat.device(y))
        return xp.astype(y[..., None] == columns, xp.float64)

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: np.random.Generator | None = None,
    ) -> Posterior:
        """Posterior of ``z ~ N(omega, V (x) I_M)`` given the positions of the row maxima.

        Parameters
        ----------
        y : integer array (n, M)
            Labels, as ``forward`` returns them.
        omega : array (n, 1, M)
            Means.
        V : array (1, 1)
            Variance, positive.
        second_moment : bool
            Also return ``E[z z^T]`` (n, 1, M, 1, M), not centred.
        rng : numpy.random.Generator, optional
            Not used: the integrals are exact.

        Returns
        -------
        Posterior

        Raises
        ------
        ValueError
            If a label cannot come from any latents.
        """
        xp = namespace(omega)
        width, found = self._moments(y, omega, V, second_moment)
        shift = width * found.shift
        spread = width**2 * xp.mean(found.square - found.shift**2)
        second = None
        if found.outer is not None:
            flat = xp.astype(omega[:, 0, :], xp.float64)
            cross = flat[:, :, None] * shift[:, None, :]
            second = flat[:, :, None] * flat[:, None, :] + cross + xp.matrix_transpose(cross)
            second = xp.astype((second + width**2 * found.outer)[:, None, :, None, :], omega.dtype)
        mean = omega + xp.astype(shift[:, None, :], omega.dtype)
        return Posterior(mean, xp.astype(xp.reshape(spread, (1, 1)), omega.dtype), second)

    def log_partition(self, y: Array, omega: Array, V: Array) -> Array:
        """``log P(y | omega, V)`` (n,), for arguments as those of ``posterior``."""
        found = self._moments(y, omega, V, False)[1]
        return namespace(omega).astype(found.log_partition, omega.dtype)

    def _moments(self, y: Array, omega: Array, V: Array, full: bool) -> tuple[Array, _Moments]:
        xp = namespace(omega)
        check_latents(omega, 1, self.tokens)
        leaders = xp.take_along_axis(y, y, axis=-1)
        different = xp.max(xp.where(y != y[:, :1], y, xp.full_like(y, -1)), axis=-1, keepdims=True)
        if bool(xp.any((leaders != y) | ((y != y[:, :1]) & (y != different)))):
            raise ValueError("labels must name at most two tokens, each of which names itself")
        width = xp.sqrt(xp.astype(V[0, 0], xp.float64))
        return width, _posterior(y, xp.astype(omega[:, 0, :], xp.float64) / width, full)

    def information(self, Q: Array, V: Array) -> Uncertain:
        """``E sum_m g_m^2`` (..., 1, 1) with ``omega ~ N(0, Q)``; leading axes are a batch, inf at V = 0.

        A polynomial in ``sqrt(V / (Q + V))`` that is made when it is first asked for, and kept; its error is one standard
        error of the points that it goes through, and what a polynomial of half the degree would have missed, squared.
        """
        xp = namespace(Q, V)
        q, v = np.broadcast_arrays(*(to_host(array).astype(np.float64) for array in (Q, V)))
        total = np.where(q + v > 0, q + v, 1.0)
        ratio, error = _curve(self.tokens)(np.sqrt(v / total))
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = np.where(v > 0, q / total / np.sqrt(v * total), np.inf)
        place = {"dtype": Q.dtype, "device": array_api_compat.device(Q)}
        value, error = (xp.asarray(a * scale, **place) for a in (ratio, error))
        return Uncertain(value, error, "fit through Monte Carlo")

    def susceptibility(self, Q: Array, V: Array) -> Uncertain:
        """How the information starts, ``I = lambda Q`` to first order, where Q = 0; 0 elsewhere. (..., 1, 1).

        ``lambda = E sum_mk (E[z_m z_k | y] - V delta_mk)^2 / V^4``: a sum over labels, without sampling.
        """
        value = (Q == 0.0) * _without_overlap(self.tokens) / (V * V)
        return Uncertain(value, 1e-10 * value, "quadrature")


# -- posterior, in units of the prior's standard deviation ------------------------------------------------------------


class _Moments(NamedTuple):
    """``e = (z - omega) / sqrt(V)``: its mean (n, M), mean square (n, M) and outer product (n, M, M) or None."""

    log_partition: Array
    shift: Array
    square: Array
    outer: Array | None


def _posterior(y: Array, a: Array, full: bool) -> _Moments:
    """Moments given labels ``y`` (n, M) and means ``a`` (n, M); in blocks that keep the nodes of the integrals small."""
    xp = namespace(a)
    block = max(1, _ELEMENTS // (4 * _NODES * a.shape[1]))
    starts = range(0, max(1, a.shape[0]), block)
    blocks = [slice(k, min(k + block, a.shape[0])) for k in starts]
    parts = [_posterior_of_block(xp, y[rows, :], a[rows, :], full) for rows in blocks]
    if len(parts) == 1:
        return parts[0]
    return _Moments(
        *(None if p[0] is None else xp.concat(p) for p in (list(values) for values in zip(*parts)))
    )


def _posterior_of_block(xp: ModuleType, y: Array, a: Array, full: bool) -> _Moments:
    n, M = a.shape
    place = xp.arange(M, dtype=y.dtype, device=array_api_compat.device(y))[None, :]
    first = y == y[:, :1]
    other = xp.max(xp.where(first, xp.full_like(y, -1), y), axis=-1, keepdims=True)
    member = xp.concat([first, first, ~first, ~first])
    leader = xp.concat([place == y[:, :1], place == y[:, :1], place == other, place == other])
    # the first group above and below zero, then the second
    signs = [1.0, -1.0, -1.0, 1.0]
    found = _cones(xp, xp.concat([sign * a for sign in signs]), member, leader, full)
    parts = [_Moments(*(None if v is None else v[k * n : (k + 1) * n, ...] for v in found)) for k in range(4)]
    logs = [parts[0].log_partition + parts[2].log_partition, parts[1].log_partition + parts[3].log_partition]
    log_partition = xp.logaddexp(*logs)
    shift, square, outer = xp.zeros_like(a), xp.zeros_like(a), None
    for k, log in enumerate(logs):
        weight = xp.exp(log - log_partition)[:, None]
        own, rest = (signs[j] * parts[j].shift for j in (k, k + 2))
        shift = shift + weight * (own + rest)
        square = square + weight * (parts[k].square + parts[k + 2].square)
        one, two = parts[k].outer, parts[k + 2].outer
        if one is not None and two is not None:
            mixed = own[:, :, None] * rest[:, None, :]
            term = weight[:, :, None] * (one + two + mixed + xp.matrix_transpose(mixed))
            outer = term if outer is None else outer + term
    return _Moments(log_partition, shift, square, outer)


def _cones(xp: ModuleType, a: Array, member: Array, leader: Array, full: bool) -> _Moments:
    """``z ~ N(a, I)`` with ``0 < z_m < z_leader`` for the other members: log-probability and moments; 0 for the rest."""
    count = xp.sum(xp.astype(member, xp.int64), axis=-1)
    zero = xp.zeros_like(a)
    top = xp.sum(xp.where(leader, a, zero), axis=-1)
    # alone, a leader only has to be positive
    log = special(xp).log_ndtr(top)
    hazard = xp.exp(_LOG_DENSITY - top * top / 2 - log)
    alone = count == 1
    shift = xp.where(leader, hazard[:, None], zero)
    square = xp.where(leader, 1 - (top * hazard)[:, None], zero)
    log = xp.where(alone, log, xp.zeros_like(log))
    outer = None
    if full:
        same = xp.eye(a.shape[1], dtype=a.dtype, device=array_api_compat.device(a))
        outer = square[:, :, None] * same
    index = xp.nonzero(count > 1)[0]
    if index.shape[0] == 0:
        return _Moments(log, shift, square, outer)
    found = _integrate(xp, *(xp.take(values, index, axis=0) for values in (a, member, leader)), full)
    position = clip(xp.cumulative_sum(xp.astype(count > 1, xp.int64)) - 1, 0, None)

    def merged(old: Array | None, new: Array | None) -> Array | None:
        if old is None or new is None:
            return None
        chosen = xp.reshape(count > 1, (-1, *[1] * (old.ndim - 1)))
        return xp.where(chosen, xp.take(new, position, axis=0), old)

    return _Moments(*(merged(old, new) for old, new in zip((log, shift, square, outer), found)))


class _Truncated(NamedTuple):
    """A standard normal variable between ``low`` and ``high``: log-probability, and density over it at both ends."""

    log_mass: Array
    at_low: Array
    at_high: Array


def _truncated(xp: ModuleType, low: Array, high: Array) -> _Truncated:
    # on the side where probabilities are small
    mirror = low + high > 0
    one, two = xp.where(mirror, -high, low), xp.where(mirror, -low, high)
    logs = special(xp).log_ndtr(xp.stack([one, two]))
    gap = xp.minimum(logs[0, ...] - logs[1, ...], xp.full_like(one, -1e-300))
    log_mass = logs[1, ...] + xp.log(-xp.expm1(gap))
    at_low, at_high = (xp.exp(_LOG_DENSITY - x * x / 2 - log_mass) for x in (low, high))
    return _Truncated(log_mass, at_low, at_high)


def _integrate(xp: ModuleType, a: Array, member: Array, leader: Array, full: bool) -> _Moments:
    """``_cones`` for two members or more: Gauss-Legendre's rule in ``t = z_leader - a_leader``."""
    zero = xp.zeros_like(a)
    others = member & ~leader
    top = xp.sum(xp.where(leader, a, zero), axis=-1)
    low = -a

    def height(t: Array) -> tuple[Array, Array, Array]:
        """Logarithm of the integrand, its slope and curvature."""
        high = (top + t)[:, None] - a
        at = _truncated(xp, low, high)
        slope = xp.sum(xp.where(others, at.at_high, zero), axis=-1) - t
        bend = -1 - xp.sum(xp.where(others, at.at_high * (high + at.at_high), zero), axis=-1)
        return xp.sum(xp.where(others, at.log_mass, zero), axis=-1) - t * t / 2, slope, bend

    floor = -top
    most = xp.max(xp.where(member, xp.maximum(a, zero), zero), axis=-1)
    left, right = floor, most - top + 10.0
    mode = xp.maximum(xp.zeros_like(top), floor + 1e-3)
    for _ in range(_MODE_STEPS):
        _, slope, bend = height(mode)
        left, right = xp.where(slope > 0, mode, left), xp.where(slope > 0, right, mode)
        trial = mode - slope / bend
        mode = xp.where((trial > left) & (trial < right), trial, (left + right) / 2)
    best = height(mode)[0]
    # from outside, Newton's steps towards a given height of a concave function never pass it
    end = mode + _REACH
    for _ in range(_EDGE_STEPS):
        value, slope, _ = height(end)
        step = (best - _DEPTH - value) / xp.minimum(slope, xp.full_like(slope, -1e-300))
        end = xp.where(value < best - _DEPTH, xp.maximum(end + step, mode), end)
    begin = xp.maximum(floor, mode - _REACH)
    x, w = _rule(_NODES)
    device = array_api_compat.device(a)
    x, w = (xp.asarray(v, dtype=a.dtype, device=device)[None, :] for v in (x, w))
    half = (end - begin)[:, None] / 2
    t = begin[:, None] + half * (1 + x)
    high = (top[:, None] + t)[:, :, None] - a[:, None, :]
    below = xp.broadcast_to(low[:, None, :], high.shape)
    at = _truncated(xp, below, high)
    masked = xp.broadcast_to(others[:, None, :], high.shape)
    nothing = xp.zeros_like(high)
    log = xp.sum(xp.where(masked, at.log_mass, nothing), axis=-1) - t * t / 2
    best = xp.max(log, axis=-1)
    weight = w * half * xp.exp(log - best[:, None])
    mass = xp.sum(weight, axis=-1)
    weight = (weight / mass[:, None])[:, :, None]
    lead = xp.broadcast_to(leader[:, None, :], high.shape)
    mean = xp.where(masked, clip(at.at_low - at.at_high, below, high), nothing)
    mean = xp.where(lead, t[:, :, None], mean)
    ends = xp.maximum(below**2, high**2)
    second = xp.where(masked, clip(1 + below * at.at_low - high * at.at_high, mean**2, ends), nothing)
    second = xp.where(lead, (t * t)[:, :, None], second)
    shift, square = xp.sum(weight * mean, axis=1), xp.sum(weight * second, axis=1)
    outer = None
    if full:
        outer = xp.matmul(xp.matrix_transpose(weight * mean), mean)
        same = xp.eye(a.shape[1], dtype=a.dtype, device=device)
        outer = outer * (1 - same) + square[:, :, None] * same
    return _Moments(xp.log(mass) + best + _LOG_DENSITY, shift, square, outer)


@cache
def _rule(count: int) -> tuple[Host, Host]:
    x, w = np.polynomial.legendre.leggauss(count)
    return x, w


# -- means over labels ------------------------------------------------------------------------------------------------


@cache
def _labels(tokens: int) -> np.ndarray[Any, Any]:
    """All labels (K, M)."""
    rows = itertools.product(range(tokens), repeat=tokens)
    return np.array([y for y in rows if len(set(y)) <= 2 and all(y[m] == m for m in y)])


@cache
def _without_overlap(tokens: int) -> float:
    """The susceptibility at V = 1."""
    labels = _labels(tokens)
    found = _posterior(labels, np.zeros(labels.shape), True)
    G = np.asarray(found.outer) - np.eye(tokens)
    return float(np.exp(found.log_partition) @ np.sum(G**2, axis=(1, 2)))


@cache
def _small_error_constant(tokens: int) -> float:
    r"""Limit of ``sqrt(V (Q + V)) * information`` as V -> 0.

    .. math::

        \int \frac{\phi^2}{\Phi (1 - \Phi)} \; \frac{1}{\sqrt{2\pi}} \Big( M + M (M - 1) \int_0^\infty dv\, N(v; 0, 1/2)
        \Phi(v)^{M-2} \Big)

    Labels change where a token changes its sign, and where the two largest positive (or the two lowest negative) tokens meet;
    near such a plane a label tells what the sign of one Gaussian variable does. Checked by
    tests/channels/test_sequence_hardmax.py.
    """
    x, w = _rule(200)
    one = 14 * float(np.sum(w * _tie(14 * x)))
    return one * (tokens + tokens * (tokens - 1) * _leading_share(tokens) / 2) / math.sqrt(2 * math.pi)


class _Curve(NamedTuple):
    """``sqrt(V (Q + V)) (Q + V) / Q * information`` as polynomials in ``s = sqrt(V / (Q + V))``, one for each scramble."""

    coefficients: Host

    def __call__(self, s: Host) -> tuple[Host, Host]:
        values = np.polynomial.chebyshev.chebval(2 * s - 1, self.coefficients)
        mean = values.mean(axis=0)
        noise = values.std(axis=0, ddof=1) / math.sqrt(len(values))
        return mean, np.hypot(noise, _TRUNCATION * mean)


@cache
def _curve(tokens: int) -> _Curve:
    """Least squares through Chebyshev's points, exact at both ends."""
    s = (1 - np.cos(math.pi * np.arange(_POINTS) / (_POINTS - 1))) / 2
    values = np.empty((_POINTS, _SCRAMBLES))
    values[0], values[-1] = _small_error_constant(tokens), _without_overlap(tokens)
    for k in range(1, _POINTS - 1):
        values[k] = _at(tokens, float(s[k]))
    spread = np.maximum(values.std(axis=1, ddof=1), 1e-5)
    basis = np.polynomial.chebyshev.chebvander(2 * s - 1, _DEGREE)
    fit = np.linalg.pinv(basis / spread[:, None], rcond=1e-14) / spread
    return _Curve(fit @ values)


def _at(tokens: int, s: float) -> Host:
    """Estimates (scrambles,) of the curve at ``V = s^2, Q = 1 - s^2``.

    Only omega is sampled: all labels are summed with their probabilities. Where V is small labels tell something
    only near the planes on which they change, so a part of the points lies in layers around these planes, and every point is
    weighted by the density of the mixture. What a label tells of a lonely plane has a known mean and is a control variate.
    """
    q = 1.0 - s * s
    unit = np.eye(tokens)
    pairs = [(a, b) for b in range(tokens) for a in range(b)]
    planes = np.stack([*unit, *((unit[a] - unit[b]) / math.sqrt(2) for a, b in pairs)])
    ratio = s / math.sqrt(q)
    width = min(1.0, _WIDTH * ratio)
    tie = _mean_tie(ratio)
    meeting = _leading_share(tokens)
    estimates = []
    for scramble in range(_SCRAMBLES):
        points = [normal_points(tokens, _BASE, "sequence hardmax: base", scramble)]
        for k, plane in enumerate(planes):
            normal = normal_points(tokens, _LAYER, "sequence hardmax: layer", scramble, k)
            points.append(normal - (1 - width) * np.outer(normal @ plane, plane))
        omega = np.concatenate(points)
        distance = omega @ planes.T
        denser = np.exp(-0.5 * distance**2 * (1 / width**2 - 1)) / width
        weight = 1 / (_BASE + _LAYER * denser.sum(axis=1))
        ties = _tie(distance / ratio)
        first = np.stack([_leads(omega, a, b) for a, b in pairs], axis=1)
        known = np.concatenate([np.ones((len(omega), 1)), ties, ties[:, tokens:] * first], axis=1)
        means = np.concatenate([[1.0], np.full(len(planes), tie), np.full(len(pairs), tie * meeting)])
        total = np.zeros(len(omega))
        for label in _labels(tokens):
            likely = np.flatnonzero(_at_most(label, omega / ratio) > _NEGLIGIBLE)
            found = _posterior(np.broadcast_to(label, (len(likely), tokens)), omega[likely] / ratio, False)
            total[likely] += np.exp(found.log_partition) * np.sum(found.shift**2, axis=1)
        slope = np.linalg.lstsq(known * weight[:, None], total * weight, rcond=1e-10)[0]
        estimates.append(float(weight @ (total - known @ slope) + means @ slope) / (s * q))
    return np.array(estimates)


def _at_most(label: np.ndarray[Any, Any], a: Host) -> Host:
    """An upper bound (n,) of the probability of a label: that of its least likely inequality, for both signs."""
    from scipy.special import ndtr

    above = np.where(label == label[0], 1.0, -1.0)
    gap = (a[:, label] - a) / math.sqrt(2)
    followers = label != np.arange(len(label))
    bounds = [
        np.minimum(ndtr(sign * a), np.where(followers, ndtr(sign * gap), 1.0)).min(axis=1)
        for sign in (above, -above)
    ]
    return np.asarray(sum(bounds))


def _tie(k: Host) -> Host:
    """``phi^2 / (Phi (1 - Phi))``, what the sign of a variable at k standard deviations tells on average."""
    from scipy.special import log_ndtr

    return np.asarray(np.exp(-k * k - log_ndtr(k) - log_ndtr(-k)) / (2 * math.pi))


def _mean_tie(ratio: float) -> float:
    """Mean of ``_tie(x / ratio)`` over a standard normal x."""
    x, w = _rule(200)
    reach = min(10.0, 14.0 * ratio)
    gauss = np.exp(-((reach * x) ** 2) / 2) / math.sqrt(2 * math.pi)
    return float(np.sum(reach * w * gauss * _tie(reach * x / ratio)))


def _leads(omega: Host, a: int, b: int) -> Host:
    """Whether the middle of tokens a and b is positive and above all other tokens, or negative and below them; 0 or 1."""
    middle = (omega[:, a] + omega[:, b]) / 2
    rest = np.delete(omega, [a, b], axis=1) * np.sign(middle)[:, None]
    return np.asarray((rest < np.abs(middle)[:, None]).all(axis=1), dtype=float)


def _leading_share(tokens: int) -> float:
    """Mean of ``_leads``."""
    from scipy.special import ndtr

    x, w = _rule(200)
    v = 4 * (x + 1)
    return 8 * float(np.sum(w * np.exp(-(v**2)) * ndtr(v) ** (tokens - 2))) / math.sqrt(math.pi)
