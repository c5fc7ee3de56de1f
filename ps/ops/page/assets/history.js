// What charts draw: the series of the job that is shown, as columns, with the newest points of the stream at its end.

import { real } from "./format.js";

export const COLUMNS = [
  "batch", "loss", "norm", "samples", "keys", "lookup", "compute", "send", "result", "sent", "received", "pending", "refused", "resent",
];
const AGAIN_MS = 600000; // the server thins what is old: asking again now and then keeps the page's memory as small
const GAP_MS = 2600; // between points of a second each; later points mean that some were missed

/** History is the series of one job. Times are the server's, in milliseconds, ascending. */
export class History {
  constructor(job) {
    this.job = job;
    this.clear();
    this.every = 1000;
    this.until = 0;
    this.askedAt = 0;
    this.version = 0;
  }

  clear() {
    this.at = [];
    this.columns = {};
    for (const c of COLUMNS) this.columns[c] = [];
  }

  /** take replaces everything by an answer of api/v1/series. */
  take(series) {
    this.clear();
    this.at = series.at_ms || [];
    this.every = series.every_ms || 1000;
    this.until = this.at.length ? this.at[this.at.length - 1] : 0; // later points are of the stream
    for (const c of COLUMNS) {
      const from = (series.columns || {})[c] || [];
      const to = new Array(this.at.length);
      for (let i = 0; i < to.length; i++) to[i] = finite(from[i]);
      this.columns[c] = to;
    }
    this.askedAt = Date.now();
    this.version++;
  }

  /** add puts the stream's newest point at the end. It says whether some before it are missing, or all is old. */
  add(point) {
    const last = this.at.length ? this.at[this.at.length - 1] : 0;
    if (point.at_ms < last) return false;
    if (point.at_ms === last) {
      this.at.pop();
      for (const c of COLUMNS) this.columns[c].pop();
    }
    this.at.push(point.at_ms);
    for (const c of COLUMNS) this.columns[c].push(finite(point[c]));
    this.version++;
    return (last > 0 && point.at_ms - last > GAP_MS) || Date.now() - this.askedAt > AGAIN_MS;
  }

  get first() {
    return this.at.length ? this.at[0] : 0;
  }

  /** lower is the index of the first time that is not before `at`. */
  lower(at) {
    let lo = 0;
    let hi = this.at.length;
    while (lo < hi) {
      const mid = (lo + hi) >> 1;
      if (this.at[mid] < at) lo = mid + 1;
      else hi = mid;
    }
    return lo;
  }

  /** latest is the newest value of a column that was told, and when: {value, at}, or null. */
  latest(column) {
    const values = this.columns[column];
    for (let i = values.length - 1; i >= 0; i--) if (values[i] !== null) return { value: values[i], at: this.at[i] };
    return null;
  }

  /** spacing is the time between points at `at`: as the server keeps them, or a second in the stream. */
  spacing(at) {
    return at < this.until ? this.every : 1000;
  }

  /**
   * view cuts the columns to a range, with one point on either side. Where points are missing, a row of nulls says so:
   * charts show a gap, never a line over it.
   */
  view(from, to, names) {
    const lo = Math.max(0, this.lower(from) - 1);
    const hi = Math.min(this.at.length, this.lower(to) + 1);
    const at = [];
    const out = names.map(() => []);
    for (let i = lo; i < hi; i++) {
      if (i > lo) {
        const missing = this.at[i] - this.at[i - 1];
        const due = this.spacing(this.at[i - 1]);
        if (missing > 2.6 * due) {
          at.push(this.at[i - 1] + due);
          for (const o of out) o.push(null);
        }
      }
      at.push(this.at[i]);
      for (let c = 0; c < names.length; c++) out[c].push(this.columns[names[c]][i]);
    }
    return { at, columns: out };
  }

  /** smooth is the mean of what came before, weighted by exp(-age/tau), of the view's times. Nulls stay nulls. */
  smooth(column, at, tau) {
    const values = this.columns[column];
    let i = at.length ? this.lower(at[0] - 4 * tau) : 0;
    let sum = 0;
    let weight = 0;
    let last = 0;
    const out = new Array(at.length);
    for (let o = 0; o < at.length; o++) {
      out[o] = null;
      for (; i < this.at.length && this.at[i] <= at[o]; i++) {
        if (values[i] === null) continue;
        const keep = last ? Math.exp(-(this.at[i] - last) / tau) : 0;
        sum = sum * keep + values[i];
        weight = weight * keep + 1;
        last = this.at[i];
        if (this.at[i] === at[o]) out[o] = sum / weight;
      }
    }
    return out;
  }
}

/** finite is a number that can be drawn; NaN and infinities are gaps, and an event says what they were. */
function finite(v) {
  const n = real(v);
  return n === null || Number.isFinite(n) ? n : null;
}
