"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const printing = () => root.classList.contains("printing"); // on paper everything is light
  const dark = () => !printing() && (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const number = (v, digits = 4) => v === null || v === undefined || v === "" ? "" : (Math.abs(v) < 1e-4 || Math.abs(v) >= 1e5) && Number(v) !== 0 ? Number(v).toExponential(1) : String(Number(Number(v).toPrecision(digits)));

  // -- tables: every heading is a button that sorts; rows are filtered by problem, algorithm and status
  const key = (cell) => cell.dataset.value === undefined ? cell.textContent.trim() : cell.dataset.value;
  const order = (a, b) => {
    if (a === "" || b === "") return a === b ? 0 : a === "" ? 1 : -1;
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...body.rows].sort((a, b) => {
          const [x, y] = [key(a.cells[column]), key(b.cells[column])];
          const found = order(x, y);
          return down && x !== "" && y !== "" ? -found : found; // what is blank stays below
        });
        body.append(...rows);
      });
    });
  }

  // -- charts
  // Plotly takes marks of HTML and mathematics between dollars in its texts; names of others are shown as they are written.
  const ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;"};
  const literal = (text) => text.replace(/[&<>$]/g, (letter) => ENTITIES[letter]);
  const template = () => ({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: dark() ? "#e8e8e6" : "#1a1a1a", size: 12},
    margin: {l: 60, r: 15, t: 50, b: 45}, hovermode: "closest", showlegend: false, // the legend stands above the charts
  });
  const axis = (more) => ({gridcolor: dark() ? "#3a3a3a" : "#e5e5e5", zeroline: false, ...more});
  const ink = () => dark() ? "#ffffff" : "#000000";
  // Colors of figures are made for white paper: on a dark page those that would sink into it are mixed with white.
  const LIGHT = 110; // luma out of 255 that is seen well on it; at the double all colors are pale
  const shade = (color) => {
    const parts = /^#(..)(..)(..)$/.exec(color || "");
    if (!dark() || !parts) return color || ink();
    const rgb = parts.slice(1).map((part) => parseInt(part, 16)), luma = 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2];
    const share = luma < LIGHT ? (LIGHT - luma) / (255 - luma) : 0;
    return "rgb(" + rgb.map((part) => Math.round(part + share * (255 - part))).join(",") + ")";
  };
  const positive = (values) => values.filter((v) => v > 1e-16);
  const hidden = {}; // by group of charts, the names that its legend has put out

  // What has samples of its own stands far to the right of all others: from such a stretch on sample ratios are drawn by decades.
  const WIDE = 20;
  const decades = (chart) => {
    const marks = positive(chart.traces.filter((t) => t.mode === "markers").flatMap((t) => t.x));
    return chart.xlog || (marks.length > 0 && Math.max(...marks) > WIDE * Math.min(...marks));
  };
  const BAR = "line-ew-open"; // theory at one or two sample ratios
  const hover = (chart, t, i) => [
    t.name, chart.xlabel + ": " + number(t.x[i], 5), (chart.ylabel || t.name) + ": " + number(t.y[i], 5),
    ...(t.error ? ["±: " + number(t.error[i], 5)] : []), ...(t.runs ? ["runs: " + t.runs[i]] : []),
  ].map(literal).join("<br>");
  const draw = (chart, state) => {
    chart.stale = false;
    const logarithmic = chart.zero;
    const wide = decades(chart);
    const all = positive(chart.traces.flatMap((t) => t.y));
    const floor = logarithmic ? Math.pow(10, Math.floor(Math.log10(Math.min(...all, chart.target)) - 0.3)) : null;
    const lift = (v) => floor === null ? v : Math.max(v, floor);
    const traces = chart.traces.filter((t) => (!t.algorithm || state.algorithms.has(t.algorithm)) && !hidden[chart.group].has(t.name)).map((t) => ({
      type: "scatter", name: literal(t.name), x: t.x, y: t.y.map(lift), text: t.x.map((_, i) => hover(chart, t, i)), hovertemplate: "%{text}<extra></extra>",
      mode: t.mode, line: {color: shade(t.color), dash: t.dash, width: 2, shape: t.shape},
      marker: {color: shade(t.color), symbol: t.open ? t.symbol + "-open" : t.symbol, size: t.symbol === BAR ? 18 : 8, line: t.symbol === BAR ? {width: 2} : undefined},
      error_y: t.error ? {type: "data", array: t.error, color: shade(t.color), thickness: 1.2, width: 3} : undefined,
    }));
    const shapes = chart.thresholds.map((t) => ({type: "line", x0: t.at, x1: t.at, y0: 0, y1: 1, yref: "paper", line: {color: "#888", dash: "dash", width: 1}}));
    const notes = chart.thresholds.map((t, i) => ({x: wide ? Math.log10(t.at) : t.at, y: 1, yref: "paper", yanchor: "bottom", yshift: 12 * (i % 2), text: literal(t.name), showarrow: false, font: {size: 10}}));
    if (floor !== null) notes.push({x: 1, xref: "paper", xanchor: "right", y: Math.log10(floor), yshift: 9, text: "lowest: 0", showarrow: false, font: {size: 10}});
    Plotly.react(chart.node, traces, {
      ...template(), ...(printing() ? {width: chart.node.clientWidth, height: chart.node.clientHeight} : {autosize: true}), title: {text: literal(chart.title), font: {size: 13}}, shapes, annotations: notes,
      xaxis: axis({title: {text: literal(chart.xlabel)}, type: wide ? "log" : "linear", exponentformat: "power"}),
      yaxis: axis({title: {text: literal(chart.ylabel)}, type: logarithmic || chart.ylog ? "log" : "linear", exponentformat: "power",
                   rangemode: logarithmic || chart.ylog ? "normal" : "tozero"}),
    }, {responsive: true, displaylogo: false, displayModeBar: false});
  };
  for (const chart of data.charts) {
    chart.node = document.createElement("div");
    chart.node.className = "chart";
    chart.node.setAttribute("role", "img");
    chart.node.setAttribute("aria-label", chart.title + ": " + chart.ylabel + " against " + chart.xlabel);
    document.getElementById("charts-" + chart.group).append(chart.node);
  }

  // -- one legend for each group of charts, above them: over no data, and at the width of any screen
  const OUTLINES = {
    circle: "M6 1.5a4.5 4.5 0 1 0 .01 0z", square: "M2 2h8v8h-8z", diamond: "M6 1L11 6L6 11L1 6z", "triangle-up": "M6 1.5L11 10H1z",
    "triangle-down": "M6 10.5L11 2H1z", "triangle-left": "M1.5 6L10 1V11z", "triangle-right": "M10.5 6L2 1V11z",
    cross: "M4 1h4v3h3v4h-3v3h-4v-3h-3v-4h3z", x: "M2.5 1L6 4.5L9.5 1L11 2.5L7.5 6L11 9.5L9.5 11L6 7.5L2.5 11L1 9.5L4.5 6L1 2.5z",
    star: "M6 .8L7.4 4.4L11.2 4.6L8.2 7L9.2 10.8L6 8.6L2.8 10.8L3.8 7L.8 4.6L4.6 4.4z", hexagon: "M6 1L10.3 3.5V8.5L6 11L1.7 8.5V3.5z",
    pentagon: "M6 1L11 4.7L9.1 10.5H2.9L1 4.7z",
  };
  const DASHES = {solid: "", dash: "6 3", dashdot: "6 3 1.5 3", dot: "2 2"};
  const SVG = "http://www.w3.org/2000/svg";
  const swatch = (trace) => {
    const svg = document.createElementNS(SVG, "svg"), path = document.createElementNS(SVG, "path");
    const color = trace.color ? shade(trace.color) : "currentColor", line = trace.mode === "lines", outline = OUTLINES[trace.symbol];
    for (const [key, value] of Object.entries({width: line ? 26 : 12, height: 12, "aria-hidden": "true"})) svg.setAttribute(key, value);
    path.setAttribute("d", line ? "M0 6H26" : trace.symbol === BAR ? "M0 6H12" : outline || "M2 2L10 10M10 2L2 10");
    path.setAttribute("fill", !line && outline ? color : "none");
    if (line || !outline) path.setAttribute("stroke", color);
    if (line || trace.symbol === BAR) path.setAttribute("stroke-width", 2);
    if (line && trace.dash) path.setAttribute("stroke-dasharray", DASHES[trace.dash] ?? trace.dash.replaceAll("px", "").replaceAll(",", " "));
    svg.append(path);
    return svg;
  };
  const swatches = []; // to be colored again when light turns to dark
  for (const group of new Set(data.charts.map((chart) => chart.group))) {
    hidden[group] = new Set();
    const legend = document.createElement("div");
    legend.className = "legend";
    const names = new Map(data.charts.filter((chart) => chart.group === group).flatMap((chart) => chart.traces).map((t) => [t.name, t]));
    for (const [name, trace] of names) {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.append(swatch(trace), " " + name);
      swatches.push(() => button.firstChild.replaceWith(swatch(trace)));
      button.addEventListener("click", () => {
        const off = hidden[group].delete(name) ? false : hidden[group].add(name);
        button.setAttribute("aria-pressed", String(!off));
        apply();
      });
      legend.append(button);
    }
    document.getElementById("charts-" + group).before(legend);
  }

  // -- tables first: the library of the charts is unpacked when the page stands, and they are drawn one after the other,
  // those on the screen first
  let ready = false, waiting = false;
  const onScreen = (chart) => { const box = chart.node.getBoundingClientRect(); return box.bottom > 0 && box.top < innerHeight; };
  const drawSome = (all = false) => {
    if (!ready) return;
    const state = chosen(), stale = data.charts.filter((chart) => chart.stale && !chart.node.hidden);
    for (const chart of all ? stale : [stale.find(onScreen) || stale[0]].filter(Boolean)) draw(chart, state);
    if (!waiting && data.charts.some((chart) => chart.stale && !chart.node.hidden)) {
      waiting = true;
      setTimeout(() => { waiting = false; drawSome(); });
    }
    for (const group of document.querySelectorAll(".charts")) group.setAttribute("aria-busy", String(waiting));
  };
  const unpack = async () => {
    const letters = atob(document.getElementById("plotly").textContent), packed = new Uint8Array(letters.length);
    for (let i = 0; i < letters.length; i++) packed[i] = letters.charCodeAt(i); // a tenth of the time of Uint8Array.from
    const script = document.createElement("script");
    script.textContent = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    document.head.append(script);
    ready = true;
    drawSome();
  };
  const complain = () => document.querySelectorAll(".charts").forEach((group) => {
    group.textContent = "This browser cannot unpack the charts (it takes one of 2023 or newer); the figures below show the same.";
  });

  // -- filters
  const form = document.getElementById("filters");
  const chosen = () => ({
    algorithms: new Set([...form.querySelectorAll("input[name=algorithm]:checked")].map((box) => box.value)),
    problem: form.elements.problem.value, status: form.elements.status.value,
  });
  const apply = () => {
    const state = chosen();
    for (const row of document.querySelectorAll("tr[data-algorithm]")) {
      const {algorithm, problem, status} = row.dataset; // the summary is of all problems and statuses
      row.hidden = !state.algorithms.has(algorithm) || (state.problem !== "" && problem !== undefined && problem !== state.problem) ||
        (state.status !== "" && status !== undefined && !status.split(" ").includes(state.status));
    }
    for (const chart of data.charts) {
      chart.node.hidden = state.problem !== "" && chart.problem !== null && chart.problem !== state.problem;
      chart.stale = true;
    }
    drawSome(!waiting); // at once what has been drawn before
    const rows = document.querySelectorAll("#rows tbody tr");
    document.getElementById("count").textContent = [...rows].filter((r) => !r.hidden).length + " of " + rows.length + " rows";
  };
  form.addEventListener("input", apply);
  form.addEventListener("reset", () => setTimeout(apply));
  const recolor = () => { swatches.forEach((again) => again()); apply(); };
  document.getElementById("theme").addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; recolor(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolor);
  // Charts are as wide as they were drawn: for paper they are drawn at its width.
  const paper = (on) => {
    root.classList.toggle("printing", on);
    recolor();
    drawSome(true);
  };
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((one) => { one.open = true; });
    paper(true);
  });
  addEventListener("afterprint", () => paper(false));
  document.getElementById("csv").href = "data:text/csv;charset=utf-8," + encodeURIComponent(data.csv);
  apply();
  addEventListener("load", () => setTimeout(() => unpack().catch(complain)));
})();
