// Who listens to what: lists and resources, their clients, and when those were told of a change last.

import { get, Polled } from "./api.js";
import { h } from "./dom.js";
import * as format from "./format.js";

export class Subscriptions extends Polled {
  /** `onFilter`: shows the exchanges that fit a filter. */
  constructor(element, onFilter) {
    super();
    this.element = element;
    this.onFilter = onFilter;
    this.open = new Set();
  }

  async load() {
    try {
      const { subscriptions } = await get("/api/subscriptions");
      const shown = JSON.stringify(subscriptions);
      if (shown === this.shown) return;
      this.shown = shown;
      const focused = document.activeElement?.dataset?.action;
      this.element.replaceChildren(
        h("div", { class: "bar" }, h("h2", {}, "Subscriptions")),
        subscriptions.length ? this.table(subscriptions) : h("p", { class: "hint" }, "Nobody listens to anything."));
      if (focused) [...this.element.querySelectorAll("[data-action]")].find((each) => each.dataset.action === focused)?.focus();
    } catch (problem) {
      this.shown = null;
      this.element.replaceChildren(h("p", { class: "problem" }, problem.message));
    }
  }

  table(subscriptions) {
    const names = ["What", "Told by", "Last change", "Told to", "Clients"];
    return h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Subscriptions" }, h("table", { class: "listening" },
      h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col", class: name === "Told to" ? "number" : null }, name)))),
      h("tbody", {}, subscriptions.map((each) => h("tr", {},
        h("td", { class: each.uri ? "uri" : null, translate: "no" }, each.uri ?? `List of ${each.list}`),
        h("td", {}, each.uri ? `${each.sessions.join(", ")}${each.agreed ? "" : " (asked for)"}` : "every upstream"),
        h("td", {}, each.changed ? new Date(each.changed).toLocaleTimeString() : "–"),
        h("td", { class: "number" }, each.changed ? format.count(each.told) : "–"),
        h("td", {}, this.clients(each)))))));
  }

  clients(subscription) {
    const { clients, more_clients: more } = subscription;
    const key = subscription.uri ?? subscription.list;
    const details = h("details", { open: this.open.has(key) },
      h("summary", { "data-action": `clients ${key}` }, format.plural(clients.length + more, "client")),
      h("ul", {}, clients.map((client) => h("li", {}, this.client(client, key))), more ? h("li", {}, `and ${format.count(more)} more`) : ""));
    details.addEventListener("toggle", () => this.open[details.open ? "add" : "delete"](key));
    return details;
  }

  client({ era, name, peer, revision, transport, principal, view }, key) {
    if (era === "replica") return "another replica, for its clients";
    const facts = [principal, view ? `view ${view}` : null, revision ?? era, transport].filter(Boolean).join(", ");
    const filter = `peer=${peer}`;
    return [peer ? h("button", { type: "button", class: "more", "data-action": `${filter} ${key}`, onclick: () => this.onFilter(filter) }, name ? `${name} (${peer})` : peer) : "", ` ${facts}`];
  }
}
