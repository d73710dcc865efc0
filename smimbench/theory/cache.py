"""Answers of theory as plain documents, each computed once and kept on disk."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from smimbench.files import canonical_json, write_atomically
from smimbench.theory.consistency import require_consistent
from smimbench.theory.generalization import curve_errors
from smimbench.theory.predictions import batches, competing, point_document
from smimbench.theory.thresholds import thresholds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from smimbench.problem.problem import Problem

__all__ = ["THEORY_VERSION", "TheoryCache"]

THEORY_VERSION = 5
"""Raised when the numbers of the state-evolution solver itself change: remembered values of older ones are not used."""


class TheoryCache:
    """Answers what theory says of a problem, computing each answer once.

    Parameters
    ----------
    folder : Path or None
        Where answers are remembered between processes (one small file each); None remembers nothing.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._memory: dict[tuple[str, str, float | None], Any] = {}
        self._consistent: set[str] = set()

    def points(self, problem: Problem, alphas: Sequence[float]) -> list[list[dict[str, Any]]]:
        """For every alpha the competing branches as JSON objects, the Bayes-optimal one first."""
        key = canonical_json(problem.spec)
        wanted = [float(a) for a in alphas]
        missing = [a for a in dict.fromkeys(wanted) if self._recall("point", key, a) is None]
        if missing:
            self._require_consistent(problem, key)
        for part in batches(problem, missing):
            solved = competing(problem, part)
            flat = [p for branches in solved for p in branches]
            errors = iter(curve_errors(problem, *zip(*((p.Q, p.V, p.error) for p in flat))))
            for alpha, branches in zip(part, solved):
                points = [point_document(problem, p, next(errors)) for p in branches]
                self._remember("point", key, alpha, points)
        return [self._memory["point", key, alpha] for alpha in wanted]

    def thresholds(self, problem: Problem) -> dict[str, Any]:
        """Thresholds as a JSON object."""
        key = canonical_json(problem.spec)
        found: dict[str, Any] | None = self._recall("thresholds", key, None)
        if found is None:
            self._require_consistent(problem, key)
            found = thresholds(problem)
            self._remember("thresholds", key, None, found)
        return found

    def _require_consistent(self, problem: Problem, key: str) -> None:
        """Test the items of others once, before anything is computed with them."""
        if key not in self._consistent:
            require_consistent(problem)
            self._consistent.add(key)

    def _file(self, kind: str, key: str, alpha: float | None) -> Path | None:
        if self.folder is None:
            return None
        name = hashlib.sha256(canonical_json([THEORY_VERSION, kind, key, alpha]).encode()).hexdigest()[:24]
        return self.folder / f"{kind}-{name}.json"

    def _recall(self, kind: str, key: str, alpha: float | None) -> Any:
        file = self._file(kind, key, alpha)
        if (kind, key, alpha) not in self._memory and file is not None:
            try:
                found = json.loads(file.read_text())
                if found["digest"] == _digest(found["answer"]):
                    self._memory[kind, key, alpha] = found["answer"]
            except (OSError, ValueError, KeyError, TypeError):
                pass  # not there, or torn: it is computed again and written over
        return self._memory.get((kind, key, alpha))

    def _remember(self, kind: str, key: str, alpha: float | None, answer: Any) -> None:
        self._memory[kind, key, alpha] = answer
        file = self._file(kind, key, alpha)
        if file is not None:
            what = {"problem": json.loads(key), "alpha": alpha, "answer": answer, "digest": _digest(answer)}
            write_atomically(file, json.dumps(what).encode())


def _digest(answer: Any) -> str:
    return hashlib.sha256(canonical_json(answer).encode()).hexdigest()
