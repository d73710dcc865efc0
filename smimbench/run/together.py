"""Several instances of one size in one pass: each has its own stop, metrics and restart, and the time of a step is shared.

For algorithms that say how (``batched``). A device then makes as many calls for eight small instances as for one.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend.arrays import namespace, read_together, to_host
from smimbench.backend.streaming import StreamedInputs
from smimbench.interfaces import Info, member
from smimbench.problem.instance import locked
from smimbench.run.clock import timed
from smimbench.run.loop import LoopResult, Run, after_restart, restarted, without_restart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smimbench.backend.device import Backend
    from smimbench.interfaces import Data
    from smimbench.problem.instance import Instance
    from smimbench.problem.problem import Problem
    from smimbench.run.loop import Attempt, LoopSettings

__all__ = ["is_user_interrupt", "joined", "run_together"]


def is_user_interrupt(error: BaseException) -> bool:
    """Whether it is the user's Ctrl-C; a worker has that ignored, so there it is a plugin's doing."""
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def joined(data: Sequence[Data]) -> Data | None:
    """The data of several instances with an axis of theirs in front, or None where they are not resident arrays of one kind."""
    kinds = set()
    for one in data:
        if isinstance(one.inputs, StreamedInputs):
            return None
        kinds |= {tuple((a.shape, str(a.dtype), type(a)) for a in (one.inputs, one.labels))}
    if len(kinds) > 1:
        return None
    xp = namespace(data[0].inputs)
    inputs, labels = (locked(xp.stack([getattr(one, name) for one in data])) for name in ("inputs", "labels"))
    return replace(data[0], inputs=inputs, labels=labels, start=None, fresh=None)


def run_together(
    problem: Problem,
    instances: Sequence[Instance],
    data: Sequence[Data],
    algorithm: Any,
    make_rngs: Sequence[Callable[[int], np.random.Generator]],
    settings: Sequence[LoopSettings],
    backend: Backend,
) -> list[LoopResult | BaseException]:
    """Run an algorithm on several instances of one size; see ``smimbench.run.loop.run_algorithm`` for the arguments of each.

    The numbers are those of runs one after the other, up to rounding. What a step takes is divided evenly among the
    instances that take part in it. A step that raises is made again by each alone, so that only those fail that have to.

    Returns
    -------
    list of LoopResult or Exception
        In the order of the instances; the exception that ended it where one did.
    """
    common = list(zip(instances, data, make_rngs, settings))

    def arguments(k: int, version: Any, attempt: int) -> tuple[Any, ...]:
        """Of a ``Run``."""
        instance, own, make_rng, limits = common[k]
        return problem, instance, own, version, make_rng(attempt), limits, backend

    firsts = _attempts_together([arguments(k, algorithm, 0) for k in range(len(common))])
    results: list[LoopResult | BaseException] = []
    again: dict[int, tuple[Attempt, Any]] = {}
    for k, first in enumerate(firsts):
        if isinstance(first, BaseException):
            results.append(first)
            continue
        results.append(without_restart(first))
        try:
            cautious = restarted(problem, algorithm, first)
        except BaseException as error:  # of a plugin: the others are none of its business
            results[k] = _kept(error)
            continue
        if cautious is not None:
            again[k] = first, cautious
    seconds = _attempts_together([arguments(k, cautious, 1) for k, (_, cautious) in again.items()])
    for (k, (first, _)), second in zip(again.items(), seconds):
        results[k] = second if isinstance(second, BaseException) else after_restart(first, second)
    return results


def _attempts_together(arguments: Sequence[tuple[Any, ...]]) -> list[Attempt | BaseException]:
    """One attempt of each, from the arguments of their ``Run``."""
    found: list[Attempt | BaseException | None] = [None] * len(arguments)
    runs: dict[int, Run] = {}
    for k, own in enumerate(arguments):
        try:
            runs[k] = Run(*own)
        except BaseException as error:  # of this instance alone
            found[k] = _kept(error)
    try:
        _step_together([run for run in runs.values() if not run.over])
    except BaseException as error:  # where they stand is not known any more
        _kept(error)
        for run in runs.values():
            if not run.over:
                run.error = error
    for k, run in runs.items():
        try:
            found[k] = run.error or run.drive()  # what is still to be done, it does alone
        except BaseException as error:
            found[k] = _kept(error)
    return [one for one in found if one is not None]


def _kept(error: BaseException) -> BaseException:
    """The error, unless it is to end everything."""
    if is_user_interrupt(error):
        raise error
    return error


def _step_together(active: list[Run]) -> None:
    """Steps of all that go on, until fewer than two do, or a step raises; each is left where it stands."""
    if len(active) < 2:
        return
    problem, backend = active[0].problem, active[0].backend
    try:
        ask = member(active[0].algorithm, "batched")
        batch = ask(problem) if ask is not None else None
        data = joined([run.data for run in active]) if batch is not None else None
        if batch is None or data is None:
            return
        state = batch.join([run.state for run in active])
    except BaseException as error:  # as where the memory does not hold them twice
        _kept(error)
        return
    while len(active) > 1:

        def step(data: Data = data, state: Any = state, count: int = len(active)) -> tuple[Any, list[Info]]:
            new, info = batch.step(problem, data, state)
            return new, _apart(info, count)

        try:
            (new, infos), passed = timed(step, backend, max(run.clock.seconds for run in active))
            estimates = to_host(batch.estimate(new))  # small: metrics are measured on the host, after one transfer
        except BaseException as error:
            _kept(error)
            break  # whose it is, shows when each makes the step alone
        state, share = new, passed.shared(len(active))
        for k, run in enumerate(active):
            run.together = max(run.together, len(active))
            try:
                run.take(run.readings.read(infos[k]), share, partial(estimates.__getitem__, k))
            except BaseException as error:  # of this instance alone
                run.error, run.over = _kept(error), True
        if any(run.over or run.resumed for run in active):  # what is resumed steps in another way, alone
            for run, own in zip(active, batch.split(state)):
                run.state = own
            active = [run for run in active if not (run.over or run.resumed)]
            data = joined([run.data for run in active]) if len(active) > 1 else None
            if data is None:
                return
            state = batch.join([run.state for run in active])
    for run, own in zip(active, batch.split(state)):
        run.state = own


def _apart(info: Info, count: int) -> list[Info]:
    """What a step of several instances reported of each, on the host."""
    values = {name: value for name, value in info._asdict().items() if value is not None and not isinstance(value, str)}
    host = dict(zip(values, read_together(*values.values())))
    found = []
    for k in range(count):
        own = {name: value[k] if np.ndim(value) else value for name, value in host.items()}
        found.append(Info(**{**info._asdict(), **own}))
    return found
