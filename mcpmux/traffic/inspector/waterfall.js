// Many exchanges over time: lanes for each client, a bar for each exchange, inside it what upstreams took of it.
// A picture of the newest rows of the list, which stands below it and says the same in words.

import * as format from "./format.js";
import { actByKey, createRef, html, key, link, Widget } from "./html.js";

const BARS = 2000; // the newest; more would be one black area
const LANES = 12; // of one client; what does not fit any more shares the last one
const LANE = 12;
const NAME = 18; // pixels above the lanes of a client
const AXIS = 20;
const NARROWEST = 3; // pixels, so that it can be hit
const TICK = 130; // pixels between two times at least
const DRAGGED = 4; // pixels, from where on a click chooses a span
const SHORTEST_MS = 0.05;
const COLOURS = {
  error: "--error", invalid: "--error", tool_error: "--warn", open: "--open", cancelled: "--muted", note: "--muted",
};

/** `rows`: see rows.js; `selected`: the number of one; `onPick(number)`: open one. */
export class Waterfall extends Widget {
  scroller = createRef();
  canvas = createRef();
  /** @type {[begin: number, end: number] | null} */
  span = null; // milliseconds since 1970; null: all that is there
  /** @type {[begin: number, end: number]} */
  whole = [0, 1];
  /** @type {any[]} */
  bars = [];
  /** @type {[from: number, to: number] | null} */
  chosen = null; // pixels, while a span is dragged
  due = false;

  componentDidMount() {
    new ResizeObserver(() => this.refresh()).observe(this.scroller.current);
  }

  componentDidUpdate(before) {
    if (before !== this.props) this.refresh(); // else it has drawn itself
  }

  render({ hidden }, { what = "", hint = "" }) {
    const sign = (text, label, act) => link(text, act, { "aria-label": label });
    return html`
      <div id="waterfall" class="waterfall" hidden=${hidden}>
        <div class="zoom">
          <span class="hint">${hint}</span>
          ${key("client", "exchange")}${key("upstream", "at upstreams")}${key("failed", "failed")}${key("open", "open")}
          ${sign("+", "Zoom in", () => this.zoom(0.5))}${sign("−", "Zoom out", () => this.zoom(2))}
          ${sign("All", "Show all of the time", () => this.show(null))}
        </div>
        <div ref=${this.scroller} class="lanes" tabindex="0" role="region" aria-label="Timeline"
          onscroll=${() => this.refresh()} onkeydown=${(event) => this.key(event)}>
          <div class="plane">
            <canvas ref=${this.canvas} role="img" aria-label="Timeline of ${what}; the list below has them, too"
              onpointerdown=${(event) => this.press(event)} onpointermove=${(event) => this.move(event)}
              onpointerup=${(event) => this.release(event)} />
          </div>
        </div>
      </div>`;
  }

  /** Draw it in the next frame. */
  refresh() {
    if (this.due || this.props.hidden) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      this.draw();
    });
  }

  /** Return what there is to show, the oldest first. */
  read() {
    const { rows } = this.props;
    const most = Math.min(BARS, rows.length);
    rows.ensure(0, (rows.filter ? BARS : most) - 1);
    return Array.from({ length: most }, (_, place) => rows.at(most - 1 - place)).filter(Boolean);
  }

  draw() {
    const { current: canvas } = this.canvas;
    const shown = this.read();
    const newest = shown.reduce((latest, row) => Math.max(latest, row.at + (row.ms ?? 0)), 0);
    this.whole = [shown[0]?.at ?? 0, Math.max(newest, (shown[0]?.at ?? 0) + 1)];
    const clients = this.place(shown, newest);
    const { clientWidth: width, clientHeight: height, scrollTop } = this.scroller.current;
    canvas.parentElement.style.height = `${Math.max(height, clients[clients.length - 1]?.bottom ?? 0)}px`;
    const [wide, high] = [width * devicePixelRatio, height * devicePixelRatio];
    if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    const context = canvas.getContext("2d");
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.clearRect(0, 0, width, height);
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(name);
    context.font = `11px ${style.fontFamily}`;
    context.translate(0, -scrollTop);
    for (const bar of this.bars) this.drawBar(context, bar, colour);
    context.fillStyle = colour("--text");
    for (const client of clients) context.fillText(client.name, 8, client.top + 13);
    context.translate(0, scrollTop);
    this.drawAxis(context, width, height, colour);
    const what = `${format.plural(this.bars.length, "exchange")} of ${format.plural(clients.length, "client")}`;
    const part = this.props.rows.length > BARS ? `; of the newest ${format.count(BARS)}` : "";
    this.setState({ what, hint: `${what}, ${format.duration(this.end - this.begin)}${part}` });
  }

  get begin() {
    return (this.span ?? this.whole)[0];
  }

  get end() {
    return (this.span ?? this.whole)[1];
  }

  x(at) {
    return ((at - this.begin) / (this.end - this.begin)) * this.scroller.current.clientWidth;
  }

  at(x) {
    return this.begin + (x / this.scroller.current.clientWidth) * (this.end - this.begin);
  }

  /** Give each row in the span a place: `bars`. Return the clients with theirs. */
  place(shown, newest) {
    this.bars = [];
    /** @type {Map<string, any[]>} */
    const byClient = new Map();
    for (const row of shown) {
      const end = row.ms === undefined && row.status === "open" ? Math.max(newest, row.at) : row.at + (row.ms ?? 0);
      if (end < this.begin || row.at > this.end) continue;
      const name = row.leg === "client" ? row.client ?? row.peer : "Without a client";
      const left = this.x(row.at);
      const until = this.x(end);
      const bar = { row, left, until, right: Math.max(left + NARROWEST, until) };
      const all = byClient.get(name);
      if (all) all.push(bar);
      else byClient.set(name, [bar]);
    }
    let top = AXIS;
    return [...byClient].map(([name, bars]) => {
      /** @type {number[]} */
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

  drawBar(context, { row, left, until, right, top }, colour) {
    context.fillStyle = colour(COLOURS[row.status] ?? "--client");
    context.globalAlpha = 0.25; // what is only there to be hit is paler
    context.fillRect(until, top, right - until, LANE - 2);
    context.globalAlpha = row.status === "open" ? 0.35 : 0.55;
    context.fillRect(left, top, until - left, LANE - 2);
    context.globalAlpha = 1;
    context.fillStyle = colour("--upstream");
    for (const [, after, ms] of row.parts ?? []) {
      const from = this.x(row.at + after);
      const to = Math.min(right, Math.max(from + 1, this.x(row.at + after + ms)));
      context.fillRect(from, top + 2, to - from, LANE - 6);
    }
    if (row.row !== this.props.selected) return;
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

  /** Show so many times as much of the time. */
  zoom(times, aside = 0) {
    const length = this.end - this.begin;
    const half = Math.max(SHORTEST_MS, length * times) / 2;
    const middle = (this.begin + this.end) / 2 + aside * length;
    this.show([middle - half, middle + half]);
  }

  key(event) {
    actByKey(event, {
      "+": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.show(null),
      ArrowLeft: () => this.zoom(1, -0.25), ArrowRight: () => this.zoom(1, 0.25),
    });
  }

  press(event) {
    if (event.button !== 0) return;
    event.target.setPointerCapture(event.pointerId);
    this.chosen = [event.offsetX, event.offsetX];
  }

  move(event) {
    if (this.chosen) {
      this.chosen[1] = event.offsetX;
      this.refresh();
      return;
    }
    const row = this.barAt(event)?.row;
    const words = row ? [row.method, row.target, format.status(row), format.duration(row.ms)] : [];
    event.target.title = words.filter(Boolean).join(" · ");
  }

  release(event) {
    if (!this.chosen) return;
    const [from, to] = this.chosen.toSorted((one, other) => one - other);
    this.chosen = null;
    const bar = this.barAt(event);
    if (to - from >= DRAGGED) this.show([this.at(from), this.at(to)]);
    else if (bar) this.props.onPick(bar.row.row);
    this.refresh();
  }

  barAt({ offsetX: x, offsetY }) {
    const y = offsetY + this.scroller.current.scrollTop;
    return this.bars.findLast(({ left, right, top }) => left <= x && x <= right && top <= y && y < top + LANE);
  }
}
