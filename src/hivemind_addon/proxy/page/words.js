// Numbers, spans of time and names, as people read them.

export const count = (value) => Math.round(value).toLocaleString("en-US");
export function short(value) {
  for (const [least, letter] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (value >= least) return (value / (letter === "k" ? 1e3 : least)).toFixed(value < 10 * least && letter !== "k" ? 1 : 0) + letter;
  return count(value);
}
export function lasting(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 90) return `${s} s`;
  const minutes = Math.round(s / 60), hours = Math.floor(minutes / 60);
  if (hours >= 48) return `${Math.floor(hours / 24)} d` + (hours % 24 ? ` ${hours % 24} h` : "");
  return [hours ? `${hours} h` : "", minutes % 60 ? `${minutes % 60} min` : ""].filter(Boolean).join(" ");
}
export function dollars(micro) {
  const usd = micro / 1e6;
  return "$" + (usd >= 1 || !usd ? usd.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 }) : usd.toFixed(4));
}
export const poolName = (key) => `${key.host}/${key.account}/${key.model_group}`;
export const sum = (list, of) => list.reduce((total, one) => total + of(one), 0);
const two = (value) => String(value).padStart(2, "0");
export function clock(wall) { const at = new Date(wall * 1000); return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`; }
export function day(wall) { const at = new Date(wall * 1000); return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`; }
export function when(wall) { return `${day(wall)} ${clock(wall).slice(0, 5)}`; }
export const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
