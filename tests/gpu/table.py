"""The table of a GPU: rows of gpu-scale in every precision, with machine and versions, as Markdown on standard output.

    python tests/gpu/table.py RESULTS [PROBE.json]      # a folder made by `smimbench run gpu-scale --timing --results RESULTS`
    python tests/gpu/table.py RESULTS PROBE.json --into results/reference/gpu-scale

``--into`` copies the records there too, with the table as its README. Shares are those of the ceilings that were measured on the
same machine: of the rate of large matrix products, or of reading memory, whichever bounds an iteration. The share of the
eigendecomposition is its time alone (probe.py) over the time of an iteration.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from smimbench.backend.machine import peak_fraction
from smimbench.backend.namespaces.cupy import describe_gpu

COLUMNS = (
    "problem",
    "alpha",
    "D",
    "dtype",
    "status",
    "iterations",
    "mse",
    "per iteration",
    "share of peak",
    "eigh",
    "memory",
)


def records(folder):
    """All records of trusted times on a device, in the order of problem and precision."""
    found = []
    for path in sorted(folder.rglob("*.json")):
        document = json.loads(path.read_text())
        record = document.get("record", document)
        if "cell" in record and record.get("timing", {}).get("trusted"):
            found.append(record)
    return sorted(
        found,
        key=lambda r: (
            r["problem"],
            r["cell"]["alpha"],
            r["cell"].get("dtype", "float64"),
        ),
    )


def row(record, probe):
    """One line of the table."""
    cell, timing = record["cell"], record["timing"]
    dtype, seconds = cell.get("dtype", "float64"), timing.get("per_iteration")
    share = None
    if seconds and timing.get("cost") and timing.get("ceilings"):
        share = peak_fraction(
            seconds,
            timing["cost"],
            timing["ceilings"],
            dtype,
            tf32=cell.get("tf32", False),
        )
    alone = probe.get(
        f"eigh {cell['dimension']} {'float32' if dtype == 'float32' else 'float64'} s"
    )
    extensive = cell["problem"]["model"]["name"] == "attention-indexed"
    memory = timing.get("device_peak_memory")
    return [
        record["problem"],
        f"{cell['alpha']:g}",
        str(cell["dimension"]),
        dtype,
        record["status"],
        str(record.get("iterations", "")),
        ", ".join(f"{value:.6g}" for value in record["metrics"].get("mse", [])),
        f"{1e3 * seconds:.1f} ms" if seconds else "",
        f"{share.value:.0%} {'of products' if share.bound == 'products' else 'of reading'}"
        if share
        else "",
        f"{alone / seconds:.0%}" if alone and seconds and extensive else "",
        f"{memory / 2**30:.1f} GiB" if memory else "",
    ]


def document(found, probe):
    """The page: machine, versions, ceilings, table, probe."""
    machine, versions = found[0]["machine"], found[0]["versions"]
    ceilings = found[0]["timing"].get("ceilings") or {}
    lines = [
        "# gpu-scale",
        "",
        *(f"- device: {device}" for device in describe_gpu()["devices"]),
    ]
    lines += [f"- {key}: {value}" for key, value in {**machine, **versions}.items()]
    lines += [
        f"- ceiling {key}: {value / 1e12:.2f} T{'B' if key == 'bandwidth' else 'FLOP'}/s"
        for key, value in ceilings.items()
    ]
    lines += ["", "| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(row(record, probe)) + " |" for record in found]
    if any(
        r["cell"].get("dtype") == "float32" and r["status"] == "not-converged"
        for r in found
    ):
        lines += [
            "",
            "Two layers in float32 end `not-converged`: their labels are rounded to 24 bits, and a noiseless label is then ",
        ]
        lines[-1] += (
            "no longer that of any signal. Mixed precision keeps the labels in float64."
        )
    if probe:
        lines += [
            "",
            "| probe | |",
            "|---|---|",
            *(f"| {name} | {value:.4g} |" for name, value in probe.items()),
        ]
    return "\n".join(lines) + "\n"


def main():
    """Print the table; 1 where there is nothing to show."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("probe", type=Path, nargs="?")
    parser.add_argument("--into", type=Path)
    options = parser.parse_args()
    found = records(options.results)
    if not found:
        print(f"{options.results}: no record with trusted times", file=sys.stderr)
        return 1
    measured = (
        options.probe is not None
        and options.probe.exists()
        and options.probe.stat().st_size > 0
    )
    page = document(found, json.loads(options.probe.read_text()) if measured else {})
    print(page, end="")
    if options.into is not None:
        shutil.copytree(options.results, options.into, dirs_exist_ok=True)
        (options.into / "README.md").write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
