"""Common style of figures: sizes, colors and markers of algorithms, axes, titles, threshold lines, legends, files."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import itertools
import math
import os
import sys
import textwrap
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.files import printable, restored_working_folder
from smimbench.registry.registry import BUILT_IN, get_registry

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from smimbench.report.row import Row
    from smimbench.suite.cells import Suite

WIDTHS = {"column": 3.4, "page": 7.0}
"""Widths of figures in print, in inches; doubled, letters are too small to read in print."""

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
"""Colors of algorithms: Okabe and Ito's palette without black (theory) and yellow (invisible on paper), plus three."""

MARKERS = "osD^vPX*<>hp"
"""Markers of algorithms, which are distinguishable without color."""

STYLE: Any = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 8, "xtick.labelsize": 8, "ytick.labelsize": 8,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "lines.linewidth": 1.3,
    "axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.5, "legend.frameon": False, "svg.hashsalt": "smimbench",
    "pdf.fonttype": 42, "svg.fonttype": "none",
}  # fmt: skip


@contextlib.contextmanager
def plain_matplotlib() -> Iterator[None]:
    """Use Matplotlib's defaults and this package's style within a context, regardless of the user's configuration.

    Raises
    ------
    ImportError
        If matplotlib is missing (extra ``plot``).
    """
    spec = importlib.util.find_spec("matplotlib")
    if "matplotlib" not in sys.modules and spec and spec.origin:
        # Its import fails where it cannot read the name of a backend or a file, which it looks for in the working folder first;
        # an import of a plugin that has failed leaves half of it behind.
        for module_name in [
            module_name
            for module_name in sys.modules
            if module_name.startswith("matplotlib.")
        ]:
            del sys.modules[module_name]
        backend = os.environ.pop("MPLBACKEND", None)
        with restored_working_folder():
            os.chdir(Path(spec.origin).with_name("mpl-data"))
            import matplotlib
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    import matplotlib

    # To set a backend, even the default one, would close figures of a notebook.
    defaults = dict(matplotlib.rcParamsDefault)
    del defaults["backend"]
    with matplotlib.rc_context(defaults | STYLE), warnings.catch_warnings():
        # The picture shows a box, and the SVG the letter.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        yield


class Look(NamedTuple):
    """Color and marker of an algorithm in all figures."""

    color: str
    marker: str


def looks(algorithms: Mapping[str, str]) -> dict[str, Look]:
    """Choose the color and marker for each label, given the name of its algorithm.

    What ships has those of its place in the order in which it is registered, everything else those of its name. The first label
    of an algorithm, its own name if that is one, has them in all figures and all runs; others have those of their own name, or
    the next that are least used.
    """
    shipped = [
        entry.name
        for entry in get_registry().entries("algorithm")
        if entry.distribution == BUILT_IN
    ]
    main_labels: dict[str, str] = {}
    for label in sorted(
        algorithms, key=lambda label: (label == algorithms[label], label)
    ):
        main_labels[algorithms[label]] = label
    main_label_algorithms = {
        label: look_name for look_name, label in main_labels.items()
    }
    looks_by_label: dict[str, Look] = {}
    for label in sorted(
        algorithms,
        key=lambda label: (
            label not in main_label_algorithms,
            main_label_algorithms.get(label) not in shipped,
            label,
        ),
    ):
        look_name = main_label_algorithms.get(label, label)
        look_index = (
            shipped.index(look_name)
            if look_name in shipped
            else zlib.crc32(look_name.encode())
        )
        possible_looks = [
            *itertools.product(
                _rotated(COLORS, look_index), _rotated(MARKERS, look_index)
            )
        ]
        use_counts = Counter(itertools.chain(*looks_by_label.values()))
        taken_looks = set(looks_by_label.values())
        chosen_look = min(
            possible_looks,
            key=lambda pair: (
                pair in taken_looks,
                use_counts[pair[0]],
                use_counts[pair[1]],
            ),
        )
        looks_by_label[label] = Look(*chosen_look)
    return looks_by_label


def _rotated(sequence: Sequence[str], index: int) -> Sequence[str]:
    """Rotate a sequence of marks so that it begins at ``index``."""
    index %= len(sequence)
    return [*sequence[index:], *sequence[:index]]


def end_marker(look: Look) -> dict[str, object]:
    """Return the style of the marker at the end of an algorithm's curve, which distinguishes curves in grayscale."""
    return {"marker": look.marker, "markevery": [-1], "ms": 4.5}


def escape_for_matplotlib(text: str) -> str:
    """Escape a user's text for Matplotlib, where dollars start formulas and a leading underscore hides a legend entry."""
    escaped = printable(text).replace("\t", " ").replace("$", r"\$")
    return f"\N{ZERO WIDTH SPACE}{escaped}" if escaped.startswith("_") else escaped


def line_name(name: str, component_name: str, component: int | None) -> str:
    """Return the legend entry of a line, for one component (counted from 0) or for all together (None)."""
    return name if component is None else f"{name}, {component_name} {component + 1}"


def new_figure(
    title: str,
    panel_count: int,
    *,
    without_layout: bool = False,
    width: str | None = None,
    figure: Figure | None = None,
) -> tuple[Figure, Any]:
    """Create a figure with this number of panels, or fill an empty one.

    ``width`` is one of ``WIDTHS``; default: a column for one panel, a page for several.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if width not in (None, *WIDTHS):
        raise ValueError(f"width must be one of {', '.join(WIDTHS)}, got {width!r}")
    if width is None:
        width = "column" if panel_count == 1 else "page"
    width_inches = WIDTHS[width]
    columns = (
        {1: 1, 4: 2}.get(panel_count, min(3, panel_count)) if width == "page" else 1
    )
    rows = -(-panel_count // columns)
    if figure is None:
        figure = Figure(layout=None if without_layout else "constrained")
        FigureCanvasAgg(figure)
    figure.set_facecolor("white")
    figure.set_size_inches(
        width_inches, 0.4 + rows * min(2.7, 0.78 * width_inches / columns)
    )
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[panel_count:]:
        axis.set_visible(False)
    if panel_count > 1:
        figure.suptitle(
            textwrap.fill(escape_for_matplotlib(title), int(14 * width_inches)),
            fontsize=9,
        )
    return figure, axes[:panel_count]


def log_ticks(axis: Any) -> None:
    """Label the ticks of a logarithmic axis with plain numbers, since typesetting formulas is slow."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    minimum, maximum = axis.get_view_interval()
    decade_count = math.floor(math.log10(maximum)) - math.ceil(math.log10(minimum)) + 1
    if minimum < maximum < 10 * minimum:
        axis.set_major_locator(MaxNLocator(4))
    elif decade_count <= 1:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    else:
        axis.get_major_locator().set_params(numticks=6)
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def floor_ticks(axis: Axis, floor: float) -> None:
    """Label at most six decades of a logarithmic axis; its lower end, ``floor``, is labeled as an upper bound."""
    from matplotlib.ticker import NullLocator

    decade_count = math.log10(axis.get_view_interval()[1] / floor)
    step = math.ceil((decade_count + 1) / 6)
    ticks = [
        floor * 10.0**decade for decade in range(0, math.floor(decade_count) + 1, step)
    ]
    labels = [f"{tick:g}" for tick in ticks]
    labels[0] = f"≤ {labels[0]}"
    axis.set_ticks(ticks, labels)
    axis.set_minor_locator(NullLocator())


PREDICTED = ", predicted"
"""Suffix that follows the name of an algorithm in the legend entry of its prediction."""


def add_legend_and_note(figure: Figure, axes: Iterable[Axes], note: str = "") -> None:
    """Add a common legend, without duplicates, and a note below all panels."""
    legend_entries: dict[str, Artist] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels()):
            legend_entries.setdefault(label, handle)
    predicted_labels = [label for label in legend_entries if label.endswith(PREDICTED)]
    if len(predicted_labels) > 1:  # one entry for all
        shared_entry: Any = copy.copy(legend_entries[predicted_labels[0]])
        shared_entry.set_color("0.5")
        legend_entries[PREDICTED[2:]] = shared_entry
        for label in predicted_labels:
            del legend_entries[label]
    width_inches = figure.get_figwidth()
    column_count = max(
        1, int(15.5 * width_inches / (max(map(len, legend_entries), default=0) + 8))
    )
    note_text = textwrap.fill(escape_for_matplotlib(note), int(16.5 * width_inches))
    if legend_entries:
        legend_position: dict[str, Any] = {
            "loc": "upper center",
            "bbox_to_anchor": (0.5, 0),
        }
        if figure.get_layout_engine():
            # Below the panels, which keep their height however many entries there are.
            line_count = -(-len(legend_entries) // column_count) + len(
                note_text.splitlines()
            )
            figure.set_figheight(figure.get_figheight() + 0.16 * (line_count - 1))
            legend_position = {"loc": "outside lower center"}
        figure.legend(
            legend_entries.values(),
            legend_entries,
            ncol=column_count,
            fontsize=8,
            frameon=False,
            handlelength=2.4,
            title=note_text or None,
            title_fontproperties={"size": 8},
            **legend_position,
        )
    make_room_for_labels(figure)


def make_room_for_labels(figure: Figure) -> None:
    """Make room for all labels of a figure.

    Ticks depend on the size of a panel and that on the width of its ticks: a second call, as saving makes it,
    knows both, or labels are cut.
    """
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)


ToSvg = Callable[[Any], Any]
"""Function from pixel coordinates (..., 2) of a figure to coordinates (..., 2) in its SVG."""


def svg_text(figure: Figure) -> tuple[str, ToSvg]:
    """Convert a figure to a transparent, cropped SVG, and return the map from pixels to its coordinates, too."""
    buffer = io.StringIO()
    with plain_matplotlib():
        bounding_box = figure.get_tightbbox().padded(0.03)  # inches
        svg_options: dict[str, Any] = {"metadata": {"Date": None}, "transparent": True}
        figure.savefig(buffer, format="svg", bbox_inches=bounding_box, **svg_options)
    top_left = np.array([bounding_box.x0, bounding_box.y1])
    return (
        buffer.getvalue(),
        lambda pixels: (pixels / figure.dpi - top_left) * [72, -72],
    )


def looks_of(suite: Suite, rows: Sequence[Row] = ()) -> dict[str, Look]:
    """Choose colors and markers for the algorithm labels of a suite, the same in all of its figures."""
    algorithm_names = {
        row.place.algorithm: row.identity.algorithm["name"] for row in rows
    }
    for algorithm in suite.algorithms:
        algorithm_names[algorithm.label] = algorithm.spec["name"]
    return looks(algorithm_names)


def floor_of(errors: Iterable[float], target: float) -> float:
    """Choose the lower end of a logarithmic axis: the decade below the target and the smallest visible error."""
    # Zero, less and what rounding has left have no place on it: they are drawn as "below".
    smallest_error = min([target, *(error for error in errors if error > 1e-16)])
    return 10.0 ** math.floor(math.log10(smallest_error) - 0.3)
