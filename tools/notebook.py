"""Runs the notebook docs/own-optimizer.ipynb and stores the output of its cells: ``python tools/notebook.py``.

It runs in an empty folder, with the kernel of this Python (extra ``docs``). The site has it as a page, made by ``page``.
"""

from __future__ import annotations

import base64
import json
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parent.parent / "docs" / "own-optimizer.ipynb"
PAGE = f"{NOTEBOOK.stem}.md"


def main() -> None:
    """Run the notebook of the documentation, and store it with its outputs and without what differs from run to run."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=600, resources=resources).execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells, 1):
        cell.id, cell.metadata = f"cell-{number}", {}
        if cell.cell_type == "code":
            cell.outputs = [
                output
                for output in cell.outputs
                if output.get("data") != {"text/plain": ""}  # where progress was
            ]
    nbformat.write(notebook, NOTEBOOK)


def page() -> tuple[str, dict[str, bytes]]:
    """Return the notebook as Markdown, and its figures by the names under which the page shows them."""
    blocks: list[str] = []
    figures: dict[str, bytes] = {}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            blocks.append(source)
            continue
        magic, _, file_text = source.partition("\n")
        name = magic.removeprefix("%%writefile ")
        if name != magic:
            language = Path(name).suffix.removeprefix(".")
            blocks.append(f'```{language} title="{name}"\n{file_text}\n```')
        else:
            blocks.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            shown: dict[str, Any] = output.get("data", {})
            if "image/png" in shown:
                figure = f"{NOTEBOOK.stem}-{len(figures) + 1}.png"
                figures[figure] = base64.b64decode(shown["image/png"])
                blocks.append(f"![Learning curves with the optimum]({figure})")
            elif "text/html" in shown:
                blocks.append("".join(shown["text/html"]))
    return "\n\n".join(blocks) + "\n", figures


if __name__ == "__main__":
    main()
