"""All keys of a suite file, by table (problem, grid, algorithms, run, figure), with type, default, bounds and meaning.

Reading, ``--set``, the key of a cell and the page docs/suite.md are derived from these tables. To add a run option, add a field
to ``RunOptions``: its meaning below it, ``InKey`` if it can change a result; read it as ``cell.run.NAME``.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field

from smimbench.interfaces.checks import LARGEST_PARAMETER
from smimbench.problem.problem import DEFAULT_INPUTS
from smimbench.registry.items import Parameters
from smimbench.suite import SuiteError

T = TypeVar("T")
STARTS = ("uninformed", "informed")
"""Values of ``run.start`` that the engine itself provides; any other value is the name of an algorithm with a ``start``."""
ORACLE = "oracle"
"""The value of `settings` in tables for an algorithm that starts near the teacher."""


@dataclass(frozen=True)
class InKey:
    """Marker of a run option that can change a result and is therefore part of a cell's key.
    With ``left_out_at_default`` it is left out of the key where it has its default.

    Attributes
    ----------
    left_out_at_default : bool
        For options that came after the first records were written: at their default they are left out of the key, so that
        older records keep theirs. Such a default must never change.
    """

    left_out_at_default: bool = False


def _list_as_tuple(value: object) -> object:
    """Convert a value that is a TOML list to a tuple."""
    return tuple(value) if isinstance(value, list) else value


def as_axis(value: object) -> object:
    """Turn a single value into a grid axis of length 1."""
    return _list_as_tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _infinity_as_none(value: object) -> object:
    """Replace an infinite limit (``value``) by None, which means no limit."""
    return None if value == math.inf else value


def checked_distinct(values: Sequence[Any]) -> Sequence[Any]:
    """Check that a grid axis lists no value twice, and return its values.

    A repeated value would count its runs twice and make the standard error too small.

    Raises
    ------
    ValueError
    """
    if not values:
        raise ValueError("must list at least one value")
    first_positions: dict[str, int] = {}
    for position, value in enumerate(values):
        is_integer = isinstance(value, int) and not isinstance(
            value, bool
        )  # 1 and 1.0 are one value
        first_position = first_positions.setdefault(
            json.dumps(
                float(value) if is_integer else value, sort_keys=True, default=str
            ),
            position,
        )
        if first_position != position:
            raise ValueError(
                f"{value!r} is listed twice, as entries {first_position} and {position}; remove one of them"
            )
    return values


def require_distinct(values: Sequence[object], file: str, key: str) -> None:
    """Raise SuiteError for ``key`` of the suite ``file`` if a grid axis lists a value twice."""
    try:
        checked_distinct(values)
    except ValueError as error:
        raise SuiteError(file, key, str(error)) from None


def _require_one_value_per_alpha(
    values: tuple[T, ...], validation: pydantic.ValidationInfo
) -> tuple[T, ...]:
    """Check that values are as many as the sample ratios of their table (in ``validation``), and return them."""
    alpha_count = len(validation.data.get("alpha", values))
    if len(values) != alpha_count:
        raise ValueError(
            f"must have as many numbers as alpha ({alpha_count}), got {len(values)}"
        )
    return values


def _require_overlap_entry(
    entry: tuple[int, ...], validation: pydantic.ValidationInfo
) -> tuple[int, ...]:
    """Check that ``entry`` gives row and column of the overlap matrix and is used with the metric ``overlap`` (read from
    ``validation``); return it.
    """
    if entry and (len(entry) != 2 or validation.data.get("metric") != "overlap"):
        raise ValueError(
            'must be a row and a column of the overlap matrix, and is allowed with metric = "overlap" only'
        )
    return entry


def _require_float32(tf32: bool, validation: pydantic.ValidationInfo) -> bool:
    """Check that TF32 is allowed together with ``dtype = "float32"`` only, and return the option."""
    if tf32 and validation.data.get("dtype") != "float32":
        raise ValueError('TF32 matrix products need run.dtype = "float32"')
    return tf32


ListOf = Annotated[tuple[T, ...], BeforeValidator(_list_as_tuple)]
Axis = Annotated[tuple[T, ...], BeforeValidator(as_axis), Field(min_length=1)]
SampleRatio = Annotated[float, Field(gt=0, le=LARGEST_PARAMETER)]
Dimension = Annotated[int, Field(ge=2, le=10**8)]
Replicates = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0)]
Item = str | dict[str, Any]


class Table(pydantic.BaseModel):
    """Base class of all tables of a suite: rejects unknown keys and values of the wrong type."""

    model_config = pydantic.ConfigDict(
        extra="forbid", strict=True, frozen=True, defer_build=True, allow_inf_nan=False
    )


class SuiteTable(Table):
    """``[suite]``: title, description, source (``reference``) and duration of the suite, and whether it loads ./plugins."""

    title: str = ""
    """Heading of tables and figures; default: the name of the file."""
    description: str = ""
    """One or two sentences below the title."""
    reference: str = ""
    """The paper, or how the curve was derived."""
    duration: str = ""
    """How long it takes and on what, as `5 min on 2 cores`."""
    plugins: bool = False
    """Load `./plugins/*.py` of the working folder, as `--plugins ./plugins` would."""


class Axes(Table):
    """Grid of one problem, ``grid = { ... }``: sample ratios alpha, dimensions, and numbers of replicates (``seeds``);
    default: those of ``[grid]``.
    """

    alpha: Annotated[Axis[SampleRatio], AfterValidator(checked_distinct)] | None = None
    """Sample ratios, n / D or n / d^2: a number > 0 or a list of different ones."""
    dimension: Annotated[Axis[Dimension], AfterValidator(checked_distinct)] | None = (
        None
    )
    """Dimensions D or d: an integer >= 2 or a list of different ones."""
    seeds: Axis[Replicates] | None = None
    """Replicates: instances per point, each drawn independently. A number, or a list with one for each dimension (large ones
    fluctuate less and cost more). Default: 1."""


class GridTable(Axes):
    """``[grid]``: sample ratios, dimensions and replicates that every problem is run on, the root seed, and the largest
    number of cells.
    """

    seed: int = Field(default=0, ge=0, le=2**63)
    """Root of all randomness. Another one gives other teachers, data and starts."""
    max_cells: int = Field(default=100_000, ge=1, le=10**7)
    """A larger suite is refused: it may be a typing error."""


class Items(Table):
    """Model, channel, prior and inputs of a problem, each given by name or as a table with parameters."""

    model: Item
    """How the signal meets the inputs."""
    channel: Item
    """How the latents become the label."""
    prior: Item
    """The law of the signal."""
    inputs: Item = DEFAULT_INPUTS
    """The law of the tokens; default: independent Gaussian ones."""

    def tables(self) -> dict[str, Parameters]:
        """Return model, channel and prior as tables with a ``name``, and the inputs if they are not the default."""
        items_by_kind = {
            "model": self.model,
            "channel": self.channel,
            "prior": self.prior,
        }
        if self.inputs != DEFAULT_INPUTS:
            items_by_kind["inputs"] = self.inputs
        return {
            item_kind: {"name": item} if isinstance(item, str) else dict(item)
            for item_kind, item in items_by_kind.items()
        }


class ProblemTable(Items):
    """``[problem]`` or ``[[problems]]``: model, channel, prior and inputs, with label and grid.

    A list becomes a further axis of the grid, unless it is itself a value of the parameter.
    ``smimbench info NAME`` shows the parameters of an item.
    """

    label: str = ""
    """Name in tables; default: made of the items."""
    grid: Axes = Axes()
    """Sample ratios and dimensions of this problem."""


class Range(Table):
    """Range of numbers that tuning searches, ``{ low = 0.01, high = 3.0, log = true }``."""

    low: float | int
    """The lower end."""
    high: float | int
    """The upper end."""
    log: bool = False
    """Spread the trials evenly in the logarithm."""

    @pydantic.model_validator(mode="after")
    def _require_ordered_ends(self) -> Range:
        """Check that ``low < high``, that both are finite and, for a logarithmic range, positive."""
        if not -LARGEST_PARAMETER <= self.low < self.high <= LARGEST_PARAMETER:
            raise ValueError(
                f"low must be less than high, and both finite, got {self.low:g} and {self.high:g}"
            )
        if self.log and self.low <= 0:
            raise ValueError(f"low must be > 0 where log is true, got {self.low:g}")
        return self


class OpenTable(Table):
    """Base class of tables that take the parameters of an algorithm as additional keys."""

    model_config = pydantic.ConfigDict(extra="allow")


class TuneTable(OpenTable):
    """``[algorithms.tune]``: parameters that ``smimbench tune`` searches for the ``[[algorithms]]`` table above it, and the
    number of settings to try (``trials``).

    Each further key is a parameter of the algorithm, with a list of values or the ends of a range, as
    ``learning_rate = { low = 0.01, high = 3.0, log = true }`` (a range of integers if the parameter is one). What the algorithm
    itself has as a list is not tuned. Steps and samples cannot be tuned: they belong to the problem. All trials run on one
    seed, at all sample ratios and dimensions of a problem; the better half on one more, the better half of these on two more,
    and so on until one is left, by the mean of the logarithms of the errors; the setting as written goes on in every round.
    Four trials begin with two seeds, two with four. No score ever uses these seeds.
    """

    trials: int = Field(default=8, ge=2, le=1024)
    """Settings that are tried: the one as written and scrambled Sobol points, or all there are if lists give fewer."""


class AlgorithmTable(OpenTable):
    """``[[algorithms]]``: one algorithm; additional keys are its parameters, as ``smimbench info NAME`` lists them.
    ``published`` names the source of its settings, ``start`` puts it near the teacher, ``tune`` is what tuning searches,
    ``assumed`` the channel or prior that it assumes instead of the true one.

    A list, where the algorithm takes none, runs each of its values (``learning_rate = [0.1, 0.3, 1.0]``). One of them is chosen
    by ``smimbench tune`` if the list is in ``[algorithms.tune]``.
    """

    name: str
    """Name of the algorithm."""
    label: str | None = Field(default=None, min_length=1)
    """Name in tables, different from all others; default: `name`."""
    published: str = ""
    """The publication that its settings are from; tables say `as published`."""
    start: Literal["informed"] | None = None
    """`informed`: it starts near the teacher, which contenders may not, whatever `run.start` says. Tables add `from the teacher`
    to its label and say `oracle` under `settings`; it is in no verdict, no ranking and on no board."""
    tune: TuneTable | None = None
    """What `smimbench tune` searches; see `[algorithms.tune]`."""
    assumed: dict[Literal["channel", "prior"], Item] | None = None
    """What it takes the problem for, right or wrong: `{ channel = { beta = 2.0 }, prior = "gaussian" }`. A table without a `name`
    holds the parameters that differ; each list is an axis. Data, errors and the optimum stay those of the problem."""

    @pydantic.field_validator("assumed")
    @classmethod
    def _require_assumption(cls, assumed: Any) -> Any:
        """Check that ``assumed``, if given, names a channel or a prior or sets a parameter of one."""
        if assumed is not None and (
            not assumed
            or any(assumed_item in ({}, "") for assumed_item in assumed.values())
        ):
            raise ValueError("must name a channel or a prior, or set parameters of one")
        return assumed

    def parameters(self) -> Parameters:
        """Parameters of the algorithm as written in the suite, ``assumed`` included."""
        return {
            **(self.model_extra or {}),
            **({"assumed": dict(self.assumed)} if self.assumed else {}),
        }


class ReferenceTable(Table):
    """``[[run.reference]]``: published values of a metric at sample ratios alpha, quoted with their source; shown only with
    the problem they were made for. ``entry`` is one of the overlap matrix, ``branch`` the fixed point, ``tolerance`` the
    accuracy.
    """

    label: str
    """Name in figures."""
    source: str
    """Where the values are published."""
    problem: Items
    """`model`, `channel`, `prior` and `inputs` of the values, as in `[problem]`. They are left out where no problem of the
    suite has exactly these parameters."""
    alpha: ListOf[float]
    """Sample ratios."""
    value: Annotated[ListOf[float], AfterValidator(_require_one_value_per_alpha)]
    """Values, one for each sample ratio."""
    metric: str = "mse"
    """Metric of the values."""
    component: int | None = None
    """Component of the signal, counted from 1; left out: all of them."""
    entry: Annotated[ListOf[int], AfterValidator(_require_overlap_entry)] = ()
    """Row and column, counted from 1, of an entry of the overlap matrix, instead of a component."""
    branch: Literal["optimal", "uninformed", "informed"] = "optimal"
    """Branch that the values belong to where branches compete: `optimal`, `uninformed` or `informed`."""
    tolerance: float | None = Field(default=None, gt=0)
    """How accurate the values are. With it `smimbench theory` shows them next to its own, and figures show it as a bar."""
    remark: str = ""
    """What is known of the values, as why they are off."""


class OptimumTable(Table):
    """``[[optimum]]``: Bayes-optimal errors (``mse``, with standard ``error``) at one dimension and some sample ratios that
    were found without any algorithm of the suite, with their source and command.

    Ratios, verdicts and ``z_at_size`` refer to them where they are given, instead of to a fit of GAMP's runs. They are no part of
    a cell's identity.
    """

    problem: Items
    """`model`, `channel`, `prior` and `inputs`, as in `[problem]`. The values are left out where no problem of the suite has
    exactly these parameters, as after `--set`."""
    dimension: Dimension
    """Dimension of the values."""
    alpha: Annotated[Axis[SampleRatio], AfterValidator(checked_distinct)]
    """Sample ratios, as in the grid."""
    mse: Annotated[
        ListOf[Axis[NonNegative]], AfterValidator(_require_one_value_per_alpha)
    ]
    """Mean over instances of the Bayes-optimal error, one for each sample ratio: a number, or a list with one for each
    component."""
    error: Annotated[
        ListOf[Axis[NonNegative]], AfterValidator(_require_one_value_per_alpha)
    ]
    """Their standard errors."""
    source: Literal["sampled", "closed form"]
    """`sampled` (posterior chains) or `closed form` (exact posteriors)."""
    command: str = Field(min_length=1)
    """The command that computed them."""


class Correction(Table):
    """Entry of a curve's ``corrections``: range of x, from ``above`` to ``below``, in which the published curve is known to
    be wrong, and the section of the docs that says why.
    """

    section: str
    """Heading of docs/corrections.md that says why."""
    above: Axis[float] = (-math.inf,)
    """It explains points from here on, one number or one for each problem; left out: all."""
    below: Axis[float] = (math.inf,)
    """And points up to here."""


class CurveTable(Table):
    """``[[figure.curves]]``: a published curve of a metric, or one for each problem, and the theory or run (``algorithm``)
    that it is compared with. ``table`` is the file of its points, ``columns`` and ``table_x`` what it holds, ``filter``
    selects its rows, ``x_factor`` is the figure's x over alpha, ``band`` the accuracy, ``corrections`` where it is known to
    be wrong. Without a ``table`` it is a learning curve: means over runs are compared with their limit.

    `{rho}` in `label`, `table` and `filter` stands for that parameter of the problem.
    """

    label: str
    """Name in figure and verdict."""
    problems: ListOf[str] = ()
    """Labels of the problems it is of, a curve for each; left out: all."""
    algorithm: str = ""
    """Label of the algorithm that was run; left out: Bayes-optimal theory."""
    metric: str = "mse"
    """What is drawn; `threshold`: where `component` begins to be learned, over the parameter that differs between the
    problems."""
    component: int | None = Field(default=None, ge=1)
    """Component of the signal, counted from 1."""
    x_factor: Axis[float] = (1.0,)
    """The figure's x over alpha, one number or one for each problem."""
    table: str = ""
    """File with the published numbers (CSV). Left out where none were released: the metric during the runs of `algorithm`,
    against the fresh samples so far, is compared with its exact limit."""
    columns: ListOf[str] = Field(default=(), max_length=3)
    """Its columns for x, y and, where there is one, the spread over runs."""
    filter: dict[str, str] = {}
    """Columns and their values, such as `{ rho = "{rho}" }`, if the table holds several curves."""
    table_x: Literal["alpha", "figure"] = "alpha"
    """What the column for x holds: alpha, or the figure's x."""
    band: float = Field(gt=0)
    """How accurate the published numbers are."""
    corrections: ListOf[Correction] = ()
    """Known mistakes: `section`, `above`, `below`."""

    @pydantic.model_validator(mode="after")
    def _require_numbers_or_runs(self) -> CurveTable:
        """Check that the curve has columns of a table, or an algorithm whose runs are compared with their limit."""
        if self.table and len(self.columns) < 2:
            raise ValueError("columns must name those of the table for x and y")
        if not (self.table or self.algorithm):
            raise ValueError("a curve needs a table or an algorithm")
        return self


class FigureTable(Table):
    """``[figure]``: a figure of a paper, for ``smimbench reproduce``: axes, source, what ``--quick`` changes, and curves,
    each in ``[[figure.curves]]``.
    """

    xlabel: str = "sample ratio α"
    """Name of the horizontal axis."""
    ylabel: str = ""
    """Name of the vertical axis; default: the metric."""
    xlim: ListOf[float] = Field(min_length=2, max_length=2)
    """Ends of the horizontal axis."""
    ylim: ListOf[float] = Field(min_length=2, max_length=2)
    """Ends of the vertical axis."""
    xlog: bool = False
    """A logarithmic horizontal axis."""
    ylog: bool = False
    """A logarithmic vertical axis."""
    source: str
    """Where the published tables are."""
    package: str = ""
    """Example package whose items the figure needs; left out: none."""
    quick: ListOf[str] = ()
    """What `--quick` changes, as for `--set`."""
    curves: ListOf[CurveTable] = Field(min_length=1)
    """See `[[figure.curves]]`."""

    @property
    def has_tables(self) -> bool:
        """Whether numbers were published; if not, runs are compared with their limit."""
        return any(curve.table for curve in self.curves)


class RunOptions(Table):
    """``[run]``: how cells are run (stopping ``tolerance``, limits, precision, start) and what is reported (metrics,
    published values in ``reference``). ``target`` is the error that counts as reached where theory says 0.
    """

    tolerance: Annotated[float, InKey()] = Field(default=1e-4, gt=0)
    """An algorithm without a number of steps of its own stops when its undamped relative residual is below this."""
    max_iterations: Annotated[int, InKey()] = Field(default=300, ge=1)
    """Iterations after which it is not converged; an algorithm may start over or continue once."""
    timeout: Annotated[float | None, BeforeValidator(_infinity_as_none), InKey()] = (
        Field(default=None, gt=0)
    )
    """Seconds per cell on the algorithm's clock; left out or `inf`: no limit."""
    metrics: Annotated[ListOf[str], AfterValidator(checked_distinct), InKey()] = Field(
        default=("mse", "overlap"), min_length=1
    )
    """Metrics that are reported. Those that cost extra are part of a cell's identity."""
    start: Annotated[str, InKey()] = "uninformed"
    """Where algorithms begin: `uninformed` (their own choice), `informed` (near the teacher), or the name of an algorithm with
    a method `start`, as `spectral`; its time is then counted."""
    target: float = Field(default=1e-3, gt=0)
    """Absolute error that counts as reached where theory says 0."""
    dtype: Annotated[Literal["float64", "float32", "mixed"], InKey()] = "float64"
    """Precision of all arrays; `mixed`: inputs in float32, all else in float64."""
    tf32: Annotated[
        bool, AfterValidator(_require_float32), InKey(left_out_at_default=True)
    ] = False
    """Allow TF32 in the matrix products of float32 on an accelerator."""
    draw: Annotated[Literal["host", "device"], InKey(left_out_at_default=True)] = "host"
    """Where inputs are drawn: `host` (the same bits on every backend), or `device`, for runs so large that drawing and moving
    them would take longer than solving. On NumPy the device is the host."""
    reference: ListOf[ReferenceTable] = ()
    """Values of others; see `[[run.reference]]`."""

    def identity(self) -> dict[str, object]:
        """Run options that are part of a cell's (run's) identity, as a dictionary of their values."""
        key_options = {}
        for option_name, marker in options_in_key().items():
            option_value = getattr(self, option_name)
            if not (
                marker.left_out_at_default
                and option_value == type(self).model_fields[option_name].default
            ):
                key_options[option_name] = option_value
        return key_options

    def of_cell(self, metrics: tuple[str, ...]) -> RunOptions:
        """Return the run options of a cell: those that are part of its identity, with the given ``metrics``."""
        cell_options = {
            option_name: getattr(self, option_name) for option_name in options_in_key()
        }
        return RunOptions.model_construct(**cell_options | {"metrics": metrics})


@functools.cache
def options_in_key() -> dict[str, InKey]:
    """Names of the run options that are part of a cell's identity, each with its ``InKey`` marker."""
    fields = RunOptions.model_fields.items()
    return {
        option_name: marker
        for option_name, field in fields
        for marker in field.metadata
        if isinstance(marker, InKey)
    }


class Document(Table):
    """All tables of a suite file (problems, grid, algorithms, run options, figure, optimal errors), merged with those of the
    suite that it extends.
    """

    extends: str = ""
    """Name of a shipped suite, or path of another from the folder of this one, whose tables hold where this one says nothing.
    Keys override, `[problem]` and `[[problems]]` replace, `[[algorithms]]` are appended."""
    suite: SuiteTable = SuiteTable()
    """What the suite is."""
    problem: ProblemTable | None = None
    """The problem, where there is one."""
    problems: ListOf[ProblemTable] = ()
    """The problems, where there are several."""
    grid: GridTable = GridTable()
    """What the problems are run on."""
    algorithms: ListOf[AlgorithmTable] = ()
    """The algorithms."""
    run: RunOptions = RunOptions()
    """How cells are run and what is reported."""
    figure: FigureTable | None = None
    """The published figure that this suite reproduces."""
    optimum: ListOf[OptimumTable] = ()
    """Bayes-optimal errors at finite dimension; see `[[optimum]]`."""


def table_at(location: Sequence[int | str]) -> type[Table]:
    """Return the class of the table that holds a key, given by its ``location``: a path of names and list positions."""
    table: type[Table] = Document
    for key in location:
        if isinstance(key, str):
            nested_types = _nested_types(table.model_fields[key].annotation)
            table = next(
                nested_type
                for nested_type in nested_types
                if isinstance(nested_type, type) and issubclass(nested_type, Table)
            )
    return table


def _nested_types(annotation: object) -> Iterator[object]:
    """Yield a type annotation and all types nested in it."""
    yield annotation
    for argument in get_args(annotation):
        yield from _nested_types(argument)


# -- the space that smimbench tune searches -----------------------------------------------------------------------

ParameterPath = tuple[str, ...]
"""Names that lead to a parameter: those of the tables around it, then its own, such as ``("of", "learning_rate")``."""

Setting = dict[ParameterPath, Any]
"""Values of some parameters of an algorithm, used instead of those in the suite."""


@dataclass(frozen=True)
class SearchSpace:
    """Search space of a tuning: a list of values or a range for each of the searched ``parameters``, and the number of
    settings to try (``trials``).
    """

    trials: int
    parameters: dict[ParameterPath, list[object] | Range]

    def document(self) -> dict[str, object]:
        """Return the search space as JSON, with parameters under dotted names such as ``of.learning_rate``."""
        space = {
            ".".join(path): choices.model_dump()
            if isinstance(choices, Range)
            else choices
            for path, choices in self.parameters.items()
        }
        return {"trials": self.trials, "space": space}

    def settings(self, suite_parameters: Mapping[str, object]) -> list[Setting]:
        """Return the settings that tuning tries: the one in the suite (``suite_parameters``), and scrambled Sobol points of
        the search space.

        The points are the same for all algorithms. If every parameter has a list and there are no more combinations than trials,
        all combinations are tried instead. Two settings may be equal.

        Parameters
        ----------
        suite_parameters : dict
            The parameters of the algorithm in the suite; a float among them makes its range one of floats.
        """
        from smimbench.numerics.random_numbers import uniform_points

        suite_setting: Setting = {}
        for path in self.parameters:
            suite_value = _value_in_suite(suite_parameters, path)
            if suite_value is not None:
                suite_setting[path] = suite_value
        value_lists = [
            choices for choices in self.parameters.values() if isinstance(choices, list)
        ]
        has_only_lists = len(value_lists) == len(self.parameters)
        if has_only_lists and math.prod(map(len, value_lists)) <= self.trials:
            combinations = itertools.product(*value_lists)
            listed_settings = (
                dict(zip(self.parameters, combination)) for combination in combinations
            )
            return [suite_setting, *listed_settings]
        settings = [suite_setting]
        sobol_points = uniform_points(len(self.parameters), self.trials - 1, "tuning")
        for sobol_point in sobol_points:
            setting: Setting = {}
            for uniform_number, (path, choices) in zip(
                sobol_point, self.parameters.items()
            ):
                setting[path] = _value_at_quantile(
                    choices, float(uniform_number), suite_setting.get(path)
                )
            settings.append(setting)
        return settings


def _value_in_suite(suite_parameters: object, path: ParameterPath) -> object:
    """Return the value that the suite gives to the parameter at ``path``, or None if it sets none."""
    value = suite_parameters
    for path_name in path:
        value = value.get(path_name) if isinstance(value, dict) else None
    return value


def _value_at_quantile(
    choices: list[object] | Range, u: float, suite_value: object
) -> object:
    """Map the quantile u in [0, 1) to a value of a list or range of ``choices``: a float of four digits, or an integer in a
    range of integers. ``suite_value`` is that of the suite.
    """
    if isinstance(choices, list):
        return choices[int(u * len(choices))]
    low, high = choices.low, choices.high
    is_integer_range = (
        isinstance(low, int)
        and isinstance(high, int)
        and not isinstance(suite_value, float)
    )
    # The largest integer gets a share of the range as large as the others.
    upper_end = high + 1 if is_integer_range else high
    value = low * (upper_end / low) ** u if choices.log else low + (upper_end - low) * u
    return (
        math.floor(value)
        if is_integer_range
        else min(max(float(f"{value:.4g}"), low), high)
    )
