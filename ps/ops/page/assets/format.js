// Numbers as people read them: with units, thousands separators, and no more digits than are of use.
// What is not known is "–"; it is never shown as 0.

export const NONE = "–";

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** real turns a number of the API into one: NaN and infinities travel as text. null where it was not told. */
export function real(v) {
  if (v === null || v === undefined) return null;
  if (typeof v === "number") return v;
  if (v === "+Inf") return Infinity;
  if (v === "-Inf") return -Infinity;
  return NaN;
}

/** count shows a whole number with separators. */
export function count(v) {
  const n = real(v);
  return n === null || Number.isNaN(n) ? NONE : Number.isFinite(n) ? whole.format(n) : odd(n);
}

function odd(n) {
  return Number.isNaN(n) ? "NaN" : n > 0 ? "∞" : "−∞";
}

/** figure shows n with about `digits` significant digits, and separators from a thousand on. */
export function figure(v, digits = 4) {
  const n = real(v);
  if (n === null) return NONE;
  if (!Number.isFinite(n)) return odd(n);
  if (n === 0) return "0";
  const a = Math.abs(n);
  if (a >= 1e9 || a < 1e-4) return n.toExponential(Math.max(0, digits - 2)).replace("e+", "e");
  const after = Math.max(0, digits - 1 - Math.floor(Math.log10(a)));
  return n.toLocaleString("en-US", { minimumFractionDigits: Math.min(after, 6), maximumFractionDigits: Math.min(after, 6) });
}

/** rate shows a number per second, whole from a hundred on. */
export function rate(v) {
  const n = real(v);
  if (n === null) return NONE;
  if (!Number.isFinite(n)) return odd(n);
  return Math.abs(n) >= 100 ? whole.format(n) : n === 0 ? "0" : figure(n, Math.abs(n) >= 10 ? 3 : 2);
}

function scaled(n, step, units) {
  let i = 0;
  let a = n;
  while (Math.abs(a) >= step && i < units.length - 1) {
    a /= step;
    i++;
  }
  const text = i === 0 ? whole.format(a) : Math.abs(a) >= 100 ? a.toFixed(0) : Math.abs(a) >= 10 ? a.toFixed(1) : a.toFixed(2);
  return text + " " + units[i];
}

/** bytes shows memory, in powers of 1024. */
export function bytes(v) {
  const n = real(v);
  return n === null || !Number.isFinite(n) ? NONE : scaled(n, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
}

/** flow shows bytes per second, in powers of 1000, as networks are counted. */
export function flow(v) {
  const n = real(v);
  return n === null || !Number.isFinite(n) ? NONE : scaled(n, 1000, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]);
}

/** percent shows a share of 1. */
export function percent(v, digits = 0) {
  const n = real(v);
  return n === null || !Number.isFinite(n) ? NONE : (n * 100).toFixed(digits) + " %";
}

/** span shows a length of time in milliseconds with its two largest units. */
export function span(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return NONE;
  if (ms < 0) ms = 0;
  if (ms < 1000) return Math.round(ms) + " ms";
  if (ms < 10000) return (ms / 1000).toFixed(1) + " s";
  const s = Math.round(ms / 1000);
  if (s < 60) return s + " s";
  if (s < 3600) return Math.floor(s / 60) + " min" + (s < 600 && s % 60 ? " " + (s % 60) + " s" : "");
  const m = Math.round(s / 60);
  if (m < 1440) return Math.floor(m / 60) + " h " + String(m % 60).padStart(2, "0") + " min";
  const h = Math.round(m / 60);
  return Math.floor(h / 24) + " d " + (h % 24) + " h";
}

/** age is span in whole seconds, for what is told once a second. */
export function age(ms) {
  return ms < 10000 ? Math.max(0, Math.round(ms / 1000)) + " s" : span(ms);
}

/** seconds shows a short time given in seconds: µs, ms or s. */
export function seconds(v) {
  const n = real(v);
  if (n === null || !Number.isFinite(n)) return NONE;
  if (n === 0) return NONE;
  if (n < 1e-3) return Math.round(n * 1e6) + " µs";
  if (n < 1) return (n * 1e3).toFixed(n < 0.01 ? 1 : 0) + " ms";
  return n.toFixed(n < 10 ? 1 : 0) + " s";
}

const two = (n) => String(n).padStart(2, "0");

/** clock shows a time of day, with the date where it is not that of `now`. */
export function clock(ms, now = Date.now()) {
  if (!ms) return NONE;
  const t = new Date(ms);
  const text = two(t.getHours()) + ":" + two(t.getMinutes()) + ":" + two(t.getSeconds());
  return t.toDateString() === new Date(now).toDateString() ? text : day(t) + " " + text;
}

/** day shows a date as 11-22. */
export function day(t) {
  return two(t.getMonth() + 1) + "-" + two(t.getDate());
}

/** tick shows a time on an axis whose marks are `step` milliseconds apart. */
export function tick(ms, step) {
  const t = new Date(ms);
  if (step >= 86400000) return day(t);
  const text = two(t.getHours()) + ":" + two(t.getMinutes());
  return step < 60000 ? text + ":" + two(t.getSeconds()) : text;
}

/** zone names the zone that all times are shown in. */
export function zone() {
  const m = -new Date().getTimezoneOffset();
  const a = Math.abs(m);
  return m === 0 ? "UTC" : "UTC" + (m < 0 ? "−" : "+") + Math.floor(a / 60) + (a % 60 ? ":" + two(a % 60) : "");
}
