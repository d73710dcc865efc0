"""Common style of figures: sizes; colors and markers of algorithms; axes, titles, threshold lines, legends and image files."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import re
import textwrap
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.files import printable
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
    """Choose the color and marker for each label of an algorithm in a figure; ``algorithms`` maps the label to the name of its
    algorithm, and labels of the same algorithm get different looks.

    What ships has those of its place in the order in which it is registered, everything else those of its name. The first label
    of an algorithm, its own name if that is one, has them in all figures and all runs; others have those of their own name, or
    the next that are least used.
    """
    shipped = [
        entry.name
        for entry in get_registry().entries("algorithm")
        if entry.distribution == BUILT_IN
    ]
    looks_by_label: dict[str, Look] = {}
    main_names: set[str] = set()

    def priority(label: str) -> tuple[bool, bool, str]:
        """Return the sort key of a label: labels that are names of algorithms before others, shipped algorithms before those of
        plugins.
        """
        name = algorithms[label]
        return label != name, name not in shipped, label

    for label in sorted(algorithms, key=priority):
        name = algorithms[label]
        look_name = label if name in main_names else name
        main_names.add(name)
        index = zlib.crc32(look_name.encode())
        if look_name in shipped:
            index = shipped.index(look_name)
        candidates = [
            Look(COLORS[place % len(COLORS)], MARKERS[place % len(MARKERS)])
            for place in range(index, index + math.lcm(len(COLORS), len(MARKERS)))
        ]
        taken_looks = looks_by_label.values()
        use_counts = Counter(itertools.chain(*taken_looks))
        looks_by_label[label] = min(
            candidates,
            key=lambda look: (
                look in taken_looks,
                use_counts[look.color] + use_counts[look.marker],
            ),
        )
    return looks_by_label


def end_marker(look: Look) -> dict[str, Any]:
    """Return the style of the marker at the end of an algorithm's curve, which distinguishes curves in grayscale."""
    return {"marker": look.marker, "markevery": [-1], "ms": 4.5}


_GREEK_PARAMETER = re.compile(rf"\b(?:\w+\.)?({'|'.join(GREEK)})\s*=\s*")
_SYMBOL = re.compile(
    r"[α-ω]|(?<![\w$\\])[A-Za-zΔ](?=\s?[=/+\-)²³])|((?<=[=/+(-])|(?<=[=/+(-] ))[A-Za-zΔ](?!\w)"
)


def math_text(text: str) -> str:
    """Escape a user's text for Matplotlib, where dollars start formulas and a leading underscore hides a legend entry, and write
    symbols in math italics.

    Symbols are Greek letters, parameters named after one that have a value (``rho = 0.3``), and lone letters next to an
    operator, a parenthesis or an exponent.
    """
    text = _GREEK_PARAMETER.sub(lambda match: f"{GREEK[match[1]]} = ", text)
    text = printable(text).replace("\t", " ").replace("$", r"\$")
    text = re.sub("^_", "\N{ZERO WIDTH SPACE}_", text)
    text = _SYMBOL.sub(r"$\g<0>$", text)
    return re.sub(" ([=/]) ", "\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", text)


def arrange_panels(
    figure: Figure, title: str, panel_count: int, width: str | None
) -> list[Axes]:
    """Give an empty figure its size, its title above several panels, and the axes of this number of panels.

    ``width`` is a length or one of ``WIDTHS``; default: a column for one panel, a page for several.
    """
    inches = width_in_inches(width or ("column" if panel_count == 1 else "page"))
    rows = -(-panel_count // max(1, int(inches / PANEL_WIDTH)))
    columns = -(-panel_count // rows)
    panel_height = min(2.7, max(1.8, 0.78 * inches / columns))
    figure.set_facecolor("white")
    figure.set_size_inches(inches, 0.4 + rows * panel_height)
    axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for axis in axes[panel_count:]:
        axis.set_visible(False)
    figure.align_ylabels()
    if title and panel_count > 1:
        figure.suptitle(math_text(title), fontsize=8)
    return axes[:panel_count]


def log_ticks(axis: Any) -> None:
    """Label the ticks of a logarithmic ``axis`` with plain numbers: typesetting powers of ten is slow."""
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
    """Label at most six decades of a logarithmic ``axis``; its lower end, ``floor``, is labeled as an upper bound, because
    smaller values are drawn there.
    """
    from matplotlib.ticker import NullLocator

    decade_count = math.log10(axis.get_view_interval()[1] / floor)
    step = math.ceil((decade_count + 1) / 6)
    ticks = floor * 10.0 ** np.arange(0, math.floor(decade_count) + 1, step)
    labels = [f"{tick:g}" for tick in ticks]
    axis.set_ticks(ticks, [f"≤ {labels[0]}", *labels[1:]])
    axis.set_minor_locator(NullLocator())


def add_legend_and_note(
    figure: Figure, entries: Mapping[str, Artist], note: str
) -> None:
    """Add a legend (``entries``: lines or marks by their names) and a ``note`` below all panels of a figure, which grows so that
    the panels keep their height.
    """
    width = figure.get_figwidth()
    names = [textwrap.fill(name, max(12, int(17 * width - 8))) for name in entries]
    for column_count in range(len(entries), 0, -1):
        legend = figure.legend(
            entries.values(),
            names,
            loc="outside lower center",
            ncol=column_count,
            handlelength=2.0,
            columnspacing=1.5,
            title=math_text(note) or None,
            title_fontproperties={"size": 8},
        )
        _break_lines(legend.get_title(), 0.95 * figure.bbox.width)
        extent = legend.get_window_extent()
        if extent.width <= figure.bbox.width or column_count == 1:
            height = max(0.0, extent.height / figure.dpi - 0.25)
            figure.set_figheight(figure.get_figheight() + height)
            break
        legend.remove()


def make_room_for_labels(figure: Figure) -> None:
    """Make room for all labels of a figure: long ones are broken into lines, and tick labels are left out where they would
    overlap.

    Ticks depend on the size of a panel, and its size on the width of its tick labels. So the layout is computed again until no
    text changes, at most three times.
    """
    engine: Any = figure.get_layout_engine()
    for _ in range(2):
        engine.execute(figure)
        texts_with_room = _texts_of(figure)
        for axes in figure.axes:
            if axes.get_visible():
                _break_lines(axes.title, axes.bbox.width)
                _break_lines(axes.xaxis.label, axes.bbox.width)
                _break_lines(axes.yaxis.label, axes.bbox.height)
                _thin_ticks(axes.xaxis)
                _thin_ticks(axes.yaxis)
        for text in figure.texts:
            _break_lines(text, figure.bbox.width)
        if _texts_of(figure) == texts_with_room:
            return
    engine.execute(figure)


def _texts_of(figure: Figure) -> list[str]:
    """Texts of a figure, with tick labels as they were last drawn or measured."""
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text)]


def _break_lines(label: Text, length: float) -> None:
    """Break a horizontal or vertical ``label`` into lines that are at most ``length`` pixels long."""
    words = label.get_text().replace("\n", " ")
    for characters in range(len(words), 4, -max(1, len(words) // 50)):
        is_plain = "$" not in words
        label.set_text(textwrap.fill(words, characters, break_long_words=is_plain))
        extent = label.get_window_extent()
        if max(extent.width, extent.height) <= length:
            return


def _thin_ticks(axis: Axis) -> None:
    """Keep only every second tick label of an ``axis``, or every third and so on, where neighboring labels would overlap."""
    lowest, highest = sorted(axis.get_view_interval())
    labels = [
        (location, label.get_text(), label.get_window_extent())
        for location, label in zip(axis.get_majorticklocs(), axis.get_ticklabels())
        if lowest <= location <= highest and label.get_text()
    ]
    side = 0 if axis is axis.axes.xaxis else 1
    for step in range(1, len(labels)):
        locations, texts, extents = zip(*labels[::step])
        starts, ends = np.array([(box.min[side], box.max[side]) for box in extents]).T
        gap = 0.9 * extents[0].height if side == 0 else 0.0
        if (starts[1:] - ends[:-1] >= gap).all():
            if step > 1:
                axis.set_ticks(locations, texts)
            break


@plain_matplotlib()
def svg_text(figure: Figure) -> str:
    """Return a figure, laid out, as the text of a transparent SVG, whose coordinates are points from its top left."""
    buffer = io.StringIO()
    figure.set_layout_engine(None)
    options: dict[str, Any] = {"metadata": {"Date": None}, "transparent": True}
    figure.savefig(buffer, format="svg", **options)
    return buffer.getvalue()


def looks_of(suite: Suite, rows: Sequence[Row] = ()) -> dict[str, Look]:
    """Choose colors and markers for the algorithm labels of a suite, the same in all of its figures."""
    algorithm_names = {
        row.place.algorithm: row.identity.algorithm["name"] for row in rows
    }
    for algorithm in suite.algorithms:
        algorithm_names[algorithm.label] = algorithm.spec["name"]
    return looks(algorithm_names)


def floor_of(errors: Iterable[float], target: float) -> float:
    """Choose the lower end of a logarithmic axis for these errors: ``target`` (errors below it count as 0 in tables), or the
    power of ten below the smallest error if that is smaller.

    ``errors`` are those where theory is not 0.
    """
    # Zero, less and what rounding has left have no place on it: they are drawn as "below".
    smallest_error = min((error for error in errors if error > 1e-16), default=target)
    if smallest_error >= target:
        return target
    return 10.0 ** math.floor(math.log10(smallest_error) - 0.3)
