"""Compare a run of the benchmarks with the committed baseline, as ratios to the calibration.

    python -m pytest -o addopts=--import-mode=importlib tests/benchmarks --benchmark-only --benchmark-json now.json
    python tests/benchmarks/compare.py now.json [again.json ...] [--fail-over PERCENT] [--update]

What ``pytest-benchmark compare --benchmark-compare-fail=min:15%`` does with seconds of one machine, this does with ratios,
so that a baseline measured on one machine holds on the next. How much faster than a skinny product a square one is, is a
property of the processor, though: ratios are kept by its name, and one that is not known is compared with the largest ratio of
all that are. Of several runs the best of each benchmark counts.
Exit code 1 if any benchmark is slower by more than the limit, 2 if there is nothing to compare.
"""

import argparse
import json
import sys
from pathlib import Path

BASELINE = Path(__file__).with_name("baseline.json")
FAIL_OVER = 15.0


def worse(now: float, before: float, fail_over: float = FAIL_OVER) -> bool:
    """Whether a ratio grew by more than so many percent; what is no number is worse than any."""
    return not now <= (1 + fail_over / 100) * before


def ratios(*documents: dict) -> dict[str, float]:
    """Ratios of pytest-benchmark documents by name, the best of all; benchmarks without one are left out."""
    found: dict[str, float] = {}
    for entry in (entry for document in documents for entry in document["benchmarks"]):
        info = entry.get("extra_info", {})
        value = info.get("ratio")
        if value is not None:
            name = entry["fullname"].replace("\\", "/").rsplit("/", 1)[-1]
            found[name] = min(float(value), found.get(name, float("inf")))
    return found


def processor(*documents: dict) -> str:
    """Name of the processor that all documents were measured on; ValueError if there are several."""
    names = {(d.get("machine_info") or {}).get("cpu", {}).get("brand_raw") or "unknown" for d in documents}
    if len(names) > 1:
        raise ValueError(f"the runs are from different processors: {', '.join(sorted(names))}")
    return names.pop()


def expected(baseline: dict[str, dict[str, float]], name: str) -> dict[str, float]:
    """Ratios of a processor; of every benchmark that it has not, the largest that any other one has."""
    found: dict[str, float] = {}
    for known in baseline.values():
        for benchmark, value in known.items():
            found[benchmark] = max(value, found.get(benchmark, 0.0))
    return found | baseline.get(name, {})


def table(now: dict[str, float], baseline: dict[str, float], fail_over: float) -> tuple[list[str], bool]:
    """Lines of the comparison, worst first, and whether anything is worse."""
    shared = sorted(now.keys() & baseline.keys(), key=lambda name: -now[name] / baseline[name])
    lines = []
    for name in shared:
        change = 100 * (now[name] / baseline[name] - 1)
        mark = "SLOWER" if worse(now[name], baseline[name], fail_over) else ""
        lines.append(f"{change:+7.1f}%  {baseline[name]:10.4g} -> {now[name]:10.4g}  {name}  {mark}".rstrip())
    lines += [f"    new              -> {now[name]:10.4g}  {name}" for name in sorted(now.keys() - baseline.keys())]
    missing = sorted(baseline.keys() - now.keys())
    lines += [f"    not run                        {name}" for name in missing]
    return lines, any(line.endswith("SLOWER") for line in lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the comparison; exit code 1 if something is slower, 2 if there is nothing to compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="what --benchmark-json wrote")
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    parser.add_argument("--fail-over", type=float, default=FAIL_OVER, metavar="PERCENT", help="[default: %(default)s]")
    parser.add_argument("--update", action="store_true", help="make this run the baseline")
    options = parser.parse_args(arguments)
    documents = [json.loads(path.read_text()) for path in options.runs]
    now = ratios(*documents)
    if not now:
        sys.stderr.write(f"{options.runs[0]}: holds no benchmark with a ratio\n")
        return 2
    try:
        name = processor(*documents)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    baseline = json.loads(options.baseline.read_text()) if options.baseline.exists() else {}
    if options.update:
        own = baseline.setdefault(name, {})
        own.update({benchmark: float(f"{value:.4g}") for benchmark, value in now.items()})
        baseline[name] = dict(sorted(own.items()))
        options.baseline.write_text(json.dumps(dict(sorted(baseline.items())), indent=1) + "\n")
        return 0
    if not now.keys() & expected(baseline, name).keys():
        sys.stderr.write(f"{options.baseline}: holds none of these benchmarks\n")
        return 2
    lines, failed = table(now, expected(baseline, name), options.fail_over)
    known = (
        ""
        if name in baseline
        else f", which is not in the baseline: beside the slowest of {', '.join(sorted(baseline))}"
    )
    sys.stdout.write("\n".join([f"{name}{known}", *lines]) + "\n")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
