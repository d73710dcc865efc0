"""A suite with many finished cells, without running any: for measuring commands on large results.

``python3 -m tests.report.many_records FOLDER N`` writes ``many.toml`` and N records under ``FOLDER/results``.
"""

import json
import sys
from pathlib import Path

from smimbench.run.record import FORMAT, plain, sealed, text_of
from smimbench.suite.reader import load_suite
from tests.helpers import LINE


def write(folder, count, seeds=50):
    """The suite, next to records of all its cells: half descent, half ridge."""
    points = max(1, count // (2 * seeds))
    alphas = [round(0.3 + 0.002 * i, 6) for i in range(points)]
    grid = f"[grid]\nalpha = {alphas}\ndimension = [30]\nseeds = {seeds}\n"
    path = folder / "many.toml"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'[suite]\ntitle = "Many"\n[problem]\n{LINE}\n{grid}\n'
        '[[algorithms]]\nname = "adam"\nsteps = 20\n[[algorithms]]\nname = "ridge"\n'
    )
    results = folder / "results" / "many"
    results.mkdir(parents=True, exist_ok=True)
    for cell in load_suite(str(path)).cells():
        error = 0.2 + 0.3 / (1 + cell.alpha) + 0.01 * (cell.replicate % 7)
        steps = list(range(21))
        record = {
            "format": FORMAT, "key": cell.key, "cell": cell.identity(), "problem": cell.problem_label,
            "algorithm": cell.algorithm_label, "status": "ok", "reason": "all 20 steps made", "samples": 30,
            "metrics": {"mse": [error], "overlap": [1 - error]}, "iterations": 20, "warnings": [],
            "trajectory": {
                "iteration": steps, "seconds": [0.001 * i for i in steps], "residual": [0.1 for _ in steps],
                "samples": [None for _ in steps], "mse": [[error + 1 / (1 + i)] for i in steps],
                "overlap": [[1 - error] for _ in steps],
            },
            "machine": {}, "versions": {},
            "timing": {"machine": "m", "seconds": 0.02, "cpu_seconds": 0.02, "total_seconds": 0.03},
        }  # fmt: skip
        record = json.loads(json.dumps(plain(record)))
        (results / f"{cell.key}.json").write_text(text_of(sealed(record)))
    return path


if __name__ == "__main__":
    print(write(Path(sys.argv[1]), int(sys.argv[2])))
