// The view of now: pools, requests, agents, contexts, budgets, events; for a page that may, what steers them beside each.
import { button, cell, h, pill, reveal, show, svg, table } from "./elements.js";
import { count, dollars, lasting, poolName, short, sum } from "./words.js";
import { steers } from "./steering.js";

const ROWS = 100, DEEPEST = 50, PRIORITIES = ["critical", "high", "normal", "low"];

// Pools --------------------------------------------------------------------------------------------------------------

function bar(label, said, part, kind) {
  const percent = Math.round(100 * Math.min(1, Math.max(0, part || 0))), line = h("i", { class: kind });
  line.style.width = percent + "%";
  return h("div.gauge", null, h("span", null, label), h("span", null, said),
    h("div.track", { role: "meter", "aria-label": `${label}: ${said}`, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": percent }, line));
}
const leftKind = (part) => (part < 0.1 ? "bad" : part < 0.3 ? "warn" : "good");
const usedKind = (part) => (part >= 1 ? "bad" : part > 0.85 ? "warn" : "");

function pills(pool) { // the words of api/pool_words.py
  const made = [];
  if (pool.account_block) made.push(pill(pool.account_block.of_account ? "the account's limit is spent" : "this model's limit is spent", "bad"));
  if (pool.paused) made.push(pill("paused by a person", "warn"));
  if (pool.blocked_for_s > 0) made.push(pill(`told to wait ${lasting(pool.blocked_for_s)}`, "warn"));
  if (pool.breaker !== "closed") {
    const isOpen = pool.breaker === "open", tries = pool.breaker_tries_in_s;
    const probe = tries != null ? `, one request tries in ${lasting(tries)}` : isOpen ? "" : ", one request is trying";
    made.push(pill(`provider down${probe}`, isOpen ? "bad" : "warn"));
  }
  if (pool.bypassing) made.push(pill(`${pool.bypassing} past the scheduler`, "bad"));
  return made.length ? made : [pool.queued ? pill(`${count(pool.queued)} queued`, "accent") : pill(pool.in_flight ? "busy" : "idle", "good")];
}
function history(stats) {
  const samples = stats ? stats.history : [];
  if (samples.length < 2) return null;
  const top = Math.max(1, ...samples.map((one) => Math.max(one.queued, one.in_flight, one.limit || 0)));
  const span = Math.max(18, samples.length), x = (place) => (600 - (600 / span) * (samples.length - place)).toFixed(1), y = (value) => (42 - (40 * value) / top).toFixed(1);
  const steps = (of) => samples.map((one, place) => (of(one) == null ? "" : `${x(place)},${y(of(one))} ${x(place + 1)},${y(of(one))}`)).join(" ");
  const most = Math.max(...samples.map((one) => one.queued));
  return h("div.history", null,
    svg("svg", { viewBox: "0 0 600 44", preserveAspectRatio: "none", role: "img", "aria-label": `Last ${lasting(10 * span)}: at most ${most} waiting` },
      svg("polygon", { class: "queued", points: `${x(0)},42 ${steps((one) => one.queued)} 600,42` }),
      svg("polyline", { class: "limit", points: steps((one) => one.limit) }),
      svg("polyline", { class: "flight", points: steps((one) => one.in_flight) })),
    h("div.legend", { "aria-hidden": "true" }, h("span", null, h("i.queued"), "waiting"), h("span", null, h("i.flight"), "in flight"),
      h("span", null, h("i.limit"), "limit"), h("span", null, `last ${lasting(10 * span)}, top ${count(top)}`)));
}
function card(pool, stats) {
  const learned = pool.learned.map((one) => h("span", null, `${one.name} `, h("b", null, one.text)));
  const facts = stats ? [
    ["delivered", count(stats.delivered)], ["retries absorbed", count(stats.retries_absorbed)], ["rate-limited", count(stats.throttled)],
    ["failed", count(stats.failed)], ["garbage", stats.garbage ? count(stats.garbage) : null], ["wait p50 / p95", stats.wait_p50_s == null ? "–" : `${lasting(stats.wait_p50_s)} / ${lasting(stats.wait_p95_s)}`],
    ["tokens", short(stats.tokens)], ["cost", stats.micro_usd ? dollars(stats.micro_usd) : null],
    ["in vain", stats.wasted_micro_usd ? dollars(stats.wasted_micro_usd) : null],
  ].filter(([, value]) => value != null).map(([name, value]) => h("span", null, name + " ", h("b", null, value))) : [];
  const cap = pool.maximum_from ? `, our maximum: raise ${pool.maximum_from}` : pool.cap == null ? "" : `, capped at ${pool.cap}`, move = stats && stats.moves[0];
  const name = poolName(pool.key), glob = quoted(name);
  const acts = steers() && h("div.acts", null,
    pool.paused ? button("Resume", { order: { type: "resume", pool: glob } }, name) : button("Pause", { order: { type: "pause", pool: glob } }, name),
    button(pool.cap == null ? "Cap…" : `Cap ${pool.cap}…`, { form: "cap", pool: glob, name, now: pool.cap }, `for ${name}`));
  return h("article.card", { "data-pool": name, "data-key": name },
    h("div.top", null,
      h("div", null, h("h3", null, poolName(pool.key)), pool.account_name && h("p.account", null, pool.account_name)),
      h("div.pills", null, pills(pool))),
    pool.account_block && h("p.notice.bad", null, `${pool.account_block.reason}: ${pool.account_block.ends_in_s ? "for " + lasting(pool.account_block.ends_in_s) : "being tried again"}`),
    h("div.body", null, h("div.levels", null,
    bar("In flight", `${pool.in_flight} of ${pool.limit}${cap}`, pool.in_flight / pool.limit, ""),
    pool.meters.map((one) => bar(one.name.replaceAll("-", " "),
      `${short(one.level)} of ${short(one.limit)} left${one.full_in_s > 0.5 ? `, full in ${lasting(one.full_in_s)}` : ""}`,
      one.level / one.limit, leftKind(one.level / one.limit))),
    pool.windows.map((one) => bar(`${one.name} window`,
      [one.used == null ? null : `${Math.round(100 * one.used)} % used`, one.status, one.resets_in_s == null ? null : `anew in ${lasting(one.resets_in_s)}`]
        .filter(Boolean).join(", "), one.used || 0, usedKind(one.used || 0)))),
    h("div.story", null, history(stats),
      h("div.facts", null, facts, learned, move && h("span", { title: move.reason }, "limit moved ", h("b", null, `${lasting(move.ago_s)} ago`))))), acts);
}
// A name as a glob that means nothing else.
const quoted = (name) => name.replace(/[*?[]/g, "[$&]");

// Tables -------------------------------------------------------------------------------------------------------------

function start(ticket) {
  if (ticket.state === "in flight" || ticket.starts_in_s == null) return "";
  return ticket.starts_in_s < 1 ? "any moment" : `in about ${lasting(ticket.starts_in_s)}`;
}
export function requestActs(one) {
  const { id, agent } = one.ticket, whose = `request ${id} of ${agent}`;
  return [one.state === "in flight" ? "" : button("First", { order: { type: "front", ticket_id: id } }, whose),
    button("Cancel…", { order: { type: "cancel", ticket_id: id }, ask: `Cancel ${whose}? Its agent gets an error that it does not try again.`, sure: "Cancel it", not: "Keep it" }, whose, "bad")];
}
function requests(tickets) {
  const rows = tickets.slice(0, ROWS).map((one) => h("tr", { "data-key": one.ticket.id },
    cell(one.position ? `#${one.position}` : "–", null, "number"),
    cell([h("a", { href: `/request/${one.ticket.id}` }, one.ticket.agent), one.ticket.kind === "turn" ? "" : h("span.quiet", null, ` ${one.ticket.kind}`)]),
    cell(one.state === "in flight" ? pill("in flight", "good") : pill(one.why, one.state === "backing off" ? "warn" : "accent"), null),
    cell(lasting(one.waited_s), "waited", "number"), cell(start(one), "starts", "number"),
    cell(one.attempts ? String(one.attempts) : "", "attempts", "number"), cell(one.ticket.model, "model"), steers() && cell(requestActs(one), null, "acts")));
  return table([["place", "number"], ["agent"], ["why"], ["waited", "number"], ["starts", "number"], ["attempts", "number"], ["model"], steers() && ["steer", "acts"]].filter(Boolean),
    rows, tickets.length - ROWS);
}
function condition(mine, session) {
  const waiting = mine.filter((one) => one.state !== "in flight").sort((a, b) => a.position - b.position), running = mine.length - waiting.length;
  const made = [];
  if (running) made.push(pill(running > 1 ? `${running} in flight` : "in flight", "good"));
  if (waiting.length) {
    const first = waiting[0], when = start(first);
    made.push(pill((waiting.length > 1 ? `${waiting.length} queued: ` : "") + first.why, first.state === "backing off" ? "warn" : "accent"),
      h("span.quiet", null, ` ${lasting(first.waited_s)}${first.position ? `, place ${first.position}` : ""}${when ? `, starts ${when}` : ""}`));
  }
  return made.length ? made : h("span.quiet", null, `idle ${lasting(session.seen_ago_s)}`);
}
// Sessions below the one that started them; trees in which somebody is busy come first.
function tree(sessions, tickets) {
  const live = grouped(tickets, (one) => one.ticket.session), parents = new Map(sessions.map((one) => [one.session, one.parent_session]));
  const parent = (one) => {
    let up = one.parent_session, steps = 0; // names come from clients: they may go in circles
    for (; parents.has(up) && steps < DEEPEST; steps++) up = parents.get(up);
    return steps < DEEPEST && parents.has(one.parent_session) ? one.parent_session : "";
  };
  const below = grouped(sessions, parent), rows = [], seen = new Set();
  const idle = (one) => (live.has(one.session) || (below.get(one.session) || []).some((child) => !idle(child)) ? 0 : 1);
  const add = (list, depth) => list.map((one) => [idle(one), one]).sort(([a, one], [b, other]) => a - b || one.seen_ago_s - other.seen_ago_s)
    .forEach(([, one]) => {
      if (seen.has(one)) return; // two agents may give their sessions one name
      seen.add(one);
      rows.push([one, depth, (live.get(one.session) || []).filter((ticket) => ticket.ticket.agent === one.agent)]);
      add(below.get(one.session) || [], depth + 1);
    });
  add(below.get("") || [], 0);
  return rows;
}
function grouped(list, of) {
  const made = new Map();
  for (const one of list) made.has(of(one)) ? made.get(of(one)).push(one) : made.set(of(one), [one]);
  return made;
}
const agentActs = (agent) => [button("Priority…", { form: "priority", agent: quoted(agent), name: agent }, `of ${agent}`),
  button("Budget…", { form: "budget", scope: "agent", name: quoted(agent), who: `agent ${agent}` }, `of ${agent}`)];
function agents(sessions, tickets) {
  const several = grouped(sessions, (one) => one.agent), all = tree(sessions, tickets);
  const rows = all.slice(0, ROWS).map(([one, depth, mine]) => h("tr", { "data-key": `${one.agent} ${one.session}` },
    h("td", { class: "wide" }, h("span", { class: depth ? `d${Math.min(4, depth)}` : null, title: one.session }, one.agent,
      several.get(one.agent).length > 1 && one.session !== one.agent ? h("span.quiet", null, ` ${one.session.slice(0, 18)}`) : "")),
    h("td", { class: "wide" }, condition(mine, one)),
    cell(`${count(one.delivered)} / ${count(one.tickets)}`, "delivered", "number"),
    cell(one.lost + one.refused + one.shed ? [one.lost, one.refused, one.shed].map(count).join(" / ") : "", "lost / refused / shed", "number"),
    cell(one.retries_absorbed ? count(one.retries_absorbed) : "", "retries absorbed", "number"),
    cell(one.waited_s >= 0.5 ? lasting(one.waited_s) : "", "waited", "number"),
    cell(one.tokens ? short(one.tokens) : "", "tokens", "number"),
    cell(one.micro_usd ? (one.is_priced ? "" : "≥ ") + dollars(one.micro_usd) : "", "cost", "number"),
    cell(one.wasted_micro_usd ? dollars(one.wasted_micro_usd) : "", "in vain", "number"), steers() && cell(agentActs(one.agent), null, "acts")));
  return table([["agent"], ["now"], ["delivered", "number"], ["lost / refused / shed", "number"], ["absorbed", "number"], ["waited", "number"], ["tokens", "number"], ["cost", "number"], ["in vain", "number"], steers() && ["steer", "acts"]].filter(Boolean),
    rows, all.length - ROWS);
}

// Fullest first: whose context windows are not known come by their tokens, after the others.
const fullness = (one) => (one.window_tokens ? 1 + Math.min(1, one.tokens / one.window_tokens) : one.tokens / 1e9);
function contexts(list) {
  const all = [...list].sort((a, b) => fullness(b) - fullness(a)), several = grouped(list, (one) => one.agent);
  const rows = all.slice(0, ROWS).map((one) => {
    const part = one.window_tokens ? Math.min(1, one.tokens / one.window_tokens) : null, grows = one.growth_per_turn >= 1, lapses = one.cache_lapses_in_s;
    const turns = grows && part != null ? Math.max(0, one.window_tokens - one.tokens) / one.growth_per_turn : null, summary = one.compaction_cost;
    const lost = one.compactions ? `${count(one.compactions)}: ${short(one.newest_before_tokens)} → ${short(one.newest_after_tokens)}` : "";
    const paid = [summary.tokens ? `${short(summary.tokens)} tokens` : "", summary.micro_usd ? dollars(summary.micro_usd) : ""].filter(Boolean).join(", ");
    return h("tr", null,
      h("td", { class: "wide" }, h("span", { title: one.session }, one.agent,
        several.get(one.agent).length > 1 && one.session !== one.agent ? h("span.quiet", null, ` ${one.session.slice(0, 18)}`) : "")),
      cell(part == null ? h("span.quiet", null, "context window not known") : pill(`${Math.round(100 * part)} % full`, one.is_full ? "warn" : "good"), null),
      cell(part == null ? short(one.tokens) : `${short(one.tokens)} of ${short(one.window_tokens)}`, "tokens", "number"),
      cell(grows ? `+${short(one.growth_per_turn)}` : "", "a turn", "number"), cell(turns == null ? "" : short(turns), "turns left", "number"),
      cell(lapses == null ? "" : lapses ? `warm for ${lasting(lapses)}` : "cold", "cache", "number"),
      cell(lost, "compacted", "number"), cell(paid, "its summaries took", "number"), cell(one.model, "model"));
  });
  return table([["agent"], ["context"], ["tokens", "number"], ["a turn", "number"], ["turns left", "number"], ["cache", "number"], ["compacted", "number"], ["its summaries took", "number"], ["model"]],
    rows, all.length - ROWS);
}

// Budgets and events -------------------------------------------------------------------------------------------------

function budgets(views) {
  return views.slice(0, ROWS).map((view) => {
    const { scope, name, per } = view.budget, of = { scope, name, per };
    const who = `${view.budget.scope} ${view.budget.name}`.trim(), renews = view.renews_in_s == null ? "" : `, anew in ${lasting(view.renews_in_s)}`;
    const acts = steers() && h("div.acts", null,
      button("Add…", { form: "add", ...of, who, units: ["tokens", "micro_usd", "calls"].filter((unit) => view.budget[unit] != null) }, `to the budget of ${who}, per ${per}`),
      button("Begin anew…", { order: { type: "reset-budget", ...of }, ask: `Forgive what ${who} has spent per ${per}? It begins anew with nothing spent.`, sure: "Begin anew", not: "Leave it" }, `the budget of ${who}, per ${per}`),
      button("Change…", { form: "budget", ...of, who }, `the budget of ${who}, per ${per}`));
    return h("div.budget", { "data-key": `${scope} ${name} ${per}` }, [["tokens", (value) => short(value) + " tokens"], ["micro_usd", dollars], ["calls", (value) => short(value) + " calls"]].filter(([unit]) => view.budget[unit] != null).map(([unit, word]) => {
      const unpriced = unit === "micro_usd" && view.spent.unpriced_tokens ? `, ${short(view.spent.unpriced_tokens)} tokens of models without a price not counted` : "", guessed = unit === "micro_usd" ? Object.entries(view.guesses || {}).map(([model, guess]) => `, ${model} guessed as ${guess}`).join("") : "";
      const added = view.added && view.added[unit] ? `, ${word(view.added[unit])} of it added` : "";
      const aside = view.reserved[unit] ? `, ${word(view.reserved[unit])} set aside` : "", part = view.budget[unit] ? view.spent[unit] / view.budget[unit] : 1;
      return bar(`${who}, per ${view.budget.per}`, `${word(view.spent[unit])} of ${word(view.budget[unit])}${added}${aside}${unpriced}${guessed}${renews}`, part, usedKind(part));
    }), acts);
  });
}
function lines(log) {
  return log.slice(-ROWS).reverse().map((line) => h("li", null, h("time", null, `${lasting(line.ago_s)} ago`),
    h("span", { class: line.level === "WARNING" ? "warn" : null }, line.text)));
}

// The view -----------------------------------------------------------------------------------------------------------

const paused = (snapshot) => snapshot.pauses["*"] || (snapshot.pools.length && snapshot.pools.every((pool) => pool.paused));
// What persons set and what stands until it is taken back, each with what takes it back.
function standing(snapshot) {
  return [
    ...Object.entries(snapshot.pauses).filter(([, is]) => is).map(([glob]) => ["paused: " + (glob === "*" ? "all pools" : glob), { type: "resume", pool: glob }]),
    ...Object.entries(snapshot.caps).filter(([, cap]) => cap != null).map(([glob, cap]) => [`at most ${cap} at once: ${glob === "*" ? "all pools" : glob}`, { type: "limit", limit: null, pool: glob }]),
    ...snapshot.priorities.map((one) => [`priority ${PRIORITIES[one.priority] || one.priority}: ${one.agent}${one.ends_in_s == null ? "" : `, for ${lasting(one.ends_in_s)}`}${one.by ? `, by ${one.by}` : ""}`, { type: "priority", agent: one.agent, priority: null }]),
    ...snapshot.given.map(({ budget, by }) => [`budget: ${budget.scope} ${budget.name} per ${budget.per}${by ? `, by ${by}` : ""}`.replace(/ +/g, " "), { type: "set-budget", scope: budget.scope, name: budget.name, per: budget.per }]),
  ].slice(0, ROWS).map(([text, order]) => h("li", { "data-key": text }, h("span", null, text),
    button("Take back", { order, ...(order.type === "set-budget" ? { ask: `Take this ${text} back? What the agents file says counts again.`, sure: "Take it back", not: "Leave it" } : {}) }, text)));
}

export function clusterState(cluster) {
  const { role, name, epoch, known_members, coordinator, share } = cluster;
  if (role === "alone") return `cluster ${name}: alone for ${lasting(cluster.since_s)}, with 1/${Math.round(1 / share)} of the limits`;
  if (role === "joining") return `cluster ${name}: joining for ${lasting(cluster.since_s)}`;
  return `cluster ${name}: ${known_members} member${known_members === 1 ? "" : "s"}, ${role === "coordinator" ? "this proxy" : coordinator} coordinates (epoch ${epoch})${cluster.summed_s === null ? "" : `, sums of ${lasting(cluster.summed_s)}`}`;
}
export function draw(report) {
  const { proxy, snapshot, stats } = report, counters = snapshot.counters;
  const tickets = snapshot.pools.flatMap((pool) => pool.tickets);
  tickets.sort((a, b) => (a.state === "in flight") - (b.state === "in flight") || a.position - b.position);
  const waiting = sum(snapshot.pools, (pool) => pool.queued), running = sum(snapshot.pools, (pool) => pool.in_flight);
  show("#notices",
    report.cluster && report.cluster.role === "alone" && h("p.notice.warn", null, clusterState(report.cluster)),
    counters.guard_trips > 0 && h("p.notice.bad", null, `${count(counters.guard_trips)} guard trips: errors of the scheduler's own; the log has them`),
    proxy.waiting_clients > 0 && h("p.notice.warn", null, `${count(proxy.waiting_clients)} connections wait: ${count(proxy.open_files)} open files let no more be served (raise ulimit -n)`),
    snapshot.stopping && h("p.notice.warn", null, "The proxy is stopping: running requests finish, nothing new is admitted."));
  show("#acts", steers() && [
    paused(snapshot) ? button("Resume all", { order: { type: "resume", pool: "*" } }) : button("Pause all…", { order: { type: "pause", pool: "*" }, ask: "Pause all pools? What runs goes on; nothing more is sent until somebody resumes it.", sure: "Pause all", not: "Go on" }),
    button("Priority…", { form: "priority", agent: "", name: "" }, "of any agent"), button("Budget…", { form: "budget", scope: "everyone", name: "", who: "" }, "of anybody")]);
  const stands = steers() ? standing(snapshot) : [];
  reveal("overrides", stands.length); show("#overrides .panel", stands);
  const cost = sum(stats.pools, (pool) => pool.micro_usd), vain = sum(stats.pools, (pool) => pool.wasted_micro_usd);
  show("#totals", [
    ["in flight", count(running)], ["waiting", count(waiting)], ["delivered", count(counters.delivered)],
    ["retries absorbed", count(sum(stats.pools, (pool) => pool.retries_absorbed))],
    ["tokens", short(sum(stats.pools, (pool) => pool.tokens))], ["cost", cost ? dollars(cost) : "–"], ["in vain", vain ? dollars(vain) : "–"],
  ].map(([name, value]) => h("div", null, h("b", null, value), h("span", null, name))));
  const of = new Map(stats.pools.map((pool) => [poolName(pool.key), pool]));
  show("#pools .cards", snapshot.pools.length ? snapshot.pools.slice(0, ROWS).map((pool) => card(pool, of.get(poolName(pool.key))))
    : h("p.card.empty", null, "No model call yet. Point an agent here: ", `HTTPS_PROXY=http://agent-1:x@127.0.0.1:${proxy.port}`));
  reveal("queue", tickets.length); show("#queue .panel", requests(tickets));
  reveal("agents", stats.sessions.length); show("#agents .panel", agents(stats.sessions, tickets));
  reveal("contexts", report.contexts.length); show("#contexts .panel", contexts(report.contexts));
  show("#contexts-title", report.cluster ? "Contexts, of this proxy" : "Contexts");
  reveal("budgets", snapshot.budgets.length); show("#budgets .panel", budgets(snapshot.budgets));
  reveal("log", stats.log.length); show("#log ol", lines(stats.log));
}
