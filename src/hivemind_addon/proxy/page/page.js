// The page: which view its address means, and who draws it.
import { show } from "./elements.js";
import { count, lasting, sum } from "./words.js";
import { begin } from "./steering.js";
import { watch } from "./proxy.js";
import * as now from "./now.js";
import { showHistory } from "./history.js";
import { showRequest } from "./request.js";
import { showFleet, showFleets } from "./fleets.js";

const [, first, name] = location.pathname.split("/");
const view = { "": "now", history: "history", request: "request", fleets: "fleets", fleet: "fleet" }[first] || "now";
document.getElementById("main").append(document.getElementById(`view-${view}`).content);
for (const link of document.querySelectorAll("nav a")) {
  const path = link.getAttribute("href");
  if (path === location.pathname || (view === "fleet" && path === "/fleets")) link.setAttribute("aria-current", "page");
}
const titles = { now: "hivemind", history: "History – hivemind", request: `Request ${name} – hivemind`, fleets: "Fleets – hivemind", fleet: `${name} – hivemind` };
document.title = titles[view];

let drawRequest = null;
function draw(report) {
  const { proxy } = report, waiting = sum(report.snapshot.pools, (pool) => pool.queued);
  show("#about", `${proxy.listens.join(", ")} · up ${lasting(report.told_wall - proxy.began_wall)} · version ${proxy.version}${report.cluster ? ` · ${now.clusterState(report.cluster)}` : ""}`);
  document.title = waiting ? titles[view].replace("hivemind", `hivemind (${count(waiting)} waiting)`) : titles[view];
  if (view === "now") now.draw(report);
  if (drawRequest) drawRequest(report);
}
const views = { history: showHistory, fleets: showFleets, fleet: () => showFleet(name), request: () => { drawRequest = showRequest(name); } };
let look = () => {};
await begin(() => look());
if (views[view]) views[view]();
look = watch(draw);
