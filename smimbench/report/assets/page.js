"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;

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

  // -- figures: the pointer asks for the numbers of the nearest point that is drawn
  const tip = document.getElementById("tip"), REACH = 15; // points of the figure; doubled, what is asked for is less clear
  document.querySelectorAll(".chart svg").forEach((svg, i) => {
    svg.addEventListener("pointerleave", () => { tip.hidden = true; });
    const say = (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      let best = REACH, found = null;
      for (const series of data.series[i]) {
        if (chosen().off.has(series.algorithm)) continue;
        series.at.forEach(([x, y], k) => {
          const far = Math.hypot(x - at.x, y - at.y);
          if (far < best) { best = far; found = [series, k]; }
        });
      }
      tip.hidden = !found;
      if (!found) return;
      const [series, k] = found;
      tip.textContent = [series.name, ...Object.entries(series.columns).map(([name, values]) => name + ": " + (values[k] ?? ""))].join("\n");
      tip.style.left = Math.min(event.pageX + 12, root.clientWidth - tip.offsetWidth) + "px";
      tip.style.top = event.pageY + 12 + "px";
    };
    svg.addEventListener("pointermove", say);
    svg.addEventListener("pointerdown", say); // a finger does not move
  });

  // -- filters
  const form = document.getElementById("filters");
  const chosen = () => ({
    off: new Set([...form.querySelectorAll("input[name=algorithm]:not(:checked)")].map((box) => box.value)),
    problem: form.elements.problem.value, status: form.elements.status.value,
  });
  const apply = () => {
    const state = chosen();
    for (const one of document.querySelectorAll("[data-algorithm], [data-problem]")) {
      const {algorithm, problem, status} = one.dataset; // what says nothing, as the summary of all problems, is always shown
      const out = [state.off.has(algorithm), state.problem && problem && problem !== state.problem,
        state.status && status && !status.split(" ").includes(state.status)];
      one.toggleAttribute("hidden", out.some(Boolean));
    }
    const rows = document.querySelectorAll("#rows tbody tr");
    document.getElementById("count").textContent = [...rows].filter((r) => !r.hidden).length + " of " + rows.length + " rows";
  };
  form.addEventListener("input", apply);
  form.addEventListener("reset", () => setTimeout(apply));
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.getElementById("theme").addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; });
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
  document.getElementById("csv").href = "data:text/csv;charset=utf-8," + encodeURIComponent(data.csv);
  apply();
})();
