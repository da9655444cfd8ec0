// The columns of the list of exchanges: what each shows, by which it is sorted, how wide it is, whether it is there.

import * as format from "./format.js";
import { html } from "./html.js";

/** @import { Row } from "./api.js" */

const LEAST_PIXELS = 30; // of a column
const KEPT = "mcpmux widths"; // in the storage of the browser: pixels, 0 for a column that is not shown
const ALWAYS = ["time", "name"]; // which rows have in any case

/**
 * What a column shows of a row. `span`: from when to when the rows in sight last.
 * @typedef {(row: Row, span: [begin: number, end: number]) => unknown} Show
 */
/** @typedef {{of: string, name: string, sort?: string, isNumber?: boolean, show: Show}} Column */
/** @type {Column[]} */
export const COLUMNS = [
  { of: "time", name: "Time", sort: "time", show: (row) => format.time(row.at) },
  { of: "seq", name: "#", isNumber: true, show: ({ exchange }) => exchange && `#${exchange}` },
  { of: "status", name: "Status", show: (row) => format.status(row) },
  { of: "method", name: "Method", show: ({ method }) => method },
  { of: "name", name: "Name", sort: "name", show: about },
  { of: "upstream", name: "Upstream", show: ({ upstreams = [] }) => upstreams.join(", ") },
  { of: "in-view", name: "View", show: ({ view }) => view },
  { of: "client", name: "Client", show: ({ client, leg, peer }) => client ?? (leg === "client" ? peer : "") },
  { of: "duration", name: "Duration", sort: "duration", isNumber: true, show: ({ ms }) => format.duration(ms) },
  { of: "size", name: "Size", sort: "size", isNumber: true, show: ({ size }) => format.size(size) },
  { of: "when", name: "Waterfall", show: when },
];
const DESCENDING = ["duration", "size"]; // at the first click

/** @param {Column} column */
export const classOf = ({ of, isNumber }) => (isNumber ? `${of} number` : of);

/**
 * Return the style of a cell, by which it is shown or not.
 * @param {Column} column
 */
export const styleOf = ({ of }) => `--seen: var(--seen-${of}, visible)`;

/** @type {Show} */
function about({ method, target, words, arguments: given, note }) {
  return html`
    <span class=${target ? "target" : "target instead"} title=${target ?? method}>
      <bdi dir="ltr">${target ?? method}</bdi>
    </span>
    ${words && html`<span class="words" title=${words}>${words}</span>`}
    <span class="arguments" title=${given}>${[note && `— ${note}`, given].filter(Boolean).join(" · ")}</span>`;
}

/** @type {Show} */
function when({ at, ms = 0, status, parts = [] }, [begin, end]) {
  const place = (from, length) => {
    const left = (100 * (from - begin)) / (end - begin);
    return `left: ${left.toFixed(2)}%; width: ${Math.min(100 - left, (100 * length) / (end - begin)).toFixed(2)}%`;
  };
  return html`
    <i class="all" style=${place(at, status === "open" ? end - at : ms)} />
    ${parts.map(([, after, took]) => html`<i class="part" style=${place(at + after, took)} />`)}`;
}

/** Return the next order after a click on a column: one way, the other way, and as it was. */
export function nextSort(now, key) {
  const [first, second] = DESCENDING.includes(key) ? [`-${key}`, key] : [key, `-${key}`];
  return { [first]: second, [second]: "" }[now] ?? first;
}

/** Return the heads of all columns. `sort`: the present order. */
export const heads = (sort, onSort) => html`
  <div class="columns" role="group" aria-label="Columns">
    ${COLUMNS.map((column) => html`
      <span class=${classOf(column)} style=${styleOf(column)}>
        ${column.sort ? html`
          <button aria-pressed=${sort.endsWith(column.sort)} title="Sort by ${column.name.toLowerCase()}"
            onclick=${() => onSort(nextSort(sort, column.sort))}>
            ${column.name}${{ [column.sort]: " ▴", [`-${column.sort}`]: " ▾" }[sort]}
          </button>` : column.name}
        <i class="grip" onpointerdown=${(event) => drag(event, column.of)}
          ondblclick=${() => setWidth(column.of, null)} />
      </span>`)}
  </div>`;

/** Return a button, and what it opens: the columns to choose from. */
export const chooser = () => html`
  <button id="choose" class="button" popovertarget="chosen">Columns</button>
  <div id="chosen" class="chosen" popover role="group" aria-label="Columns that are shown">
    ${COLUMNS.filter(({ of }) => !ALWAYS.includes(of)).map(({ of, name }) => html`
      <label>
        <input type="checkbox" defaultChecked=${read()[of] !== 0}
          onchange=${(event) => setWidth(of, event.target.checked ? null : 0)} /> ${name}
      </label>`)}
  </div>`;

/** Change the width of a column as long as its edge is dragged. */
function drag({ target, clientX, pointerId }, of) {
  const wide = target.parentElement.offsetWidth;
  target.setPointerCapture(pointerId);
  target.onpointermove = (now) => setWidth(of, Math.max(LEAST_PIXELS, wide + now.clientX - clientX));
  target.onpointerup = () => { target.onpointermove = null; };
}

/** Set the width of a column in pixels, here and for the next time; null: as it was made. */
function setWidth(of, pixels) {
  const widths = { ...read(), [of]: pixels ?? undefined };
  localStorage.setItem(KEPT, JSON.stringify(widths));
  showWidths(widths);
}

const read = () => JSON.parse(localStorage.getItem(KEPT) ?? "{}");

/** Give all columns the widths that they have here. */
export function showWidths(widths = read()) {
  const { style } = document.documentElement;
  for (const { of } of COLUMNS) {
    style.setProperty(`--wide-${of}`, widths[of] === undefined ? "" : `${widths[of]}px`); // "" takes it away
    style.setProperty(`--seen-${of}`, widths[of] === 0 ? "hidden" : "");
  }
}
