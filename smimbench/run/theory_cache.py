"""Stored theory results (points, thresholds, an algorithm's own theory), each computed once, with progress reports."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from smimbench.files import JsonObject, StoreError, canonical_json, error_line, printable, read_json, steady_folder
from smimbench.interfaces import Conditions, Uncertain
from smimbench.problem.problem import NoTheoryError, Problem, ProblemError, without
from smimbench.registry.registry import get_registry
from smimbench.run.executor import Executor, Task
from smimbench.run.record import LONGEST, check_answer, document_text, read_answer, write_answer
from smimbench.run.store import move_aside
from smimbench.run.theory_guard import THEORY_ERRORS, Progress, TheoryError, TheoryProcess, answer_of
from smimbench.suite.cells import build_algorithm, build_problem, key_of
from smimbench.theory.consistency import require_consistent, require_consistent_at
from smimbench.theory.coupled import CoupledCurve
from smimbench.theory.generalization import curve_errors, point_errors
from smimbench.theory.information import Nodes, nodes_of
from smimbench.theory.limit import own_document
from smimbench.theory.predictions import competing, curve_of, independent_parts, point_document, solve_part, thresholds

P = ParamSpec("P")
T = TypeVar("T")
Ratio = float | tuple[float, ...] | None
"""Sample ratio of an answer; those of a whole curve; None for thresholds."""

THEORY_VERSION = 22
"""Raised when the numbers of the state-evolution solver itself change: remembered values of older ones are not used."""
OWN_VERSION = 6
"""Raised when what theory says of shipped algorithms themselves changes, and their estimates do not: only these answers are then
computed again."""
SLOW = 0.02
"""Seconds from which on a node is kept; doubled, fewer are, and an interrupted curve repeats a little more."""


def _boundary(method: Callable[P, T]) -> Callable[P, T]:
    """A method that raises ``THEORY_ERRORS`` only, whatever a plugin does, and leaves the working folder as it was."""

    @functools.wraps(method)
    def guarded(*arguments: P.args, **how: P.kwargs) -> T:
        try:
            with steady_folder():
                return method(*arguments, **how)
        except (*THEORY_ERRORS, StoreError):
            raise
        except Exception as error:  # a plugin may raise anything
            name, _, message = error_line(error).partition(": ")
            raise TheoryError.named(name, message) from error

    return guarded


class Kept(NamedTuple):
    """How much of the theory of some problems is stored."""

    points: int
    thresholds: int
    nodes: int


class NotStored(ProblemError):
    """A theory result is not stored and the cache may only read."""


class TheoryCache:
    """Theory results of problems; each is solved once and read from then on.

    Parameters
    ----------
    folder : Path or None
        Where answers and nodes are remembered between processes (one small file each); None remembers nothing.
    isolated : bool
        Whether what needs third-party code is solved in another process (``smimbench.run.theory_guard``).
    deadline : float or None
        Moment (``time.monotonic``) after which nothing more is solved; then everything is solved in another process, which
        can be ended.

    Attributes
    ----------
    watch : callable
        Told of every answer to a question about a problem, and of every node on the way to it.
    remark : callable
        Told in one line of answers that are not used: the code of an item, or the file itself, has changed.
    solves : bool
        Whether what is missing is solved; otherwise asking for it raises ``NotStored``, and ``is_missing`` becomes True.
    predicts : bool
        Whether points that are solved have errors of prediction, too; these are then added to stored ones that lack them.
    """

    def __init__(self, folder: Path | None = None, *, isolated: bool = False, deadline: float | None = None) -> None:
        self.folder = folder
        self.process = TheoryProcess(folder, deadline) if isolated else None
        self.watch: Callable[[Problem, Progress], None] = lambda problem, progress: None
        self.remark: Callable[[str], None] = lambda line: None
        self.solves = self.predicts = True
        self.is_missing = False
        self._memory: dict[tuple[str, str, Ratio], Any] = {}
        self._consistent: set[str] = set()

    @property
    def is_late(self) -> bool:
        """Whether something was not solved because of the deadline."""
        return self.process is not None and self.process.is_late

    @_boundary
    def points(self, problem: Problem, alphas: Sequence[float]) -> list[list[JsonObject]]:
        """For every alpha the competing branches as JSON objects, the Bayes-optimal one first."""
        key = canonical_json(problem.spec)
        wanted = [float(a) for a in alphas]
        missing = [a for a in dict.fromkeys(wanted) if not self._suffices(self._recall("point", problem, key, a))]
        done, total = len(set(wanted)) - len(missing), len(set(wanted))
        self.watch(problem, Progress(done, total))
        if missing:
            with self._nodes(problem).watched(
                lambda nodes, alpha: self.watch(problem, Progress(done, total, nodes, alpha))
            ):
                for alpha, points in zip(missing, self._solved("points", problem, missing)):
                    self._remember("point", problem, key, alpha, points)
                    done += 1
                    self.watch(problem, Progress(done, total, self._nodes(problem).count, alpha))
        return [self._memory["point", key, alpha] for alpha in wanted]

    def _suffices(self, points: list[JsonObject] | None) -> bool:
        lacks = self.solves and self.predicts and any("generalization_error" not in point for point in points or ())
        return points is not None and not lacks

    def at_hand(self, what: str, problem: Problem, *more: Any) -> Any:
        """What ``points``, ``curve`` or ``thresholds`` gives; None where it is not stored and this cache only reads, or where no
        theory is known.
        """
        with contextlib.suppress(NotStored, NoTheoryError):
            return getattr(self, what)(problem, *more)
        return None

    @_boundary
    def curve(self, problem: Problem, alphas: Sequence[float]) -> list[list[JsonObject]] | None:
        """As ``points`` for a whole line of a figure, which is one answer; None where components mix, which takes minutes.

        Errors of prediction are interpolated along it, or left out where several components are read off a curve that thresholds
        have followed: a reading costs a hundredth of a second, they cost thirty times that.
        """
        wanted = tuple(float(a) for a in alphas)
        if self._is_costly(problem) and not self._is_kept("curve", canonical_json(problem.spec), wanted):
            return None
        found: list[list[JsonObject]] = self._answer("curve", problem, problem.spec, wanted, wanted)
        return found

    @_boundary
    def thresholds(self, problem: Problem) -> JsonObject:
        """Thresholds as a JSON object."""
        found: JsonObject = self._answer("thresholds", problem, problem.spec, None)
        self.watch(problem, Progress(1, 1, self._nodes(problem).count))
        return found

    def thresholds_at_hand(self, problem: Problem) -> JsonObject:
        """Thresholds for a figure; empty where they take minutes, or are not to be solved, and nobody has asked for them yet."""
        wanted = self._is_kept("thresholds", canonical_json(problem.spec), None) or not self._is_costly(problem)
        return (wanted and self.at_hand("thresholds", problem)) or {}

    def _is_costly(self, problem: Problem) -> bool:
        """Whether components are coupled, so that a curve takes minutes; of third-party code nothing is called here."""
        if problem.components == 1 or problem.no_theory is not None:
            return False
        isolated = self.process is not None and self.process.takes(problem)
        self._nodes(problem)
        return isolated or isinstance(curve_of(problem), CoupledCurve)

    @_boundary
    def own(self, problem: Problem, spec: JsonObject, alpha: float, conditions: Conditions) -> JsonObject | str:
        """An algorithm's own theory: its point as a JSON object, or the reason why there is none.

        ``spec`` names it with its version and parameters; what the problem's own theory says is added to the conditions.
        """
        asked = [spec, *(np.asarray(starts).tolist() if i == 2 else starts for i, starts in enumerate(conditions))]
        points = tuple(self.points(problem, [alpha])[0])
        if not self.predicts:  # stored points may have them all the same
            points = tuple({k: v for k, v in one.items() if not k.startswith("generalization_error")} for one in points)
        more = spec, float(alpha), conditions._replace(points=points)
        question = [problem.spec, asked, OWN_VERSION, *([] if self.predicts else ["without errors of prediction"])]
        found: JsonObject | str = self._answer("own", problem, question, float(alpha), *more)
        return found

    def _answer(self, kind: str, problem: Problem, question: Any, ratio: Ratio, *more: Any) -> Any:
        """A theory result that is stored already, or is solved and stored now."""
        key = canonical_json(question)
        if self._recall(kind, problem, key, ratio) is None:
            self.watch(problem, Progress(0, 1))
            with self._nodes(problem).watched(lambda nodes, alpha: self.watch(problem, Progress(0, 1, nodes, alpha))):
                (found,) = self._solved(kind, problem, *more)
            self._remember(kind, problem, key, ratio, found)
        return self._memory[kind, key, ratio]

    def _solved(self, what: str, problem: Problem, *more: Any) -> Iterator[Any]:
        problem.require_theory()
        if not self.solves:
            self.is_missing = True
            raise NotStored("theory", "not stored")
        return self.solve(what, problem, *more)

    def solve(self, what: str, problem: Problem, *more: Any) -> Iterator[Any]:
        """Answers, found now: branches at each sample ratio for ``"points"``, else one."""
        algorithms = more[:1] if what == "own" else ()
        if self.process is not None and self.process.takes(problem, *algorithms):
            answer = self.process.ask(
                what, problem, self.predicts, *more, on_event=functools.partial(self._report, problem)
            )
            yield from answer if what == "points" else [answer]
            return
        if what == "own":
            spec, alpha, conditions = more
            yield own_document(build_algorithm(spec, problem), problem, alpha, conditions)
            return
        self.begin(problem)
        if what == "thresholds":
            yield thresholds(problem)
        elif what == "curve":
            solved = competing(problem, *more)
            flat = [p for branches in solved for p in branches]
            errors: Iterator[Any] = itertools.repeat(None)
            if problem.components == 1:
                errors = iter(curve_errors(problem, *zip(*((p.Q, p.V, p.error) for p in flat))))
            yield [[point_document(problem, p, next(errors)) for p in branches] for branches in solved]
        else:
            for part in curve_of(problem).batches(*more):
                solved = competing(problem, part)
                require_consistent_at(problem, [(p.Q, p.V) for b in solved for p in b], clock=time.perf_counter)
                for branches in solved:
                    yield [
                        point_document(problem, p, point_errors(problem, p.Q, p.V, p.error) if self.predicts else None)
                        for p in branches
                    ]

    def _report(self, problem: Problem, event: JsonObject) -> None:
        """Pass on what the other process reports."""
        if "progress" in event:
            self.watch(problem, Progress(*event["progress"]))
        else:
            self.remark(printable(event["remark"], LONGEST))

    # -- what is kept ---------------------------------------------------------------------------------------------------

    def kept(self, problems: Iterable[tuple[Problem, Sequence[float]]]) -> Kept:
        """How many results for these sample ratios, and how many nodes, are on disk or in memory."""
        points = found = nodes = 0
        for problem, alphas in problems:
            key = canonical_json(problem.spec)
            points += sum(self._is_kept("point", key, float(alpha)) for alpha in alphas)
            found += self._is_kept("thresholds", key, None)
            nodes += len(list(self.nodes_folder(key).glob("[!.]*.json"))) if self.folder is not None else 0
        return Kept(points, found, nodes)

    def stored_answers(self) -> Iterator[tuple[str, JsonObject]]:
        """Stored answers that have been read or solved so far, with their kinds, as their files hold them."""
        for kind, key, ratio in self._memory:
            file = self._file(kind, key, ratio)
            if file is not None and file.exists():
                yield kind, read_json(file)

    def set_aside(self, problems: Iterable[Problem]) -> None:
        """Move results and nodes of these problems aside, so that they are computed again."""
        keys = {canonical_json(problem.spec) for problem in problems}
        self._memory = {name: answer for name, answer in self._memory.items() if name[1] not in keys}
        if self.folder is not None:
            files = [path for path, problem in self._stored_problems() if canonical_json(problem) in keys]
            for path in (*files, *filter(Path.is_dir, map(self.nodes_folder, keys))):
                move_aside(path, self.folder)

    def _stored_problems(self) -> Iterator[tuple[Path, Any]]:
        """Files of answers, each with the problem that it names."""
        for path in () if self.folder is None else self.folder.glob("[!.]*-*.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, IndexError):
                found = read_json(path)["problem"]
                yield path, found[0] if isinstance(found, list) else found  # an answer for an algorithm names it, too

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
            self.process.ask("begin", problem, self.predicts, on_event=functools.partial(self._report, problem))
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
            if isinstance(other, dict) and other != problem.spec and without("source", other) == bare:
                count += 1
                changed |= {kind for kind in kinds if other[kind].get("source") != problem.spec[kind]["source"]}
        for kind in kinds:
            if kind in changed:
                name, version = problem.spec[kind]["name"], problem.spec[kind]["version"]
                self.remark(
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
                answer = self._sound_answer("nodes", path, {"problem": spec, "node": path.stem}, problem.components)
                if answer is not None:
                    value, error = (np.array(answer[name], dtype=float) for name in ("value", "error"))
                    nodes[path.stem] = Uncertain(value, error, answer["method"])
            return nodes

        def evaluate(name: str, work: Callable[[], Uncertain]) -> tuple[Uncertain, bool]:
            begin = time.perf_counter()
            node = work()
            if time.perf_counter() - begin < SLOW:
                return node, False
            write_answer(folder / f"{name}.json", {"problem": spec, "node": name}, node_answer(node))
            return node, True

        return nodes_of(problem, lambda: Nodes(read, evaluate))

    def nodes_folder(self, key: str) -> Path:
        """Folder of the nodes of a problem, whose specification as canonical JSON is ``key``."""
        assert self.folder is not None
        return self.folder / "nodes" / nodes_name(key)

    def _file(self, kind: str, key: str, alpha: Ratio) -> Path | None:
        return None if self.folder is None else self.folder / answer_name(kind, key, alpha)

    def _is_kept(self, kind: str, key: str, alpha: Ratio) -> bool:
        file = self._file(kind, key, alpha)
        return (kind, key, alpha) in self._memory or (file is not None and file.exists())

    def _recall(self, kind: str, problem: Problem, key: str, alpha: Ratio) -> Any:
        file = self._file(kind, key, alpha)
        if (kind, key, alpha) not in self._memory and file is not None:
            question = {"problem": json.loads(key), "alpha": alpha}
            found = self._sound_answer(kind, file, question, problem.components)
            if found is not None:
                self._memory[kind, key, alpha] = found
        return self._memory.get((kind, key, alpha))

    def _sound_answer(self, kind: str, file: Path, question: JsonObject, components: int) -> Any:
        """Read a stored result; an invalid one is moved aside with a remark and computed again."""
        try:
            answer = read_answer(file, question)["answer"]
            check_answer(kind, answer, components)
            return answer
        except OSError:
            return None
        except ValueError as error:
            self._refuse(file, error)
            return None

    def _refuse(self, file: Path, error: ValueError) -> None:
        self.remark(f"{file}: {error}; not used, computed again")
        move_aside(file, file.parent)

    def _remember(self, kind: str, problem: Problem, key: str, alpha: Ratio, answer: Any) -> None:
        answer = json.loads(document_text(answer))
        check_answer(kind, answer, problem.components)  # what would not be read again must not be written
        self._memory[kind, key, alpha] = answer
        file = self._file(kind, key, alpha)
        if file is not None:
            write_answer(file, {"problem": json.loads(key), "alpha": alpha}, answer)


class StoredTheory(TheoryCache):
    """Answers as they are stored: nothing is solved, and a file that cannot be trusted stays where it is.

    Attributes
    ----------
    missing : set of Path
        Files of answers that were asked for and are not there.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, isolated=True)
        self.solves = False
        self.missing: set[Path] = set()

    def _recall(self, kind: str, problem: Problem, key: str, alpha: Ratio) -> Any:
        answer, file = super()._recall(kind, problem, key, alpha), self._file(kind, key, alpha)
        if answer is None and problem.no_theory is None and file is not None and not file.exists():
            self.missing.add(file)
        return answer

    def _refuse(self, file: Path, error: ValueError) -> None:
        self.remark(f"{file}: {error}; not used")


def solve_in_processes(
    wanted: Sequence[tuple[Problem, Sequence[float]]],
    cache: TheoryCache,
    workers: int,
    on_progress: Callable[[int, Progress], None],
    *,
    thresholds: bool,
) -> None:
    """Solve problems and their sample ratios in parallel, and store the results in the folder of the cache.

    Parameters
    ----------
    wanted : sequence of (Problem, sequence of float)
    on_progress : callable
        Called with the number of a problem (from 0) and how far it is.

    Raises
    ------
    ProblemError
        What a process raised; or that one died.
    """

    def progress(i: int) -> Progress:
        problem, ratios = wanted[i]
        found = cache.kept([(problem, ratios)])
        return Progress(found.points + thresholds * found.thresholds, len(ratios) + thresholds, found.nodes)

    def hear(i: int, event: JsonObject) -> None:
        if "progress" in event:
            on_progress(i, Progress(*event["progress"]))

    todo = [i for i in range(len(wanted)) if (now := progress(i)).done < now.total]
    executor = Executor(workers, 1, get_registry(), folder=str(cache.folder))
    looked = time.monotonic()

    def look(underway: object) -> None:
        """How far all are: parts of a curve say nothing until they end."""
        nonlocal looked
        if time.monotonic() > looked + 1:
            looked = time.monotonic()
            for i in todo:
                on_progress(i, progress(i))

    try:
        for i in todo:
            cache.begin(wanted[i][0])
            on_progress(i, progress(i))
        parts = [(i, ("part", part)) for i in todo for part in independent_parts(*wanted[i])]
        whole = [(i, ("whole", list(wanted[i][1]), thresholds)) for i in todo]
        for stage in (parts, whole):
            tasks = {}
            for i, (what, *more) in stage:
                arguments = what, wanted[i][0].spec, cache.predicts, *more
                tasks[Task(arguments, frozenset(), on_event=functools.partial(hear, i))] = i
            for ended in executor.run(tasks, on_look=look):
                answer_of(ended)
                on_progress(tasks[ended.task], progress(tasks[ended.task]))
    finally:
        executor.end()


class Solver:
    """Worker that solves theory questions in its own process and sends intermediate results to the parent."""

    def __init__(self, folder: str | None, tell: Callable[..., None]) -> None:
        self._cache = TheoryCache(None if folder is None else Path(folder))
        self._cache.watch = lambda problem, progress: tell(progress=list(progress))
        self._cache.remark = lambda line: tell(remark=line)
        self._problems: dict[str, Problem] = {}

    def answer(self, what: str, spec: JsonObject, predicts: bool, *more: Any) -> Any:
        """Answer one theory question about a problem; ``predicts`` as for ``TheoryCache``.

        Raises
        ------
        ProblemError
        """
        key = canonical_json(spec)
        if key not in self._problems:
            self._problems[key] = build_problem(spec)
        problem, cache = self._problems[key], self._cache
        cache.predicts = predicts
        if problem.spec != spec:
            raise ProblemError("theory", "a package was changed since this began; run the same command again")
        if what in ("begin", "points", "thresholds"):
            return getattr(cache, what)(problem, *more)
        if what == "part":
            cache.begin(problem)
            return solve_part(problem, *more)
        if what == "whole":
            alphas, with_thresholds = more
            cache.points(problem, alphas)
            return cache.thresholds(problem) if with_thresholds else None
        (found,) = cache.solve(what, problem, *more)
        return found


def answer_name(kind: str, key: str, alpha: Ratio, version: int = THEORY_VERSION) -> str:
    """Name of the file of an answer: ``kind`` and a digest of its question, whose problem as canonical JSON is ``key``."""
    return f"{kind}-{key_of([version, kind, key, alpha])}.json"


def node_answer(found: Uncertain) -> JsonObject:
    """A node in the form in which its file stores it."""
    value, error = (np.asarray(part, dtype=float).tolist() for part in (found.value, found.error))
    return {"value": value, "error": error, "method": found.method}


def nodes_name(key: str, version: int = THEORY_VERSION) -> str:
    """Name of a problem's folder of nodes."""
    return key_of([version, key])
