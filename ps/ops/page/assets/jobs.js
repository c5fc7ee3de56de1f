// Which job is shown, and the facts of it: the switcher, one line of figures, and what to do where there is no job.

import { age, bytes, clock, count, percent, rate, span } from "./format.js";
import { attr, byId, el, icon, levelOf, setIcon, share, show, text } from "./dom.js";

const STALE_MS = 3000;

/** Jobs owns the switcher and the line of facts. The job that was chosen is in the address, so that it can be sent to others. */
export class Jobs {
  constructor({ onChoose }) {
    this.onChoose = onChoose;
    this.nav = byId("jobs");
    this.tabs = new Map();
    this.facts = {};
    this.chosen = this.fromAddress();
    addEventListener("hashchange", () => {
      this.chosen = this.fromAddress();
      this.onChoose();
    });
  }

  fromAddress() {
    const found = /^#job=(.+)$/.exec(location.hash);
    try {
      return found ? decodeURIComponent(found[1]) : null;
    } catch {
      return null;
    }
  }

  choose(name) {
    this.chosen = name;
    history.replaceState(null, "", "#job=" + encodeURIComponent(name));
    this.onChoose();
  }

  step(by) {
    if (!this.names || this.names.length < 2) return;
    const at = this.names.indexOf(this.shown);
    this.choose(this.names[(at + by + this.names.length) % this.names.length]);
  }

  /** update shows the switcher and returns the job to show: the one that was chosen, or the first. */
  update(status) {
    const jobs = status.jobs || [];
    this.names = jobs.map((j) => j.series); // a name may have been used again: its earlier runs have series of their own
    const job = jobs.find((j) => j.series === this.chosen) || jobs[0] || null;
    this.shown = job ? job.series : null;
    for (const [name, tab] of this.tabs) {
      if (this.names.includes(name)) continue;
      tab.button.remove();
      this.tabs.delete(name);
    }
    let before = null;
    for (const j of jobs) {
      let tab = this.tabs.get(j.series);
      if (!tab) {
        tab = { sign: icon("unknown"), word: el("span", null) };
        tab.button = el("button", { type: "button", on: { click: () => this.choose(j.series) } }, tab.sign, tab.word);
        this.tabs.set(j.series, tab);
      }
      const name = jobs.length > 1 ? middle(j.name) : j.name;
      text(tab.word, j.series === j.name ? name : `${name} until ${clock(j.ended_ms, status.now_ms)}`);
      setIcon(tab.sign, levelOf(j.why.level));
      attr(tab.button, "data-level", levelOf(j.why.level));
      attr(tab.button, "aria-pressed", String(j === job));
      attr(tab.button, "title", name === j.name ? j.why.text : `${j.name}: ${j.why.text}`);
      tab.button.classList.toggle("ended", j.phase === "ended");
      const next = before ? before.nextSibling : this.nav.firstChild;
      if (tab.button !== next) this.nav.insertBefore(tab.button, next);
      before = tab.button;
    }
    show(this.nav, jobs.length > 0);
    this.nav.classList.toggle("one", jobs.length === 1);
    if (job && this.seen !== this.shown) this.see(this.tabs.get((this.seen = this.shown)).button);
    return job;
  }

  /** see moves the row of jobs, where it is wider than its place, so that the one that is shown is in sight. */
  see(button) {
    const at = button.getBoundingClientRect();
    const place = this.nav.getBoundingClientRect();
    if (at.left < place.left) this.nav.scrollLeft += at.left - place.left - 8;
    else if (at.right > place.right - 28) this.nav.scrollLeft += at.right - place.right + 28;
  }

  fact(name, label) {
    if (this.facts[name]) return this.facts[name];
    const term = el("dt", null, label);
    const value = el("dd", null);
    const box = el("div", { class: "fact" }, term, value);
    this.dl.append(box);
    return (this.facts[name] = { box, term, value });
  }

  set(name, label, value) {
    const f = this.fact(name, label);
    show(f.box, value !== null);
    if (value === null) return;
    text(f.term, label);
    text(f.value, value);
  }

  /** line shows the job's figures. */
  line(job, status) {
    const section = byId("facts");
    show(section, Boolean(job));
    if (!job) return;
    if (!this.dl) {
      this.dl = el("dl", null);
      this.done = el("span", { class: "bar", "aria-hidden": "true" }, el("i", null));
      section.append(this.done, this.dl);
    }
    const now = status.now_ms;
    const stale = job.phase !== "ended" && job.age_ms > STALE_MS;
    section.classList.toggle("stale", stale);
    share(this.done.firstChild, job.planned ? job.batch / job.planned : 0);
    show(this.done, job.planned > 0);
    this.set("phase", "job", job.phase === "running" ? "running" : job.phase === "gathering" ? `waits for ${count(job.missing)} more ${job.missing === 1 ? "trainer" : "trainers"}` : job.end === "completed" ? "ended" : job.end);
    this.set("batch", "batch", count(job.batch) + (job.planned ? ` of ${count(job.planned)}` : ""));
    this.set("done", "done", job.planned ? percent(job.batch / job.planned, 1) : null);
    this.set("left", "left", job.left_ms && job.phase === "running" ? span(job.left_ms) : null);
    this.set("rate", "batches/s", job.phase === "running" ? rate(job.batches_per_second) : null);
    this.set("started", "started", job.started_ms ? clock(job.started_ms, now) : null);
    this.set("ended", "ended", job.ended_ms ? `${clock(job.ended_ms, now)}, ${age(now - job.ended_ms)} ago` : null);
    this.set("ran", job.ended_ms ? "ran for" : "runs for", job.started_ms ? span((job.ended_ms || now) - job.started_ms) : null);
    this.set("workload", "workload", job.workload || null);
    this.set("mode", "mode", [job.consistency, job.apply, job.reduce === "trainers" ? "reduced by trainers" : ""].filter(Boolean).join(", "));
    this.set("lanes", "lanes", count(job.lanes));
    this.set("parameters", "parameters", count(job.parameters));
    this.set("coordinator", "coordinator", job.coordinator || null);
    this.set("run", "run", job.run_id || null);
    this.durable(job.durability);
    this.replica(job.standby);
    this.set("age", "told", stale ? `${age(job.age_ms)} ago` : null);
  }

  /** durable shows what of the job outlives its processes; d is null where its coordinator does not say. */
  durable(d) {
    const written = d && !d.off;
    this.set("durable", "durable", !d ? null : d.version ? `version ${count(d.version)}, ${age(d.age_ms)} ago` : d.off ? `nothing durable: ${d.off}` : "nothing yet");
    this.set("checkpoint", "checkpoint", written && d.version ? bytes(d.bytes) + (d.took_seconds ? ` in ${span(1000 * d.took_seconds)}` : "") : null);
    this.set("every", "wanted every", !written ? null : d.every_ms ? span(d.every_ms).replace(".0", "") : `${count(d.every_batches)} batches`);
    this.set("failures", "not durable", written && d.failures ? `${count(d.failures)} ${d.failures === 1 ? "version" : "versions"}` + (d.failure ? `; the last: ${d.failure}` : "") : null);
    for (const name of ["durable", "failures"]) attr(this.facts[name].box, "data-level", written && d.failure ? "warning" : null);
  }

  /** replica shows where the job would go on if its ps were lost; b is null where no ps has ever held a replica. */
  replica(b) {
    const kept = (b && b.kept) || [];
    const who = b && b.peers ? kept.map((k) => k.server).join(", ") || "several" : b && b.server;
    this.set("replica", "replica", !b ? null : b.off ? `none: ${b.off}` : b.ready ? `${who}, version ${count(b.version)}, ${age(b.age_ms)} ago` : `not ready: ${b.failure || `${who} ${kept.length > 1 ? "are" : "is"} told all of it`}`);
    this.set("kept", "shards kept", kept.length ? kept.map(keeps).join("; ") : null);
    this.set("mirrored", "told the replica", b && b.bytes ? bytes(b.bytes) + (b.took_seconds ? `, the last in ${span(1000 * b.took_seconds)}` : "") : null);
    attr(this.facts.replica.box, "data-level", b && !b.off && !b.ready ? "warning" : null);
  }
}

/** keeps says whose shards a ps keeps, and why it does not. */
function keeps(k) {
  return `${k.server}: ${k.of.map((id) => (id === k.server ? "its own" : `those of ${id}`)).join(" and ")}${k.failure ? ` (not: ${k.failure})` : k.ready ? "" : " (not ready)"}`;
}

/** middle shortens a long name in its middle: names of several jobs differ at their ends, as a rule. */
function middle(name) {
  return name.length > 30 ? `${name.slice(0, 16)}…${name.slice(-13)}` : name;
}

/** empty says what to do where no job is there. */
export function empty(status) {
  const box = byId("empty");
  const none = !(status.jobs || []).length;
  show(box, none);
  const server = (status.servers || []).find((s) => s.id === status.server) || (status.servers || [])[0];
  const where = server && server.url ? server.url : "";
  if (!none || box.where === where) return;
  box.where = where;
  const at = !where || where.includes("127.0.0.1:4222") ? "" : ` --server ${where}`;
  box.replaceChildren(
    el("h2", null, "Nothing trains here yet"),
    el("p", null, "The server is up. The first trainer of a job registers it, and this page shows it at once. For example, from a checkout on this machine:"),
    command(`./bin/trainer packages --spawn --trainers 2${at}`, "A job of two trainers, which learn the sections of Debian's packages from this machine's own index."),
  );
}

function command(line, what) {
  const copy = el("button", { type: "button", class: "small" }, "copy");
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(line);
      text(copy, "copied");
    } catch {
      text(copy, "select it"); // the clipboard is refused to pages that came without TLS
    }
    setTimeout(() => text(copy, "copy"), 2000);
  });
  return el("div", { class: "command" }, el("p", null, el("code", null, line), copy), el("p", { class: "quiet" }, what));
}
