"""Every key of a suite, once, by its table (problem, grid, algorithms, run options, reference values): its type,
default, constraint and meaning.

Reading, ``--set``, the key of a cell and the page docs/suite.md are derived from these tables. To add a run option, add a field
to ``RunOptions``: give it a description, say with ``InKey`` whether it can change a result, and read it as ``cell.run.NAME``.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field

from smimbench.interfaces.checks import LARGEST

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "AlgorithmTable",
    "Axes",
    "Document",
    "Grid",
    "InKey",
    "ProblemTable",
    "Reference",
    "RunOptions",
    "SuiteTable",
    "Table",
    "as_axis",
    "in_key",
    "table_at",
]

T = TypeVar("T")
STARTS = ("uninformed", "informed")
"""Starts that the engine makes; every other one is the name of an algorithm."""


@dataclass(frozen=True)
class InKey:
    """A run option that can change a result: part of a cell's identity.

    Attributes
    ----------
    left_out_at_default : bool
        For options that came after the first records were written: at their default they are left out of the key, so that
        older records keep theirs. Such a default must never change.
    """

    left_out_at_default: bool = False


def _tuple(value: Any) -> Any:
    """Make lists of TOML immutable."""
    return tuple(value) if isinstance(value, list) else value


def as_axis(value: Any) -> Any:
    """A single value is an axis of length 1."""
    return _tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _positive_and_finite(value: float) -> float:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"must be > 0 and finite, got {value}")
    if value > LARGEST:
        raise ValueError(f"must be at most {LARGEST:g}, got {value}")
    return value


def distinct(values: Sequence[Any]) -> Sequence[Any]:
    """The values, none of which stands twice: its runs would count twice, and make the standard error too small.

    Raises
    ------
    ValueError
    """
    seen: dict[str, int] = {}
    for i, value in enumerate(values):
        number = isinstance(value, int) and not isinstance(value, bool)  # 1 and 1.0 are one value
        first = seen.setdefault(json.dumps(float(value) if number else value, sort_keys=True, default=str), i)
        if first != i:
            raise ValueError(f"{value!r} stands there twice, as entries {first} and {i}; remove one")
    return values


def _one_for_each_alpha(values: tuple[float, ...], others: pydantic.ValidationInfo) -> tuple[float, ...]:
    wanted = len(others.data.get("alpha", values))
    if len(values) != wanted:
        raise ValueError(f"must have as many numbers as alpha ({wanted}), got {len(values)}")
    return values


def _of_overlap(entry: tuple[int, ...], others: pydantic.ValidationInfo) -> tuple[int, ...]:
    if entry and (len(entry) != 2 or others.data.get("metric") != "overlap"):
        raise ValueError('must be a row and a column, of metric = "overlap"')
    return entry


def _of_float32(tf32: bool, others: pydantic.ValidationInfo) -> bool:
    if tf32 and others.data.get("dtype") != "float32":
        raise ValueError('needs run.dtype = "float32"')
    return tf32


ListOf = Annotated[tuple[T, ...], BeforeValidator(_tuple)]
Axis = Annotated[tuple[T, ...], BeforeValidator(as_axis), Field(min_length=1)]
SampleRatio = Annotated[float, AfterValidator(_positive_and_finite)]
Dimension = Annotated[int, Field(ge=2, le=10**8)]
Replicates = Annotated[int, Field(ge=1)]
Item = str | dict[str, Any]


class Table(pydantic.BaseModel):
    """A table of a suite: unknown keys and other types than those named are refused."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True)


class SuiteTable(Table):
    """``[suite]``: what the suite is."""

    title: Annotated[str, Field(description="Heading of tables and figures; default: the name of the file.")] = ""
    description: Annotated[str, Field(description="One or two sentences below the title.")] = ""
    reference: Annotated[str, Field(description="The paper, or how the curve was derived.")] = ""
    duration: Annotated[str, Field(description="How long it takes and on what, as `5 min on 2 cores`.")] = ""
    plugins: Annotated[
        bool, Field(description="Load `./plugins/*.py` of the working folder, as `--plugins ./plugins` would.")
    ] = False


class Axes(Table):
    """The grid of one problem, ``grid = { ... }`` in its table; what it leaves out is taken from ``[grid]``."""

    alpha: Annotated[
        Annotated[Axis[SampleRatio], AfterValidator(distinct)] | None,
        Field(description="Sample ratios, n / D or n / d^2: a number > 0 or a list of different ones."),
    ] = None
    dimension: Annotated[
        Annotated[Axis[Dimension], AfterValidator(distinct)] | None,
        Field(description="Dimensions D or d: an integer >= 2 or a list of different ones."),
    ] = None
    seeds: Annotated[
        Axis[Replicates] | None,
        Field(
            description="Replicates: instances per point, each drawn anew. A number, or a list with one for each dimension "
            "(large ones fluctuate less and cost more). Default: 1."
        ),
    ] = None


class Grid(Axes):
    """``[grid]``: the sample ratios, dimensions and replicates that every problem is run on."""

    seed: Annotated[
        int,
        Field(ge=0, le=2**63, description="Root of all randomness. Another one gives other teachers, data and starts."),
    ] = 0
    max_cells: Annotated[
        int, Field(ge=1, le=10**7, description="A larger suite is refused: it may be a typing error.")
    ] = 100_000


class Items(Table):
    """Model, channel and prior, by name or as a table with parameters."""

    model: Annotated[Item, Field(description="How the signal meets the inputs.")]
    channel: Annotated[Item, Field(description="How the latents become the label.")]
    prior: Annotated[Item, Field(description="The law of the signal.")]

    def tables(self) -> dict[str, dict[str, Any]]:
        """All three as tables."""
        written = {"model": self.model, "channel": self.channel, "prior": self.prior}
        return {kind: {"name": one} if isinstance(one, str) else dict(one) for kind, one in written.items()}


class ProblemTable(Items):
    """``[problem]`` or ``[[problems]]``: model, channel and prior, by name or as a table with parameters.

    A parameter that is a list becomes a further axis of the grid. ``smimbench info NAME`` shows the parameters of an item.
    """

    label: Annotated[str, Field(description="Name in tables; default: made of the items.")] = ""
    grid: Annotated[Axes, Field(description="Sample ratios and dimensions of this problem.")] = Axes()


class AlgorithmTable(Table):
    """``[[algorithms]]``: each further key is a parameter of the algorithm (``smimbench info NAME`` lists them)."""

    model_config = pydantic.ConfigDict(extra="allow", strict=True, frozen=True)

    name: Annotated[str, Field(description="Name of the algorithm.")]
    label: Annotated[
        str | None, Field(min_length=1, description="Name in tables, different from all others; default: `name`.")
    ] = None


class Reference(Table):
    """``[[run.reference]]``: published values, quoted with their source; shown only with the problem they were made for."""

    label: Annotated[str, Field(description="Name in figures.")]
    source: Annotated[str, Field(description="Where the values are published.")]
    problem: Annotated[
        Items,
        Field(
            description="`model`, `channel` and `prior` of the values, as in `[problem]`. They are left out where no problem of "
            "the suite has exactly these parameters."
        ),
    ]
    alpha: Annotated[ListOf[float], Field(description="Sample ratios.")]
    value: Annotated[
        ListOf[float], AfterValidator(_one_for_each_alpha), Field(description="Values, one for each sample ratio.")
    ]
    metric: Annotated[str, Field(description="Metric of the values.")] = "mse"
    component: Annotated[
        int | None, Field(description="Component of the signal, counted from 1; left out: all of them.")
    ] = None
    entry: Annotated[
        ListOf[int],
        AfterValidator(_of_overlap),
        Field(description="Row and column, counted from 1, of an entry of the overlap matrix, instead of a component."),
    ] = ()
    branch: Annotated[
        Literal["optimal", "uninformed", "informed"],
        Field(
            description="Branch that the values belong to where branches compete: `optimal`, `uninformed` or `informed`."
        ),
    ] = "optimal"
    tolerance: Annotated[
        float | None,
        Field(
            gt=0,
            description="How accurate the values are. With it `smimbench theory` shows them next to its own, and figures show "
            "it as a bar.",
        ),
    ] = None
    remark: Annotated[str, Field(description="What is known of the values, as why they are off.")] = ""


class RunOptions(Table):
    """``[run]``: how cells are run and what is reported."""

    tolerance: Annotated[
        float,
        InKey(),
        Field(
            gt=0,
            description="An algorithm without a number of steps of its own stops when its undamped relative residual is "
            "below this.",
        ),
    ] = 1e-4
    max_iterations: Annotated[
        int,
        InKey(),
        Field(
            ge=1, description="Iterations after which it is not converged; an algorithm may start anew or go on once."
        ),
    ] = 300
    timeout: Annotated[
        float | None, InKey(), Field(gt=0, description="Seconds per cell on the algorithm's clock; left out: no limit.")
    ] = None
    metrics: Annotated[
        ListOf[str],
        AfterValidator(distinct),
        InKey(),
        Field(
            min_length=1, description="Metrics that are reported. Those that cost extra are part of a cell's identity."
        ),
    ] = ("mse", "overlap")
    start: Annotated[
        str,
        InKey(),
        Field(
            description="Where algorithms begin: `uninformed` (their own choice), `informed` (near the teacher), or the name of "
            "an algorithm with a method `start`, as `spectral`; its time is then counted."
        ),
    ] = "uninformed"
    target: Annotated[float, Field(gt=0, description="Absolute error that counts as reached where theory says 0.")] = (
        1e-3
    )
    dtype: Annotated[
        Literal["float64", "float32", "mixed"],
        InKey(),
        Field(description="Precision of all arrays; `mixed`: inputs in float32, all else in float64."),
    ] = "float64"
    tf32: Annotated[
        bool,
        AfterValidator(_of_float32),
        InKey(left_out_at_default=True),
        Field(description="Allow TF32 in the matrix products of float32 on an accelerator."),
    ] = False
    draw: Annotated[
        Literal["host", "device"],
        InKey(left_out_at_default=True),
        Field(
            description="Where inputs are drawn: `host` (the same bits on every backend), or `device`, for runs so large that "
            "drawing and moving them would take longer than solving. On NumPy the device is the host."
        ),
    ] = "host"
    reference: Annotated[ListOf[Reference], Field(description="Values of others; see `[[run.reference]]`.")] = ()

    def identity(self) -> dict[str, Any]:
        """Those options that are part of a cell's identity, as plain values."""
        found = {}
        for name, mark in in_key().items():
            value = getattr(self, name)
            if not (mark.left_out_at_default and value == type(self).model_fields[name].default):
                found[name] = value
        return found

    def of_cell(self, metrics: tuple[str, ...]) -> RunOptions:
        """The options that a cell needs: those of its identity, with the metrics that are part of it."""
        kept = {name: getattr(self, name) for name in in_key()}
        return RunOptions.model_construct(**kept | {"metrics": metrics})


def in_key() -> dict[str, InKey]:
    """Run options that are part of a cell's identity."""
    fields = RunOptions.model_fields.items()
    return {name: mark for name, field in fields for mark in field.metadata if isinstance(mark, InKey)}


class Document(Table):
    """A suite file, merged with the one that it extends."""

    extends: Annotated[
        str,
        Field(
            description="Name of a shipped suite, or path of another from the folder of this one, whose tables hold where this "
            "one says nothing. Keys override, `[problem]` and `[[problems]]` replace, `[[algorithms]]` are appended."
        ),
    ] = ""
    suite: Annotated[SuiteTable, Field(description="What the suite is.")] = SuiteTable()
    problem: Annotated[ProblemTable | None, Field(description="The problem, where there is one.")] = None
    problems: Annotated[ListOf[ProblemTable], Field(description="The problems, where there are several.")] = ()
    grid: Annotated[Grid, Field(description="What the problems are run on.")] = Grid()
    algorithms: Annotated[ListOf[AlgorithmTable], Field(description="The algorithms.")] = ()
    run: Annotated[RunOptions, Field(description="How cells are run and what is reported.")] = RunOptions()


def table_at(location: Sequence[int | str]) -> type[Table]:
    """The table that holds a key, from the names (and positions in lists) on the way to it."""
    found: type[Table] = Document
    for name in location:
        if isinstance(name, str):
            kinds = _types(found.model_fields[name].annotation)
            found = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Table))
    return found


def _types(annotation: Any) -> Iterator[Any]:
    """A type and all that it is made of."""
    yield annotation
    for inner in get_args(annotation):
        yield from _types(inner)
