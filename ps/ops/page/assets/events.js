// What happened: the newest first. The server keeps a thousand; the page shows those of a level, and more when asked.

import { age, clock, count } from "./format.js";
import { attr, byId, el, icon, levelOf, show, text } from "./dom.js";

const KEPT_MAX = 1000;
const SHOWN = 12;

/** Events owns the list at the end of the page, and knows the faults that charts mark. */
export class Events {
  constructor({ onJob }) {
    this.onJob = onJob;
    this.all = []; // ascending by serial
    this.serial = 0;
    this.gap = null; // {since}: some after that serial are not known
    this.shown = SHOWN;
    this.wanted = "all";
    this.version = 0;
    const section = byId("s-events");
    this.count = el("span", { class: "count" });
    this.filters = ["all", "warnings"].map((f) => el("button", { type: "button", class: "small", on: { click: () => this.filter(f) } }, f === "all" ? "all" : "warnings and worse"));
    this.list = el("ol", { class: "events" });
    this.quiet = el("p", { class: "quiet" }, "Nothing has happened since this server started.");
    this.more = el("button", { type: "button", class: "more", hidden: true, on: { click: () => this.longer() } });
    section.append(el("h2", { id: "h-events", tabindex: "-1" }, "Events ", this.count), el("div", { class: "filters", role: "group", "aria-label": "Events shown" }, ...this.filters), this.list, this.quiet, this.more);
    this.filter("all");
  }

  /** take adds events in any order; those that are known are passed over. */
  take(events, now) {
    this.now = now;
    show(byId("s-events"), true);
    let some = false;
    for (const e of events || []) {
      if (e.serial <= this.serial && this.all.some((k) => k.serial === e.serial)) continue;
      this.all.push(e);
      some = true;
    }
    if (!some) return;
    this.all.sort((a, b) => a.serial - b.serial);
    if (this.all.length > KEPT_MAX) this.all.splice(0, this.all.length - KEPT_MAX);
    this.serial = this.all[this.all.length - 1].serial;
    this.version++;
    this.render();
  }

  /** missed says that some events may have been missed after the last that is known, which are to be asked for. */
  missed() {
    this.gap = { since: this.gap ? this.gap.since : this.serial };
  }

  /** fill takes all events since the gap began. */
  fill(events, now) {
    this.gap = null;
    this.take(events, now);
  }

  /** restart forgets all: the server was started again, and knows nothing of what was before. */
  restart() {
    this.all = [];
    this.serial = 0;
    this.gap = null;
    this.version++;
    this.render();
  }

  filter(which) {
    this.wanted = which;
    this.filters.forEach((b, i) => attr(b, "aria-pressed", String(["all", "warnings"][i] === which)));
    this.render();
  }

  longer() {
    this.shown = this.shown === SHOWN ? 200 : SHOWN;
    this.render();
  }

  /** marks are the faults of a job, and those of no job, for charts. */
  marks(job) {
    return this.all.filter((e) => (e.level === "warning" || e.level === "critical") && (!e.job || e.job === job)).map((e) => ({ at: e.at_ms, level: e.level, text: e.text }));
  }

  render() {
    const fit = this.wanted === "all" ? this.all : this.all.filter((e) => e.level === "warning" || e.level === "critical");
    const shown = fit.slice(-this.shown).reverse();
    text(this.count, this.all.length ? count(this.all.length) : "");
    show(this.quiet, fit.length === 0);
    text(this.quiet, this.all.length ? "No warning, and nothing worse, since this server started." : "Nothing has happened since this server started.");
    this.list.replaceChildren(...shown.map((e) => this.item(e)));
    show(this.list, shown.length > 0);
    show(this.more, fit.length > SHOWN);
    text(this.more, this.shown === SHOWN ? `show ${count(Math.min(200, fit.length))}` : `the last ${SHOWN}`);
  }

  item(e) {
    return el("li", { "data-level": levelOf(e.level) },
      el("time", { datetime: new Date(e.at_ms).toISOString(), title: age((this.now || Date.now()) - e.at_ms) + " before the last update" }, clock(e.at_ms, this.now)),
      icon(levelOf(e.level)), el("span", { class: "what" }, e.text),
      el("span", { class: "code" }, [e.job, e.member, e.code].filter(Boolean).join(" · ")));
  }
}
