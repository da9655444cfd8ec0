// The list on the screen: only the rows that are in sight have elements, however many there are.

import { h, setAttribute, setText } from "./dom.js";
import * as format from "./format.js";

export const ROW_PIXELS = 28;
const SPARE = 6; // rows above and below those in sight
const CELLS = ["time", "status", "method", "target", "upstream", "in-view", "client", "number", "number"];

export class List {
  constructor(element, rows, onSelect, onOpen) {
    this.element = element;
    this.sheet = element.querySelector(".sheet");
    this.rows = rows;
    this.onSelect = onSelect;
    this.onOpen = onOpen;
    this.selected = null; // number of a row
    this.pool = [];
    this.due = false;
    element.addEventListener("scroll", () => this.refresh(), { passive: true });
    element.addEventListener("keydown", (event) => this.key(event));
    element.addEventListener("click", (event) => this.click(event));
    new ResizeObserver(() => this.refresh()).observe(element);
  }

  /** `moved` rows came on top: what is being read stays where it is. */
  changed(moved) {
    if (moved && this.element.scrollTop > ROW_PIXELS / 2) {
      this.size();
      this.element.scrollTop += moved * ROW_PIXELS;
    }
    this.refresh();
  }

  refresh() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      this.draw();
    });
  }

  size() {
    const height = `${this.rows.length * ROW_PIXELS}px`;
    if (this.sheet.style.height !== height) this.sheet.style.height = height;
  }

  draw() {
    this.size();
    const from = Math.max(0, Math.floor(this.element.scrollTop / ROW_PIXELS) - SPARE);
    const inSight = Math.ceil(this.element.clientHeight / ROW_PIXELS) + 2 * SPARE;
    const to = Math.min(this.rows.length, from + inSight);
    this.rows.looked = [from, to];
    this.rows.ensure(from, to - 1);
    const needed = Math.max(0, to - from);
    while (this.pool.length < needed) this.pool.push(this.makeRow());
    while (this.pool.length > needed) this.pool.pop().remove();
    for (let place = 0; place < needed; place++) this.fill(this.pool[(from + place) % needed], from + place);
    const shown = this.selected !== null ? this.pool.find((row) => row.dataset.row === String(this.selected)) : null;
    if (shown) setAttribute(this.element, "aria-activedescendant", shown.id);
    else this.element.removeAttribute("aria-activedescendant");
  }

  makeRow() {
    const element = h("div", { class: "row", role: "option" }, CELLS.map((name) => h("span", { class: name }, h("bdi", { dir: "ltr" }))));
    this.sheet.append(element);
    return element;
  }

  fill(element, index) {
    const number = this.rows.numberAt(index);
    const row = this.rows.at(index);
    element.style.transform = `translateY(${index * ROW_PIXELS}px)`;
    element.dataset.row = number;
    element.id = `row-${number}`;
    setAttribute(element, "aria-selected", String(number === this.selected));
    setAttribute(element, "aria-posinset", String(index + 1));
    setAttribute(element, "aria-setsize", String(this.rows.complete ? this.rows.length : -1));
    const texts = row ? cells(row) : CELLS.map(() => "");
    setAttribute(element, "data-status", row ? row.status : "unknown");
    texts.forEach((text, place) => setText(element.children[place].firstElementChild, text));
    for (const place of [3, 5]) element.children[place].title = texts[place];
    if (row?.view) this.element.parentElement.dataset.views = "some"; // without any there is no column
    setAttribute(element, "data-marked", String(Boolean(row?.marked)));
    if (row?.marked) setAttribute(element, "aria-description", "marked");
    else element.removeAttribute("aria-description");
    if (row) element.removeAttribute("aria-label"); // what it shows is its name
    else setAttribute(element, "aria-label", "not loaded yet");
  }

  click(event) {
    const row = event.target.closest(".row");
    if (row) this.pick(Number(row.dataset.row));
  }

  /** While it is busy its rows are of an earlier filter, and none can be chosen. */
  get busy() {
    return this.element.getAttribute("aria-busy") === "true";
  }

  set busy(busy) {
    setAttribute(this.element, "aria-busy", String(busy));
  }

  pick(number) {
    if (this.busy) return;
    this.select(number);
    this.onOpen(number, false);
  }

  select(number) {
    this.selected = number;
    this.reveal();
    this.refresh();
    this.onSelect(number);
  }

  reveal() {
    const index = this.rows.indexOf(this.selected);
    if (index < 0) return;
    const top = index * ROW_PIXELS;
    const view = this.element;
    if (top < view.scrollTop) view.scrollTop = top;
    else if (top + ROW_PIXELS > view.scrollTop + view.clientHeight) view.scrollTop = top + ROW_PIXELS - view.clientHeight;
  }

  key(event) {
    if (this.busy || event.altKey || event.ctrlKey || event.metaKey) return;
    const last = this.rows.length - 1;
    if (last < 0) return;
    const now = this.selected === null ? -1 : this.rows.indexOf(this.selected);
    const page = Math.max(1, Math.floor(this.element.clientHeight / ROW_PIXELS) - 1);
    const goals = {
      ArrowDown: now + 1, j: now + 1, ArrowUp: now - 1, k: now - 1,
      PageDown: now + page, PageUp: now - page, Home: 0, End: last,
    };
    if (event.key in goals) {
      event.preventDefault();
      this.select(this.rows.numberAt(Math.min(last, Math.max(0, goals[event.key]))));
    } else if ((event.key === "Enter" || event.key === "ArrowRight" || event.key === " ") && now >= 0) {
      event.preventDefault();
      this.onOpen(this.selected, true);
    }
  }
}

function cells(row) {
  return [
    format.time(row.at),
    format.status(row),
    row.method ?? "",
    [row.target, row.note].filter(Boolean).join(" — "),
    (row.upstreams ?? []).join(", "),
    row.view ?? "",
    row.client ?? (row.leg === "client" ? row.peer : ""),
    format.duration(row.ms),
    format.size(row.size),
  ];
}
