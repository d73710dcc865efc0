"""Whether errors of theory are calibrated: what labels tell at an overlap, by the engine and by plain draws.

Every shipped channel, with several tokens, layers and skips, at overlaps from 1e-3 to 1 - 1e-3. Seeds are fixed. If stated errors
are right, z is normal: none above 4, and a spread near 1. Smaller is better. About half an hour on one core.
"""

import os

import numpy as np

from smimbench.problem.problem import Problem

DRAWS = int(os.environ.get("SMIMBENCH_ASV_DRAWS", "100000"))
"""Draws at each overlap; four times as many see errors of half the size."""
OVERLAPS = (1e-3, 0.03, 0.3, 0.7, 0.97, 0.999)

SEQUENCE, ATTENTION = "sequence-multi-index", "attention-indexed"


def _cases():
    """``{name: (model, channel, prior)}`` of every shipped channel."""
    gaussian, wishart = {"name": "gaussian"}, {"name": "wishart", "rho": 0.5}
    checks = {}

    def add(model, tokens, name, **parameters):
        label = ", ".join(
            [
                name,
                f"{tokens} tokens",
                *(f"{key} {value}" for key, value in parameters.items()),
            ]
        )
        prior = gaussian if model == SEQUENCE else wishart
        checks[f"{model}: {label}"] = (
            {"name": model, "tokens": tokens},
            {"name": name, **parameters},
            prior,
        )

    for model in (SEQUENCE, ATTENTION):
        for noise in (0.0, 0.1):
            add(model, 2, "linear", noise=noise)
        for tokens in (2, 3):
            add(model, tokens, "softmax")
            add(model, tokens, "hardmax")
    add(SEQUENCE, 2, "linear", noise=0.1, components=3)
    for tokens in (4, 5):
        add(ATTENTION, tokens, "hardmax")
    for skip in (0.0, 0.25, 0.5, 1.0, 2.0, 4.0):
        add(SEQUENCE, 2, "softmax", layers=2, skip=skip)
    for skip in (0.5, 1.0, 3.0):
        add(SEQUENCE, 2, "softmax", layers=3, skip=skip)
    add(SEQUENCE, 2, "softmax", layers=4, skip=1.0)
    add(SEQUENCE, 3, "softmax", layers=2, skip=1.0)
    add(ATTENTION, 2, "softmax", layers=2, skip=1.0)
    return checks


CASES = _cases()


def overlaps(problem):
    """Diagonal (Q, V): the last component leads, the others follow far behind, at its square, or ahead of it."""
    P = problem.components
    second, bottom = (
        np.diagonal(m(P))
        for m in (problem.prior.second_moment, problem.prior.mean_overlap)
    )
    for q in OVERLAPS:
        rows = (
            [np.full(P, q)]
            if P == 1
            else [np.r_[np.zeros(P - 1), q], np.r_[np.full(P - 1, 0.9 * q * q), q]]
        )
        for row in rows:
            yield (
                np.diag(bottom + row * (second - bottom)),
                np.diag((1 - row) * (second - bottom)),
            )


def verify_information(problem, Q, V, draws):
    """The diagonal of ``E sum_c g_c g_c^T`` at an overlap, with its stated error, against both means over plain draws.

    Components without overlap are left out: their information is 0 for every draw, or nearly so.
    """
    from smimbench.theory.information import information_at
    from smimbench.theory.types import TheoryPoint, compare
    from smimbench.theory.verification import PointByDraws

    overlaps = np.diagonal(Q)
    mse = np.diagonal(V)
    unknown = np.full_like(mse, np.nan)
    reported = TheoryPoint(
        alpha=1.0,
        mse=mse,
        mse_error=unknown,
        alpha_error=unknown,
        overlap=Q,
        branch=str(overlaps.tolist()),
        method="none",
    )
    point = PointByDraws(problem, reported)
    point.draws = draws
    value, error, _ = information_at(problem, Q, V)
    self_overlap, cross, stated = point.draw(Q, V)
    return [
        compare(
            "information", a, value[a, a], error[a, a], samples[:, a, a], bias / V[a, a]
        )
        for samples, bias in ((self_overlap, stated), (cross, 0.0))
        for a in point.learned_components
    ]


def scores(name, draws=DRAWS, chosen=slice(None)):
    """z of every diagonal entry of the information of a case, from the posterior's own overlap and from the teacher's."""
    problem = Problem(*CASES[name])
    return [
        check.z
        for Q, V in list(overlaps(problem))[chosen]
        for check in verify_information(problem, Q, V, draws)
    ]


class Calibration:
    """The distribution of z of one case; blank at commits that cannot draw plainly."""

    params = (sorted(CASES),)
    param_names = ("case",)
    timeout = 3600

    def setup(self, case):
        try:
            self.z = np.array(scores(case))
        except ImportError as error:
            raise NotImplementedError("no plain draws at this commit") from error

    def track_largest_z(self, case):
        return float(np.abs(self.z).max())

    def track_spread(self, case):
        """The root mean square, or its inverse where that is larger."""
        spread = float(np.sqrt((self.z**2).mean()))
        return max(spread, 1 / spread)

    track_largest_z.unit = "standard errors (4 is too many)"
    track_spread.unit = "root mean square of z, or its inverse (1 is best)"
