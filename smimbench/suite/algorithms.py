"""Reads the algorithms of a suite: the settings that each ``[[algorithms]]`` table lists, and the search space of its tuning."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence

import pydantic

from smimbench.files import attempt, canonical_json
from smimbench.interfaces import Algorithm, ParameterError
from smimbench.interfaces.algorithm import plan_of
from smimbench.interfaces.problem import sizes
from smimbench.problem.problem import ProblemError, assumed_problem, explained
from smimbench.registry.items import (
    Parameters,
    build,
    explain_validation,
    require_known,
    signature_of,
    takes_lists,
)
from smimbench.registry.registry import Entry, RegistryError, get_registry
from smimbench.suite import SuiteError
from smimbench.suite.cells import AlgorithmPlan, ProblemPlan, make_algorithm
from smimbench.suite.schema import (
    ORACLE,
    AlgorithmTable,
    Key,
    Range,
    SearchSpace,
    Setting,
    TuneTable,
    distinct,
    require_distinct,
)

LIST_OR_RANGE = "must be a list of values, or a range such as { low = 0.01, high = 1.0, log = true }"


def read_algorithms(
    tables: Sequence[AlgorithmTable],
    plans: Sequence[ProblemPlan],
    file: str,
    leave_out: Callable[[ProblemError, str], None],
) -> tuple[AlgorithmPlan, ...]:
    """Check the ``[[algorithms]]`` tables and return one algorithm for each combination of listed parameter values.

    Parameters
    ----------
    file : str
        Path of the suite, for error messages.
    leave_out : callable
        ``leave_out(error, key)``: skips an entry that cannot be built, or raises.

    Raises
    ------
    SuiteError
    """
    algorithms: list[AlgorithmPlan] = []
    for i, table in enumerate(tables):
        key = f"algorithms[{i}]"
        try:
            algorithms_of_table = _read_table(table, key, plans, file)
        except ProblemError as error:
            _, _, place = error.key.partition(".")
            leave_out(error, f"{key}.{place}".rstrip("."))
            continue
        entry = algorithms_of_table[0].entry
        if any(entry == algorithm.entry for algorithm in algorithms):
            raise _repeated_label_error(file, key, entry)
        for algorithm in algorithms_of_table:
            _refuse_repeated(algorithm, algorithms, file, key)
            algorithms.append(algorithm)
    return tuple(algorithms)


def _read_table(
    table: AlgorithmTable, key: str, plans: Sequence[ProblemPlan], file: str
) -> list[AlgorithmPlan]:
    """Return the algorithms of one ``[[algorithms]]`` table.

    Raises ProblemError if the algorithm cannot be built; the caller may then skip it.
    """
    label = table.label or table.name
    if table.start:
        label += ", from the teacher"
        if table.tune:
            raise SuiteError(
                file,
                f"{key}.tune",
                "cannot be used with start = 'informed': an algorithm that starts near the teacher is not ranked or tuned",
            )
    axes = axes_of_table(table)
    for path, values in axes.items():
        require_distinct(values, file, ".".join((key, *path)))
    with explained("algorithm"):
        entry = get_registry().get("algorithm", table.name)
        require_known(
            table.model_extra or (),
            [*signature_of(entry.item), *AlgorithmTable.model_fields],
        )
        settings = []
        for combination in itertools.product(*axes.values()):
            setting = dict(zip(axes, combination))
            parameters = with_setting(table.parameters(), setting)
            _, spec = make_algorithm(entry, parameters)
            settings.append((setting, parameters, spec))
    plan = _first_supported_problem(entry, table.name, plans)
    if table.assumed:
        _require_possible_assumptions(
            [parameters["assumed"] for _, parameters, _ in settings], plans
        )
    tune = None
    if table.tune:
        _, parameters, _ = settings[0]
        with explained("algorithm.tune"):
            tune = tune_of(
                table.tune, axes, entry.item, without_assumed(parameters), plan
            )
    algorithms = []
    for setting, parameters, spec in settings:
        origin = "default"
        if table.start:
            origin = ORACLE
        elif table.published:
            origin = "as published"
        elif by_hand(entry.item, without_assumed(parameters), plan):
            origin = "by hand"
        words = setting_words(setting)
        algorithms.append(
            AlgorithmPlan(
                label=f"{label}, {words}" if words else label,
                entry=label,
                name=table.name,
                parameters=parameters,
                spec=spec,
                tune=tune,
                origin=origin,
                start=table.start,
            )
        )
    return algorithms


def _first_supported_problem(
    entry: Entry, name: str, plans: Sequence[ProblemPlan]
) -> ProblemPlan:
    """Return the first problem that an algorithm supports, or raise ProblemError if it supports none."""
    for plan in plans:
        if entry.fits(plan.problem.model.name):
            return plan
    models = dict.fromkeys(repr(plan.problem.model.name) for plan in plans)
    raise ProblemError(
        "algorithm.name",
        f"algorithm {name!r} works for {', '.join(entry.models)}, not for {' or '.join(models)}",
    )


def _require_possible_assumptions(
    assumptions: Sequence[Parameters], plans: Sequence[ProblemPlan]
) -> None:
    """Raise ProblemError if an assumed channel or prior is possible for none of the problems.

    If it is impossible for only some problems, the algorithm is skipped on those.
    """
    for tables in assumptions:
        errors = [attempt(assumed_problem, plan.problem, tables)[1] for plan in plans]
        error = errors[0]
        if all(errors) and isinstance(error, ProblemError):
            raise type(error)(f"algorithm.assumed.{error.key}", error.message)


def _refuse_repeated(
    algorithm: AlgorithmPlan, algorithms: Sequence[AlgorithmPlan], file: str, key: str
) -> None:
    """Raise SuiteError if a label is already used, or if the same algorithm appears under two labels."""
    runs = _run_signature(algorithm)
    for j, previous in enumerate(algorithms):
        if algorithm.label == previous.label:
            raise _repeated_label_error(file, key, algorithm.label)
        if runs == _run_signature(previous):
            raise SuiteError(
                file,
                key,
                f"is the same algorithm as algorithms[{j}], {previous.label!r}; remove one of the two",
            )


def _run_signature(algorithm: AlgorithmPlan) -> str:
    """Canonical JSON of an algorithm's settings, search space and start; equal for algorithms that would run identically."""
    tune = algorithm.tune and algorithm.tune.document()
    return canonical_json([algorithm.spec, tune, algorithm.start])


def _repeated_label_error(file: str, key: str, label: str) -> SuiteError:
    return SuiteError(
        file,
        f"{key}.label",
        f"{label!r} is used twice; give each algorithm its own label",
    )


# -- settings -----------------------------------------------------------------------------------------------------


def without_assumed(parameters: Parameters) -> Parameters:
    """Parameters of an algorithm without ``assumed``, its table of assumptions on channel and prior."""
    return {name: value for name, value in parameters.items() if name != "assumed"}


def axes_of_table(table: AlgorithmTable) -> dict[Key, list[object]]:
    """Parameters of an ``[[algorithms]]`` table that list several values to run; empty for an unknown algorithm."""
    try:
        entry = get_registry().get("algorithm", table.name)
    except RegistryError:  # reported when the algorithm is built
        return {}
    return dict(_listed_parameters(entry.item, table.parameters()))


def _listed_parameters(
    item: Callable[..., object], parameters: Parameters
) -> Iterator[tuple[Key, list[object]]]:
    """Yield path and values of each parameter that lists several values to run.

    For a parameter whose value is itself a list (two temperatures, say), that is a list of lists.
    """
    for name, value in parameters.items():
        if isinstance(value, list):
            of_lists = value and all(isinstance(entry, list) for entry in value)
            if of_lists or not takes_lists(item, "algorithm", name):
                yield (name,), value
        elif name == "assumed":
            for kind, table in value.items():
                for key, values in table.items() if isinstance(table, dict) else ():
                    if isinstance(values, list):
                        yield (name, kind, key), values
        elif isinstance(value, dict) and isinstance(value.get("name"), str):
            # An algorithm within this one.
            try:
                inner = get_registry().get("algorithm", value["name"]).item
            except RegistryError:  # reported when the algorithm is built
                continue
            table = {key: entry for key, entry in value.items() if key != "name"}
            for path, values in _listed_parameters(inner, table):
                yield (name, *path), values


def with_setting(parameters: Parameters, setting: Setting) -> Parameters:
    """Return the parameters of an algorithm with the values of a setting put in."""
    changed = dict(parameters)
    for (name, *inner), value in setting.items():
        if not inner:
            changed[name] = value
            continue
        table = changed.get(name) or {}
        # An algorithm may be given by its name alone.
        table = {"name": table} if isinstance(table, str) else table
        changed[name] = with_setting(table, {tuple(inner): value})
    return changed


def setting_words(setting: Setting) -> str:
    """Short text of a setting, such as ``learning_rate 0.3, beta1 0.8``."""
    words = []
    for path, value in setting.items():
        if isinstance(value, float):
            text = f"{value:.12g}"
        else:
            text = value if isinstance(value, str) else json.dumps(value)
        assumed = "assumed " if path[0] == "assumed" else ""
        words.append(f"{assumed}{path[-1]} {text}")
    return ", ".join(words)


def budget(
    algorithm: Algorithm, plan: ProblemPlan
) -> list[tuple[int | None, int | None, int, bool]]:
    """Steps, batch size, students and fresh samples of an algorithm's run at every grid point of a problem.

    These belong to the problem and not to its solver, so they are not tuned.
    """
    model = plan.problem.model
    budgets = []
    for alpha, dimension in itertools.product(plan.alphas, plan.dimensions):
        n = model.sample_count(alpha, dimension)
        data = sizes(n, model.tokens, dimension, alpha)
        run = plan_of(algorithm, data)
        budgets.append((run.steps, run.batch, run.students, run.draws_fresh))
    return budgets


def by_hand(
    item: Callable[..., object], parameters: Parameters, plan: ProblemPlan
) -> bool:
    """Whether a parameter differs from its default without changing the budget of steps and samples."""
    algorithm = build(item, "algorithm", parameters)
    for name in parameters:
        without_it = {key: value for key, value in parameters.items() if key != name}
        usual, error = attempt(build, item, "algorithm", without_it)
        if error or (
            usual != algorithm and budget(usual, plan) == budget(algorithm, plan)
        ):
            return True
    return False


# -- the space of a search ---------------------------------------------------------------------------------------


def tune_of(
    table: TuneTable,
    axes: Mapping[Key, object],
    item: Callable[..., object],
    parameters: Parameters,
    plan: ProblemPlan,
) -> SearchSpace | None:
    """Return the search space that ``[algorithms.tune]`` describes for an algorithm.

    Parameters that the algorithm itself lists, its ``axes``, are not tuned; None if no other parameter is.

    Raises
    ------
    ParameterError
        If the algorithm cannot be made at an end of a range or at a value of a list, or would not be run for the same steps and
        samples.
    """
    require_known(
        table.model_extra or (), [*signature_of(item), *TuneTable.model_fields]
    )
    space = dict(_ranges_or_values(table.model_extra or {}))
    if not space:
        raise ParameterError(
            "",
            "must name a parameter to tune, such as learning_rate = { low = 0.01, high = 1.0, log = true }",
        )
    usual = budget(build(item, "algorithm", parameters), plan)
    for path, values in space.items():
        for value in (values.low, values.high) if isinstance(values, Range) else values:
            changed = with_setting(parameters, {path: value})
            if budget(build(item, "algorithm", changed), plan) != usual:
                raise ParameterError(
                    ".".join(path),
                    "changes the steps or the samples of a run, which belong to the problem and are not tuned; remove it",
                )
    for path in axes:
        space.pop(path, None)
    return SearchSpace(table.trials, space) if space else None


def _ranges_or_values(
    table: Parameters, *parents: str
) -> Iterator[tuple[Key, list[object] | Range]]:
    """Yield path and list of values, or range, of each parameter in a search space.

    ``parents`` are the names of the tables that enclose this one.
    """
    for name, value in table.items():
        path = (*parents, name)
        key = ".".join(path)
        if isinstance(value, list):
            try:
                yield path, list(distinct(value))
            except ValueError as error:
                raise ParameterError(key, str(error)) from None
        elif not isinstance(value, dict):
            raise ParameterError(key, f"{LIST_OR_RANGE}, got {value!r}")
        elif not value.keys() & Range.model_fields.keys():
            yield from _ranges_or_values(value, *path)
        else:
            require_known(value, Range.model_fields, *path)
            try:
                yield path, Range.model_validate(value)
            except pydantic.ValidationError as error:
                inner, message = explain_validation(error)
                raise ParameterError(f"{key}.{inner}".rstrip("."), message) from None
