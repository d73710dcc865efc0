"""One self-contained HTML page: tables, figures, machine, suite text; nothing is fetched from anywhere."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from smimbench.report.labels import place
from smimbench.report.tables import number

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from smimbench.suite.cells import Suite

__all__ = ["render_page"]

_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ suite.title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
h1 { font-size: 1.5rem; margin-bottom: .2rem } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .88rem; margin: .6rem 0; }
th, td { padding: .18rem .6rem; text-align: right; border-bottom: 1px solid #eee; white-space: nowrap }
th:first-child, td:first-child { text-align: left } th { border-bottom: 2px solid #999 }
.bad { color: #b00020; font-weight: 600 } .note { color: #666; font-size: .85rem }
figure { margin: 1rem 0 } svg { max-width: 100%; height: auto } pre { background: #f6f6f6; padding: 1rem; overflow-x: auto }
.scroll { overflow-x: auto }
</style></head><body>
<h1>{{ suite.title }}</h1>
<p>{{ suite.description }}</p>
{% if suite.reference %}<p class="note">Source: {{ suite.reference }}</p>{% endif %}
<p>Cells: {% for name, count in counts.items() %}{{ count }} {{ name }}{{ ", " if not loop.last }}{% endfor %}
{% if missing %}<span class="bad">, {{ missing }} not run</span>{% endif %}</p>
{% for figure in figures %}<figure>{{ figure.svg | safe }}<figcaption class="note">{{ figure.name }}: theory as a line, runs as
dots with one standard error of the mean; values of others as crosses.</figcaption></figure>{% endfor %}
<h2>Error against theory</h2>
<p class="note">Mean and standard error over n runs; z is the difference in units of both errors together; finite size is part
of it. Failures are counted under status and never dropped.</p>
<div class="scroll"><table><thead><tr><th>problem</th><th>algorithm</th><th>alpha</th><th>D</th><th>metric</th><th>component</th><th>n</th><th>mean</th>
<th>s.e.m.</th><th>theory</th><th>error</th><th>difference</th><th>z</th><th>/ Bayes</th><th>status</th></tr></thead><tbody>
{% for r in rows %}<tr><td>{{ r.problem }}</td><td>{{ r.algorithm }}{{ "@" ~ r.backend if r.backend != "numpy" else "" }}</td><td>{{ n(r.alpha) }}</td><td>{{ r.dimension }}</td>
<td>{{ r.metric }}</td><td>{{ r.component or "" }}</td><td>{{ r.n }}</td><td>{{ n(r.mean) }}</td><td>{{ n(r.sem) }}</td><td>{{ n(r.theory, 5) }}</td>
<td>{{ n(r.theory_error) }}</td><td>{{ n(r.difference) }}</td><td>{{ n(r.z, 1) }}</td><td>{{ n(r.ratio_to_bayes, 2) }}</td>
<td class="{{ 'bad' if r.bad else '' }}">{% for name, count in r.status_counts.items() %}{{ count }} {{ name }} {% endfor %}</td></tr>
{% endfor %}</tbody></table></div>
<h2>Runtime</h2>
<p class="note">{{ timing_note }}</p>
<div class="scroll"><table><thead><tr><th>problem</th><th>algorithm</th><th>alpha</th><th>D</th><th>to within 5% (s)</th><th>20%</th><th>50%</th><th>reached 5%</th>
<th>iterations</th><th>per iteration (s)</th><th>peak memory (MB)</th></tr></thead><tbody>
{% for r in runtime %}<tr><td>{{ r.problem }}</td><td>{{ r.algorithm }}</td><td>{{ n(r.alpha) }}</td><td>{{ r.dimension }}</td>
{% for e in ("0.05", "0.2", "0.5") %}<td>{{ n(r.time_to_theory[e].seconds) or "never" }}</td>{% endfor %}
<td>{{ "%.0f%%" | format(100 * (r.time_to_theory["0.05"].fraction or 0)) }}</td><td>{{ n(r.iterations, 0) }}</td><td>{{ n(r.per_iteration) }}</td>
<td>{{ "%.0f" | format((r.peak_memory or 0) / 1048576) }}</td></tr>{% endfor %}</tbody></table></div>
{% if reasons %}<h2>What did not end as it should</h2><ul>{% for line in reasons %}<li>{{ line }}</li>{% endfor %}</ul>{% endif %}
<h2>Made with</h2>
<p class="note">{% for name, version in (shared.versions or {}).items() %}{{ name }} {{ version }}{{ ", " if not loop.last }}{% endfor %};
{{ (shared.machine or {}).processor }}, {{ (shared.machine or {}).cores }} cores; commit {{ shared.git_commit or "none" }}</p>
<details><summary>Suite</summary><pre>{{ suite.text }}</pre></details>
</body></html>
"""


def render_page(
    suite: Suite,
    rows: Sequence[dict[str, Any]],
    counts: dict[str, int],
    missing: int,
    shared: dict[str, Any],
    figures: Sequence[Path],
) -> str:
    """The page as text.

    Raises
    ------
    ImportError
        If jinja2 is missing (extra ``report``).
    """
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    unique = {place(row): row for row in reversed(rows)}
    trusted = all(row["trusted"] for row in rows)
    note = "Median over runs; runs that never get there count as infinity."
    if not trusted:
        note += " Times are untrusted: cells may have run side by side."
    return environment.from_string(_TEMPLATE).render(
        suite=suite,
        rows=[{**row, "bad": set(row["status_counts"]) - {"ok", "skipped"}} for row in rows],
        runtime=list(reversed(unique.values())),
        counts=counts,
        missing=missing,
        shared={"versions": {}, "machine": {}, "git_commit": None, **shared},
        figures=[{"name": path.stem, "svg": _inline(path.read_text(encoding="utf-8"), path.stem)} for path in figures],
        reasons=sorted(
            {
                f"{r['algorithm']} at alpha {r['alpha']:.4g}: {line}"
                for r in rows
                for line in (*r["reasons"], *r["warnings"])
            }
        ),
        timing_note=note,
        n=number,
    )


def _inline(svg: str, name: str) -> str:
    """An SVG without its XML head, with ids of its own: two figures on a page must not share clip paths."""
    body = svg[svg.index("<svg") :]
    ids = re.findall(r'\bid="([^"]+)"', body)
    for found in set(ids):
        body = re.sub(rf'(id="|#){re.escape(found)}(?=["\)])', rf"\g<1>{name}-{found}", body)
    return body
