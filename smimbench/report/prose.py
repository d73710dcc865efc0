r"""Docstrings formatted for a terminal: wrapped, LaTeX as Unicode, reST markup removed, parameters under headings.

What is not known here stays as it is written: half of a formula would be worse than its source.
"""

from __future__ import annotations

import functools
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterator
from html.entities import html5

from rich.text import Text

_NAMED = {
    "infty": "∞", "cdot": "·", "to": "→", "partial": "∂", "dots": "…", "ldots": "…", "quad": "  ", "qquad": "    ", "varphi": "φ",
    "top": "ᵀ", "star": "*", "sim": "~", "mid": "|", "sup": "sup", "deg": "deg", "Pr": "Pr",
}  # fmt: skip
"""Commands of LaTeX that HTML names in another way, or not at all."""

_LETTERS = ("hat", "\u0302"), ("tilde", "\u0303"), ("bar", "\u0305"), ("overline", "\u0305"), ("dot", "\u0307")
_ABOVE = str.maketrans("0123456789+-=()niT*", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱᵀ*")
_BELOW = str.maketrans("0123456789+-=()aeijknmptx", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑᵢⱼₖₙₘₚₜₓ")
_GROUP = r"\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
_HEADING = re.compile(r"^(\w[^\n]*)\n-{3,}[ ]*$", re.M)


def readable_math(source: str) -> str:
    r"""A LaTeX formula as plain text: ``\hat Q = \frac{a}{b}`` as ``Q̂ = a/b``."""
    text = re.sub(r"\\(left|right|[bB]ig{1,2}[lr]?|displaystyle|,|;|!|:)(?![A-Za-z])", "", source)
    text = re.sub(r"\\(?:mathrm|mathcal|mathbb|mathbf|operatorname\*?|text)\s*" + _GROUP, r"\1", text)
    before = ""
    while before != text:  # from the outside in: what stands in a group is a formula itself
        before = text
        text = re.sub(r"\\[td]?frac\s*" + _GROUP + r"\s*" + _GROUP, lambda m: f"{_bound(m[1])}/{_bound(m[2])}", text)
        text = re.sub(r"\\sqrt\s*" + _GROUP, lambda m: f"√{_bound(m[1])}", text)
        for name, mark in _LETTERS:
            text = re.sub(rf"\\{name}\s*(?:{_GROUP}|(\\?[A-Za-z]+|.))", functools.partial(_marked, mark), text)
    text = re.sub(r"\\([A-Za-z]+)", _letter, text)
    for sign, table in (("^", _ABOVE), ("_", _BELOW)):
        text = re.sub(rf"\{sign}(?:{_GROUP}|(.))", functools.partial(_moved, sign, table), text)
    text = text.replace("&", "").replace(r"\{", "{").replace(r"\}", "}").replace(r"\|", "‖").replace("'", "′")
    lines = (re.sub(r"(?<=\S) {2,3}(?=\S)", " ", line).strip() for line in re.split(r"\\\\|\n", text))
    return "\n".join(filter(None, lines))


def _bound(text: str) -> str:
    """Text in brackets, unless it is a single factor."""
    return text if re.fullmatch(r"\\?\w+|\d+", text.strip()) else f"({text.strip()})"


def _marked(mark: str, found: re.Match[str]) -> str:
    """A letter with a hat or a similar accent."""
    letter = re.sub(r"\\([A-Za-z]+)", _letter, found[1] or found[2])
    if len(letter) > 1 and mark == "\u0305":
        return f"⟨{letter}⟩"  # a bar over a word is a mean
    return unicodedata.normalize("NFC", letter[0] + mark + letter[1:])


def _letter(found: re.Match[str]) -> str:
    name = found[1]
    return _NAMED.get(name) or html5.get(f"{name};", name)  # log, min, arg and the like have no sign


def _moved(sign: str, table: dict[int, int], found: re.Match[str]) -> str:
    """Superscript or subscript characters if all of them exist, else the sign and brackets."""
    text = found[1] or found[2]
    moved = text.translate(table)
    if all(a != b or a == "*" for a, b in zip(moved, text)):
        return moved
    return f"{sign}{text}" if len(text) == 1 or text.isalnum() else f"{sign}({text})"


def _joined(text: str) -> str:
    """Text with each paragraph joined to one line."""
    found: list[str] = []
    full = False
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        before = len(found[-1]) - len(found[-1].lstrip()) if found else -1
        if full and line.strip() and indent == before and not re.match(r"\s*([-*+|=]|\d+\.|\.\. |>>>)", line):
            found[-1] += " " + line.strip()
        else:
            found.append(line)
        full = len(line) > 60 and not line.rstrip().endswith("::")
    return "\n".join(found)


def readable_prose(source: str, width: int = 0) -> Text:
    """A docstring (numpydoc) as styled text: headings, formulas and code; wrapped to at most this width, if one is given."""
    text = _HEADING.sub(lambda m: f"\x01{m[1]}\x02", _joined(textwrap.dedent(source)))
    text = re.sub(r":math:`([^`]+)`", lambda m: readable_math(m[1]), text)
    text = re.sub(r":\w+:`~?([^`]+)`", lambda m: f"``{m[1].rpartition('.')[2]}``", text)
    text = "\n".join(_wrapped(line, width) if width else line for line in _blocks(text))
    shown = Text()
    for part in re.split(r"(\x01[^\x02]*\x02|``[^`]+``|\*\*[^*\n]+\*\*)", text):
        if part.startswith("\x01"):
            shown.append(part[1:-1], style="bold")
        elif part.startswith("``"):
            shown.append(part[2:-2], style="cyan")
        elif part.startswith("**"):
            shown.append(part[2:-2], style="bold")
        else:
            shown.append(re.sub(r"::$", ":", part, flags=re.M))
    return shown


def _wrapped(line: str, width: int) -> str:
    """A line wrapped to this width, with its indentation kept."""
    text = line.lstrip()
    indent = line[: len(line) - len(text)]
    filled = textwrap.fill(text, max(width - len(indent), 20), break_long_words=False, break_on_hyphens=False)
    return textwrap.indent(filled, indent)


def _blocks(text: str) -> Iterator[str]:
    """Lines with each ``.. math::`` block replaced by its formula, and other directives by their content."""
    lines = text.splitlines()
    i = 0
    while i < len(lines):
        found = re.match(r"( *)\.\. (\w+)::\s*(.*)$", lines[i])
        if not found:
            yield lines[i]
            i += 1
            continue
        inside = [found[3]] if found[3] else []
        i += 1
        while i < len(lines) and (not lines[i].strip() or len(lines[i]) - len(lines[i].lstrip()) > len(found[1])):
            inside.append(lines[i])
            i += 1
        change: Callable[[str], str] = readable_math if found[2] == "math" else textwrap.dedent
        yield from (f"{found[1]}    {line}".rstrip() for line in change("\n".join(inside).strip("\n")).splitlines())
        yield ""
