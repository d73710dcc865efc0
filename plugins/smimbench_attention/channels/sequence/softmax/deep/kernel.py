"""Importance sampling of deep attention, compiled: explores, fits Gaussians, sums moments and their error, label by label.

Numba keeps machine code until this file changes: touch it when ``points`` does.
"""

from __future__ import annotations

import math

import numpy as np

from smimbench_attention.channels.compiling import allocation_free, compiled, exp
from smimbench_attention.channels.sequence.softmax.deep.points import (
    BATCH_POINTS,
    CENTER,
    CENTERS,
    DZ,
    ENERGY,
    FLIPPED,
    GAINS,
    LARGEST_LOG,
    MINUS,
    OFF_1,
    OFF_2,
    PAIRS,
    PLUS,
    ROWS,
    SHIFT,
    SOLVED,
    STRIDE,
    WEIGHT,
    WEIGHTED,
    XI,
    Z,
    add_product,
    add_row,
    bounded_exp,
    draw_points,
    fill_row,
    integrand,
    jit,
    multiply_attention,
)

SCRAMBLES = 8
"""Independent sets of points; their spread is the error. Doubled: half as many points in each, up to twice the error."""
FEWEST_EFFECTIVE_POINTS = 40.0
"""Effective points below which an estimate is made again, its bias uncorrected. Doubled: more are done again at small V."""


@jit
def _choose_centers(
    table, sample, prior, gaussians, random_numbers, component_sizes, seeds
):
    """Choose the centers of ``gaussians`` (9, 8, 9) for one ``sample`` among random points of large weight, batches of n points
    from ``first_point`` on, then fit the Gaussians. Rows of ``seeds`` get a center's score (log-weight / 2 plus Gumbel noise),
    the sign of the outputs u there, and its whitened latents. ``random_numbers`` are those of ``draw_points`` for each of the
    three components of the mixture, ``component_sizes`` the numbers of their points; ``prior`` is a ``LatentLaw``, ``table`` work
    space.

    Without replacement. The square roots of the weights are the odds: bold, but not blind to small modes.
    """
    dimension = prior.root.shape[0] * prior.tokens
    weakest_center, lowest_score = 0, -math.inf
    for center in range(CENTERS):
        seeds[center, 0] = lowest_score
    for component in range(3):
        gumbel_noise = random_numbers[component][
            0, dimension + prior.tokens + prior.root.shape[0]
        ]
        for first_point in range(0, len(gumbel_noise), BATCH_POINTS):
            n = min(BATCH_POINTS, len(gumbel_noise) - first_point)
            draw_points(
                table,
                component,
                first_point,
                n,
                sample,
                prior,
                gaussians,
                random_numbers[component][0],
                component_sizes,
            )
            for point in range(n):
                # where all weights are zero, any center will do
                score = (
                    0.5 * max(table[WEIGHT, point], -1e300)
                    + gumbel_noise[first_point + point]
                )
                if score > lowest_score:
                    seeds[weakest_center, 0] = score
                    seeds[weakest_center, 1] = (
                        1.0 if table[PLUS, point] >= table[MINUS, point] else -1.0
                    )
                    for coordinate in range(dimension):
                        seeds[weakest_center, 2 + coordinate] = table[
                            XI + coordinate, point
                        ]
                    lowest_score = math.inf
                    for center in range(CENTERS):
                        weakest_center, lowest_score = (
                            (center, seeds[center, 0])
                            if seeds[center, 0] < lowest_score
                            else (weakest_center, lowest_score)
                        )
    _fit_gaussians(table, sample, prior, gaussians, seeds)


@jit
def _fit_gaussians(table, sample, prior, gaussians, seeds):
    """Move the centers in ``seeds`` (score, sign of u, whitened latents x) to maxima of the posterior of one ``sample`` by damped
    Gauss-Newton steps, and describe the Gaussian around each in ``gaussians``. ``cost`` is (|x|^2 + |r|^2) / 2, where the
    residual r is the distance of the last layer's latents z_L that the outputs u fix from their conditional mean; r's derivatives
    are differences over ``table``'s columns, center and shifted ``probe_point``s; ``prior`` is a ``LatentLaw``.

    With the residual r of z_L and its derivative J the posterior is nearly exp(-|x|^2 / 2 - |r + J (x - center)|^2 / 2), that of
    a normal vector of which M combinations are known: the rows of (J, I).
    """
    tokens, dimension = prior.tokens, prior.root.shape[0] * prior.tokens
    coordinate_increment = 1e-5
    inverse_deviation = 1.0 / math.sqrt(prior.noise)
    points_per_center = dimension + 1
    work_space = gaussians[CENTERS]
    jacobian_rows, residual = work_space[1:4], work_space[0]
    for iteration in range(5):
        for center in range(CENTERS):
            for column in range(points_per_center):
                for coordinate in range(dimension):
                    table[XI + coordinate, center * points_per_center + column] = seeds[
                        center, 2 + coordinate
                    ] + (coordinate_increment if column == coordinate + 1 else 0.0)
        integrand(table, CENTERS * points_per_center, sample, prior)
        for center in range(CENTERS):
            seed, gaussian, center_point = (
                seeds[center],
                gaussians[center],
                center * points_per_center,
            )
            cost = table[ENERGY, center_point]
            for token in range(tokens):
                solved_z, conditional_mean = (
                    table[SOLVED + token],
                    table[CENTER + token],
                )
                residual[token] = (
                    seed[1] * solved_z[center_point] - conditional_mean[center_point]
                ) * inverse_deviation
                cost += 0.5 * residual[token] ** 2
                for coordinate in range(dimension):
                    probe_point = center_point + coordinate + 1
                    derivative = (
                        (
                            seed[1] * solved_z[probe_point]
                            - conditional_mean[probe_point]
                        )
                        * inverse_deviation
                        - residual[token]
                    ) / coordinate_increment
                    jacobian_rows[token, coordinate] = (
                        derivative if abs(derivative) < 1e100 else 0.0
                    )
            is_improved = iteration == 0 or cost < gaussian[0, dimension + 1]
            if is_improved:
                for coordinate in range(dimension):
                    gaussian[0, coordinate] = seed[2 + coordinate]
                gaussian[0, dimension + 1] = cost
                _describe_gaussian(gaussian, jacobian_rows, residual, dimension, tokens)
            # length of the next step
            step_length = (
                1.0
                if iteration == 0
                else min(
                    1.0, gaussian[0, dimension + 2] * (2.0 if is_improved else 0.3)
                )
            )
            gaussian[0, dimension + 2] = step_length
            for coordinate in range(dimension):
                seed[2 + coordinate] = (
                    gaussian[0, coordinate] + step_length * gaussian[7, coordinate]
                )


@jit
def _dot(x, y, n):
    """Scalar product of the first n entries of the rows x and y."""
    total = 0.0
    for index in range(n):
        total += x[index] * y[index]
    return total


@jit
def _describe_gaussian(gaussian, jacobian_rows, residual, dimension, tokens):
    """Write into ``gaussian`` (8, 9) the Gaussian around the center in its row 0, from ``residual`` r (M,) of the last layer's
    latents and ``jacobian_rows`` J, its derivative with respect to the ``dimension`` whitened latents; ``tokens`` is M.

    J in rows 1 to 3, an orthonormal basis of the rows of (J, I) in 4 to 6, the step to the maximum in 7; behind the center the
    logarithm of the root of the curvature's determinant.
    """
    step_to_maximum = gaussian[7]
    gaussian[0, dimension] = 0.0
    for token in range(tokens):
        row = gaussian[4 + token]
        for index in range(dimension):
            gaussian[1 + token, index] = row[index] = jacobian_rows[token, index]
        for index in range(tokens):
            row[dimension + index] = 1.0 if index == token else 0.0
        projection = (
            _dot(jacobian_rows[token], gaussian[0], dimension) - residual[token]
        )
        for previous_token in range(token):
            previous_row = gaussian[4 + previous_token]
            row_overlap = _dot(row, previous_row, dimension + tokens)
            projection -= row_overlap * previous_row[8]
            for index in range(dimension + tokens):
                row[index] -= row_overlap * previous_row[index]
        norm = math.sqrt(_dot(row, row, dimension + tokens))
        row[8] = projection / norm
        gaussian[0, dimension] += math.log(norm)
        for index in range(dimension + tokens):
            row[index] /= norm
            step_to_maximum[index] = row[8] * row[index] + (
                step_to_maximum[index]
                if token
                else -gaussian[0, index]
                if index < dimension
                else 0.0
            )


@jit
def _sum_out_signs(table, n, omega, prior):
    """Compute, at n points, the posterior probability FLIPPED that the latents z of a layer have the other sign, and the
    covariances PAIRS of the flips of two layers. Capitals are rows of ``table``; ``flips`` is a bit mask of layers, ``log_gain``
    what flipping them adds to the log-prior ``N(omega, V)``, ``prior.precision`` is V^{-1}; j counts points, m tokens.

    A label does not change with these signs, so only the Gaussian prior tells them apart, and they are summed out exactly.
    """
    layers, tokens = omega.shape
    largest_gain, total_weight, sign_count = (
        table[LARGEST_LOG],
        table[OFF_1],
        1 << layers,
    )
    if prior.diagonal:  # each layer's sign by itself
        for layer in range(layers):
            flip_probability = table[FLIPPED + layer]
            flip_covariance = table[PAIRS + layer * layers + layer]
            fill_row(largest_gain, n, 0.0)
            for m in range(tokens):
                add_row(
                    largest_gain,
                    table[Z + layer * tokens + m],
                    n,
                    2.0 * prior.precision[layer, layer] * omega[layer, m],
                )
            for j in range(n):
                odds = bounded_exp(largest_gain[j])
                flip_probability[j] = 1.0 / (1.0 + odds)
                flip_covariance[j] = odds * flip_probability[j] * flip_probability[j]
        return
    fill_row(largest_gain, n, 0.0)
    fill_row(total_weight, n, 0.0)
    for flips in range(sign_count):
        log_gain = table[GAINS + flips]
        fill_row(log_gain, n, 0.0)
        for layer in range(layers):
            for layer_2 in range(layers):
                for m in range(tokens if prior.precision[layer, layer_2] != 0.0 else 0):
                    z_a, z_b = (
                        table[Z + layer * tokens + m],
                        table[Z + layer_2 * tokens + m],
                    )
                    if flips >> layer & 1:
                        add_row(
                            log_gain,
                            z_a,
                            n,
                            -2.0 * prior.precision[layer, layer_2] * omega[layer_2, m],
                        )
                    if layer > layer_2 and (flips >> layer ^ flips >> layer_2) & 1:
                        add_product(
                            log_gain, z_a, z_b, n, 2.0 * prior.precision[layer, layer_2]
                        )
        for j in range(n):
            largest_gain[j] = max(largest_gain[j], log_gain[j])
    for flips in range(sign_count):
        log_gain = table[GAINS + flips]
        for j in range(n):
            log_gain[j] = bounded_exp(log_gain[j] - largest_gain[j])
            total_weight[j] += log_gain[j]
    for layer in range(layers):
        flip_probability = table[FLIPPED + layer]
        for layer_2 in range(layer, -1, -1):
            flip_covariance = table[PAIRS + layer * layers + layer_2]
            fill_row(flip_covariance, n, 0.0)
            for flips in range(sign_count):
                if flips >> layer & flips >> layer_2 & 1:
                    add_row(flip_covariance, table[GAINS + flips], n, 1.0)
            for j in range(n):
                flip_covariance[j] /= total_weight[j]
                flip_probability[j] = (
                    flip_covariance[j] if layer == layer_2 else flip_probability[j]
                )
                flip_covariance[j] -= flip_probability[j] * table[FLIPPED + layer_2, j]


@allocation_free("contract", "reassoc")
def _add_products_by_scramble(row, factor_row, first_point, n, scramble_points, sums):
    """Add sums over n points of the products of ``row`` and ``factor_row`` to ``sums`` (scrambles,): each point j to its
    scramble, that is, its independent set of ``scramble_points`` points; the first of the n has the index ``first_point``.
    """
    for scramble in range(
        first_point // scramble_points, (first_point + n - 1) // scramble_points + 1
    ):
        total = 0.0
        for j in range(
            max(0, scramble * scramble_points - first_point),
            min(n, (scramble + 1) * scramble_points - first_point),
        ):
            total += row[j] * factor_row[j]
        sums[scramble] += total


@jit
def _accumulate(
    table, first_point, n, scramble_points, omega, prior, second_moments, sums
):
    """Add n points of ``table``, from index ``first_point`` on, to ``sums`` (K, scrambles): of the weight, its square, the
    weighted shift ``dz = z - omega`` of the latents (for their posterior signs), and its weighted second moments, all products if
    ``second_moments``, else traces over tokens. A scramble is an independent set of ``scramble_points`` points, ``prior`` a
    ``LatentLaw``; k and i are indices of latents by layer and token, j of points.
    """
    layers, tokens = omega.shape
    dimension, weight, flip_contribution, unit_weights = (
        layers * tokens,
        table[WEIGHT],
        table[OFF_2],
        table[OFF_1],
    )
    _sum_out_signs(table, n, omega, prior)
    fill_row(unit_weights, n, 1.0)
    _add_products_by_scramble(
        weight, unit_weights, first_point, n, scramble_points, sums[0]
    )
    _add_products_by_scramble(weight, weight, first_point, n, scramble_points, sums[1])
    matrix_size = dimension if second_moments else layers
    for k in range(dimension):
        layer = k // tokens
        z = table[Z + k]
        dz = table[DZ + k]
        flip_probability = table[FLIPPED + k // tokens]
        shift = table[SHIFT + k]
        weighted_shift = table[WEIGHTED + k]
        for j in range(n):
            # s z - omega = dz - (1 - s) z keeps its digits where s is almost surely 1
            shift[j] = dz[j] - 2.0 * flip_probability[j] * z[j]
            weighted_shift[j] = shift[j] * weight[j]
        _add_products_by_scramble(
            weighted_shift, unit_weights, first_point, n, scramble_points, sums[2 + k]
        )
        for i in range(k + 1 if len(sums) > 2 + dimension else 0):
            layer_2 = i // tokens
            if second_moments or k % tokens == i % tokens:
                moment_sums = sums[
                    2
                    + dimension
                    + (
                        k * matrix_size + i
                        if second_moments
                        else layer * matrix_size + layer_2
                    )
                ]
                _add_products_by_scramble(
                    weighted_shift,
                    table[SHIFT + i],
                    first_point,
                    n,
                    scramble_points,
                    moment_sums,
                )
                if (
                    layer == layer_2 or not prior.diagonal
                ):  # contribution of the fluctuating signs
                    flip_covariance = table[PAIRS + layer * layers + layer_2]
                    for j in range(n):
                        flip_contribution[j] = (
                            4.0 * weight[j] * flip_covariance[j] * z[j]
                        )
                    _add_products_by_scramble(
                        flip_contribution,
                        table[Z + i],
                        first_point,
                        n,
                        scramble_points,
                        moment_sums,
                    )


@jit
def _estimate(
    table,
    sample,
    prior,
    gaussians,
    random_numbers,
    component_sizes,
    second_moments,
    sums,
    estimates,
):
    """Estimate the posterior moments of one ``sample`` (outputs u, means omega) by importance sampling, as ratios of ``sums``
    over points, taken n at a time from ``first_point`` on; return the effective number of points. ``estimates`` gets the
    logarithm of the unit of weights, the partition function in that unit (mass), the error, and means. ``random_numbers`` are
    those of ``draw_points`` for each of the three components of the mixture, of which the second are ``gaussians``,
    ``component_sizes`` the number of points of each in a scramble (independent set of points).
    """
    omega, log_unit, weight = sample[1], -1e300, table[WEIGHT]
    layers, tokens = omega.shape
    dimension, sum_count = layers * tokens, len(sums)
    matrix_size = (
        0 if sum_count == 2 + dimension else dimension if second_moments else layers
    )
    for sum_index in range(sum_count):
        fill_row(sums[sum_index], SCRAMBLES, 0.0)
    for component in range(3):
        for first_point in range(0, random_numbers[component].shape[1], BATCH_POINTS):
            n = min(BATCH_POINTS, random_numbers[component].shape[1] - first_point)
            new_log_unit = log_unit
            draw_points(
                table,
                component,
                first_point,
                n,
                sample,
                prior,
                gaussians,
                random_numbers[component],
                component_sizes,
            )
            for point in range(n):
                new_log_unit = max(new_log_unit, weight[point])
            rescaling = math.exp(max(log_unit - new_log_unit, -700.0))
            log_unit = new_log_unit
            for sum_index in range(sum_count if rescaling < 1.0 else 0):
                for scramble in range(SCRAMBLES):
                    sums[sum_index, scramble] *= (
                        rescaling * rescaling if sum_index == 1 else rescaling
                    )
            for point in range(n):
                # arithmetic with subnormal numbers is slow
                log_weight = max(weight[point] - log_unit, -100.0)
                weight[point] = exp(log_weight) if log_weight > -100.0 else 0.0
            _accumulate(
                table,
                first_point,
                n,
                component_sizes[component],
                omega,
                prior,
                second_moments,
                sums,
            )
    mass = squared_weights = error_variance = 0.0
    for scramble in range(SCRAMBLES):
        mass += sums[0, scramble] / SCRAMBLES
        squared_weights += sums[1, scramble]
    safe_mass = mass if mass > 0.0 else 1.0
    effective_points = (SCRAMBLES * mass) ** 2 / squared_weights if mass > 0.0 else 0.0
    # Ratios of the scrambles' sums and their variance, less their bias where many points count.
    variance_factor = 1.0 / (SCRAMBLES * (SCRAMBLES - 1.0))
    for sum_index in range(2, sum_count):
        ratio = bias = variance = 0.0
        for scramble in range(SCRAMBLES):
            ratio += sums[sum_index, scramble] / (SCRAMBLES * safe_mass)
        for scramble in range(SCRAMBLES):
            relative_mass = sums[0, scramble] / safe_mass
            deviation = sums[sum_index, scramble] / safe_mass - ratio * relative_mass
            bias += variance_factor * deviation * (relative_mass - 1.0)
            variance += variance_factor * deviation * deviation
        estimates[1 + sum_index] = ratio + (
            bias if effective_points > FEWEST_EFFECTIVE_POINTS else 0.0
        )
        if sum_index < 2 + dimension:
            layer = (sum_index - 2) // tokens
            error_variance += variance / prior.variances[layer] / dimension
    for row in range(matrix_size):
        for column in range(row):
            estimates[3 + dimension + column * matrix_size + row] = estimates[
                3 + dimension + row * matrix_size + column
            ]
    # What no point has met is about as much as the heaviest point stands for; the bias of a ratio of means is less. 1.5 is for
    # eight scrambles and weights with heavy tails (checked against tables).
    estimates[0], estimates[1] = (
        log_unit,
        mass / (component_sizes[0] + component_sizes[1] + component_sizes[2]),
    )
    estimates[2] = (
        1.5 * math.sqrt(error_variance + 1.0 / (SCRAMBLES * safe_mass) ** 2)
        if mass > 0.0
        else math.inf
    )
    return effective_points


@jit
def _estimate_runs(
    table, sample, prior, gaussians, point_set, second_moments, sums, estimates
):
    """Estimate the posterior moments of one ``sample`` in independent runs, into the rows of ``estimates``; return the least
    effective number of points. ``point_set`` is a pair: the random numbers by component and run, and the number of points by
    component in a scramble; the other arguments are those of ``_estimate``.
    """
    fewest_points = math.inf
    for run in range(len(estimates)):
        run_numbers = (point_set[0][0][run], point_set[0][1][run], point_set[0][2][run])
        fewest_points = min(
            fewest_points,
            _estimate(
                table,
                sample,
                prior,
                gaussians,
                run_numbers,
                point_set[1],
                second_moments,
                sums,
                estimates[run],
            ),
        )
    return fewest_points


@compiled
def integrate_samples(u, omega, prior, accuracy, point_sets, second_moments, estimates):
    """Compute into ``estimates`` the posterior moments of latents ``z ~ N(omega, V)``, ``prior``, given outputs ``u``, sample by
    sample, by importance sampling with the points of ``point_sets`` (for pilot, improvement, first and last estimate). Where the
    error is above ``accuracy``, or few points count, estimates are made again with more points, from Gaussians whose centers grow
    from ``seeds``. Second moments only if ``second_moments``, else traces.

    ``u`` (n, M) outputs, of two tokens with their difference as a third number; ``omega`` (n, L, M); ``point_sets`` are four
    pairs, of points for each component and their number in a scramble: pilot, improvement, first and last estimate;
    ``estimates`` (n, R, 3 + K) gets log-unit, mass, error and K means from R runs of estimates, each with its own points and
    the same Gaussians. The means are first moments, alone or followed by second ones, ``second_moments`` or traces.
    """
    pilot_set, improvement_set, first_set, last_set = point_sets
    table = np.zeros((ROWS, STRIDE))
    gaussians = np.zeros((CENTERS + 1, 8, 9))  # the last is work space
    seeds = np.zeros((CENTERS, 8))
    sums = np.zeros((estimates.shape[2] - 1, SCRAMBLES))
    retried_estimates = np.zeros(estimates.shape[1:])
    for index in range(len(u)):
        sample = u[index], omega[index]
        _choose_centers(
            table, sample, prior, gaussians, pilot_set[0], pilot_set[1], seeds
        )
        effective_points = _estimate_runs(
            table,
            sample,
            prior,
            gaussians,
            first_set,
            second_moments,
            sums,
            estimates[index],
        )
        # Then with all points where accuracy asks for it, and twice again from what the mixture found where few points count.
        for stage in range(3):
            largest_error = 0.0
            for run in range(len(retried_estimates)):
                largest_error = max(largest_error, estimates[index, run, 2])
            if (
                effective_points >= FEWEST_EFFECTIVE_POINTS
                if stage
                else first_set[1] == last_set[1] or largest_error <= accuracy
            ):
                continue
            if stage:
                _choose_centers(
                    table,
                    sample,
                    prior,
                    gaussians,
                    improvement_set[0],
                    improvement_set[1],
                    seeds,
                )
            retried_points = _estimate_runs(
                table,
                sample,
                prior,
                gaussians,
                last_set,
                second_moments,
                sums,
                retried_estimates,
            )
            if retried_points > effective_points:
                effective_points = retried_points
                for run in range(len(retried_estimates)):
                    for entry in range(retried_estimates.shape[1]):
                        estimates[index, run, entry] = retried_estimates[run, entry]


@compiled
def mixing_of_samples(z, skip, matrix_entries):
    """Compute ``matrix_entries`` (3, n), the off-diagonal entries and the determinant of ``B / (1 + c)^K``: B is the product of
    the attention matrices of K layers with latents ``z`` (n, K, 2), c = ``skip`` the weight of the skip connection. ``table`` is
    work space for batches of n samples.
    """
    table = np.zeros((ROWS, STRIDE))
    for first_point in range(0, len(z), BATCH_POINTS):
        n = min(BATCH_POINTS, len(z) - first_point)
        for latent in range(2 * z.shape[1]):
            for point in range(n):
                table[Z + latent, point] = z[
                    first_point + point, latent // 2, latent % 2
                ]
        multiply_attention(table, n, z.shape[1], 0, skip)
        for entry in range(3):
            for point in range(n):
                matrix_entries[entry, first_point + point] = table[OFF_1 + entry, point]
