"""Common style of figures: sizes, colors and markers of algorithms, axes, titles, threshold lines, legends, files."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import io
import itertools
import math
import os
import sys
import textwrap
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from smimbench.files import JsonObject, printable, steady_folder, write_atomically
from smimbench.registry.registry import BUILT_IN, get_registry
from smimbench.report.row import Row
from smimbench.report.text_files import csv_text
from smimbench.suite.cells import Suite

ONE_COLUMN, TWO_COLUMNS = 3.4, 7.0
"""Widths in inches that journals print figures at; doubled, letters are too small to read in print."""

COLORS = [
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#882255",
    "#332288",
    "#999933",
]
"""Okabe and Ito's colors without black (that is the Bayes-optimal line) and yellow (which paper swallows), and three more."""

MARKERS = "osD^vPX*<>hp"
"""Apart without any color, too."""

STYLE: Any = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 8, "xtick.labelsize": 8, "ytick.labelsize": 8,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "lines.linewidth": 1.3,
    "axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.5, "legend.frameon": False, "svg.hashsalt": "smimbench",
    "pdf.fonttype": 42, "svg.fonttype": "none",
}  # fmt: skip


@contextlib.contextmanager
def plain_matplotlib() -> Iterator[None]:
    """Context with Matplotlib's own defaults and our style, whatever the user's files and environment say.

    Raises
    ------
    ImportError
        If matplotlib is missing (extra ``plot``).
    """
    if (
        "matplotlib" not in sys.modules
        and (spec := importlib.util.find_spec("matplotlib"))
        and spec.origin
    ):
        # Its import fails where it cannot read the name of a backend or a file, which it looks for in the working folder first;
        # an import of a plugin that has failed leaves half of it behind.
        for name in [name for name in sys.modules if name.startswith("matplotlib.")]:
            del sys.modules[name]
        backend = os.environ.pop("MPLBACKEND", None)
        with steady_folder():
            os.chdir(Path(spec.origin).with_name("mpl-data"))
            import matplotlib
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    import matplotlib

    # To set a backend, even the default one, would close figures of a notebook.
    defaults = {
        key: setting
        for key, setting in matplotlib.rcParamsDefault.items()
        if key != "backend"
    }
    with matplotlib.rc_context(defaults | STYLE), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Glyph .* missing"
        )  # the picture shows a box, and the SVG the letter
        yield


class Look(NamedTuple):
    """Color and marker with which an algorithm is drawn in all figures."""

    color: str
    marker: str


def looks(algorithms: Mapping[str, str]) -> dict[str, Look]:
    """Color and marker of each label, given the name of its algorithm.

    What ships has those of its place in the order in which it is registered, everything else those of its name. The first label
    of an algorithm, its own name if that is one, has them in all figures and all runs; others have those of their own name, or
    the next that are least used.
    """
    shipped = [
        entry.name
        for entry in get_registry().entries("algorithm")
        if entry.distribution == BUILT_IN
    ]
    shown: dict[str, Look] = {}
    main_label = {
        algorithms[label]: label
        for label in sorted(algorithms, key=lambda x: (x == algorithms[x], x))
    }
    names = {label: name for name, label in main_label.items()}
    for label in sorted(
        algorithms, key=lambda x: (x not in names, names.get(x) not in shipped, x)
    ):
        name = names.get(label, label)
        index = shipped.index(name) if name in shipped else zlib.crc32(name.encode())
        used = [mark for look in shown.values() for mark in look]
        pairs = itertools.product(
            *([*marks[index % len(marks) :], *marks] for marks in (COLORS, MARKERS))
        )
        shown[label] = Look(
            *min(
                pairs, key=lambda pair: (pair in shown.values(), *map(used.count, pair))
            )
        )
    return shown


def end_marker(look: Look) -> JsonObject:
    """The marker of an algorithm at the end of its curve: in gray, colors do not tell two of them apart."""
    return {"marker": look.marker, "markevery": [-1], "ms": 4.5}


def literal(text: str) -> str:
    """Text from users for Matplotlib, which takes dollars for mathematics and leaves a leading underscore out of legends."""
    shown = printable(text).replace("\t", " ").replace("$", r"\$")
    return f"\N{ZERO WIDTH SPACE}{shown}" if shown.startswith("_") else shown


def line_name(name: str, word: str, component: int | None) -> str:
    """Legend entry of a line: of all components (None), or of one, counted from 0."""
    return name if component is None else f"{name}, {word} {component + 1}"


WIDTHS = {"column": ONE_COLUMN, "page": TWO_COLUMNS}
"""What a figure may be asked for; else it is as wide as a column with a single panel, as wide as a page with several."""


def new_figure(
    title: str,
    panels: int,
    *,
    alone: bool = False,
    width: str | None = None,
    figure: Any = None,
) -> tuple[Any, Any]:
    """Create a figure with this number of panels, or fill an empty one; ``width``: one of ``WIDTHS``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if width not in (None, *WIDTHS):
        raise ValueError(f"width must be one of {', '.join(WIDTHS)}, got {width!r}")
    inches = WIDTHS[width] if width else ONE_COLUMN if panels == 1 else TWO_COLUMNS
    columns = 1 if inches == ONE_COLUMN else min(3, panels) if panels != 4 else 2
    rows = -(-panels // columns)
    if figure is None:
        figure = Figure(layout=None if alone else "constrained")
        FigureCanvasAgg(figure)
    figure.set_facecolor("white")
    figure.set_size_inches(inches, 0.4 + rows * min(2.7, 0.78 * inches / columns))
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[panels:]:
        axis.set_visible(False)
    if panels > 1:
        figure.suptitle(textwrap.fill(literal(title), int(14 * inches)), fontsize=9)
    return figure, axes[:panels]


def log_ticks(axis: Any) -> None:
    """Ticks of a logarithmic axis as plain numbers: typesetting a formula for each of them takes longer than the figure."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    low, high = axis.get_view_interval()
    if low < high < 10 * low:
        axis.set_major_locator(MaxNLocator(4))
    elif math.floor(math.log10(high)) <= math.ceil(
        math.log10(low)
    ):  # powers of ten would be a single tick
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    else:
        axis.get_major_locator().set_params(numticks=6)
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def floor_ticks(axis: Any, floor: float) -> None:
    """Decades of an axis that ends at ``floor``, which stands for all that is smaller; at most six."""
    from matplotlib.ticker import NullLocator

    last = axis.get_view_interval()[1]
    step = math.ceil((math.log10(last / floor) + 1) / 6)
    ticks = [
        floor * 10.0**k
        for k in range(0, math.floor(math.log10(last / floor)) + 1, step)
    ]
    axis.set_ticks(
        ticks, ["≤ " * (not k) + f"{tick:g}" for k, tick in enumerate(ticks)]
    )
    axis.set_minor_locator(NullLocator())


PREDICTED = ", predicted"
"""What the line of a prediction is called, after its algorithm."""


def finish(figure: Any, axes: Iterable[Any], note: str = "") -> None:
    """Add one legend below all panels, with each entry once, and a note."""
    entries: JsonObject = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels()):
            entries.setdefault(label, handle)
    if len(predicted := [label for label in entries if label.endswith(PREDICTED)]) > 1:
        entries[PREDICTED[2:]] = copy.copy(entries[predicted[0]])
        entries[PREDICTED[2:]].set_color("0.5")
        entries = {
            label: handle for label, handle in entries.items() if label not in predicted
        }
    width = figure.get_figwidth()
    columns = max(1, int(15.5 * width / (max(map(len, entries), default=0) + 8)))
    said = textwrap.fill(literal(note), int(16.5 * width))
    if entries:
        place: JsonObject = {"loc": "upper center", "bbox_to_anchor": (0.5, 0)}
        if figure.get_layout_engine():
            # Below the panels, which keep their height however many entries there are.
            lines = -(-len(entries) // columns) + len(said.splitlines())
            figure.set_figheight(figure.get_figheight() + 0.16 * (lines - 1))
            place = {"loc": "outside lower center"}
        figure.legend(entries.values(), entries, ncol=columns, fontsize=8, frameon=False, handlelength=2.4, title=said or None,
                      title_fontproperties={"size": 8}, **place)  # fmt: skip
    lay_out(figure)


def lay_out(figure: Any) -> None:
    """Make room for all labels of a figure.

    Ticks depend on the size of a panel and that on the width of its ticks: a second call, as ``save_figure`` makes it, knows
    both, or labels are cut.
    """
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)


def save_figure(
    figure: Any,
    folder: Path,
    name: str,
    data: Sequence[JsonObject] | None = None,
    caption: str = "",
    kinds: Sequence[str] = ("png", "svg", "pdf"),
) -> list[Path]:
    """Write pictures of these kinds, the same bytes for the same figure, and as CSV what is drawn.

    The caption goes into the files (``Description`` of PNG and SVG, ``Subject`` of the PDF).
    """
    paths = [folder / f"{name}.{kind}" for kind in kinds]
    caption = printable(caption)
    about = {
        "png": {"Description": caption},
        "svg": {"Date": None, "Description": caption},
        "pdf": {"CreationDate": None, "ModDate": None, "Subject": caption},
    }
    with plain_matplotlib():
        # One layout for all three files: most of the time would go into finding the same one again.
        lay_out(figure)
        figure.set_layout_engine(None)
        for path in paths:
            kind = path.suffix[1:]
            write_atomically(
                path,
                functools.partial(
                    figure.savefig, format=kind, dpi=300, metadata=about[kind]
                ),
            )
    if data:
        paths.append(folder / f"{name}.csv")
        columns = list(dict.fromkeys(key for entry in data for key in entry))
        write_atomically(
            paths[-1], csv_text(data, columns).encode(), durable_name=False
        )
    return paths


def svg_text(figure: Any) -> tuple[str, Callable[[Any], Any]]:
    """A figure as SVG without a background, cut to what is drawn, and the function from pixels to places in it."""
    buffer = io.StringIO()
    with plain_matplotlib():
        box = figure.get_tightbbox().padded(0.03)  # inches
        figure.savefig(
            buffer,
            format="svg",
            metadata={"Date": None},
            bbox_inches=box,
            transparent=True,
        )
    corner = np.array([box.x0, box.y1])
    return buffer.getvalue(), lambda pixels: (pixels / figure.dpi - corner) * [72, -72]


def looks_of(suite: Suite, rows: Sequence[Row] = ()) -> dict[str, Look]:
    """Styles of the algorithms of a suite, the same in all of its figures, and of labels that rows were told apart by."""
    named = {plan.label: plan.spec["name"] for plan in suite.algorithms}
    return looks(
        {row.place.algorithm: row.identity.algorithm["name"] for row in rows} | named
    )


def floor_of(values: Iterable[float], target: float) -> float:
    """Lower end of a logarithmic axis: the decade below the target and below the smallest value that is to be seen."""
    # Zero, less and what rounding has left have no place on it: they are drawn as "below".
    return 10.0 ** math.floor(
        math.log10(min([target, *(value for value in values if value > 1e-16)])) - 0.3
    )
