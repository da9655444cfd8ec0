// JSON as a tree that opens and closes. Children are made when they are first looked at.

import { below, inside } from "./compare.js";
import * as format from "./format.js";
import { html, link, Widget } from "./html.js";
import { Exact, isContainer } from "./json.js";

const OPEN_DEPTH = 3; // levels that are open at first
const CHILDREN = 100; // shown at once; the rest on demand
const TEXT = 2000; // characters of a text shown at once
const OPEN_ITEMS = 30; // containers with more start closed below the first level

/** Return the tree of a value. `marks`: what differs, by path (see compare.js). */
export const tree = (value, marks) => html`
  <div class="tree" translate="no">${node(null, value, "", marks, 0)}</div>`;

function node(name, value, path, marks, depth) {
  const entries = isContainer(value) ? Object.entries(value) : [];
  const key = name !== null && html`<span class="key">${name}: </span>`;
  if (entries.length) return html`<${Branch} key=${path} ...${{ label: key, value, entries, path, marks, depth }} />`;
  const shown = isContainer(value) ? (Array.isArray(value) ? "[]" : "{}") : scalar(value);
  return html`<div key=${path} class="leaf" data-mark=${marks?.get(path)}>${key}${shown}</div>`;
}

class Branch extends Widget {
  constructor(props) {
    super(props);
    const { entries, path, marks, depth } = props;
    const isSmall = depth < 1 || entries.length <= OPEN_ITEMS;
    this.open = (depth < OPEN_DEPTH && isSmall) || Boolean(marks?.has(inside(path)));
    this.state = { isMade: this.open, shown: CHILDREN };
  }

  render({ label, value, entries, path, marks, depth }, { isMade, shown }) {
    const isList = Array.isArray(value);
    const left = entries.length - shown;
    const called = [value.name, value.uri, value.uriTemplate].find((each) => typeof each === "string");
    const make = () => this.setState({ isMade: true });
    return html`
      <details data-mark=${marks?.get(path)} open=${this.open} ontoggle=${isMade ? null : make}>
        <summary>
          ${label}<span class="shape">${isList ? `[${entries.length}]` : `{${entries.length}}`}</span>
          ${!isList && html`<span class="preview">
            ${called ?? entries.slice(0, 5).map(([name]) => name).join(", ")}
          </span>`}
        </summary>
        ${isMade && html`
          <div class="children">
            ${entries.slice(0, shown).map(([name, child]) => node(name, child, below(path, name), marks, depth + 1))}
            ${left > 0 && link(`Show ${Math.min(CHILDREN, left)} more of ${format.count(left)}`,
              () => this.setState({ shown: shown + CHILDREN }))}
          </div>`}
      </details>`;
  }
}

function scalar(value) {
  if (value instanceof Exact) return html`<span class="number">${value.source}</span>`;
  if (typeof value === "string") return html`<${Text} value=${value} />`;
  return html`<span class=${value === null ? "null" : typeof value}>${String(value)}</span>`;
}

class Text extends Widget {
  render({ value }, { isWhole = value.length <= TEXT }) {
    const show = () => this.setState({ isWhole: true });
    return html`
      <span class="string">${JSON.stringify(isWhole ? value : value.slice(0, TEXT))}</span>
      ${!isWhole && link(`Show all ${format.count(value.length)} characters`, show)}`;
  }
}
