"""Instances for solvers elsewhere, in any language, and scores for what they found."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.run.loop import Status
from smimbench.suite.errors import SuiteError
from smimbench.suite.overrides import selects

if TYPE_CHECKING:
    from smimbench.problem.instance import Instance
    from smimbench.suite.cells import ProblemPlan, Suite

__all__ = ["Point", "choose_point", "read_estimate", "score_record", "write_instance"]


@dataclass(frozen=True)
class Point:
    """One instance of a suite: a problem with sample ratio, dimension and replicate."""

    plan: ProblemPlan
    alpha: float
    dimension: int
    replicate: int

    def describe(self) -> dict[str, Any]:
        """The point as plain data, enough to find it again."""
        return {
            "problem": self.plan.problem.spec,
            "label": self.plan.label,
            "alpha": self.alpha,
            "dimension": self.dimension,
            "seed": self.replicate,
        }


def choose_point(suite: Suite) -> Point:
    """The first point of the suite that its ``--only`` conditions leave."""
    for plan in suite.plans:
        for dimension, alpha, seed in itertools.product(plan.dimensions, plan.alphas, range(suite.seeds)):
            where = {"alpha": alpha, "dimension": dimension, "seed": seed}
            if selects(suite.only, problem=plan.label, numbers=where):
                return Point(plan, alpha, dimension, seed)
    raise SuiteError(suite.file, "--only", "leaves no point of this suite")


def draw(suite: Suite, point: Point) -> Instance:
    """The instance of a point."""
    return point.plan.problem.instance(
        point.alpha, point.dimension, point.replicate, seed=suite.seed, dtype=suite.run.dtype
    )


def write_instance(suite: Suite, point: Point, output: Path) -> dict[str, Any]:
    """Write inputs, labels and a JSON description to an ``.npz``; the teacher stays hidden.

    Returns
    -------
    dict
        Shapes and the description, for the terminal.
    """
    instance = draw(suite, point)
    about = {
        "suite": suite.name,
        **point.describe(),
        "root_seed": suite.seed,
        "sample_ratio": instance.sample_ratio,
        "estimate_shape": list(instance.signal.shape),
        "how": "save your estimate of the signal under the name 'estimate' in an .npz and run 'smimbench score'",
    }
    np.savez(output, inputs=instance.inputs, labels=instance.labels, about=np.array(json.dumps(about)))
    return {**about, "inputs": list(instance.inputs.shape), "labels": list(instance.labels.shape)}


def read_estimate(path: Path) -> np.ndarray[Any, Any]:
    """The array ``estimate`` of an ``.npz``.

    Raises
    ------
    SuiteError
        Unreadable file or no such array.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if "estimate" not in arrays.files:
                raise SuiteError(
                    str(path), "estimate", f"is missing; the file holds {', '.join(arrays.files) or 'nothing'}"
                )
            found: np.ndarray[Any, Any] = arrays["estimate"]
            return found
    except (OSError, ValueError) as error:
        raise SuiteError(str(path), "", f"cannot be read as .npz: {error}") from None


def score_record(suite: Suite, point: Point, estimate: np.ndarray[Any, Any], label: str, path: Path) -> dict[str, Any]:
    """A record like that of a cell, for an estimate from elsewhere: no clock ran, and nothing was seen on the way.

    Raises
    ------
    SuiteError
        If the estimate does not have the shape of the signal.
    """
    instance = draw(suite, point)
    if estimate.shape != instance.signal.shape:
        raise SuiteError(str(path), "estimate", f"must have the shape {instance.signal.shape}, got {estimate.shape}")
    finite = bool(np.isfinite(estimate).all())
    return {
        "problem": point.plan.label,
        "algorithm": label,
        "status": Status.OK.value if finite else Status.DIVERGED.value,
        "reason": "scored" if finite else "the estimate is not made of finite numbers",
        "metrics": instance.metrics(np.asarray(estimate, dtype=np.float64)) if finite else {},
        "sample_ratio": instance.sample_ratio,
        "samples": int(instance.inputs.shape[0]),
        "trajectory": None,
        "timing": {},
    }
