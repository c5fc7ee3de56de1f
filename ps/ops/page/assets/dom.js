// The only way from data to the document. Names of hosts, jobs and members come from any client of the server, so text
// goes in as text only; nothing here, or anywhere on the page, parses HTML.

/** el makes an element: el("td", {class: "num"}, "text", child). Attributes that are null are left out. */
export function el(name, attrs, ...children) {
  const e = document.createElement(name);
  for (const k in attrs) {
    const v = attrs[k];
    if (v === null || v === undefined || v === false) continue;
    if (k === "on") for (const type in v) e.addEventListener(type, v[type]);
    else e.setAttribute(k, v === true ? "" : v);
  }
  for (const c of children) if (c !== null && c !== undefined) e.append(c);
  return e;
}

export const byId = (id) => document.getElementById(id);

/** text sets an element's text where it is another, so that what did not change costs no layout and keeps its selection. */
export function text(e, s) {
  if (e.shown !== s) {
    e.shown = s;
    e.textContent = s;
  }
}

/** attr sets an attribute where it is another; null removes it. */
export function attr(e, name, v) {
  if (v === null || v === undefined) {
    if (e.hasAttribute(name)) e.removeAttribute(name);
  } else if (e.getAttribute(name) !== String(v)) e.setAttribute(name, v);
}

/** show hides or shows. */
export function show(e, on) {
  if (e.hidden === on) e.hidden = !on;
}

/** share sets the length of a bar, 0 to 1. */
export function share(e, v) {
  const s = Math.round(Math.min(1, Math.max(0, v || 0)) * 1000) / 10 + "%";
  if (e.share !== s) {
    e.share = s;
    e.style.setProperty("--v", s);
  }
}

const SVG = "http://www.w3.org/2000/svg";
const ICONS = ["ok", "info", "warning", "critical", "unknown", "lost"];

/** icon makes the sign of a level: each has its own shape, not only its colour. */
export function icon(level) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return setIcon(svg, level);
}

export function setIcon(svg, level) {
  const name = ICONS.includes(level) ? level : "unknown";
  if (svg.level !== name) {
    svg.level = name;
    svg.firstChild.setAttribute("href", "#i-" + name);
  }
  return svg;
}

/** link makes a link to another server's page where its address is one of http or https, and plain text where it is not. */
export function link(address) {
  let url = null;
  try {
    url = new URL(address);
  } catch {
    return document.createTextNode(address);
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") return document.createTextNode(address);
  return el("a", { href: url.href, rel: "noreferrer noopener" }, url.host);
}

/** levelOf is a level that is known; anything else is unknown. */
export function levelOf(level) {
  return ICONS.includes(level) ? level : "unknown";
}
