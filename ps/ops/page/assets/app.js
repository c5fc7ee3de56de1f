// Wires the page: updates come in, and each part shows what it owns of them. While the page is hidden only its title
// changes; what was missed is drawn when it is seen again.

import { age, clock, span, zone } from "./format.js";
import { attr, byId, el, icon, show, text } from "./dom.js";
import { get, login, Stream } from "./stream.js";
import { History } from "./history.js";
import { Charts, RANGES } from "./charts.js";
import { Tables } from "./tables.js";
import { Sentence } from "./sentence.js";
import { empty, Jobs } from "./jobs.js";
import { Events } from "./events.js";
import { Keys } from "./keys.js";

const MARK_LEVELS = ["warning", "critical"];

class App {
  constructor() {
    this.status = null;
    this.history = null;
    this.connection = { state: "connecting" };
    this.drawing = false;
    this.jobs = new Jobs({ onChoose: () => this.later() });
    this.sentence = new Sentence({ onJob: (name) => this.jobs.choose(name) });
    this.charts = new Charts({});
    this.tables = new Tables();
    this.events = new Events({});
    this.keys = new Keys({
      range: (i) => this.charts.setRange(RANGES[i]),
      log: () => this.charts.toggleLog(),
      live: () => this.charts.zoom && this.charts.setRange(this.charts.range),
      job: (by) => this.jobs.step(by),
      retry: () => this.stream.retry(),
      recolor: () => this.charts.recolor(),
    });
    this.stream = new Stream({ onUpdate: (u) => this.take(u), onState: (s) => this.connected(s) });
    this.lostBar();
    byId("token-form").addEventListener("submit", (e) => this.logIn(e));
    document.addEventListener("visibilitychange", () => document.hidden || (this.stream.retry(), this.later()));
    addEventListener("online", () => this.stream.retry());
    setInterval(() => this.tick(), 1000);
    this.stream.start();
  }

  async logIn(e) {
    e.preventDefault();
    const field = byId("token");
    const wrong = await login(field.value.trim());
    field.value = "";
    if (!wrong) return this.stream.start();
    text(byId("token-text"), wrong);
    field.focus();
  }

  /** take keeps an update; drawing it waits for the next frame, and for the page to be seen. */
  take(update) {
    const { status } = update;
    const again = this.status && (status.serial < this.status.serial || status.server !== this.status.server);
    const missed = !this.status || status.serial > this.status.serial + 1;
    if (again) {
      this.events.restart();
      this.history = null;
    }
    this.status = status;
    if (again || missed) this.events.missed();
    this.events.take(update.events, status.now_ms);
    if (this.events.gap) this.askEvents();
    const point = this.history && (update.points || {})[this.history.job];
    if (point && this.history.askedAt && this.history.add(point)) this.askSeries(this.history);
    this.later();
  }

  /** askEvents fills the gap among the events; where that fails, a later update asks again. */
  async askEvents() {
    if (this.askingEvents || Date.now() - (this.eventsFailedAt || 0) < 2000) return;
    this.askingEvents = true;
    const { gap } = this.events;
    try {
      const answer = await get(`api/v1/events?since=${gap.since}`);
      const { events } = await answer.json();
      if (gap !== this.events.gap) return; // the server was started again, or more is missing meanwhile
      this.events.fill(events, this.status.now_ms);
      this.later();
    } catch {
      this.eventsFailedAt = Date.now(); // the stream says what is wrong with the server
    } finally {
      this.askingEvents = false;
    }
  }

  async askSeries(history) {
    if (history.asking) return;
    history.asking = true;
    try {
      const answer = await get(`api/v1/series?job=${encodeURIComponent(history.job)}&since=0`);
      history.take(await answer.json());
      this.later();
    } catch {
      history.failedAt = Date.now();
    } finally {
      history.asking = false;
    }
  }

  later() {
    if (!this.status) return;
    if (document.hidden) return this.sentence.tab(this.status.why.level, this.status.why.text);
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      this.draw();
    });
  }

  draw() {
    const { status } = this;
    const job = this.jobs.update(status);
    this.sentence.update(status, job && job.name);
    empty(status);
    this.jobs.line(job, status);
    if (job && (!this.history || this.history.job !== job.series || this.history.run !== job.run_id)) {
      this.history = new History(job.series);
      this.history.run = job.run_id;
    }
    if (job && !this.history.askedAt && Date.now() - (this.history.failedAt || 0) > 2000) this.askSeries(this.history);
    const told = job && (job.phase === "running" || job.batch > 0);
    show(byId("charts"), Boolean(told));
    // The charts of a job that has ended stay at its end.
    if (told) this.charts.draw(this.history, job.phase === "ended" && job.ended_ms ? job.ended_ms : status.now_ms, this.events.marks(job.name), this.spans(job));
    this.tables.update(status, job);
    text(byId("foot"), `${status.server} · gradbus ${status.version} · times in ${zone()}`);
  }

  /** spans are the job's problems of now, which charts shade from their beginning on. */
  spans(job) {
    if (job.phase === "ended") return [];
    const of = (this.status.problems || []).filter((p) => MARK_LEVELS.includes(p.level) && p.since_ms && p.job === job.name);
    if (!of.length) return [];
    const first = of.reduce((a, p) => (p.since_ms < a.since_ms ? p : a));
    return [{ from: first.since_ms, level: of.some((p) => p.level === "critical") ? "critical" : "warning" }];
  }

  lostBar() {
    this.lostSign = el("p", null);
    this.lostText = el("span", null);
    this.lostSign.append(icon("lost"), this.lostText);
    byId("lost").append(this.lostSign, el("button", { type: "button", on: { click: () => this.stream.retry() } }, "Try now"));
  }

  connected(state) {
    const before = this.connection.state;
    this.connection = state;
    attr(byId("live"), "data-state", state.state);
    document.body.classList.toggle("lost", state.state === "lost" && this.status !== null);
    show(byId("token-form"), state.state === "token");
    for (const id of ["main", "foot"]) show(byId(id), state.state !== "token");
    if (state.state === "token") show(byId("jobs"), false);
    show(byId("lost"), state.state === "lost");
    if (state.state === "token") {
      text(byId("token-text"), "It shows its jobs to those only who have it.");
      if (before !== "token") byId("token").focus();
    }
    if (state.state === "lost" && before !== "lost") byId("alarm").textContent = "The stream from the server is lost: " + state.why;
    if (state.state === "live" && before === "lost") byId("alarm").textContent = "The stream from the server is back.";
    this.tick();
  }

  tick() {
    const c = this.connection;
    text(byId("live-text"), c.state === "live" ? "live" : c.state === "lost" ? "stream lost" : c.state === "token" ? "token wanted" : "connecting");
    if (c.state !== "lost") return;
    const wait = Math.max(0, c.retryAt - Date.now());
    const when = c.since && this.status ? `Stream lost: what is shown is of ${clock(this.status.now_ms, this.status.now_ms)}, ${age(Date.now() - c.since)} ago. ` : c.status ? "" : "No answer from the server yet. ";
    text(this.lostText, `${when}${c.status ? `It answered ${c.status}: ${c.why}` : c.why[0].toUpperCase() + c.why.slice(1)}. ${wait > 500 ? `Trying again in ${span(Math.ceil(wait / 1000) * 1000).replace(".0", "")}.` : "Trying now."}`);
    if (!this.status) {
      attr(byId("why"), "data-level", "unknown");
      text(byId("why-level"), c.status ? "Refused" : "No answer");
      text(byId("why-text"), c.status ? `The server refuses: ${c.why}` : "The server cannot be reached.");
    }
    this.sentence.tab("lost", "stream lost");
  }
}

new App();
