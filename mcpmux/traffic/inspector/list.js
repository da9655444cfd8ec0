// The list on the screen: only the rows that are in sight have elements, however many there are.

import { classOf, COLUMNS, styleOf } from "./columns.js";
import { createRef, hasModifier, html, Widget } from "./html.js";

export const ROW_PIXELS = 28;
const SPARE = 6; // rows above and below those in sight

/**
 * `rows`: see rows.js. `selected`: the number of a row, or null. `busy`: its rows are of an earlier filter, so none can
 * be chosen. `onSelect(number)`; `onOpen(number, hasFocus)`: the keyboard goes there, too, or not.
 */
export class List extends Widget {
  box = createRef();

  componentDidMount() {
    new ResizeObserver(() => this.forceUpdate()).observe(this.box.current);
  }

  componentDidUpdate(before) {
    const { rows, selected } = this.props;
    if (selected !== before.selected) this.reveal();
    const [from, to] = this.inSight();
    rows.looked = [from, to];
    rows.ensure(from, to - 1);
  }

  /** Take rows that came on top: what is being read stays where it is. */
  moved(number) {
    const box = this.box.current;
    if (!number || box.scrollTop <= ROW_PIXELS / 2) return;
    box.firstElementChild.style.height = `${this.props.rows.length * ROW_PIXELS}px`;
    box.scrollTop += number * ROW_PIXELS;
  }

  focus() {
    this.box.current.focus({ preventScroll: true });
  }

  scrollUp() {
    this.box.current.scrollTop = 0;
  }

  inSight() {
    const { scrollTop = 0, clientHeight = 0 } = this.box.current ?? {};
    const from = Math.max(0, Math.floor(scrollTop / ROW_PIXELS) - SPARE);
    return [from, Math.min(this.props.rows.length, from + Math.ceil(clientHeight / ROW_PIXELS) + 2 * SPARE)];
  }

  render({ rows, selected, busy }) {
    const [from, to] = this.inSight();
    const shown = Array.from({ length: Math.max(0, to - from) }, (_, place) => from + place);
    const there = shown.flatMap((index) => rows.at(index) ?? []);
    const begin = Math.min(...there.map(({ at }) => at));
    const span = [begin, Math.max(begin + 1, ...there.map(({ at, ms = 0 }) => at + ms))];
    const isShown = shown.some((index) => rows.numberAt(index) === selected);
    return html`
      <div ref=${this.box} id="list" class="rows" role="listbox" tabindex="0" aria-label="Exchanges"
        aria-busy=${busy} aria-activedescendant=${isShown ? `row-${selected}` : null}
        onscroll=${() => this.forceUpdate()} onkeydown=${(event) => this.key(event)}>
        <div class="sheet" style="height: ${rows.length * ROW_PIXELS}px">
          ${shown.map((index) => this.row(index, index % shown.length, span))}
        </div>
      </div>`;
  }

  row(index, key, span) {
    const { rows, selected } = this.props;
    const number = rows.numberAt(index);
    const row = rows.at(index);
    return html`
      <div key=${key} id="row-${number}" class="row" role="option" data-row=${number}
        style="transform: translateY(${index * ROW_PIXELS}px)" aria-selected=${number === selected}
        aria-posinset=${index + 1} aria-setsize=${rows.complete ? rows.length : -1}
        aria-label=${row ? null : "not loaded yet"} aria-description=${row?.marked ? "marked" : null}
        data-status=${row?.status ?? "unknown"} data-marked=${Boolean(row?.marked)} onclick=${() => this.pick(number)}>
        ${COLUMNS.map((column) => {
          const shown = row && column.show(row, span);
          const title = column.of === "in-view" ? shown : null; // may be too long for its column
          return html`<span class=${classOf(column)} style=${styleOf(column)} title=${title}>${shown}</span>`;
        })}
      </div>`;
  }

  pick(number) {
    const { busy, onSelect, onOpen } = this.props;
    if (busy) return;
    onSelect(number);
    onOpen(number, false);
  }

  reveal() {
    const index = this.props.rows.indexOf(this.props.selected);
    if (index < 0) return;
    const box = this.box.current;
    const top = index * ROW_PIXELS;
    if (top < box.scrollTop) box.scrollTop = top;
    else box.scrollTop = Math.max(box.scrollTop, top + ROW_PIXELS - box.clientHeight);
  }

  key(event) {
    const { rows, selected, busy, onSelect, onOpen } = this.props;
    const last = rows.length - 1;
    if (busy || last < 0 || hasModifier(event)) return;
    const now = selected === null ? -1 : rows.indexOf(selected);
    const page = Math.max(1, Math.floor(this.box.current.clientHeight / ROW_PIXELS) - 1);
    const goals = {
      ArrowDown: now + 1, j: now + 1, ArrowUp: now - 1, k: now - 1,
      PageDown: now + page, PageUp: now - page, Home: 0, End: last,
    };
    if (event.key in goals) {
      event.preventDefault();
      onSelect(rows.numberAt(Math.min(last, Math.max(0, goals[event.key]))));
    } else if (["Enter", "ArrowRight", " "].includes(event.key) && now >= 0) {
      event.preventDefault();
      onOpen(selected, true);
    }
  }
}
