"""Theory of a suite as plain documents, remembered on disk where it was dear to compute."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.files import canonical_json, write_atomically
from smimbench.theory.generalization import curve_errors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from smimbench.interfaces import Uncertain
    from smimbench.problem.problem import Problem
    from smimbench.suite.reader import Suite
    from smimbench.theory.scalar import Prediction

__all__ = ["Theorist", "theory_document"]

THEORY_VERSION = 2
"""Raised when the numbers of the state-evolution solver itself change: remembered values of older ones are not used."""


class Theorist:
    """Answers what theory says of a problem, computing each answer once.

    Parameters
    ----------
    folder : Path or None
        Where answers are remembered between processes (one small file each); None remembers nothing.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._points: dict[tuple[str, float], list[dict[str, Any]]] = {}
        self._thresholds: dict[str, dict[str, Any]] = {}

    def points(self, problem: Problem, alphas: Sequence[float]) -> list[list[dict[str, Any]]]:
        """For every alpha the competing branches as JSON objects, the Bayes-optimal one first."""
        key = canonical_json(problem.spec)
        wanted = [float(a) for a in alphas]
        missing = []
        for alpha in dict.fromkeys(wanted):
            if (key, alpha) not in self._points:
                found = self._recall("point", key, alpha)
                if found is None:
                    missing.append(alpha)
                else:
                    self._points[key, alpha] = found
        if missing:
            solved = _solve(problem, missing)
            flat = [p for branches in solved for p in branches]
            errors = iter(curve_errors(problem, [p.Q for p in flat], [p.V for p in flat]))
            for alpha, branches in zip(missing, solved):
                points = [point_document(p, next(errors)) | _cosines(problem, p) for p in branches]
                self._points[key, alpha] = points
                self._remember("point", key, alpha, points)
        return [self._points[key, alpha] for alpha in wanted]

    def thresholds(self, problem: Problem) -> dict[str, Any]:
        """Thresholds as a JSON object."""
        key = canonical_json(problem.spec)
        if key not in self._thresholds:
            found = self._recall("thresholds", key, None)
            if found is None:
                found = _thresholds(problem)
                self._remember("thresholds", key, None, found)
            self._thresholds[key] = found
        return self._thresholds[key]

    def _file(self, kind: str, key: str, alpha: float | None) -> Path | None:
        if self.folder is None:
            return None
        name = hashlib.sha256(canonical_json([THEORY_VERSION, kind, key, alpha]).encode()).hexdigest()[:24]
        return self.folder / f"{kind}-{name}.json"

    def _recall(self, kind: str, key: str, alpha: float | None) -> Any:
        file = self._file(kind, key, alpha)
        if file is None:
            return None
        try:
            found = json.loads(file.read_text())
            if found["digest"] == _digest(found["answer"]):
                return found["answer"]
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not there, or torn: it is computed again and written over
        return None

    def _remember(self, kind: str, key: str, alpha: float | None, answer: Any) -> None:
        file = self._file(kind, key, alpha)
        if file is not None:
            document = {
                "problem": json.loads(key),
                "alpha": alpha,
                "answer": answer,
                "digest": _digest(answer),
            }
            write_atomically(file, json.dumps(document).encode())


def _digest(answer: Any) -> str:
    return hashlib.sha256(canonical_json(answer).encode()).hexdigest()


def _solve(problem: Problem, alphas: Sequence[float]) -> list[list[Prediction]]:
    if problem.components == 1:
        from smimbench.theory.scalar import ScalarCurve

        return ScalarCurve.of(problem).competing(alphas)
    from smimbench.theory.coupled import competing

    return competing(problem, alphas)


def _thresholds(problem: Problem) -> dict[str, Any]:
    from smimbench.theory.thresholds import thresholds

    return thresholds(problem)


def point_document(prediction: Prediction, errors: dict[str, Uncertain] | None = None) -> dict[str, Any]:
    """One point of the theory's JSON; ``errors`` are those of prediction."""
    document: dict[str, Any] = {
        "alpha": prediction.alpha,
        "mse": _scalar(prediction.mse),
        "mse_error": _scalar(prediction.error),
        "overlap": np.asarray(prediction.Q).tolist(),
        "branch": prediction.branch,
        "method": prediction.method,
    }
    if errors:
        document["generalization_error"] = {kind: found.value for kind, found in errors.items()}
        document["generalization_error_error"] = {kind: found.error for kind, found in errors.items()}
        document["generalization_error_method"] = next(iter(errors.values())).method
    if prediction.free_entropy is not None:
        finite = np.isfinite(prediction.free_entropy)
        document["free_entropy"] = prediction.free_entropy if finite else None
    return document


def _cosines(problem: Problem, prediction: Prediction) -> dict[str, Any]:
    """What the overlap of a low-rank run estimates, a squared cosine, where the signal has another length than 1."""
    second = np.diagonal(np.asarray(problem.prior.second_moment(problem.components), dtype=float))
    if problem.model.rank != "low" or np.allclose(second, 1, rtol=0, atol=1e-9):
        return {}
    return {
        "squared_cosine": (np.diagonal(np.asarray(prediction.Q)) / second).tolist(),
        "squared_cosine_error": (np.asarray(prediction.error) / second).tolist(),
    }


def _scalar(values: Any) -> Any:
    found = [float(v) for v in values]
    return found[0] if len(found) == 1 else found


def theory_document(
    suite: Suite, alphas: Sequence[float] | None = None, theorist: Theorist | None = None
) -> list[dict[str, Any]]:
    """The JSON of ``smimbench theory``: one object per problem.

    Parameters
    ----------
    alphas : sequence of float or None
        Sample ratios; default: those of the suite.
    """
    theorist = theorist or Theorist()
    documents = []
    for plan in suite.chosen_plans:
        branches = theorist.points(plan.problem, alphas if alphas is not None else plan.alphas)
        found = theorist.thresholds(plan.problem)
        document: dict[str, Any] = {
            "problem": {"label": plan.label, **plan.problem.spec},
            "points": [point for points in branches for point in points],
            "thresholds": {k: v for k, v in found.items() if k != "hard_phase"},
        }
        if found.get("hard_phase"):
            document["hard_phase"] = found["hard_phase"]
        documents.append(document)
    return documents
