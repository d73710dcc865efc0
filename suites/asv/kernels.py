"""Time of the four parts of an iteration of GAMP, each on its own: a slower part shows here though it hides in the whole."""

import time

import numpy as np

from .cases import Case, problems


class Kernels:
    """Forward, posterior, adjoint and denoiser on all samples of a small instance."""

    params = (problems(),)
    param_names = ("problem",)
    timeout = 300
    timer = time.process_time
    repeat = (5, 50, 3.0)
    sample_time = 0.02
    warmup_time = 0.1
    rounds = 2

    def setup(self, problem):
        self.case = Case(problem)
        spec = self.case.problem
        self.model, self.channel, self.prior = spec.model, spec.channel, spec.prior
        instance, data = self.case.data()
        P = spec.components
        rng = np.random.default_rng(0)
        self.inputs, self.labels = data.inputs, data.labels
        self.R = instance.signal + self.model.draw_noise(rng, P, self.case.dimension)
        self.Qhat = np.eye(P)
        self.estimate = self.prior.denoise(self.R, self.Qhat).estimate
        self.omega = self.model.forward(self.inputs, self.estimate)
        self.V = 0.4 * np.eye(P)

    def time_forward(self, problem):
        self.model.forward(self.inputs, self.estimate)

    def time_posterior(self, problem):
        self.channel.posterior(
            self.labels, self.omega, self.V, rng=np.random.default_rng(0)
        )

    def time_adjoint(self, problem):
        self.model.adjoint(self.inputs, self.omega)

    def time_denoise(self, problem):
        self.prior.denoise(self.R, self.Qhat)
