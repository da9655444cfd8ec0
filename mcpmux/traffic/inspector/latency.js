// How long things take: over time, per tool, resource and prompt, and per upstream and method.

import { get } from "./api.js";
import * as format from "./format.js";
import { createRef, html, key, link, options, Polled, Sorted } from "./html.js";
import { quote } from "./suggest.js";

const WINDOWS = [[60, "1 minute"], [300, "5 minutes"], [900, "15 minutes"], [3600, "1 hour"]];
const HEIGHT = 220;
const COUNTS = 90;
const LEFT = 56;
const BOTTOM = 20;
const TOP = 10;
const PADDING = 62; // beside a chart

/** `onFilter(filter, sort)`: show the exchanges that fit it; `onExchange(number)`: show one. */
export class Latency extends Polled {
  /** @type {any} */
  state = { seconds: 300 };
  content = createRef();

  load() {
    return get("/api/stats", { window: this.state.seconds });
  }

  render() {
    const choose = (event) => this.setState({ seconds: Number(event.target.value) }, () => this.refresh());
    return html`
      <div class="bar">
        <h2>Latency</h2>
        <label>
          of the last${" "}<select id="window" onchange=${choose}>${options(WINDOWS, this.state.seconds)}</select>
        </label>
      </div>
      <div ref=${this.content}>${super.render()}</div>`;
  }

  page({ slots, names, groups, edges }) {
    if (!groups.length) return html`<p class="hint">Nothing was answered in this time.</p>`;
    const wide = Math.max(320, (this.content.current?.clientWidth ?? 0) + 2 * 16 - PADDING);
    return html`
      <figure>
        <figcaption>
          Duration${key("p50", "median")}${key("p95", "95 %")}${key("most", "longest")}
        </figcaption>
        ${durations(slots, wide)}
      </figure>
      <figure>
        <figcaption>Answers${key("fine", "fine")}${key("failed", "failed")}</figcaption>
        ${answers(slots, wide)}
      </figure>
      ${names.length > 0 && this.table("By tool, resource and prompt", names, edges, [
        { name: "Name", show: ({ method, name }) =>
          link(name, () => this.props.onFilter(ofName({ method, name }), "-duration"),
            { title: "Its exchanges, the longest first" }) },
        { name: "Method", show: ({ method }) => method },
      ], ofName)}
      ${this.table("By upstream and method", groups, edges, [
        { name: "Upstream", show: ({ upstream }) => upstream || html`<em>whole exchange</em>` },
        { name: "Method", show: ({ method }) => method },
      ], ({ upstream, method }) => (upstream ? `upstream=${upstream} method=${method}` : `method=${method}`))}`;
  }

  /** `filterOf(row)`: the filter that finds the exchanges of a row. */
  table(title, rows, edges, columns, filterOf) {
    const time = (of) => (row) => format.duration(row[of]);
    const longest = (row) => (row.slowest
      ? link(format.duration(row.most), () => this.props.onExchange(row.slowest), { title: "Open this exchange" })
      : time("most")(row));
    return html`
      <div class="wide" tabindex="0" role="region" aria-label=${title}>
        <h3>${title}</h3>
        <${Sorted} name="groups" rows=${rows} columns=${[
          ...columns,
          { name: "Answers", number: (row) => row.count, show: (row) => format.count(row.count) },
          { name: "Failed", number: (row) => row.errors / row.count, show: (row) =>
            failed(row, () => this.props.onFilter(`${filterOf(row)} failed`)) },
          { name: "Median", number: (row) => row.p50, show: time("p50") },
          { name: "90 %", number: (row) => row.p90, show: time("p90") },
          { name: "99 %", number: (row) => row.p99, show: time("p99") },
          { name: "Longest", number: (row) => row.most, show: longest },
          { name: "Distribution", show: ({ buckets }) => histogram(buckets, edges) },
        ]} />
      </div>`;
  }
}

const x = (place, slots, wide) => LEFT + (place / slots) * (wide - LEFT);

const chart = (height, wide, name, ...content) => html`
  <svg class="chart" viewBox="0 0 ${wide} ${height}" role="img" aria-label="${name} over time">${content}</svg>`;
const tick = (y, text) => html`<text class="tick" x=${LEFT - 8} y=${y} text-anchor="end">${text}</text>`;
const rule = (y, wide) => html`<line class="grid" x1=${LEFT} x2=${wide} y1=${y} y2=${y} />`;

function times(slots, height, wide) {
  const every = Math.ceil(slots.length / Math.max(2, Math.floor(wide / 160)));
  return slots.map(({ at }, place) => place % every === 0 && html`
    <text class="tick" x=${x(place, slots.length, wide)} y=${height - 4}>${format.shortTime(at)}</text>`);
}

function durations(slots, wide) {
  const values = slots.flatMap((slot) => [slot.p50, slot.most]).filter((value) => value > 0);
  if (!values.length) values.push(1); // all are 0, or nothing has an answer
  const low = Math.floor(Math.log10(Math.max(0.01, Math.min(...values))));
  const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...values))));
  const part = (ms) => (Math.log10(Math.max(ms, 10 ** low)) - low) / (high - low);
  const y = (ms) => TOP + (1 - part(ms)) * (HEIGHT - TOP - BOTTOM);
  const powers = Array.from({ length: high - low + 1 }, (_, place) => 10 ** (low + place));
  return chart(HEIGHT, wide, "Durations",
    powers.map((power) => [rule(y(power), wide), tick(y(power) + 4, format.duration(power))]),
    times(slots, HEIGHT, wide),
    ["most", "p95", "p50"].map((name) => {
      const points = slots.map((slot, place) =>
        slot[name] === null ? null : [x(place + 0.5, slots.length, wide), y(slot[name])]);
      const size = name === "most" ? 3.2 : 1.8; // a ring, in which the others can be seen
      return [
        name !== "most" && html`<path class="line ${name}" d=${path(points)} />`,
        points.map((point) => point && html`<circle class="dot ${name}" cx=${point[0]} cy=${point[1]} r=${size} />`),
      ];
    }));
}

/** Return a line through the points; a gap where there is none. */
const path = (points) => points.map((point, place) => {
  if (!point) return "";
  return `${place && points[place - 1] ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
}).join("");

function answers(slots, wide) {
  const most = Math.max(1, ...slots.map((slot) => slot.count));
  const bottom = COUNTS - BOTTOM;
  const width = Math.max(1, (wide - LEFT) / slots.length - 1);
  const rise = (number) => Math.sqrt(number / most) * (bottom - TOP); // else one burst would flatten all others
  const bar = (place, name, number, title) => {
    const height = rise(number);
    const left = x(place, slots.length, wide) + 0.5;
    return html`
      <rect class=${name} x=${left} width=${width} y=${bottom - height} height=${height}>
        ${title && html`<title>${title}</title>`}
      </rect>`;
  };
  return chart(COUNTS, wide, "Answers",
    [0, ...(most < 4 ? [] : [most / 4]), most].map((number) => [
      rule(bottom - rise(number), wide), tick(bottom - rise(number) + 4, format.count(Math.round(number)))]),
    slots.map(({ at, count, errors }, place) => count > 0 && [
      bar(place, "fine", count, `${format.shortTime(at)}: ${count}, ${errors} failed`), bar(place, "failed", errors),
    ]),
    times(slots, COUNTS, wide));
}

const ofName = ({ method, name }) => `method=${method} uri=${quote(name)}`;

function failed({ count, errors }, onClick) {
  const share = ((100 * errors) / count).toFixed(errors / count < 0.1 ? 1 : 0);
  const more = { class: "more bad", title: "The exchanges that failed" };
  return errors ? link(`${format.count(errors)} (${share} %)`, onClick, more) : "0";
}

function histogram(buckets, edges) {
  const most = Math.max(...buckets);
  const name = (place) => (place < 0 ? "0" : place < edges.length ? format.duration(edges[place]) : "…");
  return html`
    <svg class="histogram" viewBox="0 0 ${buckets.length * 9} 22" width=${buckets.length * 9} height="22" role="img"
      aria-label="Distribution from ${format.duration(edges[0])} to ${format.duration(edges[edges.length - 1])}">
      ${buckets.map((number, place) => {
        const height = number ? Math.max(2, (number / most) * 22) : 1;
        return html`
          <rect class=${number ? "fine" : "none"} x=${place * 9} width="8" y=${22 - height} height=${height}>
            <title>${name(place - 1)} to ${name(place)}: ${number}</title>
          </rect>`;
      })}
    </svg>`;
}
