// The view of what was: 24 hours and 30 days of requests, refusals, waits and cost, with incidents marked.
import { cell, h, reveal, show, table } from "./elements.js";
import { count, dollars, lasting, plural, short, sum, when } from "./words.js";
import { clear, figure } from "./charts.js";
import { past } from "./proxy.js";

const EVERY_MS = 30000, MOST_NAMED = 7, HUES = [210, 35, 150, 285, 0, 180, 60, 320];
let span = "day", timer = 0, asked = 0, shownText = "";

export function showHistory() {
  for (const tab of document.querySelectorAll("[data-span]")) tab.addEventListener("click", () => {
    span = tab.dataset.span;
    for (const one of document.querySelectorAll("[data-span]")) one.setAttribute("aria-pressed", String(one === tab));
    look();
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  look();
}
async function look() {
  clearTimeout(timer);
  const mine = ++asked, about = (text) => { if (mine === asked) show("#history-about", text); };
  const told = await past(`/page/history/${span}.json`, () => about("reading the journal …"));
  if (mine !== asked) return;
  if (told == null) about("the proxy does not answer");
  else if (told.problem) about(told.problem);
  else { about(""); draw(told); }
  if (!document.hidden) timer = setTimeout(look, EVERY_MS);
}
const dark = () => matchMedia("(prefers-color-scheme: dark)").matches && !matchMedia("print").matches;
const deep = (number) => `hsl(${HUES[number]} 65% 42%)`, bright = (number) => `hsl(${HUES[number]} 70% 62%)`;

function draw(told) {
  const text = JSON.stringify([span, told.charts]); // just after midnight both spans hold the same
  if (text === shownText) return; // a chart that is drawn anew loses what is open in it
  shownText = text;
  const { since, until, part_s, charts } = told, { parts, costs, incidents } = charts, xs = [];
  for (let x = since; x < until; x += part_s) xs.push(x);
  const at = new Map(parts.map((one) => [Math.round((one.began - since) / part_s), one]));
  const of = (name) => xs.map((_, place) => (at.has(place) ? at.get(place)[name] : 0));
  const waits = (name) => xs.map((_, place) => (at.has(place) && at.get(place).requests ? at.get(place)[name] : null));
  const all = (name) => sum(parts, (one) => one[name]), every = lasting(part_s), base = { xs, since, until, incidents };
  const refused = all("throttled") + all("overloaded") + all("broken"), worst = Math.max(0, ...parts.map((one) => one.wait_p95_s));
  const open = [...document.querySelectorAll("#charts details[open]")].map((one) => one.previousElementSibling.parentElement.querySelector("h3").textContent);
  clear();
  const figures = [
    figure({ ...base, title: "Requests", word: count, least: 5, summary: `${plural(all("requests"), "request")}, ${count(all("delivered"))} delivered, ${count(all("shed"))} told to come back, ${count(all("failed"))} failed; a point is ${every}.`,
      series: [{ label: "delivered", colour: "good", fill: "good-ground", values: of("delivered") }, { label: "told to come back", colour: "honey", values: of("shed"), dash: [6, 3] }, { label: "failed", colour: "bad", values: of("failed") }] }),
    figure({ ...base, title: "Refusals", word: count, least: 5, summary: `${count(refused)} of ${plural(all("attempts"), "attempt")} came to nothing: ${count(all("throttled"))} rate-limited, ${count(all("overloaded"))} overloaded, ${count(all("broken"))} failed otherwise.`,
      series: [{ label: "rate-limited", colour: "accent", values: of("throttled") }, { label: "overloaded", colour: "honey", values: of("overloaded"), dash: [6, 3] }, { label: "failed otherwise", colour: "bad", values: of("broken"), dash: [2, 2] }] }),
    figure({ ...base, title: "Waits", word: lasting, least: 5, summary: worst ? `Of each ${every}, how long half of the requests waited at most, and how long 95 of 100; the longest of these is ${lasting(worst)}.` : "No request has waited.",
      series: [{ label: "95 of 100", colour: "accent", fill: "accent-ground", values: waits("wait_p95_s") }, { label: "half", colour: "good", values: waits("wait_p50_s"), dash: [6, 3] }] }),
    costFigure(base, costs),
  ];
  document.getElementById("charts").replaceChildren(...figures);
  for (const one of document.querySelectorAll("#charts details")) one.open = open.includes(one.parentElement.querySelector("h3").textContent);
  reveal("incidents", incidents.length);
  show("#incidents .panel", table([["began"], ["lasted", "number"], ["what"], ["where"], ["ended by"]], [...incidents].reverse().slice(0, 50).map((one) => h("tr", null,
    cell(when(one.began)), cell(lasting((one.ended == null ? until : one.ended) - one.began), "lasted", "number"), cell(one.what), cell(one.pool || "the proxy"), cell(one.ended == null ? "not over" : one.ending, "ended by"))), incidents.length - 50));
}
function costFigure(base, costs) {
  const priced = costs.some((one) => one.micro_usd), unit = priced ? "micro_usd" : "tokens", word = priced ? dollars : short;
  const totals = new Map();
  for (const one of costs) if (one.agent) totals.set(one.agent, (totals.get(one.agent) || 0) + one[unit]);
  const named = [...totals].sort((a, b) => b[1] - a[1]).slice(0, MOST_NAMED).map(([agent]) => agent);
  const step = span === "day" ? 3600 : 86400, times = [];
  if (span === "day") for (let x = base.since - (base.since % step); x < base.until; x += step) times.push(x);
  else for (const at = new Date(base.since * 1000); at.getTime() / 1000 < base.until; at.setDate(at.getDate() + 1)) times.push(new Date(at).setHours(0, 0, 0, 0) / 1000);
  const place = new Map(times.map((x, number) => [x, number])), zeros = () => times.map(() => 0), values = new Map([...named, ""].map((name) => [name, zeros()]));
  for (const one of costs) { const here = place.get(one.began); if (here != null) (values.get(one.agent) || values.get(""))[here] += one[unit]; }
  const series = named.map((agent, number) => ({ label: agent, values: values.get(agent), swatch: () => (dark() ? bright(number) : deep(number)), mark: `light-dark(${deep(number)}, ${bright(number)})` }));
  if (values.get("").some(Boolean)) series.push({ label: "all others", values: values.get(""), colour: "quiet" });
  const total = sum(costs, (one) => one[unit]), what = priced ? "Cost" : "Tokens";
  return figure({ ...base, since: times[0] ?? base.since, xs: times, bars: step, word, mark: priced ? (micro) => (micro >= 1e7 ? `$${short(micro / 1e6)}` : dollars(micro)) : short, least: priced ? 10000 : 10, title: `${what} by agent and ${span === "day" ? "hour" : "day"}`, series,
    summary: total ? `${word(total)} in all${named.length ? `; most by ${named[0]}, ${word(totals.get(named[0]))}` : ""}.` : "Nothing was booked." });
}
