// JSON as a tree that opens and closes. Children are made when they are first looked at.

import { below, inside } from "./compare.js";
import { h } from "./dom.js";
import { Exact } from "./json.js";

const OPEN_DEPTH = 3; // levels that are open at first
const CHILDREN = 100; // shown at once; the rest on demand
const TEXT = 2000; // characters of a text shown at once
const OPEN_ITEMS = 30; // containers with more start closed below the first level

/** The element for a value. `marks`: what differs, by path (see compare.js). */
export function tree(value, marks) {
  return h("div", { class: "tree", translate: "no" }, node(null, value, "", marks, 0));
}

function node(key, value, path, marks, depth) {
  if (value !== null && typeof value === "object" && !(value instanceof Exact)) return branch(key, value, path, marks, depth);
  return h("div", { class: "leaf", "data-mark": marks?.get(path) }, label(key), scalar(value));
}

function label(key) {
  return key === null ? null : h("span", { class: "key" }, `${key}: `);
}

function branch(key, value, path, marks, depth) {
  const isList = Array.isArray(value);
  const entries = Object.entries(value);
  if (!entries.length) return h("div", { class: "leaf", "data-mark": marks?.get(path) }, label(key), isList ? "[]" : "{}");
  const details = h("details", { "data-mark": marks?.get(path) },
    h("summary", {}, label(key), h("span", { class: "shape" }, isList ? `[${entries.length}]` : `{${entries.length}}`), preview(value, isList)));
  let made = false;
  const make = () => {
    if (made || !details.open) return;
    made = true;
    const children = h("div", { class: "children" });
    details.append(children);
    fill(children, entries, path, marks, depth, 0);
  };
  details.addEventListener("toggle", make);
  details.open = depth < OPEN_DEPTH && (depth < 1 || entries.length <= OPEN_ITEMS) || Boolean(marks?.has(inside(path)));
  make();
  return details;
}

function fill(children, entries, path, marks, depth, from) {
  const to = Math.min(entries.length, from + CHILDREN);
  for (const [name, child] of entries.slice(from, to)) children.append(node(name, child, below(path, name), marks, depth + 1));
  if (to === entries.length) return;
  const more = h("button", { class: "more", onclick: () => {
    more.remove();
    fill(children, entries, path, marks, depth, to);
  } }, `Show ${Math.min(CHILDREN, entries.length - to)} more of ${entries.length - to}`);
  children.append(more);
}

function preview(value, isList) {
  if (isList) return null;
  const keys = Object.keys(value).slice(0, 5).join(", ");
  return h("span", { class: "preview" }, keys);
}

function scalar(value) {
  if (value instanceof Exact) return h("span", { class: "number" }, value.source);
  if (typeof value !== "string") return h("span", { class: value === null ? "null" : typeof value }, String(value));
  if (value.length <= TEXT) return h("span", { class: "string" }, JSON.stringify(value));
  const text = h("span", { class: "string" }, JSON.stringify(value.slice(0, TEXT)));
  const more = h("button", { class: "more", onclick: () => {
    text.textContent = JSON.stringify(value);
    more.remove();
  } }, `Show all ${value.length.toLocaleString()} characters`);
  return h("span", {}, text, " ", more);
}
