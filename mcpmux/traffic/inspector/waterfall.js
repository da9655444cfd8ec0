// Many exchanges over time: lanes for each client, a bar for each exchange, inside it what upstreams took of it.
// A picture of the newest rows of the list, which stands below it and says the same in words.

import { h, setAttribute, setText } from "./dom.js";
import * as format from "./format.js";

const BARS = 2000; // the newest; more would be one black area
const LANES = 12; // of one client; what does not fit any more shares the last one
const LANE = 12;
const NAME = 18; // pixels above the lanes of a client
const AXIS = 20;
const NARROWEST = 3; // pixels, so that it can be hit
const TICK = 130; // pixels between two times at least
const DRAGGED = 4; // pixels, from where on a click chooses a span
const SHORTEST_MS = 0.05;
const COLOURS = { error: "--error", invalid: "--error", tool_error: "--warn", open: "--open", cancelled: "--muted", note: "--muted" };

export class Waterfall {
  /** `rows`: see rows.js; `list` shows them: see list.js. */
  constructor(element, rows, list) {
    this.element = element;
    this.rows = rows;
    this.list = list;
    this.span = null; // [begin, end], milliseconds since 1970; null: all that is there
    this.bars = [];
    this.due = false;
    this.hint = h("span", { class: "hint" });
    const button = (text, label, onclick) => h("button", { type: "button", class: "more", "aria-label": label, onclick }, text);
    this.canvas = h("canvas", { role: "img" });
    this.sheet = h("div", { class: "plane" }, this.canvas);
    this.scroller = h("div", { class: "lanes", tabindex: 0, role: "region", "aria-label": "Timeline" }, this.sheet);
    element.append(
      h("div", { class: "zoom" }, this.hint, button("+", "Zoom in", () => this.zoom(0.5)), button("−", "Zoom out", () => this.zoom(2)), button("All", "Show all of the time", () => this.show(null))),
      this.scroller);
    this.scroller.addEventListener("scroll", () => this.refresh(), { passive: true });
    this.scroller.addEventListener("keydown", (event) => this.key(event));
    for (const name of ["pointerdown", "pointermove", "pointerup"]) this.canvas.addEventListener(name, (event) => this[name](event));
    new ResizeObserver(() => this.refresh()).observe(this.scroller);
  }

  toggle() {
    this.element.hidden = !this.element.hidden;
    this.refresh();
    return !this.element.hidden;
  }

  refresh() {
    if (this.due || this.element.hidden) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      this.draw();
    });
  }

  /** What there is to show, the oldest first. */
  read() {
    const found = [];
    const most = Math.min(BARS, this.rows.length);
    for (let index = most - 1; index >= 0; index--) {
      const row = this.rows.at(index);
      if (row) found.push(row);
    }
    this.rows.ensure(0, (this.rows.filter ? BARS : most) - 1);
    return found;
  }

  draw() {
    const shown = this.read();
    const newest = shown.reduce((latest, row) => Math.max(latest, row.at + (row.ms ?? 0)), 0);
    this.whole = [shown[0]?.at ?? 0, Math.max(newest, (shown[0]?.at ?? 0) + 1)];
    const clients = this.place(shown, newest);
    const width = this.scroller.clientWidth;
    const height = this.scroller.clientHeight;
    this.sheet.style.height = `${Math.max(height, clients.at(-1)?.bottom ?? 0)}px`;
    const sharp = devicePixelRatio;
    if (this.canvas.width !== width * sharp || this.canvas.height !== height * sharp) Object.assign(this.canvas, { width: width * sharp, height: height * sharp });
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    const context = this.canvas.getContext("2d");
    context.setTransform(sharp, 0, 0, sharp, 0, 0);
    context.clearRect(0, 0, width, height);
    const style = getComputedStyle(this.canvas);
    const colour = (name) => style.getPropertyValue(name);
    context.font = `11px ${style.fontFamily}`;
    context.translate(0, -this.scroller.scrollTop);
    for (const bar of this.bars) this.drawBar(context, bar, colour);
    context.fillStyle = colour("--text");
    for (const client of clients) context.fillText(client.name, 8, client.top + 13);
    context.setTransform(sharp, 0, 0, sharp, 0, 0);
    this.drawAxis(context, width, height, colour);
    const what = `${format.plural(this.bars.length, "exchange")} of ${format.plural(clients.length, "client")}`;
    setText(this.hint, `${what}, ${format.duration(this.end - this.begin)}${this.rows.length > BARS ? `; of the newest ${format.count(BARS)}` : ""}`);
    setAttribute(this.canvas, "aria-label", `Timeline of ${what}; the list below has them, too`);
  }

  get begin() {
    return (this.span ?? this.whole)[0];
  }

  get end() {
    return (this.span ?? this.whole)[1];
  }

  x(at) {
    return ((at - this.begin) / (this.end - this.begin)) * this.scroller.clientWidth;
  }

  at(x) {
    return this.begin + (x / this.scroller.clientWidth) * (this.end - this.begin);
  }

  /** Gives each row in the span a place: `bars`. Returns the clients with theirs. */
  place(shown, newest) {
    this.bars = [];
    const byClient = new Map();
    for (const row of shown) {
      const end = row.ms === undefined && row.status === "open" ? Math.max(newest, row.at) : row.at + (row.ms ?? 0);
      if (end < this.begin || row.at > this.end) continue;
      const name = row.leg === "client" ? row.client ?? row.peer : "Without a client";
      if (!byClient.has(name)) byClient.set(name, []);
      const left = this.x(row.at);
      byClient.get(name).push({ row, left, right: Math.max(left + NARROWEST, this.x(end)) });
    }
    let top = AXIS;
    return [...byClient].map(([name, bars]) => {
      const lanes = []; // where each ends
      for (const bar of bars) {
        let lane = lanes.findIndex((right) => right <= bar.left);
        if (lane < 0) lane = Math.min(lanes.length, LANES - 1);
        lanes[lane] = Math.max(lanes[lane] ?? 0, bar.right);
        this.bars.push({ ...bar, top: top + NAME + lane * LANE });
      }
      const client = { name, top, bottom: top + NAME + lanes.length * LANE + 4 };
      top = client.bottom;
      return client;
    });
  }

  drawBar(context, { row, left, right, top }, colour) {
    const all = colour(COLOURS[row.status] ?? "--client");
    context.globalAlpha = row.status === "open" ? 0.35 : 0.55;
    context.fillStyle = all;
    context.fillRect(left, top, right - left, LANE - 2);
    context.globalAlpha = 1;
    context.fillStyle = colour("--upstream");
    for (const [, after, ms] of row.parts ?? []) {
      const from = this.x(row.at + after);
      context.fillRect(from, top + 2, Math.min(right, Math.max(from + 1, this.x(row.at + after + ms))) - from, LANE - 6);
    }
    if (row.row !== this.list.selected) return;
    context.strokeStyle = colour("--text");
    context.strokeRect(left - 0.5, top - 0.5, right - left + 1, LANE - 1);
  }

  drawAxis(context, width, height, colour) {
    context.fillStyle = colour("--raised");
    context.fillRect(0, 0, width, AXIS);
    context.fillStyle = colour("--muted");
    const ticks = Math.max(1, Math.floor(width / TICK));
    for (let tick = 0; tick < ticks; tick++) {
      const x = (tick / ticks) * width;
      context.fillText(format.time(this.at(x)), x + 6, 13);
      context.fillRect(x, 0, 1, AXIS);
    }
    if (!this.chosen) return;
    const [one, other] = this.chosen;
    context.globalAlpha = 0.2;
    context.fillStyle = colour("--accent");
    context.fillRect(Math.min(one, other), 0, Math.abs(other - one), height);
    context.globalAlpha = 1;
  }

  show(span) {
    this.span = span;
    this.refresh();
  }

  /** Shows so many times as much of the time. */
  zoom(times, aside = 0) {
    const length = this.end - this.begin;
    const half = Math.max(SHORTEST_MS, length * times) / 2;
    const middle = (this.begin + this.end) / 2 + aside * length;
    this.show([middle - half, middle + half]);
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const does = { "+": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.show(null), ArrowLeft: () => this.zoom(1, -0.25), ArrowRight: () => this.zoom(1, 0.25) }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  }

  pointerdown(event) {
    if (event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.chosen = [event.offsetX, event.offsetX];
  }

  pointermove(event) {
    if (!this.chosen) {
      const row = this.barAt(event)?.row;
      this.canvas.title = row ? [row.method, row.target, format.status(row), format.duration(row.ms)].filter(Boolean).join(" · ") : "";
      return;
    }
    this.chosen[1] = event.offsetX;
    this.refresh();
  }

  pointerup(event) {
    if (!this.chosen) return;
    const span = this.chosen.toSorted((one, other) => one - other);
    this.chosen = null;
    const bar = this.barAt(event);
    if (span[1] - span[0] >= DRAGGED) this.show(span.map((x) => this.at(x)));
    else if (bar) this.list.pick(bar.row.row);
    this.refresh();
  }

  barAt({ offsetX: x, offsetY }) {
    const y = offsetY + this.scroller.scrollTop;
    return this.bars.findLast(({ left, right, top }) => left <= x && x <= right && top <= y && y < top + LANE);
  }
}
