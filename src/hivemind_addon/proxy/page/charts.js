// Charts: uPlot with titles, incidents as bands, and the same numbers as a table for who cannot see them.
import { h, table, cell } from "./elements.js";
import { clock, day, when } from "./words.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const drawn = new Set();

// Incidents behind everything else; one that is short is a line.
function bands(incidents, until) {
  return { hooks: { drawClear: [(u) => {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.fillStyle = colour("bad-ground"); ctx.strokeStyle = colour("bad");
    for (const one of incidents) {
      const left = Math.max(bbox.left, u.valToPos(one.began, "x", true)), right = Math.min(bbox.left + bbox.width, u.valToPos(one.ended == null ? until : one.ended, "x", true));
      if (right < bbox.left || left > bbox.left + bbox.width) continue;
      ctx.fillRect(left, bbox.top, Math.max(3, right - left), bbox.height);
      ctx.fillRect(left, bbox.top, 2, bbox.height);
      ctx.beginPath(); ctx.moveTo(left, bbox.top); ctx.lineTo(Math.max(left + 3, right), bbox.top); ctx.lineWidth = 4; ctx.stroke();
    }
    ctx.restore();
  }] } };
}
const axis = (more) => ({ stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 }, font: "12px system-ui, sans-serif", ...more });

// A day's instants as hours, others as days.
const instants = (_, splits, __, ___, step) => splits.map((x, place) => {
  const at = new Date(x * 1000), hour = clock(x).slice(0, 5);
  return step >= 86400 ? day(x).slice(5) : place === 0 || at.getHours() === 0 ? `${hour}\n${day(x).slice(5)}` : hour;
});
// `chart`: title, summary, xs, series ({label, colour, values, dash}), word (a value in words; mark: beside the axis), bars (stacked) and their
// width in seconds; since, until, incidents.
export function figure(chart) {
  const canvas = h("div.plot", { "aria-hidden": "true" });
  const legend = h("div.legend", null, chart.series.map((one) => { const mark = h("i", null); mark.style.background = one.mark || `var(--${one.colour})`; mark.style.height = chart.bars ? "8px" : "3px"; return h("span", null, mark, one.label); }),
    chart.incidents.length > 0 && h("span", null, h("i.incident"), "incident"));
  const rows = chart.xs.map((x, place) => [x, chart.series.map((one) => one.values[place])]).filter(([, values]) => values.some(Boolean)).reverse();
  const made = h("figure.panel", null, h("h3", null, chart.title), h("p.quiet", null, chart.summary), canvas, legend,
    h("details", null, h("summary", null, `${chart.title} as a table`), h("div.scroll", { tabindex: 0, role: "region", "aria-label": `${chart.title}, table` },
      table([["from"], ...chart.series.map((one) => [one.label, "number"])], rows.slice(0, 200).map(([x, values]) => h("tr", null, h("th", { scope: "row" }, when(x)), values.map((value, place) => cell(value ? chart.word(value) : "", chart.series[place].label, "number")))), rows.length - 200))));
  drawn.add(() => plot(canvas, chart));
  new ResizeObserver(() => plot(canvas, chart)).observe(canvas);
  return made;
}
function plot(canvas, chart) {
  const width = Math.floor(canvas.clientWidth);
  if (!width) return;
  if (canvas.plot && canvas.plot.width === width && canvas.scheme === colour("ground")) return;
  if (canvas.plot) canvas.plot.destroy();
  canvas.scheme = colour("ground");
  // Bars stand on each other: what is behind is drawn first, and is the sum of what is before it.
  const sums = chart.bars ? chart.series.map((_, place) => chart.xs.map((_, x) => chart.series.slice(0, place + 1).reduce((total, one) => total + (one.values[x] || 0), 0))) : chart.series.map((one) => one.values);
  const order = chart.series.map((_, place) => place); if (chart.bars) order.reverse();
  const middle = chart.bars ? chart.bars / 2 : 0;
  canvas.plot = new uPlot({
    width, height: width < 420 ? 170 : 210, legend: { show: false }, cursor: { show: false }, plugins: [bands(chart.incidents, chart.until)],
    scales: { x: { time: true, range: [chart.since, chart.until] }, y: { range: (_, least, most) => [0, Math.max(chart.least || 1, most * 1.08)] } },
    axes: [axis({ values: instants, space: 64 }), axis({ size: 70, values: (_, values) => values.map((value) => (value ? (chart.mark || chart.word)(value) : "0")) })],
    series: [{}, ...order.map((place) => {
      const one = chart.series[place], stroke = one.swatch ? one.swatch() : colour(one.colour);
      return chart.bars ? { stroke, fill: stroke, width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [0.86, 60] }) }
        : { stroke, width: 1.7, dash: one.dash, points: { show: one.values.filter((value) => value != null).length < 20, size: 5 }, spanGaps: true, fill: one.fill ? colour(one.fill) : undefined };
    })],
  }, [chart.xs.map((x) => x + middle), ...order.map((place) => sums[place])], canvas);
}
// Where colours change, everything is drawn anew.
export function clear() { drawn.clear(); }
for (const media of ["(prefers-color-scheme: dark)", "print"]) matchMedia(media).addEventListener("change", () => drawn.forEach((again) => again()));
