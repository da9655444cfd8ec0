// An exchange over time: one lane for each peer, bars from request to answer, marks for everything else.

import * as format from "./format.js";
import { html, link, table } from "./html.js";
import { lanesOf } from "./legs.js";

const LANE = 26;
const LABEL = 96;
const TOP = 20;
const RIGHT = 16;
const TICKS = 5;
const MARKS = 400; // drawn; more would be one black bar

/** Return the drawing, so many pixels wide. `onPick` is called with the index of a message. */
export function timeline(messages, picked, onPick, width) {
  const begin = messages[0].at;
  const end = Math.max(...messages.map((message) => message.at), begin + 0.05);
  const lanes = lanesOf(messages);
  const height = TOP + lanes.length * LANE + 4;
  const x = (at) => LABEL + ((at - begin) / (end - begin)) * (width - LABEL - RIGHT);
  const name = `Timeline: ${format.plural(messages.length, "message")} in ${format.duration(end - begin)}`;

  const tick = (_, place) => {
    const at = begin + ((end - begin) * place) / (TICKS - 1);
    const anchor = place === 0 ? "start" : place === TICKS - 1 ? "end" : "middle";
    return html`
      <line class="grid" x1=${x(at)} x2=${x(at)} y1=${TOP - 4} y2=${height - 4} />
      <text class="tick" x=${x(at)} y="11" text-anchor=${anchor}>${place ? format.duration(at - begin) : "0"}</text>`;
  };
  const bar = (side, y) => (each) => html`
    <rect class="bar ${side}" data-status=${each.status} data-picked=${each.from === picked || each.to === picked}
      x=${x(each.begin)} y=${y + 6} width=${Math.max(3, x(each.end) - x(each.begin))} height=${LANE - 12} rx="3"
      onclick=${() => onPick(each.from)}>
      <title>${each.method}: ${took(each)}</title>
    </rect>`;
  const mark = (side, y) => ({ at, index, method }) => html`
    <circle class="mark ${side}" data-picked=${index === picked} cx=${x(at)} cy=${y + LANE / 2} r="3.5"
      onclick=${() => onPick(index)}>
      <title>${method}</title>
    </circle>`;
  const lane = ({ name: peer, side, bars, marks }, place) => {
    const y = TOP + place * LANE;
    return html`
      <line class="lane" x1="0" x2=${width} y1=${y + LANE} y2=${y + LANE} />
      <text class="peer ${side}" x="0" y=${y + LANE / 2 + 4}>${short(peer)}</text>
      ${bars.slice(0, MARKS).map(bar(side, y))}${marks.slice(0, MARKS).map(mark(side, y))}`;
  };

  return html`
    <svg class="timeline" viewBox="0 0 ${width} ${height}" role="img" aria-label=${name}>
      ${Array.from({ length: TICKS }, tick)}${lanes.map(lane)}
    </svg>`;
}

/** Return the same in words: a row for each request, with a button that calls `onPick`. */
export const spans = (messages, onPick) => html`
  <p class="hint key">A bar lasts from a request to its answer; a dot is a notification. Click one to read it.</p>
  ${table([
    { name: "Peer", show: ({ name, side }) => html`<span class=${side}>${name}</span>` },
    { name: "Request", show: ({ from, method }) => link(method, () => onPick(from)) },
    { name: "Began after", isNumber: true, show: ({ begin }) => format.duration(begin - messages[0].at) },
    { name: "Took", isNumber: true, show: took },
  ], lanesOf(messages).flatMap(({ name, side, bars }) => bars.slice(0, MARKS).map((bar) => ({ ...bar, name, side }))),
  "spans")}`;

const took = ({ begin, end, to }) => (to === null ? "no answer" : format.duration(end - begin));

const short = (name) => (name.length > 13 ? `${name.slice(0, 12)}…` : name);
