"""Hardmax attention channel: only the position of the largest entry of every row is observed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from smimbench.backend import namespace
from smimbench.interfaces import Array, ParameterError, Posterior, Uncertain
from smimbench.interfaces.checks import check_latents, check_whole
from smimbench.numerics import gauss_hermite, half_plane_hermite, monte_carlo_rng
from smimbench_attention.channels.attention.hardmax.exact import (
    check_labels,
    row_posterior,
)
from smimbench_attention.channels.attention.hardmax.gibbs import (
    SWEEPS,
    exact_moments,
    gibbs_moments,
)
from smimbench_attention.channels.attention.hardmax.information import (
    EXACT,
    SCRAMBLES,
    information_curve,
)
from smimbench_attention.channels.attention.hardmax.two_tokens import (
    ROOT2,
    two_token_information,
    two_token_log_partition,
    two_token_posterior,
)
from smimbench_attention.channels.common import (
    AttentionChannel,
    HardmaxChannel,
    on_host,
    shifted_second_moment,
    uncertain_like,
)


@dataclass(frozen=True)
class AttentionHardmax(HardmaxChannel, AttentionChannel):
    r"""Hardmax attention channel: row-wise argmax of the logits, the limit beta -> infinity of ``softmax``.
    ``sweeps`` is the number of updates of all latents by each Gibbs chain of a posterior, ``samples`` that of labels drawn at
    each point of the information curve.

    .. math::

        y_a = \arg\max_b h_{ab}, \qquad h_{ab} = h_{ba} = \sqrt{1 + \delta_{ab}}\, z_{ab}

    Labels are integers (n, T), the column of the largest entry of every row; ``observable`` turns them into
    the attention matrix, one-hot rows (n, T, T). There is no gradient: the label does not change with small
    changes of the latents.

    Parameters
    ----------
    tokens : int
        T, from 2 to 16; filled in from the model.
    sweeps : int or None
        Gibbs sweeps that each of two chains averages for the posterior. Default: none up to 5 tokens, whose
        posterior is integrated, and 64 beyond.
    samples : int or None
        Labels that are drawn for each of the points of the information curve, three tokens or more; rounded
        to a power of 2. Default: as many as take some ten seconds, for an error of two or three parts in a
        thousand.

    Raises
    ------
    ParameterError
        For values out of range, and for ``samples`` with two tokens, whose information is integrated.

    Notes
    -----
    For two tokens the posterior is that of two correlated Gaussian variables of known sign: everything
    follows from the gradient of ``log Phi2``. (The ratio of density to distribution function, which is used
    in the numerical part of arXiv:2506.01582, equals that gradient in one dimension only.)

    For three to five tokens it is a nested integral over the row maxima, good to 1e-5; labels that were
    unlikely (1e-8) under ``omega``, and all labels of more tokens, are left to a Gibbs sampler, whose error
    is reported. It averages conditional means, so its noise enters an estimate of the information with about
    1 / (2 sweeps).

    References
    ----------
    arXiv:2506.01582; posterior derived, checked by tests/channels/attention/test_attention_hardmax.py
    and tests/channels/attention/test_attention_hardmax_many.py.
    """

    tokens: int
    sweeps: int | None = None  # of each Gibbs chain
    samples: int | None = None  # labels drawn at each point of the information curve

    beta = math.inf
    _maximum_tokens = 16  # largest number tested; doubled: a Gibbs sweep draws four times as many entries

    def __post_init__(self) -> None:
        """Check that the numbers of tokens, of sweeps and of samples are within their limits."""
        super().__post_init__()
        if self.sweeps is not None:
            check_whole("sweeps", self.sweeps, 2, 1 << 20)
        if self.samples is not None:
            check_whole("samples", self.samples, 2 * SCRAMBLES, 1 << 24)
            if self.tokens == 2:
                raise ParameterError(
                    "samples", "has no effect with two tokens and must be left out"
                )

    def forward(self, z: Array, *, rng: np.random.Generator | None = None) -> Array:
        """Column of the largest attention logit of every row, integers (..., n, T), for latents ``z`` (..., n, 1, C) of all pairs
        of tokens.

        ``rng`` is not used: the channel is noiseless. ValueError if z has another shape.
        """
        check_latents(z, 1, self.sites)
        return namespace(z).argmax(self._logit_matrix(z[..., 0, :]), axis=-1)

    @property
    def log_partition(self) -> Callable[[Array, Array, Array], Array] | None:  # type: ignore[override]
        """Function for the log-probability ``log P(y | omega, V)`` (n,) of labels; None for more than 5 tokens.

        Labels less likely than 1e-8 may be given too little with three tokens or more.
        """
        if self.tokens > EXACT:
            return None
        return two_token_log_partition if self.tokens == 2 else self._log_partition

    def _log_partition(self, y: Array, omega: Array, V: Array) -> Array:
        """Log-probability ``log P(y | omega, V)`` (n,) of the labels of three to five tokens, by nested integrals."""
        xp = namespace(omega)
        check_latents(omega, 1, self.sites)
        check_labels(y)
        flat_omega = xp.astype(omega[:, 0, :], xp.float64)
        variance = xp.astype(V[0, 0], xp.float64)
        return xp.astype(
            row_posterior(y, flat_omega, variance, self.tokens).log_partition,
            omega.dtype,
        )

    def posterior(
        self,
        y: Array,
        omega: Array,
        V: Array,
        *,
        second_moment: bool = False,
        rng: Generator | None = None,
    ) -> Posterior:
        """Posterior of ``z ~ N(omega, V (x) I_C)`` given labels y, the columns of the row maxima, which are integrated or sampled
        by Gibbs chains.

        ``y`` (n, T), integers, ``omega`` (n, 1, C), ``V`` (1, 1), positive, ``second_moment`` (n, 1, C, 1, C). ``rng`` is for
        the Gibbs sampler; default: a fixed seed. With three tokens or more ValueError if a label cannot come from a symmetric
        matrix.
        """
        if self.tokens == 2 and self.sweeps is None:
            check_latents(omega, 1, self.sites)
            return two_token_posterior(y, omega, V, second_moment=second_moment)
        rng = monte_carlo_rng("attention hardmax: posterior") if rng is None else rng
        return self._integrated_or_sampled(y, omega, V, second_moment, rng)

    @property
    def posterior_without_wait(
        self,
    ) -> Callable[[Array, Array, Array], Posterior] | None:
        """Function for the posterior of labels y, for a device, which is not asked whether all of them could be integrated: the
        error is infinite if not. None where ``posterior`` does not ask.
        """
        if self.tokens == 2 or self.tokens > EXACT or self.sweeps is not None:
            return None
        return lambda y, omega, V: self._integrated_or_sampled(y, omega, V, False, None)

    def _integrated_or_sampled(
        self,
        y: Array,
        omega: Array,
        V: Array,
        second_moment: bool,
        rng: Generator | None,
    ) -> Posterior:
        """Posterior by nested integrals, and by Gibbs chains where they do not serve; infinite error there without an ``rng``."""
        check_latents(omega, 1, self.sites)
        xp = namespace(omega)
        flat_omega = xp.astype(omega[:, 0, :], xp.float64)
        variance = xp.astype(V[0, 0], xp.float64)
        moment_arguments = (y, flat_omega, variance, self.tokens, rng, second_moment)
        if self.sweeps is None and self.tokens <= EXACT:
            moments = exact_moments(*moment_arguments)
        else:
            assert rng is not None
            check_labels(y)
            moments = gibbs_moments(
                y, flat_omega, variance, self.tokens, rng, second_moment,
                sweeps=self.sweeps or SWEEPS,
            )  # fmt: skip
        mean_shift = xp.sqrt(variance) * moments.shift
        second_moment_of_z = None
        if moments.outer is not None:
            second_moment_of_z = shifted_second_moment(
                flat_omega, mean_shift, variance * moments.outer, omega.dtype
            )
        covariance = xp.astype(
            xp.reshape(variance * xp.mean(moments.variance), (1, 1)), omega.dtype
        )
        return Posterior(
            xp.astype((flat_omega + mean_shift)[:, None, :], omega.dtype),
            covariance,
            second_moment_of_z,
            xp.sqrt(xp.mean(moments.square_error)),
        )

    def information(self, Q: Array, V: Array) -> Uncertain:
        """Information ``E sum_c g_c^2`` (..., 1, 1) of labels, ``g = (E[z | y] - omega) / V`` the score, with ``omega ~ N(0,
        Q)``; leading axes are a batch, inf at V = 0.

        Two tokens: quadrature. More: a curve in ``sqrt(V / (Q + V))`` is estimated from randomized samples
        when it is first asked for, and kept; its error is one standard error.
        """
        q, v = on_host(Q, V)
        if self.tokens == 2:
            value, error = two_token_information(q.ravel(), v.ravel())
            method = "quadrature"
        else:
            value, error = information_curve(
                self.tokens, self.sample_count, q.ravel(), v.ravel()
            )
            method = "fit through Monte Carlo"
        return uncertain_like(Q, value.reshape(q.shape), error.reshape(q.shape), method)

    @property
    def sample_count(self) -> int:
        """Number of labels drawn for each point of the information curve."""
        if self.samples is not None:
            return self.samples
        log2_samples = {3: 17, 4: 16, 5: 15}
        return 1 << log2_samples.get(
            self.tokens, int(math.log2((1 << 20) / self.sites))
        )

    def generalization_error(self, Q: Array, V: Array) -> dict[str, Uncertain]:
        """Squared-norm error of the predicted attention matrix on a new sample, summed over its entries, at overlap Q and error
        V, by predictor (bayes, plugin, constant); a predictor's error is the probability that the argmax of a row differs between
        two ``replicas`` of the posterior, or between truth and estimate, times a ``cost_per_row``.

        ``Q`` and ``V`` (..., 1, 1), results (...). ``"bayes"``: the posterior mean of the one-hot rows; ``"plugin"``: the
        argmax of the estimated indices; ``"constant"``: the best matrix that ignores the input.
        """
        q, v = (array[..., 0, 0] for array in on_host(Q, V))
        T = self.tokens
        method = "closed form" if T == 2 else "quadrature"
        error_by_predictor = {}
        # The posterior mean errs as often as two posterior draws disagree; a wrong one-hot row costs 2.
        for predictor, replicas, cost_per_row in (
            ("bayes", True, 1),
            ("plugin", False, 2),
        ):
            disagreement_and_error = disagreement(
                T, q.ravel(), v.ravel(), replicas=replicas
            )
            value, error = (
                cost_per_row * T * array.reshape(q.shape)
                for array in disagreement_and_error
            )
            error_by_predictor[predictor] = uncertain_like(Q, value, error, method)
        diagonal_probability = diagonal_win_probability(T)
        constant_error = np.full(
            q.shape,
            T
            * (1 - diagonal_probability**2 - (1 - diagonal_probability) ** 2 / (T - 1)),
        )
        error_by_predictor["constant"] = uncertain_like(
            Q, constant_error, np.full(q.shape, 1e-14), method
        )
        return error_by_predictor


# Nodes along the first axis of two Gauss-Hermite rules: the larger is the answer, the difference the error. Doubled: an
# error of 1e-14 in place of 1e-12, at four times the time.
NODES = (96, 64)


def diagonal_win_probability(tokens: int) -> float:
    """Probability that the diagonal entry (variance 2) of a row of T = ``tokens`` logits exceeds its T - 1 other entries
    (variance 1), by Gauss-Hermite nodes and weights for the diagonal.
    """
    from scipy.special import ndtr

    nodes, weights = gauss_hermite(128)
    return float(np.sum(weights * ndtr(ROOT2 * nodes) ** (tokens - 1)))


def disagreement(
    tokens: int, q: Array, v: Array, *, replicas: bool
) -> tuple[Array, Array]:
    r"""Probability (N,) that the argmax of a row differs between two correlated matrices of T = ``tokens`` tokens at overlap q
    and error v (N,), and its error: two draws from the posterior if ``replicas``, else a draw and the estimate.

    A row holds one entry of variance 2 (its diagonal) and T - 1 of variance 1, all independent. The copies
    are two draws from the posterior (``replicas``, correlation :math:`\rho = q / (q + V)`) or a draw and the
    estimate (correlation :math:`\sqrt{q / (q + V)}`). For two tokens it is :math:`\arccos(\rho) / \pi`;
    otherwise, with the entry that wins in both copies, :math:`(a, b)`, integrated over and the T - 1 losers
    independent of it,

    .. math::

        1 - \int \phi_2(a, b) \Phi_2(\sqrt2 a, \sqrt2 b)^{T-1}
          - (T-1) \int \phi_2(a, b) \Phi_2(a, b)^{T-2} \Phi_2(a / \sqrt2, b / \sqrt2)
    """
    # the half angle keeps its digits when the copies nearly coincide
    if replicas:
        half_angle = np.arcsin(np.sqrt(v / (2 * (q + v))))
    else:
        half_angle = np.arctan2(np.sqrt(v), np.sqrt(q)) / 2
    if tokens == 2:
        disagreement_probability = 2 * half_angle / math.pi
        return disagreement_probability, 4e-16 * disagreement_probability
    fine_value, coarse_value = (
        np.array(
            [
                _disagreement_by_quadrature(tokens, angle, node_count)
                for angle in half_angle
            ]
        )
        for node_count in NODES
    )
    return fine_value, np.abs(fine_value - coarse_value) + 1e-15


def _disagreement_by_quadrature(tokens: int, angle: float, node_count: int) -> float:
    """Probability that the argmax of a row of T = ``tokens`` logits differs between two correlated copies, whose correlation is
    cos(2 ``angle``), by ``node_count`` nodes along each axis of a Gauss-Hermite rule for mean and difference of the two copies'
    largest logits.
    """
    # the two copies may be exchanged
    (mean_coordinate, difference_coordinate), quadrature_weights = half_plane_hermite(
        node_count
    )
    if angle == 0:
        return 0.0
    probability_both_below = [
        _probability_both_below(
            mean_coordinate, difference_coordinate, angle, bound_scale
        )
        for bound_scale in (ROOT2, 1.0, 1 / ROOT2)
    ]
    agreement_probability = (
        probability_both_below[0] ** (tokens - 1)
        + (tokens - 1)
        * probability_both_below[1] ** (tokens - 2)
        * probability_both_below[2]
    )
    return float(1 - np.sum(quadrature_weights * agreement_probability))


def _probability_both_below(
    mean_coordinate: Array, difference_coordinate: Array, angle: float, scale: float
) -> Array:
    """Probability ``Phi2(scale a, scale b)`` that two standard normals of correlation cos(2 angle) stay below ``bound_a`` and
    ``bound_b``: a, b = cos(angle) m +- sin(angle) d, where m is ``mean_coordinate`` and d ``difference_coordinate``. It is
    computed from Owen's T function.
    """
    from scipy.special import ndtr, owens_t

    cosine = math.cos(angle)
    sine = math.sin(angle)
    bound_a = cosine * mean_coordinate + sine * difference_coordinate
    bound_b = cosine * mean_coordinate - sine * difference_coordinate
    bound_a = np.where(bound_a == 0, 1e-200, bound_a)
    bound_b = np.where(bound_b == 0, 1e-200, bound_b)
    # (b - rho a) / (a sqrt(1 - rho^2)), free of the cancellation at small angles
    owen_ratio_a = (sine * mean_coordinate - cosine * difference_coordinate) / bound_a
    owen_ratio_b = (sine * mean_coordinate + cosine * difference_coordinate) / bound_b
    sign_correction = np.where(bound_a * bound_b < 0, 0.5, 0.0)
    bound_a = scale * bound_a
    bound_b = scale * bound_b
    return (
        (ndtr(bound_a) + ndtr(bound_b)) / 2
        - owens_t(bound_a, owen_ratio_a)
        - owens_t(bound_b, owen_ratio_b)
        - sign_correction
    )
