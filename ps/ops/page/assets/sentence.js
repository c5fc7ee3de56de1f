// The sentence at the top: what is wrong, since when, what to do, and what else is wrong.

import { age, clock, count } from "./format.js";
import { attr, byId, el, icon, levelOf, setIcon, show, text } from "./dom.js";

const WORDS = { ok: "All is well", info: "Idle", warning: "Warning", critical: "Critical", unknown: "Unknown" };
const COLORS = { ok: "%2330a46c", info: "%236e8ca8", warning: "%23e5a000", critical: "%23e5484d", unknown: "%23888888" };
const MORE = 4; // other problems that are shown without asking
const SAY_AGAIN_MS = 30000;

/** Sentence owns the box at the top, the title and the sign of the tab, and what is read aloud. */
export class Sentence {
  constructor({ onJob }) {
    this.onJob = onJob;
    this.box = byId("why");
    this.sign = icon("unknown");
    byId("why-icon").append(this.sign);
    this.action = el("span", null);
    this.runbook = runbook();
    this.about = el("button", { type: "button", class: "small", hidden: true, on: { click: () => this.onJob(this.job) } });
    this.book = el("span", { class: "runbook", hidden: true }, "Runbook ", this.runbook);
    byId("why-do").append(this.action, this.book, this.about);
    this.list = el("ul", { hidden: true });
    this.rest = el("button", { type: "button", class: "more", hidden: true, on: { click: () => this.toggle() } });
    byId("why-more").append(this.list, this.rest);
    this.items = [];
    this.open = false;
    this.said = "";
    this.saidAt = 0;
  }

  /** tab sets what is seen of the page in a list of tabs; it is cheap enough for a hidden page. */
  tab(level, why) {
    const mark = { critical: "✕ ", warning: "▲ ", lost: "? " }[level] || "";
    const title = mark + why + " – gradbus";
    if (document.title !== title) document.title = title;
    const shape = level === "critical" ? "%3Cpath d='M5 1h6l4 4v6l-4 4H5l-4-4V5z'" : level === "warning" ? "%3Cpath d='M8 1l7 13H1z'" : "%3Ccircle cx='8' cy='8' r='6.5'";
    attr(byId("favicon"), "href", `data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E${shape} fill='${COLORS[level] || COLORS.unknown}'/%3E%3C/svg%3E`);
  }

  update(status, shownJob) {
    const { why, problems } = status;
    const level = levelOf(why.level);
    const main = (problems || []).find((p) => p.code === why.code && (p.job || "") === (why.job || ""));
    attr(this.box, "data-level", level);
    setIcon(this.sign, level);
    text(byId("why-level"), WORDS[level]);
    text(byId("why-text"), why.text);
    text(byId("why-since"), main && main.since_ms ? `since ${clock(main.since_ms, status.now_ms)}, for ${age(status.now_ms - main.since_ms)}` : "");
    this.action.classList.toggle("mono", (why.action || "").startsWith("./"));
    text(this.action, status.jobs.length ? why.action || "" : ""); // without a job, the page says at length what to do
    show(this.book, lead(this.runbook, main));
    show(byId("why-injected"), Boolean(status.injected));
    this.job = why.job;
    show(this.about, Boolean(why.job) && why.job !== shownJob && status.jobs.some((j) => j.name === why.job));
    text(this.about, `show job ${why.job}`);
    this.others((problems || []).filter((p) => p !== main), status.now_ms);
    this.tab(level, why.text);
    this.aloud(level, why, main);
  }

  /** aloud tells what changed, not how the seconds pass. */
  aloud(level, why, main) {
    const what = [level, why.code, why.job, main?.member, main?.gpu].join();
    if (what === this.said && (level !== "critical" || Date.now() - this.saidAt < SAY_AGAIN_MS)) return;
    this.said = what;
    this.saidAt = Date.now();
    byId("said").textContent = `${WORDS[level]}: ${why.text} ${why.action || ""}`;
  }

  toggle() {
    this.open = !this.open;
    this.others(this.latest, this.now);
  }

  others(problems, now) {
    this.latest = problems;
    this.now = now;
    const shown = this.open ? problems : problems.slice(0, MORE);
    while (this.items.length > shown.length) this.items.pop().li.remove();
    shown.forEach((p, i) => {
      const item = (this.items[i] ||= this.item());
      attr(item.li, "data-level", levelOf(p.level));
      setIcon(item.sign, p.level);
      text(item.text, p.text);
      text(item.since, p.since_ms ? `${age(now - p.since_ms)}` : "");
      text(item.action, p.action || "");
      show(item.book, lead(item.book, p));
    });
    show(this.list, shown.length > 0);
    const more = problems.length - MORE;
    show(this.rest, more > 0);
    if (more > 0) text(this.rest, this.open ? "show the worst only" : `and ${count(more)} more`);
  }

  item() {
    const e = { sign: icon("unknown"), text: el("span", { class: "what" }), since: el("span", { class: "since" }), action: el("span", { class: "action" }), book: runbook() };
    e.li = el("li", null, e.sign, e.text, e.since, e.action, e.book);
    this.list.append(e.li);
    return e;
  }
}

/** runbook makes a link to what is to be done, which opens beside the page. */
const runbook = () => el("a", { class: "book", target: "_blank", rel: "noopener" });

/** lead has it show that of a problem, where there is one. */
function lead(link, problem) {
  const name = problem && problem.runbook;
  if (!name) return false;
  text(link, name);
  attr(link, "href", "runbooks#" + encodeURIComponent(name));
  return true;
}
