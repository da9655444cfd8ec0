// An exchange over time: one lane for each peer, bars from request to answer, marks for everything else.

import { svg } from "./dom.js";
import * as format from "./format.js";
import { lanesOf } from "./legs.js";

const LANE = 26;
const LABEL = 96;
const TOP = 20;
const RIGHT = 16;
const TICKS = 5;
const MARKS = 400; // drawn; more would be one black bar

/** The drawing, so many pixels wide. `onPick` is called with the index of a message. */
export function timeline(messages, picked, onPick, width) {
  const begin = messages[0].at;
  const end = Math.max(...messages.map((message) => message.at), begin + 0.05);
  const lanes = lanesOf(messages);
  const height = TOP + lanes.length * LANE + 4;
  const x = (at) => LABEL + ((at - begin) / (end - begin)) * (width - LABEL - RIGHT);
  const drawing = svg("svg", {
    class: "timeline", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Timeline: ${format.plural(messages.length, "message")} in ${format.duration(end - begin)}`,
  });
  for (let tick = 0; tick < TICKS; tick++) {
    const at = begin + ((end - begin) * tick) / (TICKS - 1);
    const anchor = tick === 0 ? "start" : tick === TICKS - 1 ? "end" : "middle";
    drawing.append(
      svg("line", { class: "grid", x1: x(at), x2: x(at), y1: TOP - 4, y2: height - 4 }),
      svg("text", { class: "tick", x: x(at), y: 11, "text-anchor": anchor }, tick ? format.duration(at - begin) : "0"),
    );
  }
  lanes.forEach((lane, place) => {
    const y = TOP + place * LANE;
    drawing.append(
      svg("line", { class: "lane", x1: 0, x2: width, y1: y + LANE, y2: y + LANE }),
      svg("text", { class: `peer ${lane.side}`, x: 0, y: y + LANE / 2 + 4 }, short(lane.name)),
    );
    for (const bar of lane.bars.slice(0, MARKS)) {
      drawing.append(pickable(svg("rect", {
        class: `bar ${lane.side}`, "data-status": bar.status, "data-picked": bar.from === picked || bar.to === picked,
        x: x(bar.begin), y: y + 6, width: Math.max(3, x(bar.end) - x(bar.begin)), height: LANE - 12, rx: 3,
      }, svg("title", {}, `${bar.method}: ${bar.to === null ? "no answer" : format.duration(bar.end - bar.begin)}`)), () => onPick(bar.from)));
    }
    for (const mark of lane.marks.slice(0, MARKS)) {
      drawing.append(pickable(svg("circle", {
        class: `mark ${lane.side}`, "data-picked": mark.index === picked, cx: x(mark.at), cy: y + LANE / 2, r: 3.5,
      }, svg("title", {}, mark.method)), () => onPick(mark.index)));
    }
  });
  return drawing;
}

function pickable(element, onPick) {
  element.addEventListener("click", onPick);
  return element;
}

const short = (name) => (name.length > 13 ? `${name.slice(0, 12)}…` : name);
