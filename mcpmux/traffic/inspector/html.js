// Elements as templates that read as HTML. Text is text: nothing that comes from outside is ever read as markup.

import htm from "./vendor/htm.js";
import { Component, createRef, h } from "./vendor/preact.js";

const EVERY_MS = 2000;

export const html = htm.bind(h);

/** Return the head of a table. `numbers`: names of the columns with numbers. */
export const head = (names, numbers = []) => html`
  <thead><tr>
    ${names.map((name) => html`<th scope="col" class=${numbers.includes(name) ? "number" : null}>${name}</th>`)}
  </tr></thead>`;

/** Return names with their values. Pairs that are null are left out. */
export const facts = (pairs) => html`
  <dl class="facts">
    ${pairs.filter(Boolean).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;

/** Return what a colour stands for. `name`: the class that has it. */
export const key = (name, text) => html`<span class="legend ${name}"><i />${text}</span>`;

/** A text with a button that copies it, or selects it where the browser lets no page copy. */
export class Copyable extends Component {
  box = createRef();

  render({ text, isLong }, { done }) {
    const copy = () => navigator.clipboard.writeText(text).then(
      () => this.setState({ done: text }), () => getSelection()?.selectAllChildren(this.box.current));
    return html`
      <span class="copyable">
        <${isLong ? "pre" : "code"} ref=${this.box} tabindex=${isLong ? 0 : null} translate="no">${text}<//>
        <button type="button" class="more" onclick=${copy}>${done === text ? "Copied" : "Copy"}</button>
      </span>`;
  }
}

/**
 * A table whose heads sort it. `columns`: each with its `name`, what it `show`s of a row, and the number by which it
 * sorts, if it does: the highest first, then the lowest, then as the rows come.
 */
export class Sorted extends Component {
  /** @type {any} */
  state = { by: null, way: 1 };

  render({ columns, rows, ...more }, { by, way }) {
    const { number } = columns.find(({ name }) => name === by) ?? {};
    const sorted = number ? rows.toSorted((one, other) => way * (number(other) - number(one))) : rows;
    const turn = (name) => this.setState(by !== name ? { by: name, way: 1 } : way > 0 ? { way: -1 } : { by: null });
    return html`
      <table ...${more}>
        <thead><tr>
          ${columns.map(({ name, number: isNumber }) => html`
            <th scope="col" class=${isNumber && "number"}
              aria-sort=${name === by ? (way > 0 ? "descending" : "ascending") : null}>
              ${isNumber ? html`<button onclick=${() => turn(name)}>${name}</button>` : name}
            </th>`)}
        </tr></thead>
        <tbody>
          ${sorted.map((row) => html`
            <tr>${columns.map(({ number: isNumber, show }) => html`
              <td class=${isNumber && "number"}>${show(row)}</td>`)}</tr>`)}
        </tbody>
      </table>`;
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
}

/** A page that loads anew every two seconds while it is `active`. */
export class Polled extends Component {
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
    try {
      this.setState({ data: await this.load(isFirst), problem: null });
    } catch (problem) {
      this.setState({ problem });
    }
  }

  render() {
    const { data, problem } = this.state;
    if (problem) return html`<p class="problem">${problem.message}</p>`;
    return data && this.page(data);
  }
}
