"""Solves questions of theory, each once: answers and nodes are stored, and those of an earlier run are gone on from."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from smimbench.files import (
    JsonObject,
    StoreError,
    canonical_json,
    error_line,
    printable,
    read_json,
    steady_folder,
)
from smimbench.interfaces import Conditions, Uncertain
from smimbench.problem.problem import Problem, without
from smimbench.run.answers import (
    THEORY_ERRORS,
    Answers,
    Memory,
    Place,
    Ratio,
    TheoryError,
    node_answer,
)
from smimbench.run.record import LONGEST, check_answer, document_text, write_answer
from smimbench.run.store import move_aside
from smimbench.run.theory_process import Progress, TheoryProcess
from smimbench.suite.cells import build_algorithm
from smimbench.theory.consistency import require_consistent, require_consistent_at
from smimbench.theory.coupled import CoupledCurve
from smimbench.theory.generalization import curve_errors, point_errors
from smimbench.theory.information import Nodes, nodes_of
from smimbench.theory.limit import own_document
from smimbench.theory.predictions import competing, curve_of, point_document, thresholds
from smimbench.theory.questions import (
    LineQuestion,
    PointsQuestion,
    PredictionQuestion,
    Question,
    ThresholdsQuestion,
)
from smimbench.theory.types import Prediction

P = ParamSpec("P")
T = TypeVar("T")
OnProgress = Callable[[Problem, Progress], None]
"""Called with every answer about a problem, and with every node on the way to it."""

SLOW = 0.02
"""Seconds from which on a node is kept; doubled, fewer are, and an interrupted curve repeats a little more."""


def _boundary(method: Callable[P, T]) -> Callable[P, T]:
    """A method that raises ``THEORY_ERRORS`` only, whatever a plugin does, and leaves the working folder as it was."""

    @functools.wraps(method)
    def guarded(*arguments: P.args, **options: P.kwargs) -> T:
        try:
            with steady_folder():
                return method(*arguments, **options)
        except (*THEORY_ERRORS, StoreError):
            raise
        except Exception as error:  # a plugin may raise anything
            name, _, message = error_line(error).partition(": ")
            raise TheoryError.named(name, message) from error

    return guarded


class TheorySolver(Answers):
    """Answers that are solved where they are not stored.

    Parameters
    ----------
    folder : Path or None
        Where answers and nodes are stored between processes; None stores nothing.
    isolated : bool
        Whether what needs third-party code is solved in another process (``smimbench.run.theory_process``).
    deadline : float or None
        Moment (``time.monotonic``) after which nothing more is solved; then everything is solved in another process, which
        can be ended.
    predictions : bool
        Whether points have errors of prediction; these are added to stored ones that lack them.
    on_progress : callable
        See ``OnProgress``.
    on_remark : callable
        Called with one line for every answer that is not used: the code of an item, or the file itself, has changed.
    memory : Memory or None
        Shared with other answers of this process.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        isolated: bool = False,
        deadline: float | None = None,
        predictions: bool = True,
        on_progress: OnProgress = lambda problem, progress: None,
        on_remark: Callable[[str], object] = lambda line: None,
        memory: Memory | None = None,
    ) -> None:
        super().__init__(
            folder, predictions=predictions, on_remark=on_remark, memory=memory
        )
        self.process = TheoryProcess(folder, deadline) if isolated else None
        self.on_progress = on_progress
        self._consistent: set[str] = set()

    @property
    def is_late(self) -> bool:
        """Whether something was not solved because of the deadline."""
        return self.process is not None and self.process.is_late

    @property
    def answers(self) -> Answers:
        """The answers that are stored, which solve nothing; memory is shared."""
        return Answers(
            self.folder,
            predictions=self.predictions,
            on_remark=self.on_remark,
            memory=self.memory,
        )

    def answer(self, questions: Iterable[Question]) -> Answers:
        """Solve all questions that are not answered yet; where one cannot be solved, the answers raise its error.

        A question is looked at when those before it are answered, so that it may depend on them.
        """
        for question in questions:
            problem = question.problem
            if problem.no_theory is not None:
                continue
            with contextlib.suppress(*THEORY_ERRORS):
                if isinstance(question, PointsQuestion):
                    self.points(problem, question.alphas)
                elif isinstance(question, LineQuestion):
                    self.curve(problem, question.alphas)
                elif isinstance(question, PredictionQuestion):
                    self.own(
                        problem, question.algorithm, question.alpha, question.conditions
                    )
                elif isinstance(question, ThresholdsQuestion) and not (
                    question.if_cheap and self._is_costly(problem)
                ):
                    self.thresholds(problem)
        return self.answers

    @_boundary
    def points(
        self, problem: Problem, alphas: Sequence[float]
    ) -> list[list[JsonObject]]:
        """For every alpha the competing branches as JSON objects, the Bayes-optimal one first."""
        key = canonical_json(problem.spec)
        ratios = [float(alpha) for alpha in alphas]
        missing = [
            a
            for a in dict.fromkeys(ratios)
            if not self._suffices(self._recall("point", problem, key, a))
        ]
        done, total = len(set(ratios)) - len(missing), len(set(ratios))
        self.on_progress(problem, Progress(done, total))
        if missing:
            self._raise_known_error(*(("point", key, alpha) for alpha in missing))
            with (
                self._errors_kept(*(("point", key, alpha) for alpha in missing)),
                self._nodes(problem).watched(
                    lambda nodes, alpha: self.on_progress(
                        problem, Progress(done, total, nodes, alpha)
                    )
                ),
            ):
                problem.require_theory()
                for alpha, points in zip(
                    missing, self.solve("points", problem, missing)
                ):
                    self._remember("point", problem, key, alpha, points)
                    done += 1
                    self.on_progress(
                        problem,
                        Progress(done, total, self._nodes(problem).count, alpha),
                    )
        return [self.memory.answers["point", key, alpha] for alpha in ratios]

    def _suffices(self, points: list[JsonObject] | None) -> bool:
        lacks = self.predictions and any(
            "generalization_error" not in point for point in points or ()
        )
        return points is not None and not lacks

    @_boundary
    def curve(
        self, problem: Problem, alphas: Sequence[float]
    ) -> list[list[JsonObject]] | None:
        """As ``points`` for a whole line of a figure, which is one answer; None where components mix, which takes minutes.

        Errors of prediction are interpolated along it, or left out where several components are read off a curve that thresholds
        have followed: a reading costs a hundredth of a second, they cost thirty times that.
        """
        line = tuple(float(a) for a in alphas)
        if self._is_costly(problem) and not self._is_kept(
            "curve", canonical_json(problem.spec), line
        ):
            return None
        branches: list[list[JsonObject]] = self._answer(
            "curve", problem, canonical_json(problem.spec), line, line
        )
        return branches

    @_boundary
    def thresholds(self, problem: Problem) -> JsonObject:
        """Thresholds as a JSON object."""
        document: JsonObject = self._answer(
            "thresholds", problem, canonical_json(problem.spec), None
        )
        self.on_progress(problem, Progress(1, 1, self._nodes(problem).count))
        return document

    def line_at_hand(
        self, problem: Problem, alphas: Sequence[float]
    ) -> list[list[JsonObject]] | None:
        """See ``Answers``; what is cheap is solved."""
        branches: list[list[JsonObject]] | None = self.at_hand("curve", problem, alphas)
        return branches

    def thresholds_at_hand(self, problem: Problem) -> JsonObject:
        """See ``Answers``; what is cheap is solved."""
        if self._is_costly(problem):
            return super().thresholds_at_hand(problem)
        return self.at_hand("thresholds", problem) or {}

    def _is_costly(self, problem: Problem) -> bool:
        """Whether components are coupled, so that a curve takes minutes; of third-party code nothing is called here."""
        if problem.components == 1 or problem.no_theory is not None:
            return False
        isolated = self.process is not None and self.process.takes(problem)
        self._nodes(problem)
        return isolated or isinstance(curve_of(problem), CoupledCurve)

    @_boundary
    def own(
        self, problem: Problem, spec: JsonObject, alpha: float, conditions: Conditions
    ) -> JsonObject | str:
        """An algorithm's own theory: its point as a JSON object, or the reason why there is none; see ``Answers``."""
        key = self._prediction_key(PredictionQuestion(problem, spec, alpha, conditions))
        with self._errors_kept(("own", key, float(alpha))):
            points = tuple(self.points(problem, [alpha])[0])
        if not self.predictions:  # stored points may have them all the same
            points = tuple(
                {
                    k: v
                    for k, v in point.items()
                    if not k.startswith("generalization_error")
                }
                for point in points
            )
        arguments = spec, float(alpha), conditions._replace(points=points)
        prediction: JsonObject | str = self._answer(
            "own", problem, key, float(alpha), *arguments
        )
        return prediction

    def _answer(
        self, kind: str, problem: Problem, key: str, ratio: Ratio, *arguments: Any
    ) -> Any:
        """An answer that is stored already, or is solved and stored now."""
        if self._recall(kind, problem, key, ratio) is None:
            self._raise_known_error((kind, key, ratio))
            self.on_progress(problem, Progress(0, 1))
            with (
                self._errors_kept((kind, key, ratio)),
                self._nodes(problem).watched(
                    lambda nodes, alpha: self.on_progress(
                        problem, Progress(0, 1, nodes, alpha)
                    )
                ),
            ):
                problem.require_theory()
                (answer,) = self.solve(kind, problem, *arguments)
                self._remember(kind, problem, key, ratio, answer)
        return self.memory.answers[kind, key, ratio]

    def _raise_known_error(self, *places: Place) -> None:
        """Raise the error with which one of these could not be solved before: it would take as long again."""
        for place in places:
            if place in self.memory.errors:
                raise self.memory.errors[place]

    @contextlib.contextmanager
    def _errors_kept(self, *places: Place) -> Iterator[None]:
        """Context that keeps the error with which these answers could not be solved."""
        try:
            yield
        except (KeyboardInterrupt, StoreError):
            raise
        except Exception as error:
            kept = error
            if not isinstance(error, THEORY_ERRORS):
                name, _, message = error_line(error).partition(": ")
                kept = TheoryError.named(name, message)
            self.memory.errors.update(
                (place, kept) for place in places if place not in self.memory.answers
            )
            raise

    def solve(self, kind: str, problem: Problem, *arguments: Any) -> Iterator[Any]:
        """Answers, solved now: branches at each sample ratio for ``"points"``, else one."""
        algorithms = arguments[:1] if kind == "own" else ()
        if self.process is not None and self.process.takes(problem, *algorithms):
            report = functools.partial(self._report, problem)
            answer = self.process.ask(
                kind, problem, self.predictions, *arguments, on_event=report
            )
            yield from answer if kind == "points" else [answer]
            return
        if kind == "own":
            spec, alpha, conditions = arguments
            yield own_document(
                build_algorithm(spec, problem), problem, alpha, conditions
            )
            return
        self.begin(problem)
        if kind == "thresholds":
            yield thresholds(problem)
        elif kind == "curve":
            yield self._line(problem, *arguments)
        else:
            for alphas in curve_of(problem).batches(*arguments):
                solved = competing(problem, alphas)
                overlaps = [
                    (point.Q, point.V) for branches in solved for point in branches
                ]
                require_consistent_at(problem, overlaps, clock=time.perf_counter)
                for branches in solved:
                    yield [self._point(problem, point) for point in branches]

    def _point(self, problem: Problem, point: Prediction) -> JsonObject:
        errors = (
            point_errors(problem, point.Q, point.V, point.error)
            if self.predictions
            else None
        )
        return point_document(problem, point, errors)

    def _line(
        self, problem: Problem, alphas: Sequence[float]
    ) -> list[list[JsonObject]]:
        solved = competing(problem, alphas)
        points = [point for branches in solved for point in branches]
        errors: Iterator[Any] = itertools.repeat(None)
        if problem.components == 1:
            errors = iter(
                curve_errors(
                    problem,
                    *zip(*((point.Q, point.V, point.error) for point in points)),
                )
            )
        return [
            [point_document(problem, point, next(errors)) for point in branches]
            for branches in solved
        ]

    def _report(self, problem: Problem, event: JsonObject) -> None:
        """Pass on what the other process reports."""
        if "progress" in event:
            self.on_progress(problem, Progress(*event["progress"]))
        else:
            self.on_remark(printable(event["remark"], LONGEST))

    # -- what is kept ---------------------------------------------------------------------------------------------------

    def set_aside(self, problems: Iterable[Problem]) -> None:
        """Move results and nodes of these problems aside, so that they are computed again."""
        keys = {canonical_json(problem.spec) for problem in problems}
        for place in [place for place in self.memory.answers if place[1] in keys]:
            del self.memory.answers[place]
        if self.folder is not None:
            files = [
                path
                for path, problem in self._stored_problems()
                if canonical_json(problem) in keys
            ]
            for path in (*files, *filter(Path.is_dir, map(self.nodes_folder, keys))):
                move_aside(path, self.folder)

    def _stored_problems(self) -> Iterator[tuple[Path, Any]]:
        """Files of answers, each with the problem that it names."""
        for path in () if self.folder is None else self.folder.glob("[!.]*-*.json"):
            with contextlib.suppress(
                OSError, ValueError, KeyError, TypeError, IndexError
            ):
                found = read_json(path)["problem"]
                yield (
                    path,
                    found[0] if isinstance(found, list) else found,
                )  # an answer for an algorithm names it, too

    # -- files ----------------------------------------------------------------------------------------------------------

    @_boundary
    def begin(self, problem: Problem) -> None:
        """Test the items of others once, before anything is computed with them; then go on from the nodes that are kept.

        Raises
        ------
        ProblemError
            If an item is not consistent.
        """
        if self.process is not None and self.process.takes(problem):
            self.process.ask(
                "begin",
                problem,
                self.predictions,
                on_event=functools.partial(self._report, problem),
            )
            return
        key = canonical_json(problem.spec)
        if key not in self._consistent:
            require_consistent(problem, clock=time.perf_counter)
            self._consistent.add(key)
            self._compare_code(problem)
        self._nodes(problem)

    def _compare_code(self, problem: Problem) -> None:
        """Report which stored results belong to this problem except for the code of its items."""
        kinds = [kind for kind, spec in problem.spec.items() if "source" in spec]
        bare, count, changed = without("source", problem.spec), 0, set()
        for _, other in self._stored_problems() if kinds else ():
            if (
                isinstance(other, dict)
                and other != problem.spec
                and without("source", other) == bare
            ):
                count += 1
                changed |= {
                    kind
                    for kind in kinds
                    if other[kind].get("source") != problem.spec[kind]["source"]
                }
        for kind in kinds:
            if kind in changed:
                name, version = (
                    problem.spec[kind]["name"],
                    problem.spec[kind]["version"],
                )
                self.on_remark(
                    f"{kind} {name!r} has other code under the same version {version} than when {count} answers of theory were "
                    "kept: they are not used; raise its version when its numbers change"
                )

    def _nodes(self, problem: Problem) -> Nodes:
        """Nodes of a problem; those that took long are kept in a folder, and read from there."""
        if self.folder is None:
            return nodes_of(problem)
        folder, spec = self.nodes_folder(canonical_json(problem.spec)), problem.spec

        def read() -> dict[str, Uncertain]:
            nodes = {}
            for path in folder.glob("[!.]*.json"):
                answer = self._sound_answer(
                    "nodes",
                    path,
                    {"problem": spec, "node": path.stem},
                    problem.components,
                )
                if answer is not None:
                    value, error = (
                        np.array(answer[name], dtype=float)
                        for name in ("value", "error")
                    )
                    nodes[path.stem] = Uncertain(value, error, answer["method"])
            return nodes

        def evaluate(
            name: str, work: Callable[[], Uncertain]
        ) -> tuple[Uncertain, bool]:
            begin = time.perf_counter()
            node = work()
            if time.perf_counter() - begin < SLOW:
                return node, False
            write_answer(
                folder / f"{name}.json",
                {"problem": spec, "node": name},
                node_answer(node),
            )
            return node, True

        return nodes_of(problem, lambda: Nodes(read, evaluate))

    def _refuse(self, file: Path, error: ValueError) -> None:
        self.on_remark(f"{file}: {error}; not used, computed again")
        move_aside(file, file.parent)

    def _remember(
        self, kind: str, problem: Problem, key: str, alpha: Ratio, answer: Any
    ) -> None:
        answer = json.loads(document_text(answer))
        check_answer(
            kind, answer, problem.components
        )  # what would not be read again must not be written
        self.memory.answers[kind, key, alpha] = answer
        file = self._file(kind, key, alpha)
        if file is not None:
            write_answer(file, {"problem": json.loads(key), "alpha": alpha}, answer)
