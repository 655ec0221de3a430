// The proxy: asks it what goes on, once a second, and what was, until it has read that.
import { steers, token, forget } from "./steering.js";

const VERSION = 1, EVERY_MS = 1000, SLOWEST_MS = 8000, READING_MS = 700;
let wait_ms = EVERY_MS, timer = 0, drawn = null, told = "";

function say(text, kind) {
  const state = document.getElementById("state");
  if (state.textContent !== text) state.textContent = text; // it is read aloud when it changes, and only then
  state.className = kind;
}
function gone(why) {
  document.body.classList.add("gone");
  say("gone", "bad");
  document.getElementById("about").textContent = drawn ? `${why}; below is what it told at ${told}` : why;
}
// `draw` gets each report.
export function watch(draw) {
  let looking = false;
  async function look() {
    clearTimeout(timer);
    if (looking) return;
    looking = true;
    try {
      const answer = await fetch("/report.json", { cache: "no-store", signal: AbortSignal.timeout(5000) });
      if (!answer.ok) throw new Error(`the proxy answers ${answer.status}`);
      const report = await answer.json();
      if (drawn && drawn !== report.proxy.version) { location.reload(); return; } // another version has another page
      if (report.version !== VERSION) throw new Error("the proxy is of another version: load this page anew");
      const { snapshot } = report, paused = snapshot.pools.some((pool) => pool.paused), down = snapshot.pools.some((pool) => pool.account_block || pool.breaker === "open");
      say(snapshot.stopping ? "stopping" : paused ? "paused" : down ? "a provider does not serve" : "serving", snapshot.stopping || paused || down ? "warn" : "good");
      draw(report);
      document.body.classList.remove("gone");
      drawn = report.proxy.version; told = new Date().toLocaleTimeString(); wait_ms = EVERY_MS;
    } catch (error) {
      gone(error.message.startsWith("the proxy") ? error.message : "the proxy does not answer");
      wait_ms = Math.min(SLOWEST_MS, 2 * wait_ms);
    } finally { looking = false; }
    if (!document.hidden) timer = setTimeout(look, wait_ms);
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  look();
  return look;
}
// What another process has to read first; null: the proxy does not answer. `reading` is called while it reads.
export async function past(path, reading) {
  for (;;) {
    let answer;
    try {
      answer = await fetch(path, { cache: "no-store", headers: steers() ? { "x-hivemind-token": token() } : {}, signal: AbortSignal.timeout(10000) });
    } catch { return null; }
    if (answer.status === 401 && steers()) { forget("the proxy does not know this page any more: `hivemind open` opens another"); return answer.json(); }
    if (answer.status === 401) return answer.json();
    if (answer.status === 200) return answer.json();
    if (answer.status !== 202) return { problem: `the proxy answers ${answer.status}` };
    reading();
    await new Promise((go) => setTimeout(go, READING_MS));
  }
}
