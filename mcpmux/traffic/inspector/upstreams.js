// How the upstreams are: each with its sessions, and what those are subscribed to.

import { get, Polled, post } from "./api.js";
import { h } from "./dom.js";
import * as format from "./format.js";

const ACTIONS = {
  enable: { label: "Enable", when: ["disabled", "draining", "drained"] },
  drain: { label: "Drain", title: "Give it nothing more to do; it stays connected", when: ["ready", "failing", "connecting"] },
  restart: { label: "Restart", title: "A new session takes over; what is in flight is finished", except: ["disabled"] },
  disable: { label: "Disable", title: "As if it were not configured; what is in flight is finished", except: ["disabled"], confirm: true },
};
const KINDS = { shared: "Shared", lane: "Legacy lane", private: "Private" };

export class Upstreams extends Polled {
  constructor(element) {
    super();
    this.element = element;
    this.open = new Set();
  }

  async load() {
    try {
      const { upstreams } = await get("/api/upstreams");
      const shown = JSON.stringify(upstreams);
      if (shown === this.shown) return;
      this.shown = shown;
      const focused = document.activeElement?.dataset?.action;
      this.element.replaceChildren(h("div", { class: "cards" }, upstreams.map((upstream) => this.card(upstream))));
      if (focused) [...this.element.querySelectorAll("[data-action]")].find((button) => button.dataset.action === focused)?.focus();
    } catch (problem) {
      this.shown = null;
      this.element.replaceChildren(h("p", { class: "problem" }, problem.message));
    }
  }

  card(upstream) {
    const subscriptions = upstream.sessions.reduce((sum, session) => sum + session.subscriptions.length + session.more_subscriptions, 0);
    return h("article", { class: "card", "data-state": upstream.state },
      h("header", {}, h("span", { class: "dot", "aria-hidden": "true" }), h("h2", {}, upstream.name), h("span", { class: "chip", "data-state": upstream.state }, upstream.state)),
      h("p", { class: "target", translate: "no" }, upstream.target),
      upstream.trouble ? h("p", { class: "trouble" }, upstream.trouble) : "",
      h("dl", { class: "facts" }, [
        ["Server", [upstream.server, upstream.version].filter(Boolean).join(" ") || "not known"],
        ["Revision", upstream.revision ?? "not agreed"],
        ["Prefix", upstream.prefix || "none"],
        ["Since", upstream.since ? new Date(upstream.since).toLocaleString() : "–"],
        ["Restarts", format.count(upstream.restarts)],
        ["In flight", format.count(upstream.in_flight)],
        ["Offers", upstream.capabilities.join(", ") || "nothing"],
      ].map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
      this.actions(upstream),
      sessionTable(upstream),
      subscriptions ? this.subscriptions(upstream, subscriptions) : h("p", { class: "hint" }, "Nobody is subscribed to anything of it."));
  }

  actions(upstream) {
    const fit = Object.entries(ACTIONS).filter(([, { when, except }]) => (when ? when.includes(upstream.state) : !except.includes(upstream.state)));
    return h("div", { class: "actions", role: "group", "aria-label": `Actions for ${upstream.name}` },
      fit.map(([name, { label, title, confirm }]) => h("button", { type: "button", class: "button", title, "data-action": `${name} ${upstream.name}`, onclick: () => this.act(name, upstream.name, confirm) }, label)));
  }

  async act(action, name, confirm) {
    if (confirm && !window.confirm(`Disable ${name}? Clients lose what it offers until it is enabled again.`)) return;
    try {
      await post(`/api/upstreams/${encodeURIComponent(name)}/${action}`);
    } catch (problem) {
      window.alert(problem.message);
    }
    await this.load();
  }

  subscriptions(upstream, number) {
    const all = upstream.sessions.flatMap((session) => session.subscriptions.map((each) => ({ ...each, key: session.key })));
    const details = h("details", { class: "subscriptions", open: this.open.has(upstream.name) },
      h("summary", {}, format.plural(number, "subscription")),
      h("table", {}, h("thead", {}, h("tr", {}, ["Resource", "Session", "Listeners", "State"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, all.map((each) => h("tr", {}, h("td", { class: "uri", translate: "no" }, each.uri), h("td", {}, each.key),
          h("td", { class: "number" }, format.count(each.listeners)), h("td", {}, each.agreed ? "agreed" : "asked for"))))));
    details.addEventListener("toggle", () => this.open[details.open ? "add" : "delete"](upstream.name));
    return details;
  }
}

function sessionTable(upstream) {
  const rows = upstream.sessions.map((session) => h("tr", {},
    h("td", {}, session.key), h("td", {}, KINDS[session.kind] ?? session.kind),
    h("td", {}, h("span", { class: "chip", "data-state": session.state }, session.state)),
    h("td", {}, session.revision ?? "–"), h("td", { class: "number" }, format.duration(session.connect_ms) || "–")));
  return h("table", { class: "sessions" },
    h("thead", {}, h("tr", {}, ["Session", "Kind", "State", "Revision", "Connected in"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows, upstream.more_sessions ? h("tr", {}, h("td", { colspan: 5 }, `and ${format.count(upstream.more_sessions)} more`)) : ""));
}
