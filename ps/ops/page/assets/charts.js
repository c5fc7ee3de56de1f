// The charts of one job. All share one time axis, one crosshair and one set of marks; each is drawn again only when it has
// something new that can be seen.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { age, bytes, clock, count, figure, flow, percent, rate, tick } from "./format.js";
import { attr, byId, el, show, text } from "./dom.js";

const MIN = 60000;
export const RANGES = [
  { id: "10m", label: "10 min", ms: 10 * MIN },
  { id: "1h", label: "1 h", ms: 60 * MIN },
  { id: "6h", label: "6 h", ms: 360 * MIN },
  { id: "all", label: "all", ms: Infinity },
];
const STALE_MS = 3500;
const LEAST_MS = MIN; // shortest range that is drawn: a young job fills the chart

const CHARTS = [
  { id: "loss", title: "Loss", tall: true, lines: [{ column: "loss", label: "raw", color: "--c1-faint" }, { column: "loss", smooth: true, label: "smoothed", color: "--c1" }], format: figure, log: true },
  { id: "norm", title: "Gradient norm", tall: true, lines: [{ column: "norm", label: "L2", color: "--c5" }], format: figure },
  { id: "samples", title: "Samples/s", tall: true, lines: [{ column: "samples", label: "now", color: "--c2" }], format: rate, zero: true, least: 1 },
  { id: "phases", title: "Trainers' time", stacked: true, format: percent, top: 1, lines: [
    { column: "keys", label: "keys", color: "--p1" }, { column: "lookup", label: "lookup", color: "--p2" }, { column: "compute", label: "compute", color: "--p3" },
    { column: "send", label: "send", color: "--p4" }, { column: "result", label: "result", color: "--p5" }] },
  { id: "bytes", title: "Traffic", lines: [{ column: "sent", label: "out", color: "--c1" }, { column: "received", label: "in", color: "--c4" }], format: flow, zero: true, least: 1000 },
  { id: "pending", title: "In flight", lines: [{ column: "pending", label: "not acknowledged", color: "--c4" }], format: bytes, zero: true, base: 2, least: 1024 },
  { id: "refused", title: "Frames/s", lines: [{ column: "refused", label: "refused", color: "--critical" }, { column: "resent", label: "resent", color: "--c4" }], format: rate, zero: true, least: 1 },
];

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Charts owns the panels, the range and the crosshair. */
export class Charts {
  constructor({ onRange }) {
    this.onRange = onRange;
    this.range = RANGES[0];
    this.zoom = null; // {from, to} where someone chose a stretch with the mouse
    this.log = false;
    this.history = null;
    this.marks = [];
    this.spans = [];
    this.now = 0;
    this.readout = byId("readout");
    this.colors = {};
    this.panels = CHARTS.map((spec) => new Panel(this, spec));
    byId("chart-grid").append(...this.panels.map((p) => p.root));
    this.buttons = RANGES.map((r, i) => el("button", { type: "button", title: `Show ${r.label} (${i + 1})`, on: { click: () => this.setRange(r) } }, r.label));
    this.live = el("button", { type: "button", hidden: true, title: "Back to the present (Esc)", on: { click: () => this.setRange(this.range) } }, "");
    byId("ranges").append(...this.buttons, this.live);
    this.setRange(RANGES[0]);
    new ResizeObserver(() => this.panels.forEach((p) => p.resize())).observe(byId("chart-grid"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolor());
  }

  setRange(range) {
    this.range = range;
    this.zoom = null;
    this.changed();
  }

  setZoom(from, to) {
    this.zoom = { from, to };
    this.changed();
  }

  changed() {
    this.buttons.forEach((b, i) => attr(b, "aria-pressed", String(!this.zoom && RANGES[i] === this.range)));
    show(this.live, Boolean(this.zoom));
    if (this.zoom) text(this.live, `${clock(this.zoom.from)} – ${clock(this.zoom.to)}  ✕`);
    this.redraw();
  }

  toggleLog() {
    this.log = !this.log;
    for (const p of this.panels) if (p.spec.log) p.rebuild();
  }

  color(name) {
    return (this.colors[name] ||= css(name));
  }

  recolor() {
    this.colors = {};
    for (const p of this.panels) p.rebuild();
  }

  /** bounds is the range of time that is drawn. */
  bounds() {
    if (this.zoom) return this.zoom;
    const first = this.history && this.history.first ? this.history.first : this.now;
    const to = Math.max(this.now, LEAST_MS);
    return { from: Math.max(to - this.range.ms, Math.min(first, to - LEAST_MS)), to };
  }

  /** draw shows the history at `now`, with marks: [{at, level, text}] and spans of what is wrong still: [{from, level}]. */
  draw(history, now, marks, spans) {
    const other = history !== this.history || history.askedAt !== this.askedAt; // a new answer may fill any range
    this.askedAt = history.askedAt;
    this.history = history;
    this.now = now;
    this.marks = marks;
    this.spans = spans;
    const { from, to } = this.bounds();
    // Ten minutes move by a pixel or so in a second, longer ranges do not.
    const due = to - from > 2 * 3600000 ? 10000 : to - from > 15 * MIN ? 4000 : 0;
    for (const p of this.panels) {
      if (other || !p.drawnAt || now - p.drawnAt >= due) p.draw();
      p.values();
    }
  }

  redraw() {
    if (!this.history) return;
    for (const p of this.panels) {
      p.draw();
      p.values();
    }
  }

  /** say tells what was at the crosshair: the time, the batch, and a mark that is near. */
  say(at, slack) {
    if (at === null) return text(this.readout, "");
    const i = this.history.lower(at - 1);
    const batch = this.history.columns.batch[i];
    let near = null;
    for (const m of this.marks) if (Math.abs(m.at - at) <= slack && (!near || Math.abs(m.at - at) < Math.abs(near.at - at))) near = m;
    text(this.readout, clock(at, this.now) + (batch ? `  batch ${count(batch)}` : "") + (near ? `  ${near.level}: ${near.text}` : ""));
  }
}

class Panel {
  constructor(charts, spec) {
    this.charts = charts;
    this.spec = spec;
    this.drawnAt = 0;
    this.visible = true;
    this.figures = spec.lines.map(() => el("b", null));
    const keys = spec.lines.map((l, i) =>
      el("span", { class: "key" }, spec.lines.length > 1 ? el("i", { class: "swatch", "data-color": l.color }) : null, spec.lines.length > 1 ? l.label + " " : null, this.figures[i]),
    );
    this.told = el("span", { class: "told", hidden: true });
    this.switch = spec.log
      ? el("button", { type: "button", class: "small", "aria-pressed": "false", title: "Logarithmic scale (l)", on: { click: () => charts.toggleLog() } }, "log")
      : null;
    this.nothing = el("p", { class: "nothing", hidden: true }, "nothing told yet");
    this.plot = el("div", { class: "plot", role: "img", tabindex: spec.id === "loss" ? "0" : null, "aria-label": `${spec.title} over time${spec.id === "loss" ? "; arrow keys move the crosshair of all charts" : ""}`, on: { keydown: (e) => this.key(e) } }, this.nothing);
    this.root = el("div", { class: "chart" + (spec.tall ? " tall" : ""), id: "chart-" + spec.id },
      el("div", { class: "chart-head" }, el("h3", null, spec.title), this.switch, this.told, el("p", { class: "legend" }, ...keys)), this.plot);
    // What is out of sight is not drawn.
    new IntersectionObserver((seen) => {
      this.visible = seen[seen.length - 1].isIntersecting;
      if (this.visible && charts.history) this.draw();
    }, { rootMargin: "100px" }).observe(this.root);
  }

  size() {
    return { width: Math.max(60, Math.floor(this.plot.clientWidth)), height: Math.max(60, Math.floor(this.plot.clientHeight)) };
  }

  resize() {
    if (this.u) this.u.setSize(this.size());
  }

  rebuild() {
    if (this.switch) attr(this.switch, "aria-pressed", String(this.charts.log));
    if (!this.u) return;
    this.u.destroy();
    this.u = null;
    this.draw();
  }

  /** data are the columns as they are drawn: smoothed where asked, added up from below where stacked. */
  data(from, to) {
    const { spec, charts } = this;
    const { at, columns } = charts.history.view(from, to, spec.lines.map((l) => l.column));
    const log = spec.log && charts.log;
    spec.lines.forEach((l, i) => {
      if (l.smooth) columns[i] = charts.history.smooth(l.column, at, Math.max(3000, (to - from) / 50));
      if (log) columns[i] = columns[i].map((v) => (v !== null && v > 0 ? v : null));
    });
    this.plain = columns;
    if (!spec.stacked) return [at, ...columns];
    const sums = columns.map((c) => c.slice());
    for (let i = 0; i < at.length; i++) {
      let sum = 0;
      for (let c = 0; c < sums.length; c++) {
        if (columns[c][i] === null) continue;
        sum += columns[c][i];
        sums[c][i] = sum;
      }
    }
    return [at, ...sums.reverse()]; // the highest first: the lower ones are painted over it
  }

  draw() {
    const { charts } = this;
    if (!this.visible || !charts.history || !this.plot.clientWidth) return;
    const { from, to } = charts.bounds();
    const data = this.data(from, to);
    this.drawnAt = charts.now;
    const some = this.plain.some((c) => c.some((v) => v !== null));
    show(this.nothing, !some);
    text(this.nothing, charts.history.askedAt ? "nothing told yet" : "loading");
    if (!this.u) this.u = new uPlot(this.options(), data, this.plot);
    this.u.batch(() => {
      this.u.setData(data, false);
      this.u.setScale("x", { min: from, max: to });
    });
    this.u.redraw(false);
  }

  /** values are the figures of the legend: the latest, or those at the crosshair. */
  values() {
    const { spec, charts } = this;
    const idx = this.u && this.u.cursor.left >= 0 ? this.u.cursor.idx : null;
    let newest = 0;
    spec.lines.forEach((l, i) => {
      let value = null;
      if (idx !== null && idx !== undefined) value = this.plain?.[i]?.[idx] ?? null;
      else {
        const latest = charts.history.latest(l.column);
        if (latest) {
          newest = Math.max(newest, latest.at);
          value = l.smooth ? (this.plain?.[i]?.findLast((v) => v !== null) ?? latest.value) : latest.value;
        }
      }
      text(this.figures[i], spec.format(value));
    });
    const stale = newest > 0 && charts.now - newest > STALE_MS;
    show(this.told, stale);
    if (stale) text(this.told, age(charts.now - newest) + " ago");
    this.root.classList.toggle("stale", stale);
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    if (!this.visible) {
      this.visible = true; // it has the focus: the browser has yet to say that it is in sight
      this.draw();
    }
    if (!this.u || !this.u.data[0].length) return;
    event.preventDefault();
    const n = this.u.data[0].length;
    const idx = this.u.cursor.left >= 0 ? this.u.cursor.idx : n - 1;
    const to = Math.min(n - 1, Math.max(0, (idx ?? n - 1) + step * (event.shiftKey ? 10 : 1)));
    this.u.setCursor({ left: this.u.valToPos(this.u.data[0][to], "x"), top: 10 }, true, true);
  }

  options() {
    const { spec, charts } = this;
    const log = spec.log && charts.log;
    const color = (name) => charts.color(name);
    const lines = spec.stacked ? spec.lines.slice().reverse() : spec.lines;
    const font = "11px " + css("--sans");
    const axis = { stroke: () => color("--muted"), font, grid: { stroke: () => color("--grid"), width: 1 }, ticks: { show: false }, border: { show: false } };
    return {
      ...this.size(),
      ms: 1,
      padding: [8, 6, 0, 0],
      legend: { show: false },
      cursor: {
        sync: { key: "gradbus", setSeries: false, scales: ["x", null] },
        y: false,
        drag: { x: true, y: false, setScale: false, dist: 5 },
        points: { size: 5, width: 0, show: !spec.stacked },
        bind: { dblclick: () => () => charts.setRange(charts.range) },
      },
      scales: { x: { time: false, auto: false }, y: { distr: log ? 3 : 1, log: 10, range: (u, min, max) => this.extent(min, max, log) } },
      axes: [
        { ...axis, size: 22, gap: 4, space: (u, axis, min, max, width) => (max - min < 3 * MIN || width > 400 ? 64 : 44), incrs: [1, 2, 5, 10, 15, 30, 60, 120, 180, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400].map((s) => s * 1000), splits: ticksOfTime, values: (u, splits, a, space, incr) => splits.map((s) => (fits(u, s, incr) ? tick(s, incr) : "")) },
        { ...axis, size: 50, gap: 4, space: 30, ...(spec.base === 2 ? { incrs: powers() } : {}), values: (u, splits) => splits.map((v) => (v === null ? null : axisText(spec, v))) },
      ],
      series: [{}, ...lines.map((l) => ({
        stroke: () => color(l.color),
        fill: spec.stacked ? () => color(l.color) : undefined,
        width: spec.stacked ? 0 : l.smooth ? 2 : spec.lines.some((o) => o.smooth) ? 1 : 1.5,
        points: { show: false },
        gaps: refine,
      }))],
      hooks: {
        drawClear: [(u) => this.drawSpans(u)],
        draw: [(u) => this.drawMarks(u)],
        setCursor: [(u) => this.cursor(u)],
        setSelect: [(u) => this.selected(u)],
      },
    };
  }

  extent(min, max, log) {
    const { spec } = this;
    if (spec.top) return [0, spec.top];
    if (min === null || max === null || !Number.isFinite(min)) return log ? [0.1, 1] : [0, spec.least || 1];
    if (log) return [min / 1.15, max * 1.15];
    if (spec.zero) return [0, Math.max(max * 1.12, spec.least || 0) || 1];
    const pad = (max - min || Math.abs(max) || 1) * 0.1;
    return [min >= 0 ? Math.max(0, min - pad) : min - pad, max + pad];
  }

  cursor(u) {
    if (!this.charts.history) return;
    const idx = u.cursor.left >= 0 ? u.cursor.idx : null;
    this.values();
    const at = idx === null || idx === undefined ? null : u.data[0][idx];
    if (at === undefined) return;
    this.charts.say(at, at === null ? 0 : u.posToVal(6, "x") - u.posToVal(0, "x"));
  }

  selected(u) {
    if (u.select.width < 5) return;
    const from = u.posToVal(u.select.left, "x");
    const to = u.posToVal(u.select.left + u.select.width, "x");
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    if (to - from >= 2000) this.charts.setZoom(from, to);
  }

  /** drawSpans shades the time since something has been wrong that is wrong still. */
  drawSpans(u) {
    const { left, top, width, height } = u.bbox;
    u.ctx.save();
    for (const s of this.charts.spans) {
      const x = Math.max(left, u.valToPos(s.from, "x", true));
      if (x >= left + width) continue;
      u.ctx.fillStyle = this.charts.color(s.level === "critical" ? "--critical-wash" : "--warning-wash");
      u.ctx.fillRect(x, top, left + width - x, height);
    }
    u.ctx.restore();
  }

  /** drawMarks draws the faults: a line each, with a flag at its top, and none twice on one pixel. */
  drawMarks(u) {
    const { left, top, width, height } = u.bbox;
    const px = devicePixelRatio || 1;
    const taken = new Set();
    u.ctx.save();
    for (const m of this.charts.marks) {
      const x = Math.round(u.valToPos(m.at, "x", true));
      const key = x + m.level;
      if (x < left || x > left + width || taken.has(key)) continue;
      taken.add(key);
      u.ctx.fillStyle = this.charts.color(m.level === "critical" ? "--critical" : m.level === "warning" ? "--warning" : "--muted");
      u.ctx.globalAlpha = 0.55;
      u.ctx.fillRect(x - px / 2, top, px, height);
      u.ctx.globalAlpha = 1;
      u.ctx.beginPath();
      u.ctx.moveTo(x - 4 * px, top - 3 * px);
      u.ctx.lineTo(x + 4 * px, top - 3 * px);
      u.ctx.lineTo(x, top + 4 * px);
      u.ctx.fill();
    }
    u.ctx.restore();
  }
}

/** refine drops gaps that are no longer than values are apart anyway: a job with a batch in two seconds is no broken line. */
function refine(u, seriesIdx, idx0, idx1, gaps) {
  const at = u.data[0];
  const values = u.data[seriesIdx];
  const apart = [];
  for (let i = idx0, last = -1; i <= idx1; i++) {
    if (values[i] === null || values[i] === undefined) continue;
    if (last >= 0) apart.push(at[i] - at[last]);
    last = i;
  }
  if (!apart.length) return gaps;
  apart.sort((a, b) => a - b);
  const usual = apart[apart.length >> 1];
  const most = u.valToPos(usual * 2.4, "x", true) - u.valToPos(0, "x", true);
  return gaps.filter(([from, to]) => to - from > most);
}

/** ticksOfTime puts the marks of the time axis at whole minutes and hours of the zone that is shown. */
function ticksOfTime(u, axis, min, max, incr) {
  const shift = new Date(max).getTimezoneOffset() * MIN;
  const out = [];
  for (let t = Math.ceil((min - shift) / incr) * incr + shift; t <= max; t += incr) out.push(t);
  return out;
}

/** fits says whether the label of a mark on the time axis has room before the chart's right edge. */
function fits(u, at, incr) {
  return u.valToPos(at, "x") <= u.bbox.width / (devicePixelRatio || 1) - (incr < 60000 ? 20 : 11);
}

function powers() {
  const out = [];
  for (let i = 0; i < 50; i++) out.push(2 ** i);
  return out;
}

function axisText(spec, v) {
  if (spec.format === flow || spec.format === bytes) return v === 0 ? "0" : spec.format(v).replace(/\.0+(?=\s)/, "").replace(/(\.\d*?)0+(?=\s)/, "$1").replace("/s", "");
  if (spec.format === percent) return percent(v);
  if (v === 0) return "0";
  const a = Math.abs(v);
  if (a >= 10000) return +(v / 1000).toPrecision(4) + "k";
  return a < 1e-3 ? v.toExponential(0) : String(+v.toPrecision(4));
}
