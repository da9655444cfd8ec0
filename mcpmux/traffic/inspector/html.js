// Elements as templates that read as HTML. Text is text: nothing that comes from outside is ever read as markup.

import htm from "./vendor/htm.js";
import { Component, createRef, h } from "./vendor/preact.js";

export { createRef };

const EVERY_MS = 2000;

export const html = htm.bind(h);

/**
 * Return a table. `columns`: each with its `name`, what it `show`s of a row, whether that `isNumber` or `isHead` of the
 * row, and more attributes of its `head` and its `cell`s. `keyOf`: the key of a row, where rows come and go.
 */
export const table = (columns, rows, name = "", keyOf = (_row) => null) => html`
  <table class=${name}>
    <thead><tr>
      ${columns.map(({ name: title, isNumber, head }) => html`
        <th scope="col" class=${isNumber && "number"} ...${head}>${title}</th>`)}
    </tr></thead>
    <tbody>
      ${rows.map((row) => html`
        <tr key=${keyOf(row)}>
          ${columns.map(({ show, isNumber, isHead, cell }) => html`
            <${isHead ? "th" : "td"} scope=${isHead && "row"} class=${isNumber && "number"} ...${cell}>
              ${show(row)}
            <//>`)}
        </tr>`)}
    </tbody>
  </table>`;

/** Attributes of cells with a URI or a name that is not translated. */
export const URI = { class: "uri", translate: "no" };

/** Return what is shown when its words are opened. */
export const folded = (words, content, isOpen = false) => html`
  <details class="subscriptions" open=${isOpen}><summary>${words}</summary>${content}</details>`;

/** Return names with their values. Pairs that are null are left out. */
export const facts = (pairs) => html`
  <dl class="facts">
    ${pairs.filter(Boolean).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;

/**
 * Return a card about something: its `name`, `state`, `target`, what is wrong with it, facts in `pairs`, and `more`.
 * `id`: its key.
 */
export const card = ({ id, name, state, target, trouble, pairs }, more = /** @type {any} */ (null)) => html`
  <article key=${id} class="card" data-state=${state}>
    <header>
      <span class="dot" aria-hidden="true" /><h2>${name}</h2><span class="chip" data-state=${state}>${state}</span>
    </header>
    <p class="target" translate="no">${target}</p>
    ${trouble && html`<p class="trouble">${trouble}</p>`}
    ${facts(pairs)}${more}
  </article>`;

/** Return a button. `more`: more attributes of it. */
export const button = (words, act, more = {}) => html`
  <button type="button" class="button" onclick=${act} ...${more}>${words}</button>`;

/** Return a button that stands in a text or a table. */
export const link = (words, act, more = {}) => button(words, act, { class: "more", ...more });

/** Return the options of a `select`: pairs of a value and words. */
export const options = (pairs, chosen = /** @type {any} */ (undefined)) => pairs.map(([value, words]) => html`
  <option key=${value} value=${value} selected=${value === chosen}>${words}</option>`);

/** Return what a colour stands for. `name`: the class that has it. */
export const key = (name, text) => html`<span class="legend ${name}"><i />${text}</span>`;

/** Move to the next or the previous element of a list by an arrow key. */
export function stepByKey(event) {
  const next = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  if (!next || hasModifier(event)) return;
  event.preventDefault();
  document.activeElement?.[next]?.focus?.();
}

/** Return whether a key means something else, as another one is held down. */
export const hasModifier = ({ altKey, ctrlKey, metaKey }) => altKey || ctrlKey || metaKey;

/** Do what a key stands for. `acts`: by the key. */
export function actByKey(event, acts) {
  if (hasModifier(event) || !Object.hasOwn(acts, event.key)) return;
  event.preventDefault();
  acts[event.key]();
}

/** A component whose methods its parent calls. Preact sets a `ref` for elements only; this sets it for itself. */
export class Widget extends Component {
  constructor(props) {
    super(props);
    if (props.ref) props.ref.current = this;
  }

  /** @returns {any} */
  render() {
    return null;
  }

  /** Do something that may fail, and take the state that it returns; with the `problem` when it fails. */
  async attempt(act) {
    try {
      this.setState(await act());
    } catch (problem) {
      this.setState({ problem });
    }
  }
}

/** A text with a button that copies it, or selects it where the browser lets no page copy. */
export class Copyable extends Widget {
  box = createRef();

  render({ text, isLong }, { done }) {
    const copy = () => navigator.clipboard.writeText(text).then(
      () => this.setState({ done: text }), () => getSelection()?.selectAllChildren(this.box.current));
    return html`
      <span class="copyable">
        <${isLong ? "pre" : "code"} ref=${this.box} tabindex=${isLong ? 0 : null} translate="no">${text}<//>
        ${link(done === text ? "Copied" : "Copy", copy)}
      </span>`;
  }
}

/**
 * A table whose heads sort it. `columns`: see `table`, each with the number by which it sorts, if it does: the highest
 * first, then the lowest, then as the rows come.
 */
export class Sorted extends Widget {
  /** @type {any} */
  state = { by: null, way: 1 };

  render({ columns, rows, name: kind }, { by, way }) {
    const { number } = columns.find(({ name }) => name === by) ?? {};
    const sorted = number ? rows.toSorted((one, other) => way * (number(other) - number(one))) : rows;
    const turn = (name) => this.setState(by !== name ? { by: name, way: 1 } : way > 0 ? { way: -1 } : { by: null });
    const sortable = ({ name, show }) => ({
      name: html`<button onclick=${() => turn(name)}>${name}</button>`, show, isNumber: true,
      head: { "aria-sort": name === by ? (way > 0 ? "descending" : "ascending") : null },
    });
    return table(columns.map((column) => (column.number ? sortable(column) : column)), sorted, kind);
  }
}

/**
 * Return tabs: `words` by name, of which `chosen` is shown in the panel `view-${prefix}${name}`.
 * @param {(name: string) => void} onChoose
 */
export function tabs(label, prefix, words, chosen, onChoose) {
  const names = Object.keys(words);
  const step = (event, place) => {
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!way) return;
    const next = (place + way + names.length) % names.length;
    event.currentTarget.parentElement.children[next].focus();
    onChoose(names[next]);
  };
  return html`
    <div class="tabs" role="tablist" aria-label=${label}>
      ${names.map((name, place) => html`
        <button role="tab" id="tab-${prefix}${name}" aria-selected=${name === chosen} data-words=${words[name]}
          aria-controls=${name === chosen ? `view-${prefix}${name}` : null} tabindex=${name === chosen ? 0 : -1}
          onclick=${() => onChoose(name)} onkeydown=${(event) => step(event, place)}>${words[name]}</button>`)}
    </div>`;
}

/** A page that loads anew every two seconds while it is `active`. */
export class Polled extends Widget {
  /** @type {any} */
  state = {};

  /**
   * Return what `page` shows. `isFirst`: the page has just become active.
   * @param {boolean} _isFirst
   * @returns {Promise<any>}
   */
  async load(_isFirst) {
    return {};
  }

  /**
   * Return the elements of the page.
   * @returns {any}
   */
  page(_data) {
    return null;
  }

  componentDidMount() {
    this.turn();
  }

  componentDidUpdate(before) {
    if (before.active !== this.props.active) this.turn();
  }

  turn() {
    clearInterval(this.timer);
    if (!this.props.active) return;
    this.refresh(true);
    this.timer = setInterval(() => this.refresh(), EVERY_MS);
  }

  async refresh(isFirst = false) {
    await this.attempt(async () => ({ data: await this.load(isFirst), problem: null }));
  }

  render() {
    const { data, problem } = this.state;
    if (problem) return html`<p class="problem">${problem.message}</p>`;
    return data && this.page(data);
  }
}
