"""Write the list of all files into CONTRIBUTING.md: ``python docs/files.py``.

Each file has the first sentence of its docstring, and the names of what it defines for others. A test fails when the list is
stale.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
    "smimbench", "plugins/smimbench_models", "plugins/smimbench_channels", "plugins/smimbench_priors",
    "plugins/smimbench_algorithms", "plugins/smimbench_metrics",
)  # fmt: skip
BEGIN, END = "<!-- files: written by docs/files.py -->\n", "<!-- end of files -->\n"


def first_sentence(path: Path) -> str:
    """The first paragraph of a file's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def public_names(path: Path) -> list[str]:
    """Functions and classes of a file without an underscore in front, in its order."""
    defined = ast.parse(path.read_text(encoding="utf-8")).body
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [item.name for item in defined if isinstance(item, kinds) and not item.name.startswith("_")]


def entry(path: Path) -> str:
    """The line of a file."""
    names = ", ".join(f"`{name}`" for name in public_names(path))
    return f"- **`{path.name}`**: {first_sentence(path)}" + (f" *{names}*" if names else "")


def file_list() -> str:
    """Markdown: a heading for every folder, a line for every file that is more than the head of its folder."""
    lines = []
    for folder in FOLDERS:
        paths = sorted(p for p in (ROOT / folder).rglob("*.py") if p.name not in ("__init__.py", "__main__.py"))
        for parent in sorted({path.parent for path in paths}):
            about = first_sentence(parent / "__init__.py")
            lines += ["", f"**`{parent.relative_to(ROOT)}/`** {about}", ""]
            lines += [entry(path) for path in paths if path.parent == parent]
    return "\n".join(lines) + "\n\n"


def with_list(page: str) -> str:
    """The page with the list as it is now."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + file_list() + END + rest.partition(END)[2]


if __name__ == "__main__":
    page = ROOT / "CONTRIBUTING.md"
    page.write_text(with_list(page.read_text(encoding="utf-8")), encoding="utf-8")
