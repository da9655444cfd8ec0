// One exchange: its timeline, its messages, and the one that is looked at beside its counterpart on the other leg.

import { get } from "./api.js";
import { compare } from "./compare.js";
import { h } from "./dom.js";
import * as format from "./format.js";
import { counterpart, firstOf } from "./legs.js";
import { payloads } from "./payloads.js";
import { timeline } from "./timeline.js";
import { tree } from "./tree.js";

const AGAIN_MS = 400; // between two looks at an exchange that goes on
const STEPS = 500; // messages that are listed; a listen may have more

export class Detail {
  constructor(element, onClose, tools) {
    this.element = element;
    this.tools = tools;
    this.top = h("div");
    this.rest = h("div");
    element.append(this.top, this.tools.element, this.rest);
    this.onClose = onClose;
    this.number = null;
    element.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.isOpen && this.data && this.drawTimeline()).observe(element);
  }

  get width() {
    const style = getComputedStyle(this.element);
    return Math.max(300, this.element.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
  }

  get isOpen() {
    return !this.element.hidden;
  }

  close() {
    this.element.hidden = true;
    this.number = null;
    this.loading?.abort();
    this.onClose();
  }

  /** Shows a row. `focus`: whether the keyboard goes there, too; `own`: it is one of mcpmux's own. */
  async open(number, focus, own) {
    this.own = own;
    this.element.hidden = false;
    if (focus) this.element.focus({ preventScroll: true });
    if (number === this.number && this.data?.row.status !== "open") return;
    const again = number === this.number;
    this.number = number;
    this.loading?.abort();
    this.loading = new AbortController();
    try {
      const data = await get(`/api/exchanges/${number}`, { own }, this.loading.signal);
      if (this.number !== number) return;
      const before = this.data?.messages;
      this.data = data;
      this.tools.show(data, own);
      this.tools.element.hidden = false;
      if (!again || !before) this.show(firstOf(data.messages));
      else this.grow(before);
    } catch (problem) {
      if (problem.name === "AbortError") return;
      this.refuse(problem.message);
    }
  }

  /** Says why there is nothing to show. */
  refuse(reason) {
    this.data = null;
    this.element.hidden = false;
    this.tools.element.hidden = true;
    this.top.replaceChildren(this.head("This exchange cannot be shown"), h("p", { class: "problem" }, reason));
    this.rest.replaceChildren();
  }

  /** The row has changed: what is missing is fetched, but not all the time. */
  update(row) {
    if (row.row !== this.number || row.row !== this.data?.row.row) return; // else it is not shown yet
    this.tools.update(row);
    if (row.messages === this.data.row.messages || this.waiting) return;
    this.waiting = setTimeout(() => {
      this.waiting = null;
      if (row.row === this.number) this.open(row.row, false, this.own);
    }, AGAIN_MS);
  }

  /** There are more messages of what is shown: what is being read stays as it is. */
  grow(before) {
    const { row, messages } = this.data;
    const seq = before[this.picked]?.record.seq;
    const place = Math.max(0, messages.findIndex((message) => message.record.seq === seq));
    const others = [[before, this.picked], [messages, place]].map(([all, index]) => all[counterpart(all, index)]?.record.seq);
    if (others[0] !== others[1] || messages[place]?.record.seq !== seq) {
      this.show(place);
      return;
    }
    this.picked = place;
    const scrolled = this.element.querySelector(".steps").scrollTop;
    const focused = document.activeElement?.closest?.(".step") !== null && this.element.contains(document.activeElement);
    this.element.querySelector("header").replaceWith(this.heading(row));
    this.element.querySelector(".facts").replaceWith(facts(row));
    this.element.querySelector(".steps").replaceWith(this.steps(messages));
    this.element.querySelector(".steps").scrollTop = scrolled;
    this.drawTimeline();
    if (focused) this.element.querySelector(`[data-step="${place}"]`)?.focus();
  }

  heading(row) {
    return this.head(row.method ?? "Message", h("span", { class: "chip", "data-status": row.status }, format.status(row)));
  }

  head(title, ...more) {
    return h("header", { class: "heading" }, h("div", { class: "title" }, h("h2", {}, title), ...more),
      h("button", { class: "close", "aria-label": "Close (Escape)", title: "Close (Escape)", onclick: () => this.close() }, "×"));
  }

  show(picked) {
    const { row, messages } = this.data;
    const held = this.element.contains(document.activeElement) ? document.activeElement.dataset.step : undefined;
    const scrolled = this.element.scrollTop;
    this.picked = picked;
    this.top.replaceChildren(this.heading(row), row.target ? h("p", { class: "target", translate: "no" }, row.target) : "");
    this.rest.replaceChildren(
      facts(row),
      h("div", { class: "drawing" }),
      this.steps(messages),
      this.bodies(messages),
    );
    this.drawTimeline();
    this.element.scrollTop = scrolled;
    if (held !== undefined) this.element.querySelector(`[data-step="${picked}"]`)?.focus();
  }

  drawTimeline() {
    const { messages } = this.data;
    const place = this.element.querySelector(".drawing");
    if (place && messages.length) place.replaceChildren(timeline(messages, this.picked, (index) => this.show(index), this.width));
  }

  steps(messages) {
    const begin = messages[0]?.at;
    const left = messages.length - STEPS;
    return h("div", { class: "steps", role: "listbox", "aria-label": "Messages" },
      messages.slice(0, STEPS).map((message, index) => step(message, index, begin, index === this.picked, () => this.show(index))),
      left > 0 ? h("p", { class: "hint" }, `${format.count(left)} more are not listed`) : "");
  }

  bodies(messages) {
    const message = messages[this.picked];
    if (!message) return h("p", { class: "hint" }, "None of its messages is here any more.");
    const other = counterpart(messages, this.picked);
    const pair = other === null ? [message] : isBefore(message.record) ? [message, messages[other]] : [messages[other], message];
    const values = pair.map((each) => each.record.message);
    const [left, right] = pair.length === 2 && values.every((value) => value !== undefined) ? compare(...values) : [undefined, undefined];
    const changes = left ? [...left, ...right].filter(([path, mark]) => mark !== true && path).length : 0;
    return h("div", { class: "bodies", "data-pair": pair.length === 2 },
      pair.map((each, place) => this.body(each, [left, right][place], pair.length === 2 ? ["Before rewriting", "After rewriting"][place] : "Message")),
      left ? h("p", { class: "hint legend" }, changes ? h("span", {}, h("i", { class: "swatch" }), "differs between the legs") : "The same on both legs") : "");
  }

  body(message, marks, title) {
    const { record } = message;
    const box = h("section", { class: "body" },
      h("h3", {}, title, h("small", {}, way(record), " · ", format.size(record.size), record.redacted ? ` · ${record.redacted} redacted` : "")));
    if (message.gone) box.append(h("p", { class: "hint" }, "It was too large to be kept here; a capture has it."));
    else if (record.message !== undefined) box.append(tree(record.message, marks), ...payloads(record.message));
    else box.append(h("pre", { translate: "no" }, record.text ?? ""));
    if (message.cut) {
      const button = h("button", { class: "more", onclick: () => this.whole(message, box) }, `Load all of it (${format.size(record.size)})`);
      box.append(h("p", { class: "hint" }, "This is the beginning. ", button));
    }
    return box;
  }

  async whole(message, box) {
    try {
      const { record } = await get(`/api/exchanges/${this.number}/${message.record.seq}`, { own: this.own });
      box.lastElementChild.remove();
      box.lastElementChild.replaceWith(...(record.message !== undefined ? [tree(record.message), ...payloads(record.message)] : [h("pre", {}, record.text ?? "")]));
    } catch (problem) {
      box.append(h("p", { class: "problem" }, problem.message));
    }
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const inSteps = event.target.closest?.(".steps");
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (inSteps && move && this.data) {
      event.preventDefault();
      const next = Math.min(Math.min(STEPS, this.data.messages.length) - 1, Math.max(0, this.picked + move));
      this.show(next);
      this.element.querySelector(`[data-step="${next}"]`)?.focus();
    }
  }
}

function facts(row) {
  const [view, ...narrowed] = (row.view ?? "").split("?");
  const all = [
    ["When", format.date(row.at)],
    ["Took", format.duration(row.ms) || "no answer"],
    row.exchange ? ["Exchange", String(row.exchange)] : null,
    row.leg === "client" ? ["Client", row.client ? `${row.client} (${row.peer})` : row.peer] : ["Session", row.peer],
    row.view ? ["View", view || "everything"] : null,
    narrowed.length ? ["Narrowed to", narrowed.join("?")] : null,
    row.upstreams?.length ? ["Upstream", row.upstreams.join(", ")] : null,
    ["Over", [row.transport, row.revision].filter(Boolean).join(", ")],
    ["Messages", row.left_out ? `${row.messages}, of which ${row.left_out} are not here` : String(row.messages)],
    row.http ? ["HTTP", String(row.http)] : null,
  ];
  if (row.status === "note") all.splice(1, 1);
  return h("dl", { class: "facts" }, all.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function step(message, index, begin, picked, onPick) {
  const { record } = message;
  const what = record.kind === "request" || record.kind === "notification" ? record.method : record.kind === "result" ? (record.failed ? "tool error" : "result") : record.kind === "error" ? `error ${record.code ?? ""}` : "invalid";
  return h("button", {
    class: `step ${record.leg}`, role: "option", "aria-selected": picked, tabindex: picked ? 0 : -1, "data-step": index, onclick: onPick,
    "data-kind": record.failed ? "error" : record.kind,
  },
  h("span", { class: "offset" }, message.at > begin ? `+${format.duration(message.at - begin)}` : "0"),
  h("span", { class: "way" }, way(record)),
  h("span", { class: "what" }, what ?? "", record.id !== undefined ? h("small", {}, ` #${record.id}`) : ""),
  h("span", { class: "number" }, format.size(record.size)));
}

const way = (record) => (record.direction === "in" ? `${record.peer} → mcpmux` : `mcpmux → ${record.peer}`);
const isBefore = (record) => record.direction === "in";
