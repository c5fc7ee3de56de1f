// What each table shows of a row, in order of use: on a narrow screen the first columns are what is seen first.

import { NONE, age, bytes, clock, count, figure, flow, percent, rate, real, seconds, span } from "./format.js";
import { attr, byId, el, icon, levelOf, link, show, text } from "./dom.js";
import { Table, bar, stack, state } from "./table.js";

const STALE_MS = 3000;
const WORST = { critical: 0, warning: 1, unknown: 2, info: 3, ok: 4 };

const badness = (r) => WORST[levelOf(r.level)];
const byName = (a, b) => String(a).localeCompare(String(b), undefined, { numeric: true });
const processors = (v) => (real(v) === null ? NONE : real(v).toFixed(2));
const load = (v) => (real(v) === null ? NONE : percent(v));
const heard = { id: "heard", title: "Heard", hint: "Time since it last spoke", num: true, cls: "heard", value: (r) => r.age_ms, text: (r) => (r.over ? NONE : r.age_ms > STALE_MS ? age(r.age_ms) + " ago" : "now") };

const DISK_STALE_MS = 30000; // they are asked every ten seconds

/** tight is the file system that has least left beyond what is needed; undefined where a process writes nowhere. */
const tight = (r) => (r.disks || []).reduce((w, d) => (!w || spare(d) < spare(w) ? d : w), undefined);
const spare = (d) => d.free_bytes - (d.need_bytes || 0);
const asked = (d) => (d.age_ms > DISK_STALE_MS ? `, ${age(d.age_ms)} ago` : "");
const onDisk = (d) => `${d.path}${d.use ? ` (${d.use})` : ""} ${bytes(d.free_bytes)} of ${bytes(d.total_bytes)}${d.need_bytes ? `, a model needs ${bytes(d.need_bytes)}` : ""}${asked(d)}`;
const disk = { id: "disk", title: "Disk free", hint: "Where it writes to: models, curves, what is wrong with GPUs", num: true, where: (r) => (r.disks || []).length > 0,
  value: (r) => tight(r)?.free_bytes ?? null, draw: (c, r) => named(c, tight(r) ? bytes(tight(r).free_bytes) + asked(tight(r)) : NONE, (r.disks || []).map(onDisk).join("; ")) };

/** trainers: the ones in trouble first. */
function trainers() {
  return new Table({
    section: "trainers", title: "Trainers", noun: "trainers", limit: 12, first: true, key: (t) => t.member,
    order: (a, b) => badness(a) - badness(b) || byName(a.member, b.member),
    columns: [
      { id: "member", title: "Trainer", value: (t) => t.member, text: (t) => t.member },
      { id: "state", title: "State", value: (t) => badness(t), draw: (c, t) => state(c, levelOf(t.level), t.state) },
      { id: "batch", title: "Batch", num: true, value: (t) => t.batch, text: (t) => count(t.batch) },
      { id: "held", title: "Holds up", hint: "For how long others have waited for it", num: true, cls: "held", value: (t) => t.held_ms, text: (t) => (t.held_ms ? age(t.held_ms) : NONE) },
      { id: "doing", title: "Doing", hint: "What it does or waits for at this moment, and for how long", cls: "words", value: (t) => t.doing, text: (t) => doing(t) },
      heard,
      { id: "samples", title: "Samples/s", num: true, value: (t) => real(t.samples_per_second), text: (t) => rate(t.samples_per_second) },
      { id: "loss", title: "Loss", num: true, value: (t) => real(t.loss), text: (t) => figure(t.loss) },
      { id: "skipped", title: "Skipped", hint: "Lanes that were left out of their batch because a gradient was not finite", num: true, where: (t) => t.lanes_skipped, value: (t) => t.lanes_skipped || 0, text: (t) => count(t.lanes_skipped || 0) },
      { id: "phases", title: "Time", hint: "Shares of its time: keys, lookup, compute, send, result, as in the chart", value: (t) => real(t.phases.compute), draw: (c, t) => stack(c, phases(t.phases).map((p) => p[1]), phases(t.phases).map((p) => `${p[0]} ${percent(p[1])}`).join(", ")) },
      { id: "pending", title: "In flight", hint: "Bytes sent and not acknowledged, of its windows", num: true, value: (t) => t.pending_bytes, draw: (c, t) => bar(c, t.window_bytes ? t.pending_bytes / t.window_bytes : 0, bytes(t.pending_bytes)) },
      { id: "sent", title: "Out", num: true, value: (t) => real(t.sent_per_second), text: (t) => flow(t.sent_per_second) },
      { id: "received", title: "In", num: true, value: (t) => real(t.received_per_second), text: (t) => flow(t.received_per_second) },
      { id: "rtt", title: "Round trip", hint: "From a frame until it is known to have come, the worst of its links", num: true, value: (t) => real(t.round_trip_seconds), text: (t) => seconds(t.round_trip_seconds) },
      { id: "resent", title: "Resent/s", num: true, value: (t) => real(t.resent_per_second), text: (t) => rate(t.resent_per_second) },
      { id: "cpu", title: "CPU", hint: "Processors' worth of time", num: true, value: (t) => real(t.cpu), text: (t) => processors(t.cpu) },
      { id: "memory", title: "Memory", num: true, value: (t) => t.resident_bytes, text: (t) => (t.resident_bytes ? bytes(t.resident_bytes) : NONE) },
      { id: "verified", title: "Verified", hint: "Blocks that it computed again, and those that differed", num: true, where: (r) => r.verified, value: (t) => t.mismatches, text: (t) => (t.verified ? `${count(t.verified)}, ${count(t.mismatches)} differ` : NONE) },
      disk,
      { id: "host", title: "Host", cls: "name", value: (t) => t.host, draw: (c, t) => named(c, t.host || NONE, [t.pid ? "pid " + t.pid : "", t.backend].filter(Boolean).join(", ")) },
    ],
  });
}

function doing(t) {
  if (!t.doing) return NONE;
  return t.doing + (t.shard !== undefined && t.shard !== null ? ` of s${t.shard}` : "") + (t.doing_ms >= 1000 ? `, ${age(t.doing_ms)}` : "");
}

const phases = (p) => ["keys", "lookup", "compute", "send", "result"].map((n) => [n, real(p[n]) || 0]);

function named(cell, words, more) {
  text(cell, words);
  attr(cell, "title", more ? `${words}: ${more}` : words);
}

function shards() {
  return new Table({
    section: "shards", title: "Shards", noun: "shards", limit: 8, first: true, key: (s) => s.member,
    order: (a, b) => badness(a) - badness(b) || byName(a.member, b.member),
    columns: [
      { id: "member", title: "Shard", value: (s) => s.member, text: (s) => s.member },
      { id: "state", title: "State", value: (s) => badness(s), draw: (c, s) => state(c, levelOf(s.level), !s.ready ? "not ready" : s.idle ? "idle" : s.waits_for && s.waits_for.length && s.waits_ms > 1000 ? "waits" : "serves") },
      { id: "version", title: "Version", num: true, value: (s) => s.version, text: (s) => count(s.version) },
      { id: "load", title: "Load", hint: "Share of one processor's time spent in steps and publishing", num: true, value: (s) => real(s.load), draw: (c, s) => bar(c, real(s.load), load(s.load)) },
      { id: "waits", title: "Waits for", hint: "Trainers that its open rounds lack", cls: "words", value: (s) => s.waits_ms, text: (s) => waits(s) },
      heard,
      { id: "bytes", title: "In", num: true, value: (s) => real(s.bytes_per_second), text: (s) => flow(s.bytes_per_second) },
      { id: "rounds", title: "Rounds/s", num: true, value: (s) => real(s.rounds_per_second), text: (s) => rate(s.rounds_per_second) },
      { id: "staged", title: "Staged", hint: "Gradients of open rounds, of what they may hold", num: true, value: (s) => s.staged_bytes, draw: (c, s) => bar(c, s.staged_bytes_max ? s.staged_bytes / s.staged_bytes_max : 0, bytes(s.staged_bytes)) },
      { id: "queue", title: "Queue", num: true, value: (s) => s.queue_bytes, text: (s) => bytes(s.queue_bytes) },
      { id: "held", title: "Held", hint: "Rows, parameters and gradients that it holds", num: true, value: (s) => s.held_bytes, text: (s) => bytes(s.held_bytes) },
      { id: "memory", title: "Promised", hint: "Memory that it may hold at most", num: true, value: (s) => s.memory_bytes, text: (s) => bytes(s.memory_bytes) },
      { id: "server", title: "Server", cls: "name", value: (s) => s.server, draw: (c, s) => named(c, s.server) },
    ],
  });
}

function waits(s) {
  if (s.idle) return `idle: ${s.idle}`;
  if (!s.waits_for || !s.waits_for.length || s.waits_ms < 1000) return NONE;
  const some = s.waits_for.slice(0, 3).join(", ") + (s.waits_for.length > 3 ? ` and ${s.waits_for.length - 3} more` : "");
  return `${some}, batch ${count(s.waits_batch)}, ${age(s.waits_ms)}`;
}

/** gpuLevel is what the sign of a GPU shows: of one that no process can ask or find, that nothing is known. */
function gpuLevel(g) {
  const level = levelOf(g.level);
  return level === "info" || (level === "ok" && g.state !== "healthy") ? "unknown" : level;
}

function gpus() {
  return new Table({
    section: "gpus", title: "GPUs", noun: "GPUs", limit: 8, key: (g) => `${g.host} ${g.uuid || g.index}`,
    order: (a, b) => badness(a) - badness(b) || byName(a.host, b.host) || a.index - b.index,
    columns: [
      { id: "gpu", title: "GPU", value: (g) => `${g.host} ${g.index}`, draw: (c, g) => gpuName(c, g) },
      { id: "state", title: "State", value: (g) => badness(g), draw: (c, g) => gpuState(c, g) },
      { id: "reason", title: "Why, and what to do", cls: "words long", value: (g) => g.code, draw: (c, g) => reason(c, g) },
      { id: "since", title: "Since", num: true, value: (g) => g.since_ms, text: (g) => (g.since_ms && g.state !== "healthy" ? `${clock(g.since_ms, g.now)}, ${age(Math.max(0, g.now - g.since_ms))}` : NONE) },
      heard,
      { id: "users", title: "Used by", cls: "words", value: (g) => (g.users || []).join(), text: (g) => (g.users && g.users.length ? g.users.slice(0, 3).join(", ") + (g.users.length > 3 ? ` +${g.users.length - 3}` : "") : NONE) },
      { id: "util", title: "Busy", num: true, value: (g) => real(g.utilisation_ratio), draw: (c, g) => bar(c, real(g.utilisation_ratio), load(g.utilisation_ratio)) },
      { id: "memory", title: "Memory", num: true, value: (g) => g.memory_used_bytes ?? null, draw: (c, g) => bar(c, g.memory_total_bytes ? (g.memory_used_bytes || 0) / g.memory_total_bytes : 0, bytes(g.memory_used_bytes)) },
      { id: "temp", title: "Temp.", num: true, value: (g) => real(g.temperature_celsius), text: (g) => unit(g.temperature_celsius, " °C") },
      { id: "power", title: "Power", num: true, value: (g) => real(g.power_watts), text: (g) => unit(g.power_watts, " W") },
      { id: "clock", title: "SM clock", num: true, value: (g) => g.sm_clock_hz ?? null, text: (g) => (g.sm_clock_hz ? count(g.sm_clock_hz / 1e6) + " MHz" : NONE) },
      { id: "ecc", title: "ECC", hint: "Uncorrected and corrected memory errors since the driver was loaded", num: true, value: (g) => g.ecc_uncorrected ?? null, text: (g) => (g.ecc_uncorrected === undefined && g.ecc_corrected === undefined ? NONE : `${count(g.ecc_uncorrected)} / ${count(g.ecc_corrected)}`) },
      { id: "xid", title: "XIDs", cls: "words", text: (g) => Object.entries(g.xids || {}).map(([x, n]) => (n > 1 ? `${x} ×${count(n)}` : x)).join(", ") || NONE },
    ],
  });
}

const unit = (v, u) => (real(v) === null ? NONE : count(v) + u);

function gpuName(cell, g) {
  text(cell, `${g.host} / ${g.index}`);
  attr(cell, "title", [g.name, g.uuid, g.pci, g.driver ? "driver " + g.driver : ""].filter(Boolean).join(", "));
}

function gpuState(cell, g) {
  state(cell, gpuLevel(g), g.state);
  if (!cell.badge) cell.firstChild.append((cell.badge = el("span", { class: "badge" }, "injected")));
  show(cell.badge, Boolean(g.injected));
}

function reason(cell, g) {
  if (!cell.why) cell.append((cell.why = el("span", { class: "reason" })), (cell.act = el("span", { class: "action" })));
  text(cell.why, g.reason || NONE);
  text(cell.act, g.action || "");
}

function servers() {
  return new Table({
    section: "servers", title: "Servers", noun: "servers", limit: 8, key: (s) => s.id,
    order: (a, b) => badness(a) - badness(b) || byName(a.id, b.id),
    columns: [
      { id: "id", title: "Server", value: (s) => s.id, draw: (c, s) => named(c, s.state ? `${s.id} ${s.state}` : s.id, `pid ${s.pid} on ${s.host}`) },
      { id: "state", title: "State", value: (s) => badness(s), draw: (c, s) => state(c, levelOf(s.level), s.control_lost ? "control lost" : s.age_ms > STALE_MS ? "silent" : "serves") },
      { id: "page", title: "Page", cls: "words", draw: (c, s) => page(c, s) },
      heard,
      { id: "bytes", title: "In", num: true, value: (s) => real(s.bytes_per_second), text: (s) => flow(s.bytes_per_second) },
      { id: "refused", title: "Refused/s", num: true, value: (s) => real(s.refused_per_second), text: (s) => rate(s.refused_per_second) },
      { id: "reasons", title: "Refused so far", hint: "Frames by reason, since its start; docs/metrics.md has the reasons", cls: "words", draw: (c, s) => refused(c, s) },
      { id: "dropped", title: "Dropped", hint: "Messages lost to slow readers, or damaged", num: true, value: (s) => s.dropped, text: (s) => count(s.dropped) },
      { id: "cpu", title: "CPU", num: true, value: (s) => real(s.cpu), text: (s) => processors(s.cpu) },
      { id: "memory", title: "Memory", num: true, value: (s) => s.resident_bytes, text: (s) => bytes(s.resident_bytes) },
      { id: "promised", title: "Promised", hint: "To jobs, of what they may hold", num: true, value: (s) => s.promised_bytes, draw: (c, s) => bar(c, s.memory_max_bytes ? s.promised_bytes / s.memory_max_bytes : 0, bytes(s.promised_bytes)) },
      { id: "standsby", title: "Replicas for", hint: "The ps whose jobs it would go on with, or whose shards it keeps, and with which versions", cls: "words", where: (s) => s.stands_by, value: (s) => s.stands_by?.url || (s.stands_by?.peers ? OTHERS : ""), draw: (c, s) => primaryCell(c, s.stands_by) },
      disk,
      { id: "verified", title: "Verified", hint: "Blocks that it computed again, and those that differed", num: true, where: (r) => r.verified, value: (s) => s.mismatches, text: (s) => (s.verified ? `${count(s.verified)}, ${count(s.mismatches)} differ` : NONE) },
      { id: "up", title: "Up", num: true, value: (s) => s.now - s.started_ms, text: (s) => span(s.now - s.started_ms) },
      { id: "version", title: "Version", cls: "name", value: (s) => s.version, draw: (c, s) => named(c, s.version, s.backend) },
    ],
  });
}

/** OTHERS are those of one control server that hold replicas for each other. */
const OTHERS = "the others";

/** primaryCell: the other ps, whether it answers, and what is there of its jobs; b is missing where it holds replicas for none. */
function primaryCell(cell, b) {
  if (!b) return named(cell, NONE);
  const reach = b.refused ? `refused: ${b.refused}` : b.reached ? "in reach" : b.peers ? "out of reach" : b.silent_ms ? `silent for ${age(b.silent_ms)}` : "not there yet";
  const jobs = (b.jobs || []).map((j) => `${j.job}${j.of ? ` of ${j.of.join(", ")}` : ""} ${j.version ? `version ${count(j.version)}` : "nothing"}${j.failure || j.lost ? ` (${j.failure || j.lost})` : ""}`);
  named(cell, [`${b.url || OTHERS}, ${reach}`, ...jobs.slice(0, 2)].join("; ") + (jobs.length > 2 ? `; and ${jobs.length - 2} more` : ""), jobs.slice(2).join("; "));
}

function refused(cell, s) {
  const reasons = Object.entries(s.reasons || {}).sort((a, b) => b[1] - a[1]);
  const all = reasons.map(([r, n]) => `${r} ${count(n)}`);
  named(cell, all.slice(0, 2).join(", ") + (all.length > 2 ? ` and ${all.length - 2} more` : "") || NONE, all.slice(2).join(", "));
}

function page(cell, s) {
  const shown = [s.page, s.here, s.near, s.host].join(" ");
  if (cell.page === shown) return;
  cell.page = shown;
  const own = s.page && !s.near && onlyThere(s.page);
  cell.replaceChildren(s.here ? "this one" : own ? `${own} on ${s.host}` : s.page ? link(s.page) : NONE);
  attr(cell, "title", own ? `only that machine reaches it: ssh -L ${own.replace(/^.*:/, "")}:${own} ${s.host}` : null);
}

/** onlyThere is the address of a page that only its own machine reaches; "" of others. */
function onlyThere(address) {
  try {
    const { hostname, host } = new URL(address);
    return hostname === "localhost" || hostname === "[::1]" || hostname.startsWith("127.") ? host : "";
  } catch {
    return "";
  }
}

/** Tables owns the sections of trainers, shards, replicas, GPUs and servers. */
export class Tables {
  constructor() {
    this.trainers = trainers();
    this.shards = shards();
    this.replicas = byId("s-replicas");
    this.gpus = gpus();
    this.servers = servers();
  }

  update(status, job) {
    const stale = (rows, over) => rows.map((r) => ({ ...r, over, stale: !over && r.age_ms > STALE_MS, now: status.now_ms }));
    if (job) {
      const over = job.phase === "ended"; // what is old then is so for good
      this.trainers.update({ rows: stale(job.trainers || [], over).map((t) => (t.state === "free" ? { ...t, over: true, stale: false } : t)), summary: states(job.trainers || []), nothing: "No trainer has joined." });
      if (over && !(job.shards || []).length) this.shards.hide();
      else this.shards.update({ rows: stale(job.shards || [], over), summary: "", nothing: "No shard has told of itself yet." });
      this.digests(job.replicas);
    } else {
      this.trainers.hide();
      this.shards.hide();
      show(this.replicas, false);
    }
    this.gpus.update({ rows: stale(status.gpus || []), summary: states(status.gpus || []), nothing: "No GPU is seen by any process: the arithmetic runs on processors." });
    const machine = (status.servers || []).find((s) => s.id === status.server)?.host;
    const here = stale(status.servers || []).map((s) => ({ ...s, here: s.id === status.server, near: s.host === machine }));
    this.servers.update({ rows: here, summary: here.length > 1 ? `${here.length}` : "", nothing: "No server has told of itself yet." });
  }

  /** digests shows whether the trainers' replicas are equal: one line where they are, all digests where two differ. */
  digests(replicas) {
    show(this.replicas, Boolean(replicas));
    if (!replicas) return;
    if (!this.verdict) {
      this.sign = el("span", { class: "state" });
      this.verdict = el("span", null);
      this.chips = el("p", { class: "chips" });
      this.replicas.append(el("h2", { id: "h-replicas", tabindex: "-1" }, "Replicas"), el("p", { class: "verdict" }, this.sign, this.verdict), this.chips);
    }
    const members = Object.entries(replicas.digests || {}).sort((a, b) => byName(a[0], b[0]));
    const level = members.length < 2 ? "info" : replicas.equal ? "ok" : "critical";
    attr(this.replicas, "data-level", level);
    const words = members.length < 2 ? "no version yet that two trainers told the digest of" : replicas.equal ? `${members.length} replicas are equal at version ${count(replicas.version)}, digest ${members[0][1]}` : `replicas differ at version ${count(replicas.version)}: what is red is not what most have`;
    if (this.sign.level !== level) {
      this.sign.level = level;
      this.sign.replaceChildren(icon(level));
    }
    text(this.verdict, words);
    const digests = replicas.equal ? [] : members;
    const key = JSON.stringify(digests);
    if (key === this.shownDigests) return;
    this.shownDigests = key;
    const most = majority(digests.map((m) => m[1]));
    this.chips.replaceChildren(...digests.map(([m, d]) => el("span", { class: "chip", "data-level": d === most ? "info" : "critical" }, d === most ? null : icon("critical"), el("b", null, m), " ", d)));
  }
}

/** majority is the digest that more than half have; null where none is. */
function majority(digests) {
  const n = new Map();
  for (const d of digests) n.set(d, (n.get(d) || 0) + 1);
  for (const [d, k] of n) if (k > digests.length / 2) return d;
  return null;
}

/** states counts rows by state, the most frequent first: "61 running, 2 waiting, 1 silent". */
function states(rows) {
  const n = new Map();
  for (const r of rows) n.set(r.state, (n.get(r.state) || 0) + 1);
  return [...n].sort((a, b) => b[1] - a[1]).map(([s, k]) => `${count(k)} ${s}`).join(", ");
}
