"""Points of the mixture from which deep attention is sampled, and their weights: compiled, for one label.

Points stand in the columns of a table, up to 64 at a time. Inner loops run along its rows without branches, so that the
compiler turns them into vector instructions. ``deep`` says what the mixture is made of.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from smimbench.interfaces import Host
from smimbench_attention.channels.compiling import (
    allocation_free,
    bounded_log,
    exp,
    inline,
    one_minus_exp,
)

BATCH_POINTS, STRIDE = (
    64,
    72,
)  # points at once, and numbers from row to row: a power of two would make rows share their cache lines
CENTERS = 8
"""Gaussians of a sample. Doubled: a third more time, a tenth less error."""

# Rows of the table of points. By layer and token: whitened latents (XI), latents less their prior means (DZ), latents (Z), DZ
# averaged over the signs that no label sees (SHIFT), this times the weight (WEIGHTED), work space (SPARE).
XI, DZ, Z, SHIFT, WEIGHTED, SPARE = range(0, 48, 8)
# By token: the last layer's latents that give the label (SOLVED), and their mean given the other layers (CENTER).
SOLVED, CENTER = 48, 51
# Half the squared norm of XI (ENERGY); log-density of the point and the label, up to |det B|, for either sign of the outputs
# (PLUS, MINUS); 1, or 0 where no point could be drawn (EXISTS); logarithm of the weight, later the weight (WEIGHT); entries and
# determinant of the product of attention matrices (OFF_1, OFF_2, DET), the latter without its last layer (INNER); difference of
# the two tokens that its last layer sees (SIDE); largest log-density of a component of the mixture (LARGEST_LOG); density of the
# mixture over its exponential (DENSITY); log-density of the third component (GAP), to be multiplied by FACTOR.
(
    ENERGY,
    PLUS,
    MINUS,
    EXISTS,
    WEIGHT,
    OFF_1,
    OFF_2,
    DET,
    INNER,
    SIDE,
    LARGEST_LOG,
    DENSITY,
    GAP,
    FACTOR,
) = range(54, 68)
# Log-density of each Gaussian (NORMAL); probability of each layer's other sign (FLIPPED), covariance of the signs of each pair
# of layers (PAIRS), and relative weight of each choice of signs for all layers (GAINS).
NORMAL, FLIPPED, PAIRS, GAINS = 68, 76, 80, 96
ROWS = 112

SMALLEST_DIVISOR, LEAST_DETERMINANT = (
    1e-300,
    1e-70,
)  # determinants below the second count as it: large numbers without weight, but never infinite
LEAST_GAP, LARGEST_GAP = 1e-3, 3.0
"""Where differences of two tokens are drawn uniformly in the logarithm. The former halved: outputs closer than 1e-18 are met."""
SIZE_SHARE = 0.25
"""Share of the differences drawn by size, in each layer. Doubled: a tenth more error at c = 1, less where c is tiny."""
GAUSSIAN_WIDTH = 1.3
"""Width of the Gaussians over what the curvature at their centers says. Doubled: 1 to 3 times the error, safer tails."""


class LatentLaw(NamedTuple):
    """Network, and constants of the prior ``N(omega, V (x) I)`` of its latents z: number of tokens M, weight ``skip`` = c of the
    skip connection; ``root root^T`` is V of the L - 1 layers before the last, ``slopes`` and ``noise`` are the regression
    coefficients and the variance of the last layer given those, ``precision`` is V^{-1}, ``diagonal`` says whether V is,
    ``variances`` are diag V.
    """

    tokens: int
    skip: float
    root: Host  # V of the layers before the last = root root^T
    slopes: Host  # (1, L - 1): E[dz_L | dw] = sum_l slopes_l dw_l
    noise: float  # conditional variance of z_L
    precision: Host  # V^{-1}
    diagonal: bool  # whether V is diagonal
    variances: Host  # diag V


jit = allocation_free("contract")


@inline
def bounded_exp(x):
    """Exponential of x, with x clipped to [-700, 700]."""
    return exp(min(max(x, -700.0), 700.0))


@jit
def fill_row(row, n, value):
    """Set the first n entries of a row to the constant ``value``."""
    for index in range(n):
        row[index] = value


@jit
def add_row(row, addend, n, factor):
    """Add ``factor`` times the first n entries of the row ``addend`` to a row, in place."""
    for index in range(n):
        row[index] += factor * addend[index]


@jit
def add_product(row, row_1, row_2, n, factor):
    """Add ``factor`` times the elementwise product of the first n entries of ``row_1`` and ``row_2`` to a row, in place."""
    for index in range(n):
        row[index] += factor * row_1[index] * row_2[index]


@jit
def multiply_attention(table, n, layers, first_layer, skip):
    """Multiply, at n points j, the 2 x 2 attention matrices of the layers ``first_layer`` to ``layers``, with latents in the rows
    Z of ``table`` and skip connections of weight ``skip`` = c; write the product's off-diagonal entries OFF_1, OFF_2 and
    determinant DET (INNER: without the last layer). Locals belong to one layer: tokens' values h_1, h_2 and their ``difference``
    after the layers below, ``attention_1`` and ``attention_2`` of each token to itself, whose odds against are ``odds_1``,
    ``odds_2``.

    Latents stand in the rows Z, and the product is ``B / (1 + c)^K``, whose rows sum to 1. INNER is the determinant without
    the last layer, SIDE is ``h_1 - h_2`` of the last layer.
    """
    off_diagonal_1 = table[OFF_1]
    off_diagonal_2 = table[OFF_2]
    determinant = table[DET]
    inner_determinant = table[INNER]
    hidden_difference = table[SIDE]
    if first_layer == 0:
        for j in range(n):
            off_diagonal_1[j] = off_diagonal_2[j] = 0.0
            determinant[j] = 1.0
    for layer in range(first_layer, layers):
        z_1 = table[Z + 2 * layer]
        z_2 = table[Z + 2 * layer + 1]
        growth = (1.0 + skip) ** layer
        inverse_1_plus_c = 1.0 / (1.0 + skip)
        for j in range(n):
            previous_determinant = determinant[j]
            h_1 = growth * (z_1[j] - off_diagonal_1[j] * (z_1[j] - z_2[j]))
            difference = growth * previous_determinant * (z_1[j] - z_2[j])
            odds_1 = bounded_exp(-h_1 * difference)
            odds_2 = bounded_exp((h_1 - difference) * difference)
            attention_1 = 1.0 / (1.0 + odds_1)
            attention_2 = 1.0 / (1.0 + odds_2)
            squared_difference = difference * difference
            # p + q - 1 = p q (1 - exp(-d^2)), without cancellation where the tokens are alike
            expanded_difference = one_minus_exp(-min(squared_difference, 0.5))
            direct_difference = 1.0 - exp(-min(squared_difference, 700.0))
            softmax_determinant = (
                (expanded_difference if squared_difference < 0.5 else direct_difference)
                * attention_1
                * attention_2
            )
            off_diagonal_1[j] += (
                odds_1 * attention_1 * inverse_1_plus_c * previous_determinant
            )
            off_diagonal_2[j] += (
                odds_2 * attention_2 * inverse_1_plus_c * previous_determinant
            )
            inner_determinant[j] = previous_determinant
            hidden_difference[j] = difference
            determinant[j] = (
                (skip + softmax_determinant) * inverse_1_plus_c * previous_determinant
            )


@jit
def _solve_two(table, n, u, prior):
    """Solve ``u = B z_L`` for the last layer's latents z_L (rows SOLVED) of two tokens at n points j, B the product of the
    attention matrices of the layers below, with off-diagonal entries OFF_1 and OFF_2, and write its determinant to the row DET.
    ``u`` holds the outputs, taken with sign +, and u_1 - u_2; ``prior`` is a ``LatentLaw``.
    """
    hidden_layers = prior.root.shape[0]
    multiply_attention(table, n, hidden_layers, 0, prior.skip)
    inverse_growth = (1.0 + prior.skip) ** -hidden_layers
    u_1, u_2, output_gap = (
        inverse_growth * u[0],
        inverse_growth * u[1],
        inverse_growth * u[2],
    )
    off_diagonal_1 = table[OFF_1]
    off_diagonal_2 = table[OFF_2]
    determinant = table[DET]
    z_1 = table[SOLVED]
    z_2 = table[SOLVED + 1]
    for j in range(n):
        determinant[j] = max(determinant[j], LEAST_DETERMINANT)
        scaled_gap = output_gap / determinant[j]
        z_1[j], z_2[j] = (
            u_1 + off_diagonal_1[j] * scaled_gap,
            u_2 - off_diagonal_2[j] * scaled_gap,
        )


@inline
def _attention_of_three(query, key_1, key_2, skip):
    """Row of the attention matrix ``A(v) = c I + softmax(v v^T)`` of the token with value ``query``, c = ``skip``: its entry for
    itself (``self_attention`` plus c), and those for the two other tokens, with values ``key_1`` and ``key_2``.
    """
    odds_1 = bounded_exp(query * (key_1 - query))
    odds_2 = bounded_exp(query * (key_2 - query))
    self_attention = 1.0 / (1.0 + odds_1 + odds_2)
    return skip + self_attention, odds_1 * self_attention, odds_2 * self_attention


@jit
def _solve_three(table, n, u, prior):
    """Solve ``u = A z_L`` for the last layer's latents (rows SOLVED) of three tokens at n points: A is the attention matrix (a,
    b, c; d, e, f; g, h, i) of the one layer below, whose latents are (x, y, z); (p, q, r) are cofactors of its first row, j is
    the point, ``prior`` a ``LatentLaw``.
    """
    u_1, u_2, u_3 = u[0], u[1], u[2]
    for j in range(n):
        x, y, z = table[Z, j], table[Z + 1, j], table[Z + 2, j]
        a, b, c = _attention_of_three(x, y, z, prior.skip)
        e, f, d = _attention_of_three(y, z, x, prior.skip)
        i, g, h = _attention_of_three(z, x, y, prior.skip)
        p, q, r = e * i - f * h, f * g - d * i, d * h - e * g
        determinant = a * p + b * q + c * r
        inverse_determinant = 1.0 / (
            determinant if abs(determinant) > LEAST_DETERMINANT else LEAST_DETERMINANT
        )
        table[SOLVED, j] = (
            p * u_1 + (c * h - b * i) * u_2 + (b * f - c * e) * u_3
        ) * inverse_determinant
        table[SOLVED + 1, j] = (
            q * u_1 + (a * i - c * g) * u_2 + (c * d - a * f) * u_3
        ) * inverse_determinant
        table[SOLVED + 2, j] = (
            r * u_1 + (b * g - a * h) * u_2 + (a * e - b * d) * u_3
        ) * inverse_determinant
        table[DET, j] = max(abs(determinant), LEAST_DETERMINANT)


@jit
def integrand(table, n, sample, prior):
    """Compute, at the n points j of whitened latents in rows XI of ``table``, the logarithm of the posterior density of one
    ``sample`` (outputs u, means omega) up to the determinant of B, for the sign + of u (row PLUS) and the sign - (row MINUS).
    Latents are z = omega + dz, and the last layer's are solved for; their residual is the distance from their conditional mean.
    ``prior`` is a ``LatentLaw``.
    """
    u, omega = sample
    tokens, hidden_layers = prior.tokens, prior.root.shape[0]
    energy, log_plus, log_minus = table[ENERGY], table[PLUS], table[MINUS]
    for row in range(ENERGY, EXISTS):
        fill_row(table[row], n, 0.0)
    for token in range(tokens):
        fill_row(table[CENTER + token], n, omega[hidden_layers, token])
    for coordinate in range(hidden_layers * tokens):
        layer, token = coordinate // tokens, coordinate % tokens
        dz, z = table[DZ + coordinate], table[Z + coordinate]
        fill_row(dz, n, 0.0)
        for layer_2 in range(layer + 1):
            add_row(
                dz, table[XI + layer_2 * tokens + token], n, prior.root[layer, layer_2]
            )
        fill_row(z, n, omega[layer, token])
        add_row(z, dz, n, 1.0)
        add_row(table[CENTER + token], dz, n, prior.slopes[layer])
        add_product(energy, table[XI + coordinate], table[XI + coordinate], n, 0.5)
    if tokens == 2:
        _solve_two(table, n, u, prior)
    else:
        _solve_three(table, n, u, prior)
    half_inverse_noise = 0.5 / prior.noise
    for token in range(tokens):
        solved_z, conditional_mean, mean = (
            table[SOLVED + token],
            table[CENTER + token],
            omega[hidden_layers, token],
        )
        dz, z = (
            table[DZ + hidden_layers * tokens + token],
            table[Z + hidden_layers * tokens + token],
        )
        for j in range(n):
            plus_residual, minus_residual = (
                solved_z[j] - conditional_mean[j],
                solved_z[j] + conditional_mean[j],
            )
            log_plus[j] -= half_inverse_noise * plus_residual * plus_residual
            log_minus[j] -= half_inverse_noise * minus_residual * minus_residual
            dz[j], z[j] = solved_z[j] - mean, solved_z[j]
    for j in range(n):
        log_plus[j] -= energy[j]
        log_minus[j] -= energy[j]


@jit
def _draw_gaussians(
    table,
    first_point,
    n,
    random_numbers,
    points_per_center,
    gaussians,
    dimension,
    tokens,
):
    """Draw n points j of whitened latents (rows XI of ``table``) from ``gaussians``, ``points_per_center`` from each in turn;
    ``random_numbers`` are standard normal, ``dimension`` plus ``tokens`` for each latent vector, used from ``first_point`` on.
    The Gaussians are narrow along the directions that a label fixes, whose part (``projection``) is taken out of a normal vector.

    Normal vectors of ``size + tokens`` numbers lose their components along the orthonormal rows that ``_describe_gaussian`` made.
    """
    for j in range(n):
        gaussian = gaussians[(first_point + j) // points_per_center % CENTERS]
        for coordinate in range(dimension):
            table[XI + coordinate, j] = (
                gaussian[0, coordinate]
                + GAUSSIAN_WIDTH * random_numbers[coordinate, first_point + j]
            )
        for token in range(tokens):
            projection = 0.0
            for coordinate in range(dimension + tokens):
                projection += (
                    gaussian[4 + token, coordinate]
                    * random_numbers[coordinate, first_point + j]
                )
            for coordinate in range(dimension):
                table[XI + coordinate, j] -= (
                    GAUSSIAN_WIDTH * projection * gaussian[4 + token, coordinate]
                )


@inline
def _gap_constants(layer, omega, u, prior):
    """Constants for drawing the difference (gap) of two tokens in one ``layer``: its prior standard deviation given the layers
    before; mean and standard deviation of that of the last layer; the gap of outputs ``|u_1 - u_2| / growth``; and ``growth = (1
    + c)^{L-2}``. ``prior`` is a ``LatentLaw``, omega are the means.
    """
    hidden_layers = prior.root.shape[0]
    last_mean_gap = omega[hidden_layers, 0] - omega[hidden_layers, 1]
    last_gap_deviation = math.sqrt(2.0 * prior.variances[hidden_layers])
    growth = (1.0 + prior.skip) ** (hidden_layers - 1)
    return (
        math.sqrt(2.0) * prior.root[layer, layer],
        last_mean_gap,
        last_gap_deviation,
        abs(u[2]) / growth,
        growth,
    )


@jit
def _draw_gaps(table, n, sample, prior):
    """Draw n points j of whitened latents xi_1, xi_2 of two tokens (rows XI of ``table``), layer by layer, for nearly singular
    attention matrices: the difference (gap) of the tokens is drawn uniformly in its logarithm, ``is_by_size``, or from the prior;
    in the layer before the last it is solved for, given the outputs u, by its approximate ``second_eigenvalue`` of attention, if
    ``is_solvable``. A uniform number decides which, and its ``share_position`` within that choice gives size and sign.

    The difference of the tokens of ``z_L`` is drawn from its prior; with the other layers it fixes the determinant of the last
    attention matrix, and that the difference of the tokens of ``z_{L-1}``, by ``det A = (1 + c) (c + d^2 / 4)``
    for small d, where ``c + d^2 / 4`` is the second eigenvalue.
    """
    u, omega = sample
    hidden_layers, skip, determinant = prior.root.shape[0], prior.skip, table[DET]
    log_size_ratio, root_half = math.log(LEAST_GAP / LARGEST_GAP), math.sqrt(0.5)
    for layer in range(hidden_layers):
        multiply_attention(table, n, layer, max(layer - 1, 0), skip)
        gap_scale, last_mean_gap, last_gap_deviation, output_gap, growth = (
            _gap_constants(layer, omega, u, prior)
        )
        z_1 = table[Z + 2 * layer]
        z_2 = table[Z + 2 * layer + 1]
        xi_1 = table[XI + 2 * layer]
        xi_2 = table[XI + 2 * layer + 1]
        uniform_numbers = table[SPARE + layer]
        for token in range(2):  # the mean given the previous layers
            fill_row(table[Z + 2 * layer + token], n, omega[layer, token])
            for previous_layer in range(layer):
                add_row(
                    table[Z + 2 * layer + token],
                    table[XI + 2 * previous_layer + token],
                    n,
                    prior.root[layer, previous_layer],
                )
        for j in range(n):
            is_by_size = uniform_numbers[j] < SIZE_SHARE
            # the first half of a share is negative, the second half positive
            share_position = (
                uniform_numbers[j] / SIZE_SHARE
                if is_by_size
                else (uniform_numbers[j] - SIZE_SHARE) / (1.0 - SIZE_SHARE)
            )
            gap_sign = -1.0 if share_position < 0.5 else 1.0
            gap_size = LARGEST_GAP * exp(
                log_size_ratio
                * (2.0 * share_position - (0.0 if share_position < 0.5 else 1.0))
            )
            mean_gap, whitened_gap = z_1[j] - z_2[j], xi_2[j]
            token_gap, is_solvable = mean_gap + gap_scale * whitened_gap, True
            if layer == hidden_layers - 1:
                second_eigenvalue = output_gap / max(
                    abs(last_mean_gap + last_gap_deviation * whitened_gap)
                    * determinant[j],
                    SMALLEST_DIVISOR,
                )
                squared_gap = 4.0 * (second_eigenvalue - skip)
                token_gap = (
                    gap_sign
                    * math.sqrt(squared_gap if squared_gap > 0.0 else 1.0)
                    / max(growth * determinant[j], SMALLEST_DIVISOR)
                )
                # solutions beyond 1e3 are ignored: signals are far smaller
                is_solvable = (
                    squared_gap > 0.0
                    and second_eigenvalue < 1e3
                    and abs(token_gap) < 1e3
                )
            token_gap = (
                gap_sign * gap_size if is_by_size else token_gap if is_solvable else 0.0
            )
            table[EXISTS, j] = 1.0 if is_solvable or is_by_size else 0.0
            whitened_gap_shift, whitened_mean = (
                (token_gap - mean_gap) / gap_scale,
                xi_1[j],
            )
            xi_1[j] = root_half * (whitened_mean + whitened_gap_shift)
            xi_2[j] = root_half * (whitened_mean - whitened_gap_shift)
        add_row(z_1, xi_1, n, prior.root[layer, layer])
        add_row(z_2, xi_2, n, prior.root[layer, layer])


@jit
def _gap_densities(table, n, sample, prior):
    """Compute the density with which ``_draw_gaps`` draws each of n points j of whitened latents xi_1, xi_2, relative to the
    standard normal density at 0: the row FACTOR of ``table`` times the exponential of the row GAP. A gap is the difference of two
    tokens, the ``sample`` has outputs u and means omega; locals are of one layer, and ``plus_deviation``, ``minus_deviation`` are
    those of the gap solved for from its mean, for either sign of the outputs.
    """
    u, omega = sample
    hidden_layers = prior.root.shape[0]
    hidden_difference = table[SIDE]
    inner_determinant = table[INNER]
    log_density = table[GAP]
    factor = table[FACTOR]
    for j in range(n):
        log_density[j], factor[j] = -table[ENERGY, j], 1.0
    for layer in range(hidden_layers):
        gap_scale, last_mean_gap, last_gap_deviation, output_gap, growth = (
            _gap_constants(layer, omega, u, prior)
        )
        z_1 = table[Z + 2 * layer]
        z_2 = table[Z + 2 * layer + 1]
        xi_1 = table[XI + 2 * layer]
        xi_2 = table[XI + 2 * layer + 1]
        # uniform in the logarithm, of any sign; densities are relative to 1 / sqrt(2 pi) per scale
        uniform_constant = (
            gap_scale
            * math.sqrt(2.0 * math.pi)
            / (2.0 * math.log(LARGEST_GAP / LEAST_GAP))
        )
        for j in range(n):
            gap_energy = 0.25 * (xi_1[j] - xi_2[j]) ** 2
            if layer == hidden_layers - 1:
                second_eigenvalue = max(
                    prior.skip + 0.25 * hidden_difference[j] * hidden_difference[j],
                    LEAST_DETERMINANT,
                )
                # the difference of z_L that the approximate determinant would give
                solved_gap = output_gap / max(
                    second_eigenvalue * inner_determinant[j], LEAST_DETERMINANT
                )
                plus_deviation = (solved_gap - last_mean_gap) / last_gap_deviation
                minus_deviation = (solved_gap + last_mean_gap) / last_gap_deviation
                peak_densities = bounded_exp(
                    -0.5 * plus_deviation * plus_deviation
                ) + bounded_exp(-0.5 * minus_deviation * minus_deviation)
                layer_density = (
                    0.25
                    * gap_scale
                    / last_gap_deviation
                    * peak_densities
                    * min(
                        solved_gap
                        * abs(hidden_difference[j])
                        * inner_determinant[j]
                        * growth
                        / second_eigenvalue,
                        1e100,
                    )
                )
            else:
                layer_density = bounded_exp(-gap_energy)
            gap_size = abs(z_1[j] - z_2[j])
            uniform_density = (
                uniform_constant / gap_size
                if gap_size >= LEAST_GAP and gap_size <= LARGEST_GAP
                else 0.0
            )
            log_density[j] += gap_energy
            factor[j] *= (
                1.0 - SIZE_SHARE
            ) * layer_density + SIZE_SHARE * uniform_density


@jit
def _gaussian_log_density(table, n, gaussian, log_density, dimension, tokens):
    """Write to ``log_density`` the logarithm of the density of one ``gaussian`` at each of n points j (rows XI of ``table``),
    relative to the standard normal density at 0. Its ``mean`` is the center, its precision the unit matrix plus J^T J with the
    rows ``jacobian_1`` to 3 of J; ``projection_1`` to 3 are J times the deviation, whose squared norm the row ``log_density``
    holds first.
    """
    squared_norm = log_density
    projection_1 = table[SPARE]
    projection_2 = table[SPARE + 1]
    projection_3 = table[SPARE + 2]
    for j in range(n):
        squared_norm[j] = projection_1[j] = projection_2[j] = projection_3[j] = 0.0
    for coordinate in range(dimension):
        xi = table[XI + coordinate]
        mean = gaussian[0, coordinate]
        jacobian_1 = gaussian[1, coordinate]
        jacobian_2 = gaussian[2, coordinate]
        jacobian_3 = gaussian[3, coordinate]
        for j in range(n):
            deviation = xi[j] - mean
            squared_norm[j] += deviation * deviation
            projection_1[j] += jacobian_1 * deviation
            projection_2[j] += jacobian_2 * deviation
        for j in range(n if tokens == 3 else 0):
            projection_3[j] += jacobian_3 * (xi[j] - mean)
    log_normalization = gaussian[0, dimension] - dimension * math.log(GAUSSIAN_WIDTH)
    half_precision = 0.5 / GAUSSIAN_WIDTH**2
    for j in range(n):
        squared_norm[j] = log_normalization - half_precision * (
            squared_norm[j]
            + projection_1[j] * projection_1[j]
            + projection_2[j] * projection_2[j]
            + projection_3[j] * projection_3[j]
        )


@jit
def draw_points(
    table,
    component,
    first_point,
    n,
    sample,
    prior,
    gaussians,
    random_numbers,
    component_sizes,
):
    """Draw n points of the whitened latents of all layers but the last, for one ``sample`` (outputs u, means omega), from one
    ``component`` of the mixture: 0 is the prior, 1 the ``gaussians``, 2 the prior with the difference (gap) of two tokens chosen
    as in ``_draw_gaps``. Rows of ``table`` get the points (XI) and the logarithm of their weights (WEIGHT), integrand over
    density of the whole mixture. Each column of ``random_numbers`` is for one point, beginning with ``first_point``: standard
    normal numbers for all latents, then a uniform one for each layer but the last. ``component_sizes`` are the numbers of points
    drawn from the three components; k is a coordinate, a layer or a Gaussian, j a point.
    """
    dimension = prior.root.shape[0] * prior.tokens
    tokens = prior.tokens
    inverse_total = 1.0 / (component_sizes[0] + component_sizes[1] + component_sizes[2])
    energy, largest_log, density, weight = (
        table[ENERGY],
        table[LARGEST_LOG],
        table[DENSITY],
        table[WEIGHT],
    )
    fill_row(table[EXISTS], n, 1.0)
    for k in range(dimension):
        fill_row(table[XI + k], n, 0.0)
        add_row(table[XI + k], random_numbers[k, first_point:], n, 1.0)
    for k in range(prior.root.shape[0]):
        fill_row(table[SPARE + k], n, 0.0)
        add_row(
            table[SPARE + k],
            random_numbers[dimension + tokens + k, first_point:],
            n,
            1.0,
        )
    if component == 1:
        _draw_gaussians(
            table,
            first_point,
            n,
            random_numbers,
            component_sizes[1] // CENTERS,
            gaussians,
            dimension,
            tokens,
        )
    elif component == 2:
        _draw_gaps(table, n, sample, prior)
    integrand(table, n, sample, prior)
    fill_row(table[FACTOR], n, 0.0)
    fill_row(table[GAP], n, -math.inf)
    if tokens == 2:
        _gap_densities(table, n, sample, prior)
    for j in range(n):
        largest_log[j] = max(-energy[j], table[GAP, j])
    center_count = CENTERS if component_sizes[1] else 0
    for k in range(center_count):
        log_density = table[NORMAL + k]
        _gaussian_log_density(table, n, gaussians[k], log_density, dimension, tokens)
        for j in range(n):
            largest_log[j] = max(largest_log[j], log_density[j])
    prior_share = component_sizes[0] * inverse_total
    gaussian_share = component_sizes[1] * inverse_total / CENTERS
    gap_share = component_sizes[2] * inverse_total
    for j in range(n):
        density[j] = prior_share * bounded_exp(
            -energy[j] - largest_log[j]
        ) + gap_share * table[FACTOR, j] * bounded_exp(table[GAP, j] - largest_log[j])
    for k in range(center_count):
        log_density = table[NORMAL + k]
        for j in range(n):
            density[j] += gaussian_share * bounded_exp(log_density[j] - largest_log[j])
    for j in range(n):
        larger_log = max(table[PLUS, j], table[MINUS, j])
        smaller_log = min(table[PLUS, j], table[MINUS, j])
        log_ratio = bounded_log(
            (1.0 + bounded_exp(smaller_log - larger_log)) / (table[DET, j] * density[j])
        )
        weight[j] = (
            larger_log - largest_log[j] + log_ratio
            if table[EXISTS, j] > 0.0
            else -math.inf
        )
