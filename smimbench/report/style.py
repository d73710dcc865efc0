"""Common style of figures: sizes, colors and markers of algorithms, axes, titles, threshold lines, legends, files."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import itertools
import math
import os
import re
import sys
import textwrap
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.files import printable, restored_working_folder
from smimbench.interfaces.item import GREEK
from smimbench.registry.registry import BUILT_IN, get_registry

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    from smimbench.report.row import Row
    from smimbench.suite.cells import Suite

WIDTHS = {"column": 3.4, "page": 7.0}
"""Widths of figures in print, in inches; doubled, letters are too small to read in print."""
INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}
"""Inches in each unit of length; points are those in which LaTeX states the width of a column."""
NARROWEST, WIDEST = 2.0, 40.0
"""Smallest and largest width of a figure, in inches."""
PANEL_WIDTH = 2.2
"""Width in inches that a panel needs next to others; halved, labels fill it."""
FILE_TYPES = ("png", "svg", "pdf")
"""Kinds of image files."""

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


def width_in_inches(width: str) -> float:
    """Return the width of a figure in inches, from a length such as ``3.3in`` or from one of the names in ``WIDTHS``.

    Raises
    ------
    ValueError
        If it is neither, or a length that no figure can have.
    """
    text = width.strip().lower()
    match = re.fullmatch(r"(\d{1,9}\.?\d{0,9}|\.\d{1,9})\s*([a-z]+)", text)
    inches = WIDTHS.get(text, 0.0)
    if match and match[2] in INCHES:
        inches = float(match[1]) * INCHES[match[2]]
    if not NARROWEST <= inches <= WIDEST:
        raise ValueError(
            f"width must be {', '.join(WIDTHS)} or a length from {NARROWEST:g} to {WIDEST:g} inches in "
            f"{', '.join(INCHES)}, such as 3.3in or 84mm, got {width!r}"
        )
    return inches


def file_type(path: Path) -> str:
    """Return the kind of an image file, which is its suffix; raise ValueError for other kinds than ``FILE_TYPES``."""
    suffix = path.suffix[1:].lower()
    if suffix not in FILE_TYPES:
        raise ValueError(
            f"the name of a figure must end in .png, .svg or .pdf, got {str(path)!r}"
        )
    return suffix


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


_GREEK_PARAMETER = re.compile(rf"\b(?:\w+\.)?({'|'.join(GREEK)})\s*=\s*")
_LONE_LETTER = re.compile(r"[α-ω]|(?<![\w$\\])[A-Za-zΔ](?![^\W²³])")
_OPERATORS = tuple("=/+-(")


def math_text(text: str) -> str:
    """Escape a text for Matplotlib, with symbols in math italics.

    Symbols are Greek letters, parameters named after one that have a value (``rho = 0.3``), and lone letters next to an
    operator, a parenthesis or an exponent.
    """
    text = _GREEK_PARAMETER.sub(lambda match: f"{GREEK[match[1]]} = ", text)
    text = escape_for_matplotlib(text)

    def italic(match: re.Match[str]) -> str:
        """Return a letter as a formula if it is a symbol."""
        text_before = text[: match.start()].rstrip()
        text_after = text[match.end() :].lstrip()
        is_symbol = text_before.endswith(_OPERATORS) or text_after.startswith(
            (*_OPERATORS[:-1], ")", "²", "³")
        )
        return f"${match[0]}$" if is_symbol or match[0] in GREEK.values() else match[0]

    return re.sub(
        " ([=/]) ",
        "\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}",
        _LONE_LETTER.sub(italic, text),
    )


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

    ``width`` is a length or one of ``WIDTHS``; default: a column for one panel, a page for several.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width_inches = width_in_inches(width or ("column" if panel_count == 1 else "page"))
    rows = -(-panel_count // max(1, int(width_inches / PANEL_WIDTH)))
    columns = -(-panel_count // rows)
    if figure is None:
        figure = Figure(layout=None if without_layout else "constrained")
        FigureCanvasAgg(figure)
    figure.set_facecolor("white")
    panel_height = min(2.7, max(1.8, 0.78 * width_inches / columns))
    figure.set_size_inches(width_inches, 0.4 + rows * panel_height)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[panel_count:]:
        axis.set_visible(False)
    figure.align_ylabels()
    if title and panel_count > 1:
        figure.suptitle(math_text(title), fontsize=8)
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


LEGEND_GRAY = "0.35"
"""Color of a legend entry whose lines or marks have several colors."""


def add_legend_and_note(
    figure: Figure,
    axes: Iterable[Axes],
    note: str = "",
    component_colors: Mapping[str, str] | None = None,
    shared_names: Collection[str] = (),
) -> None:
    """Add a common legend, without duplicates, and a note below all panels.

    Parameters
    ----------
    component_colors : dict or None
        Colors of components by their names, which have entries of their own.
    shared_names : collection of str
        Entries whose lines or marks have several colors, and are gray in the legend.
    """
    from matplotlib.patches import Patch

    entries: dict[str, Artist] = {
        name: Patch(color=color) for name, color in (component_colors or {}).items()
    }
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels()):
            entries.setdefault(label, handle)
    predicted_labels = [label for label in entries if label.endswith(PREDICTED)]
    if len(predicted_labels) > 1:  # one entry for all
        entries[PREDICTED[2:]] = entries[predicted_labels[0]]
        for label in predicted_labels:
            del entries[label]
    for label in {PREDICTED[2:], *map(math_text, shared_names)}.intersection(entries):
        gray_entry: Any = copy.copy(entries[label])
        gray_entry.set_color(LEGEND_GRAY)
        entries[label] = gray_entry
    width_inches = figure.get_figwidth()
    labels = [
        textwrap.fill(label, max(12, int(17 * width_inches - 8))) for label in entries
    ]
    position: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0)}
    if figure.get_layout_engine():
        # Below the panels, which keep their height however many entries there are.
        position = {"loc": "outside lower center"}
    for column_count in range(len(entries), 0, -1):
        legend = figure.legend(
            entries.values(),
            labels,
            ncol=column_count,
            handlelength=2.0,
            columnspacing=1.5,
            title=math_text(note) or None,
            title_fontproperties={"size": 8},
            **position,
        )
        _break_lines(legend.get_title(), 0.95 * figure.bbox.width)
        extent = legend.get_window_extent()
        if extent.width <= figure.bbox.width or column_count == 1:
            break
        legend.remove()
    if entries and figure.get_layout_engine():
        legend_height = extent.height / figure.dpi
        figure.set_figheight(figure.get_figheight() + max(0.0, legend_height - 0.25))
    make_room_for_labels(figure)


def make_room_for_labels(figure: Figure) -> None:
    """Make room for all labels of a figure, which are broken into lines and left out where they would meet.

    Ticks depend on the size of a panel and that on the width of its ticks: a second pass knows both, or labels are cut.
    """
    engine = figure.get_layout_engine()
    for _ in range(2):
        if engine is not None:
            engine.execute(figure)
        for axes in figure.axes:
            if axes.get_visible():
                _break_lines(axes.title, axes.bbox.width)
                _break_lines(axes.xaxis.label, axes.bbox.width)
                _break_lines(axes.yaxis.label, axes.bbox.height)
                _thin_ticks(axes.xaxis)
                _thin_ticks(axes.yaxis)
        for text in figure.texts:
            _break_lines(text, figure.bbox.width)
    if engine is not None:
        engine.execute(figure)


def _break_lines(label: Text, length: float) -> None:
    """Break a horizontal or vertical text into lines that are at most ``length`` pixels long."""
    words = " ".join(label.get_text().split("\n"))
    character_count = len(words)
    while character_count > 4:
        is_plain = "$" not in words
        lines = textwrap.fill(words, character_count, break_long_words=is_plain)
        label.set_text(lines)
        extent = label.get_window_extent()
        text_length = max(extent.width, extent.height)
        if text_length <= length:
            return
        # The letters of a text are not equally wide: this many at most fit.
        character_count = min(
            character_count - 1, int(1.2 * character_count * length / text_length)
        )


def _thin_ticks(axis: Axis) -> None:
    """Label only every second tick, or every third and so on, where labels would meet."""
    lowest, highest = sorted(axis.get_view_interval())
    labels = [
        (location, label)
        for label, location in zip(axis.get_ticklabels(), axis.get_majorticklocs())
        if lowest <= location <= highest and label.get_text()
    ]
    is_horizontal, step = axis is axis.axes.xaxis, 1
    for step in range(1, len(labels)):
        extents = [label.get_window_extent() for _, label in labels[::step]]
        gaps = [
            next_extent.x0 - extent.x1 - 0.9 * extent.height
            if is_horizontal
            else next_extent.y0 - extent.y1
            for extent, next_extent in itertools.pairwise(extents)
        ]
        if min(gaps, default=0.0) >= 0:
            break
    if step > 1:
        locations, thinned_labels = zip(*labels[::step])
        axis.set_ticks(locations, [label.get_text() for label in thinned_labels])


PAGE_MARGIN = 0.4
"""Inches left of a panel on the page, for its labels."""

ToSvg = Callable[[Any], Any]
"""Function from pixel coordinates (..., 2) of a figure to coordinates (..., 2) in its SVG."""


def svg_text(figure: Figure) -> tuple[str, ToSvg]:
    """Convert a figure to a transparent, cropped SVG, and return its text with the function that maps pixels to its
    coordinates.
    """
    from matplotlib.transforms import Bbox

    buffer = io.StringIO()
    with plain_matplotlib():
        # Inches; all equally wide, or those next to each other on a page would have letters of different sizes.
        bounding_box = Bbox.union(
            [
                figure.get_tightbbox().padded(0.03),
                Bbox.from_extents(-PAGE_MARGIN, 1, figure.get_figwidth() + 0.05, 1),
            ]
        )
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
    """Choose the lower end of a logarithmic axis of these errors: ``target``, below which tables print 0, or the decade below
    the smallest error.

    ``errors`` are those where theory is not 0.
    """
    # Zero, less and what rounding has left have no place on it: they are drawn as "below".
    smallest_error = min((error for error in errors if error > 1e-16), default=target)
    if smallest_error >= target:
        return target
    return 10.0 ** math.floor(math.log10(smallest_error) - 0.3)
