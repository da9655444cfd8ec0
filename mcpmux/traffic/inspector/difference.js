// Where two exchanges differ, path by path, as mcpmux compares them.

import { h } from "./dom.js";
import * as format from "./format.js";

const LENGTH = 400; // characters of a value
const WORDS = { added: " only on the right", removed: " only on the left", moved: " in another order" };

export const nameOf = (row) => `${row.method ?? "message"} ${row.target ?? ""}`.trim() + `, ${format.time(row.at)}`;

/** `found`: what `/api/exchanges/{row}/differences/{other}` says about two rows. */
export function table(left, right, { differences, incomplete }) {
  const rows = differences.map(({ path, kind, captured, now }) => h("tr", {},
    h("th", { scope: "row", translate: "no" }, path, h("small", {}, WORDS[kind])),
    h("td", { translate: "no" }, cut(captured)), h("td", { translate: "no" }, cut(now))));
  const heading = h("tr", {}, ["Path", nameOf(left), nameOf(right)].map((text) => h("th", { scope: "col" }, text)));
  return h("div", {},
    rows.length ? h("table", {}, h("thead", {}, heading), h("tbody", {}, rows)) : h("p", {}, "They do not differ."),
    h("p", { class: "hint" }, "Cursors, ids of tasks and the like differ each time, and are not compared.",
      incomplete ? " A message that was too large to be kept is not compared either." : ""));
}

function cut(value) {
  if (value === undefined) return "";
  const text = JSON.stringify(value);
  return text.length > LENGTH ? `${text.slice(0, LENGTH)}…` : text;
}
