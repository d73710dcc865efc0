"""Solves theory that is not stored yet, each question once; stores answers and nodes (information at an overlap)."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np

from smimbench.files import (
    StoreError,
    canonical_json,
    error_line,
    printable,
    read_json,
    restored_working_folder,
)
from smimbench.interfaces import AlgorithmPrediction, Uncertain
from smimbench.numerics.memo import cached_on
from smimbench.problem.problem import Problem, without
from smimbench.run.answers import (
    THEORY_ERRORS,
    AnswerKey,
    Answers,
    Branches,
    Memory,
    TheoryError,
    answer_from_json,
    check_answer,
    document_of,
    key_of_floor,
    key_of_line,
    key_of_point,
    key_of_thresholds,
    node_answer,
    write_answer,
)
from smimbench.run.executor import WorkerMessage
from smimbench.run.record import LONGEST, one_line_json
from smimbench.run.store import move_aside
from smimbench.run.theory_subprocess import TheoryProcess, has_third_party
from smimbench.suite.cells import build_algorithm
from smimbench.theory.consistency import require_consistent, require_consistent_at
from smimbench.theory.first_order import first_order_floor
from smimbench.theory.generalization import curve_errors, point_errors
from smimbench.theory.information import Nodes, nodes_of
from smimbench.theory.predictions import (
    competing,
    curve_of,
    own_theory,
    takes_conditions,
    theory_point,
    thresholds,
)
from smimbench.theory.types import (
    Floor,
    FloorQuestion,
    LineQuestion,
    PointsQuestion,
    Prediction,
    PredictionQuestion,
    Question,
    TheoryPoint,
    Thresholds,
    ThresholdsQuestion,
)

P = ParamSpec("P")
T = TypeVar("T")


class Progress(NamedTuple):
    """Progress in solving a problem's theory: numbers of solved and of all answers, nodes (information at single overlaps) in
    use, the sample ratio alpha reached, and a note on the rest.

    Attributes
    ----------
    solved, total : int
        Answers that are known, and asked for.
    nodes : int
        Nodes in use.
    alpha : float or None
        Sample ratio to which the curve has been followed.
    note : str
    """

    solved: int
    total: int
    nodes: int = 0
    alpha: float | None = None
    note: str = ""


OnProgress = Callable[[Problem, Progress], None]
"""Called with every answer about a problem, and with every node on the way to it."""

SLOW = 0.02
"""Seconds from which on a node is kept; doubled, fewer are, and an interrupted curve repeats a little more."""


def _guarding_plugin_errors(solver_method: Callable[P, T]) -> Callable[P, T]:
    """Decorator of the solver's methods that run plugins: they raise only ``THEORY_ERRORS`` and restore the working folder."""

    @functools.wraps(solver_method)
    def guarded(*arguments: P.args, **keyword_options: P.kwargs) -> T:
        """Call the method with these arguments; an error that is none of ``THEORY_ERRORS`` becomes a TheoryError."""
        try:
            with restored_working_folder():
                return solver_method(*arguments, **keyword_options)
        except (*THEORY_ERRORS, StoreError):
            raise
        except Exception as error:  # a plugin may raise anything
            type_name, _, message = error_line(error).partition(": ")
            raise TheoryError.with_type_name(type_name, message) from error

    return guarded


class TheorySolver(Answers):
    """Solver of questions to theory (fixed points, thresholds, predictions) whose answers are not stored yet.

    Parameters
    ----------
    folder : Path or None
        Where answers and nodes are stored between processes; None stores nothing.
    in_subprocess : bool
        Whether what needs third-party code is solved in another process (``TheoryProcess``).
    deadline : float or None
        Moment (``time.monotonic``) after which nothing more is solved; then everything is solved in another process, which
        can be ended.
    prediction_errors : bool
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
        in_subprocess: bool = False,
        deadline: float | None = None,
        prediction_errors: bool = True,
        on_progress: OnProgress = lambda problem, progress: None,
        on_remark: Callable[[str], object] = lambda remark: None,
        memory: Memory | None = None,
    ) -> None:
        """Solve into ``folder`` (None: in memory), until the moment ``deadline``; code of third-party items runs
        ``in_subprocess`` if asked. ``prediction_errors`` asks for generalization errors; ``on_progress``, ``on_remark`` get
        reports.
        """
        super().__init__(
            folder,
            prediction_errors=prediction_errors,
            on_remark=on_remark,
            memory=memory,
        )
        self.process = TheoryProcess(folder, deadline) if in_subprocess else None
        self.on_progress = on_progress
        self._consistent: set[str] = set()

    @property
    def is_late(self) -> bool:
        """Whether a question was not solved because of the deadline."""
        return self.process is not None and self.process.is_late

    @property
    def answers(self) -> Answers:
        """Read-only access to the stored answers, with the memory of this solver."""
        return Answers(
            self.folder,
            prediction_errors=self.prediction_errors,
            on_remark=self.on_remark,
            memory=self.memory,
        )

    def answer(self, questions: Iterable[Question]) -> Answers:
        """Solve all questions that have no answer yet, in their order; an unsolved one raises its error when it is read."""
        for question in questions:
            problem = question.problem
            if problem.no_theory is not None:
                continue
            with contextlib.suppress(*THEORY_ERRORS):
                if isinstance(question, PointsQuestion):
                    self.points(problem, question.alphas)
                elif isinstance(question, PredictionQuestion):
                    self.prediction(question)
                elif isinstance(question, FloorQuestion):
                    self.floor(problem, question.alpha)
                elif isinstance(question, LineQuestion) and not (
                    self._is_costly(problem)
                ):
                    self.line(problem, question.alphas)
                elif isinstance(question, ThresholdsQuestion) and not (
                    question.if_cheap and self._is_costly(problem)
                ):
                    self.thresholds(problem)
        return self.answers

    @_guarding_plugin_errors
    def points(self, problem: Problem, alphas: Sequence[float]) -> list[Branches]:
        """Find the competing fixed points at each sample ratio alpha, the Bayes-optimal one first."""
        keys = [key_of_point(problem, alpha) for alpha in alphas]
        distinct_keys = list(dict.fromkeys(keys))
        unsolved_keys = [
            key for key in distinct_keys if not self._has_stored_points(problem, key)
        ]
        solved_count, asked_count = (
            len(distinct_keys) - len(unsolved_keys),
            len(distinct_keys),
        )

        def on_node(nodes: int, alpha: float | None) -> None:
            """Report progress at sample ratio alpha, with the number of nodes (information at one overlap) so far."""
            self.on_progress(problem, Progress(solved_count, asked_count, nodes, alpha))

        self.on_progress(problem, Progress(solved_count, asked_count))
        if unsolved_keys:
            with self._solving_context(problem, unsolved_keys, on_node):
                ratios = [cast(float, key.ratio) for key in unsolved_keys]
                branches = self.solve("points", problem, ratios)
                for key, alpha, document in zip(unsolved_keys, ratios, branches):
                    self._store_answer(problem, key, document)
                    solved_count += 1
                    on_node(self._nodes(problem).count, alpha)
        return [cast(Branches, self.memory.answers[key]) for key in keys]

    def _has_stored_points(self, problem: Problem, key: AnswerKey) -> bool:
        """Whether the fixed points under a key are stored, with their generalization errors if these are requested."""
        branches = cast(Branches | None, self._from_memory_or_file(problem, key))
        return branches is not None and not (
            self.prediction_errors
            and any(point.generalization_error is None for point in branches)
        )

    @_guarding_plugin_errors
    def line(self, problem: Problem, alphas: Sequence[float]) -> list[Branches]:
        """Solve the fixed points along a line of a figure, at the sample ratios ``alphas``, as one answer; see ``points``.

        Errors of prediction are interpolated along it, or left out where several components are read off a curve that thresholds
        have followed: a reading costs a hundredth of a second, they cost thirty times that.
        """
        key = key_of_line(problem, alphas)
        self._solve_if_missing("curve", problem, key, key.ratio)
        return super().line(problem, alphas)

    @_guarding_plugin_errors
    def thresholds(self, problem: Problem) -> Thresholds:
        """Solve all thresholds (critical sample ratios) of a problem."""
        self._solve_if_missing("thresholds", problem, key_of_thresholds(problem))
        self.on_progress(problem, Progress(1, 1, self._nodes(problem).count))
        return super().thresholds(problem)

    def _is_costly(self, problem: Problem) -> bool:
        """Whether a curve of a problem of several components takes minutes, or is solved in another process."""
        if problem.components == 1 or problem.no_theory is not None:
            return False
        needs_process = self.process is not None and self.process.must_solve(problem)
        self._nodes(problem)
        return needs_process or curve_of(problem).is_costly

    @_guarding_plugin_errors
    def prediction(self, question: PredictionQuestion) -> AlgorithmPrediction | str:
        """Solve what theory predicts for a ``question`` (algorithm and conditions), or return why there is no prediction."""
        key, problem = self._prediction_key(question), question.problem
        with self._remembering_errors([key]):
            points = [
                point.document() for point in self.points(problem, [question.alpha])[0]
            ]
        if not self.prediction_errors:  # stored points may have them all the same
            for point in points:
                for error_field in [
                    field_name
                    for field_name in point
                    if field_name.startswith("generalization_error")
                ]:
                    del point[error_field]
        conditions = question.conditions._replace(points=tuple(points))
        arguments = question.algorithm, float(question.alpha), conditions
        self._solve_if_missing("own", problem, key, *arguments)
        return super().prediction(question)

    @_guarding_plugin_errors
    def floor(self, problem: Problem, alpha: float) -> Floor | str:
        """Solve the smallest error of a first-order method after every number of passes at a sample ratio alpha, which tends to
        that of the fixed point reached from the prior mean.
        """
        key = key_of_floor(problem, alpha)
        with self._remembering_errors([key]):
            points = self.points(problem, [alpha])[0]
        reached_point = next(
            (point for point in points if point.branch == "uninformed"), points[0]
        )
        self._solve_if_missing("floor", problem, key, float(alpha), reached_point)
        return super().floor(problem, alpha)

    def _solve_if_missing(
        self, kind: str, problem: Problem, key: AnswerKey, *arguments: object
    ) -> None:
        """Compute the answer of this kind, with these ``arguments``, and store it under its key, unless it is stored."""
        if self._from_memory_or_file(problem, key) is not None:
            return

        def on_node(nodes: int, alpha: float | None) -> None:
            """Report progress at sample ratio alpha, with the number of nodes (information at one overlap) so far."""
            self.on_progress(problem, Progress(0, 1, nodes, alpha))

        self.on_progress(problem, Progress(0, 1))
        with self._solving_context(problem, [key], on_node):
            (document,) = self.solve(kind, problem, *arguments)
            self._store_answer(problem, key, document)

    @contextlib.contextmanager
    def _solving_context(
        self,
        problem: Problem,
        keys: Sequence[AnswerKey],
        on_node: Callable[[int, float | None], None],
    ) -> Iterator[None]:
        """Context in which the answers with these ``keys`` are computed: an exception is kept and raised again at later calls,
        and every new node (information at one overlap) is reported to ``on_node``.
        """
        for key in keys:  # solving them again would take as long
            if key in self.memory.errors:
                raise self.memory.errors[key]
        with self._remembering_errors(keys), self._nodes(problem).watched(on_node):
            problem.require_theory()
            yield

    @contextlib.contextmanager
    def _remembering_errors(self, keys: Sequence[AnswerKey]) -> Iterator[None]:
        """Context that keeps an exception raised in it, under the ``keys`` of the answers that could not be computed."""
        try:
            yield
        except (KeyboardInterrupt, StoreError):
            raise
        except Exception as error:
            theory_error = error
            if not isinstance(error, THEORY_ERRORS):
                type_name, _, message = error_line(error).partition(": ")
                theory_error = TheoryError.with_type_name(type_name, message)
            for key in keys:
                if key not in self.memory.answers:
                    self.memory.errors[key] = theory_error
            raise

    def solve(self, kind: str, problem: Problem, *arguments: Any) -> Iterator[Any]:
        """Compute answers of this kind now, with these ``arguments`` of the question, and return them as JSON: one answer, or
        branches at each sample ratio for ``"points"``.
        """
        algorithms = arguments[:1] if kind == "own" else ()
        if self.process is not None and self.process.must_solve(problem, *algorithms):
            on_event = functools.partial(self._forward_event, problem)
            solved_answer = self.process.ask(
                kind, problem, self.prediction_errors, *arguments, on_event=on_event
            )
            yield from solved_answer if kind == "points" else [solved_answer]
        elif kind == "own":
            spec, alpha, conditions = arguments
            algorithm = build_algorithm(spec, problem)

            def predict() -> AlgorithmPrediction | str:
                """Solve the algorithm's own theory under the conditions of its runs."""
                return own_theory(algorithm, problem, alpha, conditions)

            if not takes_conditions(algorithm):  # the same for runs of all dimensions
                predict = functools.partial(
                    cached_on,
                    problem,
                    "own theory",
                    predict,
                    (one_line_json(spec), alpha),
                )
            yield document_of(predict())
        else:
            self.begin(problem)
            if kind == "floor":
                yield document_of(first_order_floor(problem, *arguments))
            elif kind == "thresholds":
                yield thresholds(problem).document()
            elif kind == "curve":
                yield document_of(self._line(problem, *arguments))
            else:
                for branches in self._branches(problem, *arguments):
                    yield document_of(branches)

    def _branches(
        self, problem: Problem, alphas: Sequence[float]
    ) -> Iterator[Branches]:
        """Find the competing fixed points (branches) at each of the sample ratios ``alphas``, the Bayes-optimal one first;
        channel and prior are tested at their overlaps Q and errors V.
        """
        for ratios in curve_of(problem).batches(alphas):
            fixed_points = competing(problem, ratios)
            overlaps = [
                (fixed_point.Q, fixed_point.V)
                for branches in fixed_points
                for fixed_point in branches
            ]
            if has_third_party(*problem.spec.values()):
                require_consistent_at(problem, overlaps, clock=time.perf_counter)
            for branches in fixed_points:
                yield [self._point(problem, fixed_point) for fixed_point in branches]

    def _point(self, problem: Problem, point: Prediction) -> TheoryPoint:
        """Complete a fixed point of theory with its derived quantities, and generalization errors if these are requested."""
        generalization_errors = None
        if self.prediction_errors:
            generalization_errors = point_errors(problem, point.Q, point.V, point.error)
        return theory_point(problem, point, generalization_errors)

    def _line(self, problem: Problem, alphas: Sequence[float]) -> list[Branches]:
        """Find the competing fixed points (branches) along a line of ``alphas``, with interpolated generalization errors."""
        fixed_points = competing(problem, alphas)
        generalization_errors: Iterator[dict[str, Uncertain] | None] = itertools.repeat(
            None
        )
        if problem.components == 1:
            points = [point for branches in fixed_points for point in branches]
            overlaps_and_errors = zip(
                *((point.Q, point.V, point.error) for point in points)
            )
            generalization_errors = iter(curve_errors(problem, *overlaps_and_errors))
        return [
            [
                theory_point(problem, point, next(generalization_errors))
                for point in branches
            ]
            for branches in fixed_points
        ]

    def _forward_event(self, problem: Problem, event: WorkerMessage) -> None:
        """Pass on a progress event or remark that the worker process sent."""
        if "progress" in event:
            self.on_progress(problem, Progress(*event["progress"]))
        else:
            self.on_remark(printable(event["remark"], LONGEST))

    # -- what is kept ---------------------------------------------------------------------------------------------------

    def set_aside(self, problems: Iterable[Problem]) -> None:
        """Move stored results and nodes (information at overlaps) of some problems aside, so that they are computed again."""
        problem_jsons = {canonical_json(problem.spec) for problem in problems}
        for key in [
            key for key in self.memory.answers if key.question in problem_jsons
        ]:
            del self.memory.answers[key]
        if self.folder is not None:
            files = [
                path
                for path, problem in self._stored_problems()
                if canonical_json(problem) in problem_jsons
            ]
            for path in (
                *files,
                *filter(Path.is_dir, map(self.nodes_folder, problem_jsons)),
            ):
                move_aside(path, self.folder)

    def _stored_problems(self) -> Iterator[tuple[Path, Any]]:
        """Yield the files of stored answers, each with its problem."""
        for path in () if self.folder is None else self.folder.glob("[!.]*-*.json"):
            with contextlib.suppress(
                OSError, ValueError, KeyError, TypeError, IndexError
            ):
                question = read_json(path)["problem"]
                # A question about an algorithm begins with the problem.
                yield path, question[0] if isinstance(question, list) else question

    # -- files ----------------------------------------------------------------------------------------------------------

    @_guarding_plugin_errors
    def begin(self, problem: Problem) -> None:
        """Test third-party items of a problem once, then load its stored nodes (information at single overlaps).

        Raises
        ------
        ProblemError
            If an item is not consistent.
        """
        if self.process is not None and self.process.must_solve(problem):
            self.process.ask(
                "begin",
                problem,
                self.prediction_errors,
                on_event=functools.partial(self._forward_event, problem),
            )
            return
        problem_json = canonical_json(problem.spec)
        if problem_json not in self._consistent:
            if has_third_party(*problem.spec.values()):
                require_consistent(problem, clock=time.perf_counter)
            self._consistent.add(problem_json)
            self._remark_changed_code(problem)
        self._nodes(problem)

    def _remark_changed_code(self, problem: Problem) -> None:
        """Report stored results that belong to this problem but were made with other code of its items."""
        problem_spec = problem.spec
        hashed_kinds = [
            item_kind for item_kind, item in problem_spec.items() if "source" in item
        ]
        outdated_count, changed_kinds = 0, set()
        for _, stored_spec in self._stored_problems() if hashed_kinds else ():
            if not isinstance(stored_spec, dict) or stored_spec == problem_spec:
                continue
            if without("source", stored_spec) == without("source", problem_spec):
                outdated_count += 1
                for item_kind in hashed_kinds:
                    if (
                        stored_spec[item_kind].get("source")
                        != problem_spec[item_kind]["source"]
                    ):
                        changed_kinds.add(item_kind)
        for item_kind in hashed_kinds:
            if item_kind in changed_kinds:
                item_name, item_version = (
                    problem_spec[item_kind]["name"],
                    problem_spec[item_kind]["version"],
                )
                self.on_remark(
                    f"{item_kind} {item_name!r} has other code under the same version {item_version} than when {outdated_count} "
                    "answers of theory were stored: those are not used; raise its version when its numbers change"
                )

    def _nodes(self, problem: Problem) -> Nodes:
        """Return the nodes (information at single overlaps) of a problem; those that took long are stored in a folder."""
        if self.folder is None:
            return nodes_of(problem)
        folder, spec = self.nodes_folder(canonical_json(problem.spec)), problem.spec

        def read_nodes() -> dict[str, Uncertain]:
            """Read the nodes (information at single overlaps) that are stored in the folder."""
            nodes = {}
            for path in folder.glob("[!.]*.json"):
                answer = self._trusted_answer(
                    "nodes",
                    path,
                    {"problem": spec, "node": path.stem},
                    problem.components,
                )
                if answer is not None:
                    node_value, error = (
                        np.array(answer[part_name], dtype=float)
                        for part_name in ("value", "error")
                    )
                    nodes[path.stem] = Uncertain(node_value, error, answer["method"])
            return nodes

        def evaluate_and_store(
            name: str, compute: Callable[[], Uncertain]
        ) -> tuple[Uncertain, bool]:
            """Evaluate the node (information at one overlap) ``name``, store it if that took long; return it and
            whether it was.
            """
            timer_start = time.perf_counter()
            node = compute()
            if time.perf_counter() - timer_start < SLOW:
                return node, False
            write_answer(
                folder / f"{name}.json",
                {"problem": spec, "node": name},
                node_answer(node),
            )
            return node, True

        return nodes_of(problem, lambda: Nodes(read_nodes, evaluate_and_store))

    def _report_unusable_file(self, file: Path, error: ValueError) -> None:
        """Report a file whose theory result cannot be trusted, with the ``error`` that says why, and move it aside."""
        self.on_remark(f"{file}: {error}; not used, computed again")
        move_aside(file, file.parent)

    def _store_answer(self, problem: Problem, key: AnswerKey, document: object) -> None:
        """Store an answer, given as JSON (``document``), under its key, after checking that it can be read again."""
        document = json.loads(one_line_json(document))
        check_answer(key.kind, document, problem.components)
        self.memory.answers[key] = answer_from_json(key.kind, document)
        if path := self._file(key):
            answered_question = {
                "problem": json.loads(key.question),
                "alpha": key.ratio,
            }
            write_answer(path, answered_question, document)
