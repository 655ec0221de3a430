// The view of one request: what became of it, its story, and the sessions of its tree.
import { cell, h, pill, show, table } from "./elements.js";
import { clock, count, day, dollars, lasting, short, when } from "./words.js";
import { past } from "./proxy.js";
import { steers } from "./steering.js";
import { requestActs } from "./now.js";

const EVERY_MS = 3000, DEEPEST = 30;

// Returns what draws the request as it is now, out of a report.
export function showRequest(id) {
  let story = null, live = null, web = "", problem = "reading the journal …", timer = 0;
  const title = document.getElementById("request-title");
  title.textContent = `Request ${id}`;
  const draw = () => show("#request", ...parts(id, story, live, web, problem));
  async function look() {
    clearTimeout(timer);
    const told = await past(`/page/request/${id}.json`, () => {});
    if (told == null) problem = "the proxy does not answer";
    else if (told.problem) problem = told.problem;
    else { story = told; problem = ""; }
    draw();
    if (!document.hidden && (!story || !story.end || live)) timer = setTimeout(look, EVERY_MS);
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  look();
  return (report) => {
    const before = live;
    live = report.snapshot.pools.flatMap((pool) => pool.tickets).find((one) => one.ticket.id === id) || null;
    web = report.proxy.web;
    if (before && !live) look();
    draw();
  };
}
function parts(id, story, live, web, problem) {
  const acts = steers() && live ? h("div.acts", null, requestActs(live)) : null;
  // mitmweb has a flow's request id in its comment.
  const link = web && h("p", null, h("a", { href: `${web}#/flows?s=${encodeURIComponent(`~comment ${id}`)}`, rel: "noreferrer", target: "_blank" }, "Its flow in mitmweb"));
  const state = live ? pill(live.state === "in flight" ? "in flight" : live.why || live.state, live.state === "in flight" ? "good" : "accent") : story && pill(story.end || "open", story.end === "delivered" ? "good" : story.end ? "warn" : "accent");
  if (!story) return [h("p.notice.warn", null, problem), live && h("p", null, state, ` ${live.ticket.agent}, ${live.ticket.model}, waited ${lasting(live.waited_s)}`), acts, link];
  const used = [story.tokens ? `${short(story.tokens)} tokens` : "", story.micro_usd ? dollars(story.micro_usd) : ""].filter(Boolean).join(", ");
  return [
    problem && h("p.notice.warn", null, problem),
    h("section.panel.padded", { "aria-label": "What became of it" }, h("p.verdict", null, state, " ", story.verdict), story.facts.map((fact) => h("p.quiet", null, fact)), h("p", null, `${story.summary}${used && !story.micro_usd ? `, ${used}` : ""}`), acts, link),
    h("section", { "aria-labelledby": "story-title" }, h("h2", { id: "story-title" }, `Story, ${day(story.arrived)}`),
      h("ol.panel.timeline", null, story.lines.map((line) => h("li", null, h("time", { datetime: new Date(line.at * 1000).toISOString() }, clock(line.at)), h("span.after", null, `+${lasting(line.at - story.arrived)}`), h("span", null, line.text))))),
    story.tree.length > 0 && h("section", { "aria-labelledby": "tree-title" }, h("h2", { id: "tree-title" }, "Its tree of sessions, a day before and after"), h("div.panel.padded", null, tree(story))),
  ];
}
// Sessions below the one that started them, as nested lists.
function tree(story) {
  const names = new Set(story.tree.map((one) => one.session));
  const below = (parent) => story.tree.filter((one) => (names.has(one.parent_session) && one.parent_session !== one.session ? one.parent_session : "") === parent);
  const seen = new Set();
  const list = (sessions, depth) => { // names come from clients: they may go in circles
    const fresh = sessions.filter((one) => !seen.has(one));
    fresh.forEach((one) => seen.add(one));
    return fresh.length > 0 && h("ul.tree", null, fresh.map((one) => h("li", null, node(one, story), depth < DEEPEST && list(below(one.session), depth + 1))));
  };
  return [list(below(""), 0), list(story.tree, 0)];
}
function node(one, story) {
  const here = one.session === story.session && one.agent === story.agent;
  return h("p", null, here ? h("strong", { "aria-current": "true" }, one.agent) : h("a", { href: `/request/${one.newest_id}` }, one.agent), one.session !== one.agent && h("span.quiet", null, ` ${one.session.slice(0, 24)}`),
    h("span.quiet", null, ` ${count(one.delivered)} of ${count(one.requests)} delivered${one.micro_usd ? `, ${dollars(one.micro_usd)}` : one.tokens ? `, ${short(one.tokens)} tokens` : ""}, ${when(one.first)} to ${clock(one.last).slice(0, 5)}`), here && h("span.quiet", null, " · this request's"));
}
