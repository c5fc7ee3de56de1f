// A table whose rows stay where they are while their cells change. Rows are sorted by a column of one's choice; they change
// places at most every few seconds, and never under the pointer or the focus, so that nothing jumps away while it is read.

import { attr, byId, el, icon, setIcon, share, show, text } from "./dom.js";

const SETTLE_MS = 5000;

/**
 * Table shows rows in a section of the page. columns: [{id, title, hint, num, value(row), text(row), draw(cell, row), where(row)}]:
 * value sorts, text shows, draw does where text is not enough; a column with where is there only while it holds of a row. order(a, b) is the order until a column is chosen.
 */
export class Table {
  constructor({ section, title, columns, order, key, limit, noun, first }) {
    Object.assign(this, { columns, order, key, noun });
    this.limit = limit || Infinity;
    this.section = byId("s-" + section);
    this.rows = new Map();
    this.sortedBy = null;
    this.down = true;
    this.settledAt = 0;
    this.sequence = [];
    this.all = false;
    this.count = el("span", { class: "count" });
    this.body = el("tbody", null);
    this.heads = columns.map((c) => this.head(c));
    const table = el("table", { "aria-labelledby": "h-" + section, class: first ? "pin" : null }, el("thead", null, el("tr", null, ...this.heads)), this.body);
    this.scroll = el("div", { class: "scroll", role: "region", tabindex: "0", "aria-labelledby": "h-" + section }, table);
    this.more = el("button", { type: "button", class: "more", hidden: true, on: { click: () => this.toggleAll() } });
    this.quiet = el("p", { class: "quiet", hidden: true });
    this.section.append(el("h2", { id: "h-" + section, tabindex: "-1" }, title, " ", this.count), this.scroll, this.quiet, this.more);
    this.scroll.addEventListener("pointerenter", () => (this.held = true));
    this.scroll.addEventListener("pointerleave", () => (this.held = false));
  }

  head(c) {
    const button = el("button", { type: "button", title: c.hint || null, on: { click: () => this.sort(c) } }, c.title, el("span", { class: "arrow", "aria-hidden": "true" }));
    return el("th", { scope: "col", class: c.num ? "num" : null }, c.value ? button : el("span", { title: c.hint || null }, c.title));
  }

  sort(c) {
    if (this.sortedBy === c && this.down !== Boolean(c.num)) {
      this.sortedBy = null; // third press: back to the order of trouble
    } else {
      this.down = this.sortedBy === c ? !this.down : Boolean(c.num);
      this.sortedBy = c;
    }
    this.heads.forEach((h, i) => attr(h, "aria-sort", this.columns[i] === this.sortedBy ? (this.down ? "descending" : "ascending") : null));
    this.settledAt = 0;
    this.update(this.latest);
  }

  toggleAll() {
    this.all = !this.all;
    this.settledAt = 0;
    this.update(this.latest);
  }

  /** arrange decides the order of rows, if it is time to. */
  arrange(rows) {
    const trouble = rows.map((r) => this.key(r) + r.level).sort().join();
    const free = !this.held && !this.body.contains(document.activeElement) && Date.now() - this.settledAt > SETTLE_MS;
    if (this.settledAt && trouble === this.trouble && !free) return;
    this.trouble = trouble;
    this.settledAt = Date.now();
    const c = this.sortedBy;
    const by = c
      ? (a, b) => {
          const x = c.value(a);
          const y = c.value(b);
          const d = typeof x === "string" || typeof y === "string" ? String(x).localeCompare(String(y), undefined, { numeric: true }) : (x ?? -Infinity) - (y ?? -Infinity);
          return (this.down ? -d : d) || this.order(a, b);
        }
      : this.order;
    this.sequence = rows.slice().sort(by).map(this.key);
  }

  /** update shows these rows; `summary` stands behind the title, `nothing` instead of an empty table. */
  update(latest) {
    this.latest = latest;
    const { rows, summary, nothing } = latest;
    show(this.section, true);
    text(this.count, summary || "");
    show(this.scroll, rows.length > 0);
    show(this.quiet, rows.length === 0);
    if (!rows.length) text(this.quiet, nothing || "");
    this.arrange(rows);
    this.off = this.columns.map((c) => Boolean(c.where) && !rows.some(c.where));
    this.heads.forEach((h, i) => show(h, !this.off[i]));
    const by = new Map(rows.map((r) => [this.key(r), r]));
    const shown = this.all ? this.sequence : this.sequence.slice(0, this.limit);
    let before = null;
    for (const k of shown) {
      const row = by.get(k);
      if (!row) continue;
      let e = this.rows.get(k);
      if (!e) this.rows.set(k, (e = this.row()));
      this.fill(e, row);
      const next = before ? before.nextSibling : this.body.firstChild;
      if (e.tr !== next) this.body.insertBefore(e.tr, next);
      before = e.tr;
    }
    while (before ? before.nextSibling : this.body.firstChild) (before ? before.nextSibling : this.body.firstChild).remove();
    for (const k of this.rows.keys()) if (!by.has(k)) this.rows.delete(k);
    const hidden = rows.length - this.limit;
    show(this.more, hidden > 0);
    if (hidden > 0) text(this.more, this.all ? `the ${this.limit} that matter most` : `all ${rows.length} ${this.noun}`);
  }

  hide() {
    show(this.section, false);
  }

  row() {
    const cells = this.columns.map((c, i) => el(i === 0 ? "th" : "td", { scope: i === 0 ? "row" : null, "data-column": c.id, class: [c.num ? "num" : "", c.cls || ""].join(" ").trim() || null }));
    return { tr: el("tr", null, ...cells), cells };
  }

  fill(e, row) {
    attr(e.tr, "data-level", row.level || null);
    e.tr.classList.toggle("stale", Boolean(row.stale));
    this.columns.forEach((c, i) => {
      show(e.cells[i], !this.off[i]);
      if (c.draw) c.draw(e.cells[i], row);
      else text(e.cells[i], c.text(row));
    });
  }
}

/** state draws the sign of a level and a word beside it. */
export function state(cell, level, word) {
  if (!cell.word) {
    cell.sign = icon(level);
    cell.word = el("span", null);
    cell.append(el("span", { class: "state" }, cell.sign, cell.word));
  }
  setIcon(cell.sign, level);
  attr(cell, "data-level", level);
  text(cell.word, word);
}

/** bar draws a share with its figure. */
export function bar(cell, v, words) {
  if (!cell.fill) {
    cell.fill = el("i", null);
    cell.word = el("span", null);
    cell.append(el("span", { class: "bar-cell" }, cell.word, el("span", { class: "bar", "aria-hidden": "true" }, cell.fill)));
  }
  share(cell.fill, v);
  text(cell.word, words);
}

/** stack draws shares side by side, each in the colour that the chart of phases has for it. */
export function stack(cell, shares, words) {
  if (!cell.parts) {
    cell.parts = shares.map((_, i) => el("i", { "data-color": "--p" + (i + 1) }));
    cell.append(el("span", { class: "bar stack", role: "img" }, ...cell.parts));
  }
  cell.parts.forEach((p, i) => share(p, shares[i]));
  if (cell.words !== words) {
    cell.words = words;
    cell.firstChild.setAttribute("aria-label", words);
    cell.firstChild.title = words;
  }
}
