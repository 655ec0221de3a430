// Steering: the token that `hivemind open` leads to, and the commands that it may send.
//
// The token stays in this tab's sessionStorage: no other origin, and no other port of this machine, can read it. The key
// that it is got for comes in the address's fragment, which browsers send to nobody, and goes from there at once.
import { h } from "./elements.js";
import { lasting } from "./words.js";

const TOKEN = "hivemind-token", USER = "hivemind-user", AGAIN_MS = 400, MOST_TRIES = 40;
const UNITS = { tokens: ["tokens", 1], micro_usd: ["US dollars", 1e6], calls: ["calls", 1] };

export const token = () => sessionStorage.getItem(TOKEN) || "";
export const steers = () => token() !== "";
const dialog = document.getElementById("dialog");
let changed = () => {};

function post(path, value) {
  return fetch(path, { method: "POST", body: JSON.stringify(value), cache: "no-store", redirect: "error",
    headers: { "content-type": "application/json", "x-hivemind-token": token() }, signal: AbortSignal.timeout(10000) });
}
export function tell(text, kind) {
  const said = document.getElementById("said");
  said.className = kind || "";
  said.textContent = text;
}
// Uses the key of the address, where there is one. `after` is called whenever something has changed.
export async function begin(after) {
  changed = after;
  const key = new URLSearchParams(location.hash.slice(1)).get("key");
  if (key) {
    history.replaceState(null, "", location.pathname + location.search);
    try {
      const answer = await post("/page/session", { key }), told = await answer.json();
      if (answer.ok) { sessionStorage.setItem(TOKEN, told.token); sessionStorage.setItem(USER, told.user); }
      else tell(told.text, "bad");
    } catch { tell("the proxy does not answer", "bad"); }
  }
  mark();
}
function mark() {
  const bar = document.getElementById("steering"), user = sessionStorage.getItem(USER);
  bar.hidden = !steers();
  bar.querySelector("span").textContent = `This page steers${user ? `, and the journal names ${user}` : ""}.`;
  document.getElementById("how").textContent = steers() ? "" : "read-only: `hivemind open` opens a page that steers";
}
export function forget(why) {
  sessionStorage.removeItem(TOKEN); sessionStorage.removeItem(USER);
  mark();
  if (why) tell(why, "bad");
  changed();
}
// Sends one command until it is known what became of it: under one id it is carried out once.
export async function order(command) {
  const asked = { id: crypto.randomUUID(), command };
  tell("…");
  for (let tries = 0; tries < MOST_TRIES; tries++) {
    try {
      const answer = await post("/page/command", asked), told = await answer.json();
      if (answer.status === 401) return forget(told.text);
      if (answer.status !== 202) { tell(told.text, told.done ? "good" : "bad"); return changed(); }
    } catch { if (tries > 2) break; }
    await new Promise((go) => setTimeout(go, AGAIN_MS));
  }
  tell("the proxy has not said what became of it: look before you do it again", "bad");
  changed();
}

// Dialogs ------------------------------------------------------------------------------------------------------------

// Asks once; the fields' values, or null. The harmless answer has the focus where there is nothing to fill in.
function ask(title, { text, fields = [], sure, not = "Cancel", kind }) {
  const form = dialog.querySelector("form"), yes = h("button", { type: "submit", class: kind }, sure), no = h("button", { type: "button" }, not);
  form.replaceChildren(h("h2", { id: "dialog-title" }, title), ...[text && h("p", null, text), ...fields].filter(Boolean), h("div.acts", null, no, yes));
  return new Promise((resolve) => {
    let said = null;
    no.onclick = () => dialog.close();
    form.onsubmit = (event) => { event.preventDefault(); said = Object.fromEntries(new FormData(form)); dialog.close(); };
    // The end of the question before may be told only after the next one is open.
    dialog.onclose = () => { if (dialog.open) return; form.replaceChildren(); resolve(said); };
    dialog.showModal();
    (form.querySelector("input, select") || no).focus();
  });
}
const field = (label, name, attributes) => h("label", null, h("span", null, label), h("input", { name, autocomplete: "off", ...attributes }));
const choice = (label, name, options, chosen) => h("label", null, h("span", null, label),
  h("select", { name }, options.map(([value, text]) => h("option", { value, selected: value === chosen }, text))));
const number = (text, factor = 1) => (text === "" || text == null ? null : Math.round(Number(text) * factor));
const amounts = (said) => Object.fromEntries(Object.entries(UNITS).map(([unit, [, factor]]) => [unit, number(said[unit], factor)]));
const amountFields = (units) => units.map((unit) => field(UNITS[unit][0], unit, { type: "number", min: 0, step: unit === "micro_usd" ? "0.01" : "1", inputmode: "decimal" }));

const FORMS = {
  async cap({ pool, name, now }) {
    const said = await ask(`Cap ${name}`, { text: "At most so many requests at once; empty: as many as the provider takes.",
      fields: [field("at once", "limit", { type: "number", min: 1, step: 1, value: now })], sure: "Set" });
    return said && { type: "limit", pool, limit: number(said.limit) };
  },
  async priority({ agent, name }) {
    const said = await ask(name ? `Priority of ${name}` : "Priority", { text: "Whatever the agent asks for; \"as it asks\" takes it back.", fields: [
      !name && field("agent, or a glob", "agent", { required: true }),
      choice("priority", "priority", [["critical", "critical"], ["high", "high"], ["normal", "normal"], ["low", "low"], ["", "as it asks"]], "high"),
      choice("for", "for_s", [["", "good"], ["1800", lasting(1800)], ["7200", lasting(7200)], ["28800", lasting(28800)]], ""),
    ], sure: "Set" });
    return said && { type: "priority", agent: name ? agent : said.agent, priority: said.priority || null, ...(said.for_s && said.priority ? { for_s: Number(said.for_s) } : {}) };
  },
  async budget({ scope, name, per, who }) {
    const said = await ask(who ? `Budget of ${who}` : "Budget", { text: "Once it is spent, requests are refused. What is empty is not limited; all empty takes a budget back that was set here.", fields: [
      !who && choice("whose", "scope", [["everyone", "everyone's together"], ["group", "a group's"], ["agent", "an agent's, or each one's of a glob"]], scope),
      !who && field("name", "name", { placeholder: "none for everyone" }),
      per ? null : choice("per", "per", [["hour", "hour"], ["day", "day"], ["month", "month"], ["run", "run of the proxy"]], "day"),
      ...amountFields(Object.keys(UNITS)),
    ], sure: "Set it", kind: "bad" });
    return said && { type: "set-budget", scope: said.scope || scope, name: who ? name : said.name, per: said.per || per, ...amounts(said) };
  },
  async add({ scope, name, per, who, units }) {
    const said = await ask(`Add to the budget of ${who}`, { text: `For the present ${per} only.`, fields: amountFields(units), sure: "Add it", kind: "bad" });
    return said && { type: "add-budget", scope, name, per, ...Object.fromEntries(Object.entries(amounts(said)).filter(([, value]) => value)) };
  },
};

document.addEventListener("click", async (event) => {
  const pressed = event.target.closest("[data-act]");
  if (!pressed) return;
  const act = JSON.parse(pressed.dataset.act);
  if (act.end) { post("/page/end", {}).catch(() => {}); return forget(); }
  if (act.form) { const command = await FORMS[act.form](act); return command && order(command); }
  if (!act.ask || (await ask(act.sure, { text: act.ask, sure: act.sure, not: act.not, kind: "bad" }))) order(act.order);
});
