"""Common style of figures: sizes, colors and markers of algorithms, axes, titles, threshold lines, legends, files."""

from __future__ import annotations

import functools
import hashlib
import io
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.files import printable, write_atomically
from smimbench.report.text_files import csv_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from smimbench.files import JsonObject
    from smimbench.suite.cells import Suite

ONE_COLUMN, TWO_COLUMNS = 3.4, 7.0
"""Widths in inches that journals print figures at; doubled, letters are too small to read in print."""

COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#332288", "#999933"]
"""Okabe and Ito's colors without black (that is the Bayes-optimal line) and yellow (which paper swallows), and three more."""

MARKERS = "osD^vPX*<>hp"
"""Apart without any color, too."""

KNOWN = ("gamp", "adam", "sgd", "spectral", "ridge", "averaged", "nuclear", "adamw", "erm")
"""What ships has a color and a marker for ever, in this order; everything else by its name."""


LETTER = 0.55
"""Width of an ordinary letter in units of its size; doubled, titles are broken where half a panel is left."""

FLOOR = "0.75"
"""Grey of the line that stands for zero on a logarithmic axis."""


STYLE: Any = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "lines.linewidth": 1.3,
    "axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.5, "legend.frameon": False, "svg.hashsalt": "smimbench",
    "pdf.fonttype": 42, "svg.fonttype": "none",
    # No layout but the one that a figure names, whatever the user has set.
    "figure.autolayout": False, "figure.constrained_layout.use": False,
}  # fmt: skip


class Look(NamedTuple):
    """Color, marker and dashes with which an algorithm is drawn in all figures."""

    color: str
    marker: str
    dashes: Any


DASHES: Sequence[Any] = ("-", (0, (6, 1.5)), "-.", (0, (2, 1)), (0, (7, 1, 1, 1, 1, 1)))


def looks(algorithms: Mapping[str, str]) -> dict[str, Look]:
    """Color, marker and dashes of each label, given the name of its algorithm.

    An algorithm has its color by its name, in all figures and all runs. The plain label has its own marker, too; other
    labels of the same algorithm have one by their own name. Where two labels of one suite would have one marker, alike in
    grey, the later one, in alphabetical order, takes the next that is free.
    """
    found: dict[str, Look] = {}
    for label in sorted(algorithms, key=lambda one: (one != algorithms[one], one)):
        name = algorithms[label]
        place = KNOWN.index(name) if name in KNOWN else _number(name)
        first = place if label == name else _number(label)
        pairs = [
            (COLORS[(place + step // len(MARKERS)) % len(COLORS)], MARKERS[(first + step) % len(MARKERS)])
            for step in range(len(COLORS) * len(MARKERS))
        ]
        new = [pair for pair in pairs if pair not in {look[:2] for look in found.values()}]
        own = [pair for pair in new if pair[1] not in {look.marker for look in found.values()}]
        color, marker = (own or new or pairs)[0]
        same = sum(algorithms[other] == name for other in found)
        found[label] = Look(color, marker, DASHES[same % len(DASHES)])
    return found


def _number(name: str) -> int:
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)


def end_marker(look: Look) -> JsonObject:
    """The marker of an algorithm at the end of its curve: in grey, colors do not tell two of them apart."""
    return {"marker": look.marker, "markevery": [-1], "ms": 4.5, "zorder": 3}


def literal(text: str) -> str:
    """Text from users as Matplotlib must show it: no mathematics between dollars, no characters that XML forbids."""
    return printable(text).replace("\t", " ").replace("$", r"\$")


def line_name(name: str, word: str, component: int | None) -> str:
    """Legend entry of a line: of all components (None), or of one, counted from 0."""
    return literal(name if component is None else f"{name}, {word} {component + 1}")


def new_figure(title: str, panels: int) -> tuple[Any, Any]:
    """Create a figure with this number of panels: one column wide for a single panel, else two columns."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(3, panels) if panels != 4 else 2
    rows = -(-panels // columns)
    width = ONE_COLUMN if panels == 1 else TWO_COLUMNS
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, 0.4 + rows * min(2.7, 0.78 * width / columns)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
        for axis in axes[panels:]:
            axis.set_visible(False)
        if panels > 1:
            figure.suptitle(literal(title), fontsize=9)
    return figure, axes[:panels]


def panel_points(axis: Any) -> float:
    """Width of a panel without its labels, in points, before it is laid out."""
    return float(0.75 * 72 * axis.figure.get_figwidth() / axis.get_subplotspec().get_gridspec().ncols)


def threshold_lines(axis: Any, marks: Sequence[tuple[float, str]], hard: Sequence[float] | None = None) -> int:
    """Upright lines with their names above the panel, where no data are, and the hard phase as a grey band.

    Names that would meet stand higher: the result is how many lines of them there are.
    """
    low, high = axis.get_xlim()
    last: list[float] = []
    for value, name in sorted(marks):
        if not low < value < high:
            continue
        axis.axvline(value, color="0.6", lw=0.8, ls="--", zorder=0)
        at = float(axis.transAxes.inverted().transform(axis.transData.transform((value, 0)))[0])
        half = 7 * LETTER * len(name) / 2 / panel_points(axis)
        level = 0
        while level < len(last) and at - half < last[level]:
            level += 1
        last[level : level + 1] = [at + half]
        axis.annotate(name, (at, 1.0), xycoords="axes fraction", xytext=(0, 2 + 8 * level), textcoords="offset points",
                      ha="center", va="bottom", annotation_clip=False, fontsize=7, color="0.4")  # fmt: skip
    if hard:
        # A band that is narrower than a line would be a name in the legend without a mark.
        ends = axis.transAxes.inverted().transform(axis.transData.transform([(end, 0) for end in hard]))[:, 0]
        if (min(ends[1], 1.0) - max(ends[0], 0.0)) * panel_points(axis) > 4:
            axis.axvspan(*hard, color="0.9", zorder=0, label="hard phase")
    axis.set_xlim(low, high)
    return len(last)


def log_axis(axis: Any, which: str) -> None:
    """A logarithmic axis, ``"x"`` or ``"y"``, with plain numbers where it spans less than two decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    getattr(axis, f"set_{which}scale")("log")
    one = getattr(axis, f"{which}axis")
    low, high = getattr(axis, f"get_{which}lim")()
    if np.log10(high / low) < 2:
        one.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        one.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        one.set_major_formatter(FuncFormatter(lambda value, _: power_of_ten(value)))
        one.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
    one.set_minor_formatter(NullFormatter())


def power_of_ten(value: float) -> str:
    """Text ``10⁻³`` in Unicode, since typesetting a formula for every tick takes longer than the figure."""
    if value <= 0 or not np.isfinite(value):
        return ""
    power = round(float(np.log10(value)))
    return "10" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def panel_title(axis: Any, text: str, *, above: float = 6.0) -> None:
    """The title of a panel, ``above`` points over it, in lines as long as the panel is wide.

    Parameters
    ----------
    text : str
        As Matplotlib shows it, see ``literal``.
    """
    import textwrap

    whole = text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")  # what belongs together stays on a line
    lines = textwrap.fill(whole, max(12, int(panel_points(axis) / (8 * LETTER))), break_long_words=False)
    # With a height of its own, no layout looks for one: that took a fifth of the time of a figure.
    axis.set_title(lines, fontsize=8, y=1.0, pad=above)


def floor_line(axis: Any, floor: float) -> None:
    """The zero of a logarithmic axis: a grey line at its lower end, labeled 0."""
    axis.axhline(floor, color=FLOOR, lw=2.5, zorder=0)
    axis.annotate("0", (0.0, floor), xycoords=("axes fraction", "data"), xytext=(-4, 0), textcoords="offset points",
                  ha="right", va="center", fontsize=7)  # fmt: skip


def decades_to_zero(axis: Any, floor: float, top: float) -> None:
    """A logarithmic error axis that ends at its zero, with no decade written over that."""
    from matplotlib.ticker import FuncFormatter

    axis.set_yscale("log")
    floor_line(axis, floor)
    every = max(1, int(np.ceil(-np.log10(floor) / 5)))
    axis.set_yticks([10.0**k for k in range(-16, 6, every) if 3 * floor < 10.0**k <= top])
    axis.set_yticks([], minor=True)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: power_of_ten(value)))
    axis.set_ylim(floor / 1.5, top)


def finish(figure: Any, axes: Iterable[Any], note: str = "") -> None:
    """Add one legend below all panels, with each entry once, and a note."""
    import textwrap

    entries: JsonObject = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels()):
            entries.setdefault(label, handle)
    wide = figure.get_figwidth() > ONE_COLUMN
    longest = max(map(len, entries), default=0)
    columns = max(1, min(len(entries), int((125 if wide else 58) / (longest + 9))))
    said = textwrap.fill(literal(note), 135 if wide else 64) or None
    if entries:
        # Below the panels, which keep their height however many entries there are.
        lines = -(-len(entries) // columns) + (said or "").count("\n") + bool(said)
        figure.set_figheight(figure.get_figheight() + 0.14 * max(0, lines - 1))
        figure.legend(entries.values(), entries, loc="outside lower center", ncol=columns, fontsize=7, frameon=False,
                      handlelength=2.4, title=said, title_fontproperties={"size": 7})  # fmt: skip
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
    figure: Any, folder: Path, name: str, data: Sequence[Mapping[str, Any]] | None = None, caption: str = ""
) -> list[Path]:
    """Write PNG, SVG and PDF, the same bytes for the same figure, and as CSV what is drawn.

    The caption goes into the files (``Description`` of PNG and SVG, ``Subject`` of the PDF).
    """
    import matplotlib

    paths = [folder / f"{name}.{kind}" for kind in ("png", "svg", "pdf")]
    caption = printable(caption)
    about = {
        "png": {"Description": caption},
        "svg": {"Date": None, "Description": caption},
        "pdf": {"CreationDate": None, "ModDate": None, "Subject": caption},
    }
    with matplotlib.rc_context(STYLE):
        # One layout for all three files: most of the time would go into finding the same one again.
        lay_out(figure)
        figure.set_layout_engine(None)
        for path in paths:
            kind = path.suffix[1:]
            write_atomically(path, functools.partial(figure.savefig, format=kind, dpi=300, metadata=about[kind]))
    if data:
        paths.append(folder / f"{name}.csv")
        columns = list(dict.fromkeys(key for entry in data for key in entry))
        write_atomically(paths[-1], csv_text(data, columns).encode(), durable_name=False)
    return paths


def svg_text(figure: Any) -> str:
    """A figure as SVG."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def looks_of(suite: Suite) -> dict[str, Look]:
    """Styles of the algorithms of a suite, the same in all of its figures."""
    return looks({table["label"]: table["spec"]["name"] for table in suite.algorithms})


def floor_of(values: Iterable[float], target: float) -> float:
    """Lower end of a logarithmic axis: a decade below the smallest nonzero value and below the target."""
    positive = [value for value in values if value and value > 1e-16]
    return float(10.0 ** np.floor(np.log10(min([*positive, target])) - 0.3))
