"""Reads the ``[[algorithms]]`` tables of a suite: settings of listed parameters, and the search space of tuning."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence

import pydantic

from smimbench.files import attempt, canonical_json, omit
from smimbench.interfaces import Algorithm, ParameterError
from smimbench.interfaces.algorithm import plan_of
from smimbench.interfaces.problem import placeholder_data
from smimbench.problem.problem import ProblemError, as_problem_errors, assumed_problem
from smimbench.registry.items import (
    Parameters,
    build,
    explain_validation,
    require_known_names,
    signature_of,
    takes_lists,
)
from smimbench.registry.registry import Entry, RegistryError, get_registry
from smimbench.suite import SuiteError
from smimbench.suite.cells import AlgorithmPlan, ProblemPlan, make_algorithm
from smimbench.suite.schema import (
    ORACLE,
    AlgorithmTable,
    ParameterPath,
    Range,
    SearchSpace,
    Setting,
    TuneTable,
    checked_distinct,
    require_distinct,
)

LIST_OR_RANGE = "must be a list of values, or a range such as { low = 0.01, high = 1.0, log = true }"


def read_algorithms(
    tables: Sequence[AlgorithmTable],
    problem_plans: Sequence[ProblemPlan],
    file: str,
    skip_or_raise: Callable[[ProblemError, str], None],
) -> tuple[AlgorithmPlan, ...]:
    """Check the ``[[algorithms]]`` tables and return one algorithm for each combination of listed parameter values, checked
    on the problems (``problem_plans``); ``skip_or_raise`` handles an algorithm that cannot be built.

    Parameters
    ----------
    file : str
        Path of the suite, for error messages.
    skip_or_raise : callable
        ``skip_or_raise(error, key)``: skips a table whose algorithm cannot be built, or raises.

    Raises
    ------
    SuiteError
    """
    algorithms: list[AlgorithmPlan] = []
    for table_index, table in enumerate(tables):
        table_key = f"algorithms[{table_index}]"
        try:
            table_algorithms = _algorithms_of_table(
                table, table_key, problem_plans, file
            )
        except ProblemError as error:
            _, _, parameter_path = error.key.partition(".")
            skip_or_raise(error, f"{table_key}.{parameter_path}".rstrip("."))
            continue
        entry_label = table_algorithms[0].table_label
        if any(entry_label == algorithm.table_label for algorithm in algorithms):
            raise _repeated_label_error(file, table_key, entry_label)
        for algorithm in table_algorithms:
            _refuse_repeated_algorithm(algorithm, algorithms, file, table_key)
            algorithms.append(algorithm)
    return tuple(algorithms)


def _algorithms_of_table(
    table: AlgorithmTable, key: str, problem_plans: Sequence[ProblemPlan], file: str
) -> list[AlgorithmPlan]:
    """Return the algorithms of one ``[[algorithms]]`` table at ``key`` of the suite, one for each combination of listed
    parameter values; each is checked on the first of the problems (``problem_plans``) that it supports.

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
    listed_parameters = listed_parameters_of(table)
    for path, listed_values in listed_parameters.items():
        require_distinct(listed_values, file, ".".join((key, *path)))
    with as_problem_errors("algorithm"):
        algorithm_entry = get_registry().get("algorithm", table.name)
        require_known_names(
            table.model_extra or (),
            [*signature_of(algorithm_entry.item), *AlgorithmTable.model_fields],
        )
        settings = []
        for combination in itertools.product(*listed_parameters.values()):
            setting = dict(zip(listed_parameters, combination))
            parameters = with_setting(table.parameters(), setting)
            _, spec = make_algorithm(algorithm_entry, parameters)
            settings.append((setting, parameters, spec))
    supported_plan = _first_supported_problem(
        algorithm_entry, table.name, problem_plans
    )
    if table.assumed:
        _require_possible_assumptions(
            [parameters["assumed"] for _, parameters, _ in settings], problem_plans
        )
    search_space = None
    if table.tune:
        _, parameters, _ = settings[0]
        with as_problem_errors("algorithm.tune"):
            search_space = search_space_of(
                table.tune,
                listed_parameters,
                algorithm_entry.item,
                omit(parameters, "assumed"),
                supported_plan,
            )
    algorithms = []
    for setting, parameters, spec in settings:
        setting_origin = "default"
        if table.start:
            setting_origin = ORACLE
        elif table.published:
            setting_origin = "as published"
        elif is_set_by_hand(
            algorithm_entry.item, omit(parameters, "assumed"), supported_plan
        ):
            setting_origin = "by hand"
        setting_text = setting_text_of(setting)
        algorithms.append(
            AlgorithmPlan(
                label=f"{label}, {setting_text}" if setting_text else label,
                table_label=label,
                name=table.name,
                parameters=parameters,
                spec=spec,
                search_space=search_space,
                origin=setting_origin,
                start=table.start,
            )
        )
    return algorithms


def _first_supported_problem(
    entry: Entry, algorithm_name: str, problem_plans: Sequence[ProblemPlan]
) -> ProblemPlan:
    """Return the first of the problems (``problem_plans``) whose model the algorithm (its registry ``entry``) supports, or
    raise ProblemError if there is none.
    """
    for problem_plan in problem_plans:
        if entry.supports_model(problem_plan.problem.model.name):
            return problem_plan
    problem_models = dict.fromkeys(
        repr(problem_plan.problem.model.name) for problem_plan in problem_plans
    )
    raise ProblemError(
        "algorithm.name",
        f"algorithm {algorithm_name!r} works for {', '.join(entry.models)}, not for {' or '.join(problem_models)}",
    )


def _require_possible_assumptions(
    assumptions: Sequence[Parameters], problem_plans: Sequence[ProblemPlan]
) -> None:
    """Raise ProblemError if an assumed channel or prior (``assumptions``: their tables) is possible for none of the problems
    (``problem_plans``).

    If it is impossible for only some problems, the algorithm is skipped on those.
    """
    for assumed_tables in assumptions:
        errors = [
            attempt(assumed_problem, problem_plan.problem, assumed_tables)[1]
            for problem_plan in problem_plans
        ]
        refusal = errors[0]
        if all(errors) and isinstance(refusal, ProblemError):
            raise type(refusal)(f"algorithm.assumed.{refusal.key}", refusal.message)


def _refuse_repeated_algorithm(
    algorithm: AlgorithmPlan,
    algorithms: Sequence[AlgorithmPlan],
    file: str,
    table_key: str,
) -> None:
    """Raise SuiteError, naming the ``table_key``, if one of the earlier ``algorithms`` has the same label, or the same
    settings under another label.
    """
    run_signature = _run_signature(algorithm)
    for earlier_index, earlier_algorithm in enumerate(algorithms):
        if algorithm.label == earlier_algorithm.label:
            raise _repeated_label_error(file, table_key, algorithm.label)
        if run_signature == _run_signature(earlier_algorithm):
            raise SuiteError(
                file,
                table_key,
                f"is the same algorithm as algorithms[{earlier_index}], {earlier_algorithm.label!r}; remove one of the two",
            )


def _run_signature(algorithm: AlgorithmPlan) -> str:
    """Canonical JSON of an algorithm's settings, search space and start; equal for algorithms that would run identically."""
    search_space = algorithm.search_space and algorithm.search_space.document()
    return canonical_json([algorithm.spec, search_space, algorithm.start])


def _repeated_label_error(file: str, table_key: str, label: str) -> SuiteError:
    """Error, at ``table_key`` of the suite, for a label that two algorithms share."""
    return SuiteError(
        file,
        f"{table_key}.label",
        f"{label!r} is used twice; give each algorithm its own label",
    )


# -- settings -----------------------------------------------------------------------------------------------------


def listed_parameters_of(table: AlgorithmTable) -> dict[ParameterPath, list[object]]:
    """Parameters for which an ``[[algorithms]]`` table lists several values to run, with these values."""
    try:
        algorithm_entry = get_registry().get("algorithm", table.name)
    except RegistryError:  # reported when the algorithm is built
        return {}
    return dict(_listed_paths_and_values(algorithm_entry.item, table.parameters()))


def _listed_paths_and_values(
    item_class: Callable[..., object], parameters: Parameters
) -> Iterator[tuple[ParameterPath, list[object]]]:
    """Yield path and values of each parameter of an item (``item_class``) for which several values to run are listed.

    For a parameter whose value is itself a list (two temperatures, say), that is a list of lists.
    """
    for parameter_name, parameter_value in parameters.items():
        if isinstance(parameter_value, list):
            holds_only_lists = parameter_value and all(
                isinstance(list_element, list) for list_element in parameter_value
            )
            if holds_only_lists or not takes_lists(
                item_class, "algorithm", parameter_name
            ):
                yield (parameter_name,), parameter_value
        elif parameter_name == "assumed":
            for item_kind, inner_parameters in parameter_value.items():
                for parameter, values in (
                    inner_parameters.items()
                    if isinstance(inner_parameters, dict)
                    else ()
                ):
                    if isinstance(values, list):
                        yield (parameter_name, item_kind, parameter), values
        elif isinstance(parameter_value, dict) and isinstance(
            parameter_value.get("name"), str
        ):
            # The parameter is an algorithm within this one.
            try:
                inner_class = (
                    get_registry().get("algorithm", parameter_value["name"]).item
                )
            except RegistryError:  # reported when the algorithm is built
                continue
            inner_parameters = omit(parameter_value, "name")
            for path, values in _listed_paths_and_values(inner_class, inner_parameters):
                yield (parameter_name, *path), values


def with_setting(parameters: Parameters, setting: Setting) -> Parameters:
    """Return the parameters of an algorithm, updated with the values of a setting."""
    updated_parameters = dict(parameters)
    for (parameter_name, *inner_path), parameter_value in setting.items():
        if not inner_path:
            updated_parameters[parameter_name] = parameter_value
            continue
        inner_parameters = updated_parameters.get(parameter_name) or {}
        # An algorithm may be given by its name alone.
        inner_parameters = (
            {"name": inner_parameters}
            if isinstance(inner_parameters, str)
            else inner_parameters
        )
        updated_parameters[parameter_name] = with_setting(
            inner_parameters, {tuple(inner_path): parameter_value}
        )
    return updated_parameters


def setting_text_of(setting: Setting) -> str:
    """Write a setting as short text for labels, such as ``learning_rate 0.3, beta1 0.8``."""
    parameter_texts = []
    for path, parameter_value in setting.items():
        if isinstance(parameter_value, float):
            value_text = f"{parameter_value:.12g}"
        else:
            value_text = (
                parameter_value
                if isinstance(parameter_value, str)
                else json.dumps(parameter_value)
            )
        prefix = "assumed " if path[0] == "assumed" else ""
        parameter_texts.append(f"{prefix}{path[-1]} {value_text}")
    return ", ".join(parameter_texts)


def sample_budgets(
    algorithm: Algorithm, problem_plan: ProblemPlan
) -> list[tuple[int | None, int | None, int, bool]]:
    """Steps, batch size, students and fresh samples of an algorithm's run at every grid point of a problem
    (``problem_plan``).

    These belong to the problem and not to its solver, so they are not tuned.
    """
    model = problem_plan.problem.model
    budgets = []
    for alpha, dimension in itertools.product(
        problem_plan.alphas, problem_plan.dimensions
    ):
        sample_count = model.sample_count(alpha, dimension)
        data = placeholder_data(sample_count, model.tokens, dimension, alpha)
        run_plan = plan_of(algorithm, data)
        budgets.append(
            (run_plan.steps, run_plan.batch, run_plan.students, run_plan.draws_fresh)
        )
    return budgets


def is_set_by_hand(
    item_class: Callable[..., object], parameters: Parameters, problem_plan: ProblemPlan
) -> bool:
    """Whether the suite sets a parameter of an algorithm (``item_class``) to another value than its default, parameters of
    steps and samples apart; these are found on the problem of ``problem_plan``.
    """
    algorithm = build(item_class, "algorithm", parameters)
    for parameter_name in parameters:
        other_parameters = omit(parameters, parameter_name)
        algorithm_without_parameter, error = attempt(
            build, item_class, "algorithm", other_parameters
        )
        if error or (
            algorithm_without_parameter != algorithm
            and sample_budgets(algorithm_without_parameter, problem_plan)
            == sample_budgets(algorithm, problem_plan)
        ):
            return True
    return False


# -- the space of a search ---------------------------------------------------------------------------------------


def search_space_of(
    table: TuneTable,
    listed_parameters: Mapping[ParameterPath, object],
    item_class: Callable[..., object],
    parameters: Parameters,
    problem_plan: ProblemPlan,
) -> SearchSpace | None:
    """Return the search space that ``[algorithms.tune]`` (``table``) describes for an algorithm (``item_class``, with these
    ``parameters`` in the suite and several values of ``listed_parameters``); None if there is nothing to search. No searched
    parameter may change steps or samples on the problem.

    Parameters that the algorithm itself lists, its ``listed_parameters``, are not tuned; None if no other parameter is.

    Raises
    ------
    ParameterError
        If the algorithm cannot be made at an end of a range or at a value of a list, or would not be run for the same steps and
        samples.
    """
    require_known_names(
        table.model_extra or (), [*signature_of(item_class), *TuneTable.model_fields]
    )
    searched_parameters = dict(_ranges_or_values(table.model_extra or {}))
    if not searched_parameters:
        raise ParameterError(
            "",
            "must name a parameter to tune, such as learning_rate = { low = 0.01, high = 1.0, log = true }",
        )
    suite_budgets = sample_budgets(
        build(item_class, "algorithm", parameters), problem_plan
    )
    for path, choices in searched_parameters.items():
        for trial_value in (
            (choices.low, choices.high) if isinstance(choices, Range) else choices
        ):
            updated_parameters = with_setting(parameters, {path: trial_value})
            if (
                sample_budgets(
                    build(item_class, "algorithm", updated_parameters), problem_plan
                )
                != suite_budgets
            ):
                raise ParameterError(
                    ".".join(path),
                    "changes the steps or the samples of a run, which belong to the problem and are not tuned; remove it",
                )
    for path in listed_parameters:
        searched_parameters.pop(path, None)
    return (
        SearchSpace(table.trials, searched_parameters) if searched_parameters else None
    )


def _ranges_or_values(
    table: Parameters, *parent_tables: str
) -> Iterator[tuple[ParameterPath, list[object] | Range]]:
    """Yield each parameter of an ``[algorithms.tune]`` table: its path, which begins with the ``parent_tables``, and the
    list or range of its values.

    ``parent_tables`` are the names of the tables that enclose this one.
    """
    for parameter_name, range_or_list in table.items():
        parameter_path = (*parent_tables, parameter_name)
        parameter_key = ".".join(parameter_path)
        if isinstance(range_or_list, list):
            try:
                yield parameter_path, list(checked_distinct(range_or_list))
            except ValueError as error:
                raise ParameterError(parameter_key, str(error)) from None
        elif not isinstance(range_or_list, dict):
            raise ParameterError(
                parameter_key, f"{LIST_OR_RANGE}, got {range_or_list!r}"
            )
        elif not range_or_list.keys() & Range.model_fields.keys():
            yield from _ranges_or_values(range_or_list, *parameter_path)
        else:
            require_known_names(range_or_list, Range.model_fields, *parameter_path)
            try:
                yield parameter_path, Range.model_validate(range_or_list)
            except pydantic.ValidationError as error:
                inner_key, message = explain_validation(error)
                raise ParameterError(
                    f"{parameter_key}.{inner_key}".rstrip("."), message
                ) from None
