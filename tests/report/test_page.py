"""The HTML page in a browser: it draws, sorts, filters, fetches nothing and complains of nothing."""

import html
import json
import re
import shutil
import subprocess

import pytest

import smimbench
from smimbench.report.wording import AGREEMENT, RATIO, VERDICT_HELP
from tests.helpers import ATTENTION, call, ends_with, write_suite

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TEXT = (
    ATTENTION.replace("[0.1, 0.3]", "[0.1, 0.15, 0.3]")
    + '[[algorithms]]\nname = "adam"\nsteps = 20\n'
)
TEXT += '[[algorithms]]\nname = "adam"\nlabel = \'shorter "by 2"\'\nsteps = 18\n'  # at nearly the same error
LABEL = "soft & <b>$max$ $T$"
TEXT = TEXT.replace('label   = "softmax"', f'label   = "{LABEL}"')
TEXT += "[run]\nmax_iterations = 12\n"  # too few for gamp
TEXT += '[suite]\ntitle = "Is 1 < 2 & <script>alert(1)</script>?"\n'
SCRIPT = """
<script>
const look = (found) => {
  const table = document.querySelector("#rows table");
  const column = (name) => [...table.tHead.rows[0].cells].findIndex((c) => c.textContent.trim() === name);
  const seen = () => [...table.tBodies[0].rows].filter((r) => !r.hidden);
  const means = () => seen().map((r) => r.cells[column("mean ± s.e.m.")].dataset.value).filter((v) => v !== "").map(Number);
  const visible = (what) => [...document.querySelectorAll(what)].filter((one) => one.getBoundingClientRect().width > 0).length;
  found.charts = [...document.querySelectorAll(".chart svg")].map((c) => c.querySelectorAll("g[data-algorithm]").length);
  found.rows = seen().length;
  found.quoted = [...document.querySelectorAll(".chart g")].filter((one) => one.dataset.algorithm === 'shorter "by 2"').length;
  found.title = document.querySelector(".chart").textContent.replaceAll("\u00a0", " ");
  found.label = document.querySelector(".chart").getAttribute("aria-label");
  const head = table.tHead.rows[0].cells[column("mean ± s.e.m.")];
  head.querySelector("button").focus();
  found.focus = document.activeElement.textContent;
  head.querySelector("button").click();
  found.up = means(); found.sorted = head.getAttribute("aria-sort");
  head.querySelector("button").click();
  found.down = means();
  const form = document.getElementById("filters");
  const box = form.querySelector("input[value=adam]");
  found.before = visible(".chart:first-child g[data-algorithm=adam]");
  box.click();
  found.without = [...new Set(seen().map((r) => r.dataset.algorithm))];
  found.drawn = visible(".chart:first-child g[data-algorithm=adam]");
  box.click();
  form.elements.status.value = "not-converged"; form.dispatchEvent(new Event("input"));
  found.statuses = seen().length;
  const before = getComputedStyle(document.body).backgroundColor;
  document.getElementById("theme").click();
  found.themes = [before, getComputedStyle(document.body).backgroundColor];
  found.requests = performance.getEntriesByType("resource").filter((e) => !e.name.startsWith("data:")).map((e) => e.name);
  found.wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
  // The pointer on a mark of adam says its numbers; far from all points it says nothing.
  const svg = document.querySelector(".chart svg");
  const mark = svg.querySelector("g[data-algorithm=adam] use").getBoundingClientRect();
  const move = (x, y) => svg.dispatchEvent(new PointerEvent("pointermove", {clientX: x, clientY: y}));
  move((mark.left + mark.right) / 2, (mark.top + mark.bottom) / 2);
  found.tip = document.getElementById("tip").textContent.split("\\n");
  const corner = svg.getBoundingClientRect();
  move(corner.right - 1, corner.bottom - 1);
  found.silent = document.getElementById("tip").hidden;
  dispatchEvent(new Event("beforeprint"));
  found.open = [...document.querySelectorAll("details")].every((one) => one.open);
  parent.postMessage(found, "*");
};
addEventListener("load", () => setTimeout(() => look({})));
</script></body>"""


WINDOWS = {"wide": (1200, 900), "narrow": (390, 800)}
FRAMES = """<!doctype html><title>frames</title><script>
const all = {}, names = NAMES;
addEventListener("message", (event) => {
  all[names.find((_, i) => frames[i] === event.source)] = event.data;
  if (Object.keys(all).length < names.length) return;
  const out = document.createElement("pre"); out.id = "found"; out.textContent = JSON.stringify(all); document.body.append(out);
});
</script>"""
"""A page that shows the report at several widths at once: one browser for all."""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The report of a small suite with two algorithms."""
    folder = tmp_path_factory.mktemp("page")
    suite = write_suite(folder, TEXT)
    smimbench.run(suite, results=folder / "results", workers=1)
    output = ("--output", folder / "page.html", "--quiet")
    assert ends_with("report", suite, "--results", folder / "results", *output) in (
        0,
        1,
    )
    return folder / "page.html"


@pytest.fixture(scope="module")
def windows(page):
    """What a script found in the page at each width, and what the browser said on its console."""
    browser = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if browser is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    copy, frames = page.with_name("driven.html"), page.with_name("frames.html")
    copy.write_text(SCRIPT.join(page.read_text().rsplit("</body>", 1)))
    shown = [
        f'<iframe src="driven.html" width="{width}" height="{height}"></iframe>'
        for width, height in WINDOWS.values()
    ]
    frames.write_text(
        FRAMES.replace("NAMES", json.dumps(list(WINDOWS))) + "".join(shown)
    )
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--virtual-time-budget=60000",
        "--window-size=1700,1000",
    ]
    arguments = [browser, *options, f"--user-data-dir={page.parent / 'profile'}"]
    done = subprocess.run(
        [*arguments, "--dump-dom", frames.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    text = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    assert text, done.stderr[-2000:]
    return json.loads(html.unescape(text[1])), re.findall(r"CONSOLE[^\n]*", done.stderr)


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow) for name in WINDOWS])
def seen(request, windows):
    """The same, at one width."""
    return windows[0][request.param], windows[1]


def test_it_draws_and_fetches_nothing_and_complains_of_nothing(seen):
    found, console = seen
    assert console == []
    assert found["requests"] == []
    assert found["quoted"] > 2
    # As it is written, neither HTML nor mathematics; a title with mathematics is letter by letter in an SVG.
    assert "".join(LABEL.split()) in "".join(found["title"].split())
    assert found["label"] == f"{LABEL}, d = 30: MSE against sample ratio α"
    assert (
        len(found["charts"]) == 2 + 3 + 3 + 4
    )  # mse and overlap; seconds and samples at each sample ratio; profiles
    assert min(found["charts"][:8]) >= 2
    assert (
        min(found["charts"]) >= 1
    )  # who never comes near Bayes has no curve in a profile
    assert not found["wide"]


def test_tables_sort_and_filter_by_keyboard_and_mouse(seen):
    found, _ = seen
    assert found["rows"] == 3 * 2 * 3
    assert found["focus"] == "mean ± s.e.m."
    assert found["sorted"] == "ascending"
    assert found["up"] == sorted(found["up"])
    assert found["down"] == sorted(found["down"], reverse=True)
    assert found["without"] == ["gamp", 'shorter "by 2"']
    assert found["drawn"] == 0 < found["before"]
    assert 0 < found["statuses"] < found["rows"]


def test_light_and_dark(seen):
    assert len(set(seen[0]["themes"])) == 2


def test_the_pointer_asks_for_all_numbers(seen):
    name, *numbers = seen[0]["tip"]
    assert name == "adam"
    assert dict(one.split(": ") for one in numbers).keys() >= {
        "alpha",
        "value",
        "error",
        "n",
        "dimension",
    }
    assert seen[0]["silent"]


def test_on_paper_everything_is_open(seen):
    assert seen[0]["open"]


def test_the_page_says_all_that_is_needed_to_do_it_again(page):
    text = page.read_text()
    assert page.stat().st_size < 2e6
    for words in (
        "smimbench run small",
        "pip install .",
        "replicates of root seed 0",
        "numpy",
        "@media print",
        "UTC",
    ):
        assert words in text, words
    assert not re.search(
        r'(src|href)="(?!data:|#)', text.partition('<script type="application/json"')[0]
    )
    assert "<script>alert" not in text
    assert "Is 1 &lt; 2 &amp;" in text


def test_the_verdict_comes_first(page, capsys):
    text = page.read_text()
    assert (
        text.index("<strong>gamp</strong>")
        < text.index('id="contenders"')
        < text.index('id="rows"')
    )
    results = page.parent / "results"
    assert (
        "gamp is best"
        in call(capsys, "show", page.parent / "small.toml", "--results", results)[1]
    )


def test_the_card_of_a_verdict_explains_itself(page):
    card = page.read_text().partition('class="verdicts"')[2].partition("</ul>")[0]
    hints = [html.unescape(hint) for hint in re.findall('title="([^"]*)"', card)]
    assert len(hints) == 2
    assert hints[0] == VERDICT_HELP[RATIO]
    assert any(hints[1].startswith(VERDICT_HELP[text]) for text in AGREEMENT.values())
