// How long things take: over time, and per upstream and method.

import { get, Polled } from "./api.js";
import { h, svg } from "./dom.js";
import * as format from "./format.js";

const WINDOWS = [[60, "1 minute"], [300, "5 minutes"], [900, "15 minutes"], [3600, "1 hour"]];
const HEIGHT = 220;
const COUNTS = 90;
const LEFT = 56;
const BOTTOM = 20;
const TOP = 10;

export class Latency extends Polled {
  constructor(element) {
    super();
    this.element = element;
    this.window = 300;
    this.content = h("div", {});
    this.choice = h("select", { id: "window", onchange: (event) => {
      this.window = Number(event.target.value);
      this.load();
    } }, WINDOWS.map(([seconds, name]) => h("option", { value: seconds, selected: seconds === this.window }, name)));
    element.append(h("div", { class: "bar" }, h("h2", {}, "Latency"), h("label", {}, "of the last ", this.choice)), this.content);
  }

  async load() {
    try {
      const stats = await get("/api/stats", { window: this.window });
      this.content.replaceChildren(...(stats.groups.length ? draw(stats, Math.max(320, this.element.clientWidth - 62)) : [h("p", { class: "hint" }, "Nothing was answered in this time.")]));
    } catch (problem) {
      this.content.replaceChildren(h("p", { class: "problem" }, problem.message));
    }
  }
}

function draw(stats, width) {
  return [
    h("figure", {}, h("figcaption", {}, "Duration", key("p50", "median"), key("p95", "95 %"), key("most", "longest")), durations(stats.slots, width)),
    h("figure", {}, h("figcaption", {}, "Answers", key("fine", "fine"), key("failed", "failed")), answers(stats.slots, width)),
    table(stats),
  ];
}

const key = (name, text) => h("span", { class: `key ${name}` }, h("i", {}), text);

function durations(slots, wide) {
  const values = slots.flatMap((slot) => [slot.p50, slot.most]).filter((value) => value > 0);
  if (!values.length) values.push(1); // all are 0, or nothing has an answer
  const low = Math.floor(Math.log10(Math.max(0.01, Math.min(...values))));
  const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...values))));
  const y = (ms) => TOP + (1 - (Math.log10(Math.max(ms, 10 ** low)) - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${wide} ${HEIGHT}`, role: "img", "aria-label": "Durations over time" });
  for (let power = low; power <= high; power++) {
    chart.append(svg("line", { class: "grid", x1: LEFT, x2: wide, y1: y(10 ** power), y2: y(10 ** power) }),
      svg("text", { class: "tick", x: LEFT - 8, y: y(10 ** power) + 4, "text-anchor": "end" }, label(10 ** power)));
  }
  chart.append(...times(slots, HEIGHT, wide));
  for (const name of ["most", "p95", "p50"]) {
    const points = slots.map((slot, place) => (slot[name] === null ? null : [x(place + 0.5, slots.length, wide), y(slot[name])]));
    chart.append(svg("path", { class: `line ${name}`, d: path(points) }));
    for (const point of points) if (point) chart.append(svg("circle", { class: `dot ${name}`, cx: point[0], cy: point[1], r: 1.8 }));
  }
  return chart;
}

const label = (ms) => (ms >= 1000 ? `${ms / 1000} s` : ms >= 1 ? `${ms} ms` : `${Math.round(ms * 1000)} µs`);
const x = (place, slots, wide) => LEFT + (place / slots) * (wide - LEFT);

function times(slots, height, wide) {
  const every = Math.ceil(slots.length / Math.max(2, Math.floor(wide / 160)));
  return slots.map((slot, place) => (place % every ? null : svg("text", { class: "tick", x: x(place, slots.length, wide), y: height - 4 }, format.shortTime(slot.at)))).filter(Boolean);
}

/** A line through the points; a gap where there is none. */
function path(points) {
  let down = false;
  return points.map((point) => {
    const part = point ? `${down ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}` : "";
    down = point !== null;
    return part;
  }).join("");
}

function answers(slots, wide) {
  const most = Math.max(1, ...slots.map((slot) => slot.count));
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${wide} ${COUNTS}`, role: "img", "aria-label": "Answers over time" });
  const room = COUNTS - TOP - BOTTOM;
  const width = (wide - LEFT) / slots.length;
  chart.append(svg("line", { class: "grid", x1: LEFT, x2: wide, y1: COUNTS - BOTTOM, y2: COUNTS - BOTTOM }),
    svg("text", { class: "tick", x: LEFT - 8, y: TOP + 6, "text-anchor": "end" }, format.count(most)),
    svg("text", { class: "tick", x: LEFT - 8, y: COUNTS - BOTTOM + 3, "text-anchor": "end" }, "0"));
  slots.forEach((slot, place) => {
    if (!slot.count) return;
    const tall = (slot.count / most) * room;
    const red = (slot.errors / most) * room;
    const at = { x: x(place, slots.length, wide) + 0.5, width: Math.max(1, width - 1) };
    chart.append(svg("rect", { class: "fine", ...at, y: COUNTS - BOTTOM - tall, height: tall }, svg("title", {}, `${format.shortTime(slot.at)}: ${slot.count}, ${slot.errors} failed`)),
      svg("rect", { class: "failed", ...at, y: COUNTS - BOTTOM - red, height: red }));
  });
  chart.append(...times(slots, COUNTS, wide));
  return chart;
}

function table(stats) {
  const names = ["Upstream", "Method", "Answers", "Failed", "Median", "90 %", "99 %", "Longest", "Distribution"];
  return h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "By upstream and method" }, h("table", { class: "groups" },
    h("thead", {}, h("tr", {}, names.map((name, place) => h("th", { scope: "col", class: place > 1 && place < 8 ? "number" : undefined }, name)))),
    h("tbody", {}, stats.groups.map((group) => h("tr", {},
      h("td", {}, group.upstream || h("em", {}, "whole exchange")), h("td", {}, group.method),
      h("td", { class: "number" }, format.count(group.count)),
      h("td", { class: group.errors ? "number bad" : "number" }, group.errors ? `${format.count(group.errors)} (${share(group)})` : "0"),
      [group.p50, group.p90, group.p99, group.most].map((ms) => h("td", { class: "number" }, format.duration(ms))),
      h("td", {}, histogram(group.buckets, stats.edges)))))));
}

const share = (group) => `${((100 * group.errors) / group.count).toFixed(group.errors / group.count < 0.1 ? 1 : 0)} %`;

function histogram(buckets, edges) {
  const most = Math.max(...buckets);
  return svg("svg", { class: "histogram", viewBox: `0 0 ${buckets.length * 9} 22`, width: buckets.length * 9, height: 22, role: "img",
    "aria-label": `Distribution from ${label(edges[0])} to ${label(edges.at(-1))}` },
  buckets.map((number, place) => svg("rect", { class: number ? "fine" : "none", x: place * 9, width: 8,
    y: number ? 22 - Math.max(2, (number / most) * 22) : 21, height: number ? Math.max(2, (number / most) * 22) : 1 },
  svg("title", {}, `${place ? label(edges[place - 1]) : "0"} to ${place < edges.length ? label(edges[place]) : "…"}: ${number}`))));
}
