// The replicas of the cluster: how each is, and what goes from one to another.

import { get, Polled } from "./api.js";
import { h } from "./dom.js";
import * as format from "./format.js";

export class Replicas extends Polled {
  constructor(element) {
    super();
    this.element = element;
  }

  async load() {
    try {
      const { replicas } = await get("/api/replicas");
      this.element.replaceChildren(
        h("div", { class: "bar" }, h("h2", {}, "Replicas"), h("span", { class: "hint" }, `As ${replicas[0].name} sees them, which shows this page.`)),
        h("div", { class: "cards" }, replicas.map(card)));
    } catch (problem) {
      this.element.replaceChildren(h("p", { class: "problem" }, problem.message));
    }
  }
}

function card(replica) {
  return h("article", { class: "card", "data-state": replica.state },
    h("header", {}, h("span", { class: "dot", "aria-hidden": "true" }), h("h2", {}, replica.name), h("span", { class: "chip", "data-state": replica.state }, replica.state)),
    h("p", { class: "target", translate: "no" }, replica.url),
    replica.trouble ? h("p", { class: "trouble" }, replica.trouble) : "",
    h("dl", { class: "facts" }, [["Id", replica.id], ["Version", replica.version], ...(replica.state === "silent" ? [] : numbers(replica))]
      .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))));
}

const numbers = (replica) => [
  ["Since", new Date(replica.since * 1000).toLocaleString()],
  ["Others", format.count(replica.others)],
  ["Subscribes for all at", format.count(replica.owned)],
  ["Legacy sessions", format.count(replica.sessions)],
  ["Taken over", format.count(replica.taken_over)],
  ["Handed over", format.count(replica.handed_over)],
  ["Handed in", format.count(replica.handed_in)],
  ["Store commands", format.count(replica.commands)],
  ["Store answers in", format.duration(replica.lag_ms) || "–"],
  ["Events waiting", format.count(replica.events_waiting)],
  ["Lease", `${replica.lease_seconds.toFixed(1)} s`],
];
