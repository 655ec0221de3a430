// The views of fleets, which their owner sees: the list, and one fleet's graph of tasks.
import { cell, h, pill, show, svg, table } from "./elements.js";
import { lasting, plural, when } from "./words.js";
import { past } from "./proxy.js";

const EVERY_MS = 3000, WIDE = 168, HIGH = 46, GAP = 44, MOST_DRAWN = 200;
const KINDS = { done: "good", running: "accent", lending: "accent", failed: "bad", skipped: "warn", cancelled: "warn" };

function repeat(path, draw) {
  let timer = 0;
  async function look() {
    clearTimeout(timer);
    const told = await past(path, () => {});
    const goes = draw(told == null ? { problem: "the proxy does not answer" } : told);
    if (!document.hidden && goes) timer = setTimeout(look, EVERY_MS);
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  look();
}
export function showFleets() {
  repeat("/page/fleets.json", (told) => {
    if (told.problem) show("#fleets", h("p.notice.warn", null, told.problem));
    else show("#fleets", told.length ? h("div.panel", null, table([["fleet"], ["tasks"], ["began"], ["took", "number"], ["file"]], told.map((one) => h("tr", { "data-key": one.fleet_id },
      cell(h("a", { href: `/fleet/${one.fleet_id}` }, one.fleet_id)), cell([one.runs ? pill("runs", "accent") : "", ` ${one.counts}`]), cell(when(one.began)), cell(one.ended == null ? "" : lasting(one.ended - one.began), "took", "number"), cell(one.source || "submitted one by one"))), 0))
      : h("p.panel.empty", null, "No fleets yet: `hivemind fleet run FILE` runs one."));
    return !told.problem;
  });
}
export function showFleet(id) {
  document.getElementById("fleet-title").textContent = `Fleet ${id}`;
  repeat(`/page/fleet/${id}.json`, (told) => {
    if (told.problem) { show("#fleet", h("p.notice.warn", null, told.problem)); return false; }
    const { fleet, tasks } = told, now = Date.now() / 1000;
    show("#fleet", h("p", null, fleet.runs ? pill("runs", "accent") : "", ` ${fleet.counts}, at most ${told.at_most} at once, began ${when(fleet.began)}${fleet.ended == null ? "" : `, took ${lasting(fleet.ended - fleet.began)}`}`),
      tasks.length > 0 && h("section", { "aria-label": "Graph" }, h("h2", null, "Graph"), h("div.panel.scroll", { tabindex: 0, role: "region", "aria-label": "Graph of tasks, may be scrolled" }, graph(tasks))),
      h("section", { "aria-labelledby": "tasks-title" }, h("h2", { id: "tasks-title" }, "Tasks"), h("div.panel", null, table([["task"], ["state"], ["after"], ["tries", "number"], ["took", "number"], ["why"]], tasks.map((one) => h("tr", { "data-key": one.name },
        cell(one.name), cell(pill(one.state, KINDS[one.state])), cell([...one.depends_on, one.parent && `of ${one.parent}`].filter(Boolean).join(", "), "after"), cell(one.attempts ? String(one.attempts) : "", "tries", "number"),
        cell(one.began == null ? "" : lasting((one.ended == null ? now : one.ended) - one.began), "took", "number"), cell(one.reason, "why"))), 0))));
    return fleet.runs;
  });
}
// Each task right of all that it comes after; an arrow for each that it depends on.
function graph(tasks) {
  const shown = tasks.slice(0, MOST_DRAWN), by = new Map(shown.map((one) => [one.name, one])), layers = new Map();
  const before = (one) => [...one.depends_on, one.parent].filter((name) => by.has(name));
  const layer = (one, path) => {
    if (layers.has(one.name)) return layers.get(one.name);
    const made = Math.max(-1, ...before(one).filter((name) => !path.has(name)).map((name) => layer(by.get(name), new Set([...path, name])))) + 1;
    layers.set(one.name, made);
    return made;
  };
  const columns = [];
  for (const one of shown) (columns[layer(one, new Set([one.name]))] ||= []).push(one);
  const rows = Math.max(...columns.map((column) => column.length)), width = columns.length * (WIDE + GAP) - GAP + 4, height = rows * (HIGH + 12) + 4, places = new Map();
  columns.forEach((column, x) => column.forEach((one, y) => places.set(one.name, [2 + x * (WIDE + GAP), 2 + (y + (rows - column.length) / 2) * (HIGH + 12)])));
  const cut = (text) => (text.length > 21 ? `${text.slice(0, 20)}…` : text);
  const lines = shown.flatMap((one) => before(one).map((name) => {
    const [x, y] = places.get(name), [to_x, to_y] = places.get(one.name), from = [x + WIDE, y + HIGH / 2], to = [to_x, to_y + HIGH / 2], bend = GAP / 2;
    return svg("path", { class: name === one.parent ? "edge parent" : "edge", d: `M${from} C${from[0] + bend},${from[1]} ${to[0] - bend},${to[1]} ${to}` });
  }));
  const boxes = shown.map((one) => { const [x, y] = places.get(one.name); return svg("g", { class: `task ${KINDS[one.state] || ""}` },
    svg("rect", { x, y, width: WIDE, height: HIGH, rx: 8 }), svg("text", { x: x + 11, y: y + 19 }, cut(one.name)), svg("text", { class: "state", x: x + 11, y: y + 36 }, one.state)); });
  return svg("svg", { class: "graph", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${plural(tasks.length, "task")} and what each comes after; the table below says the same` }, lines, boxes);
}
