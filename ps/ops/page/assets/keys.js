// Keys, the help that lists them, and the theme.

import { attr, byId, el, text } from "./dom.js";

const SECTIONS = { w: ["why", "what is wrong"], t: ["h-trainers", "trainers"], s: ["h-shards", "shards"], g: ["h-gpus", "GPUs"], v: ["h-servers", "servers"], e: ["h-events", "events"] };

function kept(name) {
  try {
    return localStorage.getItem("gradbus." + name);
  } catch {
    return null; // storage may be refused
  }
}

function keep(name, value) {
  try {
    if (value === null) localStorage.removeItem("gradbus." + name);
    else localStorage.setItem("gradbus." + name, value);
  } catch {
    // then it holds for as long as the page is open
  }
}

/** Keys owns shortcuts, the help and the switch of themes. actions: {range(i), log(), live(), job(by), retry(), recolor()}. */
export class Keys {
  constructor(actions) {
    this.actions = actions;
    this.on = kept("keys") !== "off";
    this.dialog = byId("help");
    this.theme = byId("theme");
    this.theme.addEventListener("click", () => this.nextTheme());
    byId("help-open").addEventListener("click", () => this.dialog.showModal());
    this.fillHelp();
    this.sayTheme();
    addEventListener("keydown", (e) => this.press(e));
  }

  sayTheme() {
    text(this.theme, "theme: " + (document.documentElement.dataset.theme || "system"));
  }

  nextTheme() {
    const root = document.documentElement;
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const other = system === "dark" ? "light" : "dark";
    // From the system's to the other one, so that the first press is seen; then to the system's own, held; then free again.
    const next = { undefined: other, [other]: system, [system]: undefined }[root.dataset.theme];
    if (next) root.dataset.theme = next;
    else delete root.dataset.theme;
    keep("theme", next || null);
    this.sayTheme();
    this.actions.recolor();
  }

  press(e) {
    if (e.defaultPrevented || e.ctrlKey || e.metaKey || e.altKey || /^(input|select|textarea)$/i.test(e.target.tagName)) return;
    if (e.key === "Escape") return this.actions.live();
    if (e.key === "?") {
      e.preventDefault();
      return this.dialog.open ? this.dialog.close() : this.dialog.showModal();
    }
    if (!this.on || this.dialog.open) return;
    const a = this.actions;
    if (e.key >= "1" && e.key <= "4") a.range(Number(e.key) - 1);
    else if (e.key === "l") a.log();
    else if (e.key === "d") this.nextTheme();
    else if (e.key === "r") a.retry();
    else if (e.key === "[" || e.key === "]") a.job(e.key === "]" ? 1 : -1);
    else if (SECTIONS[e.key]) this.go(SECTIONS[e.key][0]);
    else return;
    e.preventDefault();
  }

  go(id) {
    const target = byId(id);
    if (!target || target.closest("[hidden]")) return;
    target.scrollIntoView({ block: "start" });
    target.focus({ preventScroll: true });
  }

  fillHelp() {
    const rows = [
      ["1 2 3 4", "time range: 10 min, 1 h, 6 h, all"],
      ["l", "loss: logarithmic scale"],
      ["Esc", "charts back to the present"],
      ["[ ]", "job before, job after"],
      ...Object.entries(SECTIONS).map(([k, v]) => [k, "go to " + v[1]]),
      ["d", "dark, light, or as the system"],
      ["r", "connect again now"],
      ["?", "this help"],
    ];
    const box = el("input", { type: "checkbox", id: "keys-on" });
    box.checked = this.on;
    box.addEventListener("change", () => {
      this.on = box.checked;
      keep("keys", this.on ? null : "off");
    });
    this.dialog.append(
      el("h2", { id: "help-title" }, "Keys"),
      el("dl", { class: "keys" }, ...rows.map(([k, what]) => el("div", null, el("dt", null, ...k.split(" ").map((c) => el("kbd", null, c))), el("dd", null, what)))),
      el("p", null, el("label", { for: "keys-on" }, box, " single keys are on")),
      el("p", { class: "quiet" }, "Drag over a chart to look at a stretch of time. Heads of columns sort: once, the other way, then back to trouble first. A figure that is older than three seconds says how old; times are by the clock of the server, in the zone of this machine."),
      el("form", { method: "dialog" }, el("button", { type: "submit", autofocus: true }, "Close")),
    );
    this.dialog.addEventListener("click", (e) => e.target === this.dialog && this.dialog.close());
    attr(this.dialog, "aria-modal", "true");
  }
}
