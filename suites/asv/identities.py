"""Identities that hold exactly for the right posterior, at first order in any mistake of it.

The mean squared error of a run hardly notices an estimate that is 2% too long: it is at its minimum there. The slope of
the truth on the estimate does. Seeds are fixed, so what changes from commit to commit is the code; samples are so large
that the statistical error of a slope stays below half a percent wherever sampling them is cheap. Smaller is better.
"""

import zlib

import numpy as np

from .cases import Case, problems

SAMPLES = {
    1: 100_000,
    2: 20_000,
}  # by the number of components; fewer where there are more
MOST_COMPONENTS = 2
RESOLUTION = 0.005  # what samples of this size can tell: anything better is shown as this, so that noise is no news
DRAWS = 12
DIMENSION = {"sequence-multi-index": 20_000, "attention-indexed": 200}


def _stream(*names):
    return np.random.default_rng(zlib.crc32(" ".join(map(str, names)).encode()))


def _slope(truth, mean):
    """Distance from 1 of the slope of the truth on the posterior mean."""
    return max(RESOLUTION, float(abs(1 - np.sum(truth * mean) / np.sum(mean * mean))))


class Denoiser:
    """The prior's posterior mean given the signal in Gaussian noise."""

    params = (problems(), (1.0, 10.0))
    param_names = ("problem", "information")
    timeout = 300

    def setup(self, problem, information):
        case = Case(problem)
        model, prior, P = (
            case.problem.model,
            case.problem.prior,
            case.problem.components,
        )
        rng, dimension = (
            _stream("denoiser", problem, information),
            DIMENSION.get(model.name, 200),
        )
        truths, means, claimed, squares = [], [], [], []
        for _ in range(DRAWS):
            signal = prior.sample(rng, P, dimension)
            noisy = signal + model.draw_noise(rng, P, dimension) / np.sqrt(information)
            estimate, V = prior.denoise(noisy, information * np.eye(P))
            truths.append(signal)
            means.append(estimate)
            claimed.append(np.diagonal(V))
            squares.append(model.squared_error(signal, estimate))
        mean = prior.mean(P, dimension)
        self.truth, self.mean = np.stack(truths) - mean, np.stack(means) - mean
        self.claimed, self.squares = np.mean(claimed), np.mean(squares)

    def track_slope(self, problem, information):
        return _slope(self.truth, self.mean)

    def track_claimed_error(self, problem, information):
        return max(2 * RESOLUTION, float(abs(self.squares / self.claimed - 1)))

    track_slope.unit = track_claimed_error.unit = "relative bias (smaller is better)"


class Posterior:
    """The channel's posterior of the latents given a label."""

    params = (problems(), (0.5, 0.1))
    param_names = ("problem", "variance")
    timeout = 300

    def setup(self, problem, variance):
        case = Case(problem)
        channel, P, C = (
            case.problem.channel,
            case.problem.components,
            case.problem.model.sites,
        )
        if P > MOST_COMPONENTS:
            raise NotImplementedError("too dear for as many samples as this needs")
        rng, samples = _stream("posterior", problem, variance), SAMPLES[P]
        second = np.diagonal(case.problem.prior.second_moment(P))[None, :, None]
        omega = np.sqrt(np.maximum(second - variance, 0.0)) * rng.standard_normal(
            (samples, P, C)
        )
        z = omega + np.sqrt(variance) * rng.standard_normal((samples, P, C))
        y = channel.forward(z, rng=rng)
        posterior = channel.posterior(y, omega, variance * np.eye(P), rng=rng)
        self.truth, self.mean = z - omega, posterior.mean - omega
        self.claimed = float(np.trace(posterior.covariance))
        self.squares = float(np.sum(np.mean((z - posterior.mean) ** 2, axis=(0, 2))))

    def track_slope(self, problem, variance):
        return _slope(self.truth, self.mean)

    def track_claimed_error(self, problem, variance):
        # Both are 0 where the label leaves nothing open.
        return max(
            2 * RESOLUTION,
            float(abs(self.squares - self.claimed) / max(self.claimed, 1e-12)),
        )

    track_slope.unit = track_claimed_error.unit = "relative bias (smaller is better)"
